//! Periods: of any length, changed, and so short that an event is throttled.

use core::cell::Cell;
use pmu_tests::Reason;

use pmu_amd::ibs::{IbsKind, IbsSampling};
use pmu_core::EventStatus;
use pmu_core::error::CounterError;
use pmu_virt::mock::PmiFault;

use crate::support::*;

/// Periods that no register takes as they are: shorter than the shortest, no multiples of 16, and longer than each
/// processor's longest. In the old model they were errors.
const PERIODS: [u64; 6] = [1, 17, 144, 100_003, (1 << 20) + 3, (1 << 28) + 5];

/// The shortest period that the units of ops have.
const SHORTEST: u64 = 144;

/// The distances of samples: of cycles exactly the period. With a period of ops, the processor begins each part of more
/// than 143 ops at a random number, which counts as ops.
#[test]
fn samples_of_any_period_are_at_exactly_that_distance() {
    for processor in processors().into_iter().filter(|of| of.is_exact(IbsKind::Op)) {
        for (request, is_random) in [(IbsSampling::cycles(), false), (IbsSampling::ops(), true)] {
            for period in PERIODS {
                let what = format!("{}, {request:?}, {period}", processor.name);
                let mock = processor.mock();
                let kernel = Kernel::new(processor, IbsKind::Op, &mock);
                kernel.period.set(period);
                // The random numbers with which the parts have begun after the sample before, and the newest of them.
                let (began, newest) = (Cell::new(0), Cell::new(0));
                let handler = |mock: &Mock<'_>| {
                    let found = read(mock, control(IbsKind::Op).0) >> 32 & 0x7F;
                    newest.set(if is_random && period >= SHORTEST { found } else { 0 });
                    began.set(began.get() + newest.get());
                    kernel.handle(mock);
                };
                mock.on_interrupt(&handler);
                let mut session = kernel.take(&mock);
                let event = request.event().every(period).with_total();
                let event = kernel.start(&mut session, &event).unwrap();
                for number in 1..=8 {
                    let distance = kernel.distance(&mock, IbsKind::Op, 2 * period).unwrap();
                    let before = began.replace(newest.get()) - newest.get();
                    assert_eq!(distance, period - before, "{what}: {number}");
                    // The next period has begun, at its random number.
                    let total = session.read(event, 0).unwrap().value;
                    assert_eq!(total, number * period + newest.get(), "{what}: {number}");
                }
                assert_eq!((kernel.reported().len(), kernel.memory.dropped()), (8, 0), "{what}");
                assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0), "{what}");
                let sampled = kernel.sampled();
                assert!(kernel.reported().iter().all(|address| sampled.contains(address)));
            }
        }
    }
}

/// A unit whose count cannot be written samples in sixteens: a sample is up to 15 events late, and the next one comes
/// that much earlier, so that nothing adds up. A fetch is up to 15 early as well, by its random bits.
#[test]
fn samples_in_sixteens_keep_the_period_on_average() {
    for (processor, kind) in units().filter(|(processor, kind)| !processor.is_exact(*kind)) {
        let shortest = if kind == IbsKind::Op { SHORTEST } else { 16 };
        for period in PERIODS.into_iter().filter(|period| *period >= shortest) {
            let what = format!("{}, {kind:?}, {period}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            kernel.period.set(period);
            let event = processor.event(kind).every(period);
            let event = kernel.start(&mut session, &event).unwrap();
            let mut passed = 0;
            for number in 1..=16 {
                passed += kernel.distance(&mock, kind, 2 * period + 16).unwrap();
                let parts = number * period.div_ceil(1 << 18);
                let early = if kind == IbsKind::Fetch { 15 * parts } else { 0 };
                let expected = number * period - early..number * period + 16;
                assert!(expected.contains(&passed), "{what}: {number} samples in {passed}");
                let total = session.read(event, 0).unwrap().value;
                assert!(
                    (number * period..number * period + 32).contains(&total),
                    "{what}: {total}"
                );
            }
            assert_eq!(kernel.reported().len(), 16, "{what}");
            assert_eq!((kernel.unclaimed.get(), kernel.overflows.get()), (0, 0), "{what}");
        }
        // Periods that are too short for the unit end with its shortest one.
        for period in PERIODS.into_iter().filter(|period| *period < shortest) {
            let what = format!("{}, {kind:?}, {period}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            kernel.period.set(period);
            kernel.start(&mut session, &processor.event(kind).every(period)).unwrap();
            for _ in 0..16 {
                let distance = kernel.distance(&mock, kind, 2 * shortest).unwrap();
                assert!((shortest - 15..=shortest).contains(&distance), "{what}: {distance}");
            }
        }
    }
}

/// A table's minimum holds for units, too: a kernel keeps callers from periods that are all interrupts.
#[test]
fn a_period_below_the_table_s_minimum_is_refused() {
    let processor = named("Zen 4");
    sampler!(processor, IbsKind::Op => mock, kernel, session);
    kernel.table.set_min_period(100);
    let event = |period| IbsSampling::ops().event().every(period);
    let refused = session.open(&kernel.counters, &[event(99)]);
    assert_eq!(refused.reason(), Err(CounterError::Period(99)));
    assert!(session.open(&kernel.counters, &[event(100)]).is_ok());
}

/// While the interrupt of a sample is pending, the period that the sample ends is counted. It is counted once.
#[test]
fn a_read_counts_the_period_whose_sample_waits() {
    for (processor, kind) in units() {
        for stops in [false, true] {
            let what = format!("{}, {kind:?}, {stops}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            for number in 1..=3 {
                mock.inject_pmi(PmiFault::Late(1_000));
                assert!(kernel.run(&mock, PERIOD + 15), "{what}");
                mock.inject_pmi(PmiFault::None);
                let periods = |total: u64| {
                    assert!(total % u64::from(PERIOD) < 16 + 127, "{what}: {total}");
                    total / u64::from(PERIOD)
                };
                assert_eq!(kernel.reported().len(), number - 1, "{what}");
                let read = session.read(event, 0).unwrap().value;
                assert_eq!(periods(read), number as u64, "{what}: waits");
                if stops {
                    session.disable(event, 0).unwrap();
                    let read = session.read(event, 0).unwrap().value;
                    assert_eq!(periods(read), number as u64, "{what}: stopped");
                }
                mock.deliver_sample();
                kernel.all_reported(&what);
                if stops {
                    session.enable(event, 0).unwrap();
                }
                let read = session.read(event, 0).unwrap().value;
                assert_eq!(periods(read), number as u64, "{what}: reported");
            }
        }
    }
}

/// A task sets another period, and the handler does: the sample that comes ends the former one.
#[test]
fn a_period_that_is_set_begins_with_the_next_sample() {
    for processor in processors().into_iter().filter(|of| of.is_exact(IbsKind::Op)) {
        for in_handler in [false, true] {
            let what = format!("{}, {in_handler}", processor.name);
            sampler!(processor, IbsKind::Op => mock, kernel, session);
            kernel.period.set(0);
            let periods = [100, 1_000, 50, 17, 100_003, 1 << 28, 144, 145];
            if in_handler {
                *kernel.react.borrow_mut() = Some(Box::new(move |kernel, seen| {
                    let number = kernel.seen.borrow().len();
                    kernel.table.set_period(seen.event, periods[number % 8]).unwrap();
                }));
            }
            let event = IbsSampling::cycles().event().every(periods[0]).with_total();
            let event = kernel.start(&mut session, &event).unwrap();
            let mut passed = 0;
            for number in 0..20 {
                let period = periods[number % 8];
                if !in_handler {
                    kernel.table.set_period(event, periods[(number + 1) % 8]).unwrap();
                }
                let distance = kernel.distance(&mock, IbsKind::Op, 2 * period).unwrap();
                assert_eq!(distance, period, "{what}: {number}");
                assert_eq!(kernel.seen.borrow()[number].period, period, "{what}: {number}");
                passed += distance;
                assert_eq!(session.read(event, 0).unwrap().value, passed, "{what}");
            }
            assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0), "{what}");
        }
    }
}

/// A task applies another period at once, however little of the former one is left.
#[test]
fn a_period_that_is_applied_begins_at_once() {
    for processor in processors().into_iter().filter(|of| of.is_exact(IbsKind::Op)) {
        for (left, applied) in (1..4).flat_map(|left| [(left, 60), (left, 1_000)]) {
            let what = format!("{}, {left}, {applied}", processor.name);
            sampler!(processor, IbsKind::Op => mock, kernel, session);
            kernel.period.set(applied);
            let event = kernel.start(&mut session, &every(IbsSampling::cycles())).unwrap();
            kernel.pass(&mock, IbsKind::Op, PERIOD - left);
            session.apply_period(event, applied, 0, |_| panic!("{what}")).unwrap();
            for _ in 0..3 {
                let distance = kernel.distance(&mock, IbsKind::Op, 2 * applied).unwrap();
                assert_eq!(distance, applied, "{what}");
            }
            let total = session.read(event, 0).unwrap().value;
            assert_eq!(total, u64::from(PERIOD - left) + 3 * applied, "{what}");
        }
    }
}

/// A kernel that sets the period from the distance of samples in time gets the number of samples that it wants. In the
/// old model a period was given once, and a frequency of 1,000 gave 100,000 samples where 500 were due.
#[test]
fn a_frequency_gives_the_samples_that_are_due() {
    // Ops per second, and samples per second that the event is to have.
    const SPEED: u64 = 100_000_000;
    const FREQUENCY: u64 = 1_000;
    for processor in processors().into_iter().filter(|of| of.is_exact(IbsKind::Op)) {
        for request in [IbsSampling::cycles(), IbsSampling::ops()] {
            sampler!(processor, IbsKind::Op => mock, kernel, session);
            kernel.period.set(0);
            let event = kernel.start(&mut session, &request.event().every(1_000)).unwrap();
            // As Linux does: after each tick, 1 in 1,000 of a second, the period is what happened in it.
            for _ in 0..500 {
                let mut left = SPEED / 1_000;
                while let Some(passed) = kernel.distance(&mock, IbsKind::Op, left) {
                    left -= passed;
                    if left == 0 {
                        break;
                    }
                }
                session.apply_period(event, SPEED / FREQUENCY, 0, |_| ()).unwrap();
            }
            // In the first tick every 1,000 ops; then one sample per tick, unless the tick ends its period first.
            let samples = kernel.seen.borrow().len();
            assert!((500..=610).contains(&samples), "{}, {request:?}: {samples}", processor.name);
        }
    }
}

/// An event that stops reporting interrupts no more, is counted on, and reports again when a period is applied.
#[test]
fn a_throttled_event_is_counted_and_reports_again_later() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        kernel.period.set(0);
        *kernel.react.borrow_mut() = Some(Box::new(|kernel, seen| {
            if kernel.seen.borrow().len() == 3 {
                kernel.table.stop_reporting(seen.event).unwrap();
            }
        }));
        let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
        let mut passed = 0;
        while kernel.seen.borrow().len() < 3 {
            passed += kernel.distance(&mock, kind, 1_000).unwrap();
        }
        for _ in 0..10 {
            assert_eq!(kernel.distance(&mock, kind, 1_000), None, "{what}");
        }
        passed += 10_000;
        assert!(matches!(session.event_status(event), Ok(EventStatus::Active(_))), "{what}");
        let total = session.read(event, 0).unwrap().value;
        // The random numbers of three periods, and sixteens of fetches.
        assert!((passed..passed + 4 * 128).contains(&(total + 15)), "{what}: {total} of {passed}");
        session.apply_period(event, PERIOD.into(), 0, |_| panic!("{what}")).unwrap();
        let distance = kernel.distance(&mock, kind, 1_000).unwrap();
        let expected = u64::from(PERIOD) - 15..=u64::from(PERIOD);
        assert!(expected.contains(&distance), "{what}: {distance}");
        assert_eq!(kernel.seen.borrow().len(), 4, "{what}");
        assert_eq!(kernel.unclaimed.get(), 0, "{what}");
    }
}
