//! Sessions whose processor was suspended, whose registers did not answer, or whose units are not alone.

use core::cell::Cell;
use pmu_tests::Reason;

use pmu_amd::ibs::IbsKind;
use pmu_core::CounterSet;
use pmu_core::error::CounterError;
use pmu_core::precise::NotPrecise;
use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
use pmu_virt::mock::{Fault, PmiFault};
use pmu_virt::{GuestFacility, Writer};

use crate::support::*;

/// After lost registers the event samples again, or is still stopped, and no sample of before is reported: a record of
/// registers that were lost would have the address 0.
#[test]
fn an_event_goes_on_after_its_registers_were_lost() {
    for (processor, kind) in units() {
        for (runs, pending) in [(true, false), (true, true), (false, false), (false, true)] {
            let what = format!("{}, {kind:?}, {runs}, {pending}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            if pending {
                mock.inject_pmi(PmiFault::Lost);
                assert!(kernel.run(&mock, PERIOD), "{what}");
                mock.inject_pmi(PmiFault::None);
                kernel.sampled[kind as usize].borrow_mut().clear();
            }
            let unit = session.counter_of(event).unwrap();
            if !runs {
                session.disable(event, 0).unwrap();
            }
            mock.lose_registers();
            let anew = session.reprogram(|sample| kernel.note(&sample)).unwrap();
            assert_eq!(anew.contains(unit), runs, "{what}");
            assert_eq!((is_on(&session, event), mock.extended_entry(1)), (runs, 0x400), "{what}");
            assert_eq!(kernel.run(&mock, PERIOD), runs, "{what}");
            kernel.all_reported(&what);
            // The stop of before expected an interrupt, which the suspend has taken away.
            mock.interrupt_from_elsewhere();
            assert_eq!(kernel.unclaimed.get(), 1, "{what}");
            if !runs {
                session.enable(event, 0).unwrap();
            }
            assert!(kernel.run(&mock, PERIOD + 15), "{what}");
            kernel.all_reported(&what);
            assert_eq!(kernel.overflows.get(), 0, "{what}: a sample without an address");
        }
    }
}

/// The rest of a period goes on after a suspend, and a sample whose interrupt is pending is reported.
#[test]
fn a_suspend_keeps_what_is_left_of_a_period() {
    for (processor, kind) in units() {
        for pending in [false, true] {
            let what = format!("{}, {kind:?}, {pending}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            let exact = processor.is_exact(kind);
            for _ in 0..3 {
                if pending {
                    // Its interrupt comes while no register may be accessed, and finds the sample reported.
                    mock.inject_pmi(PmiFault::Late(1_000));
                    assert!(kernel.run(&mock, PERIOD + 15), "{what}");
                    mock.inject_pmi(PmiFault::None);
                } else {
                    kernel.pass(&mock, kind, 32);
                }
                session.suspend(0, |sample| kernel.note(&sample)).unwrap();
                kernel.all_reported(&what);
                assert!(!is_enabled(&mock) && !is_valid(&mock, kind), "{what}");
                let before = mock.accesses().total();
                mock.deliver_sample();
                assert_eq!(mock.accesses().total(), before, "{what}");
                mock.lose_registers();
                session.resume(0, |sample| kernel.note(&sample)).unwrap();
                assert!(is_on(&session, event), "{what}");
            }
            assert_eq!(kernel.unclaimed.get(), 0, "{what}");
            let left = if pending { PERIOD } else { PERIOD - 3 * 32 };
            if exact {
                assert!(!kernel.run(&mock, left - 1), "{what}");
                assert!(kernel.run(&mock, 1), "{what}");
            } else {
                // In sixteens, from a random one of the first sixteen at each start; of ops, at least the shortest
                // period.
                let most = if kind == IbsKind::Op { left.max(0x90) } else { left + 15 };
                assert!(!kernel.run(&mock, left.saturating_sub(4 * 16)), "{what}");
                assert!(kernel.run(&mock, most), "{what}");
            }
            kernel.all_reported(&what);
        }
    }
}

/// Registers that kept their contents after all: a sample whose event left the unit is reported, with its address.
#[test]
fn a_sample_that_waits_outlives_a_reprogramming() {
    for (processor, kind) in units() {
        for (stops, lost) in [(true, false), (false, false), (true, true)] {
            let what = format!("{}, {kind:?}, {stops}, {lost}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            mock.inject_pmi(if lost { PmiFault::Lost } else { PmiFault::Late(1_000) });
            assert!(kernel.run(&mock, PERIOD), "{what}");
            mock.inject_pmi(PmiFault::None);
            if stops {
                session.disable(event, 0).unwrap();
            }
            session.reprogram(|sample| kernel.note(&sample)).unwrap();
            kernel.all_reported(&what);
            mock.deliver_sample();
            assert_eq!((kernel.unclaimed.get(), kernel.overflows.get()), (0, 0), "{what}");
            let count = session.read(event, 0).unwrap().value;
            assert_eq!(count / u64::from(PERIOD), 1, "{what}: {count}");
            if stops {
                session.enable(event, 0).unwrap();
            }
            assert!(kernel.run(&mock, PERIOD + 15), "{what}");
            kernel.all_reported(&what);
        }
    }
}

/// Firmware that samples after the suspend, by the same unit.
#[test]
fn what_firmware_left_after_a_suspend_is_ended() {
    for (processor, kind) in units() {
        for (runs, suspends) in [(true, false), (false, false), (true, true)] {
            let what = format!("{}, {kind:?}, {runs}, {suspends}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = session.open(&kernel.counters, &[processor.event(kind)]).unwrap();
            if runs {
                session.enable(event, 0).unwrap();
            }
            if suspends {
                session.suspend(0, |sample| kernel.note(&sample)).unwrap();
            }
            mock.lose_registers();
            sample_as_another(&mock, kind);
            assert!((0..160).any(|number| step(&mock, kind, number)), "{what}");
            if suspends {
                session.resume(0, |sample| kernel.note(&sample)).unwrap();
            } else {
                session.reprogram(|sample| kernel.note(&sample)).unwrap();
            }
            assert!(!is_valid(&mock, kind), "{what}");
            assert_eq!(kernel.run(&mock, PERIOD), runs, "{what}");
            kernel.all_reported(&what);
            // The interrupt of firmware's sample may still come, and finds nothing.
            mock.interrupt_from_elsewhere();
            assert_eq!(kernel.reported().len(), runs.into(), "{what}");
        }
    }
}

/// A fault at each access of `reprogram`, once and for good.
#[test]
fn a_fault_while_reprogramming_is_told_and_a_start_samples_again() {
    let counters = CounterSet::from_bits(0b1) | CounterSet::fixed(0b11);
    for (processor, kind) in units() {
        for transient in [true, false] {
            for access in 1.. {
                let what = format!("{}, {kind:?}, access {access}, {transient}", processor.name);
                sampler!(processor, kind => mock, kernel, session, counters);
                let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
                mock.lose_registers();
                let before = mock.accesses().total();
                mock.inject(if transient { Fault::At(access) } else { Fault::From(access) });
                let done = session.reprogram(|sample| kernel.note(&sample));
                mock.inject(Fault::None);
                let made = mock.accesses().total() - before >= access;
                match done {
                    Ok(_) => {
                        assert!(transient || !made, "{what}");
                        assert!(is_on(&session, event), "{what}");
                    }
                    Err(CounterError::Unchanged(_) | CounterError::StateUnknown(_)) => {
                        assert!(!transient, "{what}");
                        // The session tells the truth. A unit that could not be stopped may sample, for no event.
                        let is_served = is_on(&session, event) && mock.performance_entry() == 0x400;
                        assert!(kernel.run(&mock, PERIOD + 15) || !is_served, "{what}");
                        if !is_served {
                            assert_eq!(kernel.reported(), [], "{what}");
                            kernel.unclaimed.set(0);
                            kernel.sampled[kind as usize].borrow_mut().clear();
                        }
                        session.reprogram(|sample| kernel.note(&sample)).unwrap();
                        if !is_on(&session, event) {
                            session.enable(event, 0).unwrap();
                        }
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
                assert!(kernel.run(&mock, PERIOD + 15), "{what}");
                kernel.all_reported(&what);
                assert_eq!(kernel.unclaimed.get(), 0, "{what}");
                if !made {
                    break;
                }
            }
        }
    }
}

/// An entry that another user took meanwhile, and firmware that assigned none: no start says that the event runs.
#[test]
fn a_resumed_unit_that_cannot_interrupt_does_not_sample() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
        // Firmware does not answer while the entry is looked up.
        mock.lose_registers();
        mock.inject(Fault::Register(0xC001_103A));
        let failed = session.reprogram(|_| panic!("{what}: a sample"));
        assert!(matches!(failed, Err(CounterError::StateUnknown(_))), "{what}: {failed:?}");
        mock.inject(Fault::None);
        assert!(!is_on(&session, event) && !is_enabled(&mock), "{what}");
        assert!(session.enable(event, 0).is_err(), "{what}: with its entry masked");
        mock.set_extended_entry(1, 0xE1);
        for _ in 0..2 {
            let _ = session.reprogram(|_| panic!("{what}: a sample"));
            assert_eq!((is_on(&session, event), mock.extended_entry(1)), (false, 0xE1), "{what}");
            assert!(session.enable(event, 0).is_err(), "{what}: with another one's entry");
            assert!(!is_enabled(&mock), "{what}");
        }
        let without = IbsConfiguration { lvt_entry: None, ..processor.ibs };
        let _ = mock.with_sampling_unit(|unit| *unit = VirtualIbs::new(without));
        let _ = session.reprogram(|_| panic!("{what}: a sample"));
        assert!(session.enable(event, 0).is_err(), "{what}: without an entry");
        assert!(!kernel.run(&mock, PERIOD), "{what}");
        let opened = session.open(&kernel.counters, &[processor.event(kind)]);
        assert_eq!(
            opened.reason(),
            Err(CounterError::NotPrecise(NotPrecise::NoInterrupt)),
            "{what}"
        );
        // The entry is back.
        let _ = mock.with_sampling_unit(|unit| *unit = VirtualIbs::new(processor.ibs));
        mock.set_extended_entry(1, 0x1_0000);
        session.reprogram(|_| panic!("{what}: a sample")).unwrap();
        session.enable(event, 0).unwrap();
        assert!(kernel.run(&mock, PERIOD + 15), "{what}");
        kernel.all_reported(&what);
    }
}

/// An interrupt that could not read the control register leaves its sample: the unit waits. The next interrupt of any
/// owner reports the sample. In the old model a restart dropped it; now it stays the event's, and is reported with the
/// next one.
#[test]
fn two_faults_in_a_row_at_the_control_register_stop_no_unit_for_good() {
    for (processor, kind) in units() {
        for restarts in [false, true] {
            let what = format!("{}, {kind:?}, {restarts}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            mock.inject(Fault::Register(control(kind).0));
            assert!(kernel.run(&mock, PERIOD), "{what}");
            assert_eq!((kernel.faulted.get(), kernel.reported()), (1, vec![]), "{what}");
            mock.inject(Fault::None);
            if restarts {
                session.disable(event, 0).unwrap();
                session.enable(event, 0).unwrap();
            } else {
                mock.interrupt_from_elsewhere();
                assert_eq!(kernel.claimed.get(), 1, "{what}");
                kernel.all_reported(&what);
            }
            assert!(kernel.run(&mock, PERIOD + 15), "{what}");
            kernel.all_reported(&what);
            assert_eq!((kernel.reported().len(), kernel.memory.lost()), (2, 0), "{what}");
        }
    }
}

/// Both units of a processor, whose events come and go in any order, share the entry.
#[test]
fn both_units_share_one_entry_and_neither_takes_it_from_the_other() {
    for processor in processors() {
        let what = processor.name;
        sampler!(processor, IbsKind::Op => mock, kernel, session);
        let [fetches, ops] = [IbsKind::Fetch, IbsKind::Op]
            .map(|kind| kernel.start(&mut session, &processor.event(kind)).unwrap());
        let again = kernel.try_take(&mock, CounterSet::ALL);
        assert_eq!(again.map(drop), Err(CounterError::MemoryInUse));
        let run = |kind| kernel.run_of(&mock, kind, PERIOD);
        for _ in 0..5 {
            assert!(run(IbsKind::Op) && run(IbsKind::Fetch), "{what}");
        }
        // Both samples in one interrupt.
        mock.inject_pmi(PmiFault::Lost);
        assert!(run(IbsKind::Op), "{what}");
        mock.inject_pmi(PmiFault::None);
        assert!(run(IbsKind::Fetch), "{what}");
        assert_eq!((kernel.claimed.get(), mock.interrupts()), (12, 11), "{what}");
        session.disable(ops, 0).unwrap();
        assert!(run(IbsKind::Fetch), "{what}: the other one's entry");
        assert!(!run(IbsKind::Op), "{what}");
        session.enable(ops, 0).unwrap();
        session.close(fetches, 0).unwrap();
        assert!(kernel.run_of(&mock, IbsKind::Op, PERIOD), "{what}");
        assert!(!kernel.run_of(&mock, IbsKind::Fetch, 2 * PERIOD), "{what}");
        kernel.all_reported(what);
        session.shut_down().unwrap();
        assert!(!is_enabled(&mock), "{what}");
    }
}

/// A processor's memory says nothing of another processor: its handler accesses nothing there.
#[test]
fn an_interrupt_of_another_processor_accesses_none_of_its_registers() {
    let processor = named("Zen 4");
    sampler!(processor, IbsKind::Op => mock, kernel, session);
    kernel.start(&mut session, &processor.event(IbsKind::Op)).unwrap();
    let other = processor.mock();
    let there = Kernel::new(processor, IbsKind::Op, &other);
    let taken = Cell::new(0);
    let handler = |mock: &Mock<'_>| {
        taken.set(taken.get() + 1);
        there.handle(mock);
    };
    other.on_interrupt(&handler);
    other.interrupt_from_elsewhere();
    assert_eq!((taken.get(), other.accesses().total(), there.unclaimed.get()), (1, 0, 1));
    assert!(kernel.run(&mock, PERIOD));
    kernel.all_reported("this processor");
}

/// Registers that were lost while a sample waited for its interrupt, and nothing was told: an interrupt of another
/// owner's finds registers of zeros, which are no sample at address 0.
#[test]
fn registers_of_zeros_are_no_sample() {
    for (processor, kind) in units() {
        for (stops, reset) in [(false, true), (true, true), (true, false)] {
            let what = format!("{}, {kind:?}, {stops}, {reset}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            mock.inject_pmi(PmiFault::Lost);
            assert!(kernel.run(&mock, PERIOD), "{what}");
            mock.inject_pmi(PmiFault::None);
            if stops {
                session.disable(event, 0).unwrap();
            }
            if reset {
                let _ = mock.with_sampling_unit(GuestFacility::reset);
            } else {
                let _ = mock.with_sampling_unit(|unit| {
                    let _ = unit.write(Writer::Host, control(kind).0, 0);
                });
            }
            mock.interrupt_from_elsewhere();
            assert_eq!((kernel.reported(), kernel.overflows.get()), (vec![], 0), "{what}");
            let _ = session.reprogram(|sample| kernel.note(&sample)).unwrap();
            assert_eq!((kernel.reported(), kernel.overflows.get()), (vec![], 0), "{what}");
            kernel.sampled[kind as usize].borrow_mut().clear();
            if stops {
                session.enable(event, 0).unwrap();
            }
            assert!(kernel.run(&mock, PERIOD + 15), "{what}");
            kernel.all_reported(&what);
        }
    }
}
