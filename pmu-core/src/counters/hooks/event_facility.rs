//! Hardware beside the counters that a session's events ask for.

use crate::branches::filter::{BranchFilter, PackedFilter};
use crate::branches::sampled::Branches;
use crate::counters::error::CounterError;
use crate::counters::events::membership::Membership;
use crate::counters::hooks::facility::Facility;
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::names::event_id::EventId;
use crate::counters::registers::counter::Counter;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::CounterSlot;
use crate::counters::shared::table::EventTable;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// Hardware beside the counters that a session places with its events. The session's
/// [`EventSource`](crate::EventSource) yields the value, and the session calls these methods. The embedder never does.
///
/// The value is made per call, and holds references only. All state is in memory that the embedder lends, as atomics,
/// so that tasks and interrupts see the same. `()` is no facility, and nothing of it is linked. Pairs and `Option`s of
/// facilities are facilities.
///
/// The whole life of a facility is [`settle`](Self::settle). After each start, stop, turn and thread switch, and around
/// each window and suspend, the session names the events that are on counters now. The facility derives its registers
/// from them, and writes the differences.
///
/// This facility keeps a register at the number of running events. (A real one reads the event.)
///
/// ```
/// use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use pmu_core::{EventFacility, Facility, MsrAccess, MsrAddress, MsrBackend, Running, Unsettled};
///
/// #[derive(Clone, Copy)]
/// struct Gauge<'a> {
///     register: MsrAddress,
///     /// The register's value, plus 1; 0 if it is unknown.
///     known: &'a AtomicU64,
/// }
/// impl Facility for Gauge<'_> {}
/// impl EventFacility for Gauge<'_> {
///     const OFFERS: bool = true;
///     fn settle<M: MsrBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
///         let wanted = running.counters().iter().filter(|on| running.on(*on).is_some()).count() as u64;
///         if self.known.swap(0, Relaxed) != wanted + 1 {
///             // On failure no event may run: each depends on the register.
///             msr.wrmsr_retrying(self.register, wanted)
///                 .map_err(|fault| Unsettled { counters: running.counters(), fault })?;
///         }
///         self.known.store(wanted + 1, Relaxed);
///         Ok(())
///     }
///     fn lose(&self) {
///         self.known.store(0, Relaxed);
///     }
/// }
/// ```
///
/// # Context
/// Task, on the processor of the session. An interrupt may come at any time, and calls the methods of [`Facility`].
pub trait EventFacility: Facility + Copy {
    /// `false` if events can ask for nothing. The session's code for facilities is then not linked.
    const OFFERS: bool;

    /// Returns those of `counters` that can do what an event asks for. Clears the requests in `asked` that this
    /// facility meets. An event whose requests are not all met cannot be opened.
    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> CounterSet {
        let _ = asked;
        counters
    }

    /// Returns whether the overflows of a running event's counter do not interrupt.
    fn is_silent(&self, event: &RunningEvent<'_>) -> bool {
        let _ = event;
        false
    }

    /// Programs the facility's registers for the events that are on counters now, and clears them elsewhere. Registers
    /// that hold their values already are not written. The counters of the events that changed are stopped, or not
    /// started yet, during the call.
    ///
    /// # Errors
    /// Registers did not answer. The session stops the named counters, and calls the method once more.
    fn settle<M: MsrBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled>;

    /// Notes that the registers lost their values, or that another owner may have changed them.
    fn lose(&self);

    /// Returns the branch records that the facility read in this interrupt, if it reads branch records.
    #[inline]
    fn branches(&self) -> Option<&Branches<'_>> {
        None
    }
}

/// Requests of an event beside a counter. Each facility [clears](EventFacility::resolve) what it meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Asked {
    /// Other events of the group [reload](crate::Event::reloaded_by) the event's counter.
    pub reloaded: bool,
    /// The event's overflow reloads other events of the group.
    pub reloads: bool,
    /// Samples of the event are to have [branches](crate::Event::with_branches).
    pub branches: Option<BranchFilter>,
}

impl Asked {
    pub(crate) const fn of(membership: Membership, branches: PackedFilter) -> Self {
        let (reloaded, reloads) = (membership.reload != 0, membership.has(Membership::RELOADS));
        Self { reloaded, reloads, branches: branches.get() }
    }

    /// Returns the error of a request that the event cannot do without, and that was not met.
    pub(crate) const fn unmet(self) -> Result<(), CounterError> {
        match self {
            Self { reloaded: true, .. } => Err(CounterError::NotReloadable),
            Self { branches: Some(_), .. } => Err(CounterError::BranchesUnsupported),
            Self { .. } => Ok(()),
        }
    }
}

/// Counters whose events must not run, because registers of a facility did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Unsettled {
    /// The counters. If one of them counts an event of a group, the whole group is stopped.
    pub counters: CounterSet,
    /// The first access that failed, and its retry.
    pub fault: MsrFault,
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
}

impl<'r> Running<'r> {
    /// Returns all counters of the session, used or not.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns whether the counters are about to be another owner's, for example a guest's. No event is on them then,
    /// and the facility leaves nothing that the other owner may not see.
    pub fn are_lent(&self) -> bool {
        self.moment == Moment::Lent
    }

    /// Returns whether another thread is about to run. The facility leaves nothing that the other thread's samples may
    /// not show.
    pub fn are_switched(&self) -> bool {
        self.moment == Moment::Switched
    }

    /// Returns whether the events go on after the counters were another owner's.
    pub(crate) fn are_returned(&self) -> bool {
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
    pub fn on(&self, counter: CounterId) -> Option<RunningEvent<'r>> {
        let slot = self.memory.slot(counter).filter(|_| !self.are_lent())?;
        let coming = self.coming.filter(|(on, _)| *on == counter).map(|(_, event)| event);
        RunningEvent::of(self.table, coming.or(slot.running())?)
    }

    /// Returns the counters whose overflows are to reload this counter: those of the events that its event
    /// [names](crate::Event::reloaded_by), as far as they are on counters.
    pub fn reloaded_by(&self, counter: CounterId) -> CounterSet {
        let Some(RunningEvent { entry, .. }) = self.on(counter) else { return CounterSet::NONE };
        let (named, mut from) = (entry.membership().reload, 0);
        let Some(group) = entry.group().filter(|_| named != 0) else { return CounterSet::NONE };
        let members = core::iter::from_fn(|| self.table.next_member(&mut from, group));
        let named = members.take(8).enumerate().filter(|(member, _)| named >> member & 1 != 0);
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

    /// Returns the event's period; 0 if it has none. A period that [`set_period`](crate::EventTable::set_period) sets
    /// is settled when an event next starts, stops or takes its turn.
    pub fn period(&self) -> u64 {
        self.entry.period.every()
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

/// Nothing beside the counters.
impl EventFacility for () {
    const OFFERS: bool = false;

    #[inline]
    fn settle<M: MsrBackend>(&self, _: &M, _: &Running<'_>) -> Result<(), Unsettled> {
        Ok(())
    }

    #[inline]
    fn lose(&self) {}
}

/// The facility, if this processor has it.
impl<F: EventFacility> EventFacility for Option<F> {
    const OFFERS: bool = F::OFFERS;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> CounterSet {
        self.as_ref().map_or(counters, |facility| facility.resolve(asked, counters))
    }

    fn is_silent(&self, event: &RunningEvent<'_>) -> bool {
        self.as_ref().is_some_and(|facility| facility.is_silent(event))
    }

    fn settle<M: MsrBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        self.as_ref().map_or(Ok(()), |facility| facility.settle(msr, running))
    }

    fn lose(&self) {
        if let Some(facility) = self {
            facility.lose();
        }
    }

    #[inline]
    fn branches(&self) -> Option<&Branches<'_>> {
        self.as_ref().and_then(F::branches)
    }
}

/// Two facilities. Both are settled, even if the first one fails.
impl<A: EventFacility, B: EventFacility> EventFacility for (A, B) {
    const OFFERS: bool = A::OFFERS || B::OFFERS;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> CounterSet {
        let counters = self.0.resolve(asked, counters);
        self.1.resolve(asked, counters)
    }

    fn is_silent(&self, event: &RunningEvent<'_>) -> bool {
        self.0.is_silent(event) || self.1.is_silent(event)
    }

    fn settle<M: MsrBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        match (self.0.settle(msr, running), self.1.settle(msr, running)) {
            (Err(first), Err(second)) => {
                Err(Unsettled { counters: first.counters | second.counters, ..first })
            }
            (first, second) => first.and(second),
        }
    }

    fn lose(&self) {
        self.0.lose();
        self.1.lose();
    }

    #[inline]
    fn branches(&self) -> Option<&Branches<'_>> {
        self.0.branches().or(self.1.branches())
    }
}
