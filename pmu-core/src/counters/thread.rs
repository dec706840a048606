//! Events of a thread, which the context switch moves between processors.

use crate::counters::entry::EventState;
use crate::{
    CounterError, CounterSet, CounterUnit, Counters, EventEntry, EventId, EventOverflow,
    EventSource, GroupId, MsrBackend, Platform, StoppedEvent,
};

/// One event of a thread, on a processor or switched out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ThreadEvent {
    /// None.
    #[default]
    Unused,
    /// Opened on the processor on which the thread runs.
    Opened(EventId),
    /// The thread is not on a processor.
    Switched(StoppedEvent),
}

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    /// Takes a thread's events from this processor: stops and closes those that are opened here, and keeps their
    /// counts and the remainders of their periods. Everything else on the processor continues. An overflow that
    /// became pending meanwhile is reported once to `overflowed`, as its interrupt would have reported it; the
    /// interrupt, if it still comes, finds nothing.
    ///
    /// Of a [group](Self::open_group) all events go: those that are not in `events` are stopped, and wait here for the
    /// others, or for [`close_group`](Self::close_group).
    ///
    /// One write and one RDPMC per event on a counter; one more write if an overflow was pending, and two if groups
    /// are among them, which stop together.
    ///
    /// # Errors
    /// The first failure; every other event was taken. Of an event whose counter does not answer
    /// ([`Faulted`](CounterError::Faulted)), the count since the last reading is lost.
    pub fn switch_out(
        &mut self,
        events: &mut [ThreadEvent],
        now: u64,
        mut overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        let together = self.grouped_counters(events);
        let mut outcome = self.halt(together);
        for place in events.iter_mut() {
            let ThreadEvent::Opened(event) = *place else { continue };
            let entry = match self.entry(event) {
                Ok(entry) => entry,
                Err(error) => {
                    *place = ThreadEvent::Unused;
                    outcome = outcome.and(Err(error));
                    continue;
                }
            };
            entry.add_time(now);
            if let Some((counter, _)) = self.find(event) {
                match self.lift(counter, event) {
                    Ok(lifted) if lifted.overflowed => {
                        let period = entry.ended_period();
                        overflowed(EventOverflow { event, period, counter, tag: entry.tag() });
                    }
                    Ok(_) => {}
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
            *place = ThreadEvent::Switched(entry.extract());
            entry.set_state(EventState::Closed);
        }
        for place in events {
            if let ThreadEvent::Switched(event) = place
                && let Some(group) = event.group()
            {
                outcome = outcome.and(self.stop_rest(group, now));
            }
        }
        outcome.and(self.go_on(together))
    }

    /// Stops what is left of a group here.
    fn stop_rest(&self, group: GroupId, now: u64) -> Result<(), CounterError> {
        let mut outcome = Ok(());
        for (event, entry) in self.members(group) {
            outcome = outcome.and(self.take_off(event, entry, now));
        }
        outcome
    }

    /// Returns the counters of these events, if groups are among them.
    fn grouped_counters(&self, events: &[ThreadEvent]) -> CounterSet {
        let opened = events.iter().filter_map(|event| match event {
            ThreadEvent::Opened(id) => Some(*id),
            _ => None,
        });
        let is_grouped = |id| self.entry(id).is_ok_and(EventEntry::is_grouped);
        if !opened.clone().any(is_grouped) {
            return CounterSet::NONE;
        }
        opened.filter_map(|id| self.counter_of(id)).collect()
    }

    /// Gives a thread's events to this processor, which `processor` describes; it may be another one than before.
    /// Opens them, and starts those that were started, as [`start_event`](Self::start_event) does: where no counter is
    /// free, other events move, and those that rotate give way to one that does not. Each continues where it was.
    /// Those that [rotate](crate::Event::rotating) come last, and first among them the one that had a counter for the
    /// shortest time.
    ///
    /// A group starts if all of its events are given, and together.
    ///
    /// Two writes per event, and two per group. An interrupt may come before the identities are in `events`: it
    /// identifies the event by its [tag](crate::Event::tagged).
    ///
    /// # Errors
    /// The first failure; every other event was given. An event of another kind of core
    /// ([`IllegalBits`](CounterError::IllegalBits), [`Unsupported`](CounterError::Unsupported),
    /// [`NoCounterForEvent`](CounterError::NoCounterForEvent)), and one for which the table has no room, stays where
    /// it is; one that finds no counter is opened here, and stopped, unless it [rotates](crate::Event::rotating).
    /// [`OtherProcessor`](CounterError::OtherProcessor), before anything: `processor` describes another type of core.
    pub fn switch_in(
        &mut self,
        processor: &CounterUnit,
        events: &mut [ThreadEvent],
        now: u64,
    ) -> Result<(), CounterError> {
        self.check_processor(processor)?;
        let mut outcome = Ok(());
        for place in events.iter_mut() {
            let ThreadEvent::Switched(event) = place else { continue };
            match self.insert(processor, event, now) {
                Ok(id) => *place = ThreadEvent::Opened(id),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        // Waiting events by the time that they had a counter.
        let order = |(number, place): (usize, &ThreadEvent)| {
            let ThreadEvent::Opened(id) = *place else { return None };
            let entry = self.table().entry(id)?;
            let waits = entry.state() == EventState::Waiting;
            waits.then(|| ((entry.rotates(), entry.count().running, number), id))
        };
        let mut last = None;
        while let Some((key, id)) =
            events.iter().enumerate().filter_map(order).filter(|(key, _)| Some(*key) > last).min()
        {
            last = Some(key);
            let given = self.give_counters(id, now);
            outcome = outcome.and(given.map_err(|unplaced| unplaced.reason));
        }
        outcome
    }

    fn insert(
        &self,
        processor: &CounterUnit,
        event: &StoppedEvent,
        now: u64,
    ) -> Result<EventId, CounterError> {
        let event = &event.on(processor);
        let illegal = event.select().select_bits() & !processor.all_bits();
        if illegal != 0 {
            return Err(CounterError::IllegalBits(illegal));
        }
        if let Some(name) = event.name().filter(|name| processor.named(*name).is_none()) {
            return Err(CounterError::Unsupported(name));
        }
        if (event.counters() & self.own()).is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        let (id, entry) = self.free_entry()?;
        entry.insert(event);
        entry.add_time(now);
        if event.is_started() {
            entry.set_state(EventState::Waiting);
        }
        Ok(id)
    }
}
