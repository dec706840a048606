//! The kernel's own objects of tracing, and the records of context switches.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::KProfileSource;
use pmu_core::windows::{PointerWidth, Rules};

use crate::object::profile_object::{ProfileCallback, ProfileObject};
use crate::trace::event::records::ContextSwitch;
use crate::trace::record::{Extended, MAX_PMC_SOURCES, Record};
use crate::trace::ring::SwitchRing;

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
    pub(super) sampled: ProfileObject<'static>,
    pub(super) pmc: [ProfileObject<'static>; MAX_PMC_SOURCES],
    pub(super) switches: Option<&'static Gate>,
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
pub(super) struct Gate {
    traced: AtomicBool,
    stamped: AtomicBool,
}

impl Gate {
    pub(super) fn set_traced(&self, traced: bool) {
        // Relaxed: a switch at the same time may be recorded or not, and nothing depends on the order.
        self.traced.store(traced, Ordering::Relaxed);
    }

    pub(super) fn set_stamped(&self, stamped: bool) {
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

    pub(super) const fn gate(&self) -> &Gate {
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
