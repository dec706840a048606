//! A vendor's list of events, as its users need it.

use crate::counters::names::CounterSet;
use crate::counters::registers::counter::EventSelect;

/// The events of a core type, as the vendor lists them: finds the encoding of an event by its name, and the counters
/// that can count an encoding. `pmu_events::CoreType` is such a list. `()` is a list without events, for a kernel that
/// links no names: any counter may then count any event.
///
/// ```
/// use pmu_core::CounterSet;
/// use pmu_core::registers::{EventList, EventSelect};
/// /// Two events of a processor of one's own.
/// struct MyEvents;
/// impl EventList for MyEvents {
///     fn perf_config(&self, name: &str) -> Option<(u64, u64)> {
///         match name {
///             "cache.refills" => Some((0x103, 0)),
///             "bus.cycles" => Some((0x11D, 0)),
///             _ => None,
///         }
///     }
///     fn constraints(&self, select: EventSelect) -> Option<CounterSet> {
///         (select.event_number() == 0x1D).then_some(CounterSet::from_bits(0b1)) // on counter 0 alone
///     }
/// }
/// ```
///
/// # Context
/// Task.
pub trait EventList {
    /// Returns the fields `config` and `config1` of Linux' `perf_event_attr` for the event of this name, as
    /// `PERF_TYPE_RAW` has them. Returns `None` if the list has no such event.
    fn perf_config(&self, name: &str) -> Option<(u64, u64)>;

    /// Returns the counters that can count the event with this encoding. On many processors, only some counters can
    /// count a given event. Returns `None` if the list does not know the event.
    fn constraints(&self, select: EventSelect) -> Option<CounterSet>;
}

impl EventList for () {
    fn perf_config(&self, _: &str) -> Option<(u64, u64)> {
        None
    }

    fn constraints(&self, _: EventSelect) -> Option<CounterSet> {
        None
    }
}
