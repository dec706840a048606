//! The glue of a kernel like Hermit, with a machine of any vendor, events, precise samples with branches, events of
//! tasks, and one profile: its text is measured. The instructions are those of privilege level 0, so nothing is
//! executed.
#![no_std]
#![no_main]

mod bare;

use core::hint::black_box;
use core::sync::atomic::AtomicU32;

use pmu_core::branches::BranchFilter;
use pmu_core::precise::Precision;
use pmu_core::{Event, GenericEvent};
use pmu_glue_hermit::hermit::ExceptionStackFrame;
use pmu_glue_hermit::{
    NO_EVENTS, call_interrupt, core_up, count, idle, may_switch, performance_interrupt, profile,
    start, stop, switch, task_count, task_event, timer_tick,
};

static BUCKETS: [AtomicU32; 0x1000] = [const { AtomicU32::new(0) }; 0x1000];

fn kernel() {
    let _ = black_box(core_up(|sample| {
        black_box((sample.address(), sample.instruction()));
        sample.branches().for_each(|branch| _ = black_box(branch));
    }));
    let frame = ExceptionStackFrame { rip: 0, cs: 8, rflags: 2, rsp: 0, ss: 0 };
    black_box(performance_interrupt as fn(_))(frame);
    black_box(call_interrupt as fn(_))(frame);
    timer_tick();
    idle(&mut || black_box(()));
    let (mut from, mut to) = (NO_EVENTS, NO_EVENTS);
    if let Ok(event) = task_event(&Event::generic(GenericEvent::Instructions)) {
        to[0] = event;
    }
    if may_switch() {
        switch(black_box(&mut from), black_box(&mut to));
    }
    let _ = black_box(task_count(&to[0]));
    let _ = black_box(count(&mut || black_box(())));
    let cycles = Event::generic(GenericEvent::Cycles).every(1_000_003);
    let precise = cycles.precise(Precision::ZeroSkidRequested).with_branches(BranchFilter::ALL);
    if let Ok(event) = start(&precise) {
        let _ = black_box(stop(event));
    }
    if let Ok(profile) = profile(cycles, 0x20_0000..0x60_0000, &BUCKETS, &mut || black_box(())) {
        profile.hits().for_each(|hit| _ = black_box(hit));
    }
}

extern "C" fn main() -> i32 {
    if black_box(false) {
        kernel();
    }
    0
}
