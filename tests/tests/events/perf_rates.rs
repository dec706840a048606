//! Frequencies and throttling, as Linux' `kernel/events/core.c` behaves: periods worked out by hand.

use pmu::perf::{Frequency, Throttle};

/// `perf_calculate_period` and `perf_adjust_period`: count · 10⁹ / (time · frequency), an eighth of the way there,
/// rounded away from the present period.
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
        (u64::MAX, 80, u64::MAX, u64::MAX, 70),
        // Nothing is known.
        (0, 5, 1_000, 1_000, 5),
        (1_000, 5, 0, 1_000, 5),
    ] {
        let next = Frequency::next_period(hertz, period, nanoseconds, count);
        assert_eq!(next, expected, "{hertz} Hz, {period}, {count} in {nanoseconds} ns");
    }
}

const TICK: u64 = 4_000_000;

/// As in Linux, whose first period is 1: an event that happens 3 · 10⁹ times per second, to interrupt 4,000 times.
#[test]
fn a_frequency_is_reached_and_kept() {
    let mut frequency = Frequency::new(4_000, Frequency::INITIAL_PERIOD, TICK);
    let (mut overflow, mut tick, mut interrupts) = (frequency.period() / 3, TICK, 0);
    while overflow < 1_000_000_000 {
        if tick < overflow {
            frequency.ticked(tick * 3);
            tick += TICK;
        } else {
            interrupts += u32::from(overflow >= 500_000_000);
            overflow += frequency.interrupted(overflow) / 3;
        }
    }
    assert!(frequency.period().abs_diff(750_000) < 750, "{}", frequency.period());
    assert!((1_990..=2_010).contains(&interrupts), "{interrupts}");
}

#[test]
fn interrupts_two_ticks_apart_and_the_first_one_tell_nothing() {
    let mut frequency = Frequency::new(1_000, 8_000, TICK);
    assert_eq!(frequency.interrupted(50), 8_000);
    assert_eq!(frequency.interrupted(50 + 2 * TICK), 8_000);
    assert_eq!(frequency.interrupted(49 + 4 * TICK), 7_125); // 8,000 in 8 ms less 1 ns: 1,000 per ms, and 7,000 / 8
    assert_eq!(frequency.interrupted(5), 7_125); // a clock that went back
    assert_eq!(frequency.interrupted(1_000_005), 7_125); // 7,125 per millisecond is what it has
}

#[test]
fn a_tick_looks_at_what_was_counted_since_the_last_one() {
    let mut frequency = Frequency::new(250, 100, TICK); // one interrupt per tick
    assert_eq!(frequency.ticked(900), 200);
    assert_eq!(frequency.ticked(900), 200); // it stood still
    assert_eq!(frequency.ticked(1_900), 300);
    assert_eq!(frequency.ticked(1_000), 300); // its count was reset
    assert_eq!(frequency.ticked(1_300), 300);
}

/// `__perf_event_account_interrupt` stops an event at the interrupt that reaches the limit, and
/// `perf_adjust_freq_unthr_events` starts it at the tick.
#[test]
fn an_event_interrupts_at_most_so_often_per_tick() {
    for limit in [1, 2, 3, 400] {
        let throttle = Throttle::new(limit);
        for tick in 0..3 {
            assert_eq!(throttle.ticked(), tick != 0);
            for _ in 1..limit {
                assert!(!throttle.interrupted() && !throttle.is_throttled());
            }
            assert!(throttle.interrupted() && throttle.is_throttled());
            // An interrupt that was on its way.
            assert!(throttle.interrupted() && throttle.is_throttled());
        }
    }
    // Fewer per tick are never stopped.
    let throttle = Throttle::new(3);
    for _ in 0..5 {
        assert!(!throttle.interrupted() && !throttle.interrupted());
        assert!(!throttle.ticked());
    }
    assert!(Throttle::new(0).interrupted());
}

/// `max_samples_per_tick` is DIV_ROUND_UP(`perf_event_max_sample_rate`, `HZ`).
#[test]
fn the_limit_per_tick_is_rounded_up() {
    assert_eq!(Throttle::per_tick(100_000, 1_000), 100);
    assert_eq!(Throttle::per_tick(100_000, 250), 400);
    assert_eq!(Throttle::per_tick(100_001, 250), 401);
    assert_eq!(Throttle::per_tick(1, 250), 1);
    assert_eq!(Throttle::per_tick(1, 0), u32::MAX);
}
