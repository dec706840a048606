//! The smallest kernel that samples branches: one event, whose samples have the branches before them. It is linked to
//! measure its text, beside that of `counters.rs`, and to show that nothing of it can panic. Its exit status is not 0
//! where the interrupt takes more stack than its limit.
#![no_std]
#![no_main]

mod bare;
mod machine;
mod stack;

use core::hint::black_box;
use core::sync::atomic::Ordering;

use machine::{Apic, Msr, register};
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit, Branches};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, Events, GenericEvent, service};

/// Bytes of stack that the interrupt may take, the handler included, which decodes the records.
const STACK_LIMIT: usize = 872;

static MEMORY: CounterMemory<[CounterSlot; 11]> = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 4]> = EventTable::new();
static RECORDS: BranchMemory<[BranchSlot; 32]> = BranchMemory::new();

type WithBranches<'a> = Events<'a, CounterUnit, Branches<'a>>;

fn events<'a>(unit: &'a CounterUnit, branches: &'a BranchUnit) -> WithBranches<'a> {
    Events::new(unit, &EVENTS).with(Branches::new(branches, &RECORDS))
}

/// The handler of the performance interrupt. Returns the number of periods that were over, with branches.
fn performance_interrupt(unit: &CounterUnit, branches: &BranchUnit) -> u32 {
    let mut reported = 0;
    let events = events(unit, branches);
    let serviced = service(&events, &(Msr, Apic), &MEMORY, |sample| {
        reported += u32::from(sample.branch_records().is_some());
        sample.branches().for_each(|branch| _ = black_box((branch.from, branch.to)));
    });
    if serviced.is_ok() { reported } else { 0 }
}

/// Interrupts each 65,536 instructions.
fn sample(unit: &CounterUnit, branches: &BranchUnit) -> Result<bool, CounterError> {
    let events = events(unit, branches);
    let mut counters = CounterSession::take(events, unit, CounterSet::ALL, (Msr, Apic), &MEMORY)?;
    let sampled =
        Event::generic(GenericEvent::Instructions).every(0x1_0000).on(CounterSet::GENERAL);
    let sampled = counters.open(unit, &[sampled.with_branches(BranchFilter::USER)])?;
    counters.enable_if_free(sampled, 0)?;
    // IA32_PERF_GLOBAL_STATUS: the first counter has overflowed.
    if let Some(register) = register(0x38E) {
        register.store(1, Ordering::Relaxed);
    }
    // The newest records are not empty.
    for first in [0x1200, 0x1500, 0x1600] {
        (first..first + 8).filter_map(register).for_each(|at| at.store(0x1000, Ordering::Relaxed));
    }
    let mut reported = 0;
    let deepest = stack::depth_of(&mut || {
        reported = performance_interrupt(black_box(unit), black_box(branches));
    });
    counters.disable(sampled, 10)?;
    counters.shut_down()?;
    Ok(reported == 1 && deepest <= STACK_LIMIT)
}

fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let own = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x1C, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            // The registers of three general and three fixed counters fall into places of their own.
            0x0A => (0x0730_0304, 0, 0, 0x603),
            7 => (0, 0, 0, 1 << 19),
            0x1C => (0x8, 7, 7, 0),
            _ => (own.eax, own.ebx, own.ecx, own.edx),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    let this = snapshot();
    let Ok(branches) = pmu_intel::branches(&this, &Msr) else { return 1 };
    let unit = pmu_intel::counters(&this);
    sample(black_box(&unit), black_box(&branches)).map_or(2, |reports| if reports { 0 } else { 3 })
}
