//! A source of opened events alone.

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
pub struct OpenedEvents<'a> {
    unit: &'a CounterUnit,
    events: &'a EventTable,
}

impl<'a> OpenedEvents<'a> {
    /// Creates the source of one processor. `unit` describes the processor's counters, and `events` is the processor's
    /// table of opened events.
    pub const fn new(unit: &'a CounterUnit, events: &'a EventTable) -> Self {
        Self { unit, events }
    }
}

// SAFETY: the unit is a field, and stays the same.
unsafe impl EventSource for OpenedEvents<'_> {
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
}
