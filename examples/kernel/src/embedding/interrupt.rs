//! The handlers of the performance interrupt and the profile timer.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmu::PmuSample;
use pmu::core::branches::Branches;
use pmu::core::precise::PreciseSample;
use pmu::core::registers::CounterId;
use pmu::intel::precise::{Pebs, PreciseRecord};
use spin::Once;

use crate::embedding::frame::Interrupted;
use crate::embedding::memory::PMU;
use crate::embedding::platform::Kernel;
use crate::machine::interrupts::TrapFrame;
use crate::machine::processor::{self, MAX_PROCESSORS};

/// Performance interrupts in which no counter had overflowed.
pub static SPURIOUS: AtomicU64 = AtomicU64::new(0);

/// Number of overflows of each processor's counters.
pub static OVERFLOWS: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];

/// Number of interrupts that found the processor stuck. A real kernel reports more than a number, or panics.
pub static STUCK: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];

/// A function that gets the interrupted address and the branches before it.
pub type OnBranches = fn(u64, &Branches<'_>);

/// The function of whatever samples branches.
static ON_BRANCHES: Once<OnBranches> = Once::new();

/// The function of whatever samples ops.
static ON_OP: Once<fn(&PreciseSample)> = Once::new();

/// The function of whatever records precisely.
static ON_RECORD: Once<fn(&PreciseRecord<'_>)> = Once::new();

/// Registers the function that a sample with a precise record calls, in an NMI; once.
pub fn on_record(function: fn(&PreciseRecord<'_>)) {
    ON_RECORD.call_once(|| function);
}

/// Registers the function that a sample of an op calls, in an NMI; once.
pub fn on_op(function: fn(&PreciseSample)) {
    ON_OP.call_once(|| function);
}

/// Registers the function that the end of an event's period calls if its sample has branches, in an NMI; once.
pub fn on_branches(function: OnBranches) {
    ON_BRANCHES.call_once(|| function);
}

/// Handles the performance interrupt, as NMI or by its vector: finds the counters that overflowed, and reports what was
/// executing.
pub fn performance_interrupt(frame: &TrapFrame) {
    let (number, interrupted) = (processor::number(), Interrupted(frame));
    let interrupted = PMU.interrupt(&interrupted);
    OVERFLOWS[number].fetch_add(interrupted.overflows, Ordering::Relaxed);
    STUCK[number].fetch_add(interrupted.is_stuck.into(), Ordering::Relaxed);
    if interrupted.overflows == 0 && interrupted.error.is_none() {
        SPURIOUS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Passes on the branches and the record of an event's sample, or the sampled op.
pub fn sampled(sample: &PmuSample<'_, Kernel>) {
    if let (Some(function), Some(branches)) = (ON_BRANCHES.get(), sample.branch_records()) {
        function(sample.address().unwrap_or(0), branches);
    }
    let pebs = sample.facility().and_then(|((pebs, _), _)| pebs.as_ref());
    if let (Some(function), Some(record)) = (ON_RECORD.get(), pebs.and_then(Pebs::record)) {
        function(&record);
    }
    if sample.counter == CounterId::OP_UNIT
        && let (Some(function), Some(op)) = (ON_OP.get(), sample.instruction())
    {
        function(&op);
    }
}

/// Handles the profile timer's interrupt.
pub fn timer_interrupt(frame: &TrapFrame) {
    PMU.profiles().timer_interrupt(&Interrupted(frame));
}
