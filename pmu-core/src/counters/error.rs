//! Errors of operations on a processor's counters.

use core::fmt;

use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::counters::names::generic_event::GenericEvent;
use crate::counters::names::group_id::GroupId;
use crate::detection::NoInterface;
use crate::msr::fault::MsrFault;

/// Error of an operation on a processor's counters.
///
/// Nothing was changed, unless the error is [`Faulted`](Self::Faulted). After a failure to take counters, none of them
/// runs.
///
/// ```
/// use pmu_core::CounterError;
/// let error = CounterError::InsufficientMemory { needed: 8, lent: 4 };
/// assert!(error.to_string().contains('8') && error.to_string().contains('4'));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CounterError {
    /// The machine has no counters, for this reason.
    NoCounters(NoInterface),
    /// The processor has none of these counters: it is of another kind than the boot processor, none of the requested
    /// counters exists, or the processor is not of the given type of core.
    OtherProcessor,
    /// The lent memory or table is in use: by another processor, or by a session that was not shut down.
    MemoryInUse,
    /// The lent memory has too few places.
    InsufficientMemory {
        /// Places needed.
        needed: u16,
        /// Places lent.
        lent: u16,
    },
    /// No counter reads back the value written to it: whatever CPUID declares, there are none.
    Unresponsive,
    /// The processor cannot freeze its counters, or does not keep the freeze bit.
    FreezeUnsupported,
    /// These bits of a control register are the session's own, or there is no such register.
    OwnControlBits(u64),
    /// Some of these counters are another owner's, are [lent](crate::CounterSession::lend), or run.
    NotAvailable(CounterSet),
    /// The event's select has these bits, which no select of this processor may have.
    IllegalBits(u64),
    /// The processor lacks the event.
    Unsupported(GenericEvent),
    /// The processor cannot count guests and their host separately.
    GuestModeUnsupported,
    /// The event needs a pair of counters, and no pairs are made: it may happen more than 15 times per cycle, or is
    /// the event that makes a pair. See [`Event::at_most_15_per_cycle`](crate::Event::at_most_15_per_cycle).
    NeedsCounterPair,
    /// No counter of this session can count the event.
    NoCounterForEvent,
    /// This period is out of range: below the table's [minimum](crate::EventTable::set_min_period), or beyond 63 bits.
    Period(u64),
    /// The event is not open.
    NoSuchEvent(EventId),
    /// The event has no count to read: it interrupts, and keeps no [total](crate::Event::with_total).
    NoTotal(EventId),
    /// The event interrupts, which would make a view of its counter wrong.
    HasPeriod(EventId),
    /// The event has no period: it does not interrupt.
    NoPeriod(EventId),
    /// The event is running already.
    AlreadyStarted(EventId),
    /// The event does not run.
    NotStarted(EventId),
    /// The event's counter faulted, and the event has not run since. Its count since its last interrupt, or since it
    /// got the counter, is lost. The event can be started again.
    CounterLost(EventId),
    /// No counter is free for the event: each that can count it is in use by an event that does not give way, or has
    /// faulted. After a [`service`](crate::service) that [masked](ServiceError::masked) the interrupt, every counter
    /// counts as faulted until [`reprogram`](crate::CounterSession::reprogram).
    NoFreeCounter,
    /// The event's [extra register](crate::Event::with_extra), at this address, is in use with another value by
    /// running events; or the processor's events use more extra registers than there is room for. If the event has
    /// several, this is the first.
    ExtraRegisterInUse(u32),
    /// The event starts and stops only with its group.
    InGroup(GroupId),
    /// The group would have no events.
    NoEvents,
    /// The group is not open, or not all of its events are on this processor.
    NoSuchGroup(GroupId),
    /// A running counter's registers lost their contents: call [`reprogram`](crate::CounterSession::reprogram).
    RegistersLost,
    /// The saved counters cannot be restored: they are of other rows, this processor lacks one of their events,
    /// another source has a counter, or too few counters are free.
    NotRestorable,
    /// A register access failed; what had been programmed was undone.
    Access(MsrFault),
    /// A register access failed, and undoing the operation failed, too: this register does not answer. The counter is
    /// presumed running until it is [programmed again](crate::CounterSession::reprogram) or shut down. Until then it
    /// counts for no event and is not used.
    Faulted(MsrFault),
}

/// Failure to service an interrupt: registers of a counter, or the global registers, do not answer.
///
/// ```
/// use pmu_core::{Claim, CounterSet, MsrErrorKind, MsrFault, MsrOperation, Serviced, ServiceError};
/// /// Returns the interrupt's claim, and the counters that are to be programmed again: by the task that calls
/// /// `reprogram`, or starts their events on others.
/// fn outcome(serviced: Result<Serviced, ServiceError>) -> (Claim, CounterSet) {
///     match serviced {
///         Ok(serviced) => (serviced.claim, CounterSet::NONE),
///         Err(error) => (Claim::OursAndMore, error.counters),
///     }
/// }
/// let (operation, kind) = (MsrOperation::Read, MsrErrorKind::GeneralProtection);
/// let fault = MsrFault { operation, register: 0x38E, kind };
/// let error = ServiceError { fault, counters: CounterSet::from_bits(0b11), masked: true };
/// assert_eq!(outcome(Err(error)), (Claim::OursAndMore, CounterSet::from_bits(0b11)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ServiceError {
    /// The first access that failed after one retry.
    pub fault: MsrFault,
    /// Counters that faulted. Their events, and the other events of these events' groups, do not run any more.
    ///
    /// A task finds the events that do not rotate by [`is_started`](crate::CounterSession::is_started), which is false
    /// for them. It starts them again: at once on other counters, or on these after
    /// [`reprogram`](crate::CounterSession::reprogram). Events that rotate take turns again at the next
    /// [`rotate`](crate::CounterSession::rotate).
    pub counters: CounterSet,
    /// The LVT entry is masked, because the overflow status could be neither read nor cleared, and the same interrupt
    /// could come forever. No counter of the session is used, and no event starts, until
    /// [`reprogram`](crate::CounterSession::reprogram). Other owners of the interrupt get none meanwhile.
    pub masked: bool,
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counters {:#X} fell out: {}", self.counters.bits(), self.fault)?;
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
        matches!(self, Self::NoFreeCounter | Self::ExtraRegisterInUse(_))
    }
}

impl fmt::Display for CounterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCounters(why) => write!(f, "no counters: {why}"),
            Self::OtherProcessor => {
                f.write_str("this processor has none of the interface's counters, or other events")
            }
            Self::MemoryInUse => f.write_str(
                "the memory belongs to another processor's counters, \
                 or to a session that was not shut down",
            ),
            Self::InsufficientMemory { needed, lent } => {
                write!(f, "room lent for {lent} (slots of counters, or events), {needed} needed")
            }
            Self::Unresponsive => f.write_str("no counter gives back what is written to it"),
            Self::FreezeUnsupported => f.write_str("the processor does not freeze its counters"),
            Self::OwnControlBits(bits) => {
                write!(f, "bits {bits:#X} of the control register are not another owner's")
            }
            Self::NotAvailable(set) => {
                write!(
                    f,
                    "some of the counters {:#X} run, are lent, or another owner's",
                    set.bits()
                )
            }
            Self::IllegalBits(bits) => {
                write!(f, "the event has bits {bits:#X}, which this processor's selects do not")
            }
            Self::Unsupported(event) => write!(f, "this processor lacks the event {event:?}"),
            Self::GuestModeUnsupported => {
                f.write_str("this processor's counters cannot tell guests from their host")
            }
            Self::NeedsCounterPair => f.write_str(
                "the event may happen more than 15 times per cycle, which takes a pair of counters",
            ),
            Self::NoCounterForEvent => f.write_str("no counter can count the event"),
            Self::Period(period) => {
                write!(f, "a period of {period} events is below the floor, or beyond 63 bits")
            }
            Self::NoSuchEvent(event) => write!(f, "{event} is not open"),
            Self::NoTotal(event) => write!(f, "{event} interrupts, and was opened without a total"),
            Self::HasPeriod(event) => write!(f, "{event} interrupts, and so has no view"),
            Self::NoPeriod(event) => write!(f, "{event} does not interrupt"),
            Self::AlreadyStarted(event) => write!(f, "{event} is already started"),
            Self::NotStarted(event) => write!(f, "{event} is not started"),
            Self::CounterLost(event) => write!(f, "{event} does not run: its counter faulted"),
            Self::NoFreeCounter => f.write_str("no free counter of those that can count the event"),
            Self::ExtraRegisterInUse(register) => {
                write!(f, "other events need other values of the extra register {register:#X}")
            }
            Self::InGroup(group) => write!(f, "the event starts and stops with {group}"),
            Self::NoEvents => f.write_str("a group of no events"),
            Self::NoSuchGroup(group) => {
                write!(f, "{group} is not open, or not whole on this processor")
            }
            Self::RegistersLost => {
                f.write_str("a counter's registers lost their contents: reprogram them")
            }
            Self::NotRestorable => f.write_str("the saved counters cannot be restored"),
            Self::Access(fault) => write!(f, "register access failed and was undone: {fault}"),
            Self::Faulted(fault) => {
                write!(f, "a counter cannot be stopped and is presumed running: {fault}")
            }
        }
    }
}

impl core::error::Error for CounterError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Access(fault) | Self::Faulted(fault) => Some(fault),
            Self::NoCounters(why) => Some(why),
            _ => None,
        }
    }
}

/// Error of an operation on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupError {
    /// Number of the event that failed, from 0, in the order given to
    /// [`open_group`](crate::CounterSession::open_group). `None` if no single event failed: a register failed while
    /// the group was started, or the error is of the group as a whole.
    pub member: Option<usize>,
    /// Reason of the failure.
    pub reason: CounterError,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.member {
            Some(member) => write!(f, "events[{member}] of the group: {}", self.reason),
            None => fmt::Display::fmt(&self.reason, f),
        }
    }
}

impl core::error::Error for GroupError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.reason)
    }
}

/// Converts an error of the counters into a group's, of no single event, for a function that starts groups and other
/// events.
///
/// ```
/// use pmu_core::{CounterError, GroupError};
/// let error = GroupError::from(CounterError::NoFreeCounter);
/// assert_eq!(error, GroupError { member: None, reason: CounterError::NoFreeCounter });
/// ```
impl From<CounterError> for GroupError {
    fn from(reason: CounterError) -> Self {
        Self::of_group(reason)
    }
}

impl GroupError {
    pub(crate) const fn of_group(reason: CounterError) -> Self {
        Self { member: None, reason }
    }

    pub(crate) const fn of_member(member: usize, reason: CounterError) -> Self {
        Self { member: Some(member), reason }
    }
}

/// Returns the error for a group that is not on this processor.
pub(crate) fn no_such(group: GroupId) -> GroupError {
    GroupError::of_group(CounterError::NoSuchGroup(group))
}

/// Failure to switch some of a thread's events in or out. The other events were switched.
///
/// ```
/// use pmu_core::{CounterError, SwitchError};
/// let error = SwitchError { events: 0b101, reason: CounterError::NoFreeCounter };
/// let failed: Vec<usize> = (0..3).filter(|place| error.concerns(*place)).collect();
/// assert_eq!(failed, [0, 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SwitchError {
    /// Events that failed, one bit each, by their places in the slice; bit 63 stands for place 63 and all behind it.
    /// No bit is set if groups could not be stopped or resumed together, or if another waiting event could not be
    /// given a free counter.
    pub events: u64,
    /// Reason of the first failure.
    pub reason: CounterError,
}

impl SwitchError {
    /// Returns whether the event at this place of the slice failed, or may have.
    pub const fn concerns(&self, place: usize) -> bool {
        self.events >> if place < 63 { place } else { 63 } & 1 != 0
    }

    /// Adds a failure of some events to an outcome.
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

impl fmt::Display for SwitchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "events {:#b} of the thread: {}", self.events, self.reason)
    }
}

impl core::error::Error for SwitchError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.reason)
    }
}

/// Returns the bit of an event's place.
pub(crate) fn bit(place: usize) -> u64 {
    1 << place.min(63)
}
