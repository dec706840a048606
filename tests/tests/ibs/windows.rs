//! Windows of a guest that has no instruction-based sampling: one unit and both, late interrupts, and faults.

use core::cell::{Cell, RefCell};

use pmu_amd::ibs::IbsKind;
use pmu_core::{Claim, CounterSet, service};
use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::{Fault, PmiFault};

use crate::support::*;

/// At once; before an access of the window's beginning; or after it: the kernel has interrupts off.
fn lateness() -> impl Iterator<Item = PmiFault> {
    [PmiFault::None].into_iter().chain((0..40).map(PmiFault::Late))
}

#[test]
fn a_window_of_lent_counters_suspends_the_unit_and_brings_it_back() {
    for (processor, kind) in units() {
        for late in lateness() {
            let what = format!("{}, {kind:?}, {late:?}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            mock.inject_pmi(late);
            assert!(kernel.run(&mock, PERIOD));
            mock.inject_pmi(PmiFault::None);
            let window = session.lend(0, |sample| kernel.note(&sample)).unwrap();
            kernel.all_reported(&what);
            assert!(!kernel.run(&mock, 2 * PERIOD), "{what}: nothing of the guest");
            window.end(0).unwrap();
            mock.deliver_sample();
            assert!(is_on(&session, event) && kernel.run(&mock, PERIOD + 15), "{what}");
            kernel.all_reported(&what);
            session.shut_down().unwrap();
            assert_eq!(kernel.unclaimed.get(), 0, "{what}");
        }
    }
}

/// Slices that are shorter than the period lose nothing: in the old model a window began the period anew, and of 20
/// windows of three quarters of a period each none had a sample.
#[test]
fn windows_within_a_period_lose_nothing_of_it() {
    const WHOLE: u32 = 10 * PERIOD;
    const SLICE: u32 = WHOLE / 4 * 3;
    for (processor, kind) in units() {
        for suspends in [false, true] {
            let what = format!("{}, {kind:?}, {suspends}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            kernel.period.set(WHOLE.into());
            let event = processor.event(kind).every(WHOLE.into());
            let event = kernel.start(&mut session, &event).unwrap();
            for slice in 1..=20 {
                kernel.pass(&mock, kind, SLICE);
                if suspends {
                    session.suspend(0, |sample| kernel.note(&sample)).unwrap();
                    assert!(!kernel.run(&mock, PERIOD), "{what}: firmware's");
                    mock.lose_registers();
                    session.resume(0, |sample| kernel.note(&sample)).unwrap();
                } else {
                    let window = session.lend(0, |sample| kernel.note(&sample)).unwrap();
                    assert!(!kernel.run(&mock, PERIOD), "{what}: the guest's");
                    window.end(0).unwrap();
                }
                if processor.is_exact(kind) {
                    // The random number with which each whole period begins counts.
                    let passed = slice * SLICE;
                    let total = session.read(event, 0).unwrap().value as u32;
                    let samples = kernel.sampled().len() as u32;
                    assert!((passed..=passed + 127 * samples).contains(&total), "{what}: {total}");
                    assert_eq!(total / WHOLE, samples, "{what}: {total}");
                }
            }
            assert!((14..=16).contains(&kernel.sampled().len()), "{what}");
            kernel.all_reported(&what);
            assert_eq!((kernel.unclaimed.get(), kernel.overflows.get()), (0, 0), "{what}");
        }
    }
}

#[test]
fn both_units_are_suspended_in_a_window_and_their_samples_reported() {
    for processor in processors() {
        for late in lateness() {
            let what = format!("{}, {late:?}", processor.name);
            sampler!(processor, IbsKind::Op => mock, kernel, session);
            for kind in [IbsKind::Op, IbsKind::Fetch] {
                kernel.start(&mut session, &processor.event(kind)).unwrap();
            }
            let run =
                |most| [IbsKind::Op, IbsKind::Fetch].map(|kind| kernel.run_of(&mock, kind, most));
            mock.inject_pmi(late);
            assert_eq!(run(PERIOD), [true; 2], "{what}");
            mock.inject_pmi(PmiFault::None);
            let window = session.lend(0, |sample| kernel.note(&sample)).unwrap();
            kernel.all_reported(&what);
            assert!(!is_enabled(&mock), "{what}");
            // A guest's ops.
            assert_eq!(run(2 * PERIOD), [false; 2], "{what}");
            window.end(0).unwrap();
            mock.deliver_sample();
            assert_eq!(run(PERIOD + 15), [true; 2], "{what}");
            kernel.all_reported(&what);
            assert_eq!(kernel.unknown.get(), 0, "{what}");
        }
    }
}

/// A borrower that leaves the unit enabled, and with a sample, beside an event that is not started, or that is.
#[test]
fn what_a_borrower_leaves_is_ended() {
    for (processor, kind) in units() {
        for runs in [false, true] {
            let what = format!("{}, {kind:?}, {runs}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = session.open(&kernel.counters, &[processor.event(kind)]).unwrap();
            if runs {
                session.enable(event, 0).unwrap();
            }
            let mut window = session.lend(0, |_| panic!("{what}: a sample")).unwrap();
            window.lent().set_programmed(true);
            sample_as_another(&mock, kind);
            mock.inject_pmi(PmiFault::Lost);
            assert!((0..160).any(|number| step(&mock, kind, number)));
            mock.inject_pmi(PmiFault::None);
            window.end(0).unwrap();
            assert!(!is_valid(&mock, kind), "{what}");
            assert_eq!(kernel.run(&mock, PERIOD + 15), runs, "{what}");
            if !runs {
                session.enable(event, 0).unwrap();
                assert!(kernel.run(&mock, PERIOD), "{what}");
            }
            kernel.all_reported(&what);
        }
    }
}

/// From each access of a window's beginning on, and of its end: the event is where the session says, a guest never
/// meets a unit that runs, and no sample is reported twice.
#[test]
fn a_window_whose_accesses_fail_leaves_no_unit_in_the_guest_and_reports_no_sample_twice() {
    let counters = CounterSet::from_bits(0b1) | CounterSet::fixed(0b11);
    for (processor, kind) in units() {
        for (late, faults) in [(false, u32::MAX), (true, u32::MAX), (true, 2), (true, 4)] {
            for access in 1.. {
                let what = format!("{}, {kind:?}, {late}, {faults} from {access}", processor.name);
                sampler!(processor, kind => mock, kernel, session, counters);
                let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
                mock.inject_pmi(if late { PmiFault::Late(1_000) } else { PmiFault::None });
                assert!(kernel.run(&mock, PERIOD), "{what}");
                mock.inject_pmi(PmiFault::None);
                let (made, left) = (Cell::new(0_u32), Cell::new(true));
                let before = |mock: &Mock<'_>| {
                    made.set(made.get() + 1);
                    if left.get() && made.get() == access {
                        mock.inject(Fault::From(1));
                    }
                    if made.get() == access.saturating_add(faults) {
                        mock.inject(Fault::None);
                    }
                };
                mock.on_access(&before);
                let mut entered = false;
                let ended = match session.lend(0, |sample| kernel.note(&sample)) {
                    Ok(window) => {
                        entered = true;
                        assert!(!is_enabled(&mock), "{what}: a guest with the host's unit");
                        assert!(!kernel.run(&mock, 2 * PERIOD), "{what}");
                        window.end(0).is_ok()
                    }
                    Err(_) => false,
                };
                let failed = made.get() >= access;
                // The session told that it serves no interrupt until it is programmed again.
                let is_masked = mock.performance_entry() != 0x400;
                left.set(false);
                mock.inject(Fault::None);
                mock.deliver_sample();
                if !entered && is_on(&session, event) {
                    // Nothing was lent: the event runs as before, or its sample is reported.
                    assert!(kernel.run(&mock, PERIOD + 15), "{what}: {}", kernel.faulted.get());
                    mock.deliver_sample();
                }
                if !is_on(&session, event) {
                    assert!(!ended, "{what}");
                    // A unit that could not be stopped may sample, for no event.
                    if kernel.run(&mock, 2 * PERIOD) {
                        kernel.sampled[kind as usize].borrow_mut().pop();
                    }
                    session.reprogram(|sample| kernel.note(&sample)).unwrap();
                    session.enable(event, 0).unwrap();
                }
                mock.deliver_sample();
                assert!(kernel.run(&mock, PERIOD + 15), "{what}");
                mock.deliver_sample();
                let (sampled, reported) = (kernel.sampled(), kernel.reported());
                assert!(
                    reported.is_sorted() && reported.windows(2).all(|two| two[0] != two[1]),
                    "{what}: {reported:X?}"
                );
                assert_eq!(reported.last(), sampled.last(), "{what}");
                assert!(kernel.unknown.get() == 0 || is_masked, "{what}");
                // At most the sample whose registers could not be read, or could not be left alone.
                let lost = sampled.len() - reported.len();
                assert!(lost <= usize::from(!ended), "{what}: {lost} lost");
                if !failed {
                    assert_eq!((entered, ended), (true, true), "{what}");
                    kernel.all_reported(&what);
                    break;
                }
            }
        }
    }
}

/// A window whose end fails, after a borrower that let the unit run: the next borrower finds it stopped.
#[test]
fn the_next_borrower_finds_a_unit_stopped_that_could_not_be_resumed() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
        let mut window = session.lend(0, |sample| kernel.note(&sample)).unwrap();
        window.lent().set_programmed(true);
        sample_as_another(&mock, kind);
        let has_second = processor.unit(kind).capabilities().control2();
        let failing = if has_second { second_control(kind) } else { control(kind).0 };
        mock.inject(Fault::Register(failing));
        assert!(window.end(0).is_err(), "{what}");
        mock.inject(Fault::None);
        assert!(!is_on(&session, event) && is_enabled(&mock), "{what}");
        let window = session.lend(0, |sample| kernel.note(&sample)).unwrap();
        assert!(!is_enabled(&mock), "{what}");
        window.end(0).unwrap();
        session.reprogram(|sample| kernel.note(&sample)).unwrap();
        if !is_on(&session, event) {
            session.enable(event, 0).unwrap();
        }
        assert!(kernel.run(&mock, PERIOD + 15), "{what}");
        kernel.all_reported(&what);
    }
}

/// Interrupts within a window of a unit that was stopped with a sample.
#[derive(Clone, Copy, Debug)]
enum Within {
    Late,
    /// The guest's own interrupt, and then the late one.
    GuestsFirst,
    /// An overflow of the host's counter was pending, too.
    BesideOverflow,
}

/// Stopped by the window or before it, the unit interrupts within the window. One interrupt is claimed for the sample,
/// without an access: the registers are the guest's.
#[test]
fn a_samples_late_interrupt_within_a_window_is_claimed_once_and_touches_no_register() {
    const EVENTS: u64 = 10_000;
    for (processor, kind) in units() {
        for within in [Within::Late, Within::GuestsFirst, Within::BesideOverflow] {
            for stops in [false, true] {
                let what = format!("{}, {kind:?}, {within:?}, {stops}", processor.name);
                let mock = processor.mock();
                let kernel = Kernel::new(processor, kind, &mock);
                let answers = RefCell::new(vec![]);
                let told = || answers.take();
                let handler = |mock: &Mock<'_>| {
                    let (source, memory) = (kernel.source(), &kernel.counter_memory);
                    let served = service(&source, mock, memory, |sample| kernel.note(&sample));
                    let served = served.unwrap();
                    answers.borrow_mut().push((served.claim, served.lent));
                };
                mock.on_interrupt(&handler);
                let accesses = Cell::new(0);
                let count = |_: &Mock<'_>| accesses.set(accesses.get() + 1);
                mock.on_access(&count);
                let mut session = kernel.take(&mock);
                kernel.start(&mut session, &raw(3).every(EVENTS)).unwrap();
                let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
                // The kernel has interrupts off.
                mock.inject_pmi(PmiFault::Late(1_000));
                assert!(kernel.run(&mock, PERIOD), "{what}");
                if matches!(within, Within::BesideOverflow) {
                    mock.advance(&mut happened(3, EVENTS));
                }
                if stops {
                    session.disable(event, 0).unwrap();
                }
                let window = session.lend(0, |sample| kernel.note(&sample)).unwrap();
                kernel.all_reported(&what);
                let before = accesses.get();
                match within {
                    Within::Late => {
                        mock.deliver_sample();
                        assert_eq!(told(), [(Claim::Ours, true)], "{what}");
                    }
                    Within::GuestsFirst => {
                        // The handler asks the guest, too, whose claim leaves one for the next interrupt.
                        mock.interrupt_from_elsewhere();
                        assert_eq!(told(), [(Claim::Ours, true)], "{what}");
                        mock.deliver_sample();
                        assert_eq!(told(), [(Claim::NotOurs, true)], "{what}");
                    }
                    Within::BesideOverflow => {
                        // One claim stands for both interrupts.
                        assert_eq!(kernel.overflows.get(), 1, "{what}");
                        mock.deliver();
                        assert_eq!(told(), [(Claim::OursAndMore, true)], "{what}");
                        mock.deliver_sample();
                        assert_eq!(told(), [(Claim::NotOurs, true)], "{what}");
                    }
                }
                mock.interrupt_from_elsewhere();
                assert_eq!(told(), [(Claim::NotOurs, true)], "{what}: the guest's own");
                assert_eq!(accesses.get(), before, "{what}");
                window.end(0).unwrap();
                mock.inject_pmi(PmiFault::None);
                mock.interrupt_from_elsewhere();
                assert_eq!(told(), [(Claim::NotOurs, false)], "{what}: nothing is left over");
                assert_eq!(is_on(&session, event), !stops, "{what}");
                assert_eq!(kernel.run(&mock, PERIOD + 15), !stops, "{what}");
                kernel.all_reported(&what);
            }
        }
    }
}

/// A sample that a stop has taken away without a trace still interrupts: within a window that is claimed, once, and
/// without an access.
#[test]
fn the_interrupt_of_a_sample_without_a_trace_is_claimed_within_a_window() {
    let first = |of: &(Processor, IbsKind)| !of.0.unit(of.1).capabilities().control2();
    for (processor, kind) in units().filter(first) {
        let mut tried = 0;
        for access in 1..8 {
            let what = format!("{}, {kind:?}, {access}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            let left = Cell::new(access);
            let before = |mock: &Mock<'_>| {
                left.set(left.get() - 1);
                if left.get() == 0 {
                    mock.inject_pmi(PmiFault::Late(1_000));
                    kernel.run(mock, 2 * PERIOD);
                    mock.inject_pmi(PmiFault::None);
                }
            };
            mock.on_access(&before);
            session.disable(event, 0).unwrap();
            mock.on_access(&|_| ());
            if is_valid(&mock, kind) || kernel.sampled().is_empty() {
                continue;
            }
            tried += 1;
            let window = session.lend(0, |_| panic!("{what}: a sample")).unwrap();
            let before = mock.accesses().total();
            mock.deliver_sample();
            assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (1, 0), "{what}");
            mock.interrupt_from_elsewhere();
            assert_eq!(
                (kernel.claimed.get(), kernel.unclaimed.get()),
                (1, 1),
                "{what}: the guest's"
            );
            assert_eq!(mock.accesses().total(), before, "{what}");
            window.end(0).unwrap();
            // Its event's next occurrence is sampled in its place, after the rest of the period.
            session.enable(event, 0).unwrap();
            assert!(!kernel.run(&mock, PERIOD - 16), "{what}");
            assert!(kernel.run(&mock, 31), "{what}");
            assert_eq!(kernel.reported(), kernel.sampled()[1..], "{what}");
        }
        assert!(tried > 0, "{}, {kind:?}", processor.name);
    }
}
