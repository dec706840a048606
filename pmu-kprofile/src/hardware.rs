//! The profile hardware of all processors, as profile objects need it.
//!
//! - `this_processor`: of a machine with one processor
//! - `mailbox`: of several, by requests that an inter-processor interrupt's handler drains
//! - `as_of_version`: as a given Windows has it
//! - `interval`: an interval for as long as it is wanted
//!
//! Here is where sources are started and stopped; objects and lists only ask for it. This folder may use
//! `affinity`, and nothing else of the crate.

mod as_of_version;
mod interval;
mod mailbox;
mod this_processor;

use pmu_core::{InterfaceError, KProfileSource, ProcessorNumber};

pub use as_of_version::AsOfVersion;
pub use interval::IntervalGuard;
pub use mailbox::{Mailbox, Processors, Remote, SourceRequest};
pub use this_processor::ThisProcessor;

use crate::Affinity;

/// Starts and stops profile sources on any processor: `HalStartProfileInterrupt` and
/// `HalStopProfileInterrupt`, with an answer.
///
/// [`ThisProcessor`] serves a machine with one processor, and [`Remote`] one with several, by a
/// [`Mailbox`]. A kernel that can run a function on another processor may implement it itself, and let that
/// function use the other processor's [`Session`](pmu_core::Session).
///
/// # Context
/// Every method is called in task context, with no lock of this crate held that an interrupt wants.
pub trait ProfileHardware {
    /// The processor that executes the call.
    fn this_processor(&self) -> ProcessorNumber;

    /// Returns whether this processor is handling an interrupt, an NMI for instance. Profiles are not started or
    /// stopped then: what was interrupted may be doing just that, and would be waited for.
    fn in_interrupt(&self) -> bool;

    /// The processors that run, with their sessions initialized. One that is missing here has lost what was
    /// started on it.
    fn active_processors(&self) -> Affinity;

    /// Returns whether the interface supports a source.
    fn supports(&self, source: KProfileSource) -> bool;

    /// Starts a source on an active processor, where it does not run.
    ///
    /// # Errors
    /// Why it does not run there. The operation that asked for it goes on or undoes what it did, and tells.
    fn start(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError>;

    /// Stops a source on an active processor, where it was started.
    ///
    /// # Errors
    /// Why it may still run there. It is not stopped again.
    fn stop(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError>;
}
