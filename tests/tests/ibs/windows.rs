//! Windows of a guest that has no instruction-based sampling: both units, and faults.

use core::cell::{Cell, RefCell};

use pmu_amd::ibs::{Ibs, IbsError, IbsKind, IbsRecord, IbsSampler};
use pmu_core::{Claim, service_with};
use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::{Fault, PmiFault};
use pmu_virt::{GuestFacility, Read, Writer};

use crate::support::*;

fn is_enabled(mock: &Mock<'_>) -> bool {
    mock.with_sampling_unit(|unit| unit.is_enabled()) == Some(true)
}

/// Returns whether a unit is enabled, and has a period.
fn runs(mock: &Mock<'_>, kind: IbsKind) -> bool {
    let (control, enable, period, second) = match kind {
        IbsKind::Fetch => (0xC001_1030, 1 << 48, 0xFFFF, 0xC001_103F),
        IbsKind::Op => (0xC001_1033, 1 << 17, 0x7F0_FFFF, 0xC001_103E),
    };
    let read = |register| match mock.with_sampling_unit(|unit| unit.read(register)) {
        Some(Read::Value(value)) => value,
        _ => 0,
    };
    let value = read(control);
    value & enable != 0 && value & period != 0 && read(second) & 1 == 0
}

#[test]
fn both_units_are_suspended_in_a_window_and_their_samples_reported() {
    for processor in processors() {
        // At once, or after the window's beginning: the kernel has interrupts off.
        for late in [PmiFault::None].into_iter().chain((0..40).map(PmiFault::Late)) {
            let what = format!("{}, {late:?}", processor.name);
            let mock = processor.mock();
            let [ops, fetches] =
                [IbsKind::Op, IbsKind::Fetch].map(|kind| Kernel::new(processor.unit(kind), &mock));
            let handler = |mock: &Mock<'_>| Kernel::handle_both(&ops, &fetches, mock);
            mock.on_interrupt(&handler);
            let mut counters = ops.take_counters(&mock);
            let mut first = IbsSampler::take(ops.unit, &mock, &mock, &ops.memory).unwrap();
            let mut second = IbsSampler::take(fetches.unit, &mock, &mock, &fetches.memory).unwrap();
            first.start(&processor.request(IbsKind::Op)).unwrap();
            second.start(&processor.request(IbsKind::Fetch)).unwrap();
            mock.inject_pmi(late);
            assert!(ops.run(&mock, PERIOD) && fetches.run(&mock, PERIOD), "{what}");
            mock.inject_pmi(PmiFault::None);
            let both =
                (first.lent(|record| ops.push(record)), second.lent(|record| fetches.push(record)));
            let window = counters.lend_with(0, both, |_, _| ()).unwrap();
            ops.all_reported(&what);
            fetches.all_reported(&what);
            assert!(!is_enabled(&mock), "{what}");
            // A guest's ops.
            assert!(!ops.run(&mock, 2 * PERIOD) && !fetches.run(&mock, 2 * PERIOD), "{what}");
            window.end(0).unwrap();
            mock.deliver_sample();
            assert!(ops.run(&mock, PERIOD) && fetches.run(&mock, PERIOD), "{what}");
            ops.all_reported(&what);
            fetches.all_reported(&what);
            assert_eq!(ops.unknown.get(), 0, "{what}");
        }
    }
}

/// From each access of a window's beginning on, and of its end: the unit is what the sampler says, a guest never meets
/// a unit that runs, and no sample is reported twice.
#[test]
fn a_window_whose_accesses_fail_leaves_no_unit_in_the_guest_and_reports_no_sample_twice() {
    for (processor, kind) in units() {
        for (late, faults) in [(false, u32::MAX), (true, u32::MAX), (true, 2), (true, 4)] {
            for access in 1..60_u32 {
                let what = format!("{}, {kind:?}, {late}, {faults} from {access}", processor.name);
                sampler!(processor, kind => mock, kernel, sampler);
                let mut counters = kernel.take_counters(&mock);
                sampler.start(&processor.request(kind)).unwrap();
                mock.inject_pmi(if late { PmiFault::Late(1_000) } else { PmiFault::None });
                assert!(kernel.run(&mock, PERIOD), "{what}");
                mock.inject_pmi(PmiFault::None);
                let (made, left) = (Cell::new(0), Cell::new(true));
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
                let report = |record: &IbsRecord| kernel.push(record);
                let mut entered = false;
                let ended = match counters.lend_with(0, sampler.lent(report), |_, _| ()) {
                    Ok(window) => {
                        entered = true;
                        assert!(!is_enabled(&mock), "{what}: a guest with the host's unit");
                        assert!(!kernel.run(&mock, 2 * PERIOD), "{what}");
                        window.end(0).is_ok()
                    }
                    Err(_) => false,
                };
                let failed = mock.trace().records().any(|record| record.outcome.is_err());
                left.set(false);
                mock.inject(Fault::None);
                if !entered {
                    // The sampler tells the truth.
                    let waits = kernel.reported.borrow().len() != kernel.sampled.borrow().len();
                    assert!(!sampler.is_sampling() || runs(&mock, kind) || waits, "{what}");
                    if runs(&mock, kind) {
                        // It is served, whatever the sampler says.
                        kernel.run(&mock, 2 * PERIOD);
                    }
                }
                mock.deliver_sample();
                if entered
                    && !ended
                    && sampler.start(&processor.request(kind)) == Err(IbsError::Lent)
                {
                    // Another window, whose end succeeds.
                    let window = counters.lend_with(0, sampler.lent(report), |_, _| ()).unwrap();
                    assert!(!is_enabled(&mock), "{what}");
                    window.end(0).unwrap();
                }
                if !sampler.is_sampling() {
                    sampler.start(&processor.request(kind)).unwrap();
                }
                mock.deliver_sample();
                assert!(kernel.run(&mock, PERIOD), "{what}");
                mock.deliver_sample();
                let (sampled, reported) = (kernel.sampled.borrow(), kernel.reported.borrow());
                assert!(
                    reported.is_sorted() && reported.windows(2).all(|two| two[0] != two[1]),
                    "{what}"
                );
                assert_eq!(reported.last(), sampled.last(), "{what}");
                assert_eq!(kernel.unknown.get(), 0, "{what}");
                let lost = sampled.len() - reported.len();
                assert!(lost as u32 <= kernel.memory.lost(), "{what}: {lost} lost");
                if !failed {
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
        sampler!(processor, kind => mock, kernel, sampler);
        let mut counters = kernel.take_counters(&mock);
        sampler.start(&processor.request(kind)).unwrap();
        let window = counters.lend_with(0, sampler.lent(|_| ()), |_, _| ()).unwrap();
        let (control, value, second) = match kind {
            IbsKind::Fetch => (0xC001_1030, 1 << 48 | 9, 0xC001_103F),
            IbsKind::Op => (0xC001_1033, 1 << 17 | 9, 0xC001_103E),
        };
        let _ = mock.with_sampling_unit(|unit| {
            let _ = unit.write(Writer::Guest, control, value);
            let _ = unit.write(Writer::Guest, second, 0);
        });
        let failing = if processor.unit(kind).capabilities().control2() { second } else { control };
        mock.inject(Fault::Register(failing));
        assert!(window.end(0).is_err(), "{what}");
        mock.inject(Fault::None);
        assert!(is_enabled(&mock), "{what}");
        let window = counters.lend_with(0, sampler.lent(|_| ()), |_, _| ()).unwrap();
        assert!(!is_enabled(&mock), "{what}");
        window.end(0).unwrap();
        assert!(sampler.is_sampling() && kernel.run(&mock, PERIOD), "{what}");
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
                let kernel = Kernel::new(processor.unit(kind), &mock);
                let answers = RefCell::new(vec![]);
                let told = || answers.take();
                let handler = |mock: &Mock<'_>| {
                    let report = |record: &IbsRecord| kernel.push(record);
                    let ibs = Ibs::new(&kernel.unit, &kernel.memory, report);
                    let memory = &kernel.counter_memory;
                    let served = service_with(&kernel.source(), mock, mock, memory, ibs, |_, _| ());
                    let served = served.unwrap();
                    answers.borrow_mut().push((served.claim, served.lent));
                };
                mock.on_interrupt(&handler);
                let accesses = Cell::new(0);
                let count = |_: &Mock<'_>| accesses.set(accesses.get() + 1);
                mock.on_access(&count);
                let mut counters = kernel.take_counters(&mock);
                let event = counters.open_event(&kernel.counters, &raw(3).every(EVENTS)).unwrap();
                counters.start_event(event, 0).unwrap();
                let mut sampler =
                    IbsSampler::take(kernel.unit, &mock, &mock, &kernel.memory).unwrap();
                sampler.start(&processor.request(kind)).unwrap();
                // The kernel has interrupts off.
                mock.inject_pmi(PmiFault::Late(1_000));
                assert!(kernel.run(&mock, PERIOD), "{what}");
                if matches!(within, Within::BesideOverflow) {
                    mock.advance(&mut happened(3, EVENTS));
                }
                if stops {
                    sampler.stop().unwrap();
                }
                let overflows = Cell::new(0);
                let report = |record: &IbsRecord| kernel.push(record);
                let window = counters
                    .lend_with(0, sampler.lent(report), |_, _| overflows.set(overflows.get() + 1))
                    .unwrap();
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
                        assert_eq!(overflows.get(), 1, "{what}");
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
                assert_eq!(sampler.is_sampling(), !stops, "{what}");
                assert_eq!(kernel.run(&mock, PERIOD), !stops, "{what}");
                kernel.all_reported(&what);
            }
        }
    }
}
