//! The trait by which profile objects use the hardware of all processors.

use pmu_core::frame::ProcessorNumber;
use pmu_core::interval::Interval;
use pmu_core::profile::{AddedSources, InterfaceError, KProfileSource, Session};
use pmu_core::windows::{HalInterface, Rules};
use pmu_core::{EventSource, Hardware};

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

    /// Returns the processors that are active and have a session.
    ///
    /// This crate assumes that no source runs on a processor outside the returned set, even if a source was started
    /// there earlier.
    fn active_processors(&self) -> Affinity;

    /// Returns whether the profile interface supports a source.
    fn supports(&self, source: KProfileSource) -> bool;

    /// Starts a source on an active processor on which the source does not run.
    ///
    /// # Errors
    /// The source does not run. The error says why. After an error, [`try_start`](crate::Profiles::try_start)
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
    /// The source may still be running. The error says why. This crate does not try the stop again.
    fn stop(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError>;
}

/// The profile hardware of a machine with one processor: starts and stops sources with the processor's [`Session`].
///
/// # Examples
/// ```
/// use pmu_core::{EventSource, Hardware};
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_core::profile::Session;
/// use pmu_kprofile::hardware::ThisProcessor;
/// use pmu_kprofile::{ProfileError, ProfileObject, Profiles};
///
/// fn start<I: EventSource, H: Hardware>(
///     lists: &Profiles<64, 1>,
///     object: &'static ProfileObject<'static>,
///     session: &mut Session<'_, I, H>,
/// ) -> Result<(), ProfileError> {
///     let mut hardware = ThisProcessor::new(session, ProcessorNumber::from_index(0));
///     lists.try_start(object, &mut hardware)
/// }
/// ```
#[derive(Debug)]
pub struct ThisProcessor<'s, 'a, I, H> {
    session: &'s mut Session<'a, I, H>,
    number: ProcessorNumber,
}

impl<'s, 'a, I, H> ThisProcessor<'s, 'a, I, H> {
    /// Creates the profile hardware from the session of the only processor. `number` is the number of that processor.
    pub fn new(session: &'s mut Session<'a, I, H>, number: ProcessorNumber) -> Self {
        Self { session, number }
    }
}

impl<I: EventSource, H: Hardware> ProfileHardware for ThisProcessor<'_, '_, I, H> {
    fn this_processor(&self) -> ProcessorNumber {
        self.number
    }

    /// Returns `false`: a `ThisProcessor` is used in task context only.
    fn in_interrupt(&self) -> bool {
        false
    }

    fn active_processors(&self) -> Affinity {
        Affinity::of(self.number)
    }

    fn supports(&self, source: KProfileSource) -> bool {
        self.session.query(source).is_supported()
    }

    fn start(&mut self, _: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.session.start(source)
    }

    fn stop(&mut self, _: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.session.stop(source)
    }
}

/// Profile hardware that is restricted to the sources of a given Windows version: see [`Rules::has_source`].
///
/// Use this type if the Windows version of the [`Profiles`](crate::Profiles) differs from the version that was passed
/// to [`detect_as_of`](https://docs.rs/pmu-intel/latest/pmu_intel/struct.Emon.html#method.detect_as_of).
///
/// # Examples
/// ```
/// use pmu_core::profile::AddedSources;
/// use pmu_core::windows::HalInterface;
/// use pmu_kprofile::hardware::AsOfVersion;
/// use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
///
/// /// Starts a profile on lists that are like an older Windows: a source that this version did not have is refused.
/// fn start<H: ProfileHardware>(
///     lists: &Profiles<64, 4>,
///     object: &'static ProfileObject<'static>,
///     hardware: &mut H,
/// ) -> Result<(), ProfileError> {
///     let (rules, added) = (lists.rules(), AddedSources::none());
///     lists.try_start(object, &mut AsOfVersion::new(hardware, HalInterface::Emon, rules, added))
/// }
/// ```
#[derive(Debug)]
pub struct AsOfVersion<'h, H> {
    hardware: &'h mut H,
    interface: HalInterface,
    rules: Rules,
    added: &'h AddedSources,
}

impl<'h, H: ProfileHardware> AsOfVersion<'h, H> {
    /// Restricts `hardware` to the sources that exist in the Windows version of `rules`. `interface` is the profile
    /// interface of `hardware`. `added` are the sources that the kernel added to those of the interface.
    pub const fn new(
        hardware: &'h mut H,
        interface: HalInterface,
        rules: Rules,
        added: &'h AddedSources,
    ) -> Self {
        Self { hardware, interface, rules, added }
    }

    fn has(&self, source: KProfileSource) -> bool {
        self.rules.has_source(self.interface, source, self.added)
    }
}

impl<H: ProfileHardware> ProfileHardware for AsOfVersion<'_, H> {
    fn this_processor(&self) -> ProcessorNumber {
        self.hardware.this_processor()
    }

    fn in_interrupt(&self) -> bool {
        self.hardware.in_interrupt()
    }

    fn active_processors(&self) -> Affinity {
        self.hardware.active_processors()
    }

    fn supports(&self, source: KProfileSource) -> bool {
        self.has(source) && self.hardware.supports(source)
    }

    fn start(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        if self.has(source) {
            self.hardware.start(processor, source)
        } else {
            Err(InterfaceError::UnsupportedSource(source))
        }
    }

    fn stop(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.hardware.stop(processor, source)
    }
}

/// Guard of an interval that was set for a source. Dropping the guard restores the previous interval.
///
/// The interval of a source is the same for the whole machine. An interval that is set without this guard stays in
/// force until another interval is set.
///
/// If a source has several guards, drop the guards in reverse order of creation. In any other order, the source may not
/// get its original interval back.
///
/// ```
/// use pmu_core::EventSource;
/// use pmu_core::profile::{DefaultInterface, KProfileSource};
/// use pmu_kprofile::hardware::IntervalGuard;
///
/// let interface = DefaultInterface::new();
/// let before = interface.query(KProfileSource::TIME).interval;
/// {
///     let held = IntervalGuard::hold(&interface, KProfileSource::TIME, 5_000)?;
///     assert_eq!(held.interval().get(), 5_000);
/// }
/// assert_eq!(interface.query(KProfileSource::TIME).interval, before);
/// # Ok::<(), pmu_core::profile::InterfaceError>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, the interval is restored"]
pub struct IntervalGuard<'i, I: EventSource> {
    interface: &'i I,
    source: KProfileSource,
    interval: Interval,
    before: u32,
}

impl<'i, I: EventSource> IntervalGuard<'i, I> {
    /// Sets the interval of a source until the guard is dropped. Like
    /// [`set_interval_clamped`](EventSource::set_interval_clamped), the function clamps `units` to the limits of
    /// the source.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// [`UnsupportedSource`](InterfaceError::UnsupportedSource): the interface does not support the source; nothing was
    /// changed.
    pub fn hold(
        interface: &'i I,
        source: KProfileSource,
        units: u64,
    ) -> Result<Self, InterfaceError> {
        let before = interface.query(source).interval;
        let interval = interface.set_interval_clamped(source, units)?;
        Ok(Self { interface, source, interval, before })
    }

    /// Returns the interval that this guard set, after clamping.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// Returns the interval that dropping this guard restores, in the unit of the source.
    pub fn before(&self) -> u32 {
        self.before
    }
}

impl<I: EventSource> Drop for IntervalGuard<'_, I> {
    fn drop(&mut self) {
        // This cannot fail: the source was supported when the guard was made, and the interval was in force, so within
        // the limits.
        let _ = self.interface.set_interval(self.source, self.before.into());
    }
}
