//! Events of threads: each thread's fetches and ops alone, with what is left of its period.

use core::cell::Cell;
use pmu_tests::Reason;

use pmu_amd::ibs::{IbsKind, IbsSampling};
use pmu_core::error::CounterError;
use pmu_core::registers::EventSelect;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{Event, EventStatus};
use pmu_virt::ibs::IbsConfiguration;
use pmu_virt::mock::{Deviation, Deviations, Fault, PmiFault};

use crate::support::*;

type Thread = [ThreadEvent; 1];

/// Returns a thread whose event is switched out.
fn thread(kernel: &Kernel, session: &mut Session<'_>, event: &Event) -> Thread {
    let id = kernel.start(session, event).unwrap();
    let mut thread = [ThreadEvent::Opened(id)];
    session.switch_out(&mut thread, 0, |_| panic!("a sample")).unwrap();
    thread
}

/// Switches a thread in, executes on its behalf, and switches it out.
fn slice(
    (kernel, mock, session): (&Kernel, &Mock<'_>, &mut Session<'_>),
    thread: &mut Thread,
    execute: impl FnOnce(),
) {
    session.switch_in(&kernel.counters, thread, 0).unwrap();
    execute();
    session.switch_out(thread, 0, |sample| kernel.note(&sample)).unwrap();
    assert!(!is_enabled(mock), "between two threads");
}

/// Slices that are shorter than the period lose nothing: in the old model a switch began the period anew, and of 10
/// slices of three quarters of a period each none had a sample.
#[test]
fn what_is_left_of_a_period_goes_on_in_the_thread_s_next_slice() {
    const WHOLE: u32 = 10 * PERIOD;
    const SLICE: u32 = WHOLE / 4 * 3;
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        kernel.period.set(WHOLE.into());
        let event = processor.event(kind).every(WHOLE.into());
        let mut both = [7, 8].map(|tag| thread(&kernel, &mut session, &event.tagged(tag)));
        let mut own = [vec![], vec![]];
        for number in 0..40 {
            let before = kernel.sampled().len();
            let which = number % 2;
            slice((&kernel, &mock, &mut session), &mut both[which], || {
                kernel.pass(&mock, kind, SLICE);
            });
            own[which].extend_from_slice(&kernel.sampled()[before..]);
            // An idle task, whose ops are of no thread.
            assert!(!kernel.run(&mock, 2 * PERIOD), "{what}: idle");
        }
        for (which, tag) in [7, 8].into_iter().enumerate() {
            assert_eq!(kernel.of_tag(tag), own[which], "{what}");
            assert!((14..=16).contains(&own[which].len()), "{what}: {}", own[which].len());
            if processor.is_exact(kind) {
                let ThreadEvent::SwitchedOut(saved) = both[which][0] else { panic!("{what}") };
                let (total, samples) = (saved.count().value as u32, own[which].len() as u32);
                // The random number with which each whole period begins counts.
                assert!((20 * SLICE..=20 * SLICE + 127 * samples).contains(&total), "{what}");
                assert_eq!(total / WHOLE, samples, "{what}: {total}");
            }
        }
        assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0), "{what}");
    }
}

/// A sample whose interrupt comes only when the next thread runs: it is the first thread's, and its tag's.
#[test]
fn a_sample_is_of_the_thread_that_made_it_however_late_its_interrupt_comes() {
    for (processor, kind) in units() {
        for late in [PmiFault::Lost].into_iter().chain((0..24).map(PmiFault::Late)) {
            let what = format!("{}, {kind:?}, {late:?}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = processor.event(kind);
            let mut first = thread(&kernel, &mut session, &event.tagged(7));
            let mut second = thread(&kernel, &mut session, &event.tagged(8));
            session.switch_in(&kernel.counters, &mut first, 0).unwrap();
            mock.inject_pmi(late);
            assert!(kernel.run(&mock, PERIOD), "{what}");
            mock.inject_pmi(PmiFault::None);
            session.switch_out(&mut first, 0, |sample| kernel.note(&sample)).unwrap();
            session.switch_in(&kernel.counters, &mut second, 0).unwrap();
            assert!(kernel.run(&mock, PERIOD), "{what}");
            mock.deliver_sample();
            session.switch_out(&mut second, 0, |sample| kernel.note(&sample)).unwrap();
            let sampled = kernel.sampled();
            assert_eq!(kernel.of_tag(7), sampled[..1], "{what}");
            assert_eq!(kernel.of_tag(8), sampled[1..], "{what}");
            assert_eq!((kernel.reported().len(), kernel.overflows.get()), (2, 0), "{what}");
            assert_eq!(kernel.unclaimed.get(), 0, "{what}");
            // The period that the late sample ended is counted, once.
            for thread in [&first, &second] {
                let ThreadEvent::SwitchedOut(saved) = thread[0] else { panic!("{what}") };
                let total = saved.count().value;
                assert_eq!(total / u64::from(PERIOD), 1, "{what}: {total}");
            }
        }
    }
}

/// At each access of a switch a sample comes, or another owner's interrupt: no thread has one of the other.
#[test]
fn a_sample_at_each_access_of_a_switch_is_of_the_thread_that_made_it() {
    let late = Deviations::of(&[Deviation::LateIbs]);
    for (processor, kind) in units() {
        for (deviations, foreign) in
            [(Deviations::NONE, false), (Deviations::NONE, true), (late, false)]
        {
            for access in 1.. {
                let processor = Processor { deviations, ..processor };
                let what =
                    format!("{}, {kind:?}, {deviations}, {foreign}, {access}", processor.name);
                sampler!(processor, kind => mock, kernel, session);
                let event = processor.event(kind);
                let mut first = thread(&kernel, &mut session, &event.tagged(7));
                let mut second = thread(&kernel, &mut session, &event.tagged(8));
                session.switch_in(&kernel.counters, &mut first, 0).unwrap();
                let (left, is_second, own) = (Cell::new(access), Cell::new(false), Cell::new(None));
                let own_access = Cell::new(None);
                let before = |mock: &Mock<'_>| {
                    left.set(left.get() - 1);
                    if left.get() == -1 && own.get().is_some() {
                        own_access.set(mock.trace().records().last());
                    }
                    if left.get() == 0 {
                        if kernel.run(mock, 2 * PERIOD) {
                            own.set(Some(is_second.get()));
                        }
                        if foreign {
                            mock.interrupt_from_elsewhere();
                        }
                    }
                };
                mock.on_access(&before);
                session.switch_out(&mut first, 0, |sample| kernel.note(&sample)).unwrap();
                is_second.set(true);
                session.switch_in(&kernel.counters, &mut second, 0).unwrap();
                session.switch_out(&mut second, 0, |sample| kernel.note(&sample)).unwrap();
                mock.on_access(&|_| ());
                mock.deliver_sample();
                if deviations != Deviations::NONE {
                    kernel.forget_without_trace(kind, own_access.get());
                }
                let [of_first, of_second] = [7, 8].map(|tag| kernel.of_tag(tag));
                let sampled = kernel.sampled();
                let (first_s, second_s) = match own.get() {
                    Some(true) => (vec![], sampled),
                    _ => (sampled, vec![]),
                };
                assert_eq!((of_first, of_second), (first_s, second_s), "{what}");
                assert!(kernel.unclaimed.get() <= foreign.into(), "{what}");
                if left.get() > 0 {
                    break;
                }
            }
        }
    }
}

/// A closed event's sample is shown to none, also if its place in the table has another event.
#[test]
fn the_sample_of_a_closed_event_is_no_other_event_s() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        let closed = kernel.start(&mut session, &processor.event(kind).tagged(7)).unwrap();
        mock.inject_pmi(PmiFault::Late(1_000));
        assert!(kernel.run(&mock, PERIOD), "{what}");
        mock.inject_pmi(PmiFault::None);
        session.close(closed, 0).unwrap();
        let next = session.open(&kernel.counters, &[processor.event(kind).tagged(8)]).unwrap();
        assert_eq!(next, closed, "{what}: the same place");
        session.enable(next, 0).unwrap();
        mock.deliver_sample();
        assert_eq!((kernel.reported(), kernel.memory.dropped()), (vec![], 1), "{what}");
        assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (1, 0), "{what}");
        assert!(kernel.run(&mock, PERIOD), "{what}");
        assert_eq!(kernel.of_tag(8), kernel.sampled()[1..], "{what}");
    }
}

/// A sample that waits for its interrupt as its event is about to be closed is reported by the call that a kernel makes
/// before.
#[test]
fn a_sample_that_waits_is_reported_before_its_event_is_closed() {
    for (processor, kind) in units() {
        for stops in [false, true] {
            let what = format!("{}, {kind:?}, {stops}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            mock.inject_pmi(PmiFault::Late(1_000));
            assert!(kernel.run(&mock, PERIOD), "{what}");
            mock.inject_pmi(PmiFault::None);
            if stops {
                session.disable(event, 0).unwrap();
            }
            session.report_samples(|sample| kernel.note(&sample)).unwrap();
            kernel.all_reported(&what);
            let count = session.close(event, 0).unwrap().value;
            assert_eq!(count / u64::from(PERIOD), 1, "{what}: {count}");
            mock.deliver_sample();
            assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (1, 0), "{what}");
            kernel.all_reported(&what);
        }
    }
}

/// A thread's event stands still on a core without the unit, and goes on where it was.
#[test]
fn a_thread_s_event_waits_on_a_core_without_its_unit() {
    for kind in [IbsKind::Op, IbsKind::Fetch] {
        let here = named("Zen 4");
        // The other core has the other unit, or one without an interrupt.
        let other_only = 1 | 1 << (if kind == IbsKind::Op { 1 } else { 2 });
        let lacking = [
            IbsConfiguration { capabilities: other_only, ..here.ibs },
            IbsConfiguration { lvt_entry: None, ..here.ibs },
        ];
        for ibs in lacking {
            let what = format!("{kind:?}, {ibs:?}");
            sampler!(here, kind => mock, kernel, session);
            let there = Processor { ibs, ..here };
            let (other, elsewhere) = {
                let mock = there.mock();
                let kernel = Kernel::new(there, kind, &mock);
                (mock, kernel)
            };
            let mut session_there = elsewhere.take(&other);
            let request =
                if kind == IbsKind::Op { IbsSampling::cycles() } else { IbsSampling::fetches() };
            let mut thread = thread(&kernel, &mut session, &every(request));
            for _ in 0..3 {
                slice((&kernel, &mock, &mut session), &mut thread, || {
                    kernel.pass(&mock, kind, 32);
                });
                session_there.switch_in(&elsewhere.counters, &mut thread, 0).unwrap();
                let ThreadEvent::Opened(id) = thread[0] else { panic!("{what}: {thread:?}") };
                assert_eq!(session_there.event_status(id), Ok(EventStatus::Inactive), "{what}");
                assert!(!elsewhere.run(&other, 2 * PERIOD), "{what}");
                session_there.switch_out(&mut thread, 0, |_| panic!("{what}")).unwrap();
            }
            session.switch_in(&kernel.counters, &mut thread, 0).unwrap();
            let left = PERIOD - 3 * 32;
            let early = if kind == IbsKind::Op { 0 } else { 4 * 15 };
            assert!(!kernel.run(&mock, left - 1 - early), "{what}");
            assert!(
                kernel.run(&mock, 1 + early + if kind == IbsKind::Op { 0 } else { 15 }),
                "{what}"
            );
            kernel.all_reported(&what);
        }
    }
}

/// A switch whose accesses fail is told, shows nothing of one thread to the other, and the units can be used again.
#[test]
fn a_switch_that_fails_shows_no_thread_the_other_s_sample() {
    for (processor, kind) in units() {
        for access in 1.. {
            let what = format!("{}, {kind:?}, {access}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = processor.event(kind);
            let mut first = thread(&kernel, &mut session, &event.tagged(7));
            let mut second = thread(&kernel, &mut session, &event.tagged(8));
            session.switch_in(&kernel.counters, &mut first, 0).unwrap();
            mock.inject_pmi(PmiFault::Late(1_000));
            assert!(kernel.run(&mock, PERIOD), "{what}");
            mock.inject_pmi(PmiFault::None);
            let before = mock.accesses().total();
            mock.inject(Fault::From(access));
            let out = session.switch_out(&mut first, 0, |sample| kernel.note(&sample));
            let inside = session.switch_in(&kernel.counters, &mut second, 0);
            let failed = mock.accesses().total() - before >= access;
            mock.inject(Fault::None);
            assert_eq!(failed, out.is_err() || inside.is_err(), "{what}: {out:?}, {inside:?}");
            mock.deliver_sample();
            kernel.run(&mock, 2 * PERIOD);
            let [of_first, of_second] = [7, 8].map(|tag| kernel.of_tag(tag));
            let sampled = kernel.sampled();
            assert!(sampled[..1].starts_with(&of_first), "{what}");
            assert!(sampled[1..].starts_with(&of_second), "{what}: {of_second:X?} of {sampled:X?}");
            let _ = session.switch_out(&mut second, 0, |sample| kernel.note(&sample));
            session.reprogram(|sample| kernel.note(&sample)).unwrap();
            let third = kernel.start(&mut session, &event.tagged(9)).unwrap();
            assert!(kernel.run(&mock, PERIOD + 15), "{what}");
            assert_eq!(
                kernel.of_tag(9).as_slice(),
                &kernel.sampled()[kernel.sampled().len() - 1..]
            );
            assert_eq!(session.disable(third, 0).reason(), Ok::<(), CounterError>(()), "{what}");
            if !failed {
                assert_eq!(of_first, sampled[..1], "{what}");
                break;
            }
        }
    }
}

/// As a perf system call makes it, on another processor perhaps.
#[test]
fn an_event_that_is_made_without_a_session_samples_in_its_thread() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        const WHOLE: u32 = 10_000;
        kernel.period.set(WHOLE.into());
        let event = processor.event(kind).every(WHOLE.into());
        let saved = SavedEvent::new(&kernel.counters, &event).unwrap();
        let mut thread = [ThreadEvent::SwitchedOut(saved.to_be_enabled(true))];
        for _ in 0..10 {
            slice((&kernel, &mock, &mut session), &mut thread, || {
                kernel.pass(&mock, kind, WHOLE / 4 * 3);
            });
        }
        kernel.all_reported(&what);
        assert!((7..=8).contains(&kernel.sampled().len()), "{what}");
    }
    // Bit 19 alone is no unit's.
    let processor = named("Zen 4");
    let mock = processor.mock();
    let kernel = Kernel::new(processor, IbsKind::Op, &mock);
    let plain = Event::raw(EventSelect::from_bits(EventSelect::OF_UNIT)).every(10_000);
    let illegal = CounterError::IllegalBits(EventSelect::OF_UNIT);
    assert_eq!(SavedEvent::new(&kernel.counters, &plain).map(drop), Err(illegal));
    let mut session = kernel.take(&mock);
    assert_eq!(session.open(&kernel.counters, &[plain]).reason(), Err(illegal));
}
