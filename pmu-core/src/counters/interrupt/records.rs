//! Overflows that a facility's hardware recorded: each record is reported as one.

use crate::counters::hooks::event_facility::{EventFacility, UnitAccess};
use crate::counters::hooks::event_source::{EventSource, read_counter, registers_of};
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::recorded::Recorded;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::interrupt::pass::{Pass, Running};
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::counters::shared::waiting::Waiting;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<'a, S, M, P, B, F> Pass<'a, S, M, P, B, F>
where
    S: EventSource,
    M: MsrBackend,
    P: Platform,
    B: Facility,
    F: FnMut(EventOverflow, &B),
{
    /// Reports the records that a facility found. The counters are stopped. A counter whose period is another one from
    /// now on is loaded for it.
    #[inline(always)]
    pub(crate) fn report_records(&mut self) {
        let (mut changed, mut sampled) = (CounterSet::NONE, CounterSet::NONE);
        while let Some(record) = self.facility.next_record() {
            if S::Facility::UNITS {
                sampled = sampled | self.source.facility().units() & record.counter.only();
            }
            if self.report_record(record) {
                changed = changed | record.counter.only();
            }
        }
        for counter in changed.iter() {
            self.load_recorded(counter);
        }
        for counter in sampled.iter() {
            self.go_on(counter);
        }
    }

    /// Lets a unit go on after its sample.
    fn go_on(&mut self, counter: CounterId) {
        let event = self.memory.slot(counter).and_then(CounterSlot::running);
        let registers = registers_of(self.source, counter);
        // The event may have faulted with another one of its group.
        let access = event.map_or(UnitAccess::WriteControl(0), |_| UnitAccess::GoOn);
        let went_on = self.source.facility().access_unit(self.msr, &registers, access);
        if self.note(went_on).is_none() {
            self.fall_out(event);
        }
    }

    /// Reports a record. Returns whether its counter is to be loaded for another period.
    fn report_record(&mut self, record: Recorded) -> bool {
        let Recorded { counter, event, reloaded, left, hidden } = record;
        let Some(entry) = self.source.opened().entry_in_interrupt(event) else { return false };
        let is_on = self.memory.slot(counter).and_then(CounterSlot::running) == Some(event);
        if let Some(period) = left.or((!is_on).then_some(reloaded)) {
            // The count up to here was added when the event left its counter, or is lost with the counter.
            if !hidden && period != 0 {
                self.report(EventOverflow { event, period, counter, tag: entry.tag() });
            }
            return false;
        }
        let registers = registers_of(self.source, counter);
        let one = Waiting { records: 1, reloaded };
        entry.accumulate_records(one, &registers);
        if let Some(period) = entry.period.over().filter(|_| !hidden) {
            // Before the next period begins, so that it is the one that the handler sets.
            self.report(EventOverflow { event, period, counter, tag: entry.tag() });
        }
        entry.period.recorded(reloaded)
    }

    /// Loads a counter for the next part of its event's period, in place of what the processor loaded.
    #[cold]
    fn load_recorded(&mut self, counter: CounterId) {
        let slot = self.memory.slot(counter);
        let Some((slot, running)) = slot.and_then(|slot| Some((slot, Running::of(slot)?))) else {
            return;
        };
        let registers = registers_of(self.source, counter);
        let Some(entry) = self.source.opened().entry_in_interrupt(running.event) else { return };
        let read = read_counter(self.source, self.msr, &registers);
        let Some(value) = self.note(read) else { return self.fall_out(Some(running.event)) };
        let (_, began) = entry.accumulated();
        entry.accumulate_precise(value, registers.mask());
        let chunk = entry.period.next_chunk(registers.max_reload());
        let mut preload = registers.preload(chunk);
        if S::Facility::UNITS && registers.is_unit() {
            // The unit has stopped. Its sample came as many events late as it has counted already.
            let late = value.wrapping_sub(began) & registers.mask();
            preload += late.min(chunk.saturating_sub(1));
        }
        entry.loaded(preload);
        if S::Facility::UNITS && registers.is_unit() {
            let access = UnitAccess::WriteValue(preload);
            let _ = self.source.facility().access_unit(self.msr, &registers, access);
            slot.store(SlotState::Running { event: running.event, period: chunk });
        } else {
            self.load(slot, registers.register_for(preload), preload, running, chunk);
        }
        let set = self.facility.set_reload(self.msr, counter, chunk);
        if self.note(set).is_none() {
            self.fall_out(Some(running.event));
        }
    }
}
