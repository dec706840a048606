//! The events that are on a session's counters, as a facility is settled on them.

use crate::access::address::RegisterAddress;
use crate::access::backend::AccessFault;
use crate::branches::filter::BranchFilter;
use crate::counters::error::CounterError;
use crate::counters::events::count::Membership;
use crate::counters::events::event::{Event, GuestMode};
use crate::counters::events::resolve::Extra;
use crate::counters::events::saved::SavedEvent;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::{Counter, EventSelect};
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::CounterSlot;
use crate::counters::shared::table::EventTable;
use crate::precise::request::{NotPrecise, PackedPrecise, Precision, SampleParts};

/// Counters whose events must not run, because registers of a facility did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Unsettled {
    /// The counters. If one of them counts an event of a group, the whole group is stopped.
    pub counters: CounterSet,
    /// The first access that failed, and its retry.
    pub fault: AccessFault,
}

/// The events that are on a session's counters.
#[derive(Clone, Copy, Debug)]
pub struct Running<'r> {
    pub(crate) unit: &'r CounterUnit,
    pub(crate) memory: &'r CounterMemory,
    pub(crate) table: &'r EventTable,
    pub(crate) counters: CounterSet,
    pub(crate) moment: Moment,
    /// An event that is about to be started on a counter.
    pub(crate) coming: Option<(CounterId, EventId)>,
}

/// The reason why the session settles its facilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Events came or went.
    Changed,
    /// Another thread runs.
    Switched,
    /// The counters are the session's again.
    Returned,
    /// The counters are about to be another owner's: no event is on them.
    Lent,
    /// The session ends.
    GivenUp,
}

impl<'r> Running<'r> {
    /// Returns all counters of the session, used or not.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns whether the counters are about to be another owner's, for example a guest's. No event is on them then,
    /// and the facility leaves nothing that the other owner may not see.
    pub fn are_lent(&self) -> bool {
        matches!(self.moment, Moment::Lent | Moment::GivenUp)
    }

    /// Returns whether the session ends: the counters are given up for good.
    pub fn are_given_up(&self) -> bool {
        self.moment == Moment::GivenUp
    }

    /// Returns whether another thread is about to run. The facility leaves nothing that the other thread's samples may
    /// not show.
    pub fn are_switched(&self) -> bool {
        self.moment == Moment::Switched
    }

    /// Returns whether the events go on after the counters were another owner's, or after their registers were lost.
    pub fn are_returned(&self) -> bool {
        self.moment == Moment::Returned
    }

    /// Returns the counters whose events' samples have [branches](crate::Event::with_branches), with the filter, which
    /// all these events have in common.
    pub fn with_branches(&self) -> Option<(CounterSet, BranchFilter)> {
        let mut found = None;
        for counter in self.counters.iter() {
            if let Some(filter) = self.on(counter).and_then(|event| event.branches()) {
                let others = found.map_or(CounterSet::NONE, |(others, _)| others);
                found = Some((others | counter.only(), filter));
            }
        }
        found
    }

    /// Returns the registers of one of these counters.
    pub fn registers(&self, counter: CounterId) -> Counter {
        self.unit.registers(counter)
    }

    /// Returns the event that is on a counter.
    #[inline(never)] // 672 bytes of the Hermit-like glue, at `opt-level` 3.
    pub fn on(&self, counter: CounterId) -> Option<RunningEvent<'r>> {
        let slot = self.memory.slot(counter).filter(|_| !self.are_lent())?;
        let coming = self.coming.filter(|(on, _)| *on == counter).map(|(_, event)| event);
        RunningEvent::of(self.table, coming.or(slot.running())?)
    }

    /// Returns whether the event on a counter is about to be started. Until the facility is settled again, it is not
    /// known whether it was.
    pub fn is_coming(&self, counter: CounterId) -> bool {
        self.coming.is_some_and(|(on, _)| on == counter)
    }

    /// Returns the counters whose overflows are to reload this counter: those of the events that its event
    /// [names](crate::Event::reloaded_by), as far as they are on counters.
    pub fn reloaded_by(&self, counter: CounterId) -> CounterSet {
        let Some(RunningEvent { event: of, entry, .. }) = self.on(counter) else {
            return CounterSet::NONE;
        };
        let named = entry.membership().reload;
        if named == 0 || !entry.is_grouped() {
            return CounterSet::NONE;
        }
        let named = self
            .table
            .members(of)
            .take(8)
            .enumerate()
            .filter(|(member, _)| named >> member & 1 != 0);
        named.filter_map(|(_, (event, _))| self.counter_of(event)).collect()
    }

    fn counter_of(&self, event: EventId) -> Option<CounterId> {
        let is_on = |counter: &CounterId| {
            self.memory.slot(*counter).and_then(CounterSlot::running) == Some(event)
        };
        self.counters.iter().find(is_on)
    }
}

/// An event that is on a counter.
#[derive(Clone, Copy, Debug)]
pub struct RunningEvent<'r> {
    table: &'r EventTable,
    event: EventId,
    entry: &'r EventEntry,
}

impl<'r> RunningEvent<'r> {
    pub(crate) fn of(table: &'r EventTable, event: EventId) -> Option<Self> {
        Some(Self { table, event, entry: table.entry(event)? })
    }

    /// Returns the event's identity.
    pub const fn id(&self) -> EventId {
        self.event
    }

    /// Returns the event's [tag](crate::Event::tagged).
    pub fn tag(&self) -> u64 {
        self.entry.tag()
    }

    /// Returns the event's period; 0 if it has none. A period that
    /// [`set_period`](crate::memory::EventTable::set_period) sets is settled when an event next starts, stops or takes
    /// its turn.
    pub fn period(&self) -> u64 {
        self.entry.period.every()
    }

    /// Returns the precision of a [precise](crate::Event::precise) event.
    pub fn precision(&self) -> Option<Precision> {
        self.entry.precise().precision()
    }

    /// Returns the [parts](crate::Event::recording) of a precise event's samples.
    pub fn parts(&self) -> SampleParts {
        self.entry.precise().parts()
    }

    /// Returns whether only loads of a [latency](crate::Event::latency_at_least) are sampled.
    pub fn has_latency(&self) -> bool {
        self.entry.precise().has_latency()
    }

    /// Returns what is counted for the event, with its mode bits.
    pub fn select(&self) -> EventSelect {
        self.entry.select()
    }

    /// Returns the total up to which the event's counter was read. It changes with each record that is reported.
    pub fn accounted(&self) -> (u64, u64) {
        self.entry.accumulated()
    }

    /// Returns the period that ends with the event's next overflow. The result is 0 if only a part of a period ends
    /// then, which is no sample.
    pub fn period_under_way(&self) -> u64 {
        self.entry.period.over().unwrap_or(0)
    }

    /// Returns the number of events for which the processor is to load the counter after a record: the event's period,
    /// or the first part of it that a counter can take.
    pub fn reloaded(&self, counter: &Counter) -> u64 {
        self.entry.period.chunk(counter.max_reload())
    }

    /// Returns the filter of the [branches](crate::Event::with_branches) that the event's samples have.
    pub fn branches(&self) -> Option<BranchFilter> {
        self.entry.branches().get()
    }

    /// Returns whether the event is [reloaded](crate::Event::reloaded_by) by its own overflows.
    pub fn reloads_itself(&self) -> bool {
        self.table.reloads_itself(self.event)
    }
}

/// The needs of a facility at the counter of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventControl {
    /// The counter's overflows do not interrupt.
    pub silent: bool,
    /// The counter's records have more than the basic group (`Adaptive_Record`, Intel SDM vol. 3B).
    pub adaptive: bool,
}

/// Requests of an event beside a counter. Each facility [clears](crate::facility::EventFacility::resolve) what it
/// meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Asked {
    /// The event's select on this processor, with its mode bits. A facility may replace it by another event's.
    pub select: EventSelect,
    /// The event has a period.
    pub samples: bool,
    /// The event counts only in guests.
    pub in_guests_only: bool,
    /// The event's [extra register](crate::Event::with_extra), and its value.
    pub extra: Option<(RegisterAddress, u64)>,
    /// Samples of the event are to be [precise](crate::Event::precise).
    pub precision: Option<Precision>,
    /// Samples of the event are to have these [parts](crate::Event::recording).
    pub parts: SampleParts,
    /// Only loads of at least this [latency](crate::Event::latency_at_least), in cycles, are to be sampled.
    pub latency: Option<u16>,
    /// A facility names the register of the latency here.
    pub latency_register: Option<RegisterAddress>,
    /// A facility names an event here that has to be counted beside this one: bits 15:0 of its select.
    pub beside: Option<u16>,
    /// Other events of the group [reload](crate::Event::reloaded_by) the event's counter.
    pub reloaded: bool,
    /// The event's overflow reloads other events of the group.
    pub reloads: bool,
    /// Samples of the event are to have [branches](crate::Event::with_branches).
    pub branches: Option<BranchFilter>,
    /// A facility sets this field if it counts the event as a [part](crate::Event::part) of another one, without a
    /// counter.
    pub is_part: bool,
}

impl Asked {
    /// Returns what an event that is to be opened asks for.
    pub(crate) fn of_event(event: &Event, select: EventSelect) -> Self {
        Self {
            samples: event.period().is_some(),
            in_guests_only: !event.counts_outside_guests(),
            reloaded: event.reload != 0,
            branches: event.branches(),
            ..Self::of(select, &event.extra, event.precise)
        }
    }

    /// Returns what a switched-out event, or one whose group is known, asks for.
    pub(crate) fn of_saved(event: &SavedEvent) -> Self {
        let membership = Membership::unpack(event.membership);
        Self {
            samples: event.period.every != 0,
            in_guests_only: event.guest_mode() == GuestMode::GuestOnly,
            reloaded: membership.reload != 0,
            reloads: membership.has(Membership::RELOADS),
            branches: event.branches.get(),
            ..Self::of(event.select(), &event.extra, event.precise())
        }
    }

    fn of(select: EventSelect, extra: &Extra, precise: PackedPrecise) -> Self {
        Self {
            select,
            samples: false,
            in_guests_only: false,
            extra: extra.registers[0].get().map(|register| (register, extra.value)),
            precision: precise.precision(),
            parts: precise.parts(),
            latency: precise.has_latency().then_some(extra.value as u16),
            latency_register: None,
            beside: None,
            reloaded: false,
            reloads: false,
            branches: None,
            is_part: false,
        }
    }

    /// Returns the error of a request that the event cannot do without, and that was not met.
    pub(crate) const fn unmet(self) -> Result<(), CounterError> {
        match self {
            Self { reloaded: true, .. } => Err(CounterError::NotReloadable),
            Self { branches: Some(_), .. } => Err(CounterError::BranchesUnsupported),
            Self { precision: Some(_), .. } => {
                Err(CounterError::NotPrecise(NotPrecise::NoFacility))
            }
            Self { latency: Some(_), .. } => {
                Err(CounterError::NotPrecise(NotPrecise::NotLatencyEvent))
            }
            Self { parts, .. } if !parts.is_empty() => {
                Err(CounterError::NotPrecise(NotPrecise::Parts(parts)))
            }
            Self { .. } => Ok(()),
        }
    }
}

/// A record that a facility found in its memory: an overflow, which the processor recorded and did not report by the
/// counter's status. The processor then loaded the counter again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The counter that overflowed.
    pub counter: CounterId,
    /// The event that was on the counter.
    pub event: EventId,
    /// Number of events for which the processor then loaded the counter.
    pub reloaded: u64,
    /// The period that ended, if the event has [left](crate::facility::EventFacility::leave) the counter since; 0 if
    /// only a part of a period ended, which is no sample.
    pub left: Option<u64>,
    /// The record is of a privilege level that the event does not count. It is not shown.
    pub hidden: bool,
}
