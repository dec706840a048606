//! Reading a running counter, which an interrupt may reload during the read.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::hooks::facility::Facility;
use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;
use crate::counters::registers::counter::Counter;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::waiting::{Waiting, since_record};
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Reads the total of an event that is on a counter, and the counter's value then.
    pub(crate) fn read_total(
        &self,
        counter: CounterId,
        event: EventId,
        entry: &EventEntry,
    ) -> Result<(u64, u64), CounterError> {
        if self.has_parts(event) {
            return self.harvest(counter, event).map(|()| (entry.count().value, 0));
        }
        let registers = self.registers(counter);
        // An interrupt in between adds to the total, and may load the counter again.
        loop {
            let (mut accumulated, mut counted_to) = entry.accumulated();
            let waiting = self.waiting(counter, entry).map_err(CounterError::Access)?;
            let value = self.read(&registers).map_err(CounterError::Access)?;
            let again = self.wrapped_again(counter, entry, value).map_err(CounterError::Access)?;
            let still = self.waiting(counter, entry).map_err(CounterError::Access)?;
            if entry.accumulated() != (accumulated, counted_to) || still != waiting {
                continue;
            }
            (accumulated, counted_to) = waiting.added_to((accumulated, counted_to), &registers);
            if registers.has_overflowed(value) {
                self.check_registers(&registers, event)?;
            }
            if again {
                accumulated = accumulated.wrapping_add(registers.mask()).wrapping_add(1);
            }
            let since = match S::Facility::RECORDS && entry.is_precise() {
                true => since_record(value, counted_to, registers.mask()),
                false => value.wrapping_sub(counted_to) & registers.mask(),
            };
            return Ok((accumulated.wrapping_add(since), value));
        }
    }

    /// Returns the records that wait of a counter's event.
    #[inline(always)]
    fn waiting(&self, counter: CounterId, entry: &EventEntry) -> Result<Waiting, MsrFault> {
        if !S::Facility::RECORDS || !entry.is_precise() {
            return Ok(Waiting::NONE);
        }
        self.source.facility().waiting(&self.msr, counter)
    }

    /// Returns whether a counter that has wrapped since it was loaded, and now reads as `value`, has wrapped once more
    /// without an interrupt so far. Reads the status if the value does not decide.
    #[inline(never)] // Linked once: a read asks, and what detaches an event.
    pub(crate) fn wrapped_again(
        &self,
        counter: CounterId,
        entry: &EventEntry,
        value: u64,
    ) -> Result<bool, MsrFault> {
        let near = entry.has_wrapped() && self.registers(counter).has_overflowed(value);
        match self.unit().global() {
            Some(global) if near => {
                Ok(self.rdmsr_retrying(global.status)? & counter.only().bits() != 0)
            }
            _ => Ok(false),
        }
    }
}

impl<'a, S: EventSource, M: MsrBackend, P: Platform> CounterSession<'a, S, M, P> {
    /// Reads the number of a source's events since its counter was last loaded (RDPMC).
    pub(crate) fn read_loaded(&self, event: EventId) -> Result<u64, CounterError> {
        let not_started = CounterError::NotStarted(event);
        let (counter, period) = self.find(event).ok_or(not_started)?;
        let registers = self.registers(counter);
        let read = || self.read(&registers).map_err(CounterError::Access);
        let (mut value, (_, now)) = (read()?, self.find(event).ok_or(not_started)?);
        if now != period {
            // An interrupt came in between, and loaded the counter for another period.
            value = read()?;
        }
        if registers.has_overflowed(value) {
            self.check_registers(&registers, event)?;
        }
        Ok(value.wrapping_sub(registers.preload(now)) & registers.mask())
    }

    /// Checks a counter whose value shows an overflow: its interrupt is pending, or its registers lost their
    /// contents, which is an error.
    pub(crate) fn check_registers(
        &self,
        registers: &Counter,
        event: EventId,
    ) -> Result<(), CounterError> {
        let bits = self.running_bits(registers, event).unwrap_or(0);
        match self.holds(registers, bits).map_err(CounterError::Access)? {
            true => Ok(()),
            false => Err(CounterError::RegistersLost),
        }
    }
}
