//! Registers that no driver here uses, and that a predecessor may have left enabled.

use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::unit::CounterUnit;
use crate::msr::access::MsrAccess;
use crate::msr::address::MsrAddress;
use crate::msr::backend::MsrBackend;

/// Registers that some counters have beside their control, and that no driver here uses. If firmware, or the kernel
/// before a kexec, left values in them, a counter is reloaded or writes records behind the driver's back.
///
/// [`CounterSession::take`](crate::CounterSession::take) does not clear them, so that a kernel that never finds
/// such values does not pay for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UnusedRegisters {
    distance: u32,
    counters: CounterSet,
}

impl UnusedRegisters {
    /// No counter has such a register.
    pub const NONE: Self = Self { distance: 0, counters: CounterSet::NONE };

    /// Describes one register for each of these `counters`, at `distance` from the counter's value register.
    ///
    /// # Safety
    /// - Writing 0 to them does not break memory safety.
    ///
    /// ```
    /// use pmu_core::{CounterSet, UnusedRegisters};
    /// // SAFETY: two after the counter IA32_PMC_GP0_CTR is IA32_PMC_GP0_CFG_B, where 0 has no counter loaded again.
    /// let reloads = unsafe { UnusedRegisters::new(2, CounterSet::from_bits(0xFF)) };
    /// assert_eq!(reloads.counters().len(), 8);
    /// ```
    ///
    /// Wrong: a distance that leads to another unit's registers.
    ///
    /// ```
    /// # use pmu_core::{CounterSet, UnusedRegisters};
    /// // SAFETY: not given. What is 0x1000 after a counter, none of these manuals tells.
    /// let others = unsafe { UnusedRegisters::new(0x1000, CounterSet::from_bits(0xFF)) };
    /// # let _ = others;
    /// ```
    pub const unsafe fn new(distance: u32, counters: CounterSet) -> Self {
        Self { distance, counters }
    }

    /// Returns the counters that have such a register.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Clears these registers of those of `counters` that `unit` has, by one write each. Returns the counters whose
    /// register faulted twice: do not take these.
    ///
    /// Call it on the processor that `unit` describes: before the counters are taken, after their registers may have
    /// lost their contents (suspend), and before another kernel is started. The old values are not restored.
    ///
    /// ```
    /// # use pmu_core::{CounterSet, CounterUnit, MsrBackend, UnusedRegisters};
    /// /// Prepares the counters for a session, without those that a predecessor's registers still drive.
    /// fn prepare(unused: &UnusedRegisters, unit: &CounterUnit, msr: &impl MsrBackend) -> CounterSet {
    ///     let stays = unused.clear(unit, CounterSet::ALL, msr);
    ///     unit.counters().without(stays) // what `CounterSession::take` may have
    /// }
    /// ```
    ///
    /// # Context
    /// Any, while no other owner uses these counters.
    pub fn clear(
        &self,
        unit: &CounterUnit,
        counters: CounterSet,
        msr: &impl MsrBackend,
    ) -> CounterSet {
        let there = unit.counters() & self.counters & counters;
        there.retain(|counter| {
            let value = unit.registers(counter).value.get();
            // SAFETY: only 0 is written, by the promise of `new`.
            let register = unsafe { MsrAddress::new(value.wrapping_add(self.distance)) };
            msr.wrmsr_retrying(register, 0).is_err()
        })
    }
}
