//! A source of opened events alone.

use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::table::EventTable;

/// An [`EventSource`](crate::EventSource) whose only events are [opened](crate::CounterSession::open_event) events.
///
/// ```
/// use pmu_core::{CounterUnit, EventEntry, EventTable, OpenedEvents};
/// static EVENTS: EventTable<[EventEntry; 4]> = EventTable::new();
/// let unit = CounterUnit::NONE; // or what a vendor crate detects
/// let events = OpenedEvents::new(&unit, &EVENTS);
/// # let _ = events;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OpenedEvents<'a, F = ()> {
    unit: &'a CounterUnit,
    events: &'a EventTable,
    facility: F,
}

impl<'a> OpenedEvents<'a> {
    /// Creates the source of one processor. `unit` describes the processor's counters, and `events` is the processor's
    /// table of opened events.
    pub const fn new(unit: &'a CounterUnit, events: &'a EventTable) -> Self {
        Self { unit, events, facility: () }
    }

    /// Returns the source with hardware of the processor that the events can ask for beside a counter, such as [counter
    /// reload](crate::reload::AutoCounterReload). The session and the interrupt handler have the same facility.
    pub const fn with<F: EventFacility>(self, facility: F) -> OpenedEvents<'a, F> {
        OpenedEvents { unit: self.unit, events: self.events, facility }
    }
}

// SAFETY: the unit is a field, and stays the same.
unsafe impl<F: EventFacility> EventSource for OpenedEvents<'_, F> {
    type Facility = F;

    #[inline]
    fn unit(&self) -> &CounterUnit {
        self.unit
    }

    #[inline]
    fn row_select(&self, _: usize) -> Option<EventSelect> {
        None
    }

    #[inline]
    fn row_period(&self, _: usize) -> Option<u32> {
        None
    }

    fn table_id(&self) -> usize {
        0
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        self.events
    }

    #[inline]
    fn facility(&self) -> F {
        self.facility
    }
}
