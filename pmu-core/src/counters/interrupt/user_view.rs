//! An event's view for user mode, made by a handler.

use crate::counters::error::CounterError;
use crate::counters::events::user_view::UserView;
use crate::counters::hooks::event_source::{EventSource, registers_of};
use crate::counters::interrupt::sample_read::total_on;
use crate::counters::names::event_id::EventId;
use crate::counters::shared::entry::EventState;
use crate::counters::shared::memory::CounterMemory;
use crate::msr::backend::MsrBackend;

/// Returns the data that lets user mode read an opened event's count by RDPMC. The call needs no session. If the event
/// is on a counter, the call costs one RDPMC. `source`, `msr` and `memory` are the arguments of
/// [`service`](crate::service()). `now` is the current time by the clock that the processor's session uses.
///
/// An interrupt handler calls this function after `service`. If `service` loads the event's counter, the data from
/// before is no longer valid. A task calls [`CounterSession::user_view`](crate::CounterSession::user_view) instead. The
/// documentation of that method says how long the data is valid.
///
/// ```
/// use pmu_core::{CounterMemory, EventId, EventSource, Platform, service};
/// use pmu_core::msr::MsrBackend;
/// use pmu_core::reading::{UserView, user_view};
/// /// Serves a counter's interrupt, and shows user mode the event's counter as it is now.
/// fn handler<S: EventSource, M: MsrBackend, P: Platform>(
///     (source, msr, platform, memory): (&S, &M, &P, &CounterMemory),
///     (event, now): (EventId, u64),
///     publish: impl FnOnce(Option<UserView>),
/// ) {
///     let _ = service(source, msr, platform, memory, |_| ());
///     publish(user_view(source, msr, memory, event, now).ok());
/// }
/// ```
///
/// # Context
/// Interrupt or NMI, after `service`. The call is wait-free. If the interrupt interrupted `service`, or a task's
/// operation on this event, the data may be wrong. The interrupted handler or task then calls `user_view` again.
///
/// # Errors
/// - [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
/// - [`NoTotal`](CounterError::NoTotal): the event interrupts, and was opened without a
///   [total](crate::Event::with_total).
/// - [`CounterLost`](CounterError::CounterLost): the event's counter faulted or is [lent](crate::CounterSession::lend),
///   or a task was removing the event from its counter.
/// - [`Access`](CounterError::Access): the counter or the overflow status could not be read.
/// - [`NotAvailable`](CounterError::NotAvailable), only within the closure given to `service`: the event has no period,
///   and its counter may have wrapped since `service` last handled the counter. After `service`, the call succeeds.
pub fn user_view<S: EventSource, M: MsrBackend>(
    source: &S,
    msr: &M,
    memory: &CounterMemory,
    event: EventId,
    now: u64,
) -> Result<UserView, CounterError> {
    let entry = source.opened().entry(event).ok_or(CounterError::NoSuchEvent(event))?;
    if !entry.wants_total() {
        return Err(CounterError::NoTotal(event));
    }
    let on = memory.counter_of(event);
    let mut count = entry.count_at(now, on.is_some());
    let permitted = entry.permits_user_rdpmc();
    let Some(counter) = on else {
        return match entry.state() {
            EventState::Counting => Err(CounterError::CounterLost(event)),
            _ => Ok(UserView::off_counter(permitted, entry.is_enabled(), count, now)),
        };
    };
    let value;
    (count.value, value) = total_on((source, msr, memory), counter, None, entry)?;
    let registers = registers_of(source, counter);
    Ok(UserView::on_counter(&registers, permitted, value, count, now))
}
