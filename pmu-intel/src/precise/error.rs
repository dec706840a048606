//! Reasons why a processor has no precise records.

use core::fmt;

use pmu_core::msr::MsrFault;

/// Reason why a processor has no precise records that this crate supports, or cannot use a memory for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoPrecise {
    /// The processor's vendor is not Intel. The value is the vendor's name in CPUID leaf 0.
    OtherVendor([u8; 12]),
    /// CPUID does not declare the Debug Store, and does not declare architectural PEBS.
    NotDeclared,
    /// `IA32_MISC_ENABLE` declares PEBS unavailable. Hypervisors and some firmware set this bit of the register.
    Unavailable,
    /// The Debug Store has 32-bit words (no DTES64). This crate can decode the records of such a processor, but cannot
    /// make the processor write records.
    NarrowWords,
    /// The processor has no overflow status register, `IA32_PERF_GLOBAL_STATUS`. Without this register, an interrupt
    /// handler cannot tell that the buffer has reached its threshold.
    NoStatus,
    /// This crate does not know the processor's record format. The value is the format's number in
    /// `IA32_PERF_CAPABILITIES`.
    UnknownFormat(u8),
    /// Because of an erratum, the processor's records are unusable.
    Erratum,
    /// Architectural PEBS needs the physical address of the buffer. The kernel does not provide the address, or the
    /// buffer does not consist of 2ⁿ pages that are physically contiguous.
    NoPhysicalAddress,
    /// The size of the buffer is not a multiple of 4 KiB, or is 0.
    BufferSize,
    /// A register access failed.
    Access(MsrFault),
}

impl fmt::Display for NoPrecise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherVendor(_) => f.write_str("the processor is of another vendor"),
            Self::NotDeclared => f.write_str("the processor declares no precise records"),
            Self::Unavailable => f.write_str("IA32_MISC_ENABLE declares PEBS unavailable"),
            Self::NarrowWords => f.write_str("the Debug Store has 32-bit words"),
            Self::NoStatus => f.write_str("the processor has no overflow status"),
            Self::UnknownFormat(number) => write!(f, "PEBS format {number} is not known"),
            Self::Erratum => f.write_str("precise records are unusable because of an erratum"),
            Self::NoPhysicalAddress => f.write_str("the buffer's physical address is not known"),
            Self::BufferSize => f.write_str("the buffer does not consist of whole pages"),
            Self::Access(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for NoPrecise {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Access(fault) => Some(fault),
            _ => None,
        }
    }
}
