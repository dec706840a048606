//! Information on a source: `HAL_PROFILE_SOURCE_INFORMATION_EX`.

use crate::interval::IntervalLimits;
use crate::profile::source::KProfileSource;

/// Degree to which a source can be relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Availability {
    /// The source is not in the table, or the processor declares its event unavailable.
    Unsupported,
    /// CPUID declares the source. No counter was accessed.
    Declared,
    /// Verified: the counters of this processor read back the values written to them.
    Verified,
}

/// The information on a source: `HAL_PROFILE_SOURCE_INFORMATION_EX`, with the availability in place of a boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SourceInformation {
    /// Source of the query.
    pub source: KProfileSource,
    /// Availability of the source.
    pub availability: Availability,
    /// Present interval; 0 if the source is unsupported.
    pub interval: u32,
    /// Unit, default and limits of the interval.
    pub limits: IntervalLimits,
}

impl SourceInformation {
    /// Returns whether the source can be started.
    pub fn is_supported(&self) -> bool {
        self.availability != Availability::Unsupported
    }
}
