//! Memory for a processor's counters, and the handler of its interrupt.

use pmu_core::interrupt::EventOverflow;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{Events, service};
use pmu_tests::opened::{Mock, Processor};

use super::expected::{Told, next_period};

/// Memory that a processor's counters are lent for a run.
pub(crate) struct Lent {
    pub(crate) memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(crate) table: EventTable<[EventEntry; 24]>,
}

impl Lent {
    pub(crate) const fn new() -> Self {
        Self { memory: CounterMemory::new(), table: EventTable::new() }
    }

    /// Serves an interrupt of the processor whose memory it is.
    pub(crate) fn serve(&self, machine: &Processor, mock: &Mock<'_>, told: &Told) {
        let source = Events::new(&machine.unit, &self.table);
        let report = |overflow: EventOverflow| self.report(overflow, told);
        // A register that faults is the next operation's to tell.
        let _ = service(&source, mock, &self.memory, |sample| report(*sample));
    }

    /// Takes a report as a kernel does that keeps the frequency of some events.
    pub(crate) fn report(&self, overflow: EventOverflow, told: &Told) {
        let (number, has_frequency) = (overflow.tag >> 1, overflow.tag & 1 != 0);
        let reports = told.add(number, overflow.period);
        if has_frequency {
            let period = next_period(number, reports);
            self.table.set_period(overflow.event, period).unwrap();
        }
    }
}
