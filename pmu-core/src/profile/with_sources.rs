//! A profile interface with sources beyond those of its table.

use core::sync::atomic::AtomicU32;

use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::table::EventTable;
use crate::profile::added::AddedSources;
use crate::profile::counter_answer::CounterAnswer;
use crate::profile::source_index::SourceTable;
use crate::profile::source_interface::SourceInterface;
use crate::snapshot::Snapshot;

/// A profile interface with sources beyond those of its table.
///
/// It is two references. They run where events can be opened: a session is made of it together with a processor's
/// [events](crate::WithEvents).
///
/// ```
/// use pmu_core::{AddedSlot, AddedSources, EventEntry, EventTable, WithEvents, WithSources};
/// # use pmu_core::DefaultInterface;
/// # static MACHINE: DefaultInterface = DefaultInterface::new();
/// static ADDED: AddedSources<[AddedSlot; 8]> = AddedSources::new();
/// static EVENTS: [EventTable<[EventEntry; 8]>; 2] = [const { EventTable::new() }; 2];
///
/// let machine = WithSources::new(&MACHINE, &ADDED);
/// let of_processor_0 = WithEvents::new(&machine, &EVENTS[0]);
/// // of_processor_0.initialize(…): its session starts what is in ADDED, too.
/// # let _ = of_processor_0;
/// ```
#[derive(Debug)]
pub struct WithSources<'a, I> {
    interface: &'a I,
    added: &'static AddedSources,
}

impl<I> Clone for WithSources<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for WithSources<'_, I> {}

impl<'a, I: SourceInterface> WithSources<'a, I> {
    /// Combines the sources of `interface` with those of `added`, which serves the whole machine.
    pub const fn new(interface: &'a I, added: &'static AddedSources) -> Self {
        Self { interface, added }
    }
}

// SAFETY: the unit and the table of events are the interface's.
unsafe impl<I: SourceInterface> SourceInterface for WithSources<'_, I> {
    fn name(&self) -> &'static str {
        self.interface.name()
    }

    fn requires_memory(&self) -> bool {
        self.interface.requires_memory()
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        self.interface.table()
    }

    #[inline]
    fn unit(&self) -> &CounterUnit {
        self.interface.unit()
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        self.interface.unit_of(processor)
    }

    #[inline]
    fn is_declared(&self, row: usize) -> bool {
        self.interface.is_declared(row)
    }

    #[inline]
    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        self.interface.interval_cell(row)
    }

    fn answer(&self) -> Option<&CounterAnswer> {
        self.interface.answer()
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
