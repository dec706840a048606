//! The assignment of events to counters: carries out a plan.

use crate::counters::entry::{EventEntry, EventState};
use crate::counters::plan::{Placed, Plan};
use crate::counters::processor::marked_faulted;
use crate::counters::slot::SlotState;
use crate::{
    CounterError, CounterId, CounterSet, Counters, EventId, EventSource, MAX_GENERAL, MsrBackend,
    Platform,
};

/// Remainder of an event's period at the time its counter was taken away.
#[derive(Clone, Copy)]
pub(crate) struct Lifted {
    event: EventId,
    /// The period that the counter was loaded for.
    period: u64,
    /// Its remainder; 1 also stands for a pending overflow.
    rest: u64,
    /// An overflow was pending that ended a period, and was not reported.
    pub(crate) overflowed: bool,
}

/// The rows' events that have no counter while they move. (An opened event's remainder is in its entry.)
struct LiftedRows([Option<Lifted>; MAX_GENERAL]);

impl LiftedRows {
    fn put(&mut self, lifted: Lifted) {
        let Self(rows) = self;
        if let Some(place) = rows.iter_mut().find(|place| place.is_none()) {
            *place = Some(lifted);
        }
    }

    fn take(&mut self, event: EventId) -> Option<Lifted> {
        let Self(rows) = self;
        let is_it = |place: &&mut Option<Lifted>| place.is_some_and(|of| of.event == event);
        rows.iter_mut().find(is_it)?.take()
    }
}

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    /// Returns a free counter of `capable`. A fixed counter is preferred: fewer events can be on it.
    pub(crate) fn free_counter(&self, capable: CounterSet) -> Result<CounterId, CounterError> {
        self.check_unmuted()?;
        self.leave_switch()?;
        let own = self.own() & capable;
        let mut preferred =
            (own & CounterSet::FIXED).iter().chain((own & CounterSet::GENERAL).iter());
        let is_free = |counter: &CounterId| {
            self.slot(*counter).is_some_and(|slot| slot.load() == SlotState::Free)
        };
        preferred.find(is_free).ok_or(CounterError::NoFreeCounter)
    }

    /// Gives every event its planned counter. An event that is in the plan for the first time is started; one that
    /// loses its counter waits for its turn, and its pending overflow is reported when the event next happens on a
    /// counter. If groups are among them, their counters start and stop with one write.
    ///
    /// On failure every event is back on its counter, unless that one faulted; then the other events of its group have
    /// none, either.
    pub(crate) fn carry_out(&self, plan: &Plan) -> Result<(), CounterError> {
        let before = self.present();
        let (leaving, entering) = (before.without(plan), plan.without(&before));
        let is_grouped = |event| self.table().entry(event).is_some_and(EventEntry::is_grouped);
        let together = if leaving.events().chain(entering.events()).any(is_grouped) {
            leaving.counters() | entering.counters()
        } else {
            CounterSet::NONE
        };
        let mut rows = LiftedRows([None; MAX_GENERAL]);
        let halted = self.halt(together);
        let mut outcome = halted.and_then(|()| self.change(&leaving, &entering, &mut rows, false));
        if let Err(error) = outcome {
            let now = self.present();
            // An interrupt, or a fault, may have marked counters meanwhile.
            let (leaving, entering) = (now.without(&before), before.without(&now));
            let entering = entering.on(self.usable());
            let restored = self.change(&leaving, &entering, &mut rows, true);
            let stopped = self.stop_parts(&before).and(self.stop_parts(plan));
            outcome = Err(match restored.and(stopped) {
                Ok(()) => error,
                Err(CounterError::Access(fault)) => CounterError::Faulted(fault),
                Err(error) => error,
            });
        }
        let going_on = self.go_on(together);
        let done = outcome.is_ok();
        for event in before.events().chain(plan.events()) {
            let rotates = self.table().entry(event).is_some_and(EventEntry::rotates);
            match (self.counter_of(event), before.find(event)) {
                (Some(_), None) => self.change_state(event, EventState::Counting),
                (None, Some(_)) if done || rotates => self.change_state(event, EventState::Waiting),
                // Its count is lost: it is not read as that of a stopped event.
                (None, Some(counter)) if !self.usable().contains(counter) => {}
                (None, Some(_)) => self.change_state(event, EventState::Stopped),
                _ => {}
            }
        }
        outcome.and(going_on)
    }

    /// Takes their counters from the events of each group that is on counters in part.
    fn stop_parts(&self, plan: &Plan) -> Result<(), CounterError> {
        let mut outcome = Ok(());
        for event in plan.events() {
            let mut group = self.group_of(event);
            if self.counter_of(event).is_none() || group.all(|of| self.counter_of(of).is_some()) {
                continue;
            }
            if let Some(counter) = self.counter_of(event) {
                outcome = outcome.and(self.lift(counter, event).map(|_| ()));
            }
        }
        outcome
    }

    /// Stops an opened event, and takes it from its counter if it is on one.
    pub(crate) fn take_off(
        &self,
        event: EventId,
        entry: &EventEntry,
        now: u64,
    ) -> Result<(), CounterError> {
        let on = self.counter_of(event);
        entry.add_time(now, on.is_some());
        let lifted = on.map_or(Ok(()), |counter| self.lift(counter, event).map(|_| ()));
        self.change_state(event, EventState::Stopped);
        lifted
    }

    /// Stops these counters by the global control register, if there is one.
    pub(crate) fn halt(&self, counters: CounterSet) -> Result<(), CounterError> {
        match self.unit().global().filter(|_| !counters.is_empty()) {
            Some(global) => self.change_global(global, (counters.bits(), 0)),
            None => Ok(()),
        }
    }

    /// Lets these counters go on. If that fails, they are presumed running.
    pub(crate) fn go_on(&self, counters: CounterSet) -> Result<(), CounterError> {
        let Some(global) = self.unit().global().filter(|_| !counters.is_empty()) else {
            return Ok(());
        };
        match self.change_global(global, (0, counters.bits())) {
            Err(CounterError::Access(fault)) => {
                for event in self.present().on(counters).events() {
                    self.memory.mark_faulted(Some(event), self.table());
                }
                Err(CounterError::Faulted(fault))
            }
            outcome => outcome,
        }
    }

    /// Takes events from their counters, then gives others theirs. After a failure it goes on with the rest, or not.
    fn change(
        &self,
        leaving: &Plan,
        entering: &Plan,
        rows: &mut LiftedRows,
        goes_on: bool,
    ) -> Result<(), CounterError> {
        let mut outcome = Ok(());
        for (counter, Placed { event, .. }) in leaving.iter() {
            let lifted = self.lift(counter, event).map(|lifted| match self.table().entry(event) {
                Some(entry) if lifted.overflowed => entry.set_resume(1),
                Some(_) => {}
                None => rows.put(lifted),
            });
            outcome = outcome.and(lifted);
            if outcome.is_err() && !goes_on {
                return outcome;
            }
        }
        for (counter, placed) in entering.iter() {
            outcome = outcome.and(self.enter(counter, placed, rows));
            if outcome.is_err() && !goes_on {
                return outcome;
            }
        }
        outcome
    }

    /// Lets an event run on a free counter.
    fn enter(
        &self,
        counter: CounterId,
        Placed { event, encoding }: Placed,
        rows: &mut LiftedRows,
    ) -> Result<(), CounterError> {
        let Some(entry) = self.table().entry(event) else {
            return self.run_row(counter, event, rows.take(event));
        };
        entry.set_encoding(encoding);
        let extra = entry.extra().and_then(|extra| Some((extra.register(encoding)?, extra.value)));
        if let Some((register, value)) = extra {
            self.table().extra.set(register, value, &self.msr)?;
        }
        self.run(counter, event)
    }

    /// Lets a row's event run on a free counter, for the remainder of its period if it was on another counter.
    fn run_row(
        &self,
        counter: CounterId,
        event: EventId,
        lifted: Option<Lifted>,
    ) -> Result<(), CounterError> {
        let Some(Lifted { period, rest, .. }) = lifted else { return self.run(counter, event) };
        let (slot, registers) = self.place(counter).ok_or(CounterError::NoFreeCounter)?;
        self.run_from(slot, &registers, event, registers.preload(rest), period)
    }

    /// Stops an event's counter, frees it, and adds its count to the total. An opened event keeps the remainder of
    /// its period; where the period was over, a new one begins.
    pub(crate) fn lift(&self, counter: CounterId, event: EventId) -> Result<Lifted, CounterError> {
        let (slot, registers) = self.place(counter).ok_or(CounterError::NotStarted(event))?;
        let entry = self.table().entry(event);
        let mut booked = None;
        let mut stop_and_read = || {
            self.set_control(&registers, 0)?;
            booked = entry.map(EventEntry::booked);
            let again = match entry.filter(|entry| entry.counts_on()) {
                Some(entry) => self.wrapped_again(counter, entry, self.read(&registers)?)?,
                None => false,
            };
            // An interrupt of the counter that comes from here on finds nothing.
            self.memory.expect_late(1);
            let SlotState::Running { period, .. } = slot.replace(SlotState::Free) else {
                return Err(marked_faulted(registers.value_register()));
            };
            Ok((period, again, self.read(&registers)?))
        };
        let (period, again, value) = stop_and_read().map_err(|fault| {
            slot.store(SlotState::Faulted);
            CounterError::Faulted(fault)
        })?;
        let mut overflowed = registers.has_overflowed(value);
        if let Some(entry) = entry {
            if entry.counts_on() {
                // Unless an interrupt has added it since.
                overflowed = again && booked == Some(entry.booked());
                if overflowed {
                    entry.book_wrap(registers.mask());
                }
            }
            entry.book(value, registers.mask());
        }
        if !overflowed {
            self.memory.expect_one_fewer();
        } else if let Some(global) = self.unit().global() {
            let bit = counter.only().bits();
            let acknowledged = self.clear_status(global, bit);
            acknowledged.map_err(|fault| {
                // This overflow would be reported for the counter's next event.
                slot.store(SlotState::Faulted);
                CounterError::Faulted(fault)
            })?;
        }
        let rest = if overflowed { 1 } else { value.wrapping_neg() & registers.mask() };
        let ended = match entry {
            _ if !overflowed => false,
            Some(entry) => entry.end_piece(),
            None => true,
        };
        if let Some(entry) = entry.filter(|_| !overflowed) {
            entry.set_resume(rest);
        }
        Ok(Lifted { event, period, rest, overflowed: ended })
    }
}
