//! The built-in trace objects, the records of context switches, and the control that starts and stops both:
//! `TraceSetInformation` with `TraceSystemTraceEnableFlagsInfo` (4) and `TraceProfileSourceConfigInfo` (6), and
//! `EventTracePebsTracingInformation` (0x0B).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::KProfileSource;
use pmu_core::windows::{PointerWidth, Rules};

use crate::hardware::profile_hardware::ProfileHardware;
use crate::object::profile_object::{ProfileCallback, ProfileObject};
use crate::registry::control::ProfileError;
use crate::registry::profiles::Profiles;
use crate::trace::TraceError;
use crate::trace::event::records::{CONTEXT_SWITCH_HOOK, ContextSwitch};
use crate::trace::group_mask::{GroupMask, PERF_CONTEXT_SWITCH, PERF_PMC_PROFILE, PERF_PROFILE};
use crate::trace::record::{Extended, MAX_PMC_SOURCES, Record};
use crate::trace::ring::SwitchRing;

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

/// The profile objects with which a kernel traces interrupts. One object traces sampled profiles, which are the
/// interrupts of `ProfileTime`. Four objects trace PMC interrupts, which are the interrupts of the configured sources.
///
/// [`with_switches`](Self::with_switches) adds the tracing of context switches.
///
/// Windows 8 and later trace with callback objects. Earlier versions of Windows traced sampled profiles without an
/// object. This crate uses the objects for every version. A request to trace interrupts that the version does not trace
/// fails with [`NotTraced`](crate::trace::TraceError::NotTraced).
#[derive(Debug)]
pub struct TraceObjects {
    sampled: ProfileObject<'static>,
    pmc: [ProfileObject<'static>; MAX_PMC_SOURCES],
    switches: Option<&'static Gate>,
}

impl TraceObjects {
    /// Creates the objects from two callbacks, usually [`TraceCallback`](crate::trace::TraceCallback)s.
    ///
    /// Interrupts of `ProfileTime` call `sampled`, and interrupts of the configured sources call `pmc`. A
    /// [`Profiles`](crate::Profiles) with other rules cannot start the objects.
    pub const fn new(
        rules: Rules,
        sampled: &'static dyn ProfileCallback,
        pmc: &'static dyn ProfileCallback,
    ) -> Self {
        const TIME: KProfileSource = KProfileSource::TIME;
        Self {
            sampled: ProfileObject::new_callback(rules, TIME, sampled),
            pmc: [
                ProfileObject::new_callback(rules, TIME, pmc),
                ProfileObject::new_callback(rules, TIME, pmc),
                ProfileObject::new_callback(rules, TIME, pmc),
                ProfileObject::new_callback(rules, TIME, pmc),
            ],
            switches: None,
        }
    }

    /// Adds the tracing of context switches by `switches`. The flag
    /// [`PERF_CONTEXT_SWITCH`](crate::trace::PERF_CONTEXT_SWITCH) of the group mask then turns this tracing on and off.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::trace::{
    ///     CONTEXT_SWITCH_HOOK, GroupMask, Hook, PERF_CONTEXT_SWITCH, SwitchRing, SwitchTrace, TraceCallback,
    ///     TraceControl, TraceError, TraceObjects, TraceRing,
    /// };
    /// use pmu_kprofile::{PointerWidth, ProfileHardware, Profiles, Rules};
    ///
    /// const WIDTH: PointerWidth = PointerWidth::Bits64;
    /// static LISTS: Profiles<64, 2> = Profiles::new();
    /// static RINGS: [TraceRing<128>; 2] = [const { TraceRing::new() }; 2];
    /// static SWITCH_RINGS: [SwitchRing<128>; 2] = [const { SwitchRing::new() }; 2];
    /// static SWITCHES: SwitchTrace<128> = SwitchTrace::new(WIDTH, &SWITCH_RINGS);
    /// static TIME: TraceCallback<128> = TraceCallback::new(Hook::SampledProfile, WIDTH, &RINGS);
    /// static PMC: TraceCallback<128> = TraceCallback::new(Hook::PmcInterrupt, WIDTH, &RINGS);
    /// static OBJECTS: TraceObjects = TraceObjects::new(Rules::LATEST, &TIME, &PMC).with_switches(&SWITCHES);
    ///
    /// /// Traces context switches, each with the PEBS index of its processor.
    /// fn trace_switches(hardware: &mut impl ProfileHardware) -> Result<(), TraceError> {
    ///     let mut tracing = TraceControl::new(&LISTS, &OBJECTS);
    ///     tracing.set_pebs_hooks(&[CONTEXT_SWITCH_HOOK])?;
    ///     tracing.set_group_mask(GroupMask::EMPTY.with(PERF_CONTEXT_SWITCH), hardware)?;
    ///     assert!(SWITCHES.is_traced());
    ///     // … the workload, whose scheduler calls `SWITCHES.record` …
    ///     tracing.set_group_mask(GroupMask::EMPTY, hardware)
    /// }
    /// ```
    pub const fn with_switches<const N: usize>(
        mut self,
        switches: &'static SwitchTrace<N>,
    ) -> Self {
        self.switches = Some(switches.gate());
        self
    }
}

/// Writes a trace record of each context switch into the ring of the processor that switches.
///
/// Records are written while the group mask of [`TraceControl`](crate::trace::TraceControl) contains
/// [`PERF_CONTEXT_SWITCH`](crate::trace::PERF_CONTEXT_SWITCH).
///
/// ```
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{ContextSwitch, Extended, SwitchRing, SwitchTrace};
/// static RINGS: [SwitchRing<128>; 2] = [const { SwitchRing::new() }; 2];
/// static SWITCHES: SwitchTrace<128> = SwitchTrace::new(PointerWidth::Bits64, &RINGS);
///
/// /// What a scheduler does on the way from one thread to the other.
/// fn switched(on: ProcessorNumber, old_thread: u32, new_thread: u32, time: u64, index: Option<u64>) {
///     if SWITCHES.is_traced() {
///         let switch = ContextSwitch { old_thread, new_thread, ..ContextSwitch::default() };
///         let extended = Extended { pebs_index: index, ..Extended::default() };
///         SWITCHES.record(on, time, extended, switch);
///     }
/// }
/// ```
#[derive(Debug)]
pub struct SwitchTrace<const N: usize> {
    width: PointerWidth,
    rings: &'static [SwitchRing<N>],
    gate: Gate,
    ringless: AtomicU64,
}

/// The settings of the control for context switches.
#[derive(Debug)]
struct Gate {
    traced: AtomicBool,
    stamped: AtomicBool,
}

impl Gate {
    fn set_traced(&self, traced: bool) {
        // Relaxed: a switch at the same time may be recorded or not, and nothing depends on the order.
        self.traced.store(traced, Ordering::Relaxed);
    }

    fn set_stamped(&self, stamped: bool) {
        self.stamped.store(stamped, Ordering::Relaxed);
    }
}

impl<const N: usize> SwitchTrace<N> {
    /// Creates a trace of context switches that writes into `rings`. `rings` has one ring per processor, by processor
    /// index. The trace is off.
    pub const fn new(width: PointerWidth, rings: &'static [SwitchRing<N>]) -> Self {
        let gate = Gate { traced: AtomicBool::new(false), stamped: AtomicBool::new(false) };
        Self { width, rings, gate, ringless: AtomicU64::new(0) }
    }

    const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns whether context switches are traced.
    ///
    /// # Context
    /// Any.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.gate.traced.load(Ordering::Relaxed)
    }

    /// Records a context switch if context switches are traced.
    ///
    /// The PEBS index of `extended` is recorded only if
    /// [`TraceControl::set_pebs_hooks`](crate::trace::TraceControl::set_pebs_hooks) requested PEBS indexes.
    ///
    /// # Context
    /// Any, on the processor `on`, which is switching threads. Wait-free.
    pub fn record(
        &self,
        on: ProcessorNumber,
        timestamp: u64,
        mut extended: Extended,
        switch: ContextSwitch,
    ) {
        if !self.is_traced() {
            return;
        }
        let Some(ring) = self.rings.get(on.index()) else {
            self.ringless.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if !self.gate.stamped.load(Ordering::Relaxed) {
            extended.pebs_index = None;
        }
        ring.push(&Record { extended, ..Record::new(self.width, timestamp, switch) });
    }

    /// Returns the number of context switches that were lost so far. A context switch is lost if the ring is full, or
    /// if the processor has no ring.
    ///
    /// # Context
    /// Any.
    pub fn dropped(&self) -> u64 {
        let full: u64 = self.rings.iter().map(SwitchRing::dropped).sum();
        full + self.ringless.load(Ordering::Relaxed)
    }
}
