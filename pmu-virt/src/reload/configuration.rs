//! Configuration of a guest's counter reload.

use crate::configuration::any_vendor::Configuration;
use crate::configuration::cpuid::{CpuidLeaf, EAX, EBX, ECX, EDX};
use crate::configuration::error::ConfigurationError;

/// Configuration of a guest's auto counter reload, as in CPUID leaf 0x23, sub-leaf 2. Each field is a bitmap of
/// counters.
///
/// ```
/// use pmu_virt::ReloadConfiguration;
/// // All of eight general and four fixed counters can be reloaded, and reload others.
/// let all = ReloadConfiguration { general: 0xFF, fixed: 0xF, causing_general: 0xFF, causing_fixed: 0xF };
/// assert_eq!(all, ReloadConfiguration::of(0xFF, 0xF));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReloadConfiguration {
    /// General counters that can be reloaded (EAX).
    pub general: u8,
    /// Fixed counters that can be reloaded (EBX).
    pub fixed: u8,
    /// General counters whose overflow can reload counters (ECX).
    pub causing_general: u8,
    /// Fixed counters whose overflow can reload counters (EDX).
    pub causing_fixed: u8,
}

impl ReloadConfiguration {
    /// Creates a configuration in which each given counter can be reloaded, and the overflow of each given counter can
    /// reload counters. `general` and `fixed` are bitmaps of counters.
    pub const fn of(general: u8, fixed: u8) -> Self {
        Self { general, fixed, causing_general: general, causing_fixed: fixed }
    }

    pub(crate) fn check(&self, of: &Configuration) -> Result<(), ConfigurationError> {
        let Configuration::Intel(intel) = of else { return Err(ConfigurationError::ReloadVersion) };
        if intel.version < 6 {
            return Err(ConfigurationError::ReloadVersion);
        }
        let general = (self.general | self.causing_general) & !intel.general;
        let fixed = (self.fixed | self.causing_fixed) & !intel.fixed;
        if general | fixed == 0 { Ok(()) } else { Err(ConfigurationError::ReloadCounters) }
    }

    /// Returns the bits of `CFG_B`.
    pub(crate) const fn causes(&self) -> u64 {
        self.causing_general as u64 | (self.causing_fixed as u64) << 32
    }

    /// Returns the PMU's leaf with the bits that declare the reload.
    pub(crate) fn declared(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        match (leaf.leaf, leaf.subleaf) {
            (0x23, Some(0)) => leaf.bits(EAX, 1 << 2, 1 << 2),
            (0x23, Some(2)) => leaf
                .bits(EAX, u32::MAX, self.general.into())
                .bits(EBX, u32::MAX, self.fixed.into())
                .bits(ECX, u32::MAX, self.causing_general.into())
                .bits(EDX, u32::MAX, self.causing_fixed.into()),
            _ => leaf,
        }
    }
}
