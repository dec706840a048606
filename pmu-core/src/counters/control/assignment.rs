//! Assignment of counters to events: planned before any register is accessed, then applied.
//!
//! Plans are made on the kernel's stack, at a context switch for instance. So a plan has two bytes per counter, and the
//! searches change the plan in place.

pub(crate) mod plan;
pub(crate) mod planner;

use crate::counters::control::assignment::plan::{Placement, PlacementError, Plan};
use crate::counters::control::assignment::planner::{Moving, Planner};
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::Counter;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::period::Waiting;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

/// Change that an assignment makes for an event and its group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// None of them is on a counter.
    Start,
    /// Some of them are on counters, and may move.
    Join,
    /// Those that are on counters leave them.
    Leave,
}

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Plans counters for an event and its group, all of them or none, and applies the plan. Other events move where
    /// that makes room. Rotating events whose share is at least `great` may lose their counters: the greatest share
    /// first, and of equal shares the event that has had its counter longest. With `None` no event loses its counter.
    #[inline(never)] // 34 bytes of events alone.
    pub(crate) fn assign(
        &self,
        event: EventId,
        great: Option<u32>,
        change: Change,
    ) -> Result<(), PlacementError> {
        let started = self.start_in_software(event);
        if started.map_err(|reason| PlacementError { event, reason })? {
            return Ok(());
        }
        self.get_ready(event)?;
        let mut planner = self.planner();
        self.present(&mut planner.plan);
        if change != Change::Start {
            self.table().with_group(event).for_each(|event| planner.plan.remove(event));
        }
        if change != Change::Leave {
            self.plan_beside(&mut planner, event, great)?;
        }
        self.apply(&mut planner).map_err(|reason| PlacementError { event, reason })
    }

    /// Gives every event its planned counter. An event that is new in the plan is started. An event that loses its
    /// counter waits for its turn; if its overflow was pending, the overflow is reported at the event's next
    /// occurrence on a counter. If groups are among the events, one write stops their counters, and one starts them.
    ///
    /// On failure every event is back on its counter, unless that counter faulted. Then the other events of its group
    /// have no counter, either.
    pub(crate) fn apply(&self, planner: &mut Planner<'_>) -> Result<(), CounterError> {
        let together = self.begin(planner);
        // The steps end: after the first failure they lead back, and a step of the way back that fails is not tried
        // again.
        while let Some(step) = self.next_step(planner) {
            match step {
                Step::Leave(counter) => self.leave(counter, planner),
                Step::Enter(counter, placed) => self.attach(counter, placed, planner),
            }
        }
        let applied = self.end(planner, together);
        self.settle_core();
        applied
    }

    /// Begins a change. If events of groups or of guests change counters, stops and returns all counters that change.
    /// Events that ask for a facility are stopped in the same way, unless a single event comes and none leaves.
    #[inline(never)] // 48 bytes of stack (Mailbox::drain of a start).
    fn begin(&self, planner: &mut Planner<'_>) -> CounterSet {
        self.present(&mut planner.before);
        (planner.leaving, planner.counters) = self.difference(&planner.before, &planner.plan);
        let changing = planner.before.besides(&planner.plan) | planner.counters;
        // Then it comes when the facilities are settled on it already.
        let comes_alone = planner.leaving.is_empty() && planner.counters.is_one();
        let is_gated = |placed: Placement| {
            let entry = self.table().entry(placed.event());
            let is_gated = |entry: &EventEntry| {
                let is_alone = S::Facility::DIVIDES
                    && !entry.is_of_guests()
                    && self.takes_one_counter(placed.event());
                !is_alone && entry.is_gated() || !comes_alone && Self::asks(entry)
            };
            entry.is_some_and(is_gated)
        };
        let gated = |plan: &Plan, counter| plan.at(counter).is_some_and(is_gated);
        let together = changing
            .iter()
            .any(|counter| gated(&planner.before, counter) || gated(&planner.plan, counter));
        let together = if together { changing } else { CounterSet::NONE };
        planner.outcome = self.pause(together);
        if S::Facility::RECORDS {
            planner.outcome = planner.outcome.and(self.settle_left_over(planner.counters));
        }
        together
    }

    /// Returns whether an event must not run before the facilities are settled on it: a sample would not be recorded,
    /// or lack its branches.
    fn asks(entry: &EventEntry) -> bool {
        S::Facility::OFFERS && (entry.is_precise() || !entry.branches().is_none())
    }

    /// Returns the next step of a change. After a failure, the steps lead back to the former assignment, as far as
    /// they succeed.
    #[inline(never)] // 16 bytes of the glue.
    fn next_step(&self, planner: &mut Planner<'_>) -> Option<Step> {
        if planner.failure.is_none()
            && let Err(error) = planner.outcome
        {
            (planner.failure, planner.outcome) = (Some(error), Ok(()));
            // An interrupt, or a fault, may have marked counters as faulted meanwhile.
            let mut now = Plan::EMPTY;
            self.present(&mut now);
            let (leaving, entering) = self.difference(&now, &planner.before);
            (planner.leaving, planner.counters) = (leaving, entering & self.not_faulted());
        }
        let next = self.next_to_enter(planner.counters);
        let in_the_way = || self.in_the_way(next?, planner);
        // Those that leave come first, so that their counters are free for those that enter.
        if let Some(counter) = planner.leaving.first().or_else(in_the_way) {
            planner.leaving = planner.leaving.without(counter.only());
            return Some(Step::Leave(counter));
        }
        let Some(counter) = next else {
            // If a group could not go back as a whole, the rest of it is stopped.
            let part = planner.failure.and_then(|_| self.part_of_group());
            return part.map(Step::Leave);
        };
        planner.counters = planner.counters.without(counter.only());
        planner.target().at(counter).map(|placed| Step::Enter(counter, placed))
    }

    /// Ends a change, and resumes the counters that were stopped for it.
    #[inline(never)] // 96 bytes of stack (Mailbox::drain of a start).
    fn end(&self, planner: &mut Planner<'_>, together: CounterSet) -> Result<(), CounterError> {
        if let Some(error) = planner.failure {
            // "Unchanged" would be wrong if the way back failed, too.
            planner.outcome = Err(planner.outcome.err().map_or(error, CounterError::faulted));
        }
        self.settle_states(planner);
        let settled = self.settle_facilities();
        // An interrupt that could not restart the counters stopped those, too, that were started after it.
        let resumed = self.unpause(together | self.running(self.own()));
        if S::Facility::OFFERS && settled.and(resumed).is_err() {
            // Other events faulted, too.
            planner.outcome = planner.outcome.map_err(CounterError::faulted);
        }
        planner.outcome.and(settled).and(resumed)
    }

    /// Sets the states of the events that got or lost a counter. An event without a counter that does not rotate waits
    /// if the plan was applied, and is stopped otherwise.
    fn settle_states(&self, planner: &Planner<'_>) {
        for counter in planner.before.counters().iter() {
            let Some(event) = planner.before.at(counter).map(Placement::event) else { continue };
            if self.running_on(counter) == Some(event) || self.counter_of(event).is_some() {
                continue;
            }
            let rotates = self.table().entry(event).is_some_and(EventEntry::rotates);
            if rotates || planner.outcome.is_ok() {
                self.change_state(event, EventState::Waiting);
            } else if !self.is_faulted(counter) {
                // If the counter faulted, the count is lost: it is not read as that of a stopped event.
                self.change_state(event, EventState::Stopped);
            }
        }
        for counter in planner.plan.besides(&planner.before).iter() {
            let Some(event) = planner.plan.at(counter).map(Placement::event) else { continue };
            if planner.before.find(event).is_none() && self.counter_of(event).is_some() {
                self.change_state(event, EventState::Counting);
            }
        }
    }

    /// Returns a counter of a group of which only some events have a counter.
    fn part_of_group(&self) -> Option<CounterId> {
        let is_off = |event| self.counter_of(event).is_none() && !self.takes_no_counter(event);
        let is_part = |event| self.table().with_group(event).any(is_off);
        self.own().iter().find(|counter| self.running_on(*counter).is_some_and(is_part))
    }

    /// Returns the counters that events leave, and those that events are attached to.
    #[inline(never)] // 96 bytes of the Hermit-like glue, at `opt-level` 3.
    fn difference(&self, from: &Plan, to: &Plan) -> (CounterSet, CounterSet) {
        // An event that moves is not among those that leave: it leaves right before it enters, and so misses the least.
        let moves = |counter| from.at(counter).is_some_and(|on| to.find(on.event()).is_some());
        (from.besides(to).retain(|counter| !moves(counter)), to.besides(from))
    }

    /// Returns the counter of the next event to attach: a free one. If none of them is free, the moves are a cycle,
    /// and one of them begins it.
    fn next_to_enter(&self, entering: CounterSet) -> Option<CounterId> {
        // Free counters first: an event that moves there makes room for the next one. What is left is a cycle.
        let mut free = entering.iter().filter(|counter| self.running_on(*counter).is_none());
        free.next().or(entering.first())
    }

    #[inline(never)] // 32 bytes of the glue, at `opt-level` 3.
    fn running_on(&self, counter: CounterId) -> Option<EventId> {
        self.slot(counter).and_then(CounterSlot::running)
    }

    /// Detaches the event of a counter.
    #[inline(never)] // 101 bytes of events alone.
    fn leave(&self, counter: CounterId, planner: &mut Planner<'_>) {
        let before = || planner.before.at(counter).map(Placement::event);
        let Some(event) = self.running_on(counter).or_else(before) else { return };
        match (self.detach(counter, event), self.table().entry(event)) {
            (Err(error), _) => planner.note(Err(error)),
            // There is no handler here to report to: with 1 to go, the next occurrence reports the period that is over.
            (Ok(detached), Some(entry)) if detached.overflowed => entry.period.set_resume(1),
            (Ok(_), Some(_)) => {}
            // A row's period is below 2^31, and so is what is left of it.
            (Ok(Detached { period, rest, .. }), None) => {
                planner.put_moving(Moving { event, period: period as u32, rest: rest as u32 });
            }
        }
    }

    /// Attaches an event to a free counter, and starts it: a row's event for the rest of a period that began on
    /// another counter.
    #[inline(never)] // 162 bytes of events alone.
    fn attach(&self, counter: CounterId, placed: Placement, planner: &mut Planner<'_>) {
        let (event, encoding) = (placed.event(), placed.encoding());
        if let Some(entry) = self.table().entry(event) {
            // Before the counter starts, whose select has this encoding's bits.
            entry.set_encoding(encoding);
            if let Some(register) = entry.extra_register(encoding)
                && let Err(error) =
                    self.table().extra.set(register, entry.extra_value(), &self.hardware)
            {
                return planner.note(Err(error));
            }
        }
        if S::Facility::OFFERS
            && self.table().entry(event).is_some_and(Self::asks)
            && !self.is_gated(counter)
            && let Err(error) = self.settle_on_coming(counter, event)
        {
            return planner.note(Err(error));
        }
        let moving = planner.take_moving(event);
        let rest = moving.map(|moving| (moving.period, moving.rest));
        if let Err(error) = self.run_for(counter, event, rest, true) {
            // Kept for the way back, on which the row's event gets its old counter with this remainder.
            planner.note(Err(error));
            if let Some(moving) = moving {
                planner.put_moving(moving);
            }
        }
    }

    /// Returns the counter that is to be left before an event is attached to `counter`: in a cycle of moves `counter`
    /// itself, otherwise the event's present one.
    fn in_the_way(&self, counter: CounterId, planner: &Planner<'_>) -> Option<CounterId> {
        if self.running_on(counter).is_some() {
            return Some(counter);
        }
        let event = planner.target().at(counter)?.event();
        if planner.failure.is_some() {
            return self.counter_of(event);
        }
        let home = planner.before.find(event)?;
        let is_left = match self.slot(home)?.load() {
            SlotState::Running { event: of, .. } => of != event,
            // Marked as faulted meanwhile: detaching its event fails.
            SlotState::Faulted => false,
            SlotState::Free | SlotState::Parked { .. } => true,
        };
        (!is_left).then_some(home)
    }

    /// Stops an opened event, and detaches it if it is on a counter.
    // Linked once: an event, a group and a switch stop events.
    #[inline(never)] // 170 bytes of counters with branches.
    pub(crate) fn detach_and_stop(
        &self,
        event: EventId,
        entry: &EventEntry,
        now: u64,
    ) -> Result<(), CounterError> {
        let on = self.counter_of(event);
        self.bring_up_to(now);
        if self.is_software(entry) {
            entry.add_software_time(now);
        } else {
            entry.add_time(now, on.is_some());
        }
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
        let slot = self.slot(counter).ok_or(CounterError::NotEnabled(event))?;
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
                    Some(entry) => self.wrapped_again(counter, entry, self.read_value(&registers)?),
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
            // To the total in any case: the value also has what was counted after the wrap.
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
                CounterError::StateUnknown(fault)
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
                CounterError::StateUnknown(fault)
            })?;
        }
        entry.accumulate_records(waiting, registers);
        entry.accumulate_precise(value, mask);
        let rest = if is_due { 1 } else { value.wrapping_neg() & mask };
        if waiting == Waiting::NONE {
            entry.period.set_resume(rest);
        } else if entry.recorded(waiting.reloaded) {
            // The next part of the period, or a period of another length, begins.
            entry.period.end_chunk();
        } else {
            entry.period.set_resume(rest);
        }
        Ok(Detached { period, rest, overflowed: false, is_due })
    }
}

/// A step of a change.
enum Step {
    /// The event on this counter leaves it.
    Leave(CounterId),
    /// An event is attached to this free counter.
    Enter(CounterId, Placement),
}

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

/// The state of a precise event's counter after it had stopped.
struct Left {
    counter: CounterId,
    value: u64,
    period: u64,
    waiting: Waiting,
}
