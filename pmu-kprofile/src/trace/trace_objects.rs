//! The built-in objects of tracing.

use pmu_core::profile::KProfileSource;
use pmu_core::windows::Rules;

use crate::object::callback::ProfileCallback;
use crate::object::profile_object::ProfileObject;
use crate::trace::extended::MAX_PMC_SOURCES;
use crate::trace::switches::{Gate, SwitchTrace};

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
