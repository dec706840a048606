//! The trait by which profile objects use the hardware of all processors.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};

use crate::affinity::Affinity;

/// Starts and stops profile sources on any processor.
///
/// The methods [`start`](Self::start) and [`stop`](Self::stop) are like Windows' functions `HalStartProfileInterrupt`
/// and `HalStopProfileInterrupt`. Unlike these functions, the methods take the processor as an argument, and return a
/// result.
///
/// [`ThisProcessor`](super::ThisProcessor) implements this trait for a machine with one processor.
/// [`Remote`](super::Remote) implements it for several processors, through a [`Mailbox`](super::Mailbox). A kernel that
/// can run a function on another processor may implement this trait itself. That function must use the
/// [`Session`](pmu_core::profile::Session) of the processor on which the function runs.
///
/// # Context
/// Every method is called in task context. During the call, this crate holds no lock that an interrupt handler could
/// wait for.
///
/// # Examples
/// A kernel that runs a function on another processor, and waits until the function has returned:
///
/// ```
/// use pmu_core::profile::{InterfaceError, KProfileSource};
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::hardware::SourceRequest;
/// use pmu_kprofile::{Affinity, ProfileHardware};
/// # fn processor() -> ProcessorNumber { ProcessorNumber::from_index(0) }
/// # fn interrupt_depth() -> usize { 0 }
/// # fn online() -> Affinity { Affinity::first(1) }
/// # fn run_on(_: ProcessorNumber, _: SourceRequest) -> Result<(), InterfaceError> { Ok(()) }
/// # fn pinned<R>(act: impl FnOnce() -> R) -> R { act() }
/// # use pmu_kprofile::{ProfileError, ProfileObject, Profiles};
///
/// struct Kernel;
///
/// impl ProfileHardware for Kernel {
///     fn this_processor(&self) -> ProcessorNumber {
///         processor()
///     }
///     fn in_interrupt(&self) -> bool {
///         interrupt_depth() > 0
///     }
///     fn active_processors(&self) -> Affinity {
///         online()
///     }
///     fn supports(&self, source: KProfileSource) -> bool {
///         source == KProfileSource::TIME // … or what `Session::query` says
///     }
///     fn start(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
///         run_on(on, SourceRequest::Start(source)) // which uses that processor's `Session`
///     }
///     fn stop(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
///         run_on(on, SourceRequest::Stop(source))
///     }
/// }
///
/// fn start(lists: &Profiles<64, 4>, object: &'static ProfileObject<'static>) -> Result<(), ProfileError> {
///     pinned(|| lists.try_start(object, &mut Kernel)) // the task stays on its processor meanwhile
/// }
/// ```
pub trait ProfileHardware {
    /// Returns the processor that executes the call.
    ///
    /// The embedder makes sure that a task that starts or stops a profile stays on one processor until the operation
    /// returns. For this, bind the task to the processor, or turn preemption off.
    fn this_processor(&self) -> ProcessorNumber;

    /// Returns whether the processor that executes the call is handling an interrupt, for instance an NMI.
    ///
    /// If the result is `true`, this crate refuses to start or stop a profile. The interrupted code may itself be
    /// starting or stopping a profile, and waiting for that code would deadlock.
    fn in_interrupt(&self) -> bool;

    /// Returns the processors that are active and have an initialized session.
    ///
    /// This crate assumes that no source runs on a processor outside the returned set, even if a source was started
    /// there earlier.
    fn active_processors(&self) -> Affinity;

    /// Returns whether the profile interface supports a source.
    fn supports(&self, source: KProfileSource) -> bool;

    /// Starts a source on an active processor on which the source does not run.
    ///
    /// # Errors
    /// The source does not run. The error tells the reason. After an error, [`try_start`](crate::Profiles::try_start)
    /// undoes the start of the profile. [`try_update_processors`](crate::Profiles::try_update_processors) continues
    /// with the other sources and processors.
    fn start(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError>;

    /// Stops a source on an active processor on which the source was started.
    ///
    /// # Errors
    /// The source may still be running. The error tells the reason. This crate does not try the stop again.
    fn stop(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError>;
}
