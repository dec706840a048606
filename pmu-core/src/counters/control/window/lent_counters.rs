//! The proof that counters of a processor are lent.

use core::marker::PhantomData;

use crate::counters::names::counter_id::CounterSet;

/// Counters of this processor that no owner uses at present. A borrower's operations take them as evidence.
///
/// A [`CounterWindow`](crate::CounterWindow) has them while a session lends its counters. The counters are stopped,
/// and have no overflow pending. Their controls and values are left over from their owner. The borrower programs a
/// counter before it enables it, and disarms it in the end.
#[derive(Debug)]
pub struct LentCounters {
    pub(crate) counters: CounterSet,
    global_control: u64,
    pub(crate) programmed: bool,
    pub(crate) status: u64,
    not_send: PhantomData<*mut ()>,
}

impl LentCounters {
    /// Declares that these counters of the processor that executes the call have no owner and are stopped: by the
    /// global control register, for instance, which holds `global_control`. If that is wrong, the owner's counts are
    /// wrong.
    ///
    /// # Context
    /// Task. The value stays on the processor.
    ///
    /// ```
    /// use pmu_core::{CounterSet, LentCounters};
    /// let lent = LentCounters::unowned(CounterSet::from_bits(0b1111), 0);
    /// assert_eq!(lent.counters().len(), 4);
    /// ```
    pub const fn unowned(counters: CounterSet, global_control: u64) -> Self {
        Self { counters, global_control, programmed: false, status: 0, not_send: PhantomData }
    }

    /// Adds counters that have no owner. A session of a source table has general counters only, for instance, and a
    /// guest gets fixed counters, too.
    ///
    /// ```
    /// # use pmu_core::{CounterSet, LentCounters};
    /// let mut lent = LentCounters::unowned(CounterSet::GENERAL, 0);
    /// lent.add_unowned(CounterSet::fixed(0b111)); // The guest gets fixed counters 0 to 2, too.
    /// assert_eq!(lent.counters().bits() >> 32, 0b111);
    /// ```
    pub fn add_unowned(&mut self, counters: CounterSet) {
        self.counters = self.counters | counters;
    }

    /// Returns the lent counters, the added ones included.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns the value of the global control register while no counter runs for the borrower: the other owners'
    /// bits. A borrower writes this value back. It is also the value for the host's field in a VMCS.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// Notes whether the borrower has anything programmed: `true` before its first write, `false` when all of it is
    /// disarmed, cleared and acknowledged. If it is still `true` at the window's [end](crate::CounterWindow::end), the
    /// end does that.
    ///
    /// ```
    /// # use pmu_core::LentCounters;
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

    /// Notes bits of the overflow status, beside the counters', that the borrower is about to set. If anything is
    /// programmed at the window's end, the end acknowledges these bits, too: otherwise each unmasking of the LVT entry
    /// would raise an interrupt.
    ///
    /// ```
    /// # use pmu_core::LentCounters;
    /// # fn write_status_set(_: u64) {}
    /// /// Sets the status bits of a guest, among them one of its trace (55).
    /// fn load_status(lent: &mut LentCounters, guest: u64) {
    ///     lent.set_status(guest & 1 << 55);
    ///     write_status_set(guest);
    /// }
    /// ```
    pub const fn set_status(&mut self, bits: u64) {
        self.status = bits;
    }
}
