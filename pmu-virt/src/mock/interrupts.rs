//! Interrupts of a mock processor: pending, delivered, handled, nested.

use core::cell::Cell;

use crate::mock::deviation::Deviation;
use crate::mock::plan::PmiFault;
use crate::mock::processor::{MASKED, MockMsr};
use crate::pmu::pmi::{Delivery, PerformanceEntry, PmiOutcome};

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Delivers a pending interrupt, or applies the fault that the plan has for it.
    pub(super) fn interrupt(&self) {
        match self.plan.pmi.get() {
            PmiFault::None => self.deliver(),
            PmiFault::Lost => self.pmu.borrow_mut().init(),
            PmiFault::Late(accesses) => self.plan.deliver_in.set(accesses.saturating_add(1)),
        }
    }

    /// Delivers the interrupt that the PMU raised, if it did and the entry is not masked.
    pub fn deliver(&self) {
        let overflowed = self.overflowed.take();
        if self.precise.get() & overflowed != 0 {
            // A record was written instead.
            self.pmu.borrow_mut().init();
        }
        let outcome = self.pmu.borrow_mut().deliver_pmi(&mut Entry(&self.entry));
        if let PmiOutcome::Raised(_) = outcome {
            if self.deviations.contains(Deviation::MasksOnDelivery) {
                self.entry.set(self.entry.get() | MASKED);
            }
            let second = self.deviations.contains(Deviation::LatchesSecondInterrupt)
                && overflowed.count_ones() > 1;
            self.execute_handler(second);
        }
    }

    /// Interrupts the processor without the PMU: an NMI of another source. `false`: it waits for the end of the one
    /// being handled.
    pub fn interrupt_from_elsewhere(&self) -> bool {
        self.execute_handler(false)
    }

    /// Executes the handler; while it is being executed, latches one interrupt instead.
    fn execute_handler(&self, second: bool) -> bool {
        let outer = self.handling.get();
        if second {
            self.latched.set(true);
        }
        if outer && !self.deviations.contains(Deviation::NestsInterrupts) {
            self.latched.set(true);
            return false;
        }
        self.handling.set(true);
        loop {
            self.handled.set(self.handled.get().saturating_add(1));
            if let Some(handler) = self.handler.get() {
                handler(self);
            }
            if outer || !self.latched.take() {
                break;
            }
        }
        self.handling.set(outer);
        true
    }
}

/// The entry alone: the caller executes the handler afterwards.
struct Entry<'e>(&'e Cell<u32>);

impl PerformanceEntry for Entry<'_> {
    fn entry(&self) -> u32 {
        self.0.get()
    }
    fn set_entry(&mut self, entry: u32) {
        self.0.set(entry);
    }
    fn raise(&mut self, _: Delivery) {}
}
