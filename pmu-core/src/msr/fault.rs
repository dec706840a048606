//! Errors of accesses to registers.

use core::fmt;

/// Error of a [backend](crate::msr::MsrBackend). The error reports the kind of failure.
///
/// ```
/// use pmu_core::msr::{MsrError, MsrErrorKind};
///
/// /// Error of a hypervisor that accesses its guest's registers by a call.
/// #[derive(Debug)]
/// enum CallError {
///     NoSuchProcessor,
///     Fault,
/// }
///
/// impl MsrError for CallError {
///     fn kind(&self) -> MsrErrorKind {
///         match self {
///             Self::NoSuchProcessor => MsrErrorKind::Unreachable,
///             Self::Fault => MsrErrorKind::GeneralProtection,
///         }
///     }
/// }
/// # assert_eq!(CallError::Fault.kind(), MsrErrorKind::GeneralProtection);
/// # assert_eq!(CallError::NoSuchProcessor.kind(), MsrErrorKind::Unreachable);
/// ```
pub trait MsrError: fmt::Debug {
    /// Returns the kind of failure.
    fn kind(&self) -> MsrErrorKind;
}

impl MsrError for core::convert::Infallible {
    fn kind(&self) -> MsrErrorKind {
        match *self {}
    }
}

/// Kinds of failure of an MSR access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MsrErrorKind {
    /// The processor raised #GP(0): the register does not exist, a reserved bit was written, or the privilege is too
    /// low.
    GeneralProtection,
    /// The backend cannot reach the register at all: the processor does not exist, or permission is missing.
    Unreachable,
    /// Another failure, particular to the backend.
    Other,
}

impl MsrError for MsrErrorKind {
    fn kind(&self) -> MsrErrorKind {
        *self
    }
}

impl fmt::Display for MsrErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GeneralProtection => "general protection fault",
            Self::Unreachable => "register unreachable",
            Self::Other => "backend failure",
        })
    }
}

/// Instruction by which a register is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MsrOperation {
    /// RDMSR.
    Read,
    /// WRMSR.
    Write,
    /// RDPMC. In an [`MsrFault`], `register` is then RDPMC's index in ECX.
    ReadPmc,
    /// RDMSR and then WRMSR, for an [`MsrUpdate`](crate::msr::MsrUpdate). One of the two instructions failed.
    Update,
}

/// A failed access: its instruction, its register, and the reason for the failure.
///
/// ```
/// use pmu_core::msr::{MsrErrorKind, MsrFault, MsrOperation};
/// let (operation, kind) = (MsrOperation::Write, MsrErrorKind::GeneralProtection);
/// let fault = MsrFault { operation, register: 0x38F, kind };
/// assert_eq!(fault.to_string(), "WRMSR 0x38F: general protection fault");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MsrFault {
    /// The instruction.
    pub operation: MsrOperation,
    /// The register's number (ECX).
    pub register: u32,
    /// The kind of failure.
    pub kind: MsrErrorKind,
}

impl fmt::Display for MsrFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = match self.operation {
            MsrOperation::Read => "RDMSR",
            MsrOperation::Write => "WRMSR",
            MsrOperation::ReadPmc => "RDPMC",
            MsrOperation::Update => "RDMSR or WRMSR",
        };
        write!(f, "{instruction} {:#X}: {}", self.register, self.kind)
    }
}

impl core::error::Error for MsrFault {}
