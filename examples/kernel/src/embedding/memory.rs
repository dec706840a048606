//! Static memory: it lives as long as the kernel, and interrupts find everything here.

use pmu::Machine;
use pmu::core::{
    BranchMemory, BranchSlot, BranchUnit, CounterMemory, CounterSlot, DefaultInterface, EventEntry,
    EventTable, MAX_COUNTERS, NoInterface,
};
use pmu::intel::debug_store::{ControlAreaMemory, ProcessorProfileControl};
use pmu_kprofile::Profiles;
use spin::Once;

use crate::machine::processor::MAX_PROCESSORS;

/// The machine, decided once, from the boot processor.
pub static MACHINE: Once<Machine> = Once::new();
/// The machine in place of one whose counters do not answer, though CPUID declares them: it profiles by time.
pub static TIME_ONLY: Machine =
    Machine::TimeOnly(DefaultInterface::new(), NoInterface::NoPerformanceMonitoring);

/// The started profiles: at most 8.
pub static PROFILES: Profiles<8, MAX_PROCESSORS> = Profiles::new();

/// Each processor's counters.
pub static COUNTERS: [CounterMemory<[CounterSlot; MAX_COUNTERS]>; MAX_PROCESSORS] =
    [const { CounterMemory::new() }; MAX_PROCESSORS];
/// Each processor's events beside the profile sources.
pub static EVENTS: [EventTable<[EventEntry; 8]>; MAX_PROCESSORS] =
    [const { EventTable::new() }; MAX_PROCESSORS];

/// The most branch records that a processor has.
pub const MAX_RECORDS: usize = 32;
/// Each processor's branch records; and what they are, for its interrupt.
pub static BRANCHES: [BranchMemory<[BranchSlot; MAX_RECORDS]>; MAX_PROCESSORS] =
    [const { BranchMemory::new() }; MAX_PROCESSORS];
pub static BRANCH_UNITS: [Once<BranchUnit>; MAX_PROCESSORS] =
    [const { Once::new() }; MAX_PROCESSORS];

/// The boot processor's Debug Store area, whose index stamps context switches.
pub static DEBUG_STORE: ProcessorProfileControl<'_> = ProcessorProfileControl::new(Some(&AREA));
static AREA: ControlAreaMemory = ControlAreaMemory::new();
