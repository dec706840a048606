//! Samples with, without and together with counters: an interrupt and a fault at each access, on each kind of counters
//! and on each platform.

use core::cell::Cell;

use pmu_amd::ibs::{IbsError, IbsKind, IbsSampler};
use pmu_tests::deviations;
use pmu_tests::opened::{happened, raw};
use pmu_virt::AmdConfiguration;
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
    let kernels: Vec<_> =
        units.iter().map(|kind| Kernel::new(processor.unit(*kind), &mock)).collect();
    let first = &kernels[0];
    let handler = |mock: &Mock<'_>| match &kernels[..] {
        [first] => first.handle(mock),
        [first, second, ..] => Kernel::handle_both(first, second, mock),
        [] => unreachable!(),
    };
    mock.on_interrupt(&handler);
    let (left, foreign, made) = (Cell::new(u32::MAX), Cell::new(0), Cell::new(false));
    let before = |mock: &Mock<'_>| {
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
                    Comes::Sample => kernels.iter().for_each(|kernel| {
                        kernel.run(mock, 2 * PERIOD);
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

    let mut counters = counts.then(|| {
        let mut counters = first.take_counters(&mock);
        let event = counters.open_event(&first.counters, &raw(EVENT).every(EVENTS)).unwrap();
        counters.start_event(event, 0).unwrap();
        counters
    });
    let mut samplers: Vec<_> = kernels
        .iter()
        .map(|kernel| IbsSampler::take(kernel.unit, &mock, &mock, &kernel.memory).unwrap())
        .collect();
    let start = |samplers: &mut Vec<IbsSampler<'_, &Mock<'_>>>| {
        let started =
            samplers.iter_mut().map(|ops| ops.start(&processor.request(ops.unit().kind())));
        started.fold(true, |all, started| all & started.is_ok())
    };
    assert!(start(&mut samplers), "{what}");
    left.set(access + 1);
    let sample = || kernels.iter().all(|kernel| kernel.run(&mock, PERIOD));
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
    well &= samplers.iter_mut().fold(true, |all, ops| all & ops.stop().is_ok());
    well &= start(&mut samplers);
    well &= sample();
    let ended = samplers.iter_mut().fold(true, |all, ops| all & ops.shut_down().is_ok());
    left.set(u32::MAX);
    mock.inject(Fault::None);
    mock.deliver_sample();

    let is_made = made.get();
    let claimed: u32 = first.claimed.get();
    let sampled: u32 = kernels.iter().map(|kernel| kernel.sampled.borrow().len() as u32).sum();
    if comes == Comes::TwoFaults {
        assert_after_two_faults(&kernels, &what);
        if !ended {
            let ended = |ops: &mut IbsSampler<'_, _>| {
                matches!(ops.shut_down(), Ok(()) | Err(IbsError::ShutDown))
            };
            assert!(samplers.iter_mut().all(ended), "{what}");
        }
        assert!(is_made || well, "{what}");
    } else {
        // Exactly the samples, in order, and no interrupt that is not claimed but another owner's.
        kernels.iter().for_each(|kernel| kernel.all_reported(&what));
        assert!(ended, "{what}");
        let unknown = first.unknown.get();
        assert!(unknown <= foreign.get(), "{what}: {unknown} unclaimed");
        assert!(first.faulted.get() == 0, "{what}");
        let late = processor.deviations.contains(Deviation::LateIbs);
        if processor.deviations == Deviations::NONE {
            let causes = sampled + first.overflows.get();
            // Two stops, each of which expects one interrupt more.
            let most = causes + 2 * kernels.len() as u32;
            // A claim stands for at most two: for fewer than both units' samples and an overflow.
            let least = causes - u32::from(kernels.len() == 2 && counts);
            assert!((least..=most).contains(&claimed), "{what}: {claimed} of {causes}");
        }
        if comes == Comes::Nothing && !late {
            assert!(well && sampled == 3 * kernels.len() as u32, "{what}");
        }
        if counts && !late && processor.deviations == Deviations::NONE {
            let overflows = 2 + u32::from(comes == Comes::Overflow);
            assert!((2..=overflows).contains(&first.overflows.get()), "{what}");
        }
    }
    if let Some(counters) = &mut counters {
        counters.shut_down().unwrap();
    }
    mock.on_access(&|_| ());
    // The memory can be taken again, and the units sample.
    for kernel in &kernels {
        let mut ops = IbsSampler::take(kernel.unit, &mock, &mock, &kernel.memory).unwrap();
        ops.start(&processor.request(kernel.unit.kind())).unwrap();
        let before = kernel.sampled.borrow().len();
        assert!(kernel.run(&mock, PERIOD), "{what}: again");
        ops.shut_down().unwrap();
        mock.deliver_sample();
        let sampled = kernel.sampled.borrow();
        assert_eq!(kernel.reported.borrow().last(), sampled.last(), "{what}: again");
        assert_eq!(sampled.len(), before + 1);
    }
    is_made
}

/// After a register did not answer, a sample may be lost. None is invented, or reported twice.
fn assert_after_two_faults(kernels: &[Kernel], what: &str) {
    for kernel in kernels {
        let (sampled, reported) = (kernel.sampled.borrow(), kernel.reported.borrow());
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
