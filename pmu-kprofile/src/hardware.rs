//! The profile hardware of all processors, as profile objects need it.

use pmu_core::{
    InterfaceError, KProfileSource, MsrBackend, Platform, ProcessorNumber, ProfileInterface,
    Session,
};

use crate::{Affinity, HalInterface, Rules};

/// Starts and stops profile sources on any processor: `HalStartProfileInterrupt` and
/// `HalStopProfileInterrupt`, with an answer.
///
/// [`ThisProcessor`] serves a machine with one processor. For more, implement it with what the
/// kernel has to run a function on another processor (an inter-processor interrupt), and let that
/// function use the other processor's [`Session`].
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

/// The hardware of a machine whose only active processor is this one.
#[derive(Debug)]
pub struct ThisProcessor<'s, 'a, I, M, P> {
    session: &'s mut Session<'a, I, M, P>,
    number: ProcessorNumber,
}

impl<'s, 'a, I, M, P> ThisProcessor<'s, 'a, I, M, P> {
    /// The processor `number`, whose session this is.
    pub fn new(session: &'s mut Session<'a, I, M, P>, number: ProcessorNumber) -> Self {
        Self { session, number }
    }
}

impl<I: ProfileInterface, M: MsrBackend, P: Platform> ProfileHardware
    for ThisProcessor<'_, '_, I, M, P>
{
    fn this_processor(&self) -> ProcessorNumber {
        self.number
    }

    /// Never: the caller lends a [`Session`], so it is a task.
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

/// Hardware as a given Windows would have it: where its HAL has no counter sources for the interface,
/// only `ProfileTime` exists.
#[derive(Debug)]
pub struct AsOfVersion<'h, H> {
    hardware: &'h mut H,
    has_counters: bool,
}

impl<'h, H: ProfileHardware> AsOfVersion<'h, H> {
    /// The hardware of `interface`, seen by the Windows of `rules`.
    pub fn new(hardware: &'h mut H, interface: HalInterface, rules: Rules) -> Self {
        let has_counters = rules.version.has_counters(interface, rules.width);
        Self { hardware, has_counters }
    }

    fn has(&self, source: KProfileSource) -> bool {
        self.has_counters || source == KProfileSource::TIME
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
