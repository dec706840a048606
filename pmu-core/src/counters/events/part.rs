//! Events that hardware counts as parts of another event.

use crate::counters::events::event::{Event, EventKind};
use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::select::EventSelect;

impl Event {
    /// Creates the event of one part of another event's occurrences, where hardware divides these into parts: part
    /// `number` of the issue slots that Intel's fixed counter 3 counts, for instance. `number` is from 0 to 7; of a
    /// greater number, the low three bits count.
    ///
    /// A part needs no counter. It is opened in a group, after the event that is divided, and counts whenever that
    /// event counts. Both have the same privilege levels, and neither has a period. A read of the group returns the
    /// counts and their parts of one moment. A part cannot be enabled or disabled by itself.
    ///
    /// The session's event source must have the facility: see [`Division`](crate::facility::Division). If no facility
    /// of the source divides, opening the event fails with
    /// [`NoCounterForEvent`](crate::CounterError::NoCounterForEvent); if none divides the event before it into this
    /// part, with [`NotDivided`](crate::CounterError::NotDivided). A thread's group is not counted on a core that does
    /// not divide. A part is never [started](crate::CounterSession::is_started) itself; its
    /// [status](crate::CounterSession::event_status) is that of the event that is divided.
    ///
    /// ```
    /// use pmu_core::{Event, EventSelect};
    /// // Intel's issue slots in user mode, of which part 0 retired.
    /// let slots = Event::raw(EventSelect::from_bits(0x0400)).user_only();
    /// let group = [slots, Event::part(0).user_only()];
    /// assert!(group[1].is_part() && !group[0].is_part());
    /// ```
    pub const fn part(number: u8) -> Self {
        let select = EventSelect::PART as u64 | ((number & 7) as u64) << 8;
        Self { counters: CounterSet::NONE, ..Self::raw(EventSelect::from_bits(select)) }
    }

    /// Returns whether the event is a [part](Self::part) of another event.
    pub const fn is_part(&self) -> bool {
        let is_none = self.counters.bits() == 0;
        match self.kind {
            EventKind::Raw(select) => {
                is_none && select.select_bits() & !0x0700 == EventSelect::PART as u64
            }
            EventKind::Generic(_) => false,
        }
    }
}
