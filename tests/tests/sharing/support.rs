//! An Intel driver on plain registers, beside other owners.

use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::KProfileSource;
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::x86::Snapshot;
use pmu_intel::Emon;
use pmu_tests::intel_processor;

pub(crate) type Memory = CounterMemory<[CounterSlot; MAX_COUNTERS]>;
pub(crate) const CYCLES: KProfileSource = KProfileSource::TOTAL_CYCLES;
pub(crate) const BRANCHES: KProfileSource = KProfileSource::BRANCH_INSTRUCTIONS;
pub(crate) const GLOBAL_STATUS: u32 = 0x38E;
pub(crate) const GLOBAL_CTRL: u32 = 0x38F;
pub(crate) const STATUS_RESET: u32 = 0x390;
pub(crate) const DEBUGCTL: u32 = 0x1D9;

pub(crate) fn emon(version: u32, counters: u32) -> (Emon, Snapshot) {
    let processor = intel_processor(version, counters);
    (Emon::detect(&processor).unwrap(), processor)
}
