//! The context switch: the state of counters and events whose thread does not run.

pub(crate) mod saved;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::{CounterError, EventsError, bit};
use crate::counters::events::count::{EventOverflow, Membership};
use crate::counters::events::saved::SavedEvent;
use crate::counters::events::thread::ThreadEvent;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::Asked;
use crate::counters::interrupt::sample::Sample;
use crate::counters::names::{CounterId, CounterSet, EventId, GroupId};
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Removes a thread's events from this processor: stops and closes the events that are open here. After the call,
    /// `events` contains each event's count, and the part of its period that remains. All other events on the processor
    /// continue.
    ///
    /// If an overflow is pending, the call itself reports the overflow to `overflowed`. If the overflow's interrupt
    /// still comes, [`service`](crate::service) claims the interrupt, and does not report the overflow again. The
    /// sample has nothing of the [facilities](crate::EventSource::Facility), which collect in interrupts.
    ///
    /// If any of the events is [precise](crate::Event::precise), the call reports all samples of the processor whose
    /// records wait in memory, as [`report_samples`](Self::report_samples) does: also those of other events, which
    /// `overflowed` knows by their tags. All counters of precise events are stopped meanwhile.
    ///
    /// If `events` contains any event of a [group](Self::open), all events of the group leave their counters.
    /// Events of the group that are not in `events` stop, and stay on this processor. These events wait until the
    /// removed events return, or until [`close`](Self::close).
    ///
    /// If events have [branches](crate::Event::with_branches), the call clears the branch records. The thread's call
    /// stack may be [kept](crate::branches::BranchMemory::set_call_stacks).
    ///
    /// The call costs one write and one read of the counter per event that is on a counter. A pending overflow adds
    /// one write. If any of the events is in a group, one write first stops all these counters at once, and one write
    /// at the end enables the counters again.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::EventsError;
    /// # use pmu_core::thread::ThreadEvent;
    /// /// A thread ends: returns the sum of what its events counted.
    /// fn end<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     events: &mut [ThreadEvent],
    ///     now: u64,
    /// ) -> Result<u64, EventsError> {
    ///     counters.switch_out(events, now, |_sample| { /* a last sample */ })?;
    ///     let counts = events.iter().map(|event| match event {
    ///         ThreadEvent::SwitchedOut(event) => event.count().value,
    ///         _ => 0,
    ///     });
    ///     Ok(counts.sum())
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns the events that failed, and the reason of the first failure. All other events were removed. An event
    /// fails for one of these reasons:
    ///
    /// - [`StateUnknown`](CounterError::StateUnknown): the event's counter failed during this call.
    /// - [`CounterLost`](CounterError::CounterLost): the event's counter failed before this call.
    ///
    /// A failed event is removed nevertheless, and starts again when it is switched in. The event's count since the
    /// last interrupt of its counter is lost.
    pub fn switch_out(
        &mut self,
        events: &mut [ThreadEvent],
        now: u64,
        mut overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<(), EventsError> {
        if S::Facility::KEEPS {
            // The thread ran without those of its events that were not switched in.
            ThreadEvent::forget_call_stacks(events);
        }
        let together = self.counters_together(events);
        let mut outcome = Ok(());
        EventsError::add(&mut outcome, 0, self.pause(together));
        // A unit's sample waits once the unit has stopped. If a unit cannot be stopped, its event's detaching tells.
        for unit in self.units_of(together).iter() {
            let _ = self.set_control(&self.registers(unit), 0);
        }
        if S::Facility::RECORDS && self.opened_of(events).any(EventEntry::is_precise) {
            // Before the events are closed. Records of an event that has no counter any more may wait, too.
            EventsError::add(&mut outcome, 0, self.report_waiting(&mut overflowed));
        }
        if S::Facility::DIVIDES {
            EventsError::add(&mut outcome, 0, self.detach_parts(events, now));
        }
        for (number, place) in events.iter_mut().enumerate() {
            let ThreadEvent::Opened(event) = *place else { continue };
            let entry = match self.entry(event) {
                Ok(entry) => entry,
                Err(error) => {
                    *place = ThreadEvent::Unused;
                    EventsError::add(&mut outcome, bit(number), Err(error));
                    continue;
                }
            };
            EventsError::add(&mut outcome, bit(number), self.check_counter(event, entry));
            self.add_time(event, entry, now);
            if let Some((counter, _)) = self.find(event) {
                match self.detach(counter, event) {
                    Ok(detached) if detached.overflowed => {
                        let (period, tag) = (entry.period.ended(), entry.tag());
                        let overflow = EventOverflow { event, period, counter, tag };
                        overflowed(Sample::of(overflow, None));
                    }
                    Ok(_) => {}
                    Err(error) => EventsError::add(&mut outcome, bit(number), Err(error)),
                }
            }
            // After detaching, which has added to the count and set the remainder of the period.
            if self.is_software(entry) {
                entry.end_periods(entry.software_value(now), |period| {
                    let (counter, tag) = (CounterId::SOFTWARE, entry.tag());
                    let overflow = EventOverflow { event, period, counter, tag };
                    overflowed(Sample::of(overflow, None));
                });
            }
            *place = ThreadEvent::SwitchedOut(self.extract(entry));
            if S::Facility::KEEPS
                && let ThreadEvent::SwitchedOut(left) = place
            {
                // Of what is kept as the facilities are settled.
                left.stack = self.claim_stack(left.branches, left.tag, 0);
            }
            entry.set_state(EventState::Closed);
            self.forget_in_facilities(event);
        }
        // Not in the loop before: only now are a group's open events the ones that stay.
        for (number, place) in events.iter().enumerate() {
            if let ThreadEvent::SwitchedOut(event) = place
                && let Some(group) = event.group()
            {
                self.stop_rest(group, bit(number), now, &mut outcome);
            }
        }
        EventsError::add(&mut outcome, 0, self.switch_facilities());
        EventsError::add(&mut outcome, 0, self.unpause(together));
        self.settle_core();
        outcome
    }

    /// Stops the events of a group that stay on this processor, of which `taken` is another event.
    fn stop_rest(
        &self,
        group: GroupId,
        taken: u64,
        now: u64,
        outcome: &mut Result<(), EventsError>,
    ) {
        let of_group = self.table().opened().filter(|(_, entry)| entry.group() == Some(group));
        for (event, entry) in of_group {
            EventsError::add(outcome, taken, self.detach_and_stop(event, entry, now));
        }
    }

    /// Returns the entries of those of a thread's events that are on this processor.
    fn opened_of(&self, events: &[ThreadEvent]) -> impl Iterator<Item = &EventEntry> {
        events.iter().filter_map(|event| match event {
            ThreadEvent::Opened(id) => self.entry(*id).ok(),
            _ => None,
        })
    }

    /// Returns the counters of these events, if groups or precise events are among them.
    fn counters_together(&self, events: &[ThreadEvent]) -> CounterSet {
        let opened = events.iter().filter_map(|event| match event {
            ThreadEvent::Opened(id) => Some(*id),
            _ => None,
        });
        let is_one =
            |entry: &EventEntry| entry.is_grouped() || S::Facility::RECORDS && entry.is_precise();
        let is_one = |id| self.entry(id).is_ok_and(is_one) && !self.takes_one_counter(id);
        if !opened.clone().any(is_one) {
            return CounterSet::NONE;
        }
        opened.filter_map(|id| self.counter_of(id)).collect()
    }

    /// Puts a thread's events on this processor. `processor` describes this processor. The events may have been
    /// switched out on any processor.
    ///
    /// The call opens all these events. It enables the events that were enabled when [`switch_out`](Self::switch_out)
    /// removed them. Each event continues with the count and period that it had. The events get counters in this order:
    /// - First come the events that are already on counters and do not rotate, such as the processor's own events.
    ///   These events keep their counters, or move to other counters.
    /// - Then the thread's events that do not rotate get counters. Rotating events give way to these events.
    /// - Last come [rotating](crate::Event::rotating) events, both the processor's and the thread's. Events with the
    ///   smallest [shares](Self::rotate) get counters first. They take counters from rotating events with greater
    ///   shares.
    ///
    /// Counters that are still free go to events that already wait on this processor. The events of a group start
    /// together, and only if all of them are in `events`.
    ///
    /// An event that this processor cannot count is opened and enabled, but neither the event nor its group is counted.
    /// The event's `enabled` time advances, but its `running` time does not, so that the count can be
    /// [scaled](crate::EventCount::scaled). This processor cannot count an event of one of these kinds:
    /// - The event belongs to another [type of core](CounterUnit::core_type).
    /// - The event is a generic event that this processor lacks, or has a select bit that this processor lacks.
    /// - The event is confined to counters that this processor lacks.
    ///
    /// `switch_in` costs two register writes per event, and two more per group. A performance interrupt may come before
    /// the call has stored each [`EventId`] in `events`. The interrupt's handler then identifies the event by its
    /// [tag](crate::Event::tagged).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, EventSource, Hardware};
    /// # use pmu_core::thread::ThreadEvent;
    /// /// Gives a thread's events to the processor, and returns the places of those that it could not take.
    /// fn give<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     this_processor: &CounterUnit,
    ///     events: &mut [ThreadEvent],
    ///     now: u64,
    /// ) -> u64 {
    ///     match counters.switch_in(this_processor, events, now) {
    ///         Ok(()) => 0,
    ///         Err(error) => error.events, // The others run.
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns the events that failed, and the reason of the first failure. All other events were switched in.
    ///
    /// An event fails for one of these reasons:
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): the table of opened events is full. The event stays
    ///   switched out.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter), [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse): the
    ///   event does not [rotate](crate::Event::rotating), and finds no counter or extra register. The event is opened,
    ///   but does not run. After the next [`switch_out`](Self::switch_out), the next `switch_in` tries again to start
    ///   the event.
    /// - [`Unchanged`](CounterError::Unchanged): the event is opened, but does not run.
    /// - [`StateUnknown`](CounterError::StateUnknown): the event is opened, but does not run.
    /// - [`OtherProcessor`](CounterError::OtherProcessor): `processor` differs from the session's processor in its
    ///   generic events or in its select bits. All given events stay switched out.
    pub fn switch_in(
        &mut self,
        processor: &CounterUnit,
        events: &mut [ThreadEvent],
        now: u64,
    ) -> Result<(), EventsError> {
        let here = self.check_processor(processor);
        let mut outcome = Ok(());
        // Before the thread's events run: the samples of the processor's events have nothing of the thread before.
        EventsError::add(&mut outcome, 0, self.switch_facilities());
        for (number, place) in events.iter_mut().enumerate() {
            let ThreadEvent::SwitchedOut(event) = place else { continue };
            if S::Facility::KEEPS {
                self.claim_stack(event.branches, event.tag, event.stack);
            }
            match here.and_then(|()| self.insert(processor, event, now)) {
                Ok(id) => *place = ThreadEvent::Opened(id),
                Err(error) => EventsError::add(&mut outcome, bit(number), Err(error)),
            }
        }
        if self.has_table() {
            self.add_times(now);
            self.await_groups(events);
            self.serve(Some(events), &mut outcome);
        }
        if S::Facility::KEEPS {
            for entry in self.opened_of(events) {
                self.claim_stack(entry.branches(), entry.tag(), 0);
            }
        }
        outcome
    }

    /// Returns whether this processor can count an event: it has the event's type of core, its select or name, and a
    /// counter of the session for it.
    fn can_count(
        &self,
        processor: &CounterUnit,
        event: &SavedEvent,
        counters: CounterSet,
        takes_none: bool,
    ) -> bool {
        let is_legal = event.select().select_bits() & !processor.all_bits() == 0
            || S::Facility::UNITS && event.select().is_of_unit()
            || S::Facility::SOFTWARE && event.is_software();
        let has_name = event.name().is_none_or(|name| processor.generic(name).is_some());
        let has_counter = takes_none || !(counters & self.own()).is_empty();
        event.is_of_core_type(processor.core_type()) && is_legal && has_name && has_counter
    }

    #[inline(never)] // 32 bytes of the glue.
    fn insert(
        &self,
        processor: &CounterUnit,
        event: &mut SavedEvent,
        now: u64,
    ) -> Result<EventId, CounterError> {
        let (id, entry) = self.free_entry(None)?;
        let membership = Membership::unpack(event.membership);
        if membership.reload != 0 && membership.group == 0 {
            return Err(CounterError::NotReloadable);
        }
        // Nothing fails from here on. The processor from which the event comes may have had the other kind of RDPMC
        // control.
        event.select = event.select_on(processor).select_bits();
        self.table().unthrottle(event);
        // The facility that an event asks for may be another core type's alone.
        // That it is beside another one was checked when the group was opened.
        let here = if S::Facility::OFFERS && !(S::Facility::SOFTWARE && event.is_software()) {
            let asked = Asked::of_saved(event);
            self.resolve(asked, event.counters(), |_| membership.group != 0).map(Some)
        } else {
            Self::check_plain(membership.reload, event.branches, event.precise()).map(|()| None)
        };
        let counters = here.map(|here| here.map_or(event.counters(), |here| here.counters));
        let is_part = S::Facility::DIVIDES && event.is_part() && here.is_ok();
        let is_software = S::Facility::SOFTWARE && event.is_software();
        let takes_none = is_part || is_software;
        let can_count = |counters| self.can_count(processor, event, counters, takes_none);
        entry.insert(event, counters.is_ok_and(can_count));
        if let Ok(Some(here)) = here {
            entry.adapt(&here);
        }
        // The event is still stopped, so this adds nothing: its times count from `now` on.
        entry.add_time(now, false);
        if is_software {
            entry.begin_software(now);
        }
        if is_part {
            // Its group is counted without a counter for it.
            entry.set_disabled(true);
        } else if event.is_enabled() {
            self.change_state(id, EventState::Waiting);
        }
        Ok(id)
    }
}
