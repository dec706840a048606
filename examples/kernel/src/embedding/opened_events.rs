//! Events beside the profile sources, opened on the counters of the processor that executes the call.

use pmu::Machine;
use pmu::core::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu::core::{
    CounterSession, CounterSet, CounterUnit, FixupMsr, InterfaceError, SessionPlatform, Snapshot,
    SourceInterface, WithOpenedEvents,
};

use crate::embedding::memory::{COUNTERS, EVENTS};
use crate::embedding::msr::control_msr;
use crate::embedding::platform::{Apic, apic};
use crate::machine::processor;

/// The counters of a processor, with its events.
pub type Events =
    CounterSession<'static, WithOpenedEvents<'static, Machine>, FixupMsr, SessionPlatform<Apic>>;

/// Takes this processor's counters, fixed ones included, and gives them back.
///
/// # Errors
/// Those of the counters, and of `function`.
pub fn with_events<R, E: From<InterfaceError>>(
    machine: &'static Machine,
    function: impl FnOnce(&mut Events, &CounterUnit) -> Result<R, E>,
) -> Result<R, E> {
    let (number, this) = (processor::number(), Snapshot::capture(CpuIdReaderNative));
    let events = machine.with_events(&EVENTS[number]);
    let mut session =
        events.initialize(&this, CounterSet::ALL, control_msr(), apic(), &COUNTERS[number])?;
    let result = function(session.counters_mut(), &machine.unit_of(&this));
    session.shut_down()?;
    result
}
