//! An event that is on no processor: switched out, or created without a processor.

use crate::branches::filter::PackedFilter;
use crate::counters::events::count::EventCount;
use crate::counters::events::event::{Event, EventKind, GuestMode};
use crate::counters::events::extra::Extra;
use crate::counters::events::membership::Membership;
use crate::counters::events::period::Period;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::generic_event::GenericEvent;
use crate::counters::names::group_id::GroupId;
use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::msr::optional::OptionalAddress;
use crate::precise::request::PackedPrecise;

/// An event that is on no processor, as plain data. The event can be switched in on any processor.
///
/// [`switch_out`](crate::CounterSession::switch_out) makes a saved event from an opened event, and [`new`](Self::new)
/// creates a saved event directly. [`switch_in`](crate::CounterSession::switch_in) puts the event on a processor.
///
/// In this example, a system call opens an event, a new thread inherits the event, and the thread's exit adds the
/// thread's count:
///
/// ```
/// use pmu_core::{CounterError, CounterUnit, Event};
/// use pmu_core::thread::{SavedEvent, ThreadEvent};
/// /// Opens an event for a thread that does not run.
/// fn open(unit: &CounterUnit, event: &Event) -> Result<ThreadEvent, CounterError> {
///     Ok(ThreadEvent::SwitchedOut(SavedEvent::new(unit, event)?.to_be_started(true)))
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
/// # assert_eq!(open(&unit, &cycles), Err(CounterError::Unsupported(pmu_core::GenericEvent::Cycles)));
/// # let _ = (inherit, exit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SavedEvent {
    /// The event was started: on a counter, waiting for one, or refused one.
    pub(crate) started: bool,
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
    pub(crate) select: u64,
    pub(crate) tag: u64,
    pub(crate) counters: u64,
    pub(crate) period: Period,
    pub(crate) count: EventCount,
    pub(crate) forgotten: [u64; 2],
}

impl SavedEvent {
    pub(crate) const NONE: Self = Self {
        started: false,
        total_wanted: false,
        rotates: false,
        attributes: 0,
        core_type: 0,
        membership: 0,
        extra: Extra::NONE,
        branches: PackedFilter::NONE,
        select: 0,
        tag: 0,
        counters: 0,
        period: Period::new(0),
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
            ..Self::NONE
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

    /// Returns whether [`switch_in`](crate::CounterSession::switch_in) will start the event. An event that was started
    /// at [`switch_out`](crate::CounterSession::switch_out) starts again.
    pub const fn is_started(&self) -> bool {
        self.started
    }

    /// Returns the event with a new start state: [`switch_in`](crate::CounterSession::switch_in) starts the event only
    /// if `started` is set. If `started` is set, the event also reports overflows again after
    /// [`stop_reporting`](crate::EventTable::stop_reporting). An event that is [disabled](Self::disabled) in its group
    /// stays stopped.
    pub const fn to_be_started(mut self, started: bool) -> Self {
        if started {
            self.period = self.period.reporting();
        }
        let membership = Membership::unpack(self.membership);
        let disabled = membership.group != 0 && membership.has(Membership::DISABLED);
        self.started = started && !disabled;
        self
    }

    /// [Disables](crate::CounterSession::disable_event) the event, and returns it. The event's group is then counted
    /// without this event.
    ///
    /// For the first event of a group, and for an event in no group, the call does the same as
    /// [`to_be_started(false)`](Self::to_be_started). A disabled event stays disabled in a new
    /// [group](Self::make_group), except as the group's first event.
    #[must_use]
    pub const fn disabled(mut self) -> Self {
        let membership = Membership::unpack(self.membership);
        let can_be = !membership.has(Membership::FIRST);
        self.membership = membership.with(Membership::DISABLED, can_be).pack();
        self.started = false;
        self
    }

    /// [Enables](crate::CounterSession::enable_event) the event, and returns it. The event's group is then counted with
    /// this event again. `first` is the first event of the group.
    #[must_use]
    pub const fn enabled(mut self, first: &Self) -> Self {
        let membership = Membership::unpack(self.membership);
        self.membership = membership.with(Membership::DISABLED, false).pack();
        self.to_be_started(first.started)
    }

    /// Returns the counters that can count the event.
    pub(crate) const fn counters(&self) -> CounterSet {
        CounterSet::from_bits(self.counters)
    }

    /// Returns whether the event is a [part](Event::part) of another one: no counter can count it.
    pub(crate) const fn is_part(&self) -> bool {
        self.counters == 0
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
        let user_rdpmc = Membership::unpack(self.membership).has(Membership::USER_RDPMC);
        let denied = processor.has_user_rdpmc_control() && !user_rdpmc;
        select.without_user_rdpmc(denied)
    }

    /// Returns the event as it was asked for, without what the facilities of a processor
    /// [made](crate::EventEntry) of it.
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
}

/// Returns the type of core that counts an event opened on this processor; 0: every type.
const fn core_type_of(event: &Event, processor: &CounterUnit) -> u32 {
    let is_raw = matches!(event.kind, EventKind::Raw(_));
    if is_raw && !event.any_core_type { processor.core_type() } else { 0 }
}
