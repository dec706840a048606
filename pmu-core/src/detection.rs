//! Reasons why a processor (of x86, mostly) has no counters, or lacks some hardware beside the counters.

use crate::access::backend::AccessFault;
use crate::windows::Rules;

/// Reason why a vendor crate detects no counters on a processor. On such a processor, a kernel can still profile by
/// time, with the [`DefaultInterface`](crate::profile::DefaultInterface).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoInterface {
    /// The processor is from another vendor. The value is the vendor's name in CPUID leaf 0.
    #[error("no profile interface for processors of \"{}\"", .0.escape_ascii())]
    OtherVendor([u8; 12]),
    /// The processor declares no counters. On x86, CPUID leaf 0x0A is absent, has version 0, or declares no events. On
    /// Arm, `ID_AA64DFR0_EL1` declares no PMUv3.
    #[error("the processor declares no performance monitoring")]
    NoPerformanceMonitoring,
    /// The processor does not have the event of unhalted cycles, which the Emon interface needs.
    #[error("the processor declares its cycles event unavailable")]
    CyclesUnavailable,
    /// The processor lacks long mode.
    #[error("the processor has no long mode")]
    NoLongMode,
    /// A Microsoft-compatible hypervisor hides the counters from this machine.
    #[error("the hypervisor does not offer performance monitors")]
    HiddenByHypervisor,
    /// CPUID declares an impossible number of counters, or an impossible width. The number of counters is impossible if
    /// it is 0, or exceeds the number of registers.
    #[error("the processor declares {count} counters of {width} bits")]
    ImplausibleCounters {
        /// The declared number of counters.
        count: u8,
        /// The declared width of the counters in bits.
        width: u8,
    },
    /// The processor's counters do not answer, though CPUID declares them.
    #[error("the processor's counters do not answer")]
    Unresponsive,
    /// The HAL of the given Windows version has no profile interface for the processor's counters.
    #[error("{0} has no profile interface for them")]
    NotInVersion(Rules),
    /// The HAL of a 32-bit Windows does not support processors of this family. This HAL supports only Intel's families
    /// 6 and 15.
    #[error("a 32-bit Windows has no profile interface for family {0}")]
    OtherFamily(u16),
}

impl NoInterface {
    /// Combines the reasons of two vendor crates that detected no counters. Returns `other` if `self` is
    /// [`OtherVendor`](Self::OtherVendor), and `self` otherwise.
    pub fn or(self, other: Self) -> Self {
        if matches!(self, Self::OtherVendor(_)) { other } else { self }
    }
}

/// Reason why a processor has no hardware of a kind beside its counters (branch records, precise records, issue slots
/// divided), or why its hardware cannot be used.
///
/// ```
/// use pmu_core::error::NoFacility;
/// let why = NoFacility::UnknownModel { family: 6, model: 0xFE };
/// assert_eq!(why.to_string(), "the depth is unknown for family 0x6, model 0xFE");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoFacility {
    /// The called crate does not support the hardware of the processor's vendor. The value is the vendor's name in
    /// CPUID leaf 0.
    #[error("the processor is of another vendor")]
    OtherVendor([u8; 12]),
    /// The hardware is described together with the counters, and the processor has no counters of the crate's vendor.
    #[error("{0}")]
    NoCounters(#[source] NoInterface),
    /// The processor, or a hypervisor, does not declare the hardware, or not for this type of core.
    #[error("not declared by the processor")]
    NotDeclared,
    /// An erratum makes this processor's hardware useless.
    #[error("an erratum makes it useless")]
    Erratum,
    /// The processor declares branch records, but their number is unknown for the processor's model.
    #[error("the depth is unknown for family {family:#X}, model {model:#X}")]
    UnknownModel {
        /// The processor's family.
        family: u16,
        /// The processor's model.
        model: u8,
    },
    /// The processor declares this number of branch records, which is impossible.
    #[error("{0} branch records are impossible")]
    ImplausibleDepth(u8),
    /// `IA32_MISC_ENABLE` declares precise records, or the branch trace, unavailable. Hypervisors and some firmware set
    /// these bits of the register.
    #[error("IA32_MISC_ENABLE declares it unavailable")]
    Unavailable,
    /// The Debug Store has 32-bit words (no DTES64). These crates can decode the records of such a processor, but
    /// cannot make the processor write records.
    #[error("the Debug Store has 32-bit words")]
    NarrowWords,
    /// The processor has no overflow status register, `IA32_PERF_GLOBAL_STATUS`. Without this register, an interrupt
    /// handler cannot tell that the buffer of precise records, or of traced branches, has reached its threshold.
    #[error("the processor has no overflow status")]
    NoStatus,
    /// The format of the processor's precise records is unknown. The value is the format's number in
    /// `IA32_PERF_CAPABILITIES`.
    #[error("PEBS format {0} is not known")]
    UnknownFormat(u8),
    /// Architectural PEBS needs the physical address of the buffer. The kernel does not provide the address, or the
    /// buffer does not consist of 2ⁿ pages that are physically contiguous.
    #[error("the buffer's physical address is not known")]
    NoPhysicalAddress,
    /// The size of the buffer of precise records is not a multiple of 4 KiB, or is 0.
    #[error("the buffer does not consist of whole pages")]
    BufferSize,
    /// A register that describes the hardware could not be read.
    #[error("{0}")]
    Access(#[source] AccessFault),
}
