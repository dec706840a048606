//! Events that are opened on a processor: counted and reported.

use crate::counters::entry::EventState;
use crate::counters::event::{GuestMode, What};
use crate::counters::plan::Unplaced;
use crate::counters::processor::too_little_memory;
use crate::counters::slot::SlotState;
use crate::counters::unit::IN_TXCP;
use crate::{
    CounterError, CounterId, CounterSet, CounterUnit, Counters, Event, EventCount, EventEntry,
    EventId, EventSelect, EventSource, EventTable, MsrBackend, MsrFault, Platform,
};

impl CounterUnit {
    /// Returns the select and the counters with which an event is counted.
    fn resolve(&self, event: &Event) -> Result<(EventSelect, CounterSet), CounterError> {
        let plain = match event.what {
            What::Raw(select) if self.needs_pair(select, event.narrow) => {
                return Err(CounterError::NeedsCounterPair);
            }
            What::Raw(select) => select,
            What::Named(name) => self.named(name).ok_or(CounterError::Unsupported(name))?,
        };
        let illegal = self.illegal_bits(plain);
        if illegal != 0 {
            return Err(CounterError::IllegalBits(illegal));
        }
        let [guest, host] = self.guest_bits();
        let guest_bit = match event.guest {
            GuestMode::Everywhere => 0,
            GuestMode::GuestOnly if guest != 0 => guest,
            GuestMode::HostOnly if host != 0 => host,
            _ => return Err(CounterError::GuestModeUnsupported),
        };
        let user_rdpmc = if self.has_user_rdpmc_control() && !event.user_rdpmc {
            EventSelect::NO_USER_RDPMC
        } else {
            0
        };
        let bits = plain.select_bits() & !EventSelect::MODES | event.modes | guest_bit | user_rdpmc;
        // A rollback takes back the overflow that its interrupt was for.
        if event.period != 0 && self.in_txcp(plain) {
            return Err(CounterError::IllegalBits(IN_TXCP));
        }
        // One fixed counter counts its event, by whatever name.
        let one_fixed =
            event.counters.len() == 1 && event.counters.without(CounterSet::FIXED).is_empty();
        let capable = if one_fixed { self.counters() } else { self.counters_for(plain) };
        // A fixed counter counts its event without the extra register.
        let capable = if event.extra.is_none() { capable } else { capable & CounterSet::GENERAL };
        Ok((EventSelect::from_bits(bits), capable & event.counters))
    }
}

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    pub(crate) fn table(&self) -> &EventTable {
        self.source.opened()
    }

    pub(crate) fn entry(&self, event: EventId) -> Result<&EventEntry, CounterError> {
        // After a shutdown they are another session's.
        let entry = self.table().entry(event).filter(|_| self.is_open());
        entry.ok_or(CounterError::NoSuchEvent(event))
    }

    /// Opens an event, stopped. `processor` describes the processor that executes the call: its events, and their
    /// counters.
    ///
    /// # Errors
    /// [`OtherProcessor`](CounterError::OtherProcessor): `processor` describes another type of core than the session's,
    /// with other names or other bits of a select. One that differs in its [`core_type`](CounterUnit::core_type) alone
    /// is taken at its word: an event that is opened by its select is then that type's.
    /// [`Unsupported`](CounterError::Unsupported), [`IllegalBits`](CounterError::IllegalBits),
    /// [`GuestModeUnsupported`](CounterError::GuestModeUnsupported): this processor lacks it.
    /// [`NeedsCounterPair`](CounterError::NeedsCounterPair),
    /// [`NoCounterForEvent`](CounterError::NoCounterForEvent), [`Period`](CounterError::Period).
    /// [`InsufficientMemory`](CounterError::InsufficientMemory): the table is full.
    pub fn open_event(
        &mut self,
        processor: &CounterUnit,
        event: &Event,
    ) -> Result<EventId, CounterError> {
        self.check_processor(processor)?;
        let (select, counters) = processor.resolve(event)?;
        if (counters & self.own()).is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        if let Some(period) = event.period() {
            self.table().check_period(period)?;
        }
        let (id, entry) = self.free_entry()?;
        let is_raw = matches!(event.what, What::Raw(_));
        let confined = is_raw && !event.any_core_type;
        let core_type = if confined { processor.core_type() } else { 0 };
        entry.open(event, select, counters, core_type);
        Ok(id)
    }

    pub(crate) fn free_entry(&self) -> Result<(EventId, &EventEntry), CounterError> {
        let lent = self.table().len();
        self.table().free().ok_or_else(|| too_little_memory(lent + 1, lent))
    }

    /// Stops and closes an event, and returns its count. Its identity may be another event's afterwards.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent); those of [`stop_event`](Self::stop_event), after which it stays
    /// open.
    pub fn close_event(&mut self, event: EventId, now: u64) -> Result<EventCount, CounterError> {
        self.alone(event)?;
        if self.is_started(event) {
            self.stop_event(event, now)?;
        }
        let entry = self.entry(event)?;
        entry.set_state(EventState::Closed);
        Ok(entry.count())
    }

    /// Starts an opened event on a counter that can count it. Where every such counter is in use, other events
    /// are moved to other counters, if that makes room. Otherwise an event that [rotates](Event::rotating) waits for
    /// its turn, and any other one takes the counter of one that rotates.
    ///
    /// A total continues from where it was; so does a period that a stop interrupted. `now` is the time by a clock of
    /// the caller's, in whose units the events' times are counted: one clock for all events of the table, which it
    /// concerns too. A time before the last one adds nothing; 0 each time is no clock.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent), [`InGroup`](CounterError::InGroup),
    /// [`AlreadyStarted`](CounterError::AlreadyStarted), [`NoFreeCounter`](CounterError::NoFreeCounter),
    /// [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse); [`Access`](CounterError::Access) if a register
    /// faulted and everything is as it was; [`Faulted`](CounterError::Faulted) if a counter could not even be stopped
    /// again.
    pub fn start_event(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        self.begin_time(event, now)?;
        self.give_counters(event, now).map_err(|unplaced| unplaced.reason)
    }

    /// Starts an opened event on a free counter that can count it. No other event moves or gives way, and one that
    /// rotates does not wait. The code that [`start_event`](Self::start_event) needs for that is not linked either.
    ///
    /// # Errors
    /// Those of [`start_event`](Self::start_event). After [`NoFreeCounter`](CounterError::NoFreeCounter) it stays
    /// stopped. [`NoCounterForEvent`](CounterError::NoCounterForEvent): it has an [extra
    /// register](Event::with_extra), which only `start_event` serves.
    pub fn start_event_if_free(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        let entry = self.begin_time(event, now)?;
        if entry.has_extra() {
            return Err(CounterError::NoCounterForEvent);
        }
        if !entry.is_countable() {
            self.change_state(event, EventState::Uncountable);
            return Ok(());
        }
        let room = self.free_counter(entry.counters());
        room.and_then(|counter| self.run(counter, event))?;
        self.change_state(event, EventState::Counting);
        Ok(())
    }

    /// Returns an opened event that is not started, and counts its times from `now` on.
    fn begin_time(&self, event: EventId, now: u64) -> Result<&EventEntry, CounterError> {
        let entry = self.alone(event)?;
        if self.is_started(event) {
            return Err(CounterError::AlreadyStarted(event));
        }
        entry.begin_time(now);
        Ok(entry)
    }

    /// Returns an opened event that is in no group.
    fn alone(&self, event: EventId) -> Result<&EventEntry, CounterError> {
        let entry = self.entry(event)?;
        entry.group().map_or(Ok(entry), |group| Err(CounterError::InGroup(group)))
    }

    /// Starts an opened event and its group: where every counter is in use, on those of events that rotate. If it
    /// rotates itself, it waits for its turn instead.
    pub(crate) fn give_counters(&self, event: EventId, now: u64) -> Result<(), Unplaced> {
        let unplaced = |reason| Unplaced { event, reason };
        let entry = self.entry(event).map_err(unplaced)?;
        let (rotates, refused) = (entry.rotates(), entry.state() == EventState::Refused);
        if !self.is_countable(event) {
            self.change_group(event, EventState::Uncountable);
            return Ok(());
        }
        // One of them may have to give way.
        self.table().opened().for_each(|(event, entry)| self.add_time(event, entry, now));
        let outcome = self.assign(event, (!rotates).then_some(0));
        let waits = rotates && outcome.is_err_and(|unplaced| unplaced.reason.is_no_room());
        if outcome.is_err() {
            let state = match (waits, refused) {
                (true, _) => EventState::Waiting,
                (false, true) => EventState::Refused,
                (false, false) => EventState::Stopped,
            };
            self.change_group(event, state);
        }
        if waits { Ok(()) } else { outcome }
    }

    /// Returns whether this processor can count an event and its group.
    pub(crate) fn is_countable(&self, event: EventId) -> bool {
        let mut entries =
            self.table().with_group(event).filter_map(|event| self.table().entry(event));
        entries.all(EventEntry::is_countable)
    }

    /// Sets the state of an event and its group, of which none is on a counter.
    pub(crate) fn change_group(&self, event: EventId, state: EventState) {
        let off_counters =
            self.table().with_group(event).filter(|event| self.counter_of(*event).is_none());
        off_counters.for_each(|event| self.change_state(event, state));
    }

    /// Stops an opened event. An overflow that is pending is not reported; its total is complete.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent), [`InGroup`](CounterError::InGroup),
    /// [`NotStarted`](CounterError::NotStarted); [`Faulted`](CounterError::Faulted) if the counter's registers do not
    /// answer: its count since the last reading is lost.
    pub fn stop_event(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        let entry = self.alone(event)?;
        if !self.is_started(event) {
            return Err(CounterError::NotStarted(event));
        }
        self.take_off(event, entry, now)
    }

    /// Returns whether an opened event is started: on a counter, waiting for its turn, or of another type of core.
    pub fn is_started(&self, event: EventId) -> bool {
        match self.entry(event).map(EventEntry::state) {
            Ok(EventState::Counting) => self.find(event).is_some(),
            Ok(EventState::Waiting | EventState::Uncountable) => true,
            Ok(EventState::Stopped | EventState::Closed | EventState::Refused) | Err(_) => false,
        }
    }

    /// Returns the counter that an opened event, or the event of a row, is on at present.
    pub fn counter_of(&self, event: EventId) -> Option<CounterId> {
        self.find(event).map(|(counter, _)| counter)
    }

    /// Reads an opened event's count up to now: its counter once, by RDPMC, if it is on one.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent); [`NoTotal`](CounterError::NoTotal): it was opened without a
    /// [total](Event::with_total). [`CounterLost`](CounterError::CounterLost): its counter faulted.
    /// [`RegistersLost`](CounterError::RegistersLost), [`Access`](CounterError::Access).
    pub fn read_event(&self, event: EventId, now: u64) -> Result<EventCount, CounterError> {
        let entry = self.entry(event)?;
        if !entry.wants_total() {
            return Err(CounterError::NoTotal(event));
        }
        let on = self.counter_of(event);
        entry.add_time(now, on.is_some());
        match on {
            Some(counter) => {
                let (value, _) = self.read_total(counter, event, entry)?;
                Ok(EventCount { value, ..entry.count() })
            }
            None if entry.state() == EventState::Counting => Err(CounterError::CounterLost(event)),
            None => Ok(entry.count()),
        }
    }

    /// Checks that an event's counter has not faulted.
    pub(crate) fn check_counter(
        &self,
        event: EventId,
        entry: &EventEntry,
    ) -> Result<(), CounterError> {
        let lost = entry.state() == EventState::Counting && self.counter_of(event).is_none();
        if lost { Err(CounterError::CounterLost(event)) } else { Ok(()) }
    }

    /// Adds the time up to `now` to an event's times.
    pub(crate) fn add_time(&self, event: EventId, entry: &EventEntry, now: u64) {
        entry.add_time(now, self.counter_of(event).is_some());
    }

    /// Reads the total of an event that is on a counter, and the counter's value then.
    pub(crate) fn read_total(
        &self,
        counter: CounterId,
        event: EventId,
        entry: &EventEntry,
    ) -> Result<(u64, u64), CounterError> {
        let registers = self.registers(counter);
        // An interrupt in between adds to the total, and may load the counter again.
        loop {
            let (mut booked, counted_to) = entry.booked();
            let value = registers.read(&self.msr).map_err(CounterError::Access)?;
            let again = self.wrapped_again(counter, entry, value).map_err(CounterError::Access)?;
            if entry.booked() != (booked, counted_to) {
                continue;
            }
            if registers.has_overflowed(value) {
                self.check_registers(&registers, event)?;
            }
            if again {
                booked = booked.wrapping_add(registers.mask()).wrapping_add(1);
            }
            let since = value.wrapping_sub(counted_to) & registers.mask();
            return Ok((booked.wrapping_add(since), value));
        }
    }

    /// Returns whether a counter that has wrapped since it was loaded, and was read as `value`, has wrapped once more
    /// without an interrupt so far. Reads the status where the value does not decide.
    pub(crate) fn wrapped_again(
        &self,
        counter: CounterId,
        entry: &EventEntry,
        value: u64,
    ) -> Result<bool, MsrFault> {
        let near = entry.counts_on() && self.registers(counter).has_overflowed(value);
        match self.unit().global() {
            Some(global) if near => {
                Ok(self.rdmsr_retrying(global.status)? & counter.only().bits() != 0)
            }
            _ => Ok(false),
        }
    }

    /// Declares the processor's virtualization on or off (`EFER.SVME`). The bits that confine an event to guests, or
    /// to the host, may be set only while it is on. Call this after switching it on, and before switching it off.
    ///
    /// # Errors
    /// [`Faulted`](CounterError::Faulted): a counter's control did not answer; its event does not run.
    pub fn set_virtualization(&mut self, on: bool) -> Result<(), CounterError> {
        if self.table().virtualization() == on || !self.is_open() {
            return Ok(());
        }
        self.table().set_virtualization(on);
        let mut outcome = Ok(());
        for (counter, slot) in self.slots() {
            let SlotState::Running { event, .. } = slot.load() else { continue };
            let guest = self.table().entry(event).map(EventEntry::guest_mode);
            let Some(GuestMode::GuestOnly | GuestMode::HostOnly) = guest else { continue };
            let registers = self.registers(counter);
            let bits = self.running_bits(&registers, event).unwrap_or(0);
            if let Err(fault) = self.set_control(&registers, bits) {
                self.memory.mark_faulted(Some(event), self.table());
                outcome = outcome.and(Err(CounterError::Faulted(fault)));
            }
        }
        outcome
    }

    /// Returns the event select of an opened event at present.
    pub(crate) fn opened_select(&self, event: EventId) -> Option<EventSelect> {
        let entry = self.table().entry(event)?;
        let [guest, host] = self.unit().guest_bits();
        let bits = entry.select().select_bits();
        let bits = match entry.guest_mode() {
            _ if self.table().virtualization() => bits,
            GuestMode::Everywhere => bits,
            GuestMode::HostOnly => bits & !(guest | host),
            GuestMode::GuestOnly => 0,
        };
        Some(EventSelect::from_bits(bits))
    }

    pub(crate) fn change_state(&self, event: EventId, state: EventState) {
        if let Some(entry) = self.table().entry(event) {
            entry.set_state(state);
            entry.set_turn(self.table().next_turn());
        }
    }
}
