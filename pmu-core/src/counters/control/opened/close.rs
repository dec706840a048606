//! Closing: of events and their groups, and of one event of a group.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::{CounterError, EventsError, bit_of_member};
use crate::counters::events::count::{EventCount, Membership};
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::running::Asked;
use crate::counters::names::{EventId, GroupId};
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::table::Members;
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Stops and closes an event and its group, and returns the event's count, whose value is 0 if the event has no
    /// [total](crate::Event::with_total). If some of the group's events are
    /// switched out, the call closes only the events that are on this processor. Later events may get the
    /// [`EventId`]s of the closed events. Samples of a [precise](crate::Event::precise) event whose records wait in
    /// memory are dropped: call [`report_samples`](Self::report_samples) before.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// # use pmu_core::error::EventsError;
    /// /// Closes an event of a process that ends, and returns its count as if it had never waited for a counter.
    /// fn end<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     event: EventId,
    ///     now: u64,
    /// ) -> Result<Option<u64>, EventsError> {
    ///     let count = counters.close(event, now)?;
    ///     Ok(count.scaled())
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent).
    /// - [`StateUnknown`](CounterError::StateUnknown), as of [`disable`](Self::disable): the events are stopped, and
    ///   stay open.
    pub fn close(&mut self, event: EventId, now: u64) -> Result<EventCount, EventsError> {
        self.entry(event)?;
        // An event that cannot be stopped stays open, so that its identity is not given to another.
        self.stop_those_here(event, now)?;
        let count = self.entry(event)?.count();
        self.mark_closed(event);
        Ok(count)
    }

    /// Stops and [closes](Self::close) a group, and writes its last counts into `counts`, in the group's order, as
    /// [`read_group`](Self::read_group) does. Returns the number of counts written.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, Event, EventCount, EventSource, GenericEvent, Hardware};
    /// # use pmu_core::error::EventsError;
    /// /// Returns the instructions per thousand cycles of a function.
    /// fn instructions_per_kilocycle<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     unit: &CounterUnit,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<Option<u64>, EventsError> {
    ///     let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
    ///     let group = counters.start(unit, &events, clock())?;
    ///     function();
    ///     let mut counts = [EventCount::default(); 2];
    ///     counters.close_group(group, clock(), &mut counts)?;
    ///     let [instructions, cycles] = counts.map(|count| count.value);
    ///     Ok((instructions * 1000).checked_div(cycles))
    /// }
    /// ```
    ///
    /// # Errors
    /// - The errors of [`close`](Self::close). The counts of a second attempt lack what was lost.
    /// - [`CounterLost`](CounterError::CounterLost), [`NoTotal`](CounterError::NoTotal): the group is closed, but has
    ///   no count of the events that the error names.
    pub fn close_group(
        &mut self,
        group: EventId,
        now: u64,
        counts: &mut [EventCount],
    ) -> Result<usize, EventsError> {
        self.entry(group)?;
        let (mut counted, mut closed) = (Ok(()), 0);
        for (member, (event, entry)) in self.members(group).enumerate().take(counts.len()) {
            let total =
                if entry.wants_total() { Ok(()) } else { Err(CounterError::NoTotal(event)) };
            let has_count = self.check_counter(event, entry).and(total);
            EventsError::add(&mut counted, bit_of_member(member), has_count);
        }
        self.stop_those_here(group, now)?;
        for (count, (_, entry)) in counts.iter_mut().zip(self.members(group)) {
            *count = entry.count();
            closed += 1;
        }
        self.mark_closed(group);
        counted.map(|()| closed)
    }

    /// Stops and closes an opened event that is in no group, like [`close`](Self::close) at time 0, on less stack.
    #[inline(never)] // 112 bytes of the glue, at `opt-level` 3.
    pub(crate) fn close_without_clock(&mut self, event: EventId) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        if self.is_enabled(event) {
            self.detach_and_stop(event, entry, 0)?;
        }
        self.mark_one_closed(event, entry);
        Ok(())
    }

    /// Marks an event and its group, which are stopped, as closed.
    #[inline(never)] // 64 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(super) fn mark_closed(&self, group: EventId) {
        self.members(group).for_each(|(event, entry)| self.mark_one_closed(event, entry));
    }

    fn mark_one_closed(&self, event: EventId, entry: &EventEntry) {
        entry.set_state(EventState::Closed);
        self.forget_in_facilities(event);
    }

    /// Closes one event, as Linux closes the file of one; the other events of its group stay as they are, and those
    /// that count go on without a gap. Returns the event's last count.
    ///
    /// - If the event is the first of its group, the others are in no group afterwards. Those that were disabled
    ///   stay so. Where some of them need each other, all of them stay a group.
    /// - What needs the event is closed with it: of issue slots their parts, of an event that a
    ///   [latency](crate::Event::latency_at_least) needs beside it the event with the latency, and in a group with
    ///   events that are [reloaded](crate::Event::reloaded_by) all of them.
    ///
    /// [`open_member`](Self::open_member) uses the places behind the last event of the group, and none that becomes
    /// free before it.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// A client gives up one of its events.
    /// fn drop_one<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     event: EventId,
    ///     now: u64,
    /// ) -> Result<u64, CounterError> {
    ///     Ok(counters.close_member(event, now)?.value)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent).
    /// - [`GroupElsewhere`](CounterError::GroupElsewhere).
    /// - The errors of [`disable`](Self::disable). An event of a group is closed nevertheless, and its last count is
    ///   lost; an event in no group stays open.
    pub fn close_member(&mut self, event: EventId, now: u64) -> Result<EventCount, CounterError> {
        let (entry, first) = (self.entry(event)?, self.first_of(event)?);
        let Some(group) = entry.group() else { return Ok(self.close(event, now)?) };
        self.bring_up_to(now);
        let mut outcome = if self.is_part(event) { self.update_part(event, now) } else { Ok(()) };
        let reloads = |(_, of): (EventId, &EventEntry)| of.membership().reload != 0;
        let all = S::Facility::OFFERS && self.members(event).any(reloads);
        let needs_it = |other: EventId, of: &EventEntry| {
            other != event
                && (all || self.is_part(other) && self.has_parts(event) || {
                    let number = entry.select().select_bits() as u16;
                    self.beside(of) == Some(number)
                })
        };
        // Parts get their counts as the slots stop. Everything else stops before what it needs.
        let with_it = |is_part: bool| {
            self.members(event)
                .filter(move |(other, of)| of.is_part() == is_part && needs_it(*other, of))
        };
        let closed = || with_it(false).chain([(event, entry)]).chain(with_it(true));
        if S::Facility::SOFTWARE {
            // The software events of the group do not wait for them, or stop with them.
            closed().for_each(|(_, entry)| entry.set_disabled(true));
        }
        for (event, entry) in closed() {
            outcome = outcome.and(self.detach_and_stop(event, entry, now));
        }
        let count = entry.count();
        self.members(event)
            .filter(|(other, of)| needs_it(*other, of))
            .for_each(|(event, entry)| self.mark_one_closed(event, entry));
        self.mark_one_closed(event, entry);
        self.settle_rest(group, first, now);
        self.settle_software();
        outcome.map(|()| count)
    }

    /// Returns the number and unit mask of the event that another one needs beside it.
    fn beside(&self, entry: &EventEntry) -> Option<u16> {
        if !S::Facility::OFFERS || !entry.is_precise() {
            return None;
        }
        let (event, mut needed) = (self.extract(entry), None);
        // Asked for the sake of the closure alone: the event is open, so an error changes nothing.
        let _ = self.resolve(Asked::of_saved(&event), event.counters(), |other| {
            needed = Some(other);
            true
        });
        needed
    }

    /// Settles what is left of a group of which some events were closed. `first` was the first event of the group.
    fn settle_rest(&self, group: GroupId, first: EventId, now: u64) {
        let members = || Members::of_group(self.table(), first, group);
        let needs = |(event, entry)| self.is_part(event) || self.beside(entry).is_some();
        let stays = members().any(|(event, _)| event == first) || members().any(needs);
        if stays {
            let count = members().count() as u8;
            for (place, (_, entry)) in members().enumerate() {
                entry.set_membership(entry.membership().with(Membership::FIRST, place == 0));
                entry.set_members(count);
            }
            let Some((first, entry)) = members().next() else { return };
            if entry.is_disabled() {
                // As the first one it stops the others.
                entry.set_disabled(false);
                for (event, entry) in members() {
                    // A counter that does not stop is marked as faulted. The caller gets the error of the closed event.
                    let _ = self.detach_and_stop(event, entry, now);
                }
            }
            self.count_again(first, now);
            return;
        }
        while let Some((event, entry)) = members().next() {
            let of_group = Membership::FIRST | Membership::DISABLED | Membership::EXCLUSIVE;
            let alone = Membership { group: 0, members: 0, ..entry.membership() };
            entry.set_membership(alone.with(of_group, false));
            self.count_again(event, now);
        }
    }
}
