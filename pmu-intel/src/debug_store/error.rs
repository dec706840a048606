//! The error of a request for a control area.

use core::fmt;

use pmu_core::profile::NtStatus;
use pmu_core::windows::Rules;

/// Reason why a request for a control area was refused. A refused request changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ControlAreaError {
    /// The request came from user mode.
    AccessDenied,
    /// The request is shorter or longer than `SYSTEM_PROCESSOR_PROFILE_CONTROL_AREA` for the caller's pointer width.
    LengthMismatch {
        /// The request's size in bytes.
        length: usize,
    },
    /// The value names a Windows version without control areas. Windows has control areas from version 6.2 on.
    NotInVersion(Rules),
    /// The embedder provided no memory for this processor's area.
    InsufficientResources,
    /// The processor has no usable Debug Store.
    NotSupported,
    /// The processor already has a control area. The call also writes `area` to the caller's request buffer.
    AlreadyExists {
        /// Address of the area.
        area: u64,
    },
    /// The processor has no area to destroy.
    NotAllocated,
}

impl ControlAreaError {
    /// Returns the status with which Windows reports the error.
    pub const fn status(&self) -> NtStatus {
        match self {
            Self::AccessDenied => NtStatus::ACCESS_DENIED,
            Self::LengthMismatch { .. } => NtStatus::INFO_LENGTH_MISMATCH,
            Self::NotInVersion(_) => NtStatus::INVALID_INFO_CLASS,
            Self::InsufficientResources => NtStatus::INSUFFICIENT_RESOURCES,
            Self::NotSupported => NtStatus::NOT_SUPPORTED,
            Self::AlreadyExists { .. } => NtStatus::ADDRESS_ALREADY_EXISTS,
            Self::NotAllocated => NtStatus::MEMORY_NOT_ALLOCATED,
        }
    }
}

impl fmt::Display for ControlAreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AccessDenied => f.write_str("only kernel mode may set a control area"),
            Self::LengthMismatch { length } => write!(f, "request of {length} bytes"),
            Self::NotInVersion(rules) => write!(f, "{rules} has no control area"),
            Self::InsufficientResources => f.write_str("no memory for a control area"),
            Self::NotSupported => f.write_str("the processor has no usable Debug Store"),
            Self::AlreadyExists { area } => write!(f, "there is a control area at {area:#X}"),
            Self::NotAllocated => f.write_str("the processor has no control area"),
        }
    }
}

impl core::error::Error for ControlAreaError {}
