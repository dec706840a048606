//! Software events, which the kernel's calls count. They take no counter. A software event in a group counts while the
//! group's events on counters do.

use core::mem;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::thread::ThreadEvent;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::names::EventId;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Lets a session that has no counters open the events that take none.
    #[inline(always)]
    pub(crate) fn without_counters(mut self) -> Self {
        self.has_table_alone = S::Facility::SOFTWARE && self.table().take();
        self
    }

    /// Lets the events of a session without counters stand still, as those of another session do while its counters are
    /// lent. Returns `false` if the session has counters, or no events.
    #[inline(always)]
    pub(crate) fn pause_software_alone(&mut self, now: u64) -> bool {
        let is_alone = S::Facility::SOFTWARE && !self.is_open() && self.has_table();
        // They may stand still already, after a window that did not end.
        if is_alone && !mem::replace(&mut self.is_paused_alone, true) {
            self.add_times(now);
            self.pause_software();
        }
        is_alone
    }

    /// Lets events go on that [stand still](Self::pause_software_alone). Returns `false` if they do not.
    #[inline(always)]
    pub(crate) fn continue_software(&mut self, now: u64) -> bool {
        let stood = S::Facility::SOFTWARE && mem::take(&mut self.is_paused_alone);
        if stood {
            self.table().opened().for_each(|(_, entry)| entry.skip_time(now));
            self.settle_software();
        }
        stood
    }

    /// Returns whether the kernel's calls count an event.
    #[inline(always)]
    pub(crate) fn is_software(&self, entry: &EventEntry) -> bool {
        S::Facility::SOFTWARE && entry.is_software()
    }

    /// Returns whether an event takes no counter, because the kernel's calls count it.
    #[inline(always)]
    pub(crate) fn takes_no_counter(&self, event: EventId) -> bool {
        S::Facility::SOFTWARE
            && self.table().entry(event).is_some_and(EventEntry::is_without_counter)
    }

    /// Returns whether an event counts now, by the kernel's calls.
    #[inline(always)]
    pub(crate) fn counts_in_software(&self, event: EventId) -> bool {
        S::Facility::SOFTWARE
            && self.table().entry(event).is_some_and(EventEntry::counts_in_software)
    }

    /// Adds the time up to `now` to the times of all events, before software events may change their states.
    #[inline(always)]
    pub(crate) fn bring_up_to(&self, now: u64) {
        if S::Facility::SOFTWARE {
            self.add_times(now);
        }
    }

    /// Starts an event, and its group, if none of them takes a counter. Returns `false` if one does.
    #[inline(always)]
    pub(crate) fn start_in_software(&self, event: EventId) -> Result<bool, CounterError> {
        if S::Facility::SOFTWARE { self.start_software(event) } else { Ok(false) }
    }

    fn start_software(&self, event: EventId) -> Result<bool, CounterError> {
        let takes_none = |event| self.takes_no_counter(event);
        if !self.table().with_group(event).all(takes_none) {
            return Ok(false);
        }
        // An event that takes a counter may be missing.
        self.check_whole(event).map_err(|unplaced| unplaced.reason)?;
        self.change_group(event, EventState::Counting);
        Ok(true)
    }

    /// Lets the software events of a group that is enabled wait for its counters.
    #[inline(always)]
    pub(crate) fn await_group(&self, event: EventId) {
        if S::Facility::SOFTWARE {
            let of_group = self.table().with_group(event);
            of_group.filter(|event| self.takes_no_counter(*event)).for_each(|event| {
                self.change_state(event, EventState::Waiting);
            });
        }
    }

    /// Lets the software events of a thread's groups wait for the counters of these groups, also those that stayed on
    /// this processor, and stopped, as another part of their group was switched out.
    #[inline(always)]
    pub(crate) fn await_groups(&self, thread: &[ThreadEvent]) {
        if S::Facility::SOFTWARE {
            for event in thread {
                if let ThreadEvent::Opened(event) = *event
                    && let Some(entry) = self.table().entry(event)
                    && entry.is_grouped()
                    && entry.state() == EventState::Waiting
                    && self.table().first_of(event).is_some()
                {
                    self.await_group(event);
                }
            }
        }
    }

    /// Lets software events stand still, as those of counters do, until they [follow](Self::settle_software) again.
    #[inline(always)]
    pub(crate) fn pause_software(&self) {
        if S::Facility::SOFTWARE {
            let counting = self.table().opened().filter(|(_, entry)| entry.counts_in_software());
            for (_, entry) in counting {
                self.enter_state(entry, EventState::Waiting);
            }
        }
    }

    /// Lets the software events that are enabled follow the events of their groups that take counters.
    #[inline(always)]
    pub(crate) fn settle_software(&self) {
        if S::Facility::SOFTWARE {
            self.follow_groups();
        }
    }

    fn follow_groups(&self) {
        for (event, entry) in self.table().opened() {
            let state = entry.state();
            if !entry.is_software() || state == EventState::Stopped {
                continue;
            }
            let counted = |(_, of): &(EventId, &EventEntry)| {
                !of.is_software()
                    && !of.is_disabled()
                    && entry.group().is_some()
                    && of.group() == entry.group()
            };
            let leads = self.table().opened().find(counted);
            let follows = match leads.map(|(event, leads)| (event, leads.state())) {
                // A task enables it again.
                _ if state == EventState::Refused => state,
                // Without what takes a counter in its group, of which a part is elsewhere, it does not count.
                None if self.check_whole(event).is_err() => state,
                None => EventState::Counting,
                Some((event, EventState::Counting)) if !self.is_enabled(event) => {
                    EventState::lost(entry)
                }
                Some((_, state)) => state,
            };
            if follows != state {
                self.enter_state(entry, follows);
            }
        }
    }
}
