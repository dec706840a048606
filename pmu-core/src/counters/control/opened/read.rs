//! Counts: of an event, of its group, and of its children.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::{CounterError, EventsError};
use crate::counters::events::count::{EventCount, Period};
use crate::counters::events::saved::SavedEvent;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::names::EventId;
use crate::counters::shared::entry::EventState;
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Reads an opened event's count. The result includes the event's `enabled` and `running` times up to `now`. If
    /// the event is on a counter, this costs one read of the counter. If hardware divides the event into
    /// [parts](crate::Event::part), the call also updates the parts' counts; a read of a part reads the event that is
    /// divided.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Returns the number of times that a running event occurs in a function.
    /// fn events_in<S: EventSource, H: Hardware>(
    ///     counters: &CounterSession<'_, S, H>,
    ///     event: EventId,
    ///     now: u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<u64, CounterError> {
    ///     let before = counters.read(event, now)?.value;
    ///     function();
    ///     Ok(counters.read(event, now)?.value - before)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent).
    /// - [`NoTotal`](CounterError::NoTotal): the event interrupts, and was opened without a
    ///   [total](crate::Event::with_total).
    /// - [`CounterLost`](CounterError::CounterLost).
    /// - [`RegistersLost`](CounterError::RegistersLost): the registers of the event's counter lost their contents.
    /// - [`Unchanged`](CounterError::Unchanged): the event's counter could not be read.
    pub fn read(&self, event: EventId, now: u64) -> Result<EventCount, CounterError> {
        let entry = self.entry(event)?;
        if !entry.wants_total() {
            return Err(CounterError::NoTotal(event));
        }
        if self.is_part(event) {
            self.update_part(event, now)?;
            return Ok(entry.count());
        }
        if self.is_software(entry) {
            entry.add_software_time(now);
            return Ok(entry.count());
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

    /// Reads the counts of an event's group into `counts`, in the group's order, and returns the number of counts
    /// read. If the group is on counters, each count costs one read of a counter. If `counts` has fewer elements than
    /// the group has events, only the group's first events are read.
    ///
    /// The times of all counts are equal, so the ratio of two counts needs no [scaling](EventCount::scaled). The times
    /// differ only if a member was [disabled](Self::disable) for a while, or was [opened](Self::open_member) later.
    ///
    /// An interrupt handler, which has no session, reads a group by [`sample_read`](crate::reading::sample_read).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventCount, EventId, EventSource, Hardware};
    /// # use pmu_core::error::EventsError;
    /// /// Returns the percentage of cache references that missed. The group counts misses and references.
    /// fn miss_rate<S: EventSource, H: Hardware>(
    ///     counters: &CounterSession<'_, S, H>,
    ///     group: EventId,
    ///     now: u64,
    /// ) -> Result<Option<u64>, EventsError> {
    ///     let mut counts = [EventCount::default(); 2];
    ///     counters.read_group(group, now, &mut counts)?;
    ///     let [misses, references] = counts.map(|count| count.value);
    ///     Ok((misses * 100).checked_div(references))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent), [`GroupElsewhere`](CounterError::GroupElsewhere).
    /// - [`CounterLost`](CounterError::CounterLost): one of the group's counters failed earlier.
    /// - The errors of [`read`](Self::read), for the first event that cannot be read.
    pub fn read_group(
        &self,
        event: EventId,
        now: u64,
        counts: &mut [EventCount],
    ) -> Result<usize, EventsError> {
        self.first_of(event)?;
        let mut read = 0;
        let divided = if S::Facility::DIVIDES { self.read_divided(event, now)? } else { None };
        for (count, (event, entry)) in counts.iter_mut().zip(self.members(event)) {
            let failed = |reason| EventsError::of_member(read, reason);
            let was_read = S::Facility::DIVIDES && (divided == Some(event) || self.is_part(event));
            // The event that is divided and its parts are of one moment.
            *count =
                if was_read { entry.count() } else { self.read(event, now).map_err(failed)? };
            read += 1;
        }
        Ok(read)
    }

    /// Returns a [child](SavedEvent::child) of an opened event, for a thread that the running thread creates. The
    /// opened event continues.
    ///
    /// ```
    /// use pmu_core::{CounterSession, EventSource, Hardware};
    /// use pmu_core::error::CounterError;
    /// use pmu_core::thread::ThreadEvent;
    /// /// Returns the events that a new thread inherits from the running thread.
    /// fn fork<S: EventSource, H: Hardware>(
    ///     counters: &CounterSession<'_, S, H>,
    ///     parent: ThreadEvent,
    ///     tag: u64,
    /// ) -> Result<ThreadEvent, CounterError> {
    ///     let child = match parent {
    ///         ThreadEvent::Opened(event) => counters.child_event(event, tag)?,
    ///         ThreadEvent::SwitchedOut(event) => event.child(tag),
    ///         ThreadEvent::Unused => return Ok(parent),
    ///     };
    ///     Ok(ThreadEvent::SwitchedOut(child))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent).
    pub fn child_event(&self, event: EventId, tag: u64) -> Result<SavedEvent, CounterError> {
        Ok(self.extract(self.entry(event)?).child(tag))
    }

    /// Adds a child event's count to the count of an opened event: the value, and the `enabled` and `running` times.
    /// The call may be made while the opened event is on a counter. A [`UserView`](crate::reading::UserView) that was
    /// made before the call does not include the child's count.
    ///
    /// For an event that is on no processor, use [`SavedEvent::add_count`].
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoTotal`](CounterError::NoTotal).
    pub fn add_count(&mut self, event: EventId, child: EventCount) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        if !entry.wants_total() {
            return Err(CounterError::NoTotal(event));
        }
        // The end of a period never comes nearer, whatever interrupts in between.
        let (is_software, grows) = (self.is_software(entry), child.value <= Period::MAX);
        if is_software && grows {
            entry.shift_period(child.value);
        }
        entry.add_count(child);
        if is_software && !grows {
            entry.shift_period(child.value);
        }
        Ok(())
    }
}
