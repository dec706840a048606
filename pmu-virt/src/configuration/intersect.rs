//! The configuration that two hosts have in common.

use crate::configuration::amd::{AmdConfiguration, AmdCounters};
use crate::configuration::any_vendor::Configuration;
use crate::configuration::host_error::HostError;
use crate::configuration::intel::IntelConfiguration;

impl Configuration {
    /// Returns the configuration that two processors have in common. A guest with this configuration can move between
    /// the two processors. Each counter width in the result is the smaller of the two processors' widths. If one of the
    /// two processors hides its PMU, the result hides the PMU.
    ///
    /// # Errors
    /// The processors have different [vendors](Self::vendor), or have no valid configuration in common. It is also an
    /// error if two processors without a PMU differ in the result of an access to a PMU register.
    ///
    /// ```
    /// use pmu_virt::{Configuration, IntelConfiguration};
    /// let old = IntelConfiguration::new(4, 4, 3);
    /// let new = IntelConfiguration::new(5, 8, 4);
    /// let both = Configuration::Intel(old).intersect(&Configuration::Intel(new))?;
    /// assert_eq!(both, Configuration::Intel(old));
    /// # Ok::<(), pmu_virt::HostError>(())
    /// ```
    pub fn intersect(&self, other: &Self) -> Result<Self, HostError> {
        let common = match (*self, *other) {
            (Self::Intel(one), Self::Intel(other)) => Self::Intel(intersect_intel(one, other)),
            (Self::Amd(one), Self::Amd(other)) => Self::Amd(intersect_amd(one, other)),
            (Self::Hidden(one), Self::Hidden(other)) if one != other => {
                return Err(HostError::NothingInCommon);
            }
            (Self::Hidden(hidden), _) | (_, Self::Hidden(hidden))
                if self.vendor() == other.vendor() =>
            {
                Self::Hidden(hidden)
            }
            _ => return Err(HostError::NothingInCommon),
        };
        common.check().map_err(HostError::Configuration)?;
        Ok(common)
    }
}

fn intersect_intel(
    mut one: IntelConfiguration,
    mut other: IntelConfiguration,
) -> IntelConfiguration {
    let ((numbers, features), (of_other, also)) = (one.parts(), other.parts());
    // The version, and the widths of general and fixed counters, are the least; the others are bitmaps.
    let is_least = [true, false, true, false, true, false];
    for ((number, other), is_least) in numbers.into_iter().zip(of_other).zip(is_least) {
        *number = if is_least { (*number).min(*other) } else { *number & *other };
    }
    features.into_iter().zip(also).for_each(|(feature, also)| *feature &= *also);
    if one.version < 2 {
        one.fixed = 0;
    }
    if one.version < 6 {
        (one.unit_mask_2, one.equal, one.rdpmc_user_disable) = (false, false, false);
    }
    one
}
fn intersect_amd(one: AmdConfiguration, other: AmdConfiguration) -> AmdConfiguration {
    use AmdCounters::{CoreExtension, Legacy, PerfMonV2};
    let counters = match (one.counters, other.counters) {
        (PerfMonV2 { counters: one }, PerfMonV2 { counters: other }) => {
            PerfMonV2 { counters: one.min(other) }
        }
        // The core extension is six counters: fewer are not it.
        (
            PerfMonV2 { counters: 6.. } | CoreExtension,
            PerfMonV2 { counters: 6.. } | CoreExtension,
        ) => CoreExtension,
        _ => Legacy,
    };
    AmdConfiguration { counters, guest_host: one.guest_host && other.guest_host }
}
