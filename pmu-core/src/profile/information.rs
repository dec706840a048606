//! Information on a source: `HAL_PROFILE_SOURCE_INFORMATION_EX`.

use crate::interval::IntervalLimits;
use crate::profile::source::KProfileSource;

/// Degree of certainty that a source works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Availability {
    /// The source is not in the interface's table, or the processor declares the source's event unavailable.
    Unsupported,
    /// CPUID declares the source. No counter was accessed.
    Declared,
    /// This processor can count the source on counters that kept written values.
    Verified,
}

/// Information on a source: `HAL_PROFILE_SOURCE_INFORMATION_EX`, in which an [`Availability`] replaces the boolean
/// `Supported`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SourceInformation {
    /// Source that was queried.
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
