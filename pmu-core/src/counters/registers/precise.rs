//! The register that enables precise sampling, in which firmware or an earlier kernel may have left bits set.

use crate::counters::names::counter_id::CounterSet;
use crate::msr::access::MsrAccess;
use crate::msr::backend::MsrBackend;
use crate::msr::update::MsrUpdate;

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
    pub(crate) fn disable(&self, msr: &impl MsrBackend, counters: CounterSet) -> CounterSet {
        let counters = counters & self.counters;
        let capability = msr.update_retrying(MsrUpdate::read(self.capability));
        if capability.is_ok_and(|capability| capability & self.unavailable == 0) {
            // SAFETY: by the promise of `new`.
            let disable = unsafe { MsrUpdate::new(self.enable, counters.bits(), 0) };
            if msr.update_retrying(disable).is_err() {
                // A register that cannot even be read is not there.
                let enabled = msr.update_retrying(MsrUpdate::read(self.enable)).unwrap_or(0);
                return CounterSet::from_bits(enabled) & counters;
            }
        }
        CounterSet::NONE
    }
}
