//! Events without a processor: made, changed, grouped, and inherited.

use crate::counters::error::{CounterError, EventsError};
use crate::counters::events::count::EventCount;
use crate::counters::events::event::Event;
use crate::counters::events::membership::Membership;
use crate::counters::events::period::Period;
use crate::counters::events::saved::SavedEvent;
use crate::counters::names::counter_id::MAX_COUNTERS;
use crate::counters::names::group_id::GroupId;
use crate::counters::registers::unit::CounterUnit;
use crate::precise::error::NotPrecise;

impl SavedEvent {
    /// Creates a stopped event that is on no processor. The call needs no counter, table or session. `unit` describes a
    /// processor that can count the event. By default, a [raw](Event::raw) event is counted only on the
    /// [type of core](CounterUnit::core_type) of `unit`.
    ///
    /// The call does not know the facilities of a session. It accepts an event that is [precise](Event::precise), has
    /// [branches](Event::with_branches) or is to be [reloaded](Event::reloaded_by), and the event is not counted on a
    /// processor that cannot do this. To learn the reason, open the event on the processor by
    /// [`open_event`](crate::CounterSession::open_event) or [`open_group`](crate::CounterSession::open_group), and make
    /// it a saved event by [`switch_out`](crate::CounterSession::switch_out).
    ///
    /// # Context
    /// Any context. No register is accessed.
    ///
    /// # Errors
    /// - [`Unsupported`](CounterError::Unsupported), [`IllegalBits`](CounterError::IllegalBits),
    ///   [`GuestModeUnsupported`](CounterError::GuestModeUnsupported),
    ///   [`NeedsCounterPair`](CounterError::NeedsCounterPair), [`NoCounterForEvent`](CounterError::NoCounterForEvent):
    ///   `unit` cannot count the event.
    /// - [`Period`](CounterError::Period): the period is below
    ///   [`DEFAULT_MIN_PERIOD`](crate::EventTable::DEFAULT_MIN_PERIOD), or does not fit in 63 bits. For a table with a
    ///   lower minimum, set a shorter period by [`set_period`](Self::set_period).
    /// - [`NotPrecise`](CounterError::NotPrecise): the event is precise and has no period, or it has
    ///   [parts](Event::recording) or a [latency](Event::latency_at_least) and is not precise.
    /// - [`NotReloadable`](CounterError::NotReloadable): the event is precise and is to be reloaded.
    pub fn new(unit: &CounterUnit, event: &Event) -> Result<Self, CounterError> {
        let (select, counters) = unit.resolve_with_units(event)?;
        if counters.is_empty() && !event.is_part() {
            return Err(CounterError::NoCounterForEvent);
        }
        if let Some(period) = event.period()
            && !(Period::DEFAULT_MIN..=Period::MAX).contains(&period)
        {
            return Err(CounterError::Period(period));
        }
        check_precise(event)?;
        Ok(Self::resolved(event, unit, select, counters))
    }

    /// Makes a group of `events`, which are then counted together or not at all. Pass all events of the group to
    /// [`switch_in`](crate::CounterSession::switch_in) in one call. The first event decides whether the group
    /// [rotates](Event::rotating), whether it is [exclusive](Event::exclusive), and whether it is to be started. An
    /// event other than the first stays stopped if it is [disabled](Self::disabled). Events that belong to another
    /// group leave that group.
    ///
    /// This call does not check whether a processor's counters can count the whole group. If the counters cannot,
    /// [`switch_in`](crate::CounterSession::switch_in) returns an error.
    ///
    /// # Errors
    /// If one of these errors is returned, nothing was changed:
    /// - [`NoEvents`](CounterError::NoEvents): `events` is empty.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter): the group has more events than any processor has counters.
    /// - [`NotReloadable`](CounterError::NotReloadable): the counter of an event cannot be
    ///   [reloaded](Event::reloaded_by).
    pub fn make_group(events: &mut [Self]) -> Result<GroupId, EventsError> {
        let first = events.first().ok_or(EventsError::of_group(CounterError::NoEvents))?;
        let (rotates, started, members) = (first.rotates, first.started, events.len());
        let exclusive = Membership::unpack(first.membership).has(Membership::EXCLUSIVE);
        if members > MAX_COUNTERS {
            return Err(EventsError::of_member(MAX_COUNTERS, CounterError::NoFreeCounter));
        }
        for member in 0..members {
            reloads_others(events, member)
                .ok_or(EventsError::of_member(member, CounterError::NotReloadable))?;
        }
        let group = GroupId::new();
        for number in 0..members {
            let reloads = reloads_others(events, number).unwrap_or(false);
            let Some(event) = events.get_mut(number) else { continue };
            let membership = Membership::unpack(event.membership);
            let disabled = number != 0 && membership.has(Membership::DISABLED);
            let membership = membership
                .with(Membership::DISABLED, disabled)
                .with(Membership::FIRST, number == 0)
                .with(Membership::EXCLUSIVE, exclusive)
                .with(Membership::RELOADS, reloads);
            let (group, members) = (group.bits(), members as u8);
            event.membership = Membership { group, members, ..membership }.pack();
            (event.rotates, event.started) = (rotates, started && !disabled);
        }
        Ok(group)
    }

    /// Returns a child of the event for a new thread. The child is a copy of the event with the given `tag`. The
    /// child's count and times are 0, and the child begins a new period. The child has the event's
    /// [start state](Self::is_started).
    ///
    /// The child is in no group, even if the event belongs to a group. [`make_group`](Self::make_group) makes the
    /// children of one thread a group of their own. If the event is [disabled](Self::disabled) in its group, the child
    /// is also disabled in the children's group.
    pub fn child(&self, tag: u64) -> Self {
        let Membership { flags, reload, .. } = Membership::unpack(self.membership);
        let flags = flags & !(Membership::FIRST | Membership::RELOADS);
        Self {
            membership: Membership { reload, ..Membership::ungrouped(self.name(), flags) }.pack(),
            tag,
            period: Period::new(self.period.reporting().every),
            count: EventCount::default(),
            forgotten: [0; 2],
            ..*self
        }
    }

    /// Adds a child's count to the event's count: the value, and the `enabled` and `running` times.
    /// [`rotate`](crate::CounterSession::rotate) ignores the added times.
    ///
    /// For an event that is open on a processor, use [`CounterSession::add_count`](crate::CounterSession::add_count).
    pub fn add_count(&mut self, child: EventCount) {
        let add = |to: &mut u64, more: u64| *to = to.wrapping_add(more);
        add(&mut self.count.value, child.value);
        add(&mut self.count.enabled, child.enabled);
        add(&mut self.count.running, child.running);
        add(&mut self.forgotten[0], child.enabled << 8);
        add(&mut self.forgotten[1], child.running << 8);
    }

    /// Returns the event with a count of 0, like `PERF_EVENT_IOC_RESET`. The event's times, and the remainder of its
    /// current period, stay unchanged.
    pub const fn reset_count(mut self) -> Self {
        self.count.value = 0;
        self
    }
}

/// Checks what no facility can do.
const fn check_precise(event: &Event) -> Result<(), CounterError> {
    let reason = match (event.precision(), event.period()) {
        (Some(_), _) if event.reload != 0 => return Err(CounterError::NotReloadable),
        (Some(_), None) => NotPrecise::NoPeriod,
        (None, _) if event.latency().is_some() => NotPrecise::NotLatencyEvent,
        (None, _) if !event.parts().is_empty() => NotPrecise::Parts(event.parts()),
        _ => return Ok(()),
    };
    Err(CounterError::NotPrecise(reason))
}

/// Returns whether one of the events of a group reloads others; `None` if the event cannot be reloaded as it asks.
fn reloads_others(events: &[SavedEvent], member: usize) -> Option<bool> {
    let named = events.iter().map(|event| Membership::unpack(event.membership).reload);
    let event = events.get(member)?;
    Membership::reloads_others(named, member, (event.period.every, event.total_wanted))
}
