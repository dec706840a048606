//! Hardware restricted to the sources of a given Windows.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{AddedSources, InterfaceError, KProfileSource};
use pmu_core::windows::{HalInterface, Rules};

use crate::affinity::Affinity;
use crate::hardware::profile_hardware::ProfileHardware;

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
