//! Errors of branch records.

use core::fmt;

use crate::branch_recording::switch::XsaveFault;
use crate::branches::filter::BranchFilter;
use crate::detection::NoFacility;
use crate::msr::backend::MsrFault;

/// Error of a [`BranchRecorder`](crate::branch_recording::BranchRecorder).
///
/// ```
/// use pmu_core::branch_recording::BranchError;
/// /// Without branch records, samples go on without branches.
/// fn is_fatal(error: &BranchError) -> bool {
///     !matches!(error, BranchError::NoRecords(_) | BranchError::Unresponsive)
/// }
/// # assert!(is_fatal(&BranchError::MemoryInUse));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BranchError {
    /// The processor has no branch records that can be used.
    NoRecords(NoFacility),
    /// The processor records branches only for the samples of an event (Zen 3's branch sampling). Open the event
    /// [with branches](crate::Event::with_branches) instead.
    RecordsForEvents,
    /// The given [`BranchMemory`](crate::branches::BranchMemory) belongs to another recorder that was not shut down.
    MemoryInUse,
    /// The [`BranchMemory`](crate::branches::BranchMemory) has room for fewer records than the processor keeps.
    InsufficientMemory {
        /// Number of records that the processor keeps.
        needed: usize,
        /// Number of records for which the given memory has room.
        lent: usize,
    },
    /// A register of the branch records did not keep a written value: the processor declares branch records, but lacks
    /// these registers.
    Unresponsive,
    /// The processor cannot freeze its branch records, or the freeze bit cannot be set. This is also the error if
    /// [`take`](crate::branch_recording::BranchRecorder::take) failed to access the registers that control the freeze.
    FreezeUnsupported,
    /// The filter selects no branch, or is a call stack on a processor that cannot record call stacks.
    FilterUnsupported(BranchFilter),
    /// The recording was never started, so it cannot be resumed.
    NotStarted,
    /// The save area is too small for this processor's records, or it was saved on a processor with another record
    /// format or another number of records.
    SavedElsewhere,
    /// XSAVES does not save this processor's branch records, or
    /// [`use_xsaves`](crate::branch_recording::BranchRecorder::use_xsaves) was not called.
    XsavesUnsupported,
    /// The size that CPUID declares for the XSAVE component does not fit the number of records.
    XsavesSize {
        /// Size that CPUID declares for the component, in bytes.
        declared: u32,
        /// Size of the processor's records, in bytes.
        needed: u32,
    },
    /// XSAVES or XRSTORS failed, and the processor records no branches.
    Xsaves(XsaveFault),
    /// The recorder was shut down.
    ShutDown,
    /// The branch records are [lent](crate::CounterSession::lend), for example to a guest, or suspended, together with
    /// the counters of the session whose source has them.
    Lent,
    /// A register access failed, and the processor does not record.
    Access(MsrFault),
    /// A register access failed, and the recording could not be stopped. The recorder assumes that the processor still
    /// records.
    Faulted(MsrFault),
}

/// Converts an error of the detection into an error of the recorder. A function that both detects the records and
/// creates a recorder can then return one error type.
///
/// ```
/// use pmu_core::branch_recording::BranchError;
/// use pmu_core::NoFacility;
/// assert_eq!(BranchError::from(NoFacility::NotDeclared), BranchError::NoRecords(NoFacility::NotDeclared));
/// ```
impl From<NoFacility> for BranchError {
    fn from(reason: NoFacility) -> Self {
        Self::NoRecords(reason)
    }
}

impl fmt::Display for BranchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecords(why) => write!(f, "no branch records: {why}"),
            Self::RecordsForEvents => {
                f.write_str("the processor records branches only for an event's samples")
            }
            Self::MemoryInUse => {
                f.write_str("the memory belongs to a recorder that was not shut down")
            }
            Self::InsufficientMemory { needed, lent } => {
                write!(f, "room lent for {lent} branch records, {needed} needed")
            }
            Self::Unresponsive => f.write_str("no record gives back what is written to it"),
            Self::FreezeUnsupported => {
                f.write_str("the processor does not freeze its branch records")
            }
            Self::FilterUnsupported(filter) => {
                let what = if filter.is_empty() { "no branch" } else { "a call stack" };
                write!(f, "the processor cannot record {what}")
            }
            Self::NotStarted => f.write_str("the recording was never started"),
            Self::SavedElsewhere => {
                f.write_str("the branch records were saved on another kind of processor")
            }
            Self::XsavesUnsupported => f.write_str("XSAVES does not save the branch records"),
            Self::XsavesSize { declared, needed } => {
                write!(f, "XSAVES declares {declared} bytes for branch records of {needed}")
            }
            Self::Xsaves(fault) => write!(f, "branches are not recorded: {fault}"),
            Self::ShutDown => f.write_str("the recorder was shut down"),
            Self::Lent => f.write_str("the branch records are lent"),
            Self::Access(fault) => write!(f, "branches are not recorded: {fault}"),
            Self::Faulted(fault) => {
                write!(f, "the recording of branches cannot be stopped: {fault}")
            }
        }
    }
}

impl core::error::Error for BranchError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Access(fault) | Self::Faulted(fault) => Some(fault),
            Self::NoRecords(why) => Some(why),
            Self::Xsaves(fault) => Some(fault),
            _ => None,
        }
    }
}
