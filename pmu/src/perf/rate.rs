//! The rate of an event's samples: a period that follows a frequency, and a limit on the event's interrupts.

use core::sync::atomic::{AtomicU32, Ordering};

use pmu_core::EventTable;

/// Adjusts the period of an event so that the event interrupts at a given frequency.
///
/// As in Linux, the period is adjusted at each interrupt and at each timer tick. Each adjustment first estimates the
/// period that would give the requested frequency. The event's period then changes by an eighth of its difference from
/// the estimate. All times are in nanoseconds of the same clock.
///
/// ```
/// use pmu::perf::Frequency;
/// const TICK: u64 = 4_000_000; // nanoseconds: 250 ticks per second
/// let mut frequency = Frequency::new(4_000, Frequency::INITIAL_PERIOD, TICK);
/// // In the handler: the time, and what comes back is the event's next period.
/// assert_eq!(frequency.interrupted(1_000_000), 4096); // the first interrupt tells nothing
/// // 4096 events in 100 µs are 10,240 per 1/4,000 second: (10,240 - 4096) / 8 more.
/// assert_eq!(frequency.interrupted(1_100_000), 4864);
/// // At the tick: the event's count.
/// assert_eq!(frequency.ticked(8_960), 4326); // 8960 per tick are 560 per 1/4,000 second
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Frequency {
    hertz: u64,
    period: u64,
    tick: u64,
    time: Option<u64>,
    count: u64,
}

impl Frequency {
    /// First period of an event that is to interrupt at a given frequency. This is the shortest period that a new
    /// [`EventTable`] accepts.
    pub const INITIAL_PERIOD: u64 = EventTable::DEFAULT_MIN_PERIOD;

    /// Creates the state for an event that is to interrupt `hertz` times per second. `period` is the event's present
    /// period. The kernel must call [`ticked`](Self::ticked) once per `tick` nanoseconds.
    pub const fn new(hertz: u64, period: u64, tick: u64) -> Self {
        Self { hertz, period, tick, time: None, count: 0 }
    }

    /// Returns the period of the event.
    pub const fn period(&self) -> u64 {
        self.period
    }

    /// Records an interrupt of the event at the time `now`, and returns the next period.
    ///
    /// If the previous interrupt was two ticks ago or more, the period does not change, because the event may have been
    /// stopped since that interrupt.
    ///
    /// The event table refuses a period below its [shortest period](EventTable::set_min_period). If the returned period
    /// is below this limit, the kernel sets the shortest period instead.
    ///
    /// # Context
    /// Interrupt or task, on the processor of the event.
    pub const fn interrupted(&mut self, now: u64) -> u64 {
        if let Some(before) = self.time
            && let Some(elapsed) = now.checked_sub(before)
            && elapsed < self.tick.saturating_mul(2)
        {
            self.period = Self::next_period(self.hertz, self.period, elapsed, self.period);
        }
        self.time = Some(now);
        self.period
    }

    /// Records a tick at which the event's count is `count`, and returns the next period. If the event becomes rarer,
    /// its next interrupt may be far off. This call shortens the period before that interrupt.
    ///
    /// The events that remain until the next interrupt may be more than eight times the returned period. In that case,
    /// Linux loads the counter with the returned period at once. A kernel can do the same.
    pub const fn ticked(&mut self, count: u64) -> u64 {
        let happened = count.wrapping_sub(self.count);
        self.count = count;
        if happened != 0 && happened <= i64::MAX as u64 {
            self.period = Self::next_period(self.hertz, self.period, self.tick, happened);
        }
        self.period
    }

    /// Returns the next period of an event that is to interrupt `hertz` times per second. `period` is the event's
    /// present period. The event happened `count` times in the last `nanoseconds` nanoseconds.
    ///
    /// The estimate of the right period is `count` · 10⁹ / (`nanoseconds` · `hertz`). The period changes by an eighth
    /// of its difference from this estimate. The result is rounded away from the present period. The result is at least
    /// 1 and below 2⁶³. If `hertz` or `nanoseconds` is 0, the result is `period`.
    ///
    /// ```
    /// use pmu::perf::Frequency;
    /// // 3 · 10⁹ cycles per second, 1,000 interrupts per second: towards 3,000,000.
    /// assert_eq!(Frequency::next_period(1_000, 2_000_000, 1_000_000, 3_000_000), 2_125_000);
    /// assert_eq!(Frequency::next_period(1_000, 3_000_000, 1_000_000, 3_000_000), 3_000_000);
    /// ```
    pub const fn next_period(hertz: u64, period: u64, nanoseconds: u64, count: u64) -> u64 {
        const LONGEST: u128 = i64::MAX as u128;
        let divisor = nanoseconds as u128 * hertz as u128;
        let wanted = match (count as u128 * 1_000_000_000).checked_div(divisor) {
            None => return period,
            Some(wanted) if wanted > LONGEST => LONGEST as u64,
            Some(wanted) => wanted as u64,
        };
        let next = if wanted >= period {
            period + (wanted - period).div_ceil(8)
        } else {
            period - (period - wanted).div_ceil(8)
        };
        if next == 0 { 1 } else { next }
    }
}

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
