//! The configuration of a guest's PMU, of any vendor.

use crate::configuration::amd::{AmdConfiguration, AmdCounters};
use crate::configuration::error::ConfigurationError;
use crate::configuration::hidden::HiddenConfiguration;
use crate::configuration::intel::IntelConfiguration;
use crate::configuration::vendor::Vendor;

/// Configuration of a virtual processor's PMU: the vendor, the counters, and the features that CPUID declares.
///
/// ```
/// use pmu_virt::{Configuration, HostError, Vendor};
/// /// The PMU that each guest gets: what this host's CPUID declares, or none where this model has no such PMU.
/// fn for_guests(cpuid: impl Fn(u32, u32) -> [u32; 4], capabilities: u64) -> Configuration {
///     match Configuration::from_cpuid(cpuid, capabilities) {
///         Ok(configuration) => configuration,
///         Err(HostError::Vendor) => Configuration::hidden(Vendor::Amd),
///         Err(_) => Configuration::hidden(Vendor::Intel),
///     }
/// }
/// assert_eq!(for_guests(|_, _| [0; 4], 0), Configuration::hidden(Vendor::Amd));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Configuration {
    /// Intel's architectural performance monitoring.
    Intel(IntelConfiguration),
    /// AMD's core counters.
    Amd(AmdConfiguration),
    /// No PMU: CPUID does not declare a PMU.
    Hidden(HiddenConfiguration),
}

impl Configuration {
    /// Creates the configuration of a processor without a PMU, on which [PMU accesses fault](HiddenConfiguration::new).
    pub const fn hidden(vendor: Vendor) -> Self {
        Self::Hidden(HiddenConfiguration::new(vendor))
    }

    /// Checks that the configuration does not contradict itself. Every constructor of a PMU makes this check.
    ///
    /// # Errors
    /// The configuration contradicts itself. The error is the first contradiction that the call finds.
    ///
    /// ```
    /// use pmu_virt::{Configuration, ConfigurationError, IntelConfiguration};
    /// // A number of fixed counters, which version 1 does not have.
    /// let first = Configuration::Intel(IntelConfiguration::new(1, 2, 3));
    /// assert_eq!(first.check(), Err(ConfigurationError::FixedInVersion1));
    /// ```
    pub const fn check(&self) -> Result<(), ConfigurationError> {
        match self {
            Self::Intel(intel) => intel.check(),
            Self::Amd(AmdConfiguration {
                counters: AmdCounters::PerfMonV2 { counters: counters @ (..=3 | 9..) },
                ..
            }) => Err(ConfigurationError::AmdCounters(*counters)),
            Self::Amd(_) | Self::Hidden(_) => Ok(()),
        }
    }

    /// Returns the vendor that defines the processor's registers and CPUID leaves.
    pub const fn vendor(&self) -> Vendor {
        match self {
            Self::Intel(_) => Vendor::Intel,
            Self::Amd(_) => Vendor::Amd,
            Self::Hidden(hidden) => hidden.vendor,
        }
    }
}
