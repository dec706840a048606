//! Branch records beside a `Pmu`: in the samples of its profiles and of the kernel's events, and without a sample.

use core::panic::AssertUnwindSafe;
use pmu_tests::Reason;
use std::panic::catch_unwind;

use pmu::PmuError;
use pmu::core::branch_recording::BranchError;
use pmu::core::branches::BranchFilter;
use pmu::core::error::{CounterError, NoFacility};
use pmu::core::frame::InterruptFrame;
use pmu::core::profile::KProfileSource;
use pmu::core::{Event, GenericEvent};
use pmu::processors::Busy;
use pmu_virt::Privilege;
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};

use super::world::{Happens, Machine, PROCESSORS};

fn kinds() -> [(Configuration, BranchConfiguration); 3] {
    let intel = |version| Configuration::Intel(IntelConfiguration::new(version, 4, 3));
    [
        (intel(5), BranchConfiguration::ARCHITECTURAL),
        (intel(4), BranchConfiguration::Legacy { format: 5 }),
        (Configuration::Amd(AmdConfiguration::perf_mon_v2(6)), BranchConfiguration::AMD),
    ]
}

/// A branch at ring 0, told by its address.
fn branch(from: u64) -> FedBranch {
    FedBranch::new(from, 0x9000, FedBranchKind::RelativeJump, Privilege::Kernel)
}

#[test]
fn samples_of_a_profile_and_of_an_event_have_the_branches_before_them() {
    for (configuration, records) in kinds() {
        let (machine, pmu) = Machine::with_branches(configuration, records);
        machine.up();
        let profiled = Event::generic(GenericEvent::Instructions).every(5_000);
        let profiled = profiled.with_branches(BranchFilter::KERNEL);
        let own = Event::generic(GenericEvent::Cycles).every(5_000);
        let own = own.with_branches(BranchFilter::KERNEL);
        let source = pmu.source(profiled).unwrap();
        let callback = |_: &dyn InterruptFrame, _: KProfileSource| ();
        let recorded = pmu.record_branches(BranchFilter::KERNEL, |of| {
            of.freeze_on_interrupt().unwrap();
            of.start(BranchFilter::KERNEL).unwrap();
            pmu.sample(profiled, &callback, || {
                let id = pmu
                    .with(|session, unit| {
                        let counters = session.counters_mut();
                        let id = counters.open(unit, &[own])?;
                        counters.enable(id, 0).map(|()| id)
                    })
                    .unwrap()
                    .unwrap();
                for from in [0x1000, 0x2000] {
                    machine.mocks[0].branch(&branch(from));
                }
                machine.happen(0, Happens::Instructions, 5_000);
                machine.mocks[0].branch(&branch(0x3000));
                machine.happen(0, Happens::Cycles, 5_000);
                // Another processor records for its own sample.
                machine.mocks[1].branch(&branch(0x4000));
                machine.happen(1, Happens::Instructions, 5_000);
                pmu.with(|session, _| session.counters_mut().close(id, 0)).unwrap().unwrap();
            })
            .unwrap();
            of.read().unwrap().iter().map(|branch| branch.from).collect::<Vec<_>>()
        });
        assert_eq!(recorded.unwrap(), [0x3000, 0x2000, 0x1000]);
        let samples = machine.sampled.take();
        let found: Vec<_> = samples.iter().map(|(on, _, branches)| (*on, &branches[..])).collect();
        let expected: [(usize, &[u64]); 3] =
            [(0, &[0x2000, 0x1000]), (0, &[0x3000, 0x2000, 0x1000]), (1, &[0x4000])];
        assert_eq!(found, expected, "{configuration:?}");
        let sources = samples.iter().map(|(_, source, _)| *source);
        assert!(sources.eq([Some(source), None, Some(source)]), "{configuration:?}");
        machine.down();
        assert!(!machine.mocks[0].with_branch_records(|left| left.is_recording()).unwrap());
        assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
    }
}

#[test]
fn a_processors_branch_records_are_taken_once_and_given_back() {
    let [(configuration, records), ..] = kinds();
    let (machine, pmu) = Machine::with_branches(configuration, records);
    machine.up();
    let recording = || machine.mocks[0].with_branch_records(|left| left.is_recording()).unwrap();
    let mut recorder = pmu.branch_recorder().unwrap();
    let taken = PmuError::Branches(BranchError::MemoryInUse);
    assert_eq!(pmu.branch_recorder().map(|_| ()), Err(taken));
    assert_eq!(pmu.record_branches(BranchFilter::ALL, |_| ()), Err(taken));
    recorder.start(BranchFilter::ALL).unwrap();
    recorder.shut_down().unwrap();
    // Another processor has its own.
    machine.on(1, || pmu.branch_recorder().unwrap().shut_down().unwrap());
    // It is given back where the function unwinds, ends the recording itself, and where the recording cannot start.
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        pmu.record_branches(BranchFilter::ALL, |_| {
            assert!(recording());
            panic!("the work unwinds");
        })
    }));
    assert!(unwound.is_err() && !recording());
    pmu.record_branches(BranchFilter::ALL, |of| of.shut_down()).unwrap().unwrap();
    let nothing = BranchFilter::ALL.only(pmu::core::branches::BranchKinds::NONE);
    let refused = PmuError::Branches(BranchError::FilterUnsupported(nothing));
    assert_eq!(pmu.record_branches(nothing, |_| ()), Err(refused));
    assert_eq!(pmu.record_branches(BranchFilter::ALL, |_| recording()), Ok(true));
    assert!(!recording());
    let nowhere = PmuError::Session(Busy::NoSlot { processor: PROCESSORS });
    assert_eq!(machine.on(PROCESSORS, || pmu.branch_recorder().map(|_| ())), Err(nowhere));
}

#[test]
fn a_processor_without_branch_records_says_so_and_is_sampled_all_the_same() {
    let [(configuration, _), ..] = kinds();
    let (machine, pmu) = Machine::new(configuration);
    let reason = BranchError::NoRecords(NoFacility::NotDeclared);
    for is_up in [false, true] {
        if is_up {
            machine.up();
        }
        let none = pmu.branch_recorder().map(|_| ());
        assert_eq!(none, Err(PmuError::Branches(reason)));
    }
    assert_eq!(PmuError::Branches(reason).to_string(), reason.to_string());
    // An event that asks for branches is refused, and one that does not is sampled all the same.
    let event = Event::generic(GenericEvent::Cycles).every(5_000);
    let open = |event: Event| {
        pmu.with(|session, unit| session.counters_mut().open(unit, &[event])).unwrap()
    };
    let refused = open(event.with_branches(BranchFilter::ALL));
    assert_eq!(refused.reason(), Err(CounterError::BranchesUnsupported));
    let id = open(event).unwrap();
    pmu.with(|session, _| session.counters_mut().enable(id, 0)).unwrap().unwrap();
    machine.happen(0, Happens::Cycles, 5_000);
    assert_eq!(machine.overflows.borrow().len(), 1);
    machine.down();
}

/// Only Zen 3's sampling is stopped, of which `tests/branches/sampling.rs` has the cases.
#[test]
fn an_idle_processor_that_freezes_its_records_goes_on_recording() {
    for (configuration, records) in kinds() {
        let (machine, pmu) = Machine::with_branches(configuration, records);
        machine.up();
        let event = Event::generic(GenericEvent::Cycles).every(5_000);
        let event = event.with_branches(BranchFilter::KERNEL);
        let started = pmu.with(|session, unit| {
            let counters = session.counters_mut();
            let id = counters.open(unit, &[event])?;
            counters.enable(id, 0)
        });
        started.unwrap().unwrap();
        let before = machine.mocks[0].accesses();
        pmu.before_idle().unwrap();
        pmu.after_idle().unwrap();
        assert_eq!(machine.mocks[0].accesses(), before, "{configuration:?}");
        let records = machine.mocks[0].with_branch_records(|records| records.is_recording());
        assert_eq!(records, Some(true));
    }
}
