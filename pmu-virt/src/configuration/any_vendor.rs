//! A guest's PMU as its hypervisor configures it, of any vendor.

use crate::configuration::amd::{AmdConfiguration, AmdCounters};
use crate::configuration::error::ConfigurationError;
use crate::configuration::hidden::HiddenConfiguration;
use crate::configuration::intel::IntelConfiguration;
use crate::configuration::vendor::Vendor;

/// The PMU of a virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Configuration {
    /// Intel's architectural performance monitoring.
    Intel(IntelConfiguration),
    /// AMD's core counters.
    Amd(AmdConfiguration),
    /// No PMU; CPUID says so.
    Hidden(HiddenConfiguration),
}

impl Configuration {
    /// Creates a processor of this vendor without a PMU: [every access faults](HiddenConfiguration::new).
    pub const fn hidden(vendor: Vendor) -> Self {
        Self::Hidden(HiddenConfiguration::new(vendor))
    }

    /// Checks that there can be such a PMU.
    ///
    /// # Errors
    /// The first contradiction.
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

    /// Returns the vendor whose architecture the processor follows.
    pub const fn vendor(&self) -> Vendor {
        match self {
            Self::Intel(_) => Vendor::Intel,
            Self::Amd(_) => Vendor::Amd,
            Self::Hidden(hidden) => hidden.vendor,
        }
    }
}
