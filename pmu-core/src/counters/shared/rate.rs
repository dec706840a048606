//! The rate of an event's samples: a period that follows a frequency, and a limit on the samples between two ticks of
//! the kernel's timer. The rules are those of Linux' `kernel/events/core.c`.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::counters::events::count::{Period, Rate};
use crate::counters::events::saved::SavedEvent;
use crate::counters::names::EventId;
use crate::counters::shared::table::EventTable;

/// The timer tick of a kernel: its length, and the greatest number of samples of an event between two ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Tick {
    nanoseconds: u64,
    max_samples: u16,
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
    /// A `per_second` of 0 is taken as 1. A `max_samples` of 0 sets no limit. The limit per tick is at most 65,534.
    pub const fn new(per_second: u32, max_samples: u32) -> Self {
        const GREATEST: u32 = (Rate::THROTTLED - 1) as u32;
        let per_second = if per_second == 0 { 1 } else { per_second };
        let limit = max_samples.div_ceil(per_second);
        Self {
            nanoseconds: 1_000_000_000 / per_second as u64,
            max_samples: if limit > GREATEST { GREATEST } else { limit } as u16,
        }
    }
}

/// A [`Rate`] in a table. The interrupt writes when and how often the event was sampled, and a task what the event has
/// counted.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedRate {
    hertz: AtomicU32,
    in_tick: AtomicU16,
    batch: AtomicU8,
    tick: AtomicU8,
    sampled_at: AtomicU64,
    counted: AtomicU64,
}

impl SharedRate {
    pub(crate) const fn new() -> Self {
        Self {
            hertz: AtomicU32::new(0),
            in_tick: AtomicU16::new(0),
            batch: AtomicU8::new(0),
            tick: AtomicU8::new(0),
            sampled_at: AtomicU64::new(0),
            counted: AtomicU64::new(0),
        }
    }

    pub(crate) fn store(&self, rate: Rate) {
        self.hertz.store(rate.hertz, Relaxed);
        self.in_tick.store(rate.in_tick, Relaxed);
        self.batch.store(rate.batch, Relaxed);
        self.tick.store(rate.tick, Relaxed);
        self.sampled_at.store(rate.sampled_at, Relaxed);
        self.counted.store(rate.counted, Relaxed);
    }

    pub(crate) fn load(&self) -> Rate {
        Rate {
            hertz: self.hertz.load(Relaxed),
            in_tick: self.in_tick.load(Relaxed),
            batch: self.batch.load(Relaxed),
            tick: self.tick.load(Relaxed),
            sampled_at: self.sampled_at.load(Relaxed),
            counted: self.counted.load(Relaxed),
        }
    }

    pub(crate) fn has_frequency(&self) -> bool {
        self.hertz.load(Relaxed) != 0
    }

    pub(crate) fn is_throttled(&self) -> bool {
        self.in_tick.load(Relaxed) == Rate::THROTTLED
    }

    /// Ends the event's throttle. Its period is still silent then.
    pub(crate) fn unthrottle(&self) {
        if self.is_throttled() {
            self.in_tick.store(0, Relaxed);
        }
    }

    /// Returns the period after an interrupt at the time `now`, with ticks of so many nanoseconds. As many samples are
    /// taken to have come since the last interrupt as came in that one. If that was two ticks ago or more, the event
    /// may have been stopped in between, and the period does not change.
    fn sampled(&self, period: u64, now: u64, tick: u64) -> u64 {
        let samples = self.batch.swap(1, Relaxed).max(1);
        let before = self.sampled_at.load(Relaxed);
        self.sampled_at.store(now, Relaxed);
        // As in Linux: samples farther apart say nothing about the rate. The event may have been off its counter
        // meanwhile.
        match now.checked_sub(before) {
            Some(elapsed) if before != 0 && elapsed < tick.saturating_mul(2) => {
                let count = period.saturating_mul(samples.into());
                next_period(self.hertz.load(Relaxed), period, elapsed, count)
            }
            _ => period,
        }
    }

    /// Counts one more sample of the same interrupt.
    fn sampled_again(&self) {
        self.batch.store(self.batch.load(Relaxed).saturating_add(1), Relaxed);
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

    /// Notes that the event's count has changed otherwise than by counting.
    pub(crate) fn add_count(&self, count: u64) {
        self.counted.store(self.counted.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Counts an interrupt with a sample, in the tick of this number. Returns whether it is the last one of at most
    /// `limit`.
    fn count(&self, limit: u16, tick: u8) -> bool {
        let before =
            if self.tick.swap(tick, Relaxed) == tick { self.in_tick.load(Relaxed) } else { 0 };
        let interrupts = before.saturating_add(1);
        // The greatest value is the mark of a throttled event, not a number.
        self.in_tick.store(interrupts.min(Rate::THROTTLED - 1), Relaxed);
        interrupts >= limit
    }

    fn throttle(&self) {
        self.in_tick.store(Rate::THROTTLED, Relaxed);
    }
}

/// Returns the next period of an event that is to have `hertz` samples per second, and happened `count` times in the
/// last `nanoseconds`: an eighth of the way from `period` to the period that would have given this rate, rounded away
/// from `period`. The result is at least 1 and below 2⁶³. If nothing is known, the period stays.
///
/// Source: Linux, `perf_calculate_period` and `perf_adjust_period`.
fn next_period(hertz: u32, period: u64, nanoseconds: u64, count: u64) -> u64 {
    // In 64 bits, a count times 10^9 would overflow from 1.8 * 10^10 events on.
    let divisor = u128::from(nanoseconds) * u128::from(hertz);
    let Some(wanted) = (u128::from(count) * 1_000_000_000).checked_div(divisor) else {
        return period;
    };
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX).min(Period::MAX);
    // A low-pass filter, that of Linux' `perf_adjust_period`: one outlier moves the period by an eighth of the way.
    let step = wanted.abs_diff(period).div_ceil(8);
    let next = if wanted >= period { period + step } else { period - step };
    next.max(1)
}

impl EventTable {
    /// Counts a sample of an event against the limit of a [`Tick`], and adapts the period of an event with a
    /// [frequency](crate::Event::at_frequency). The handler calls this for each overflow that
    /// [`service`](crate::service()) reports. `is_first` is clear for further samples of the event in the same
    /// interrupt: records that waited in memory count as one. `now` returns the time by the clock of
    /// [`CounterSession::tick`](crate::CounterSession::tick), and is called for an event with a frequency only.
    ///
    /// Returns whether the event is throttled: it has had its last sample before the next tick. It continues to count.
    /// Before the first tick, nothing is adapted or throttled.
    ///
    /// ```
    /// # use pmu_core::interrupt::EventOverflow;
    /// # use pmu_core::memory::EventTable;
    /// # fn push(_tag: u64, _throttled: bool) {}
    /// /// Of events that are not precise: each interrupt has one sample.
    /// fn overflowed(events: &EventTable, overflow: EventOverflow, now: fn() -> u64) {
    ///     let is_throttled = events.account_sample(overflow.event, true, now);
    ///     push(overflow.tag, is_throttled); // as PERF_RECORD_THROTTLE
    /// }
    /// ```
    ///
    /// # Context
    /// The handler of the event's overflow.
    #[inline(never)] // 48 bytes of the Hermit-like glue.
    pub fn account_sample(
        &self,
        event: EventId,
        is_first: bool,
        now: impl FnOnce() -> u64,
    ) -> bool {
        let tick = self.tick.load(Relaxed);
        let Some(entry) = self.entry(event).filter(|_| tick != 0) else { return false };
        if !is_first {
            entry.rate.sampled_again();
        }
        // A throttled event may have samples that waited.
        if !is_first || entry.rate.is_throttled() {
            return entry.rate.is_throttled();
        }
        if entry.rate.has_frequency() {
            let period = entry.period.every() & !Period::SILENT;
            let period = entry.rate.sampled(period, now(), tick);
            let period = self.at_least_min_of(entry, period);
            entry.period.change(|every| period | every & Period::SILENT);
        }
        let limit = self.max_samples.load(Relaxed);
        // An event that its user has silenced is not let go on by the tick.
        let is_throttled = limit != 0
            && entry.rate.count(limit, self.ticks.load(Relaxed))
            && entry.period.every() & Period::SILENT == 0;
        if is_throttled {
            entry.rate.throttle();
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

    /// Begins a tick, and returns its length.
    pub(crate) fn begin_tick(&self, tick: Tick) -> u64 {
        self.max_samples.store(tick.max_samples, Relaxed);
        self.tick.store(tick.nanoseconds, Relaxed);
        self.ticks.fetch_add(1, Relaxed);
        tick.nanoseconds
    }

    /// Lets a thread's event that was throttled in another tick, or on another processor, report again.
    pub(crate) fn unthrottle(&self, event: &mut SavedEvent) {
        if event.rate.is_throttled() && event.rate.tick != self.ticks.load(Relaxed) {
            event.rate.unthrottle();
            event.period = event.period.reporting();
        }
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

    /// `__perf_event_account_interrupt` stops an event at the interrupt that reaches the limit of its tick.
    #[test]
    fn an_event_is_sampled_at_most_so_often_per_tick() {
        for limit in [1, 2, 3, 400] {
            let rate = rate(0);
            for tick in 1..4 {
                for _ in 1..limit {
                    assert!(!rate.count(limit, tick));
                }
                // Also of an interrupt that was on its way.
                assert!(rate.count(limit, tick) && rate.count(limit, tick));
            }
        }
        // Fewer per tick are never stopped, and a rate that is never limited does not look throttled.
        let rate = rate(0);
        for tick in 0..5 {
            assert!(!rate.count(3, tick) && !rate.count(3, tick));
        }
        for _ in 0..0x1_0005 {
            rate.count(u16::MAX - 1, 5);
            assert!(!rate.is_throttled());
        }
    }

    /// 20 records wait for each interrupt, which come 5 ms apart: 4,000 per second is what the event has.
    #[test]
    fn records_that_waited_came_since_the_last_interrupt() {
        let rate = rate(4_000);
        let mut period = 16_000;
        for interrupt in 1..50 {
            period = rate.sampled(period, interrupt * 5_000_000, TICK);
            (1..20).for_each(|_| rate.sampled_again());
        }
        assert_eq!(period, 16_000);
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
        assert_eq!(limit(100_000, 1), 65_534);
        assert_eq!(Tick::new(250, 0).nanoseconds, TICK);
        assert_eq!(Tick::new(0, 0).nanoseconds, 1_000_000_000);
    }
}
