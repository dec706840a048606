//! Stops and starts beside late interrupts, and faults.

use core::cell::Cell;
use pmu_tests::Reason;

use pmu_amd::ibs::IbsKind;
use pmu_core::CounterSet;
use pmu_core::error::CounterError;
use pmu_virt::mock::{Deviation, Deviations, Fault, PmiFault};

use crate::support::*;

/// An interrupt that is another one's, while the unit is being stopped, is not taken for the late one.
#[test]
fn another_one_s_interrupt_during_a_stop_does_not_cost_the_sample_after_it() {
    for (processor, kind) in units() {
        for (foreign, access) in
            (1..6).flat_map(|foreign| (foreign..6).map(move |at| (foreign, at)))
        {
            let what = format!("{}, {kind:?}, {foreign} and {access}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            let (made, busy) = (Cell::new(0), Cell::new(false));
            let before = |mock: &Mock<'_>| {
                if busy.replace(true) {
                    return;
                }
                made.set(made.get() + 1);
                if made.get() == foreign {
                    mock.interrupt_from_elsewhere();
                }
                if made.get() == access {
                    kernel.run(mock, 2 * PERIOD);
                }
                busy.set(false);
            };
            mock.on_access(&before);
            session.disable(event, 0).unwrap();
            busy.set(true);
            kernel.all_reported(&what);
            assert!(kernel.claimed.get() >= kernel.sampled().len() as u32, "{what}");
            assert!(kernel.unclaimed.get() <= 1, "{what}: the other one's");
        }
    }
}

#[test]
fn one_interrupt_after_a_stop_is_claimed_and_no_second() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        kernel.start(&mut session, &processor.event(kind)).unwrap();
        assert!(kernel.run(&mock, PERIOD));
        session.shut_down().unwrap();
        mock.interrupt_from_elsewhere();
        assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (2, 0), "{what}");
        let before = mock.accesses();
        mock.interrupt_from_elsewhere();
        assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (2, 1), "{what}");
        assert_eq!(mock.accesses().total(), before.total(), "{what}: no access");
        kernel.all_reported(&what);
    }
}

/// A start while the sample of before still waits for its interrupt: of the same event, or of another one.
#[test]
fn a_start_before_a_late_interrupt_leaves_the_sample_to_it() {
    for (processor, kind) in units() {
        for (other, closes) in [(false, false), (true, false), (true, true)] {
            let what = format!("{}, {kind:?}, {other}, {closes}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let first = kernel.start(&mut session, &processor.event(kind).tagged(1)).unwrap();
            let second = processor.event(kind).tagged(2);
            let second = session.open(&kernel.counters, &[second]).unwrap();
            mock.inject_pmi(PmiFault::Late(1_000));
            assert!(kernel.run(&mock, PERIOD));
            mock.inject_pmi(PmiFault::None);
            session.disable(first, 0).unwrap();
            session.enable(if other { second } else { first }, 0).unwrap();
            if closes {
                session.close(first, 0).unwrap();
            }
            mock.deliver_sample();
            // The sample is the first event's; that of a closed event is none.
            let reported = if closes { vec![] } else { kernel.sampled() };
            assert_eq!((kernel.of_tag(1), kernel.of_tag(2)), (reported, vec![]), "{what}");
            assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (1, 0), "{what}");
            assert!(kernel.run(&mock, PERIOD + 15), "{what}");
            let sampled = kernel.sampled();
            let tag = if other { 2 } else { 1 };
            assert_eq!(kernel.of_tag(tag).last(), sampled.last(), "{what}");
            assert_eq!(kernel.reported().len(), if closes { 1 } else { 2 }, "{what}");
            assert_eq!(kernel.memory.dropped(), closes.into(), "{what}");
        }
    }
}

/// A transient fault changes nothing; a permanent one is told, and what it left is ended.
#[test]
fn a_fault_at_each_access_is_told_and_leaves_a_unit_that_can_be_used_again() {
    let counters = CounterSet::from_bits(0b1) | CounterSet::fixed(0b11);
    for (processor, kind) in units() {
        for transient in [true, false] {
            for access in 1.. {
                let what = format!("{}, {kind:?}, access {access}, {transient}", processor.name);
                let mock = processor.mock();
                let kernel = Kernel::new(processor, kind, &mock);
                let handler = |mock: &Mock<'_>| kernel.handle(mock);
                mock.on_interrupt(&handler);
                mock.inject(if transient { Fault::At(access) } else { Fault::From(access) });
                let worked = kernel.try_take(&mock, counters).and_then(|mut session| {
                    let started = kernel.start(&mut session, &processor.event(kind));
                    kernel.run(&mock, PERIOD);
                    kernel.run(&mock, PERIOD);
                    let ended = session.shut_down();
                    if ended.is_err() {
                        mock.inject(Fault::None);
                        session.shut_down().unwrap();
                        assert!(!is_enabled(&mock) && !is_valid(&mock, kind), "{what}");
                    }
                    started.map(drop).and(ended)
                });
                let made = mock.accesses().total() >= access;
                mock.inject(Fault::None);
                if transient || !made {
                    assert_eq!(worked, Ok(()), "{what}");
                    assert_eq!(kernel.sampled().len(), 2, "{what}");
                    assert!(!is_enabled(&mock) && !is_valid(&mock, kind), "{what}");
                }
                assert_eq!(kernel.unknown.get(), 0, "{what}");
                match worked {
                    Ok(()) => kernel.all_reported(&what),
                    // If the units did not answer, the session does without them.
                    Err(CounterError::NotPrecise(_) | CounterError::NoCounterForEvent) => {
                        assert!(!transient, "{what}");
                    }
                    Err(
                        CounterError::Unchanged(_)
                        | CounterError::StateUnknown(_)
                        | CounterError::Unresponsive,
                    ) => {}
                    Err(error) => panic!("{what}: {error}"),
                }
                // A session that could not be taken is gone: the next kernel has other memory.
                let again = Kernel::new(processor, kind, &mock);
                let handler = |mock: &Mock<'_>| again.handle(mock);
                mock.on_interrupt(&handler);
                let mut session = again.take(&mock);
                again.start(&mut session, &processor.event(kind)).unwrap();
                assert!(again.run(&mock, PERIOD) && again.run(&mock, PERIOD), "{what}");
                again.all_reported(&what);
                session.shut_down().unwrap();
                mock.on_interrupt(&|_| ());
                if !made {
                    break;
                }
            }
        }
    }
}

/// A sample that cannot be read is counted, as lost and by its period, and the unit samples on.
#[test]
fn a_sample_that_cannot_be_read_is_counted_as_lost() {
    const ADDRESSES: [u32; 2] = [0xC001_1031, 0xC001_1034]; // fetches, ops
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
        mock.inject(Fault::Register(ADDRESSES[kind as usize]));
        assert!(kernel.run(&mock, PERIOD));
        assert_eq!((kernel.memory.lost(), kernel.faulted.get()), (1, 1), "{what}");
        mock.inject(Fault::None);
        assert!(kernel.run(&mock, PERIOD), "{what}");
        assert_eq!(kernel.reported(), kernel.sampled()[1..], "{what}");
        let count = session.read(event, 0).unwrap().value;
        assert_eq!(count / u64::from(PERIOD), 2, "{what}: {count}");
    }
}

/// An interrupt that cannot enable the unit again reports the sample once, and the event's counter is faulted: in the
/// old model the next interrupt of any owner enabled the unit. A counter that faulted is a counter of the session, so
/// the call that programs all of them again brings this one back, too.
#[test]
fn a_unit_that_could_not_be_enabled_again_is_brought_back_by_a_reprogramming() {
    let processor = named("Zen 6");
    for kind in [IbsKind::Op, IbsKind::Fetch] {
        let what = format!("{kind:?}");
        sampler!(processor, kind => mock, kernel, session);
        let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
        mock.inject(Fault::Register(second_control(kind)));
        assert!(kernel.run(&mock, PERIOD));
        assert_eq!((kernel.faulted.get(), is_on(&session, event)), (1, false), "{what}");
        mock.inject(Fault::None);
        kernel.all_reported(&what);
        mock.interrupt_from_elsewhere();
        assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (0, 1), "{what}");
        assert!(!kernel.run(&mock, 2 * PERIOD), "{what}");
        assert_eq!(session.disable(event, 0), Ok(()));
        assert_eq!(session.enable(event, 0).reason(), Err(CounterError::NoFreeCounter));
        session.reprogram(|sample| kernel.note(&sample)).unwrap();
        assert!(!is_enabled(&mock) && !is_valid(&mock, kind), "{what}");
        session.enable(event, 0).unwrap();
        assert!(kernel.run(&mock, PERIOD + 15), "{what}");
        kernel.all_reported(&what);
    }
}

/// A stop that fails, before or after the interrupt of its sample: the counter faults, and is programmed again. No
/// sample is left behind, and none is reported twice.
#[test]
fn a_failed_stop_leaves_no_sample_and_none_is_reported_twice() {
    for (processor, kind) in units() {
        for (late, access) in (0..4).flat_map(|late| (1..20).map(move |access| (late, access))) {
            let what = format!("{}, {kind:?}, {late}, {access}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            mock.inject_pmi(PmiFault::Late(late));
            assert!(kernel.run(&mock, PERIOD), "{what}");
            mock.inject_pmi(PmiFault::None);
            mock.inject(Fault::From(access));
            let stopped = session.disable(event, 0);
            mock.inject(Fault::None);
            if stopped.is_err() {
                assert!(!is_on(&session, event), "{what}");
                session.reprogram(|sample| kernel.note(&sample)).unwrap();
            }
            assert!(!is_enabled(&mock), "{what}");
            mock.deliver_sample();
            mock.interrupt_from_elsewhere();
            assert!(!is_valid(&mock, kind), "{what}: a sample is left");
            assert!(kernel.reported().len() <= 1, "{what}");
            session.enable(event, 0).unwrap();
            assert!(kernel.run(&mock, PERIOD + 15), "{what}");
            assert_eq!(kernel.reported().last(), kernel.sampled().last(), "{what}");
            assert!(kernel.unknown.get() <= 1, "{what}: the other one's");
        }
    }
}

/// Accesses of a late interrupt that fail for good: the sample of the event that left is reported, then or by the next
/// interrupt, or is counted as lost. It is never both, and never of the event that came.
#[test]
fn a_late_interrupt_whose_accesses_fail_reports_its_sample_or_counts_it_as_lost() {
    for (processor, kind) in units() {
        for other in [false, true] {
            for access in 1.. {
                let what = format!("{}, {kind:?}, {other}, {access}", processor.name);
                sampler!(processor, kind => mock, kernel, session);
                let event = processor.event(kind);
                let first = kernel.start(&mut session, &event.tagged(1)).unwrap();
                mock.inject_pmi(PmiFault::Late(1_000));
                assert!(kernel.run(&mock, PERIOD), "{what}");
                mock.inject_pmi(PmiFault::None);
                session.disable(first, 0).unwrap();
                if other {
                    kernel.start(&mut session, &event.tagged(2)).unwrap();
                }
                let before = mock.accesses().total();
                mock.inject(Fault::From(access));
                mock.deliver_sample();
                let failed = mock.accesses().total() - before >= access;
                mock.inject(Fault::None);
                mock.interrupt_from_elsewhere();
                session.reprogram(|sample| kernel.note(&sample)).unwrap();
                let lost = kernel.memory.lost() as usize;
                assert_eq!(kernel.of_tag(1).len() + lost, 1, "{what}: {lost} lost");
                assert_eq!((kernel.of_tag(2), kernel.overflows.get()), (vec![], 0), "{what}");
                assert_eq!(kernel.faulted.get() != 0, failed, "{what}");
                if !failed {
                    assert_eq!(lost, 0, "{what}");
                    break;
                }
            }
        }
    }
}

/// The interrupt of a sample that the stop's write takes away comes at once after it: it is claimed, and no other one
/// is expected.
#[test]
fn the_interrupt_of_a_sample_without_a_trace_is_claimed_during_the_stop_and_no_second_one() {
    let deviations = Deviations::of(&[Deviation::LateIbs]);
    let first = |of: &(Processor, IbsKind)| !of.0.unit(of.1).capabilities().control2();
    for (processor, kind) in units().filter(first) {
        let processor = Processor { deviations, ..processor };
        let mut tried = 0;
        for access in 1..8 {
            let what = format!("{}, {kind:?}, {access}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            let left = Cell::new(access);
            let before = |mock: &Mock<'_>| {
                left.set(left.get() - 1);
                if left.get() == 0 {
                    kernel.run(mock, 2 * PERIOD);
                }
            };
            mock.on_access(&before);
            session.disable(event, 0).unwrap();
            mock.on_access(&|_| ());
            if kernel.sampled().is_empty() || !kernel.reported().is_empty() {
                continue;
            }
            tried += 1;
            assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (1, 0), "{what}");
            mock.interrupt_from_elsewhere();
            assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (1, 1), "{what}");
        }
        assert!(tried > 0, "{}, {kind:?}", processor.name);
    }
}
