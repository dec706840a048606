//! The hardware of one processor.

use pmu_core::Platform;
use pmu_core::frame::ProcessorNumber;
use pmu_core::msr::MsrBackend;
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_core::profile::{ProfileInterface, Session};

use crate::affinity::Affinity;
use crate::hardware::profile_hardware::ProfileHardware;

/// The profile hardware of a machine with one processor: starts and stops sources with the processor's [`Session`].
///
/// # Examples
/// ```
/// use pmu_core::msr::MsrBackend;
/// use pmu_core::Platform;
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_core::profile::{ProfileInterface, Session};
/// use pmu_kprofile::hardware::ThisProcessor;
/// use pmu_kprofile::{ProfileError, ProfileObject, Profiles};
///
/// fn start<I: ProfileInterface, M: MsrBackend, P: Platform>(
///     lists: &Profiles<64, 1>,
///     object: &'static ProfileObject<'static>,
///     session: &mut Session<'_, I, M, P>,
/// ) -> Result<(), ProfileError> {
///     let mut hardware = ThisProcessor::new(session, ProcessorNumber::from_index(0));
///     lists.try_start(object, &mut hardware)
/// }
/// ```
#[derive(Debug)]
pub struct ThisProcessor<'s, 'a, I, M, P> {
    session: &'s mut Session<'a, I, M, P>,
    number: ProcessorNumber,
}

impl<'s, 'a, I, M, P> ThisProcessor<'s, 'a, I, M, P> {
    /// Creates the profile hardware from the session of the only processor. `number` is the number of that processor.
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
