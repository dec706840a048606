//! Branch sampling of a processor that goes idle.

use crate::branches::memory::{CLEAR, LOST, RECORDING};
use crate::branches::sampled::Branches;
use crate::branches::unit::BranchOrder;
use crate::counters::names::counter_id::CounterSet;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

impl Branches<'_> {
    /// Stops a branch sampling that [delays interrupts](crate::branches::BranchUnit::holds_interrupt), before the
    /// processor goes idle. An interrupt that is delayed comes now, and its sample has the branches that were sampled.
    /// A change of the session's events may start the sampling again. On other processors, and while no event's samples
    /// have branches, the call accesses no register.
    ///
    /// ```
    /// # use pmu_core::branches::Branches;
    /// # use pmu_core::msr::{MsrBackend, MsrFault};
    /// /// The idle loop of a processor.
    /// fn idle<M: MsrBackend>(branches: &Branches<'_>, msr: &M, halt: fn()) -> Result<(), MsrFault> {
    ///     branches.before_idle(msr)?;
    ///     halt();
    ///     branches.after_idle(msr)
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor of the memory. The performance interrupt may come at any time.
    ///
    /// # Errors
    /// A register access failed. The call can be repeated.
    pub fn before_idle<M: MsrBackend>(&self, msr: &M) -> Result<(), MsrFault> {
        self.suspend_sampling(msr, CounterSet::ALL)
    }

    /// Stops a sampling that delays interrupts of these counters. The records stay, and are read by the interrupt.
    #[inline(never)] // Linked once: each stop of a counter makes the call.
    pub(crate) fn suspend_sampling<M: MsrBackend>(
        &self,
        msr: &M,
        counters: CounterSet,
    ) -> Result<(), MsrFault> {
        let BranchOrder::Filled { counters: of, .. } = self.unit.registers().order else {
            return Ok(());
        };
        let is_one = !(counters & CounterSet::from_bits(of.into())).is_empty();
        if !is_one || self.memory.mode() & RECORDING == 0 {
            return Ok(());
        }
        // Until the sampling is to go on, no interrupt starts it again.
        self.memory.set_mode(CLEAR);
        self.unit.suspend_sampling(msr)
    }

    /// Starts the branch sampling again that [`before_idle`](Self::before_idle) stopped, from the first record on.
    /// Otherwise the call accesses no register.
    ///
    /// # Context
    /// That of [`before_idle`](Self::before_idle).
    ///
    /// # Errors
    /// A register access failed. The call can be repeated.
    pub fn after_idle<M: MsrBackend>(&self, msr: &M) -> Result<(), MsrFault> {
        let mode = self.memory.mode_of(self.unit);
        if mode & RECORDING == 0 || mode & (CLEAR | LOST) == 0 || !self.unit.holds_interrupt() {
            return Ok(());
        }
        // An interrupt that stops the sampling from here on starts it again.
        self.memory.clear_mode(CLEAR);
        self.restart(msr).map(|_| ())
    }
}
