//! `Pmu` with everything that an event can ask for, on processors of both vendors, with the operations of the kernel
//! like Hermit: its text is measured. The instructions are those of privilege level 0, so nothing is executed.
#![no_std]
#![no_main]

mod bare;

use core::hint::black_box;
use core::sync::atomic::AtomicU32;

use pmu::facilities::{
    BranchRecords, CounterReloads, PreciseRecords, SoftwareEvents, TopDownParts,
};
use pmu::frame::PlainFrame;
use pmu::{
    BranchFilter, Event, GenericEvent, Kernel, Pmu, PmuError, PmuSample, Precision, Snapshot,
    SoftwareEvent, ThreadEvent, X86,
};
use pmu_glue_hermit::{Hermit, hermit};

static BUCKETS: [AtomicU32; 0x1000] = [const { AtomicU32::new(0) }; 0x1000];
static PMU: Pmu<Everything, 8> = Pmu::new();

/// The kernel like Hermit, whose events may ask for everything.
struct Everything;

// SAFETY: as Hermit's.
unsafe impl Kernel for Everything {
    type Registers = hermit::Registers;
    type Architecture = X86<
        ((PreciseRecords<512>, BranchRecords), ((CounterReloads, TopDownParts), SoftwareEvents)),
        Hermit,
    >;
    fn registers() -> hermit::Registers {
        Hermit::registers()
    }
    fn this_processor() -> usize {
        Hermit::this_processor()
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        Hermit::pinned(act)
    }
    fn set_interrupt_masked(masked: bool) {
        Hermit::set_interrupt_masked(masked);
    }
    fn interrupt(processor: usize) {
        Hermit::interrupt(processor);
    }
    fn sampled(sample: &PmuSample<'_, Self>) {
        black_box((sample.tag, sample.address()));
        sample.branches().for_each(|branch| _ = black_box(branch));
    }
    fn physical_address(first: *const (), bytes: usize) -> Option<u64> {
        Hermit::physical_address(first, bytes)
    }
    fn now() -> u64 {
        Hermit::now()
    }
}

fn kernel() -> Result<(), PmuError> {
    PMU.processor_up(&Snapshot::capture(hermit::cpuid()))?;
    let frame = PlainFrame::new(black_box(0), 8, 2, 0);
    let interrupted = PMU.interrupt(&frame);
    black_box(interrupted.claim);
    PMU.serve_call();
    PMU.tick()?;
    PMU.happened(black_box(SoftwareEvent::PageFaults), &frame);
    let counted = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
    black_box(PMU.count(&counted, || black_box(()))?);
    let cycles = Event::generic(GenericEvent::Cycles).every(1_000_003);
    let precise = cycles.precise(Precision::ZeroSkidRequested).with_branches(BranchFilter::ALL);
    PMU.close(PMU.start(&precise)?)?;
    let reloaded = [cycles.reloaded_by(0b10), cycles];
    PMU.close(PMU.start_group(&reloaded)?[0])?;
    black_box(PMU.count_slots(|event| event, || black_box(()))?);
    let mut thread = [PMU.thread_event(&counted[0])?, ThreadEvent::Unused];
    PMU.switch(&mut [], &mut thread)?;
    black_box(PMU.read_thread(&thread[0])?);
    PMU.switch(&mut thread, &mut [])?;
    let profile = PMU.profile(precise, 0x20_0000..0x60_0000, &BUCKETS, || black_box(()))?;
    profile.hits().for_each(|hit| _ = black_box(hit));
    Ok(())
}

extern "C" fn main() -> i32 {
    if black_box(false) {
        let _ = black_box(kernel());
    }
    0
}
