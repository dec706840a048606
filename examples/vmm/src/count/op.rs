//! Ops and fetches of the guest, for its instruction-based sampling: one of each per instruction.

use pmu_virt::ibs::{FedFetch, FedOp, VirtualIbs};

use crate::count::branch::is_return;
use crate::count::retired::Retired;
use crate::guest::Guest;

/// IBS_OP_DATA: one cycle from tag to retirement; a return, a taken branch, a branch. APM vol. 2, "IBS Op Data".
const ONE_CYCLE: u64 = 1 << 16;
const RETURN: u64 = 1 << 34;
const TAKEN: u64 = 1 << 35;
const BRANCH: u64 = 1 << 37;
/// IBS_OP_DATA3: load, store, locked, the linear and the physical address are valid; and the place of the width, whose
/// code is one more than the power of two.
const LOAD: u64 = 1 << 0;
const STORE: u64 = 1 << 1;
const LOCKED: u64 = 1 << 15;
const LINEAR_VALID: u64 = 1 << 17;
const PHYSICAL_VALID: u64 = 1 << 18;
const WIDTH: u32 = 22;
/// IBS_FETCH_CTL: the fetch is complete, and its physical address is valid.
const COMPLETE: u64 = 1 << 50;
const FETCH_PHYSICAL_VALID: u64 = 1 << 52;

/// Executes an instruction, of one cycle.
pub(crate) fn execute(sampling: &mut VirtualIbs, retired: &Retired, guest: Guest<'_>) {
    let next = sampling.next_sample();
    let rip = retired.instruction.ip();
    // Only a sampled op's registers are seen.
    let is_sampled = [next.ops, next.cycles].contains(&Some(1));
    let physical = |linear| guest.physical(linear);
    sampling.execute(&if is_sampled { op(retired, physical) } else { FedOp::new(rip) });
    sampling.fetch(&if next.fetches == Some(1) {
        fetch(rip, physical)
    } else {
        FedFetch::new(rip)
    });
}

/// Returns the op of an instruction. Nothing tells the monitor of caches, TLBs and mispredictions.
fn op(retired: &Retired, physical: impl Fn(u64) -> Option<u64>) -> FedOp {
    let instruction = &retired.instruction;
    let mut op = FedOp { data: ONE_CYCLE, ..FedOp::new(instruction.ip()) };
    if retired.is_branch() {
        op.data |= BRANCH;
        op.data |= if is_return(instruction) { RETURN } else { 0 };
        if retired.taken {
            (op.data, op.target) = (op.data | TAKEN, retired.to);
        }
    }
    if let Some(access) = retired.access() {
        op.linear_address = access.linear;
        op.data3 |= LINEAR_VALID;
        for (is, bit) in [(access.load, LOAD), (access.store, STORE), (access.locked, LOCKED)] {
            op.data3 |= if is { bit } else { 0 };
        }
        if let Some(power @ 0..=6) = access.bytes.checked_ilog2()
            && access.bytes.is_power_of_two()
        {
            op.data3 |= u64::from(power + 1) << WIDTH;
        }
        if let Some(physical) = physical(access.linear) {
            (op.data3, op.physical_address) = (op.data3 | PHYSICAL_VALID, physical);
        }
    }
    op
}

/// Returns the fetch of an instruction.
fn fetch(rip: u64, physical: impl Fn(u64) -> Option<u64>) -> FedFetch {
    let fetch = FedFetch { control: COMPLETE, ..FedFetch::new(rip) };
    match physical(rip) {
        Some(physical_address) => {
            FedFetch { control: fetch.control | FETCH_PHYSICAL_VALID, physical_address, ..fetch }
        }
        None => fetch,
    }
}
