//! An overflow of a counter whose occurrences are divided into parts: the shares begin again.

use crate::counters::hooks::division::{Division, NotHarvested};
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::interrupt::pass::{Pass, Running};
use crate::counters::names::event_id::EventId;
use crate::counters::registers::counter::CounterControl;
use crate::msr::access::MsrAccess;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::msr::register_bits::RegisterBits;
use crate::platform::Platform;

impl<'a, S, M, P, B, F> Pass<'a, S, M, P, B, F>
where
    S: EventSource,
    M: MsrBackend,
    P: Platform,
    B: Facility,
    F: FnMut(EventOverflow, &B),
{
    /// Harvests at an overflow of a counter that is divided, or of its shares. If a task has the registers, the task
    /// finds the wrap.
    #[cold]
    #[inline(never)]
    pub(crate) fn divide(&mut self, status: u64) {
        let facility = self.source.facility();
        let Some(division) = facility.division() else { return };
        let wrapped = status & division.counter.only().bits() != 0;
        if !wrapped && status & division.bits == 0 {
            return;
        }
        let Some(Running { event, .. }) = self.memory.slot(division.counter).and_then(Running::of)
        else {
            return;
        };
        if !division.divides(self.source.opened(), event) {
            return;
        }
        if wrapped {
            division.memory.note_wrap();
        }
        if !division.memory.begin() {
            return;
        }
        let harvested = self.harvest(&division, event);
        division.memory.end();
        if let Err(fault) = harvested {
            self.note::<()>(Err(fault));
        }
    }

    /// Stops the counter, harvests, and starts the counter again. A task may be about to write other bits of the
    /// control register, so only the counter's own bits are changed.
    fn harvest(&mut self, division: &Division<'_>, event: EventId) -> Result<(), MsrFault> {
        let registers = self.unit().registers(division.counter);
        let CounterControl::Shared { register, .. } = registers.control else { return Ok(()) };
        // SAFETY: the bits decide what a counter counts, and whether it interrupts.
        let control = unsafe { RegisterBits::new(register.get(), registers.control.mask()) };
        let found = self.msr.update_retrying(control.set_to(0))?;
        let value = registers.read(self.msr).map_err(NotHarvested::Unchanged);
        let harvested = value.and_then(|value| {
            division.harvest(self.msr, &registers, (self.source.opened(), event), value)
        });
        division.memory.note_use();
        let restarted = self.msr.update_retrying(control.set_to(found));
        if restarted.is_err() {
            self.fall_out(Some(event));
        }
        harvested.map_err(NotHarvested::fault).and(restarted.map(|_| ()))
    }

    /// Returns whether an overflow of an event's counter is [harvested](Self::divide).
    #[inline(always)]
    pub(crate) fn is_divided(&self, event: EventId) -> bool {
        S::Facility::DIVIDES
            && self
                .source
                .facility()
                .division()
                .is_some_and(|division| division.divides(self.source.opened(), event))
    }
}
