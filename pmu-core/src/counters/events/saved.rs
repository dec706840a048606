//! An event that is on no processor: switched out, or created without a processor.

use crate::access::address::OptionalAddress;
use crate::branches::filter::PackedFilter;
use crate::counters::error::{CounterError, EventsError};
use crate::counters::events::count::{EventCount, Membership, Period, Rate};
use crate::counters::events::event::{Event, EventKind, GuestMode, Reporting};
use crate::counters::events::resolve::Extra;
use crate::counters::events::software::SoftwareEvent;
use crate::counters::names::{CounterSet, GenericEvent, GroupId, MAX_COUNTERS};
use crate::counters::registers::counter::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::precise::request::{NotPrecise, PackedPrecise};

/// An event that is on no processor, as plain data. The event can be switched in on any processor.
///
/// [`switch_out`](crate::CounterSession::switch_out) makes a saved event from an opened event, and [`new`](Self::new)
/// creates a saved event directly. [`switch_in`](crate::CounterSession::switch_in) puts the event on a processor.
///
/// In this example, a system call opens an event, a new thread inherits the event, and the thread's exit adds the
/// thread's count:
///
/// ```
/// use pmu_core::{CounterUnit, Event};
/// use pmu_core::error::CounterError;
/// use pmu_core::thread::{SavedEvent, ThreadEvent};
/// /// Opens an event for a thread that does not run.
/// fn open(unit: &CounterUnit, event: &Event) -> Result<ThreadEvent, CounterError> {
///     Ok(ThreadEvent::SwitchedOut(SavedEvent::new(unit, event)?.to_be_enabled(true)))
/// }
/// /// Creates the event that a new thread inherits.
/// fn inherit(parent: &SavedEvent, tag: u64) -> ThreadEvent {
///     ThreadEvent::SwitchedOut(parent.child(tag))
/// }
/// /// Adds the count of a thread that exits.
/// fn exit(parent: &mut SavedEvent, child: &SavedEvent) {
///     parent.add_count(child.count());
/// }
/// # let unit = CounterUnit::NONE;
/// # let cycles = Event::generic(pmu_core::GenericEvent::Cycles);
/// # let why = pmu_core::error::NoInterface::NoPerformanceMonitoring;
/// # assert_eq!(open(&unit, &cycles), Err(CounterError::NoCounters(why)));
/// # let _ = (inherit, exit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SavedEvent {
    /// The event was enabled: on a counter, waiting for one, or refused one.
    pub(crate) enabled: bool,
    pub(crate) total_wanted: bool,
    pub(crate) rotates: bool,
    /// The guest mode in the low two bits, and what is asked of precise sampling above it.
    pub(crate) attributes: u16,
    /// The only type of core that counts it; 0: every type.
    pub(crate) core_type: u32,
    pub(crate) membership: u64,
    pub(crate) extra: Extra,
    /// The branches of its samples.
    pub(crate) branches: PackedFilter,
    /// [Number](crate::facility::EventFacility::claim) of the call stack that is kept for it; 0 for none.
    pub(crate) stack: u32,
    pub(crate) select: u64,
    pub(crate) tag: u64,
    pub(crate) counters: u64,
    pub(crate) period: Period,
    pub(crate) rate: Rate,
    pub(crate) count: EventCount,
    pub(crate) forgotten: [u64; 2],
}

impl SavedEvent {
    pub(crate) const NONE: Self = Self {
        enabled: false,
        total_wanted: false,
        rotates: false,
        attributes: 0,
        core_type: 0,
        membership: 0,
        extra: Extra::NONE,
        branches: PackedFilter::NONE,
        stack: 0,
        select: 0,
        tag: 0,
        counters: 0,
        period: Period::new(0),
        rate: Rate::new(0),
        count: EventCount { value: 0, enabled: 0, running: 0 },
        forgotten: [0; 2],
    };

    /// Creates the event, with the `select` and the `counters` to which it resolves on a processor.
    pub(crate) fn resolved(
        event: &Event,
        processor: &CounterUnit,
        select: EventSelect,
        counters: CounterSet,
    ) -> Self {
        // The global control register confines an event that its select does not confine.
        let is_confined = select.select_bits() & processor.guest_bits()[0] != 0;
        let by_control = event.guest == GuestMode::GuestOnly && !is_confined;
        let flags = event.flags | if by_control { Membership::IN_GUESTS } else { 0 };
        Self {
            total_wanted: event.reporting.keeps_total(),
            rotates: event.rotates,
            attributes: event.guest as u16 | event.precise.bits(),
            core_type: core_type_of(event, processor),
            membership: Membership {
                reload: event.reload,
                ..Membership::ungrouped(event.name(), flags)
            }
            .pack(),
            extra: event.extra,
            branches: event.branches,
            select: select.select_bits(),
            tag: event.tag,
            counters: counters.bits(),
            period: Period::new(event.reporting.period),
            rate: Rate::new(event.reporting.hertz),
            ..Self::NONE
        }
    }

    /// Returns what the event selects, by its select: its privilege levels, its guest mode, its counters, its period.
    pub(crate) fn event(&self) -> Event {
        Event {
            guest: GuestMode::of_bits(self.attributes),
            reporting: Reporting {
                period: self.period.reporting().every,
                hertz: self.rate.hertz,
                total: true,
            },
            counters: CounterSet::from_bits(self.counters) & CounterSet::ALL,
            ..SoftwareEvent::of_select(self.select())
                .map_or_else(|| Event::raw(self.select()), Event::software)
        }
    }

    /// Returns the count that the event had when it was switched out.
    ///
    /// ```
    /// # use pmu_core::thread::ThreadEvent;
    /// /// Returns the instructions that a thread has executed, if the thread's event is switched out.
    /// fn instructions(event: &ThreadEvent) -> Option<u64> {
    ///     match event {
    ///         ThreadEvent::SwitchedOut(saved) => Some(saved.count().value),
    ///         _ => None,
    ///     }
    /// }
    /// ```
    pub const fn count(&self) -> EventCount {
        self.count
    }

    /// Returns the event's select, without the enable bit (22) and the interrupt bit (20).
    pub const fn select(&self) -> EventSelect {
        EventSelect::from_bits(self.select)
    }

    /// Returns whether [`switch_in`](crate::CounterSession::switch_in) will enable the event. An event that was enabled
    /// at [`switch_out`](crate::CounterSession::switch_out) is enabled again.
    pub const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the event to be enabled or not: [`switch_in`](crate::CounterSession::switch_in) enables the event only
    /// if `enabled` is set. If `enabled` is set, the event also reports overflows again after
    /// [`stop_reporting`](crate::memory::EventTable::stop_reporting). An event that is [disabled](Self::disabled) in
    /// its group stays so.
    pub const fn to_be_enabled(mut self, enabled: bool) -> Self {
        if enabled {
            self.period = self.period.reporting();
            self.rate.unthrottle();
        }
        let membership = Membership::unpack(self.membership);
        let disabled = membership.group != 0 && membership.has(Membership::DISABLED);
        self.enabled = enabled && !disabled;
        self
    }

    /// [Disables](crate::CounterSession::disable) the event, and returns it. The event's group is then counted
    /// without this event.
    ///
    /// For the first event of a group, and for an event in no group, the call does the same as
    /// [`to_be_enabled(false)`](Self::to_be_enabled). A disabled event stays disabled in a new
    /// [group](Self::make_group), except as the group's first event.
    #[must_use]
    pub const fn disabled(mut self) -> Self {
        let membership = Membership::unpack(self.membership);
        let can_be = !membership.has(Membership::FIRST);
        self.membership = membership.with(Membership::DISABLED, can_be).pack();
        self.enabled = false;
        self
    }

    /// [Enables](crate::CounterSession::enable) the event, and returns it. The event's group is then counted with
    /// this event again. `first` is the first event of the group.
    #[must_use]
    pub const fn enabled(mut self, first: &Self) -> Self {
        let membership = Membership::unpack(self.membership);
        self.membership = membership.with(Membership::DISABLED, false).pack();
        self.to_be_enabled(first.enabled)
    }

    /// Returns the counters that can count the event.
    pub(crate) const fn counters(&self) -> CounterSet {
        CounterSet::from_bits(self.counters)
    }

    /// Returns whether the event is a [part](Event::part) of another one: no counter can count it.
    pub(crate) const fn is_part(&self) -> bool {
        self.counters == 0 && !self.is_software()
    }

    /// Returns whether the kernel's calls count the event.
    pub(crate) const fn is_software(&self) -> bool {
        self.select & EventSelect::SOFTWARE != 0
    }

    /// Returns whether cores of this type count the event.
    pub(crate) const fn is_of_core_type(&self, core_type: u32) -> bool {
        self.core_type == 0 || self.core_type == core_type
    }

    /// Returns the group of the event.
    pub(crate) fn group(&self) -> Option<GroupId> {
        GroupId::of_bits(Membership::unpack(self.membership).group)
    }

    /// Returns the event's select on a processor: RDPMC user disable differs between cores.
    pub(crate) fn select_on(&self, processor: &CounterUnit) -> EventSelect {
        let select = EventSelect::from_bits(self.select & !EventSelect::NO_USER_RDPMC);
        let user_rdpmc = Membership::unpack(self.membership).has(Membership::USER_READS);
        let denied = processor.can_deny_user_reads() && !user_rdpmc;
        select.without_user_reads(denied)
    }

    /// Returns the event as it was asked for, without what the facilities of a processor
    /// [made](crate::memory::EventEntry) of it.
    #[inline(never)] // 176 bytes of the Hermit-like glue.
    pub(crate) fn as_asked(mut self) -> Self {
        let asked = self.counters >> 16 & 0xFFFF | self.counters >> 8 & 0xFF << 32;
        if asked != 0 {
            self.counters = asked;
        }
        if self.precise().has_latency() {
            self.extra.registers[0] = OptionalAddress::NONE;
        } else if self.extra.is_none() {
            self.select ^= self.extra.differences >> 32;
            self.extra.differences = 0;
        }
        self
    }

    pub(crate) const fn guest_mode(&self) -> GuestMode {
        GuestMode::of_bits(self.attributes)
    }

    pub(crate) const fn precise(&self) -> PackedPrecise {
        PackedPrecise::of_bits(self.attributes)
    }

    pub(crate) fn name(&self) -> Option<GenericEvent> {
        Membership::unpack(self.membership).name()
    }

    /// Creates a disabled event that is on no processor. The call needs no counter, table or session. `unit` describes
    /// a processor that can count the event. By default, a [raw](Event::raw) event is counted only on the [type of
    /// core](CounterUnit::core_type) of `unit`.
    ///
    /// The call does not know the facilities of a session. It accepts an event that is [precise](Event::precise), has
    /// [branches](Event::with_branches) or is to be [reloaded](Event::reloaded_by), and the event is not counted on a
    /// processor that cannot do this. To learn the reason, open the event on the processor by
    /// [`open`](crate::CounterSession::open), and make it a saved event by
    /// [`switch_out`](crate::CounterSession::switch_out).
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
    ///   [`DEFAULT_MIN_PERIOD`](crate::memory::EventTable::DEFAULT_MIN_PERIOD), or does not fit in 63 bits. For a table
    ///   with a lower minimum, set a shorter period by [`set_period`](Self::set_period).
    /// - [`NotPrecise`](CounterError::NotPrecise): the event is precise and has no period, or it has
    ///   [parts](Event::recording) or a [latency](Event::latency_at_least) and is not precise.
    /// - [`NotReloadable`](CounterError::NotReloadable): the event is precise and is to be reloaded.
    pub fn new(unit: &CounterUnit, event: &Event) -> Result<Self, CounterError> {
        if let Some(software) = event.software_event() {
            return Self::software(unit, event, software);
        }
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

    fn software(
        unit: &CounterUnit,
        event: &Event,
        software: SoftwareEvent,
    ) -> Result<Self, CounterError> {
        let event = event.checked_software(software)?;
        let (select, counters) = unit.resolve(&event)?;
        Ok(Self::resolved(&event, unit, select, counters))
    }

    /// Makes a group of `events`, which are then counted together or not at all. Pass all events of the group to
    /// [`switch_in`](crate::CounterSession::switch_in) in one call. The first event decides whether the group
    /// [rotates](Event::rotating), whether it is [exclusive](Event::exclusive), and whether it is to be enabled. An
    /// event other than the first stays so if it is [disabled](Self::disabled). Events that belong to another
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
    pub fn make_group(events: &mut [Self]) -> Result<(), EventsError> {
        let first = events.first().ok_or(EventsError::of_group(CounterError::NoEvents))?;
        let (rotates, enabled, members) = (first.rotates, first.enabled, events.len());
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
            (event.rotates, event.enabled) = (rotates, enabled && !disabled);
        }
        Ok(())
    }

    /// Returns a child of the event for a new thread. The child is a copy of the event with the given `tag`. The
    /// child's count and times are 0, and the child begins a new period. The child has the event's
    /// [state](Self::is_enabled).
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
            rate: Rate::new(self.rate.hertz),
            stack: 0,
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
        add(&mut self.rate.counted, child.value);
        add(&mut self.count.enabled, child.enabled);
        add(&mut self.count.running, child.running);
        add(&mut self.forgotten[0], child.enabled << 8);
        add(&mut self.forgotten[1], child.running << 8);
    }

    /// Returns the event with a count of 0, like `PERF_EVENT_IOC_RESET`. The event's times, and the remainder of its
    /// current period, stay unchanged.
    pub const fn reset_count(mut self) -> Self {
        self.rate.counted = self.rate.counted.wrapping_sub(self.count.value);
        self.count.value = 0;
        self
    }
}

/// Returns the type of core that counts an event opened on this processor; 0: every type.
const fn core_type_of(event: &Event, processor: &CounterUnit) -> u32 {
    let is_raw = matches!(event.kind, EventKind::Raw(_));
    if is_raw && !event.any_core_type { processor.core_type() } else { 0 }
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
