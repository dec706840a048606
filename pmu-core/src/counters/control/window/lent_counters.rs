//! The proof that counters of a processor are lent.

use core::marker::PhantomData;

use crate::counters::names::counter_id::CounterSet;

/// Counters of this processor that no owner uses for the time being: the proof that a borrower asks for.
///
/// A [`CounterWindow`](crate::CounterWindow) has them where a session lends its counters. They stand still, and none
/// has an overflow pending; what their controls and values hold is left over from their owner. The borrower programs a
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
    /// Declares that these counters of the processor that executes the call have no owner, and are stopped, by the
    /// global control register for instance, which holds `global_control`. Where that is wrong, the owner's counts are.
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

    /// Adds counters that have no owner. The session of a source table has general counters alone, for instance, and a
    /// guest gets fixed ones, too.
    pub fn add_unowned(&mut self, counters: CounterSet) {
        self.counters = self.counters | counters;
    }

    /// Returns the counters.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns the value that the global control register holds while nothing of the borrower's runs: the other owners'
    /// bits. A borrower writes it back. It is the host's field of a VMCS, too.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// Notes whether something of the borrower's is programmed: `true` before the borrower's first write, `false` when
    /// everything is disarmed, cleared and acknowledged. While it is `true`, the window's
    /// [end](crate::CounterWindow::end) does that.
    pub const fn set_programmed(&mut self, programmed: bool) {
        self.programmed = programmed;
    }

    /// Notes the bits of the overflow status, beside the counters', that the borrower sets: before it does. Where
    /// something is programmed at the window's end, it acknowledges them, too: each unmasking of the LVT entry
    /// would raise an interrupt.
    pub const fn set_status(&mut self, bits: u64) {
        self.status = bits;
    }
}
