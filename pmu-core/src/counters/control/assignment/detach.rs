//! Detaching an event from its counter, with the remainder of its period.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::hooks::facility::Facility;
use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;
use crate::counters::registers::counter::Counter;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::counters::shared::waiting::Waiting;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

/// Remainder of an event's period when the event was detached.
#[derive(Clone, Copy)]
pub(crate) struct Detached {
    /// The period that the counter was loaded for.
    pub(crate) period: u64,
    /// Remainder of that period; 1 also stands for a pending overflow.
    pub(crate) rest: u64,
    /// A pending overflow ended the period, and was not reported.
    pub(crate) overflowed: bool,
    /// A precise event's counter has overflowed, and its record is written with the event's next occurrence.
    pub(crate) is_due: bool,
}

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Stops an opened event, and detaches it if it is on a counter.
    #[inline(never)] // Linked once: an event, a group and a switch stop events.
    pub(crate) fn detach_and_stop(
        &self,
        event: EventId,
        entry: &EventEntry,
        now: u64,
    ) -> Result<(), CounterError> {
        let on = self.counter_of(event);
        entry.add_time(now, on.is_some());
        let detached = on.map_or(Ok(()), |counter| self.detach(counter, event).map(|_| ()));
        self.change_state(event, EventState::Stopped);
        self.settle_core();
        detached.and(self.settle_facilities())
    }

    /// Detaches an event: stops its counter, frees it, and adds its count to the total. An opened event keeps the
    /// remainder of its period; if the period was over, a new one begins.
    pub(crate) fn detach(
        &self,
        counter: CounterId,
        event: EventId,
    ) -> Result<Detached, CounterError> {
        let slot = self.slot(counter).ok_or(CounterError::NotStarted(event))?;
        if self.has_parts(event) {
            return self.detach_divided(counter, slot, event);
        }
        let registers = self.registers(counter);
        let entry = self.table().entry(event);
        let (mut accumulated, mut waiting) = (None, Waiting::NONE);
        self.before_stop(counter);
        let (period, value, again) =
            self.stop_and_read(slot, &registers, SlotState::Free, || {
                accumulated = entry.map(EventEntry::accumulated);
                waiting = self.leave_facilities(counter, event)?;
                match entry.filter(|entry| entry.has_wrapped()) {
                    Some(entry) => self.wrapped_again(counter, entry, self.read(&registers)?),
                    None => Ok(false),
                }
            })?;
        if S::Facility::RECORDS
            && let Some(entry) = entry.filter(|entry| entry.is_precise())
        {
            let left = Left { counter, value, period, waiting };
            return self.detach_precise((slot, &registers), entry, left);
        }
        let mut overflowed = registers.has_overflowed(value);
        if let Some(entry) = entry {
            if entry.has_wrapped() {
                // Unless an interrupt has added the wrap since.
                overflowed = again && accumulated == Some(entry.accumulated());
                if overflowed {
                    entry.accumulate_wrap(registers.mask());
                }
            }
            entry.accumulate(value, registers.mask());
        }
        if !overflowed {
            self.memory.cancel_spurious();
        } else if let Some(global) = self.unit().global() {
            let bit = counter.only().bits();
            let acknowledged = self.clear_status(global, bit);
            acknowledged.map_err(|fault| {
                // If it stayed set, this overflow would be reported for the counter's next event.
                slot.store(SlotState::Faulted);
                CounterError::Faulted(fault)
            })?;
        }
        let (rest, ended) = if overflowed {
            (1, entry.is_none_or(|entry| entry.period.end_chunk()))
        } else {
            let rest = value.wrapping_neg() & registers.mask();
            if let Some(entry) = entry {
                entry.period.set_resume(rest);
            }
            (rest, false)
        };
        Ok(Detached { period, rest, overflowed: ended, is_due: false })
    }

    /// Ends the detachment of a precise event. Its overflows do not interrupt, but are recorded. The records that wait
    /// are reported later. A counter that has overflowed and whose record is yet to be written is loaded again with 1.
    #[inline(never)]
    fn detach_precise(
        &self,
        (slot, registers): (&CounterSlot, &Counter),
        entry: &EventEntry,
        Left { counter, value, period, waiting }: Left,
    ) -> Result<Detached, CounterError> {
        self.memory.cancel_spurious();
        let (mask, is_due) = (registers.mask(), registers.has_overflowed(value));
        if let Some(global) = self.unit().global()
            && (is_due || waiting != Waiting::NONE)
        {
            // Some processors also report the overflow in the status: it would be taken for the next event's.
            let cleared = self.clear_status(global, counter.only().bits());
            cleared.map_err(|fault| {
                slot.store(SlotState::Faulted);
                CounterError::Faulted(fault)
            })?;
        }
        entry.accumulate_records(waiting, registers);
        entry.accumulate_precise(value, mask);
        let rest = if is_due { 1 } else { value.wrapping_neg() & mask };
        if waiting == Waiting::NONE {
            entry.period.set_resume(rest);
        } else if entry.period.recorded(waiting.reloaded) {
            // The next part of the period, or a period of another length, begins.
            entry.period.end_chunk();
        } else {
            entry.period.set_resume(rest);
        }
        Ok(Detached { period, rest, overflowed: false, is_due })
    }
}

/// The state of a precise event's counter after it had stopped.
struct Left {
    counter: CounterId,
    value: u64,
    period: u64,
    waiting: Waiting,
}
