//! The built-in objects of tracing.

use pmu_core::{KProfileSource, Rules};

use crate::object::callback::ProfileCallback;
use crate::object::profile_object::ProfileObject;
use crate::trace::switches::{Gate, SwitchTrace};

/// `ETW_MAX_PROFILING_SOURCES`: maximum number of sources whose PMC interrupts are traced.
pub const MAX_PMC_SOURCES: usize = 4;

/// The profile objects by which the kernel traces: one for the sampled profile, and four for PMC interrupts.
///
/// Optionally, they have the tracing of context switches with them.
///
/// From Windows 8 on, these are callback objects. Earlier kernels traced sampled profiles without an object, with the
/// same effect on each interrupt; here the same objects serve all versions.
#[derive(Debug)]
pub struct TraceObjects {
    pub(super) sampled: ProfileObject<'static>,
    pub(super) pmc: [ProfileObject<'static>; MAX_PMC_SOURCES],
    pub(super) switches: Option<&'static Gate>,
}

impl TraceObjects {
    /// Creates the objects from two callbacks, usually [`TraceCallback`](crate::trace::TraceCallback)s.
    ///
    /// Interrupts of `ProfileTime` call `sampled`; those of the configured sources call `pmc`. The objects are for
    /// lists of the same rules.
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

    /// Also lets the group mask switch the tracing of context switches on and off.
    pub const fn with_switches<const N: usize>(
        mut self,
        switches: &'static SwitchTrace<N>,
    ) -> Self {
        self.switches = Some(switches.gate());
        self
    }
}
