//! Parts of events: the shares of an event's occurrences, added to the parts' counts.

use core::sync::atomic::Ordering::Relaxed;

use crate::access::backend::AccessFault;
use crate::counters::control::assignment::Detached;
use crate::counters::control::handle::{CounterSession, marked_faulted};
use crate::counters::error::{CounterError, EventsError};
use crate::counters::events::event::Event;
use crate::counters::events::thread::ThreadEvent;
use crate::counters::hooks::division::{Division, NotHarvested};
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::running::Asked;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::Counter;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Returns whether an event is a part of another one.
    #[inline(always)]
    pub(crate) fn is_part(&self, event: EventId) -> bool {
        S::Facility::DIVIDES && self.table().entry(event).is_some_and(EventEntry::is_part)
    }

    /// Returns whether an event is divided into parts of its group, which are open.
    #[inline(always)]
    pub(crate) fn has_parts(&self, event: EventId) -> bool {
        S::Facility::DIVIDES && self.finds_parts(event)
    }

    fn finds_parts(&self, event: EventId) -> bool {
        let facility = self.source.facility();
        facility.division().is_some_and(|division| division.divides(self.table(), event))
    }

    /// Returns whether an event is a part, or is the only one of its group that takes a counter: its start and its stop
    /// need no other write.
    #[inline(always)]
    pub(crate) fn takes_one_counter(&self, event: EventId) -> bool {
        let is_one = |event| self.is_part(event) || self.table().with_group(event).nth(1).is_none();
        S::Facility::DIVIDES && is_one(event)
    }

    /// Returns the bits of the global control register and of the overflow status that belong to the shares.
    #[inline(always)]
    pub(crate) fn division_bits(&self) -> u64 {
        if !S::Facility::DIVIDES {
            return 0;
        }
        self.source.facility().division().map_or(0, |division| division.bits)
    }

    /// Returns whether an event is a part that no facility divides another event into.
    pub(crate) fn is_undivided(&self, asked: &Asked, counters: CounterSet) -> bool {
        counters.is_empty() && !asked.is_part && Division::part_of(asked.select).is_some()
    }

    /// Checks that the event of which another event of the group is to be a part comes `before` it.
    pub(crate) fn check_part(
        &self,
        processor: &CounterUnit,
        part: &Event,
        before: &[Event],
    ) -> Result<(), CounterError> {
        let facility = self.source.facility();
        let counter = facility.division().map(|division| division.counter.only());
        let is_divided = |event: &&Event| {
            event.modes == part.modes
                && event.guest == part.guest
                && event.period().is_none()
                && processor.counters_of(event).ok() == counter
        };
        let divided = before.iter().find(is_divided).ok_or(CounterError::NotDivided)?;
        if part.period().is_some() || divided.is_part() {
            return Err(CounterError::NotDivided);
        }
        Ok(())
    }

    /// Begins the shares of a stopped counter, which was loaded with 0 for an event that has parts.
    pub(crate) fn begin_parts(
        &self,
        counter: CounterId,
        registers: &Counter,
        event: EventId,
    ) -> Result<(), CounterError> {
        let facility = self.source.facility();
        let Some(division) = facility.division().filter(|of| of.counter == counter) else {
            return Ok(());
        };
        division.memory.note_use();
        if !division.divides(self.table(), event) {
            return Ok(());
        }
        if let Some(global) = self.unit().global()
            && self.memory.global_control.load(Relaxed) & division.bits != division.bits
        {
            // First in the register: a bit that it refuses must not be in the value that an interrupt restores.
            let value = self.memory.global_control.load(Relaxed) | division.bits;
            self.write_retrying(global.control, value).map_err(CounterError::Unchanged)?;
            self.change_global(global, (0, division.bits))?;
        }
        division.begin(&self.hardware, registers).map_err(CounterError::Unchanged)
    }

    /// Begins the shares of a counter that was loaded, if it was loaded for an event that has parts.
    #[inline(always)]
    pub(crate) fn begin_loaded(
        &self,
        counter: CounterId,
        registers: &Counter,
        event: EventId,
    ) -> Result<(), CounterError> {
        if S::Facility::DIVIDES { self.begin_parts(counter, registers, event) } else { Ok(()) }
    }

    /// Begins the shares of the event that runs, after its counter was loaded again.
    #[inline(always)]
    pub(crate) fn begin_parts_of_running(
        &self,
        own: CounterSet,
    ) -> Result<(), (CounterId, AccessFault)> {
        let running = || self.slots_of(own).filter_map(|(on, slot)| Some((on, slot.running()?)));
        let Some((counter, event)) = running().find(|(_, event)| self.has_parts(*event)) else {
            return Ok(());
        };
        let registers = self.registers(counter);
        let begun = self.begin_parts(counter, &registers, event);
        let fault = |error: CounterError| {
            error.fault().unwrap_or(marked_faulted(registers.value_register()))
        };
        begun.map_err(|error| (counter, fault(error)))
    }

    /// Adds what was counted to the counts of a running event and of its parts, and begins the next shares. So the next
    /// read is right to a 255th of what is counted until then.
    pub(crate) fn harvest(&self, counter: CounterId, event: EventId) -> Result<(), CounterError> {
        let facility = self.source.facility();
        let (registers, slot) = (self.registers(counter), self.slot(counter));
        let Some((division, slot)) = facility.division().zip(slot) else { return Ok(()) };
        let bits = self.running_bits(&registers, event).unwrap_or(0);
        let restart = || {
            division.memory.note_use();
            self.set_control(&registers, bits).map_err(|fault| {
                slot.store(SlotState::Faulted);
                CounterError::StateUnknown(fault)
            })
        };
        // From here to `end`, an interrupt leaves the registers to this task.
        division.memory.begin();
        let stopped = self.set_control(&registers, 0).map_err(CounterError::Unchanged);
        let harvested = stopped.and_then(|()| {
            let harvested = self.harvest_stopped(&division, &registers, event);
            match harvested {
                Err(NotHarvested::Stale(fault)) => {
                    // Its shares are unknown from here on.
                    slot.store(SlotState::Faulted);
                    Err(CounterError::StateUnknown(fault))
                }
                Err(NotHarvested::Unchanged(fault)) => {
                    restart().and(Err(CounterError::Unchanged(fault)))
                }
                Ok(()) => restart(),
            }
        });
        division.memory.end();
        harvested
    }

    /// Harvests in a task. The counter is stopped, and no interrupt uses the registers.
    fn harvest_stopped(
        &self,
        division: &Division<'_>,
        registers: &Counter,
        event: EventId,
    ) -> Result<(), NotHarvested> {
        let value = self.read_value(registers).map_err(NotHarvested::Unchanged)?;
        if let Some(global) = self.unit().global() {
            // An overflow may be pending, whose interrupt has not come yet.
            let pending = division.pending(&self.hardware, global.status, value);
            let pending = pending.map_err(NotHarvested::Unchanged)?;
            if pending != 0 {
                let cleared = self.write_retrying(global.acknowledge, pending);
                cleared.map_err(NotHarvested::Unchanged)?;
                self.memory.expect_spurious(1);
            }
            if pending & division.counter.only().bits() != 0 {
                division.memory.note_wrap();
            }
        }
        division.harvest(&self.hardware, registers, (self.table(), event), value)
    }

    /// Detaches an event that has parts: stops its counter, adds to the counts, sets the registers to 0, and frees the
    /// counter.
    pub(crate) fn detach_divided(
        &self,
        counter: CounterId,
        slot: &CounterSlot,
        event: EventId,
    ) -> Result<Detached, CounterError> {
        let (facility, registers) = (self.source.facility(), self.registers(counter));
        let Some(division) = facility.division() else {
            return Err(CounterError::NotEnabled(event));
        };
        division.memory.begin();
        let harvested = self.set_control(&registers, 0).map_err(NotHarvested::Unchanged);
        let harvested = harvested.and_then(|()| self.harvest_stopped(&division, &registers, event));
        // An interrupt may have marked the counter as faulted meanwhile.
        let left = match (harvested.map_err(NotHarvested::fault), slot.replace(SlotState::Free)) {
            (Ok(()), SlotState::Running { period, .. }) => {
                Ok(Detached { period, rest: 0, overflowed: false, is_due: false })
            }
            (Ok(()), _) => Err(marked_faulted(registers.value_register())),
            (Err(fault), _) => Err(fault),
        };
        division.memory.end();
        left.map_err(|fault| {
            slot.store(SlotState::Faulted);
            CounterError::StateUnknown(fault)
        })
    }

    /// Harvests before the counters are lent: they are stopped by the global control register, and the overflows that
    /// were pending are served.
    #[inline(always)]
    pub(crate) fn harvest_stopped_of(&self, own: CounterSet) -> Result<(), CounterError> {
        let running = || self.slots_of(own).filter_map(|(on, slot)| Some((on, slot.running()?)));
        let divided = running().find(|(_, event)| self.has_parts(*event));
        let facility = self.source.facility();
        let Some((division, (counter, event))) = facility.division().zip(divided) else {
            return Ok(());
        };
        let registers = self.registers(counter);
        division.memory.begin();
        let value = self.read_value(&registers).map_err(NotHarvested::Unchanged);
        let harvested = value.and_then(|value| {
            division.harvest(&self.hardware, &registers, (self.table(), event), value)
        });
        division.memory.end();
        harvested.map_err(|failure| CounterError::Unchanged(failure.fault()))
    }

    /// Detaches those of a thread's events that have parts, so that the parts have their counts before any event is
    /// removed.
    pub(crate) fn detach_parts(
        &self,
        events: &[ThreadEvent],
        now: u64,
    ) -> Result<(), CounterError> {
        let mut outcome = Ok(());
        for place in events {
            let ThreadEvent::Opened(event) = *place else { continue };
            let Some(entry) = self.table().entry(event).filter(|_| self.has_parts(event)) else {
                continue;
            };
            self.add_time(event, entry, now);
            if let Some(counter) = self.counter_of(event) {
                outcome = outcome.and(self.detach(counter, event).map(|_| ()));
                self.change_state(event, EventState::Waiting);
            }
            Self::give_times(self, event);
        }
        outcome
    }

    /// Gives the parts of an event its times.
    pub(crate) fn give_times(&self, event: EventId) {
        if let Some(entry) = self.table().entry(event) {
            Division::parts_of(self.table(), event).for_each(|(_, part)| part.take_times(entry));
        }
    }

    /// Returns the event that has parts in the group of another one.
    pub(crate) fn divided_of(&self, event: EventId) -> Option<EventId> {
        let mut members = self.members(event);
        members.find(|(event, _)| self.has_parts(*event)).map(|(event, _)| event)
    }

    /// Reads the event of a group that has parts: then the counts of the parts are of the same moment.
    pub(crate) fn read_divided(
        &self,
        event: EventId,
        now: u64,
    ) -> Result<Option<EventId>, EventsError> {
        let Some(divided) = self.divided_of(event) else { return Ok(None) };
        let member = self.group_events(event).position(|event| event == divided).unwrap_or(0);
        let failed = |reason| EventsError::of_member(member, reason);
        self.read(divided, now).map_err(failed)?;
        self.give_times(divided);
        Ok(Some(divided))
    }

    /// Reads the event of which another one is a part, so that the part's count is of now.
    pub(crate) fn update_part(&self, part: EventId, now: u64) -> Result<(), CounterError> {
        if let Some(divided) = self.divided_of(part) {
            self.read(divided, now)?;
            self.give_times(divided);
        }
        Ok(())
    }
}
