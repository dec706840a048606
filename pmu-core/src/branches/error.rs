//! Errors of branch records.

use core::fmt;

use crate::msr::fault::MsrFault;

/// Reason why a processor has no branch records that can be used.
///
/// ```
/// use pmu_core::NoBranches;
/// let why = NoBranches::UnknownModel { family: 6, model: 0xFE };
/// assert_eq!(why.to_string(), "branch records of an unknown depth: family 0x6, model 0xFE");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoBranches {
    /// The processor is of another vendor, with this name in CPUID leaf 0, whose branch records the crate does not
    /// support.
    OtherVendor([u8; 12]),
    /// The processor, or a hypervisor, declares no branch records.
    NotDeclared,
    /// The processor declares records, but the number of records is unknown, because the processor's model is unknown.
    UnknownModel {
        /// The processor's family.
        family: u16,
        /// The processor's model.
        model: u8,
    },
    /// The processor declares this number of records, which is impossible.
    ImplausibleDepth(u8),
    /// An erratum makes the records of this processor useless.
    Erratum,
    /// The register that declares the format could not be read.
    Access(MsrFault),
}

impl fmt::Display for NoBranches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherVendor(_) => f.write_str("the branch records of this vendor are unknown"),
            Self::NotDeclared => f.write_str("no branch records are declared"),
            Self::UnknownModel { family, model } => {
                write!(
                    f,
                    "branch records of an unknown depth: family {family:#X}, model {model:#X}"
                )
            }
            Self::ImplausibleDepth(depth) => write!(f, "{depth} branch records are impossible"),
            Self::Erratum => {
                f.write_str("an erratum makes this processor's branch records useless")
            }
            Self::Access(fault) => write!(f, "the format of branch records is unknown: {fault}"),
        }
    }
}

impl core::error::Error for NoBranches {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Access(fault) => Some(fault),
            _ => None,
        }
    }
}
