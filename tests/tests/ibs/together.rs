//! Samples with, without and together with counters: an interrupt and a fault at each access, on each kind of counters
//! and on each platform.

use core::cell::Cell;

use pmu_amd::ibs::IbsKind;
use pmu_core::EventId;
use pmu_tests::deviations;
use pmu_tests::opened::{happened, raw};
use pmu_virt::configuration::AmdConfiguration;
use pmu_virt::mock::{Deviation, Deviations, Fault, PmiFault};

use crate::support::*;

/// Event of the counter, and its period.
const EVENT: usize = 3;
const EVENTS: u64 = 10_000;

/// An event just before one access.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comes {
    Nothing,
    /// Another owner's interrupt.
    Foreign,
    /// A sample of each unit.
    Sample,
    /// An overflow of the counter.
    Overflow,
    /// A fault of this access, whose retry succeeds.
    Fault,
    /// A fault of this access and of its retry.
    TwoFaults,
    /// Another owner's interrupt, and a fault of the access, whose retry succeeds.
    ForeignAndFault,
}

#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    processor: Processor,
    units: &'a [IbsKind],
    /// A counter overflows beside the samples.
    counts: bool,
    comes: Comes,
    /// The access before which it comes, from 1.
    access: u32,
}

/// Runs one program: samples and overflows, each alone and both in one interrupt; a stop and a start; the end. Returns
/// whether the access was made.
fn run(case: Case<'_>) -> bool {
    let Case { processor, units, counts, comes, access } = case;
    let what = format!(
        "{}, {:?}, {}, {units:?}, {counts}, {comes:?} at {access}",
        processor.name, processor.counters.counters, processor.deviations
    );
    let mock = processor.mock();
    let kernel = Kernel::new(processor, units[0], &mock);
    let handler = |mock: &Mock<'_>| kernel.handle(mock);
    mock.on_interrupt(&handler);
    let (left, foreign, made) = (Cell::new(u32::MAX), Cell::new(0), Cell::new(false));
    let is_late = processor.deviations.contains(Deviation::LateIbs);
    let came = Cell::new([false; 2]);
    let before = |mock: &Mock<'_>| {
        if is_late {
            let (came, last) = (came.take(), mock.trace().records().last());
            for kind in [IbsKind::Fetch, IbsKind::Op].into_iter().filter(|of| came[*of as usize]) {
                kernel.forget_without_trace(kind, last);
            }
        }
        if left.get() == u32::MAX {
            return;
        }
        left.set(left.get().wrapping_sub(1));
        match left.get() {
            0 => {
                made.set(true);
                if matches!(comes, Comes::Fault | Comes::ForeignAndFault) {
                    mock.inject(Fault::At(1));
                }
                if comes == Comes::TwoFaults {
                    mock.inject(Fault::From(1));
                }
                // The handlers of these access registers, too.
                left.set(if comes == Comes::TwoFaults { 3 } else { u32::MAX });
                match comes {
                    Comes::Foreign | Comes::ForeignAndFault => {
                        foreign.set(foreign.get() + 1);
                        mock.interrupt_from_elsewhere();
                    }
                    Comes::Sample => units.iter().for_each(|kind| {
                        let mut both = came.get();
                        both[*kind as usize] = kernel.run_of(mock, *kind, 2 * PERIOD);
                        came.set(both);
                    }),
                    Comes::Overflow => {
                        mock.advance(&mut happened(EVENT, EVENTS));
                    }
                    _ => {}
                }
            }
            1 if made.get() => {
                mock.inject(Fault::None);
                left.set(u32::MAX);
            }
            _ => {}
        }
    };
    mock.on_access(&before);

    let mut session = kernel.take(&mock);
    if counts {
        kernel.start(&mut session, &raw(EVENT).every(EVENTS)).unwrap();
    }
    let events: Vec<EventId> = units
        .iter()
        .map(|kind| kernel.start(&mut session, &processor.event(*kind)).unwrap())
        .collect();
    left.set(access + 1);
    let sample = || units.iter().all(|kind| kernel.run_of(&mock, *kind, PERIOD + 15));
    let overflow = || {
        let before = mock.interrupts();
        if counts {
            mock.advance(&mut happened(EVENT, EVENTS));
        }
        mock.interrupts() != before
    };
    let mut well = sample();
    overflow();
    // The interrupts of the samples are lost: another one serves them.
    mock.inject_pmi(PmiFault::Lost);
    well &= sample();
    mock.inject_pmi(PmiFault::None);
    if !overflow() {
        foreign.set(foreign.get() + 1);
        mock.interrupt_from_elsewhere();
    }
    well &= events.iter().fold(true, |all, event| all & session.disable(*event, 0).is_ok());
    well &= events.iter().fold(true, |all, event| all & session.enable(*event, 0).is_ok());
    well &= sample();
    // A shut-down drops what waits: the stop does not.
    let stopped = |event: &EventId| session.disable(*event, 0).is_ok();
    well &= events.iter().map(stopped).fold(true, |all, stopped| all & stopped);
    mock.deliver_sample();
    let ended = session.shut_down().is_ok();
    left.set(u32::MAX);
    mock.inject(Fault::None);
    mock.deliver_sample();

    let is_made = made.get();
    let claimed = kernel.claimed.get();
    let sampled = kernel.sampled.iter().map(|of| of.borrow().len() as u32).sum::<u32>();
    if comes == Comes::TwoFaults {
        assert_after_two_faults(&kernel, &what);
        assert!(ended || session.shut_down().is_ok(), "{what}");
        assert!(is_made || well, "{what}");
    } else {
        // Exactly the samples, in order, and no interrupt that is not claimed but another owner's.
        kernel.all_reported(&what);
        assert!(ended, "{what}");
        let unknown = kernel.unknown.get();
        assert!(unknown <= foreign.get(), "{what}: {unknown} unclaimed");
        assert!(kernel.faulted.get() == 0, "{what}");
        if processor.deviations == Deviations::NONE {
            let causes = sampled + kernel.overflows.get();
            // The stops and the end may expect interrupts more.
            let most = causes + 2 * units.len() as u32;
            // A claim stands for at most two interrupts, and one of them may stand for more causes.
            let least = mock.interrupts() - foreign.get();
            assert!((least..=most).contains(&claimed), "{what}: {claimed} of {causes}");
        }
        if comes == Comes::Nothing && !is_late {
            assert!(well && sampled == 3 * units.len() as u32, "{what}");
        }
        if counts && !is_late && processor.deviations == Deviations::NONE {
            let overflows = 2 + u32::from(comes == Comes::Overflow);
            assert!((2..=overflows).contains(&kernel.overflows.get()), "{what}");
        }
    }
    mock.on_access(&|_| ());
    assert!(!is_enabled(&mock), "{what}: ended");
    // The memory can be taken again, and the units sample.
    let mut session = kernel.take(&mock);
    for kind in units {
        let (before, place) = (kernel.sampled[*kind as usize].borrow().len(), *kind as usize);
        let event = kernel.start(&mut session, &processor.event(*kind)).unwrap();
        assert!(kernel.run_of(&mock, *kind, PERIOD), "{what}: again");
        session.disable(event, 0).unwrap();
        mock.deliver_sample();
        let (sampled, reported) = (kernel.sampled[place].borrow(), kernel.reported[place].borrow());
        assert_eq!(reported.last(), sampled.last(), "{what}: again");
        assert_eq!(sampled.len(), before + 1);
    }
    session.shut_down().unwrap();
    assert!(!is_enabled(&mock), "{what}: ended again");
    is_made
}

/// After a register did not answer, a sample may be lost. None is invented, or reported twice.
fn assert_after_two_faults(kernel: &Kernel, what: &str) {
    for (sampled, reported) in kernel.sampled.iter().zip(&kernel.reported) {
        let (sampled, reported) = (sampled.borrow(), reported.borrow());
        let mut left = sampled.iter();
        let in_order = reported.iter().all(|address| left.any(|other| other == address));
        assert!(in_order, "{what}: {reported:X?} of {sampled:X?}");
    }
}

const UNITS: [&[IbsKind]; 3] = [&[IbsKind::Op], &[IbsKind::Fetch], &[IbsKind::Op, IbsKind::Fetch]];

/// Runs a program with each of these before each access in turn.
fn at_each_access(processor: Processor, comes: &[Comes]) {
    for units in UNITS {
        for counts in [false, true] {
            for comes in comes.iter().copied() {
                (1..)
                    .find(|access| !run(Case { processor, units, counts, comes, access: *access }));
            }
        }
    }
}

const EACH: [Comes; 7] = [
    Comes::Nothing,
    Comes::Foreign,
    Comes::Sample,
    Comes::Overflow,
    Comes::Fault,
    Comes::TwoFaults,
    Comes::ForeignAndFault,
];

#[test]
fn whatever_comes_at_any_access_no_sample_is_lost_and_claims_add_up_on_each_processor() {
    for processor in processors() {
        at_each_access(processor, &EACH);
    }
}

#[test]
fn whatever_comes_at_any_access_no_sample_is_lost_beside_each_kind_of_counters() {
    for counters in [AmdConfiguration::LEGACY, AmdConfiguration::CORE_EXTENSION] {
        for name in ["family 10h", "Zen 3", "Zen 6"] {
            at_each_access(Processor { counters, ..named(name) }, &EACH);
        }
    }
}

#[test]
fn whatever_comes_at_any_access_no_sample_is_lost_on_each_platform() {
    let late = Deviations::of(&[Deviation::LateIbs]);
    for deviations in deviations::single().chain([late]) {
        for name in ["Zen 4", "Zen 6"] {
            let processor = Processor { deviations, ..named(name) };
            at_each_access(
                processor,
                &[Comes::Nothing, Comes::Foreign, Comes::Sample, Comes::Fault],
            );
        }
    }
}
