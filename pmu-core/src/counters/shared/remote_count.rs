//! The count of an event on another processor, from memory alone.

use core::sync::atomic::{Ordering, fence};

use crate::counters::error::CounterError;
use crate::counters::events::count::EventCount;
use crate::counters::names::EventId;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::SlotState;
use crate::counters::shared::table::EventTable;

/// Count of an event on another processor. The variants say how recent the count is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RemoteCount {
    /// The event is on no counter, so no occurrences are missing in the count. The count's enabled and running times
    /// end at the time `now` that the caller gave to [`remote_count`].
    Current(EventCount),
    /// The event is on a counter, whose value only the event's own processor can read.
    Older {
        /// The count at the counter's last interrupt. If the counter has not interrupted since the event was started,
        /// this is the count at the start. The count's enabled and running times end when the event's processor last
        /// updated them.
        count: EventCount,
        /// Upper limit for the number of occurrences that are missing in `count`. The limit holds until the counter's
        /// next interrupt is serviced. The limit is the number of occurrences after which the loaded counter
        /// interrupts, at most the event's period. `None` if the event has no period, because its counter interrupts
        /// too seldom for a useful limit.
        lacks: Option<u64>,
    },
    /// No count is available, because the event's processor is changing the event, or because the event's counter has
    /// faulted. The kernel calls [`remote_count`] again, or reads the count on the event's processor by an
    /// inter-processor interrupt.
    Changing,
}

/// Reads the count of an event that is open on another processor, without interrupting that processor and without
/// accessing a register. `table` and `memory` belong to the event's processor.
///
/// If the result is [`Older`](RemoteCount::Older), the kernel decides whether that count is recent enough. If the count
/// is too old, or if the result is [`Changing`](RemoteCount::Changing), the kernel calls
/// [`read`](crate::CounterSession::read) on the event's processor, by an inter-processor interrupt. Linux'
/// `perf_event_read` sends this interrupt whenever the event is on a counter.
///
/// The caller ensures that the event is not closed during the call, because an event opened later can have the same
/// identity. If the event's processor is updating the enabled and running times during the call, the times in the
/// result may end at the previous update. The value of a [`Current`](RemoteCount::Current) count is exact.
///
/// ```
/// use pmu_core::{EventCount, EventId};
/// use pmu_core::error::CounterError;
/// use pmu_core::memory::{CounterMemory, EventTable};
/// use pmu_core::reading::{RemoteCount, remote_count};
/// /// Reads a sampling event's count. If that count may lack over 1,000,000 events, the event's processor reads it.
/// fn read(
///     (table, memory): (&EventTable, &CounterMemory),
///     event: EventId,
///     now: u64,
///     ask_processor: impl FnOnce() -> Result<EventCount, CounterError>,
/// ) -> Result<EventCount, CounterError> {
///     match remote_count(table, memory, event, now)? {
///         RemoteCount::Current(count) => Ok(count),
///         RemoteCount::Older { count, lacks: Some(..=1_000_000) } => Ok(count),
///         RemoteCount::Older { .. } | RemoteCount::Changing => ask_processor(),
///     }
/// }
/// # let _ = |table: &EventTable, memory: &CounterMemory| {
/// #     read((table, memory), EventId::of_index(0), 0, || Ok(EventCount::default()))
/// # };
/// ```
///
/// # Context
/// Any context, on any processor. The call is wait-free.
///
/// # Errors
/// [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoTotal`](CounterError::NoTotal).
pub fn remote_count(
    table: &EventTable,
    memory: &CounterMemory,
    event: EventId,
    now: u64,
) -> Result<RemoteCount, CounterError> {
    let entry = table.entry(event).ok_or(CounterError::NoSuchEvent(event))?;
    if !entry.wants_total() {
        return Err(CounterError::NoTotal(event));
    }
    if entry.is_part() {
        // Only the event's processor knows the occurrences that are missing.
        return Ok(RemoteCount::Changing);
    }
    // The read side of a seqlock: the count is read between two looks at the version. The event's processor changes the
    // total before it changes the state and the turn, and has fences on both sides of that change. An event's interrupt
    // changes the total while the event stays on its counter: an older total, then.
    let before = version(entry);
    fence(Ordering::Acquire);
    let load = loaded_for(memory, event);
    let answer = match (before.0, load) {
        (EventState::Closed, _) => return Err(CounterError::NoSuchEvent(event)),
        (EventState::Counting, Some(loaded)) => {
            let lacks = entry.period.reports().then_some(loaded);
            RemoteCount::Older { count: entry.count(), lacks }
        }
        // The event leaves its counter, gets one, or has lost one.
        (EventState::Counting, None) | (_, Some(_)) => RemoteCount::Changing,
        (_, None) => RemoteCount::Current(entry.count_at(now, false)),
    };
    fence(Ordering::Acquire);
    let is_same = version(entry) == before && loaded_for(memory, event).is_some() == load.is_some();
    Ok(if is_same { answer } else { RemoteCount::Changing })
}

/// Returns an event's state, with the number of its last change.
fn version(entry: &EventEntry) -> (EventState, u32) {
    (entry.state(), entry.turn())
}

/// Returns the number of events with which the event's counter was loaded, if the event is on a counter. A counter that
/// is lent keeps its event.
fn loaded_for(memory: &CounterMemory, event: EventId) -> Option<u64> {
    memory.slots().iter().find_map(|slot| match slot.load() {
        SlotState::Running { event: of, period } if of == event => Some(period),
        _ => None,
    })
}
