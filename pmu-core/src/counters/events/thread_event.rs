//! An event of a thread: on a processor, or switched out.

use crate::counters::events::saved::SavedEvent;
use crate::counters::names::event_id::EventId;

/// One event of a thread, either open on a processor or switched out.
///
/// This example is the context switch of a perf-like subsystem. Each thread has a slice of events.
///
/// ```
/// use pmu_core::{CounterError, CounterSession, CounterUnit, Event, EventSource, GenericEvent, EventsError, Platform};
/// use pmu_core::msr::MsrBackend;
/// use pmu_core::thread::ThreadEvent;
///
/// /// Opens a group and an event for the running thread. For a thread that does not run, a kernel opens them on any
/// /// processor in the same way, and switches them out at once. A raw event is counted only on that type of core.
/// fn open<S: EventSource, M: MsrBackend, P: Platform>(
///     counters: &mut CounterSession<'_, S, M, P>,
///     this: &CounterUnit, // this processor's, of its own type of core
///     alone: Event,
///     now: u64,
/// ) -> Result<[ThreadEvent; 3], EventsError> {
///     let group = counters.open_group(this, &[GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic))?;
///     let opened = counters.open_event(this, &alone).map_err(EventsError::from);
///     let started = opened.and_then(|alone| {
///         counters.start_group(group, now)?;
///         counters.start_event(alone, now)?;
///         Ok(alone)
///     });
///     let alone = match started {
///         Ok(alone) => alone,
///         Err(error) => {
///             let _ = opened.map(|alone| counters.close_event(alone, now));
///             counters.close_group(group, now)?;
///             return Err(error);
///         }
///     };
///     let mut thread = [ThreadEvent::Opened(alone); 3];
///     for (place, event) in thread.iter_mut().zip(counters.group_events(group)) {
///         *place = ThreadEvent::Opened(event);
///     }
///     Ok(thread)
/// }
///
/// /// The context switch, on each processor with its own counters and unit.
/// fn switch<S: EventSource, M: MsrBackend, P: Platform>(
///     counters: &mut CounterSession<'_, S, M, P>,
///     this: &CounterUnit,
///     (old, new): (&mut [ThreadEvent], &mut [ThreadEvent]),
///     now: u64,
/// ) -> Result<(), EventsError> {
///     let taken = counters.switch_out(old, now, |_overflow| { /* a sample of the old thread's */ });
///     // An error concerns single events. So the new thread's events are given to the processor in any case.
///     let given = counters.switch_in(this, new, now);
///     taken.and(given)
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ThreadEvent {
    /// The slice has no event at this index.
    #[default]
    Unused,
    /// The event is open on the processor on which the thread runs.
    Opened(EventId),
    /// The thread runs on no processor, and the event is switched out.
    SwitchedOut(SavedEvent),
}
