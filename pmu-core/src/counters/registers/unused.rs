//! Registers that no driver of these crates uses, and that firmware or an earlier kernel may have left enabled.

use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::unit::CounterUnit;
use crate::msr::access::MsrAccess;
use crate::msr::address::MsrAddress;
use crate::msr::backend::MsrBackend;

/// Additional registers of some processors, one for each counter. No driver of these crates uses these registers.
/// Firmware, or the kernel before a kexec, may have left values there. These values can make the processor reload
/// counters or write records to memory without the driver's knowledge.
///
/// [`CounterSession::take`](crate::CounterSession::take) does not clear these registers. A kernel can clear the
/// registers by [`clear`](Self::clear).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UnusedRegisters {
    distance: u32,
    counters: CounterSet,
}

impl UnusedRegisters {
    /// The value for a processor whose counters have no unused registers.
    pub const NONE: Self = Self { distance: 0, counters: CounterSet::NONE };

    /// Describes one unused register for each of these `counters`, at `distance` from the counter's value register.
    ///
    /// # Safety
    /// - Writing 0 to these registers does not break memory safety.
    ///
    /// ```
    /// use pmu_core::CounterSet;
    /// use pmu_core::registers::UnusedRegisters;
    /// // SAFETY: IA32_PMC_GP0_CFG_B is IA32_PMC_GP0_CTR + 2. With the value 0, no counter is reloaded.
    /// let reloads = unsafe { UnusedRegisters::new(2, CounterSet::from_bits(0xFF)) };
    /// assert_eq!(reloads.counters().len(), 8);
    /// ```
    ///
    /// Wrong: a distance that leads to registers of another kind.
    ///
    /// ```
    /// # use pmu_core::CounterSet;
    /// # use pmu_core::registers::UnusedRegisters;
    /// // SAFETY: not given. No manual names the register at a distance of 0x1000 from a counter.
    /// let others = unsafe { UnusedRegisters::new(0x1000, CounterSet::from_bits(0xFF)) };
    /// # let _ = others;
    /// ```
    pub const unsafe fn new(distance: u32, counters: CounterSet) -> Self {
        Self { distance, counters }
    }

    /// Returns the counters that have an unused register.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Writes 0 to the unused register of each counter that is both in `counters` and in `unit`. Returns the counters
    /// for which the write failed twice; no session may take these counters.
    ///
    /// Call this on the processor that `unit` describes:
    /// - before the counters are taken;
    /// - after a suspend in which the counters' registers may have lost their contents;
    /// - before another kernel is started.
    ///
    /// The cleared values are not restored.
    ///
    /// ```
    /// # use pmu_core::{CounterSet, CounterUnit};
    /// # use pmu_core::msr::MsrBackend;
    /// # use pmu_core::registers::UnusedRegisters;
    /// /// Returns the counters that a session may take: those whose unused registers were cleared.
    /// fn prepare(unused: &UnusedRegisters, unit: &CounterUnit, msr: &impl MsrBackend) -> CounterSet {
    ///     let stays = unused.clear(unit, CounterSet::ALL, msr);
    ///     unit.counters().without(stays) // for `CounterSession::take`
    /// }
    /// ```
    ///
    /// # Context
    /// Any context, while no other owner uses these counters.
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
