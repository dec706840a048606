//! The glue of a kernel like ArceOS, with a machine of any vendor, events, events of tasks, and one profile: its text
//! is measured. The instructions are those of privilege level 0, so nothing is executed.
#![no_std]
#![no_main]

mod bare;

use core::hint::black_box;
use core::sync::atomic::AtomicU32;

use pmu_core::thread::ThreadEvent;
use pmu_core::{Event, GenericEvent};
use pmu_glue::{PMU, ax, cpu_up, dispatch, init, switch};

static BUCKETS: [AtomicU32; 0x1000] = [const { AtomicU32::new(0) }; 0x1000];

fn kernel() {
    let _ = black_box(init());
    let _ = black_box(cpu_up());
    let mut events = [const { ThreadEvent::Unused }; 4];
    let _ = black_box(switch(&mut events, &mut [ThreadEvent::Unused]));
    dispatch(&ax::TrapFrame { rip: 0, cs: 8, rflags: 2 }, black_box(0xE1));
    let counted = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
    let _ = black_box(PMU.count(&counted, || black_box(())));
    let cycles = Event::generic(GenericEvent::Cycles).every(1_000_003);
    let text = 0xFFFF_FFFF_8000_0000..0xFFFF_FFFF_8010_0000;
    if let Ok(profile) = PMU.profile(cycles, text, &BUCKETS, || black_box(())) {
        profile.hits().for_each(|hit| _ = black_box(hit));
    }
}

extern "C" fn main() -> i32 {
    if black_box(false) {
        kernel();
    }
    0
}
