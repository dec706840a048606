//! Reasons why a processor has no counters, or no hardware of a kind beside them.

use core::fmt;

use crate::msr::backend::MsrFault;
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

/// Reason why a processor has no hardware of a kind beside its counters (branch records, precise records, issue slots
/// divided), or why its hardware cannot be used.
///
/// ```
/// use pmu_core::NoFacility;
/// let why = NoFacility::UnknownModel { family: 6, model: 0xFE };
/// assert_eq!(why.to_string(), "the depth is unknown for family 0x6, model 0xFE");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoFacility {
    /// The called crate does not support the hardware of the processor's vendor. The value is the vendor's name in
    /// CPUID leaf 0.
    OtherVendor([u8; 12]),
    /// The hardware is described together with the counters, and the processor has no counters of the crate's vendor.
    NoCounters(NoInterface),
    /// The processor, or a hypervisor, does not declare the hardware, or not for this type of core.
    NotDeclared,
    /// An erratum makes this processor's hardware useless.
    Erratum,
    /// The processor declares branch records, but their number is unknown for the processor's model.
    UnknownModel {
        /// The processor's family.
        family: u16,
        /// The processor's model.
        model: u8,
    },
    /// The processor declares this number of branch records, which is impossible.
    ImplausibleDepth(u8),
    /// `IA32_MISC_ENABLE` declares PEBS unavailable. Hypervisors and some firmware set this bit of the register.
    Unavailable,
    /// The Debug Store has 32-bit words (no DTES64). These crates can decode the records of such a processor, but
    /// cannot make the processor write records.
    NarrowWords,
    /// The processor has no overflow status register, `IA32_PERF_GLOBAL_STATUS`. Without this register, an interrupt
    /// handler cannot tell that the buffer of precise records has reached its threshold.
    NoStatus,
    /// The format of the processor's precise records is unknown. The value is the format's number in
    /// `IA32_PERF_CAPABILITIES`.
    UnknownFormat(u8),
    /// Architectural PEBS needs the physical address of the buffer. The kernel does not provide the address, or the
    /// buffer does not consist of 2ⁿ pages that are physically contiguous.
    NoPhysicalAddress,
    /// The size of the buffer of precise records is not a multiple of 4 KiB, or is 0.
    BufferSize,
    /// A register that describes the hardware could not be read.
    Access(MsrFault),
}

impl fmt::Display for NoFacility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherVendor(_) => "the processor is of another vendor",
            Self::NoCounters(why) => return why.fmt(f),
            Self::NotDeclared => "not declared by the processor",
            Self::Erratum => "an erratum makes it useless",
            Self::UnknownModel { family, model } => {
                return write!(f, "the depth is unknown for family {family:#X}, model {model:#X}");
            }
            Self::ImplausibleDepth(depth) => {
                return write!(f, "{depth} branch records are impossible");
            }
            Self::Unavailable => "IA32_MISC_ENABLE declares PEBS unavailable",
            Self::NarrowWords => "the Debug Store has 32-bit words",
            Self::NoStatus => "the processor has no overflow status",
            Self::UnknownFormat(number) => return write!(f, "PEBS format {number} is not known"),
            Self::NoPhysicalAddress => "the buffer's physical address is not known",
            Self::BufferSize => "the buffer does not consist of whole pages",
            Self::Access(fault) => return fault.fmt(f),
        })
    }
}

impl core::error::Error for NoFacility {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NoCounters(why) => Some(why),
            Self::Access(fault) => Some(fault),
            _ => None,
        }
    }
}
