//! Processors that come and go: starts the sources that started objects lack there.

use pmu_core::frame::ProcessorNumber;

use crate::affinity::{mask_in, mask_of, processors_in};
use crate::hardware::profile_hardware::ProfileHardware;
use crate::registry::error::ProfileError;
use crate::registry::write::WriteGuard;

impl<'p, const N: usize, const P: usize> WriteGuard<'p, N, P> {
    /// Starts the sources that started objects lack: see
    /// [`Profiles::try_update_processors`](crate::Profiles::try_update_processors).
    pub(super) fn update_processors<H: ProfileHardware>(
        &self,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.start_missing(None, hardware)
    }

    /// Restarts the sources of a processor: see
    /// [`Profiles::try_restart_processor`](crate::Profiles::try_restart_processor).
    pub(super) fn restart_processor<H: ProfileHardware>(
        &self,
        processor: ProcessorNumber,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.keep_running(processor.group.into(), !mask_of(processor));
        self.start_missing(Some(processor), hardware)
    }

    /// Starts, on one active processor or on all of them, each source that an object wants and lacks there. A source
    /// that several objects lack is tried once.
    fn start_missing<H: ProfileHardware>(
        &self,
        one: Option<ProcessorNumber>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let mut outcome = Ok(());
        for (place, object) in self.objects().enumerate() {
            let source = object.source();
            let earlier = || self.objects().take(place).filter(|other| other.source() == source);
            let on =
                |group| self.active.mask(group) & one.map_or(u64::MAX, |one| mask_in(one, group));
            let missing = |group| match object.wanted(group) & on(group) & !object.running(group) {
                0 => 0,
                missing => earlier().fold(missing, |missing, other| missing & !other.wanted(group)),
            };
            for processor in processors_in(missing) {
                let started = if processor.index() < P {
                    let started = hardware.start(processor, source);
                    started.map_err(|error| ProfileError::Hardware { processor, error })
                } else {
                    Err(ProfileError::ProcessorBeyondLists(processor))
                };
                if started.is_ok() {
                    self.add_running(source, processor.group.into(), mask_of(processor));
                }
                outcome = outcome.and(started);
            }
        }
        outcome
    }
}
