//! A profile interface with further sources, which are not in the interface's table.

use core::sync::atomic::AtomicU32;

use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::CoreThread;
use crate::counters::shared::table::EventTable;
use crate::profile::added::AddedSources;
use crate::profile::counter_answer::CounterAnswer;
use crate::profile::source_index::SourceTable;
use crate::profile::source_interface::{SourceInterface, forward_interface};
use crate::snapshot::Snapshot;

/// A profile interface with [`AddedSources`] in addition to the sources of the interface's table.
///
/// An added source runs as an [opened](crate::CounterSession::open_event) event. Therefore wrap the `WithAddedSources`
/// in a [`WithOpenedEvents`](crate::profile::WithOpenedEvents), and create the session from this `WithOpenedEvents`.
///
/// ```
/// use pmu_core::profile::{AddedSlot, AddedSources, WithAddedSources, WithOpenedEvents};
/// use pmu_core::{EventEntry, EventTable};
/// # use pmu_core::profile::DefaultInterface;
/// # static MACHINE: DefaultInterface = DefaultInterface::new();
/// static ADDED: AddedSources<[AddedSlot; 8]> = AddedSources::new();
/// static EVENTS: [EventTable<[EventEntry; 8]>; 2] = [const { EventTable::new() }; 2];
///
/// let machine = WithAddedSources::new(&MACHINE, &ADDED);
/// let of_processor_0 = WithOpenedEvents::new(&machine, &EVENTS[0]);
/// // The session of `of_processor_0.initialize(…)` can also start the sources in `ADDED`.
/// # let _ = of_processor_0;
/// ```
#[derive(Debug)]
pub struct WithAddedSources<'a, I> {
    interface: &'a I,
    added: &'static AddedSources,
}

impl<I> Clone for WithAddedSources<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for WithAddedSources<'_, I> {}

impl<'a, I: SourceInterface> WithAddedSources<'a, I> {
    /// Combines the sources of `interface` with the sources in `added`. All processors of the machine share `added`.
    pub const fn new(interface: &'a I, added: &'static AddedSources) -> Self {
        Self { interface, added }
    }
}

// SAFETY: the unit and the table of events are the interface's.
unsafe impl<I: SourceInterface> SourceInterface for WithAddedSources<'_, I> {
    type Facility = I::Facility;

    forward_interface!(self => self.interface);

    #[inline]
    fn facility(&self) -> I::Facility {
        self.interface.facility()
    }

    #[inline]
    fn added(&self) -> &'static AddedSources {
        self.added
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        self.interface.opened()
    }
}
