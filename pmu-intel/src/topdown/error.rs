//! Errors of top-down analysis.

use core::fmt;

use pmu_core::NoInterface;
use pmu_core::msr::MsrFault;

/// Reason why a processor has no top-down counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoTopDown {
    /// The processor has no counters of Intel's architectural performance monitoring. On a processor of another vendor,
    /// such as AMD, the reason is [`OtherVendor`](NoInterface::OtherVendor). The text of this reason names a profile
    /// interface. Here, the text means that only Intel's processors have these top-down counters.
    NoCounters(NoInterface),
    /// `IA32_PERF_CAPABILITIES` and CPUID do not declare top-down counters for this type of core.
    NotDeclared,
    /// `IA32_PERF_CAPABILITIES` could not be read.
    Access(MsrFault),
}

impl fmt::Display for NoTopDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCounters(why) => why.fmt(f),
            Self::NotDeclared => f.write_str("the core declares no top-down counters"),
            Self::Access(fault) => write!(f, "top-down counters cannot be detected: {fault}"),
        }
    }
}

impl core::error::Error for NoTopDown {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NoCounters(why) => Some(why),
            Self::NotDeclared => None,
            Self::Access(fault) => Some(fault),
        }
    }
}
