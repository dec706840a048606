//! The handlers of the performance interrupt and the profile timer.

use core::sync::atomic::{AtomicU64, Ordering};

use pmu::core::{Branch, Branches, EventId, Report};
use spin::Once;

use crate::embedding::frame::Interrupted;
use crate::embedding::memory::{BRANCH_UNITS, BRANCHES, COUNTERS, EVENTS, MACHINE, PROFILES};
use crate::embedding::msr::interrupt_msr;
use crate::embedding::platform::apic;
use crate::machine::interrupts::TrapFrame;
use crate::machine::processor;

/// Performance interrupts in which no counter had overflowed.
pub static SPURIOUS: AtomicU64 = AtomicU64::new(0);

/// The function of whatever opens events: it gets the processor, and the event whose period ended.
static ON_EVENT: Once<fn(usize, EventId)> = Once::new();

/// A function that gets the interrupted address and the branches before it.
pub type OnBranches = fn(u64, &mut dyn Iterator<Item = Branch>);

/// The function of whatever samples branches.
static ON_BRANCHES: Once<OnBranches> = Once::new();

/// Registers the function that the end of an event's period calls where branches are recorded, in an NMI; once.
pub fn on_branches(function: OnBranches) {
    ON_BRANCHES.call_once(|| function);
}

/// Registers the function that the end of an event's period calls, in an NMI; once.
pub fn on_event(function: fn(usize, EventId)) {
    ON_EVENT.call_once(|| function);
}

/// Handles the performance interrupt, as NMI or by its vector: finds the counters that overflowed, and reports what was
/// executing.
pub fn performance_interrupt(frame: &TrapFrame) {
    let Some(machine) = MACHINE.get() else { return };
    let number = processor::number();
    let (msr, counters) = (interrupt_msr(), &COUNTERS[number]);
    let machine = machine.with_events(&EVENTS[number]);
    let reported = |report| match report {
        Report::Source(overflow) => {
            PROFILES.interrupt(&Interrupted(frame), overflow.source);
        }
        Report::Event(overflow) => {
            if let Some(function) = ON_EVENT.get() {
                function(number, overflow.event);
            }
        }
    };
    let serviced = match BRANCH_UNITS[number].get() {
        None => machine.service(&msr, &apic(), counters, reported),
        Some(unit) => {
            let branches = Branches::new(unit, &BRANCHES[number]);
            machine.service_with(&msr, &apic(), counters, branches, |report, branches| {
                if let (Report::Event(_), Some(function)) = (&report, ON_BRANCHES.get()) {
                    function(frame.rip, &mut branches.iter());
                }
                reported(report);
            })
        }
    };
    if serviced.is_ok_and(|serviced| serviced.overflows == 0) {
        SPURIOUS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Handles the profile timer's interrupt.
pub fn timer_interrupt(frame: &TrapFrame) {
    PROFILES.timer_interrupt(&Interrupted(frame));
}
