//! The rate of an event's samples: a period that follows a frequency, and a limit on the samples between two ticks of
//! the kernel's timer. The rules are those of Linux' `kernel/events/core.c`.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::counters::events::count::{Period, Rate};
use crate::counters::names::EventId;
use crate::counters::shared::table::EventTable;

/// The timer tick of a kernel: its length, and the greatest number of samples of an event between two ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Tick {
    nanoseconds: u64,
    max_samples: u32,
}

impl Tick {
    /// Creates the tick that comes `per_second` times, of a kernel whose events have at most `max_samples` samples per
    /// second: Linux' `HZ` and `perf_event_max_sample_rate`. The limit per tick is rounded up.
    ///
    /// ```
    /// use pmu_core::thread::Tick;
    /// const TICK: Tick = Tick::new(250, 100_000); // every 4 ms, and at most 400 samples in this time
    /// # let _ = TICK;
    /// ```
    ///
    /// A `per_second` of 0 is taken as 1. A `max_samples` of 0 sets no limit.
    pub const fn new(per_second: u32, max_samples: u32) -> Self {
        let per_second = if per_second == 0 { 1 } else { per_second };
        Self {
            nanoseconds: 1_000_000_000 / per_second as u64,
            max_samples: max_samples.div_ceil(per_second),
        }
    }
}

/// A [`Rate`] in a table. The interrupt writes when the event was sampled, and a task what it counted at a tick.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedRate {
    hertz: AtomicU32,
    in_tick: AtomicU32,
    sampled_at: AtomicU64,
    counted: AtomicU64,
}

impl SharedRate {
    const THROTTLED: u32 = u32::MAX;

    pub(crate) const fn new() -> Self {
        Self {
            hertz: AtomicU32::new(0),
            in_tick: AtomicU32::new(0),
            sampled_at: AtomicU64::new(0),
            counted: AtomicU64::new(0),
        }
    }

    pub(crate) fn store(&self, rate: Rate) {
        self.hertz.store(rate.hertz, Relaxed);
        self.in_tick.store(rate.in_tick, Relaxed);
        self.sampled_at.store(rate.sampled_at, Relaxed);
        self.counted.store(rate.counted, Relaxed);
    }

    pub(crate) fn load(&self) -> Rate {
        Rate {
            hertz: self.hertz.load(Relaxed),
            in_tick: self.in_tick.load(Relaxed),
            sampled_at: self.sampled_at.load(Relaxed),
            counted: self.counted.load(Relaxed),
        }
    }

    pub(crate) fn has_frequency(&self) -> bool {
        self.hertz.load(Relaxed) != 0
    }

    pub(crate) fn is_throttled(&self) -> bool {
        self.in_tick.load(Relaxed) == Self::THROTTLED
    }

    /// Returns the period after a sample at the time `now`, with ticks of so many nanoseconds. If the sample before was
    /// two ticks ago or more, the event may have been stopped in between, and the period does not change.
    fn sampled(&self, period: u64, now: u64, tick: u64) -> u64 {
        let before = self.sampled_at.load(Relaxed);
        self.sampled_at.store(now, Relaxed);
        match now.checked_sub(before) {
            Some(elapsed) if before != 0 && elapsed < tick.saturating_mul(2) => {
                next_period(self.hertz.load(Relaxed), period, elapsed, period)
            }
            _ => period,
        }
    }

    /// Returns the period after a tick at which the event has this count. So the period gets shorter when the event
    /// becomes rarer, whose next sample may be far off.
    pub(crate) fn ticked(&self, period: u64, count: u64, tick: u64) -> u64 {
        let happened = count.wrapping_sub(self.counted.load(Relaxed));
        self.counted.store(count, Relaxed);
        // The count went back if it was reset.
        if happened == 0 || happened > i64::MAX as u64 {
            return period;
        }
        next_period(self.hertz.load(Relaxed), period, tick, happened)
    }

    /// Counts a sample. Returns whether the event is throttled from now on: it has the last one of at most `limit`.
    fn count(&self, limit: u32) -> bool {
        let samples = self.in_tick.load(Relaxed).saturating_add(1);
        let is_throttled = samples >= limit;
        self.in_tick.store(if is_throttled { Self::THROTTLED } else { samples }, Relaxed);
        is_throttled
    }

    /// Begins a tick. Returns whether the event was throttled.
    pub(crate) fn begin_tick(&self) -> bool {
        // An interrupt may come at any time, also one that throttles the event.
        self.in_tick.swap(0, Relaxed) == Self::THROTTLED
    }
}

/// Returns the next period of an event that is to have `hertz` samples per second, and happened `count` times in the
/// last `nanoseconds`: an eighth of the way from `period` to the period that would have given this rate, rounded away
/// from `period`. The result is at least 1 and below 2⁶³. If nothing is known, the period stays.
///
/// Source: Linux, `perf_calculate_period` and `perf_adjust_period`.
fn next_period(hertz: u32, period: u64, nanoseconds: u64, count: u64) -> u64 {
    let divisor = u128::from(nanoseconds) * u128::from(hertz);
    let Some(wanted) = (u128::from(count) * 1_000_000_000).checked_div(divisor) else {
        return period;
    };
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX).min(Period::MAX);
    let step = wanted.abs_diff(period).div_ceil(8);
    let next = if wanted >= period { period + step } else { period - step };
    next.max(1)
}

impl EventTable {
    /// Counts a sample of an event against the limit of a [`Tick`], and adapts the period of an event with a
    /// [frequency](crate::Event::at_frequency). The handler calls this for each overflow that
    /// [`service`](crate::service()) reports. `now` returns the time by the clock of
    /// [`CounterSession::tick`](crate::CounterSession::tick), and is called for an event with a frequency only.
    ///
    /// Returns whether the event is throttled: it has had the last sample before the next tick. It goes on counting.
    /// Before the first tick, nothing is adapted or throttled.
    ///
    /// ```
    /// # use pmu_core::{EventOverflow, EventTable};
    /// # fn push(_tag: u64, _throttled: bool) {}
    /// fn overflowed(events: &EventTable, overflow: EventOverflow, now: fn() -> u64) {
    ///     let is_throttled = events.account_sample(overflow.event, now);
    ///     push(overflow.tag, is_throttled); // as PERF_RECORD_THROTTLE
    /// }
    /// ```
    ///
    /// # Context
    /// The handler of the event's overflow.
    #[inline(never)]
    pub fn account_sample(&self, event: EventId, now: impl FnOnce() -> u64) -> bool {
        let tick = self.tick.load(Relaxed);
        let Some(entry) = self.entry(event).filter(|_| tick != 0) else { return false };
        if entry.rate.has_frequency() {
            let period = entry.period.every() & !Period::SILENT;
            let period = self.at_least_min(entry.rate.sampled(period, now(), tick));
            entry.period.set(period | entry.period.every() & Period::SILENT);
        }
        let limit = self.max_samples.load(Relaxed);
        let is_throttled = limit != 0 && entry.rate.count(limit);
        if is_throttled {
            entry.period.silence();
        }
        is_throttled
    }

    /// Returns whether an open event has had its last sample before the next [tick](crate::CounterSession::tick).
    ///
    /// # Context
    /// Any context, on any processor.
    pub fn is_throttled(&self, event: EventId) -> bool {
        self.entry(event).is_some_and(|entry| entry.rate.is_throttled())
    }

    pub(crate) fn set_tick(&self, tick: Tick) -> u64 {
        self.max_samples.store(tick.max_samples, Relaxed);
        self.tick.store(tick.nanoseconds, Relaxed);
        tick.nanoseconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand: count · 10⁹ / (time · frequency), an eighth of the way there, rounded away.
    #[test]
    fn a_period_goes_an_eighth_of_the_way_to_the_rates() {
        for (hertz, period, nanoseconds, count, expected) in [
            (1_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000),
            (1_000, 1_000_000, 1_000_000, 1_000_001, 1_000_001),
            (1_000, 1_000_000, 1_000_000, 1_000_008, 1_000_001),
            (1_000, 1_000_000, 1_000_000, 1_000_009, 1_000_002),
            (1_000, 1_000_000, 1_000_000, 999_999, 999_999),
            (1_000, 1_000_000, 1_000_000, 999_992, 999_999),
            (1_000, 1_000_000, 1_000_000, 999_991, 999_998),
            (1_000, 1_000_000, 1_000_000, 0, 875_000),
            (4_000, 1, 4_000_000, 12_000_000, 93_751),
            (1, 8, 1, 0, 7),
            // A period is never 0.
            (1, 1, 1_000_000_000, 0, 1),
            (1, 0, 1_000_000_000, 0, 1),
            // Products beyond 64 bits.
            (1_000, 1 << 40, 1 << 40, 1 << 40, (1 << 40) - 137_438_828_472),
            (1, 1 << 62, 1, u64::MAX, 5_188_146_770_730_811_392),
            (u32::MAX, 80, u64::MAX, u64::MAX, 70),
            // Nothing is known.
            (0, 5, 1_000, 1_000, 5),
            (1_000, 5, 0, 1_000, 5),
        ] {
            let next = next_period(hertz, period, nanoseconds, count);
            assert_eq!(next, expected, "{hertz} Hz, {period}, {count} in {nanoseconds} ns");
        }
    }

    const TICK: u64 = 4_000_000;

    fn rate(hertz: u32) -> SharedRate {
        let rate = SharedRate::new();
        rate.store(Rate::new(hertz));
        rate
    }

    /// As in Linux: an event that happens 3 · 10⁹ times per second, to interrupt 4,000 times.
    #[test]
    fn a_frequency_is_reached_and_kept() {
        let (rate, mut period) = (rate(4_000), Period::DEFAULT_MIN);
        let (mut overflow, mut tick, mut interrupts) = (period / 3, TICK, 0);
        while overflow < 1_000_000_000 {
            if tick < overflow {
                period = rate.ticked(period, tick * 3, TICK);
                tick += TICK;
            } else {
                interrupts += u32::from(overflow >= 500_000_000);
                period = rate.sampled(period, overflow, TICK);
                overflow += period / 3;
            }
        }
        assert!(period.abs_diff(750_000) < 750, "{period}");
        assert!((1_990..=2_010).contains(&interrupts), "{interrupts}");
    }

    #[test]
    fn samples_two_ticks_apart_and_the_first_one_tell_nothing() {
        let rate = rate(1_000);
        assert_eq!(rate.sampled(8_000, 50, TICK), 8_000);
        assert_eq!(rate.sampled(8_000, 50 + 2 * TICK, TICK), 8_000);
        // 8,000 in 8 ms less 1 ns: 1,000 per ms, and 7,000 / 8.
        assert_eq!(rate.sampled(8_000, 49 + 4 * TICK, TICK), 7_125);
        assert_eq!(rate.sampled(7_125, 5, TICK), 7_125); // a clock that went back
        assert_eq!(rate.sampled(7_125, 1_000_005, TICK), 7_125); // 7,125 per millisecond is what it has
    }

    #[test]
    fn a_tick_looks_at_what_was_counted_since_the_last_one() {
        let rate = rate(250); // one sample per tick
        assert_eq!(rate.ticked(100, 900, TICK), 200);
        assert_eq!(rate.ticked(200, 900, TICK), 200); // it stood still
        assert_eq!(rate.ticked(200, 1_900, TICK), 300);
        assert_eq!(rate.ticked(300, 1_000, TICK), 300); // its count was reset
        assert_eq!(rate.ticked(300, 1_300, TICK), 300);
    }

    /// `__perf_event_account_interrupt` stops an event at the interrupt that reaches the limit, and
    /// `perf_adjust_freq_unthr_events` starts it at the tick.
    #[test]
    fn an_event_is_sampled_at_most_so_often_per_tick() {
        for limit in [1, 2, 3, 400] {
            let rate = rate(0);
            for tick in 0..3 {
                assert_eq!(rate.begin_tick(), tick != 0);
                for _ in 1..limit {
                    assert!(!rate.count(limit) && !rate.is_throttled());
                }
                assert!(rate.count(limit) && rate.is_throttled());
                // A sample that was on its way.
                assert!(rate.count(limit) && rate.is_throttled());
            }
        }
        // Fewer per tick are never stopped.
        let rate = rate(0);
        for _ in 0..5 {
            assert!(!rate.count(3) && !rate.count(3));
            assert!(!rate.begin_tick());
        }
    }

    /// `max_samples_per_tick` is DIV_ROUND_UP(`perf_event_max_sample_rate`, `HZ`).
    #[test]
    fn the_limit_per_tick_is_rounded_up() {
        let limit = |per_second, ticks| Tick::new(ticks, per_second).max_samples;
        assert_eq!(limit(100_000, 1_000), 100);
        assert_eq!(limit(100_000, 250), 400);
        assert_eq!(limit(100_001, 250), 401);
        assert_eq!(limit(1, 250), 1);
        assert_eq!(limit(0, 250), 0);
        assert_eq!(Tick::new(250, 0).nanoseconds, TICK);
        assert_eq!(Tick::new(0, 0).nanoseconds, 1_000_000_000);
    }
}
