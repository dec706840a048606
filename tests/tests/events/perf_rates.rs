//! Throttled events, as Linux' `kernel/events/core.c` behaves.

use core::cell::Cell;

use pmu::core::interrupt::EventOverflow;
use pmu::core::memory::EventTable;
use pmu::core::thread::{ThreadEvent, Tick};
use pmu::core::{Events, service};
use pmu_tests::opened::{Memory, Mock, Table, happened, processors, raw};
use pmu_virt::mock::Deviations;

const NANOSECONDS: u64 = 4_000_000;
/// At most two samples per tick.
const TICK: Tick = Tick::new(250, 500);

/// Calls that make a throttled event report again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Again {
    Tick,
    StopAndStart,
    /// `EventTable::set_period` alone, and then a context switch. Here the handler stops the reports itself.
    PeriodAndSwitch,
}

/// Of a frequency that keeps its period: the samples are two ticks apart, and nothing tells what it counts per tick.
#[test]
fn a_throttled_event_samples_again_after_the_tick() {
    const PERIOD: u64 = EventTable::DEFAULT_MIN_PERIOD;
    for processor in processors(Deviations::NONE) {
        for again in [Again::Tick, Again::StopAndStart, Again::PeriodAndSwitch] {
            let what = format!("{processor:?}, {again:?}");
            let (mock, memory) = (processor.mock(), Memory::new());
            let table = Table::new();
            let source = Events::new(&processor.unit, &table as &EventTable);
            let (samples, now) = (Cell::new(0), Cell::new(0));
            let sampled = |overflow: EventOverflow| {
                samples.set(samples.get() + 1);
                now.set(now.get() + 2 * NANOSECONDS);
                let is_throttled = table.account_sample(overflow.event, true, || now.get());
                assert_eq!(table.is_throttled(overflow.event), is_throttled, "{what}");
                let is_second = samples.get() % 2 == 0;
                if again == Again::PeriodAndSwitch && is_second {
                    table.stop_reporting(overflow.event).unwrap();
                }
                assert_eq!(is_throttled, again != Again::PeriodAndSwitch && is_second, "{what}");
            };
            let handler = |mock: &Mock<'_>| {
                service(&source, mock, &memory, |sample| sampled(*sample)).unwrap();
            };
            mock.on_interrupt(&handler);
            let mut session = processor.take(&mock, &memory, &table);
            let mut event = session.open(&processor.unit, &[raw(2).every(PERIOD)]).unwrap();
            session.enable(event, 0).unwrap();
            if again != Again::PeriodAndSwitch {
                session.tick(TICK, 0, sampled).unwrap();
            }
            for tick in 1..=3 {
                mock.advance(&mut happened(2, 10 * PERIOD));
                assert_eq!(samples.get(), 2 * tick, "{what}");
                let now = now.get();
                match again {
                    Again::Tick => session.tick(TICK, now, sampled).unwrap(),
                    Again::StopAndStart => {
                        session.disable(event, now).unwrap();
                        session.enable(event, now).unwrap();
                    }
                    Again::PeriodAndSwitch => {
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

/// The period under way when the event becomes rare would last for a second.
#[test]
fn an_event_that_becomes_rare_does_not_wait_for_its_long_period() {
    for processor in processors(Deviations::NONE) {
        let (mock, memory) = (processor.mock(), Memory::new());
        let table = Table::new();
        let source = Events::new(&processor.unit, &table as &EventTable);
        let (samples, now) = (Cell::new(0), Cell::new(1));
        let sampled = |overflow: EventOverflow| {
            samples.set(samples.get() + 1);
            assert!(!table.account_sample(overflow.event, true, || now.get()), "there is no limit");
        };
        let handler = |mock: &Mock<'_>| {
            service(&source, mock, &memory, |sample| sampled(*sample)).unwrap();
        };
        mock.on_interrupt(&handler);
        let mut session = processor.take(&mock, &memory, &table);
        let event = raw(2).at_frequency(1_000);
        let event = session.open(&processor.unit, &[event]).unwrap();
        session.enable(event, 0).unwrap();
        let mut sampled_in = |ticks, events_per_tick: u64| {
            samples.set(0);
            for _ in 0..ticks {
                for _ in 0..4 {
                    mock.advance(&mut happened(2, events_per_tick / 4));
                    now.set(now.get() + NANOSECONDS / 4);
                }
                session.tick(Tick::new(250, 0), now.get(), sampled).unwrap();
            }
            samples.get()
        };
        sampled_in(50, 4_000_000);
        assert_eq!(sampled_in(10, 4_000_000), 40, "{processor:?}");
        // A million is a period. The new one is the shortest, of about one tick.
        let rare = sampled_in(50, 4_096);
        assert!((10..=40).contains(&rare), "{processor:?}: {rare}");
    }
}
