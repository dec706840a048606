//! Events without a processor: made, changed, grouped, and inherited.

use crate::counters::error::{CounterError, GroupError};
use crate::counters::events::count::EventCount;
use crate::counters::events::event::{Event, EventKind};
use crate::counters::events::membership::Membership;
use crate::counters::events::period::Period;
use crate::counters::events::saved::SavedEvent;
use crate::counters::names::counter_id::MAX_COUNTERS;
use crate::counters::names::group_id::GroupId;
use crate::counters::registers::unit::CounterUnit;

impl SavedEvent {
    /// Creates an event, stopped, without a processor: no counter, table or session is needed. `unit` describes a
    /// processor that can count it. A raw event is of that processor's [type of core](CounterUnit::core_type).
    ///
    /// # Context
    /// Any. No register is accessed.
    ///
    /// # Errors
    /// Those of [`open_event`](crate::CounterSession::open_event) that the unit decides:
    /// [`Unsupported`](CounterError::Unsupported), [`IllegalBits`](CounterError::IllegalBits),
    /// [`GuestModeUnsupported`](CounterError::GuestModeUnsupported),
    /// [`NeedsCounterPair`](CounterError::NeedsCounterPair), [`NoCounterForEvent`](CounterError::NoCounterForEvent).
    /// [`Period`](CounterError::Period): below [`DEFAULT_MIN_PERIOD`](crate::EventTable::DEFAULT_MIN_PERIOD), or
    /// beyond 63 bits. [`set_period`](Self::set_period) sets a shorter one, by a table's minimum.
    pub fn new(unit: &CounterUnit, event: &Event) -> Result<Self, CounterError> {
        let (select, counters) = unit.resolve(event)?;
        if counters.is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        if let Some(period) = event.period()
            && !(Period::DEFAULT_MIN..=Period::MAX).contains(&period)
        {
            return Err(CounterError::Period(period));
        }
        Ok(Self::resolved(event, select, counters, core_type_of(event, unit)))
    }

    /// Makes these events a group: they are counted together, or not at all, and all of them are to be given to
    /// [`switch_in`](crate::CounterSession::switch_in). The group [rotates](Event::rotating) if its first event does,
    /// and is to be started if its first event is. Members of an earlier group leave it.
    ///
    /// Whether counters can count the group together is known on a processor only:
    /// [`switch_in`](crate::CounterSession::switch_in) returns it.
    ///
    /// # Errors
    /// [`NoEvents`](CounterError::NoEvents). [`NoFreeCounter`](CounterError::NoFreeCounter): no processor has so many
    /// counters. Nothing was changed.
    pub fn make_group(events: &mut [Self]) -> Result<GroupId, GroupError> {
        let first = events.first().ok_or(GroupError::of_group(CounterError::NoEvents))?;
        let (rotates, started, members) = (first.rotates, first.started, events.len());
        if members > MAX_COUNTERS {
            return Err(GroupError::of_member(MAX_COUNTERS, CounterError::NoFreeCounter));
        }
        let group = GroupId::new();
        for event in events {
            let membership = Membership::unpack(event.membership);
            let (group, members) = (group.bits(), members as u8);
            event.membership = Membership { group, members, ..membership }.pack();
            (event.rotates, event.started) = (rotates, started);
        }
        Ok(group)
    }

    /// Returns a child of the event, for a new thread: the same event with this `tag`, its count and times 0, and a
    /// whole period before it. It is to be started if the parent is.
    ///
    /// The child of a group's member is in no group. [`make_group`](Self::make_group) makes a new thread's children a
    /// group of their own.
    pub fn child(&self, tag: u64) -> Self {
        let membership = Membership::unpack(self.membership);
        Self {
            membership: Membership::ungrouped(self.name(), membership.user_rdpmc).pack(),
            tag,
            period: Period::new(self.period.reporting().every),
            count: EventCount::default(),
            forgotten: [0; 2],
            ..*self
        }
    }

    /// Adds a child's count to the event's: its value and both times. The event's own share of the counters at
    /// [`rotate`](crate::CounterSession::rotate) stays the same.
    ///
    /// To the count of an event on a processor, [`CounterSession::add_count`](crate::CounterSession::add_count) adds.
    pub fn add_count(&mut self, child: EventCount) {
        let add = |to: &mut u64, more: u64| *to = to.wrapping_add(more);
        add(&mut self.count.value, child.value);
        add(&mut self.count.enabled, child.enabled);
        add(&mut self.count.running, child.running);
        add(&mut self.forgotten[0], child.enabled << 8);
        add(&mut self.forgotten[1], child.running << 8);
    }

    /// Sets the count to 0, as `PERF_EVENT_IOC_RESET` does: both times go on, and so does a period.
    pub const fn reset_count(mut self) -> Self {
        self.count.value = 0;
        self
    }
}

/// Returns the type of core that counts an event opened on this processor; 0: every type.
pub(crate) const fn core_type_of(event: &Event, processor: &CounterUnit) -> u32 {
    let is_raw = matches!(event.kind, EventKind::Raw(_));
    if is_raw && !event.any_core_type { processor.core_type() } else { 0 }
}
