//! Rotation: events that take turns where there are too few counters.

use crate::counters::control::assignment::Change;
use crate::counters::control::assignment::plan::PlacementError;
use crate::counters::control::assignment::planner::Planner;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::{CounterError, EventsError, bit};
use crate::counters::events::count::{EventOverflow, Period};
use crate::counters::events::thread::ThreadEvent;
use crate::counters::names::{CounterId, EventId};
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::rate::Tick;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Returns the places of an event and its group among a thread's events, one bit each.
    pub(crate) fn places_of(&self, thread: &[ThreadEvent], event: EventId) -> u64 {
        let its = |place: &ThreadEvent| match *place {
            ThreadEvent::Opened(of) => self.table().with_group(event).any(|other| other == of),
            _ => false,
        };
        let places = thread.iter().enumerate().filter(|(_, place)| its(place));
        places.fold(0, |places, (number, _)| places | bit(number))
    }

    /// Rotates events: waiting events take counters from [rotating](crate::Event::rotating) events that had a greater
    /// share of the counters' time. A kernel calls this at its timer tick, while the running thread's events are on the
    /// processor. The events of a group get their counters together.
    ///
    /// An event's share is the fraction of its `enabled` time in which the event was on a counter. The share covers
    /// about the last 16 rotations. A waiting event takes the counter of the rotating event with the greatest share, if
    /// the waiting event's own share is smaller. Waiting events with the smallest shares take counters first. In the
    /// long run, rotating events that can use the same counters get equal shares. This holds for the processor's own
    /// events and for threads' events, with time slices of any length. Events that do not rotate keep their counters.
    ///
    /// A caller without a clock always passes 0 as `now`. Each rotation then counts as one unit of time for the events
    /// on this processor.
    ///
    /// If no event waits, no register is accessed.
    ///
    /// If the counter of a rotating event [faults](CounterError::StateUnknown), the event waits until a rotation gives
    /// it another counter. The count since the counter's last interrupt is lost. If the counter of a non-rotating event
    /// faults, the event stops, and a task has to enable the event again.
    ///
    /// If an event loses its counter while an overflow is pending, the overflow is reported later: at the event's first
    /// occurrence on its next counter.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// The timer tick: each tenth of a second, other events get the counters.
    /// fn tick<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     milliseconds: u64,
    /// ) -> Result<(), CounterError> {
    ///     if milliseconds % 100 == 0 { counters.rotate(milliseconds) } else { Ok(()) }
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns the first failure of a register access. The rotation has been completed for all events that do not need
    /// the failed register.
    pub fn rotate(&mut self, now: u64) -> Result<(), CounterError> {
        if !self.has_table() {
            return Ok(());
        }
        for (event, entry) in self.table().opened() {
            self.add_time(event, entry, now);
            if entry.rotates() && self.check_counter(event, entry).is_err() {
                self.change_state(event, EventState::Waiting);
            }
            let runs = self.counter_of(event).is_some() || self.counts_in_software(event);
            entry.forget(now != 0, runs);
        }
        let mut outcome = Ok(());
        self.serve(None, &mut outcome);
        self.settle_software();
        outcome.map_err(|error| error.reason)
    }

    /// Does what the kernel's timer tick does for the opened events: lets throttled events report again, adapts the
    /// periods of events with a [frequency](crate::Event::at_frequency), and [rotates](Self::rotate). The running
    /// thread's events are on the processor. The handler calls
    /// [`account_sample`](crate::memory::EventTable::account_sample).
    ///
    /// An event begins its next period at once if it was throttled, or if its frequency makes its period shorter than
    /// an eighth. If the old period has ended by then, its overflow goes to `overflowed`: see
    /// [`apply_period`](Self::apply_period).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::interrupt::EventOverflow;
    /// # use pmu_core::thread::Tick;
    /// fn timer_tick<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     now: u64,
    ///     sample: impl FnMut(EventOverflow),
    /// ) -> Result<(), CounterError> {
    ///     counters.tick(Tick::new(250, 100_000), now, sample)
    /// }
    /// ```
    ///
    /// # Context
    /// Task, or the timer's interrupt. An interrupt of the counters may come at any time.
    ///
    /// # Errors
    /// Returns the first failure of a register access. For all events that do not need the failed register, the call
    /// has done everything. An event that failed to begin its period leaves its counter with its group. If it rotates,
    /// it waits for a counter; otherwise its [status](Self::event_status) is an error, and a task enables it again. An
    /// event that stays throttled is tried again at the next tick.
    pub fn tick(
        &mut self,
        tick: Tick,
        now: u64,
        mut overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        if !self.has_table() {
            return Ok(());
        }
        let length = self.table().begin_tick(tick);
        let mut outcome = Ok(());
        for (event, entry) in self.table().opened() {
            let (mut is_far, before) = (false, entry.period.every());
            if entry.rate.has_frequency()
                && let Ok(count) = self.read(event, now)
            {
                let (period, silent) = (before & !Period::SILENT, before & Period::SILENT);
                let period = entry.rate.ticked(period, count.value, length);
                let period = self.table().at_least_min_of(entry, period);
                // An interrupt's handler may have set a period meanwhile: that one stays.
                entry.period.exchange(before, period | silent);
                // The present period may be far from its end.
                is_far = silent == 0 && entry.period.ended() / 8 > period;
            }
            if entry.rate.is_throttled() || is_far {
                let begun = self.begin_period(event, None, now, &mut overflowed);
                if begun.is_err() && entry.state() == EventState::Stopped {
                    // As an event whose counter faults.
                    let rotates = entry.rotates();
                    let state = if rotates { EventState::Waiting } else { EventState::Refused };
                    self.change_group(event, state);
                }
                outcome = outcome.and(begun);
            }
        }
        outcome.and(self.rotate(now))
    }

    /// Gives waiting events counters: first to events that do not rotate, which take counters from any that do; then
    /// to rotating events by their shares, and of equal shares first to the one that waits longest. Rotating events
    /// take counters of events with greater shares. At a rotation, which is of no thread, all of them do; at a switch
    /// only the `thread`'s do, and others get free counters.
    pub(crate) fn serve(
        &self,
        thread: Option<&[ThreadEvent]>,
        outcome: &mut Result<(), EventsError>,
    ) {
        let begun = self.table().next_turn();
        // The other logical processor's counters are claimed for one event after the other.
        if self.source.core_thread().is_none() {
            match self.serve_together(thread, begun) {
                Ok(all) if all => return,
                Ok(_) => {}
                Err(fault) => EventsError::add(outcome, self.places_lost(thread), Err(fault)),
            }
        }
        self.serve_each(thread, begun, outcome);
    }

    /// Gives waiting events counters one by one, so that an event is refused for what its own registers, or counters
    /// that are taken, are.
    // Nothing of it is on the stack while a plan for all is made.
    #[inline(never)] // 64 bytes of stack (rotate).
    fn serve_each(
        &self,
        thread: Option<&[ThreadEvent]>,
        begun: u32,
        outcome: &mut Result<(), EventsError>,
    ) {
        let mut line = Serving::new(begun);
        while let Some(next) = self.next_to_place(thread, &mut line) {
            let placed = self.assign(next.event, next.takes, Change::Start);
            self.note_unplaced(&next, placed.map_err(|unplaced| unplaced.reason), outcome);
        }
    }

    /// Returns the places of those of a thread's events whose counters faulted, one bit each.
    fn places_lost(&self, thread: Option<&[ThreadEvent]>) -> u64 {
        let is_lost = |place: &ThreadEvent| match *place {
            ThreadEvent::Opened(event) => {
                self.entry(event).is_ok_and(|entry| self.check_counter(event, entry).is_err())
            }
            _ => false,
        };
        let places = thread.unwrap_or_default().iter().enumerate();
        let lost = places.filter(|(_, place)| is_lost(place));
        lost.fold(0, |lost, (number, _)| lost | bit(number))
    }

    /// Plans for all waiting events, and applies the plan at once. Returns `false` if some are to be refused. After an
    /// error, all events are where they were, as far as registers answer.
    #[inline(never)] // 16 bytes of the glue.
    fn serve_together(
        &self,
        thread: Option<&[ThreadEvent]>,
        begun: u32,
    ) -> Result<bool, CounterError> {
        // One plan for all that wait: each counter is then stopped and started at most once.
        let mut planner = self.planner();
        let (mut line, mut changes, mut all) = (Serving::new(begun), false, true);
        while let Some(next) = self.next_to_place(thread, &mut line) {
            let placed = self.add_to_plan(&mut planner, &next, &mut changes);
            // Only when the plan was applied is it known which of them are refused.
            all &= placed.is_ok() || placed.is_err_and(|error| next.tolerates(error));
            if changes {
                let free = planner.counters.without(planner.plan.counters());
                line.any_free = Some(!free.is_empty());
            }
        }
        if changes {
            self.apply(&mut planner)?;
        }
        Ok(all)
    }

    /// Adds an event and its group to the plan for all that wait. After an error the plan is as it was.
    // Inlined into its caller, for the sake of the stack.
    #[inline(always)]
    fn add_to_plan(
        &self,
        planner: &mut Planner<'_>,
        next: &Waiter,
        changes: &mut bool,
    ) -> Result<(), CounterError> {
        if self.start_in_software(next.event)? {
            return Ok(());
        }
        self.get_ready(next.event).map_err(|unplaced| unplaced.reason)?;
        if !*changes {
            self.present(&mut planner.plan);
        }
        let planned = planner.plan_among(next.event, next.takes);
        planned.map_err(|no_room| PlacementError::from(no_room).reason)?;
        *changes = true;
        Ok(())
    }

    /// Notes that a waiting event has no counter.
    fn note_unplaced(
        &self,
        next: &Waiter,
        placed: Result<(), CounterError>,
        outcome: &mut Result<(), EventsError>,
    ) {
        match placed {
            Ok(()) => {}
            Err(error) if next.tolerates(error) => {}
            Err(error) => {
                // Others wait on, behind the rest.
                let state = if next.its == 0 { EventState::Waiting } else { EventState::Refused };
                self.change_group(next.event, state);
                EventsError::add(outcome, next.its, Err(error));
            }
        }
    }

    /// Returns the next waiting event that this processor can count.
    fn next_to_place(
        &self,
        thread: Option<&[ThreadEvent]>,
        serving: &mut Serving,
    ) -> Option<Waiter> {
        loop {
            let (line, event) = self.next_in_line(thread, serving)?;
            serving.last = Some(line);
            // It waits for no counter here. On another processor, it may be countable.
            if !self.is_countable(event) {
                self.change_group(event, EventState::Uncountable);
                continue;
            }
            let its = thread.map_or(0, |thread| self.places_of(thread, event));
            let least = if line.rotates { line.share.saturating_add(1) } else { 0 };
            let takes = (thread.is_none() || its != 0).then_some(least);
            return Some(Waiter { event, its, takes, rotates: line.rotates });
        }
    }

    /// Returns the next waiting event behind the `last` one. An event that lost its counter since this `begun` waits
    /// for another time.
    // Nothing of it is to be on the stack while a plan is made.
    fn next_in_line(
        &self,
        thread: Option<&[ThreadEvent]>,
        &Serving { begun, last, any_free }: &Serving,
    ) -> Option<(Line, EventId)> {
        let is_free = |(_, slot): (CounterId, &CounterSlot)| slot.load() == SlotState::Free;
        let any_free = any_free.unwrap_or_else(|| self.slots().any(is_free));
        let may_take = |event: EventId| {
            thread.is_none_or(|thread| thread.contains(&ThreadEvent::Opened(event)))
        };
        let mut next: Option<(Line, EventId)> = None;
        for (event, entry) in self.table().opened() {
            if entry.state() != EventState::Waiting {
                continue;
            }
            let Some(turn) = self.table().rank_before(begun, entry.turn()) else { continue };
            let line = Line { rotates: entry.rotates(), share: entry.share(), turn };
            if Some(line) > last
                && next.is_none_or(|(least, _)| line < least)
                && (any_free || may_take(event))
                && self.is_first(event)
            {
                next = Some((line, event));
            }
        }
        next
    }

    /// Returns whether an event is in no group, or is the first waiting event of its group.
    pub(crate) fn is_first(&self, event: EventId) -> bool {
        let waits = |(_, entry): &(EventId, &EventEntry)| entry.state() == EventState::Waiting;
        self.members(event).find(waits).is_none_or(|(first, _)| first == event)
    }

    /// Checks that all events of an event's group, if it has one, are on this processor.
    pub(crate) fn check_whole(&self, event: EventId) -> Result<(), PlacementError> {
        let grouped = self.table().entry(event).filter(|entry| entry.is_grouped());
        let whole = grouped.map_or(Ok(event), |_| self.first_of(event));
        whole.map(|_| ()).map_err(|reason| PlacementError { event, reason })
    }
}

/// The waiting events, in the order of their turns.
struct Serving {
    /// An event that lost its counter since waits for another time.
    begun: u32,
    last: Option<Line>,
    /// A counter is free in the plan; `None`: the counters themselves tell.
    any_free: Option<bool>,
}

impl Serving {
    const fn new(begun: u32) -> Self {
        Self { begun, last: None, any_free: None }
    }
}

impl Waiter {
    /// Returns whether the event simply waits on after this error.
    fn tolerates(&self, error: CounterError) -> bool {
        error.is_no_room() && (self.rotates || self.its == 0)
    }
}

/// A waiting event, which is to be placed.
struct Waiter {
    event: EventId,
    /// The places of the event and its group among those of the thread that is switched in, one bit each.
    its: u64,
    /// The least share of the events that lose their counters for it; `None`: it takes free counters.
    takes: Option<u32>,
    rotates: bool,
}

/// Place of a waiting event among all that wait; the least comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    rotates: bool,
    share: u32,
    /// Rank of the event's last change of turn, which was before the pass began.
    turn: u32,
}
