//! Reasons why no vendor crate detects a processor's counters.

use core::fmt;

use crate::windows::Rules;

/// Reason why a vendor crate detects no counters on a processor. On such a processor, a kernel can still profile by
/// time, with the [`DefaultInterface`](crate::profile::DefaultInterface).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoInterface {
    /// The processor is from another vendor. The value is the vendor's name in CPUID leaf 0.
    OtherVendor([u8; 12]),
    /// CPUID declares no performance monitoring: leaf 0x0A is absent, has version 0, or declares no events.
    NoPerformanceMonitoring,
    /// The processor does not have the event of unhalted cycles. Every [profile
    /// interface](crate::profile::ProfileInterface) needs this event.
    CyclesUnavailable,
    /// The processor lacks long mode.
    NoLongMode,
    /// A Microsoft-compatible hypervisor hides the counters from this machine.
    HiddenByHypervisor,
    /// CPUID declares an impossible number of counters, or an impossible width. The number of counters is impossible if
    /// it is 0, or exceeds the number of registers.
    ImplausibleCounters {
        /// The declared number of counters.
        count: u8,
        /// The declared width of the counters in bits.
        width: u8,
    },
    /// The HAL of the given Windows version has no profile interface for the processor's counters.
    NotInVersion(Rules),
    /// The HAL of a 32-bit Windows does not support processors of this family. This HAL supports only Intel's families
    /// 6 and 15.
    OtherFamily(u16),
}

impl NoInterface {
    /// Combines the reasons of two vendor crates that detected no counters. Returns `other` if `self` is
    /// [`OtherVendor`](Self::OtherVendor), and `self` otherwise.
    pub fn or(self, other: Self) -> Self {
        if matches!(self, Self::OtherVendor(_)) { other } else { self }
    }
}

impl fmt::Display for NoInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherVendor(vendor) => {
                write!(f, "no profile interface for processors of \"{}\"", vendor.escape_ascii())
            }
            Self::NoPerformanceMonitoring => {
                f.write_str("the processor declares no performance monitoring")
            }
            Self::CyclesUnavailable => {
                f.write_str("the processor declares its cycles event unavailable")
            }
            Self::NoLongMode => f.write_str("the processor has no long mode"),
            Self::HiddenByHypervisor => {
                f.write_str("the hypervisor does not offer performance monitors")
            }
            Self::ImplausibleCounters { count, width } => {
                write!(f, "the processor declares {count} counters of {width} bits")
            }
            Self::NotInVersion(rules) => write!(f, "{rules} has no profile interface for them"),
            Self::OtherFamily(family) => {
                write!(f, "a 32-bit Windows has no profile interface for family {family}")
            }
        }
    }
}

impl core::error::Error for NoInterface {}
