//! Errors of branch records.

use crate::access::backend::AccessFault;
use crate::branch_recording::switch::XsaveFault;
use crate::branches::filter::BranchFilter;
use crate::detection::NoFacility;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BranchError {
    /// The processor has no branch records that can be used.
    #[error("no branch records: {0}")]
    NoRecords(#[source] NoFacility),
    /// The processor records branches only for the samples of an event (Zen 3's branch sampling). Open the event
    /// [with branches](crate::Event::with_branches) instead.
    #[error("the processor records branches only for an event's samples")]
    RecordsForEvents,
    /// The given [`BranchMemory`](crate::branches::BranchMemory) belongs to another recorder that was not shut down.
    #[error("the memory belongs to a recorder that was not shut down")]
    MemoryInUse,
    /// The [`BranchMemory`](crate::branches::BranchMemory) has room for fewer records than the processor keeps.
    #[error("room lent for {lent} branch records, {needed} needed")]
    InsufficientMemory {
        /// Number of records that the processor keeps.
        needed: usize,
        /// Number of records for which the given memory has room.
        lent: usize,
    },
    /// A register of the branch records did not keep a written value: the processor declares branch records, but lacks
    /// these registers.
    #[error("no record gives back what is written to it")]
    Unresponsive,
    /// The processor cannot freeze its branch records, or the freeze bit cannot be set. This is also the error if
    /// [`take`](crate::branch_recording::BranchRecorder::take) failed to access the registers that control the freeze.
    #[error("the processor does not freeze its branch records")]
    FreezeUnsupported,
    /// The filter selects no branch, or is a call stack on a processor that cannot record call stacks.
    #[error(
        "the processor cannot record {}",
        if .0.is_empty() { "no branch" } else { "a call stack" }
    )]
    FilterUnsupported(BranchFilter),
    /// The recording was never started, so it cannot be resumed.
    #[error("the recording was never started")]
    NotStarted,
    /// The save area is too small for this processor's records, or it was saved on a processor with another record
    /// format or another number of records.
    #[error("the branch records were saved on another kind of processor")]
    SavedElsewhere,
    /// XSAVES does not save this processor's branch records, or
    /// [`use_xsaves`](crate::branch_recording::BranchRecorder::use_xsaves) was not called.
    #[error("XSAVES does not save the branch records")]
    XsavesUnsupported,
    /// The size that CPUID declares for the XSAVE component does not fit the number of records.
    #[error("XSAVES declares {declared} bytes for branch records of {needed}")]
    XsavesSize {
        /// Size that CPUID declares for the component, in bytes.
        declared: u32,
        /// Size of the processor's records, in bytes.
        needed: u32,
    },
    /// XSAVES or XRSTORS failed, and the processor records no branches.
    #[error("branches are not recorded: {0}")]
    Xsaves(#[source] XsaveFault),
    /// The recorder was shut down.
    #[error("the recorder was shut down")]
    ShutDown,
    /// The branch records are [lent](crate::CounterSession::lend), for example to a guest, or suspended, together with
    /// the counters of the session whose source has them.
    #[error("the branch records are lent")]
    Lent,
    /// A register access failed, and the processor does not record.
    #[error("branches are not recorded: {0}")]
    NotRecording(#[source] AccessFault),
    /// A register access failed, and the recording could not be stopped. The recorder assumes that the processor still
    /// records.
    #[error("the recording of branches cannot be stopped: {0}")]
    StateUnknown(#[source] AccessFault),
}

/// Converts an error of the detection into an error of the recorder. A function that both detects the records and
/// creates a recorder can then return one error type.
///
/// ```
/// use pmu_core::branch_recording::BranchError;
/// use pmu_core::error::NoFacility;
/// assert_eq!(BranchError::from(NoFacility::NotDeclared), BranchError::NoRecords(NoFacility::NotDeclared));
/// ```
impl From<NoFacility> for BranchError {
    fn from(reason: NoFacility) -> Self {
        Self::NoRecords(reason)
    }
}
