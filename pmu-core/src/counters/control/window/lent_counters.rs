//! The proof that counters of a processor are lent.

use core::marker::PhantomData;

use crate::counters::names::counter_id::CounterSet;

/// Free counters of a processor: no owner uses these counters at present. A borrower's operations require this value as
/// proof that the counters are free.
///
/// A [`CounterWindow`](crate::lending::CounterWindow) provides this value while a session lends its counters. The
/// counters are stopped, and have no overflow pending. The counters' control and value registers still hold the owner's
/// values. The borrower programs a counter before it enables the counter, and stops the counter before the window ends.
#[derive(Debug)]
pub struct LentCounters {
    pub(crate) counters: CounterSet,
    global_control: u64,
    pub(crate) programmed: bool,
    pub(crate) status: u64,
    not_send: PhantomData<*mut ()>,
}

impl LentCounters {
    /// Declares that `counters` of the processor that executes the call have no owner and are stopped. `global_control`
    /// is the value of the global control register. A counter is stopped if its own control register disables it, or if
    /// its bit in `global_control` is clear. If a counter has an owner after all, the owner's counts become wrong.
    ///
    /// # Context
    /// Task. The returned value stays on the processor.
    ///
    /// ```
    /// use pmu_core::CounterSet;
    /// use pmu_core::lending::LentCounters;
    /// let lent = LentCounters::unowned(CounterSet::from_bits(0b1111), 0);
    /// assert_eq!(lent.counters().len(), 4);
    /// ```
    pub const fn unowned(counters: CounterSet, global_control: u64) -> Self {
        Self { counters, global_control, programmed: false, status: 0, not_send: PhantomData }
    }

    /// Adds `counters`, which have no owner, to the counters of this value. For example, a session whose source has no
    /// room for opened events does not take the fixed counters, so these counters can be added.
    ///
    /// ```
    /// # use pmu_core::CounterSet;
    /// # use pmu_core::lending::LentCounters;
    /// let mut lent = LentCounters::unowned(CounterSet::GENERAL, 0);
    /// lent.add_unowned(CounterSet::fixed(0b111)); // The guest gets fixed counters 0 to 2, too.
    /// assert_eq!(lent.counters().bits() >> 32, 0b111);
    /// ```
    pub fn add_unowned(&mut self, counters: CounterSet) {
        self.counters = self.counters | counters;
    }

    /// Returns the lent counters, including those that were added.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns the global control register's value with the lent counters' bits clear. This value stops the lent
    /// counters, and leaves the counters of other owners running. The borrower writes this value back before the
    /// [window](crate::lending::CounterWindow) ends. On Intel, the hypervisor also writes this value to the VMCS, in
    /// the host-state field for this register.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// States whether the borrower of the counters, such as a guest, has programmed any register. The borrower calls
    /// this with `true` before its first register write. At the end, the borrower stops its counters, clears its
    /// registers and acknowledges its overflows, and then calls this with `false`. If the last call was with `true`,
    /// the window's [end](crate::lending::CounterWindow::end) does this work for the borrower.
    ///
    /// ```
    /// # use pmu_core::lending::LentCounters;
    /// # fn program(_: &LentCounters) {}
    /// # fn disarm(_: &LentCounters) -> bool { true }
    /// /// Runs a borrower that may fail to disarm its counters: the window's end then does it.
    /// fn borrow(lent: &mut LentCounters) {
    ///     lent.set_programmed(true);
    ///     program(lent);
    ///     let disarmed = disarm(lent);
    ///     lent.set_programmed(!disarmed);
    /// }
    /// ```
    pub const fn set_programmed(&mut self, programmed: bool) {
        self.programmed = programmed;
    }

    /// Announces that the borrower of the counters is about to set `bits` in the overflow status register. `bits`
    /// contains no counter's overflow bit. If the borrower still has registers programmed when the
    /// [window](crate::lending::CounterWindow) ends, the window's end also acknowledges `bits`. If `bits` stayed set,
    /// the processor would raise an interrupt each time the LVT entry is unmasked.
    ///
    /// ```
    /// # use pmu_core::lending::LentCounters;
    /// # fn write_status_set(_: u64) {}
    /// /// Sets a guest's bits of the overflow status, among them bit 55 of Processor Trace.
    /// fn load_status(lent: &mut LentCounters, guest: u64) {
    ///     lent.set_status(guest & 1 << 55);
    ///     write_status_set(guest);
    /// }
    /// ```
    pub const fn set_status(&mut self, bits: u64) {
        self.status = bits;
    }
}
