//! Errors of operations on a processor's counters.

use core::fmt;

use crate::access::backend::AccessFault;
use crate::counters::names::{CounterSet, EventId, GenericEvent};
use crate::detection::NoInterface;
use crate::precise::request::NotPrecise;

/// Error of an operation on a processor's counters.
///
/// A failed operation changed nothing, except in these cases:
/// - The error is [`StateUnknown`](Self::StateUnknown).
/// - The operation's documentation names a change.
/// - The operation was [`take`](crate::CounterSession::take). After the failure, none of the requested counters runs.
///
/// ```
/// use pmu_core::error::CounterError;
/// let error = CounterError::InsufficientMemory { needed: 8, lent: 4 };
/// assert!(error.to_string().contains('8') && error.to_string().contains('4'));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CounterError {
    /// The machine has no counters. The [`NoInterface`] value is the reason.
    #[error("no counters: {0}")]
    NoCounters(#[source] NoInterface),
    /// The operation does not fit this processor, for one of these reasons:
    /// - The processor is of another kind than the boot processor.
    /// - The processor has none of the requested counters.
    /// - The processor's type of core differs from the type that the caller described.
    #[error("this processor has none of the interface's counters, or other events")]
    OtherProcessor,
    /// The [`CounterMemory`](crate::memory::CounterMemory) or the [`EventTable`](crate::memory::EventTable) is in use
    /// by another processor's session, or by a session that was not shut down.
    #[error(
        "the memory belongs to another processor's counters, or to a session that was not shut down"
    )]
    MemoryInUse,
    /// The [`CounterMemory`](crate::memory::CounterMemory) has too few slots, or the
    /// [`EventTable`](crate::memory::EventTable) has too few entries.
    #[error("room lent for {lent} (slots of counters, or events), {needed} needed")]
    InsufficientMemory {
        /// Number of slots or entries that the operation needs.
        needed: u16,
        /// Number of slots in the [`CounterMemory`](crate::memory::CounterMemory), or of entries in the
        /// [`EventTable`](crate::memory::EventTable).
        lent: u16,
    },
    /// None of the requested counters keeps a written value. A counter that keeps no written value does not exist, even
    /// if CPUID declares it.
    #[error("no counter gives back what is written to it")]
    Unresponsive,
    /// The processor cannot freeze its counters, or the freeze bit reads back 0 after it was set.
    #[error("the processor does not freeze its counters")]
    FreezeUnsupported,
    /// The caller may not write these bits of a control or status register, because the bits belong to the session's
    /// own counters. The error is also returned if the processor lacks the register, or if the session's counters are
    /// [lent](crate::CounterSession::lend).
    #[error("bits {0:#X} of the control register are not another owner's")]
    OwnControlBits(u64),
    /// Some of these counters are running, are [lent](crate::CounterSession::lend), or belong to another owner.
    #[error("some of the counters {:#X} run, are lent, or another owner's", .0.bits())]
    NotAvailable(CounterSet),
    /// These bits are set in the event's select, but are illegal on this processor.
    #[error("the event has bits {0:#X}, which this processor's selects do not")]
    IllegalBits(u64),
    /// The processor lacks this generic event.
    #[error("this processor lacks the event {0:?}")]
    Unsupported(GenericEvent),
    /// The processor cannot count guests and their host separately.
    #[error("this processor's counters cannot tell guests from their host")]
    GuestModeUnsupported,
    /// The event needs a pair of counters. These crates do not support counter pairs. An event needs a pair if it may
    /// happen more than 15 times per cycle. The merge event also needs a pair, because it joins two counters to a pair.
    /// See [`Event::at_most_15_per_cycle`](crate::Event::at_most_15_per_cycle).
    #[error("the event may happen more than 15 times per cycle, which takes a pair of counters")]
    NeedsCounterPair,
    /// The event's counter cannot be [reloaded](crate::Event::reloaded_by), for one of these reasons:
    /// - The session's event source has no [`AutoCounterReload`](crate::reload::AutoCounterReload).
    /// - The event is in no group.
    /// - The bitmap given to [`reloaded_by`](crate::Event::reloaded_by) has the bit of an event that is not among the
    ///   first six events of the group.
    /// - The event has no period, or a period of 2³¹ or more.
    /// - The event keeps a [total](crate::Event::with_total).
    /// - The event is [precise](crate::Event::precise).
    #[error("the event's counter cannot be reloaded as asked")]
    NotReloadable,
    /// The samples of the event cannot have the [branches](crate::Event::with_branches) that were asked for: the
    /// session's source has no [`Branches`](crate::branches::Branches), the processor cannot record these branches for
    /// the event, or the lent [`BranchMemory`](crate::branches::BranchMemory) has room for fewer records than the
    /// processor keeps.
    #[error(
        "the source of the events has no branch records, the processor cannot record these \
         branches, or the lent memory has too few slots"
    )]
    BranchesUnsupported,
    /// The event is a [software event](crate::Event::software), and the facilities of the session's events have no
    /// [`SoftwareEvents`](crate::facility::SoftwareEvents).
    #[error("the kernel's calls count no software events")]
    SoftwareUnsupported,
    /// Another event records [branches](crate::Event::with_branches) by another filter.
    #[error("another event records branches by another filter")]
    BranchFilterInUse,
    /// The event is to be a [part](crate::Event::part) of another event, for which one of these is missing:
    /// - The session's event source has a facility that [divides](crate::facility::Division) an event into this part.
    /// - That event comes before the part in the same group, with the same privilege levels.
    /// - Neither event has a period.
    #[error("no event before this one in its group is divided into this part")]
    NotDivided,
    /// No counter of this session can count the event.
    #[error("no counter can count the event")]
    NoCounterForEvent,
    /// This period is below the event table's [minimum](crate::memory::EventTable::set_min_period), or does not fit in
    /// 63 bits.
    #[error(
        "a period of {0} events is below the table's minimum (EventTable::set_min_period), or \
         beyond 63 bits"
    )]
    Period(u64),
    /// No event with this identity is open.
    #[error("{0} is not open")]
    NoSuchEvent(EventId),
    /// The event has no count to read, because it interrupts and was opened without a
    /// [total](crate::Event::with_total).
    #[error("{0} interrupts, and was opened without a total")]
    NoTotal(EventId),
    /// The event has no period, because it does not interrupt.
    #[error("{0} does not interrupt")]
    NoPeriod(EventId),
    /// The event, or its group, is to be disabled before, or its thread is to be switched out.
    #[error("{0} is enabled, or on a processor")]
    IsEnabled(EventId),
    /// The event is not enabled.
    #[error("{0} is not enabled")]
    NotEnabled(EventId),
    /// The event does not run, because an access to a register of its counter failed. The count since the counter's
    /// last interrupt is lost. The event can be enabled again.
    #[error("{0} does not run: its counter faulted")]
    CounterLost(EventId),
    /// No counter is free for the event. Each counter that can count the event has faulted, or is used by an event that
    /// keeps its counter. If [`service`](crate::service) [masked](ServiceError::masked) the interrupt, every counter is
    /// treated as faulted until a task calls [`reprogram`](crate::CounterSession::reprogram).
    #[error("no free counter of those that can count the event")]
    NoFreeCounter,
    /// The [extra register](crate::Event::with_extra) at this address is not available to the event, for one of these
    /// reasons:
    /// - Running events need another value in the register.
    /// - The processor's events use more extra registers than the session has room for.
    ///
    /// If the event has several extra registers, this is the address of the first register.
    #[error("other events need other values in the extra register {0:#X}")]
    ExtraRegisterInUse(u32),
    /// No event was given to be opened.
    #[error("no events")]
    NoEvents,
    /// Some events of this event's group are not on this processor: they are of a thread that is switched out, or they
    /// were closed while others were switched out.
    #[error("not all events of the group of {0} are on this processor")]
    GroupElsewhere(EventId),
    /// A running counter's registers lost their contents. [`reprogram`](crate::CounterSession::reprogram) loads the
    /// registers again.
    #[error("a counter's registers lost their contents: reprogram them")]
    RegistersLost,
    /// The saved counters cannot be restored, for one of these reasons:
    /// - The counters were saved by a session whose [`EventSource`](crate::EventSource) has another table of events.
    /// - This processor lacks the event of a saved counter.
    /// - One of the saved counters now counts an event of the session's table.
    /// - One of the saved events already runs on a counter.
    /// - An [exclusive](crate::Event::exclusive) event is on a counter.
    /// - Too few counters are free.
    #[error("the saved counters cannot be restored")]
    NotRestorable,
    /// A register access failed, and the operation was undone.
    #[error("register access failed and was undone: {0}")]
    Unchanged(#[source] AccessFault),
    /// Accesses to this register failed, and the operation could not be undone. The driver assumes that the register's
    /// counter is running. No event uses the counter until the counter is
    /// [programmed again](crate::CounterSession::reprogram) or shut down.
    #[error("a counter cannot be stopped and is presumed running: {0}")]
    StateUnknown(#[source] AccessFault),
    /// The event cannot be sampled as [precisely](crate::Event::precise) as requested. The value is the reason.
    #[error("{0}")]
    NotPrecise(NotPrecise),
}

/// Error of servicing an interrupt: a register access failed.
///
/// ```
/// use pmu_core::{Claim, CounterSet};
/// use pmu_core::error::ServiceError;
/// use pmu_core::interrupt::Serviced;
/// use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation};
/// /// Returns the interrupt's claim, and the faulted counters. A task then calls `reprogram`, or enables the events of
/// /// these counters on other counters.
/// fn outcome(serviced: Result<Serviced, ServiceError>) -> (Claim, CounterSet) {
///     match serviced {
///         Ok(serviced) => (serviced.claim, CounterSet::NONE),
///         Err(error) => (Claim::OursAndMore, error.counters),
///     }
/// }
/// let (operation, kind) = (AccessOperation::Read, AccessErrorKind::Fault);
/// let fault = AccessFault { operation, register: 0x38E, kind };
/// let error = ServiceError { fault, counters: CounterSet::from_bits(0b11), masked: true };
/// assert_eq!(outcome(Err(error)), (Claim::OursAndMore, CounterSet::from_bits(0b11)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ServiceError {
    /// The first register access that failed twice. The driver retries a failed access once.
    pub fault: AccessFault,
    /// Counters that faulted. If the event of a faulted counter is in a group, the counters of the group's other events
    /// are also in this set. The events of faulted counters no longer run.
    ///
    /// A [rotating](crate::Event::rotating) event competes for a counter again at the next
    /// [`rotate`](crate::CounterSession::rotate). A non-rotating event runs again only after a task enables the event.
    /// Until then, [`is_enabled`](crate::CounterSession::is_enabled) returns `false` for the event. No event runs on a
    /// faulted counter before [`reprogram`](crate::CounterSession::reprogram).
    pub counters: CounterSet,
    /// Set if the interrupt is masked. [`service`](crate::service()) masks it if the overflow status can be
    /// neither read nor cleared. Unmasked, it could then come without end. Until
    /// [`reprogram`](crate::CounterSession::reprogram), the session uses no counter and starts no event. Other drivers
    /// that share the interrupt receive no interrupts either.
    pub masked: bool,
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counters {:#X} faulted: {}", self.counters.bits(), self.fault)?;
        if self.masked { f.write_str("; the performance interrupt is masked") } else { Ok(()) }
    }
}

impl core::error::Error for ServiceError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.fault)
    }
}

impl CounterError {
    /// Returns whether there was no counter or extra register for an event beside the others.
    pub(crate) const fn is_no_room(&self) -> bool {
        matches!(self, Self::NoFreeCounter | Self::ExtraRegisterInUse(_) | Self::BranchFilterInUse)
    }

    /// Returns the access that failed, if one did.
    pub(crate) const fn fault(&self) -> Option<AccessFault> {
        match self {
            Self::Unchanged(fault) | Self::StateUnknown(fault) => Some(*fault),
            _ => None,
        }
    }

    /// Returns the error of an access that leaves more than itself undone.
    pub(crate) const fn faulted(self) -> Self {
        match self {
            Self::Unchanged(fault) => Self::StateUnknown(fault),
            error => error,
        }
    }
}

/// Failure of an operation on several events: those of a group, or those of a thread.
///
/// A switch goes on after a failure: the thread's other events were switched.
///
/// ```
/// use pmu_core::error::{CounterError, EventsError};
/// let error = EventsError { events: 0b101, reason: CounterError::NoFreeCounter };
/// let failed: Vec<usize> = (0..3).filter(|place| error.concerns(*place)).collect();
/// assert_eq!(failed, [0, 2]);
/// // Functions that also open single events return one type of error, either one.
/// assert_eq!(EventsError::from(CounterError::NoEvents), EventsError { events: 0, reason: CounterError::NoEvents });
/// assert_eq!(CounterError::from(error), CounterError::NoFreeCounter);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventsError {
    /// Mask of the events that failed: bit *n* stands for the event at index *n* of the given slice, or of the group in
    /// its [order](crate::CounterSession::group_events); an event that was to join it is behind the others. Bit 63
    /// stands for all events from index 63 on. These failures set no bit:
    /// - The failure concerns the group as a whole, or a register access failed while the group was enabled.
    /// - The session could not pause the groups' counters for a switch, or could not resume these counters afterwards.
    /// - An event that is not in the slice waited on this processor for a counter, and could not be put on a free
    ///   counter.
    /// - The reload registers of a counter could not be written.
    pub events: u64,
    /// Reason of the first failure.
    pub reason: CounterError,
}

impl EventsError {
    /// Returns whether the event at index `place` failed. For a `place` of 63 or more, returns whether any event from
    /// index 63 on failed.
    pub const fn concerns(&self, place: usize) -> bool {
        self.events & bit(place) != 0
    }

    pub(crate) const fn of_group(reason: CounterError) -> Self {
        Self { events: 0, reason }
    }

    pub(crate) const fn of_member(member: usize, reason: CounterError) -> Self {
        Self { events: bit_of_member(member), reason }
    }

    /// Adds a failure of some events to an outcome.
    // Linked once: inlined into a loop, the loop is there for each outcome.
    #[inline(never)] // 1072 bytes of the glue.
    pub(crate) fn add(
        outcome: &mut Result<(), Self>,
        events: u64,
        result: Result<(), CounterError>,
    ) {
        if let Err(reason) = result {
            let reason = outcome.err().map_or(reason, |error| error.reason);
            let events = outcome.err().map_or(0, |error| error.events) | events;
            *outcome = Err(Self { events, reason });
        }
    }
}

impl fmt::Display for EventsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.events != 0 {
            f.write_str("events ")?;
            f.debug_set().entries((0..64).filter(|place| self.concerns(*place))).finish()?;
            f.write_str(" of the group or thread: ")?;
        }
        self.reason.fmt(f)
    }
}

impl core::error::Error for EventsError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.reason)
    }
}

impl From<CounterError> for EventsError {
    fn from(reason: CounterError) -> Self {
        Self::of_group(reason)
    }
}

impl From<EventsError> for CounterError {
    fn from(error: EventsError) -> Self {
        error.reason
    }
}

/// Returns the bit of an event of a group, which has fewer events than a mask has bits.
pub(crate) const fn bit_of_member(member: usize) -> u64 {
    1 << (member & 63)
}

/// Returns the bit of an event's place.
pub(crate) const fn bit(place: usize) -> u64 {
    1 << if place < 63 { place } else { 63 }
}
