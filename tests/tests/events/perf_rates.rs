//! Frequencies and throttling, as Linux' `kernel/events/core.c` behaves: periods worked out by hand.

use core::cell::{Cell, RefCell};

use pmu::core::msr::MsrBackend;
use pmu::core::thread::ThreadEvent;
use pmu::core::{
    CounterError, CounterSession, EventId, EventOverflow, EventSource, EventTable, OpenedEvents,
    Platform, service,
};
use pmu::perf::{Frequency, Throttle};
use pmu_tests::opened::{Memory, Mock, Table, happened, processors, raw};
use pmu_virt::mock::Deviations;

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

/// The handler of the example of `Throttle`.
fn overflowed(
    (events, overflow): (&EventTable, EventOverflow),
    (frequency, throttle): (&mut Frequency, &Throttle),
    now: u64,
) -> Result<(), CounterError> {
    let period = frequency.interrupted(now).max(Frequency::INITIAL_PERIOD);
    events.set_period(overflow.event, period)?;
    if throttle.interrupted() { events.stop_reporting(overflow.event) } else { Ok(()) }
}

/// The tick of the example of `Throttle`.
fn timer_tick<S: EventSource, M: MsrBackend, P: Platform>(
    (session, event): (&mut CounterSession<'_, S, M, P>, EventId),
    (frequency, throttle): (&Frequency, &Throttle),
    now: u64,
    sample: impl FnMut(EventOverflow),
) -> Result<(), CounterError> {
    let period = frequency.period().max(Frequency::INITIAL_PERIOD);
    if throttle.ticked() { session.apply_period(event, period, now, sample) } else { Ok(()) }
}

/// Calls that make a throttled event report again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Again {
    Tick,
    StopAndStart,
    /// `EventTable::set_period` alone, and then a context switch.
    PeriodAndSwitch,
}

/// At most two interrupts per tick, of a frequency that keeps its period: the interrupts are two ticks apart.
#[test]
fn a_throttled_event_samples_again_after_the_tick() {
    const PERIOD: u64 = Frequency::INITIAL_PERIOD;
    for processor in processors(Deviations::NONE) {
        for again in [Again::Tick, Again::StopAndStart, Again::PeriodAndSwitch] {
            let what = format!("{processor:?}, {again:?}");
            let (mock, memory) = (processor.mock(), Memory::new());
            let table = Table::new();
            let source = OpenedEvents::new(&processor.unit, &table as &EventTable);
            let frequency = RefCell::new(Frequency::new(1_000, PERIOD, TICK));
            let (throttle, samples, now) = (Throttle::new(2), Cell::new(0), Cell::new(0));
            let sampled = |overflow| {
                samples.set(samples.get() + 1);
                now.set(now.get() + 2 * TICK);
                let frequency = &mut frequency.borrow_mut();
                overflowed((&table, overflow), (frequency, &throttle), now.get()).unwrap();
            };
            let handler = |mock: &Mock<'_>| {
                service(&source, mock, mock, &memory, |sample| sampled(*sample)).unwrap();
            };
            mock.on_interrupt(&handler);
            let mut session = processor.take(&mock, &memory, &table);
            let mut event = session.open_event(&processor.unit, &raw(2).every(PERIOD)).unwrap();
            session.start_event(event, 0).unwrap();
            for tick in 1..=3 {
                mock.advance(&mut happened(2, 10 * PERIOD));
                assert_eq!(samples.get(), 2 * tick, "{what}");
                let now = now.get();
                match again {
                    Again::Tick => {
                        let frequency = *frequency.borrow();
                        let (session, throttle) = ((&mut session, event), (&frequency, &throttle));
                        timer_tick(session, throttle, now, sampled).unwrap();
                    }
                    Again::StopAndStart => {
                        assert!(throttle.ticked());
                        session.stop_event(event, now).unwrap();
                        session.start_event(event, now).unwrap();
                    }
                    Again::PeriodAndSwitch => {
                        assert!(throttle.ticked());
                        table.set_period(event, PERIOD).unwrap();
                        mock.advance(&mut happened(2, 10 * PERIOD));
                        assert_eq!(samples.get(), 2 * tick, "{what}: not yet");
                        let mut thread = [ThreadEvent::Opened(event)];
                        session.switch_out(&mut thread, now, |sample| sampled(*sample)).unwrap();
                        session.switch_in(&processor.unit, &mut thread, now).unwrap();
                        let ThreadEvent::Opened(switched) = thread[0] else { panic!("{what}") };
                        event = switched;
                    }
                }
            }
        }
    }
}
