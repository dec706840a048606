//! Stops and starts that race with a sample, late interrupts, faults, and guests.

use core::cell::Cell;

use pmu_amd::ibs::{IbsError, IbsKind, IbsRecord, IbsSampler};
use pmu_virt::mock::{Deviation, Deviations, Fault, PmiFault};
use pmu_virt::{GuestFacility, Read, Writer};

use crate::support::*;

/// Operations of a task, in which a sample comes at each access.
type Operation = fn(&mut IbsSampler<'_, &Mock<'_>>, &Processor) -> Result<(), IbsError>;

fn stop(sampler: &mut IbsSampler<'_, &Mock<'_>>, _: &Processor) -> Result<(), IbsError> {
    sampler.stop()
}

fn restart(sampler: &mut IbsSampler<'_, &Mock<'_>>, processor: &Processor) -> Result<(), IbsError> {
    let request = processor.request(sampler.unit().kind());
    sampler.start(&request)
}

/// Returns whether the unit has a sample.
fn is_valid(mock: &Mock<'_>, kind: IbsKind) -> bool {
    let (control, valid) = match kind {
        IbsKind::Fetch => (0xC001_1030, 1 << 49),
        IbsKind::Op => (0xC001_1033, 1 << 18),
    };
    let read = mock.with_sampling_unit(|unit| unit.read(control));
    matches!(read, Some(Read::Value(value)) if value & valid != 0)
}

/// Lets a sample come before each access of an operation in turn. `late`: its interrupt comes late.
fn race(operation: Operation, late: Option<PmiFault>, deviations: Deviations, restarts: bool) {
    for (processor, kind) in units() {
        let processor = Processor { deviations, ..processor };
        for access in 1.. {
            let what = format!("{}, {kind:?}, before access {access}", processor.name);
            sampler!(processor, kind => mock, kernel, sampler);
            sampler.start(&processor.request(kind)).unwrap();
            let (left, fed) = (Cell::new(access), Cell::new(false));
            let before = |mock: &Mock<'_>| {
                left.set(left.get() - 1);
                if left.get() == 0 {
                    mock.inject_pmi(late.unwrap_or_default());
                    kernel.run(mock, 2 * PERIOD);
                    fed.set(true);
                }
            };
            mock.on_access(&before);
            operation(&mut sampler, &processor).unwrap();
            let done = !fed.get();
            left.set(i32::MAX);
            mock.inject_pmi(PmiFault::None);
            // Interrupts that have not come yet come now.
            mock.deliver_sample();
            if !restarts {
                assert!(!kernel.run(&mock, 2 * PERIOD), "{what}: stopped");
            }
            let enabled = mock.with_sampling_unit(|unit| unit.is_enabled()) == Some(true);
            assert_eq!(enabled, restarts, "{what}");
            kernel.all_reported(&what);
            assert!(!is_valid(&mock, kind), "{what}: a sample is left");
            let sampled = kernel.sampled.borrow().len() as u32;
            assert_eq!(kernel.unclaimed.get(), 0, "{what}");
            assert_eq!(kernel.claimed.get(), sampled, "{what}");
            if !restarts {
                sampler.start(&processor.request(kind)).unwrap();
            }
            assert!(kernel.run(&mock, PERIOD), "{what}: samples on");
            mock.deliver_sample();
            if deviations == Deviations::NONE {
                kernel.all_reported(&what);
            }
            if done {
                break;
            }
        }
    }
}

#[test]
fn a_stop_loses_no_sample_and_a_sample_undoes_no_stop() {
    race(stop, None, Deviations::NONE, false);
}

#[test]
fn an_interrupt_that_comes_after_the_stop_is_claimed_and_its_sample_reported() {
    race(stop, None, Deviations::of(&[Deviation::LateIbs]), false);
    for accesses in 0..4 {
        race(stop, Some(PmiFault::Late(accesses)), Deviations::NONE, false);
    }
}

#[test]
fn a_restart_loses_no_sample_and_samples_on() {
    race(restart, None, Deviations::NONE, true);
}

/// An interrupt that is another one's, while the unit is being stopped, is not taken for the late one.
#[test]
fn another_one_s_interrupt_during_a_stop_does_not_cost_the_sample_after_it() {
    for (processor, kind) in units() {
        for (foreign, access) in
            (1..6).flat_map(|foreign| (foreign..6).map(move |at| (foreign, at)))
        {
            let what = format!("{}, {kind:?}, {foreign} and {access}", processor.name);
            sampler!(processor, kind => mock, kernel, sampler);
            sampler.start(&processor.request(kind)).unwrap();
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
            sampler.stop().unwrap();
            busy.set(true);
            kernel.all_reported(&what);
            assert!(kernel.claimed.get() >= kernel.sampled.borrow().len() as u32, "{what}");
            assert!(kernel.unclaimed.get() <= 1, "{what}: the other one's");
        }
    }
}

#[test]
fn one_interrupt_after_a_stop_is_claimed_and_no_second() {
    for (processor, kind) in units() {
        sampler!(processor, kind => mock, kernel, sampler);
        sampler.start(&processor.request(kind)).unwrap();
        assert!(kernel.run(&mock, PERIOD));
        sampler.shut_down().unwrap();
        mock.interrupt_from_elsewhere();
        assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (2, 0), "{}", processor.name);
        let before = mock.accesses();
        mock.interrupt_from_elsewhere();
        assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (2, 1), "{}", processor.name);
        assert_eq!(mock.accesses().total(), before.total(), "{}: no access", processor.name);
        kernel.all_reported(processor.name);
    }
}

/// A start while the sample of before still waits for its interrupt.
#[test]
fn a_start_before_a_late_interrupt_leaves_the_sample_to_it() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, sampler);
        sampler.start(&processor.request(kind)).unwrap();
        mock.inject_pmi(PmiFault::Late(1_000));
        assert!(kernel.run(&mock, PERIOD));
        mock.inject_pmi(PmiFault::None);
        sampler.start(&processor.request(kind)).unwrap();
        mock.deliver_sample();
        kernel.all_reported(&what);
        assert_eq!(kernel.claimed.get(), 1, "{what}");
        assert!(sampler.is_sampling() && kernel.run(&mock, PERIOD), "{what}");
        kernel.all_reported(&what);
    }
}

/// A transient fault changes nothing; a permanent one is told, and what it left is ended.
#[test]
fn a_fault_at_each_access_is_told_and_leaves_a_unit_that_can_be_used_again() {
    for (processor, kind) in units() {
        for access in 1..40 {
            for transient in [true, false] {
                let what = format!("{}, {kind:?}, access {access}, {transient}", processor.name);
                let mock = processor.mock();
                let kernel = Kernel::new(processor.unit(kind), &mock);
                let handler = |mock: &Mock<'_>| kernel.handle(mock);
                mock.on_interrupt(&handler);
                mock.inject(if transient { Fault::At(access) } else { Fault::From(access) });
                let taken = IbsSampler::take(kernel.unit, &mock, &mock, &kernel.memory);
                let worked = taken.and_then(|mut sampler| {
                    sampler.start(&processor.request(kind))?;
                    kernel.run(&mock, PERIOD);
                    kernel.run(&mock, PERIOD);
                    sampler.shut_down().inspect_err(|_| {
                        mock.inject(Fault::None);
                        sampler.shut_down().unwrap();
                    })
                });
                if transient {
                    assert_eq!(worked, Ok(()), "{what}");
                    kernel.all_reported(&what);
                    assert_eq!(kernel.sampled.borrow().len(), 2, "{what}");
                    continue;
                }
                mock.inject(Fault::None);
                match worked {
                    Ok(()) => kernel.all_reported(&what),
                    Err(IbsError::Access(_) | IbsError::Faulted(_)) => {}
                    Err(error) => panic!("{what}: {error}"),
                }
                // A sampler that failed to start was dropped: the next kernel has other memory.
                let again = Kernel::new(processor.unit(kind), &mock);
                let handler = |mock: &Mock<'_>| again.handle(mock);
                mock.on_interrupt(&handler);
                let mut sampler =
                    IbsSampler::take(again.unit, &mock, &mock, &again.memory).unwrap();
                sampler.start(&processor.request(kind)).unwrap();
                assert!(again.run(&mock, PERIOD) && again.run(&mock, PERIOD), "{what}");
                again.all_reported(&what);
                mock.on_interrupt(&nothing);
            }
        }
    }
}

fn nothing(_: &Mock<'_>) {}

/// A sample that cannot be read is counted, and the unit samples on.
#[test]
fn a_sample_that_cannot_be_read_is_counted_as_lost() {
    const ADDRESSES: [u32; 2] = [0xC001_1034, 0xC001_1031];
    for (processor, kind) in units() {
        sampler!(processor, kind => mock, kernel, sampler);
        sampler.start(&processor.request(kind)).unwrap();
        let address = ADDRESSES[usize::from(kind == IbsKind::Fetch)];
        mock.inject(Fault::Register(address));
        assert!(kernel.run(&mock, PERIOD));
        assert_eq!((kernel.memory.lost(), kernel.faulted.get()), (1, 1), "{}", processor.name);
        mock.inject(Fault::None);
        assert!(kernel.run(&mock, PERIOD), "{}", processor.name);
        assert_eq!(kernel.reported.borrow().len(), 1, "{}", processor.name);
    }
}

/// A guest that has no instruction-based sampling runs without the host's.
#[test]
fn a_window_of_lent_counters_suspends_the_unit_and_brings_it_back() {
    for (processor, kind) in units() {
        // At once; before an access of the suspension; or after it: the kernel has interrupts off.
        for late in [PmiFault::None].into_iter().chain((0..40).map(PmiFault::Late)) {
            let what = format!("{}, {kind:?}, {late:?}", processor.name);
            let mock = processor.mock();
            let kernel = Kernel::new(processor.unit(kind), &mock);
            let handler = |mock: &Mock<'_>| kernel.handle(mock);
            mock.on_interrupt(&handler);
            let mut counters = kernel.take_counters(&mock);
            let mut sampler = IbsSampler::take(kernel.unit, &mock, &mock, &kernel.memory).unwrap();
            sampler.start(&processor.request(kind)).unwrap();
            mock.inject_pmi(late);
            assert!(kernel.run(&mock, PERIOD));
            mock.inject_pmi(PmiFault::None);
            let report = |record: &IbsRecord| {
                let address = record.address(&kernel.unit).unwrap();
                kernel.reported.borrow_mut().push(address);
            };
            let window = counters.lend_with(0, sampler.lent(report), |_, _| ()).unwrap();
            kernel.all_reported(&what);
            assert!(!kernel.run(&mock, 2 * PERIOD), "{what}: nothing of the guest");
            window.end(0).unwrap();
            mock.deliver_sample();
            assert!(sampler.is_sampling() && kernel.run(&mock, PERIOD), "{what}");
            kernel.all_reported(&what);
            sampler.shut_down().unwrap();
            assert_eq!(kernel.unclaimed.get(), 0, "{what}");
            counters.shut_down().unwrap();
        }
    }
}

/// A borrower that leaves the unit enabled, and with a sample, beside a sampler that does not sample.
#[test]
fn what_a_borrower_leaves_is_ended() {
    for (processor, kind) in units() {
        let mock = processor.mock();
        let kernel = Kernel::new(processor.unit(kind), &mock);
        let mut counters = kernel.take_counters(&mock);
        let mut sampler = IbsSampler::take(kernel.unit, &mock, &mock, &kernel.memory).unwrap();
        let window = counters.lend_with(0, sampler.lent(|_| ()), |_, _| ()).unwrap();
        let _ = mock.with_sampling_unit(|unit| {
            for (control, value) in [(0xC001_1030, 1 << 48 | 1), (0xC001_1033, 1 << 17 | 9)] {
                let _ = unit.write(Writer::Guest, control, value);
            }
            for second in [0xC001_103E, 0xC001_103F] {
                let _ = unit.write(Writer::Guest, second, 0);
            }
        });
        assert!((0..160).any(|number| step(&mock, kind, number)));
        window.end(0).unwrap();
        assert!(!is_valid(&mock, kind), "{}, {kind:?}", processor.name);
        assert!(!(0..160).any(|number| step(&mock, kind, number)), "{}", processor.name);
        assert!(sampler.start(&processor.request(kind)).is_ok() && kernel.run(&mock, PERIOD));
    }
}

/// A unit that an interrupt could not enable again is enabled by the next one, and its sample is reported once.
#[test]
fn a_unit_that_could_not_be_enabled_again_is_enabled_by_the_next_interrupt() {
    let processor = named("Zen 6");
    for (kind, second) in [(IbsKind::Op, 0xC001_103E), (IbsKind::Fetch, 0xC001_103F)] {
        for stops in [false, true] {
            let what = format!("{kind:?}, {stops}");
            sampler!(processor, kind => mock, kernel, sampler);
            sampler.start(&processor.request(kind)).unwrap();
            mock.inject(Fault::Register(second));
            assert!(kernel.run(&mock, PERIOD));
            assert_eq!((kernel.faulted.get(), sampler.is_sampling()), (1, false), "{what}");
            mock.inject(Fault::None);
            if stops {
                sampler.stop().unwrap();
                assert!(!is_valid(&mock, kind), "{what}");
            }
            mock.interrupt_from_elsewhere();
            assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (0, 1), "{what}");
            kernel.all_reported(&what);
            assert_eq!(sampler.is_sampling(), !stops, "{what}");
            assert_eq!(kernel.run(&mock, 2 * PERIOD), !stops, "{what}");
            kernel.all_reported(&what);
        }
    }
}

/// A stop that fails after the interrupt of its sample is repeated, and leaves no sample behind.
#[test]
fn a_repeated_stop_leaves_no_sample_and_none_is_reported_twice() {
    for (processor, kind) in units() {
        for (late, access) in (0..4).flat_map(|late| (1..20).map(move |access| (late, access))) {
            let what = format!("{}, {kind:?}, {late}, {access}", processor.name);
            sampler!(processor, kind => mock, kernel, sampler);
            sampler.start(&processor.request(kind)).unwrap();
            mock.inject_pmi(PmiFault::Late(late));
            assert!(kernel.run(&mock, PERIOD), "{what}");
            mock.inject_pmi(PmiFault::None);
            mock.inject(Fault::From(access));
            let stopped = sampler.stop();
            mock.inject(Fault::None);
            if stopped.is_err() {
                sampler.stop().unwrap();
            }
            mock.deliver_sample();
            mock.interrupt_from_elsewhere();
            assert!(!is_valid(&mock, kind), "{what}: a sample is left");
            assert!(kernel.reported.borrow().len() <= 1, "{what}");
            sampler.start(&processor.request(kind)).unwrap();
            assert!(kernel.run(&mock, PERIOD), "{what}");
            assert_eq!(kernel.reported.borrow().last(), kernel.sampled.borrow().last(), "{what}");
        }
    }
}
