//! A source whose processor shares its core with another logical processor.

use core::ops::RangeInclusive;

use crate::counters::hooks::event_source::{EventSource, forward_source};
use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::{CoreCounters, CoreThread};
use crate::counters::shared::table::EventTable;

/// An [`EventSource`](crate::EventSource) for a core on which some events of one logical processor corrupt the counters
/// of the other logical processor. This happens on Intel's Sandy Bridge to Haswell with hyper-threading. The sessions
/// of both logical processors avoid this as Linux does: while such an event is on general counter *n* of one logical
/// processor, the other logical processor does not use its own general counter *n*.
///
/// If no counter is left for an event, a [rotating](crate::Event::rotating) event waits for its turn, and a
/// non-rotating event fails to start. With this source, start events by
/// [`start_event`](crate::CounterSession::start_event).
/// [`start_event_if_free`](crate::CounterSession::start_event_if_free) always fails with
/// [`NoCounterForEvent`](crate::CounterError::NoCounterForEvent).
///
/// The sessions have no control over guests. A guest that has borrowed [lent](crate::CounterSession::lend) counters can
/// count a corrupting event at any time.
///
/// ```
/// use pmu_core::shared_core::{CoreCounters, OnSharedCore};
/// use pmu_core::{CounterUnit, EventEntry, EventTable, OpenedEvents};
/// static CORE: CoreCounters = CoreCounters::new(); // one per core
/// static EVENTS: [EventTable<[EventEntry; 8]>; 2] = [const { EventTable::new() }; 2];
/// # let unit = CounterUnit::NONE;
/// // 0xD0 to 0xD3: what `pmu_intel::SiblingErratum` says of the processor.
/// let first = OnSharedCore::new(OpenedEvents::new(&unit, &EVENTS[0]), &CORE, false, 0xD0..=0xD3);
/// let second = OnSharedCore::new(OpenedEvents::new(&unit, &EVENTS[1]), &CORE, true, 0xD0..=0xD3);
/// # let _ = (first, second);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OnSharedCore<'a, S> {
    source: S,
    thread: CoreThread<'a>,
}

impl<'a, S: EventSource> OnSharedCore<'a, S> {
    /// Wraps `source`, the events of one logical processor. Set `second` for one of the core's two logical processors,
    /// and clear `second` for the other. `events` is the range of event numbers that corrupt the counters of the other
    /// logical processor. Pass the same `core` and `events` for both logical processors.
    pub const fn new(
        source: S,
        core: &'a CoreCounters,
        second: bool,
        events: RangeInclusive<u16>,
    ) -> Self {
        Self { source, thread: CoreThread::new(core, second, events) }
    }
}

// SAFETY: unit and table are those of the source, by its promise.
unsafe impl<S: EventSource> EventSource for OnSharedCore<'_, S> {
    type Facility = S::Facility;

    forward_source!(self => self.source);

    fn core_thread(&self) -> Option<CoreThread<'_>> {
        Some(self.thread)
    }
}
