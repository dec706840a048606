//! Overflowed counters: reported, and loaded again.

use core::sync::atomic::Ordering;

use crate::counters::hooks::event_source::{EventSource, opens_events};
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::interrupt::pass::{Pass, Running};
use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;
use crate::counters::registers::counter::Counter;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::msr::access::MsrAccess;
use crate::msr::address::MsrAddress;
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
    /// Loads an overflowed general counter again, and reports the overflow. `value` is the counter's, if it was read.
    pub(crate) fn reload(
        &mut self,
        counter: CounterId,
        slot: &CounterSlot,
        running: Running,
        value: Option<u64>,
    ) {
        let Running { event, period } = running;
        // An opened event's number is above those of any table's rows.
        match self.source.row_period(event.bits().into()) {
            Some(next) => {
                let (next, registers) = (u64::from(next), self.unit().general(counter));
                let preload = registers.preload(next);
                self.load(slot, registers.value_register(), preload, running, next);
                self.report(EventOverflow { event, period, counter, tag: 0 });
            }
            None if !opens_events(self.source) => {}
            None => self.reload_opened(counter, slot, running, value),
        }
    }

    #[inline]
    pub(crate) fn load(
        &mut self,
        slot: &CounterSlot,
        register: MsrAddress,
        preload: u64,
        Running { event, period }: Running,
        next: u64,
    ) {
        if !self.wrmsr(register, preload) {
            // A counter that is not loaded again does not overflow for a long time.
            self.fall_out(Some(event));
        } else if next != period {
            slot.store(SlotState::Running { event, period: next });
        }
    }

    /// Serves an opened event's overflow: adds to its total, and loads the next chunk of its period.
    ///
    /// If the status reported the wrap of an event without a period, its counter is not loaded, and simply continues.
    #[inline(never)]
    pub(crate) fn reload_opened(
        &mut self,
        counter: CounterId,
        slot: &CounterSlot,
        running: Running,
        value: Option<u64>,
    ) {
        let (source, registers) = (self.source, self.unit().registers(counter));
        let Some(entry) = source.opened().entry_in_interrupt(running.event) else { return };
        if B::RECORDS && entry.is_precise() {
            // Its records tell of its overflows, also while it leaves its counter.
            return;
        }
        if !entry.period.reports() {
            return match value {
                None if self.is_divided(running.event) => {}
                None => entry.accumulate_wrap(registers.mask()),
                Some(_) => self.rearm_free_running(running.event, &registers, entry),
            };
        }
        let (event, tag) = (running.event, entry.tag());
        if let Some(period) = entry.period.over() {
            // Before the counter is loaded, so that a period that the handler sets is the next one.
            self.report(EventOverflow { event, period, counter, tag });
        }
        if entry.wants_total() {
            let read = value.map_or_else(|| registers.read(self.msr), Ok);
            let Some(read) = self.note(read) else { return self.fall_out(Some(running.event)) };
            entry.accumulate(read, registers.mask());
        }
        let full_width = self.memory.full_width.load(Ordering::Relaxed);
        let chunk = entry.period.next_chunk(registers.max_load(full_width));
        let preload = registers.preload(chunk);
        entry.loaded(preload);
        self.load(slot, registers.register_for(preload), preload, running, chunk);
    }

    /// Re-arms the counter of an event without a period: as far before its next wrap as it can be loaded.
    ///
    /// Without a status, only the value shows a wrap, and only if the counter was past half its range before. The
    /// counter is stopped meanwhile, so that the total misses none of its events. Its select is left as it was found:
    /// the interrupted operation may have stopped it.
    fn rearm_free_running(&mut self, event: EventId, registers: &Counter, entry: &EventEntry) {
        let select = registers.control.register();
        let full_width = self.memory.full_width.load(Ordering::Relaxed);
        let write = |register, value| self.msr.wrmsr_retrying(register, value);
        let done = self.msr.rdmsr_retrying(select).and_then(|found| {
            write(select, 0)?;
            let value = registers.read(self.msr)?;
            entry.accumulate(value, registers.mask());
            let value = registers.rearmed_value(value, full_width);
            entry.loaded(value);
            write(registers.register_for(value), value)?;
            write(select, found)
        });
        if self.note(done).is_none() {
            self.fall_out(Some(event));
        }
    }
}
