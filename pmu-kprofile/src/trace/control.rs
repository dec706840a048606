//! Starting and stopping the built-in trace objects and the tracing of context switches: `TraceSetInformation` with
//! `TraceSystemTraceEnableFlagsInfo` (4) and `TraceProfileSourceConfigInfo` (6), and `EventTracePebsTracingInformation`
//! (0x0B).

use pmu_core::profile::KProfileSource;

use crate::hardware::profile_hardware::ProfileHardware;
use crate::object::profile_object::ProfileObject;
use crate::registry::control::ProfileError;
use crate::registry::profiles::Profiles;
use crate::trace::error::TraceError;
use crate::trace::event::records::CONTEXT_SWITCH_HOOK;
use crate::trace::group_mask::{GroupMask, PERF_CONTEXT_SWITCH, PERF_PMC_PROFILE, PERF_PROFILE};
use crate::trace::objects::TraceObjects;
use crate::trace::record::MAX_PMC_SOURCES;

/// Starts and stops the tracing of profile interrupts and context switches. The flags of a [group mask](GroupMask)
/// select what is traced.
///
/// # Context
/// Task.
///
/// ```
/// use pmu_core::profile::KProfileSource;
/// use pmu_kprofile::trace::{
///     GroupMask, Hook, PERF_PMC_PROFILE, TraceCallback, TraceControl, TraceError, TraceObjects, TraceRing,
/// };
/// use pmu_kprofile::{PointerWidth, ProfileHardware, Profiles, Rules};
///
/// static LISTS: Profiles<64, 2> = Profiles::new();
/// static RINGS: [TraceRing<128>; 2] = [const { TraceRing::new() }; 2];
/// static TIME: TraceCallback<128> = TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, &RINGS);
/// static PMC: TraceCallback<128> = TraceCallback::new(Hook::PmcInterrupt, PointerWidth::Bits64, &RINGS);
/// static OBJECTS: TraceObjects = TraceObjects::new(Rules::LATEST, &TIME, &PMC);
///
/// fn trace_cycles(hardware: &mut impl ProfileHardware) -> Result<(), TraceError> {
///     let mut tracing = TraceControl::new(&LISTS, &OBJECTS);
///     tracing.set_pmc_sources(&[KProfileSource::TOTAL_CYCLES], hardware)?;
///     tracing.set_group_mask(GroupMask::EMPTY.with(PERF_PMC_PROFILE), hardware)?;
///     // … the workload; a task drains the rings …
///     tracing.set_group_mask(GroupMask::EMPTY, hardware)
/// }
/// ```
#[derive(Debug)]
pub struct TraceControl<const N: usize, const P: usize> {
    profiles: &'static Profiles<N, P>,
    objects: &'static TraceObjects,
    mask: GroupMask,
    configured: usize,
}

impl<const N: usize, const P: usize> TraceControl<N, P> {
    /// Creates a `TraceControl` that traces nothing yet. No other `TraceControl` may use `objects`.
    pub const fn new(profiles: &'static Profiles<N, P>, objects: &'static TraceObjects) -> Self {
        Self { profiles, objects, mask: GroupMask::EMPTY, configured: 0 }
    }

    /// Returns the group mask that was set last.
    pub const fn group_mask(&self) -> GroupMask {
        self.mask
    }

    /// Returns the sources that [`set_pmc_sources`](Self::set_pmc_sources) set last. The interrupts of these sources
    /// are traced while the group mask contains [`PERF_PMC_PROFILE`].
    pub fn pmc_sources(&self) -> impl Iterator<Item = KProfileSource> + '_ {
        self.configured().map(ProfileObject::source)
    }

    fn configured(
        &self,
    ) -> impl DoubleEndedIterator<Item = &'static ProfileObject<'static>> + use<N, P> {
        self.objects.pmc.iter().take(self.configured)
    }

    /// Sets the sources whose interrupts are traced as PMC interrupts. The new sources replace the previous sources.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`TraceError`].
    pub fn set_pmc_sources(
        &mut self,
        sources: &[KProfileSource],
        hardware: &impl ProfileHardware,
    ) -> Result<(), TraceError> {
        self.check(PERF_PMC_PROFILE)?;
        if self.mask.contains(PERF_PMC_PROFILE) {
            return Err(TraceError::Busy);
        }
        match sources.len() {
            0 => return Err(TraceError::NoSource),
            1..=MAX_PMC_SOURCES => {}
            many => return Err(TraceError::TooManySources(many)),
        }
        for (index, source) in sources.iter().enumerate() {
            let fits = source.value() <= i16::MAX as u32;
            if *source == KProfileSource::TIME || !fits || !hardware.supports(*source) {
                return Err(TraceError::UnsupportedSource(*source));
            }
            if sources.iter().take(index).any(|earlier| earlier == source) {
                return Err(TraceError::DuplicateSource(*source));
            }
        }
        for (object, source) in self.objects.pmc.iter().zip(sources) {
            object.set_source(*source);
        }
        self.configured = sources.len();
        Ok(())
    }

    /// Selects, by hook id, the trace records that have the [PEBS index](crate::trace::Extended::pebs_index). The hook
    /// id is the number in a record's header that says which event the record describes. `hooks` must be empty or have
    /// the one element [`CONTEXT_SWITCH_HOOK`]. Initially no record has the PEBS index.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// After an error the selection is unchanged.
    /// - [`NoPebsIndex`](TraceError::NoPebsIndex): the Windows version has no PEBS index in its records.
    /// - [`PebsHook`](TraceError::PebsHook): the records with these hook ids cannot have the PEBS index.
    pub fn set_pebs_hooks(&mut self, hooks: &[u16]) -> Result<(), TraceError> {
        if !self.profiles.rules().version.has_control_area() {
            return Err(TraceError::NoPebsIndex);
        }
        match (hooks, self.objects.switches) {
            ([], None) => {}
            ([], Some(gate)) => gate.set_stamped(false),
            ([CONTEXT_SWITCH_HOOK], Some(gate)) => gate.set_stamped(true),
            _ => return Err(TraceError::PebsHook),
        }
        Ok(())
    }

    /// Checks that the lists' Windows version knows a flag.
    fn check(&self, flag: u32) -> Result<(), TraceError> {
        let version = self.profiles.rules().version;
        let traces = match flag {
            PERF_PROFILE => version.traces_sampled_profile(),
            _ => version.traces_pmc_interrupts(),
        };
        if traces { Ok(()) } else { Err(TraceError::NotTraced(flag)) }
    }

    /// Sets the group mask, and starts and stops the tracing that the mask's flags select.
    ///
    /// Three flags have an effect: [`PERF_PROFILE`] and [`PERF_PMC_PROFILE`] start and stop profile objects, and
    /// [`PERF_CONTEXT_SWITCH`] turns the tracing of context switches on and off. Other flags are only stored.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`TraceError`]. If starting an object fails, the call stops the objects that it has already started.
    pub fn set_group_mask<H: ProfileHardware>(
        &mut self,
        mask: GroupMask,
        hardware: &mut H,
    ) -> Result<(), TraceError> {
        let starts = |flag| mask.contains(flag) && !self.mask.contains(flag);
        let stops = |flag| !mask.contains(flag) && self.mask.contains(flag);
        let (sampled, pmc) = (starts(PERF_PROFILE), starts(PERF_PMC_PROFILE));
        if sampled {
            self.check(PERF_PROFILE)?;
        }
        if pmc {
            self.check(PERF_PMC_PROFILE)?;
            if self.configured == 0 {
                return Err(TraceError::NotConfigured);
            }
        }
        let count = if pmc { self.configured } else { 0 };
        let to_start = sampled
            .then_some(&self.objects.sampled)
            .into_iter()
            .chain(self.objects.pmc.iter().take(count));
        for (done, object) in to_start.clone().enumerate() {
            if let Err(error) = self.profiles.start(object, hardware) {
                // If undoing fails too, its error is the one to report.
                let mut undone = Ok(());
                for object in to_start.clone().take(done) {
                    undone = undone.and(self.profiles.stop(object, hardware));
                }
                return Err(undone.err().unwrap_or(error).into());
            }
        }
        let mut outcome = Ok(());
        let count = if stops(PERF_PMC_PROFILE) { self.configured } else { 0 };
        let to_stop = stops(PERF_PROFILE)
            .then_some(&self.objects.sampled)
            .into_iter()
            .chain(self.objects.pmc.iter().take(count));
        for object in to_stop {
            let stopped = self.profiles.stop(object, hardware);
            if stopped == Err(ProfileError::WrongContext) {
                return Err(ProfileError::WrongContext.into()); // of the first already: nothing changed
            }
            outcome = outcome.and(stopped);
        }
        self.mask = mask;
        if let Some(gate) = self.objects.switches {
            gate.set_traced(mask.contains(PERF_CONTEXT_SWITCH));
        }
        outcome.map_err(TraceError::from)
    }
}
