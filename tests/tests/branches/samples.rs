//! Samples of the counters' interrupt, with the branches before it.

use super::support::*;
use core::cell::{Cell, RefCell};
use pmu_core::branch_recording::BranchRecorder;
use pmu_core::branches::{Branch, BranchFilter, Branches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{Claim, CounterSession, CounterSet, Events, service};
use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::Deviation;

/// A sample: its branches, and whether the records were frozen.
type Sample = (Vec<Branch>, bool);

/// Samples a program that takes 40 branches before the overflow, with a handler that takes branches itself, `rounds`
/// times. `frozen`: the counters freeze, too.
fn sample(
    processor: &Processor,
    counters_freeze: bool,
    freezing: bool,
    rounds: u64,
) -> Vec<Sample> {
    let (unit, counter_unit, mock) = (processor.unit(), processor.counters(), processor.mock());
    let records = Records::new();
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 4]>::new();
    let source =
        Events::new(&counter_unit, &table as &EventTable).with(Branches::new(&unit, &records));
    let mut counters =
        CounterSession::take(source, &counter_unit, CounterSet::ALL, &mock, &memory).unwrap();
    if counters_freeze {
        counters.freeze_on_interrupt().unwrap();
    }
    let event = counters.open(&counter_unit, &[raw(3).every(100_000)]).unwrap();
    let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
    if freezing {
        recorder.freeze_on_interrupt().unwrap();
    }
    recorder.start(BranchFilter::ALL).unwrap();
    counters.enable(event, 0).unwrap();
    let (samples, claims) = (RefCell::new(vec![]), Cell::new(0));
    let serving = Cell::new(false);
    let handler = |mock: &Mock<'_>| {
        serving.set(true);
        // The way to the service.
        mock.branch(&kernel(1));
        mock.branch(&kernel(2));
        let serviced = service(&source, mock, &memory, |sample| {
            let branches = sample.facility().unwrap();
            assert_eq!(sample.event, event);
            mock.branch(&kernel(3));
            samples.borrow_mut().push((branches.iter().collect(), branches.is_frozen()));
        });
        let serviced = serviced.unwrap();
        serving.set(false);
        assert_eq!(serviced.others, 0, "{}", processor.name);
        claims.set(claims.get() + serviced.claim.interrupts());
        assert_ne!(serviced.claim, Claim::NotOurs);
    };
    mock.on_interrupt(&handler);
    // The handler takes a branch before each of its accesses.
    let before_access = |mock: &Mock<'_>| {
        if serving.get() {
            mock.branch(&kernel(4));
        }
    };
    mock.on_access(&before_access);
    for round in 0..rounds {
        for number in 0..40 {
            mock.branch(&user(100 * round + number));
        }
        mock.advance(&mut happened(3, 100_000));
    }
    assert!(u64::from(claims.get()) >= rounds);
    recorder.shut_down().unwrap();
    counters.shut_down().unwrap();
    no_breach(&mock, processor.name);
    samples.into_inner()
}

/// Returns the last branches of the program in a round, as many as there is room for beside `handlers`.
fn program(processor: &Processor, round: u64, handlers: usize) -> Vec<Branch> {
    let depth = usize::from(processor.unit().depth());
    let last = (0..40).rev().map(|number| processor.told(&user(100 * round + number)));
    last.take(depth - handlers).collect()
}

/// Returns the number of the newest branches that are the handler's.
fn of_the_handler(branches: &[Branch]) -> usize {
    branches.iter().take_while(|branch| branch.to >> 63 != 0).count()
}

#[test]
fn a_frozen_sample_has_exactly_the_last_branches_of_the_program() {
    for processor in processors() {
        if !processor.unit().can_freeze() {
            continue;
        }
        for counters_freeze in [false, !processor.is_amd()] {
            let samples = sample(&processor, counters_freeze, true, 3);
            assert_eq!(samples.len(), 3, "{}", processor.name);
            for (round, (branches, is_frozen)) in samples.into_iter().enumerate() {
                let expected = program(&processor, round as u64, 0);
                assert_eq!(branches, expected, "{}, {counters_freeze}", processor.name);
                assert!(is_frozen, "{}", processor.name);
            }
        }
    }
}

#[test]
fn without_freezing_the_newest_branches_are_the_handlers_and_the_sample_says_so() {
    for processor in processors() {
        for counters_freeze in [false, !processor.is_amd()] {
            for (round, (branches, is_frozen)) in
                sample(&processor, counters_freeze, false, 3).into_iter().enumerate()
            {
                assert!(!is_frozen);
                // Of the way to the service, and of the access that stops the recording: one, or a read and a write.
                let own = of_the_handler(&branches);
                assert!((3..=4).contains(&own), "{}: {own}", processor.name);
                let expected = program(&processor, round as u64, own);
                assert_eq!(branches[own..], expected, "{}", processor.name);
            }
        }
    }
}

#[test]
fn a_processor_that_never_freezes_is_told_from_one_that_does() {
    for processor in processors() {
        if !processor.unit().can_freeze() {
            continue;
        }
        let processor = processor.deviating(&[Deviation::NeverFreezesBranches]);
        for (round, (branches, is_frozen)) in
            sample(&processor, false, true, 2).into_iter().enumerate()
        {
            assert!(!is_frozen, "{}", processor.name);
            let own = of_the_handler(&branches);
            assert!((3..8).contains(&own), "{}: {own}", processor.name);
            let expected = program(&processor, round as u64, own);
            assert_eq!(branches[own..], expected, "{}", processor.name);
        }
    }
}

#[test]
fn a_recorder_that_does_not_record_costs_the_interrupt_no_access() {
    for processor in processors() {
        let (unit, counter_unit, mock) = (processor.unit(), processor.counters(), processor.mock());
        let records = Records::new();
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let table = EventTable::<[EventEntry; 4]>::new();
        let source =
            Events::new(&counter_unit, &table as &EventTable).with(Branches::new(&unit, &records));
        let mut counters =
            CounterSession::take(source, &counter_unit, CounterSet::ALL, &mock, &memory).unwrap();
        let event = counters.open(&counter_unit, &[raw(3).every(100_000)]).unwrap();
        counters.enable(event, 0).unwrap();
        let costs = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let before = mock.accesses();
            let serviced = service(&source, mock, &memory, |sample| {
                let branches = sample.facility();
                assert!(branches.is_none_or(|of| of.iter().count() == 0 && of.raw().count() == 0));
            });
            assert_eq!(serviced.unwrap().overflows, 1);
            let after = mock.accesses();
            costs.borrow_mut().push((after.reads - before.reads, after.writes - before.writes));
        };
        mock.on_interrupt(&handler);
        // Untaken; taken; stopped.
        mock.advance(&mut happened(3, 100_000));
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        mock.advance(&mut happened(3, 100_000));
        recorder.start(BranchFilter::ALL).unwrap();
        mock.branch(&user(1));
        recorder.stop().unwrap();
        mock.advance(&mut happened(3, 100_000));
        assert_eq!(recorder.read().unwrap().iter().count(), 1);
        mock.advance(&mut happened(3, 100_000));
        let costs = costs.borrow();
        assert!(costs.len() == 4 && costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
    }
}
