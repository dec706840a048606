//! A profile interface for a processor whose core another logical processor shares.

use core::sync::atomic::AtomicU32;

use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::CoreThread;
use crate::counters::shared::table::EventTable;
use crate::profile::added::AddedSources;
use crate::profile::counter_answer::CounterAnswer;
use crate::profile::source_index::SourceTable;
use crate::profile::source_interface::{SourceInterface, forward_interface};
use crate::snapshot::Snapshot;

/// A profile interface for a core with two logical processors and the following erratum: while one logical processor
/// counts certain events, the other logical processor's counters count wrong.
/// [`OnSharedCore`](crate::shared_core::OnSharedCore) describes how sources and events are scheduled on this core.
///
/// ```
/// use pmu_core::shared_core::{CoreCounters, CoreThread, WithSharedCore};
/// use pmu_core::{EventEntry, EventTable};
/// use pmu_core::profile::WithOpenedEvents;
/// # use pmu_core::profile::DefaultInterface;
/// # static MACHINE: DefaultInterface = DefaultInterface::new();
/// static CORE: CoreCounters = CoreCounters::new(); // one per core
/// static EVENTS: [EventTable<[EventEntry; 8]>; 2] = [const { EventTable::new() }; 2];
///
/// // Of the core's second logical processor. 0xD0 to 0xD3: what `pmu_intel::SiblingErratum` says of the processor.
/// let second = WithSharedCore::new(&MACHINE, CoreThread::new(&CORE, true, 0xD0..=0xD3));
/// let events = WithOpenedEvents::new(&second, &EVENTS[1]);
/// # let _ = events;
/// ```
#[derive(Debug)]
pub struct WithSharedCore<'a, I> {
    interface: &'a I,
    thread: CoreThread<'a>,
}

impl<I> Clone for WithSharedCore<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for WithSharedCore<'_, I> {}

impl<'a, I: SourceInterface> WithSharedCore<'a, I> {
    /// Creates the profile interface for the logical processor `thread`. The created interface has the sources of
    /// `interface`.
    pub const fn new(interface: &'a I, thread: CoreThread<'a>) -> Self {
        Self { interface, thread }
    }
}

// SAFETY: the unit and the table of events are the interface's.
unsafe impl<I: SourceInterface> SourceInterface for WithSharedCore<'_, I> {
    type Facility = I::Facility;

    forward_interface!(self => self.interface; Some(self.thread));

    #[inline]
    fn facility(&self) -> I::Facility {
        self.interface.facility()
    }

    #[inline]
    fn added(&self) -> &'static AddedSources {
        self.interface.added()
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        self.interface.opened()
    }
}
