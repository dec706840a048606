//! Samples with the last branches, and branches without a sample.

use pmu::{BranchFilter, Event, GenericEvent, PmuError, PmuEvent, PmuSample};
use pmu_virt::Privilege;
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::{MyKernel, PMU, handle, log_in_nmi, printed, println};
use crate::world::{Happens, Machine, machine, sampling};

// ANCHOR: event
/// Samples every 10,007th miss of the last-level cache, with the branches before it, on this processor.
fn start() -> Result<PmuEvent, PmuError> {
    let misses = Event::generic(GenericEvent::CacheMisses).every(10_007);
    PMU.start(&misses.with_branches(BranchFilter::KERNEL))
}

/// Is called by the kernel's `sampled`.
fn sampled(sample: &PmuSample<'_, MyKernel>) {
    for branch in sample.branches() {
        log_in_nmi!("{:#x} -> {:#x}", branch.from, branch.to); // the newest first
    }
}
// ANCHOR_END: event

// ANCHOR: moment
fn last_branches(workload: fn()) -> Result<(), PmuError> {
    PMU.record_branches(BranchFilter::KERNEL, |recorder| {
        workload();
        for branch in recorder.read()?.iter() {
            println!("{:#x} -> {:#x}", branch.from, branch.to);
        }
        Ok(())
    })?
}
// ANCHOR_END: moment

fn with_records() -> &'static Machine {
    let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    let (machine, _) = Machine::with_branches(configuration, BranchConfiguration::ARCHITECTURAL);
    handle(machine, |frame| PMU.interrupt(frame));
    machine.up();
    machine
}

fn jump(from: u64) {
    let branch = FedBranch::new(from, 0x9000, FedBranchKind::RelativeJump, Privilege::Kernel);
    machine().mocks[0].branch(&branch);
}

#[test]
fn a_sample_has_the_branches_before_it() {
    let machine = with_records();
    let event = start().unwrap();
    jump(0x1000);
    jump(0x2000);
    machine.happen(0, Happens::LastCacheMisses, 10_006);
    assert_eq!(printed(), [""; 0]);
    sampling(sampled, || machine.happen(0, Happens::LastCacheMisses, 1));
    assert_eq!(printed(), ["0x2000 -> 0x9000", "0x1000 -> 0x9000"]);
    PMU.close(event).unwrap();
    machine.down();
}

#[test]
fn the_branches_before_a_moment_need_no_event() {
    let machine = with_records();
    last_branches(|| jump(0x3000)).unwrap();
    assert_eq!(printed(), ["0x3000 -> 0x9000"]);
    machine.down();
}
