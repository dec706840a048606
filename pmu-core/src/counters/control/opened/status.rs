//! The events of a processor, and the state of each.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::count::{EventCount, Membership};
use crate::counters::events::user_view::UserView;
use crate::counters::names::{CounterId, EventId};
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::table::Members;
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

/// State of an opened event. The states have the names that Linux perf uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum EventStatus {
    /// The event is disabled.
    Off,
    /// The event is enabled, but not counted at present, for one of these reasons:
    /// - The event waits until [`rotate`](crate::CounterSession::rotate) puts it on a counter.
    /// - This processor cannot count the event, or cannot count another event of the event's group.
    Inactive,
    /// The event is enabled, and runs on this counter: [`SOFTWARE`](CounterId::SOFTWARE) if the kernel's calls count
    /// it.
    Active(CounterId),
    /// The event was enabled, but is no longer counted, for one of these reasons:
    /// - The event's counter faulted.
    /// - The event found no counter, and does not [rotate](crate::Event::rotating).
    ///
    /// This state ends when a task enables the event again, or disables it.
    Error,
}

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Returns the opened events, in the order of their [indices](EventId::index) in the session's table.
    /// [Unlisted](crate::Event::unlisted) events are omitted.
    ///
    /// ```
    /// use pmu_core::{CounterSession, EventId, EventSource, EventStatus, Hardware};
    /// /// Returns the pinned events that are no longer counted, so that the kernel can notify their owners.
    /// fn lost<S: EventSource, H: Hardware>(
    ///     counters: &CounterSession<'_, S, H>,
    /// ) -> impl Iterator<Item = EventId> {
    ///     counters.events().filter(|event| counters.event_status(*event) == Ok(EventStatus::Error))
    /// }
    /// ```
    pub fn events(&self) -> impl Iterator<Item = EventId> {
        let is_listed = |entry: &EventEntry| !entry.membership().has(Membership::UNLISTED);
        let listed = self.table().opened().filter(move |(_, entry)| is_listed(entry));
        listed.filter(|_| self.has_table()).map(|(event, _)| event)
    }

    /// Returns the [tag](crate::Event::tagged) of an opened event.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent).
    pub fn event_tag(&self, event: EventId) -> Result<u64, CounterError> {
        self.entry(event).map(EventEntry::tag)
    }

    /// Returns an opened event, or all events of its group that are on this processor.
    pub(crate) fn members(&self, of: EventId) -> Members<'_> {
        self.table().members(of)
    }

    /// Returns whether this processor can count an event and its group.
    #[inline(never)] // 96 bytes of the glue, at `opt-level` 3.
    pub(crate) fn is_countable(&self, event: EventId) -> bool {
        let mut entries =
            self.table().with_group(event).filter_map(|event| self.table().entry(event));
        entries.all(EventEntry::is_countable)
    }

    /// Returns the events of an event's group, in the order of the slice that was passed to [`open`](Self::open) or
    /// [`switch_in`](Self::switch_in): first the one that leads the group. An event in no group is alone.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::interrupt::EventOverflow;
    /// /// Returns an overflowed event's index in its group, which is also its count's index in `read_group`.
    /// fn place<S: EventSource, H: Hardware>(
    ///     counters: &CounterSession<'_, S, H>,
    ///     overflow: &EventOverflow,
    /// ) -> Option<usize> {
    ///     counters.group_events(overflow.event).position(|event| event == overflow.event)
    /// }
    /// ```
    pub fn group_events(&self, event: EventId) -> impl Iterator<Item = EventId> {
        let members = self.members(event).filter(|_| self.has_table());
        members.map(|(event, entry)| event.of_opening(entry.opening()))
    }

    /// Returns the first event of an event's group, whose events are all on this processor.
    pub(crate) fn first_of(&self, event: EventId) -> Result<EventId, CounterError> {
        self.entry(event)?;
        self.table().first_of(event).ok_or(CounterError::GroupElsewhere(event))
    }

    /// Returns the state of an opened event.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent).
    pub fn event_status(&self, event: EventId) -> Result<EventStatus, CounterError> {
        let mut entry = self.entry(event)?;
        let mut event = event;
        if self.is_part(event)
            && let Some(divided) = self.divided_of(event)
        {
            (event, entry) = (divided, self.entry(divided)?);
        }
        let software = self.counts_in_software(event).then_some(CounterId::SOFTWARE);
        Ok(match (entry.state(), self.counter_of(event).or(software)) {
            (EventState::Closed | EventState::Stopped, _) => EventStatus::Off,
            (_, Some(counter)) => EventStatus::Active(counter),
            (EventState::Refused | EventState::Counting, None) => EventStatus::Error,
            (EventState::Uncountable, None) => EventStatus::Inactive,
            (EventState::Waiting, None) if entry.rotates() => EventStatus::Inactive,
            (EventState::Waiting, None) => EventStatus::Error,
        })
    }

    /// Returns the data with which user mode computes an opened event's count by RDPMC. If the event is on a counter,
    /// the call costs one RDPMC.
    ///
    /// For an event on a counter, the data is valid until one of the following happens:
    /// - An operation enables, disables, moves or closes the event. [`enable`](Self::enable) of *another* event
    ///   and [`rotate`](Self::rotate) may also move this event.
    /// - A performance interrupt of the processor is serviced. [`service`](crate::service()) may reload the counter of
    ///   an event with a period. On a processor without an overflow status, `service` may reload the counter of any
    ///   event. After `service`, the handler gets new data by [`user_view`](crate::reading::user_view()).
    /// - The counter has counted half of its range: 2³⁹ events for a counter of 40 bits.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// # use pmu_core::reading::UserView;
    /// /// Returns the view for the page that user mode reads; without a view, user mode asks by a system call.
    /// fn view<S: EventSource, H: Hardware>(
    ///     counters: &CounterSession<'_, S, H>,
    ///     event: EventId,
    ///     now: u64,
    /// ) -> Option<UserView> {
    ///     counters.user_view(event, now).ok().filter(|view| view.readable)
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn user_view(&self, event: EventId, now: u64) -> Result<UserView, CounterError> {
        let entry = self.entry(event)?;
        let permitted = entry.permits_user_rdpmc() && !self.is_software(entry);
        let Some(counter) = self.counter_of(event) else {
            let count = self.read(event, now)?;
            return Ok(UserView::off_counter(permitted, entry.is_enabled(), count, now));
        };
        if !entry.wants_total() {
            return Err(CounterError::NoTotal(event));
        }
        let (total, value) = self.read_total(counter, event, entry)?;
        let count = EventCount { value: total, ..entry.count_at(now, true) };
        let registers = self.registers(counter);
        let index = registers.user_index(&self.hardware, permitted);
        Ok(UserView::on_counter(&registers, index, value, count, now))
    }
}
