//! Hardware restricted to the sources of a given Windows.

use pmu_core::{HalInterface, InterfaceError, KProfileSource, ProcessorNumber, Rules};

use crate::affinity::Affinity;
use crate::hardware::profile_hardware::ProfileHardware;

/// Profile hardware that is restricted to the sources of a given Windows version: see [`Rules::has_source`].
///
/// Use this type if the Windows version of the [`Profiles`](crate::Profiles) differs from the version that was passed
/// to [`detect_as_of`](https://docs.rs/pmu-intel/latest/pmu_intel/struct.Emon.html#method.detect_as_of).
///
/// # Examples
/// ```
/// use pmu_kprofile::{AsOfVersion, HalInterface, ProfileError, ProfileHardware, ProfileObject, Profiles};
///
/// /// Starts a profile on lists that are like an older Windows: a source that this version did not have is refused.
/// fn start<H: ProfileHardware>(
///     lists: &Profiles<64, 4>,
///     object: &'static ProfileObject<'static>,
///     hardware: &mut H,
/// ) -> Result<(), ProfileError> {
///     lists.try_start(object, &mut AsOfVersion::new(hardware, HalInterface::Emon, lists.rules()))
/// }
/// ```
#[derive(Debug)]
pub struct AsOfVersion<'h, H> {
    hardware: &'h mut H,
    interface: HalInterface,
    rules: Rules,
}

impl<'h, H: ProfileHardware> AsOfVersion<'h, H> {
    /// Restricts `hardware` to the sources that exist in the Windows version of `rules`. `interface` is the profile
    /// interface of `hardware`.
    pub const fn new(hardware: &'h mut H, interface: HalInterface, rules: Rules) -> Self {
        Self { hardware, interface, rules }
    }

    fn has(&self, source: KProfileSource) -> bool {
        self.rules.has_source(self.interface, source)
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
