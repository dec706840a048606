//! The handlers of the performance interrupt and the profile timer.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmu::amd::ibs::{Ibs, IbsRecord};
use pmu::core::{Branch, PreciseSample};
use spin::Once;

use crate::embedding::frame::Interrupted;
use crate::embedding::memory::{BRANCHES, OP_UNITS, OPS, PMU};
use crate::machine::interrupts::TrapFrame;
use crate::machine::processor::{self, MAX_PROCESSORS};

/// Performance interrupts in which no counter had overflowed.
pub static SPURIOUS: AtomicU64 = AtomicU64::new(0);

/// Number of overflows of each processor's counters.
pub static OVERFLOWS: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];

/// Number of interrupts that found the processor stuck. A real kernel reports more than a number, or panics.
pub static STUCK: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];

/// A function that gets the interrupted address and the branches before it.
pub type OnBranches = fn(u64, &mut dyn Iterator<Item = Branch>);

/// The function of whatever samples branches.
static ON_BRANCHES: Once<OnBranches> = Once::new();

/// The function of whatever samples ops.
static ON_OP: Once<fn(&PreciseSample)> = Once::new();

/// Registers the function that a sample of an op calls, in an NMI; once.
pub fn on_op(function: fn(&PreciseSample)) {
    ON_OP.call_once(|| function);
}

/// Registers the function that the end of an event's period calls where branches are recorded, in an NMI; once.
pub fn on_branches(function: OnBranches) {
    ON_BRANCHES.call_once(|| function);
}

/// Handles the performance interrupt, as NMI or by its vector: finds the counters that overflowed, and reports what was
/// executing.
pub fn performance_interrupt(frame: &TrapFrame) {
    let (number, interrupted) = (processor::number(), Interrupted(frame));
    let interrupted = match (BRANCHES.here(), OP_UNITS[number].get()) {
        (None, None) => PMU.interrupt(&interrupted),
        (_, Some(unit)) => {
            let sampled = |record: &IbsRecord| {
                if let Some(function) = ON_OP.get() {
                    function(&record.sample(unit));
                }
            };
            let ops = Ibs::new(unit, &OPS[number], sampled);
            PMU.interrupt_beside(&interrupted, ops, |_, _| ())
        }
        (Some(branches), None) => PMU.interrupt_beside(&interrupted, branches, |_, branches| {
            if let Some(function) = ON_BRANCHES.get() {
                function(frame.rip, &mut branches.iter());
            }
        }),
    };
    OVERFLOWS[number].fetch_add(interrupted.overflows, Ordering::Relaxed);
    STUCK[number].fetch_add(interrupted.is_stuck.into(), Ordering::Relaxed);
    if interrupted.overflows == 0 && interrupted.error.is_none() {
        SPURIOUS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Handles the profile timer's interrupt.
pub fn timer_interrupt(frame: &TrapFrame) {
    PMU.profiles().timer_interrupt(&Interrupted(frame));
}
