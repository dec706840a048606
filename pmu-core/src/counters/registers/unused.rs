//! Registers of Intel's processors that no driver of these crates uses, and that firmware or an earlier kernel may have
//! left enabled.

use crate::access::address::{RegisterAddress, RegisterUpdate};
use crate::access::backend::{RegisterAccess, RegisterBackend};
use crate::counters::names::CounterSet;
use crate::counters::registers::unit::CounterUnit;

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
    /// # use pmu_core::access::RegisterBackend;
    /// # use pmu_core::registers::UnusedRegisters;
    /// /// Returns the counters that a session may take: those whose unused registers were cleared.
    /// fn prepare(unused: &UnusedRegisters, unit: &CounterUnit, msr: &impl RegisterBackend) -> CounterSet {
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
        msr: &impl RegisterBackend,
    ) -> CounterSet {
        let there = unit.counters() & self.counters & counters;
        there.retain(|counter| {
            let value = unit.registers(counter).value.get();
            // SAFETY: only 0 is written, by the promise of `new`.
            let register = unsafe { RegisterAddress::new(value.wrapping_add(self.distance)) };
            msr.write_retrying(register, 0).is_err()
        })
    }
}

/// The register `IA32_PEBS_ENABLE`, which enables precise sampling by one bit per counter. While a counter's bit is
/// set, an overflow of the counter writes a record to memory instead of interrupting. Firmware or an earlier kernel may
/// have left bits set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseSampling {
    enable: u32,
    capability: u32,
    unavailable: u64,
    counters: CounterSet,
}

impl PreciseSampling {
    /// Describes the register `enable`, which has one bit for each of these `counters`. The processor lacks this
    /// register if any of the bits `unavailable` is set in the register `capability`.
    ///
    /// # Safety
    /// - Clearing any bits of `enable`, while its other bits stay unchanged, does not break memory safety.
    ///
    /// ```
    /// use pmu_core::CounterSet;
    /// use pmu_core::registers::PreciseSampling;
    /// // SAFETY: clearing a bit of IA32_PEBS_ENABLE only ends precise sampling. The processor has no PEBS if bit 12 of
    /// // IA32_MISC_ENABLE is set.
    /// let precise = unsafe { PreciseSampling::new(CounterSet::from_bits(0xF), 0x3F1, 0x1A0, 1 << 12) };
    /// # let _ = precise;
    /// ```
    ///
    /// Wrong: a register in which clearing a bit removes a protection.
    ///
    /// ```
    /// # use pmu_core::CounterSet;
    /// # use pmu_core::registers::PreciseSampling;
    /// // SAFETY: not given. Clearing bits of EFER turns off system calls and no-execute pages.
    /// let precise = unsafe { PreciseSampling::new(CounterSet::from_bits(0xF), 0xC000_0080, 0x1A0, 1 << 12) };
    /// # let _ = precise;
    /// ```
    pub const unsafe fn new(
        counters: CounterSet,
        enable: u32,
        capability: u32,
        unavailable: u64,
    ) -> Self {
        Self { enable, capability, unavailable, counters }
    }

    /// Disables precise sampling for these counters, and returns those for which that failed.
    pub(crate) fn disable(&self, msr: &impl RegisterBackend, counters: CounterSet) -> CounterSet {
        let counters = counters & self.counters;
        let capability = msr.update_retrying(RegisterUpdate::read(self.capability));
        if capability.is_ok_and(|capability| capability & self.unavailable == 0) {
            // SAFETY: by the promise of `new`.
            let disable = unsafe { RegisterUpdate::new(self.enable, counters.bits(), 0) };
            if msr.update_retrying(disable).is_err() {
                // A register that cannot even be read is not there.
                let enabled = msr.update_retrying(RegisterUpdate::read(self.enable)).unwrap_or(0);
                return CounterSet::from_bits(enabled) & counters;
            }
        }
        CounterSet::NONE
    }
}
