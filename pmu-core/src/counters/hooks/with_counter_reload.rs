//! A source whose processor's counters can reload each other.

use crate::counters::hooks::event_source::{EventSource, forward_source};
use crate::counters::registers::reload::CounterReload;
use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::CoreThread;
use crate::counters::shared::reload::ReloadMemory;
use crate::counters::shared::table::EventTable;

/// An [`EventSource`](crate::EventSource) for a processor with auto counter reload. A session with this source may open
/// groups in which the overflow of one event [reloads](crate::Event::reloaded_by) the counters of other events. A
/// kernel without this source does not link the code for auto counter reload.
///
/// Before a session with this source uses a counter, the session clears the counter's reload registers. Firmware or an
/// earlier kernel may have left values there. While the counters are [lent](crate::CounterSession::lend), no overflow
/// reloads a counter.
///
/// The example samples mispredicted branches only in code in which such branches are frequent. After every 100,000
/// branches, the count of mispredicted branches starts again from 0. An interrupt comes only if 5,000 of 100,000
/// branches were mispredicted:
///
/// ```
/// use pmu_core::{
///     CounterReload, CounterSession, CounterUnit, Event, EventEntry, EventTable, GenericEvent, GroupError, GroupId,
///     MsrBackend, OpenedEvents, Platform, ReloadMemory, WithCounterReload,
/// };
/// static RELOADS: ReloadMemory = ReloadMemory::new(); // one per processor
///
/// /// The source of a processor: `reload` is what `pmu_intel::counter_reload` says of it.
/// fn source<'a>(
///     unit: &'a CounterUnit,
///     events: &'a EventTable,
///     reload: CounterReload,
/// ) -> WithCounterReload<'a, OpenedEvents<'a>> {
///     WithCounterReload::new(OpenedEvents::new(unit, events), reload, &RELOADS)
/// }
///
/// fn open<M: MsrBackend, P: Platform>(
///     counters: &mut CounterSession<'_, WithCounterReload<'_, OpenedEvents<'_>>, M, P>,
///     this_processor: &CounterUnit,
/// ) -> Result<GroupId, GroupError> {
///     let misses = Event::generic(GenericEvent::BranchMisses).every(5_000).reloaded_by(0b10);
///     // The second event of the group reloads the first, and itself: it never interrupts.
///     let branches = Event::generic(GenericEvent::Branches).every(100_000).reloaded_by(0b10);
///     counters.open_group(this_processor, &[misses, branches])
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WithCounterReload<'a, S> {
    source: S,
    reload: CounterReload,
    memory: &'a ReloadMemory,
}

impl<'a, S: EventSource> WithCounterReload<'a, S> {
    /// Wraps `source`. `reload` describes the processor's reload registers, and `memory` records their values.
    pub const fn new(source: S, reload: CounterReload, memory: &'a ReloadMemory) -> Self {
        Self { source, reload, memory }
    }
}

// SAFETY: unit and table are those of the source, by its promise.
unsafe impl<S: EventSource> EventSource for WithCounterReload<'_, S> {
    forward_source!(self => self.source);

    fn core_thread(&self) -> Option<CoreThread<'_>> {
        self.source.core_thread()
    }

    fn counter_reload(&self) -> Option<(&CounterReload, &ReloadMemory)> {
        Some((&self.reload, self.memory))
    }
}
