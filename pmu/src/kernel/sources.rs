//! The machine's sources, with what the interrupt asks for at hand.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU32;

use pmu_core::profile::{AddedSources, CounterAnswer, SourceInterface, SourceTable};
use pmu_core::shared_core::CoreThread;
use pmu_core::{CounterUnit, Snapshot};

use crate::kernel::required::Kernel;
use crate::machine::Machine;

/// The profile sources of a [`Machine`], and the sources that the kernel added. The value refers directly to the
/// machine's sources and counters. So the interrupt handler need not match on the variants of [`Machine`].
pub struct MachineSources<K> {
    machine: &'static Machine,
    unit: &'static CounterUnit,
    table: &'static SourceTable,
    intervals: &'static [AtomicU32],
    answer: Option<&'static CounterAnswer>,
    added: &'static AddedSources,
    kernel: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for MachineSources<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineSources").field("machine", self.machine).finish_non_exhaustive()
    }
}

impl<K> MachineSources<K> {
    pub(super) fn new(machine: &'static Machine, added: &'static AddedSources) -> Self {
        let (unit, table, intervals) = (machine.unit(), machine.table(), machine.intervals());
        let answer = machine.answer();
        Self { machine, unit, table, intervals, answer, added, kernel: PhantomData }
    }
}

// SAFETY: the unit and the added sources are fields that nothing changes, and there is no table of opened events.
unsafe impl<K: Kernel> SourceInterface for MachineSources<K> {
    type Facility = ();

    fn facility(&self) {}

    fn name(&self) -> &'static str {
        self.machine.name()
    }

    fn requires_memory(&self) -> bool {
        self.machine.requires_memory()
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        self.table
    }

    #[inline]
    fn unit(&self) -> &CounterUnit {
        self.unit
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        self.machine.unit_of(processor)
    }

    fn is_declared(&self, row: usize) -> bool {
        self.machine.is_declared(row)
    }

    #[inline]
    fn intervals(&self) -> &[AtomicU32] {
        self.intervals
    }

    fn answer(&self) -> Option<&CounterAnswer> {
        self.answer
    }

    #[inline]
    fn added(&self) -> &'static AddedSources {
        self.added
    }

    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        K::shared_core()
    }
}
