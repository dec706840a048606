//! Throttling: a limit on an event's interrupts per timer tick.

use core::sync::atomic::{AtomicU32, Ordering};

/// A limit on the interrupts of one event between two timer ticks.
///
/// At the last interrupt that the limit allows, the handler stops the event. At the next tick, the kernel starts the
/// event again.
///
/// ```
/// use pmu::perf::Throttle;
/// // One per event. At most 100,000 interrupts per second, and 250 ticks per second: 400 per tick.
/// static THROTTLE: Throttle = Throttle::new(Throttle::per_tick(100_000, 250));
///
/// fn overflowed() -> bool {
///     THROTTLE.interrupted() // true: the handler disables the event
/// }
/// fn timer_tick() -> bool {
///     THROTTLE.ticked() // true: the event was disabled by the throttle, and is started again
/// }
/// assert!((1..400).all(|_| !overflowed()));
/// assert!(overflowed());
/// assert!(timer_tick());
/// assert!(!overflowed() && !timer_tick());
/// ```
///
/// The handler stops the event by [`EventTable::stop_reporting`](pmu_core::EventTable::stop_reporting), and the tick
/// starts it by [`CounterSession::apply_period`](pmu_core::CounterSession::apply_period). If the event also has a
/// [`Frequency`](crate::perf::Frequency), the handler calls `set_period` before `stop_reporting`. If the handler called
/// `set_period` last, the event would report overflows again:
///
/// ```
/// use pmu::core::{CounterError, CounterSession, EventId, EventOverflow, EventSource, EventTable, Platform};
/// use pmu::core::msr::MsrBackend;
/// use pmu::perf::{Frequency, Throttle};
///
/// fn overflowed(
///     (events, overflow): (&EventTable, EventOverflow),
///     (frequency, throttle): (&mut Frequency, &Throttle),
///     now: u64,
/// ) -> Result<(), CounterError> {
///     events.set_period(overflow.event, frequency.interrupted(now).max(Frequency::INITIAL_PERIOD))?;
///     if throttle.interrupted() { events.stop_reporting(overflow.event) } else { Ok(()) }
/// }
/// /// Needs the session. `sample` takes an overflow that was pending.
/// fn timer_tick<S: EventSource, M: MsrBackend, P: Platform>(
///     (session, event): (&mut CounterSession<'_, S, M, P>, EventId),
///     (frequency, throttle): (&Frequency, &Throttle),
///     now: u64,
///     sample: impl FnMut(EventOverflow),
/// ) -> Result<(), CounterError> {
///     let period = frequency.period().max(Frequency::INITIAL_PERIOD);
///     if throttle.ticked() { session.apply_period(event, period, now, sample) } else { Ok(()) }
/// }
/// # let _ = overflowed;
/// ```
#[derive(Debug)]
pub struct Throttle {
    limit: u32,
    /// Interrupts since the last tick, or `THROTTLED`.
    interrupts: AtomicU32,
}

impl Throttle {
    const THROTTLED: u32 = u32::MAX;

    /// Creates a throttle of at most `limit` interrupts per tick. A `limit` of 0 means 1.
    pub const fn new(limit: u32) -> Self {
        Self { limit, interrupts: AtomicU32::new(0) }
    }

    /// Converts a limit of `per_second` interrupts per second into a limit per timer tick, rounded up: Linux'
    /// `perf_event_max_sample_rate` divided by `HZ`. If `ticks_per_second` is 0, there is no limit.
    pub const fn per_tick(per_second: u32, ticks_per_second: u32) -> u32 {
        match ticks_per_second {
            0 => u32::MAX,
            ticks => per_second.div_ceil(ticks),
        }
    }

    /// Counts an interrupt of the event. If the result is `true`, the handler stops the event until the next tick.
    ///
    /// # Context
    /// Interrupt, NMI, or task, on the processor of the event.
    pub fn interrupted(&self) -> bool {
        // Nothing else is read on account of this word, and its writers are on one processor.
        let interrupts = self.interrupts.load(Ordering::Relaxed).saturating_add(1);
        let throttled = interrupts >= self.limit;
        let interrupts = if throttled { Self::THROTTLED } else { interrupts };
        self.interrupts.store(interrupts, Ordering::Relaxed);
        throttled
    }

    /// Records a timer tick. Returns whether the throttle stopped the event since the previous tick.
    ///
    /// # Context
    /// The timer tick, on the processor of the event. An NMI may interrupt the call.
    pub fn ticked(&self) -> bool {
        self.interrupts.swap(0, Ordering::Relaxed) == Self::THROTTLED
    }

    /// Returns whether the throttle has stopped the event until the next tick.
    pub fn is_throttled(&self) -> bool {
        self.interrupts.load(Ordering::Relaxed) == Self::THROTTLED
    }
}
