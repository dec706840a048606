//! The smallest kernel whose events ask for something beside a counter: a group in which one event reloads another. It
//! is linked to show that nothing of a facility can panic, and that the names of a facility's functions, which no other
//! program of this package may have, are those that `.ci/run embedding` looks for.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;

use machine::{Apic, Msr};
use pmu_core::error::EventsError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::reload::{AutoCounterReload, CounterReload, ReloadMemory};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, Events, GenericEvent, service};

static MEMORY: CounterMemory<[CounterSlot; 8]> = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 4]> = EventTable::new();
static RELOADS: ReloadMemory = ReloadMemory::new();

/// Starts, serves and stops a group whose first event is reloaded by the second.
fn reload(unit: &CounterUnit, reload: &CounterReload) -> Result<(), EventsError> {
    let source = Events::new(unit, &EVENTS).with(AutoCounterReload::new(reload, &RELOADS));
    let taken = CounterSession::take(source, unit, CounterSet::GENERAL, (Msr, Apic), &MEMORY);
    let mut counters = taken.map_err(|reason| EventsError { events: 0, reason })?;
    let misses = Event::generic(GenericEvent::BranchMisses).every(5_000).reloaded_by(0b10);
    let branches = Event::generic(GenericEvent::Branches).every(100_000).reloaded_by(0b10);
    let group = counters.open(unit, black_box(&[misses, branches]))?;
    counters.enable(group, 0)?;
    let _ = black_box(service(&source, &(Msr, Apic), &MEMORY, |sample| {
        black_box(sample.tag);
    }));
    counters.disable(group, 1)?;
    counters.close(group, 1)?;
    counters.shut_down().map_err(|reason| EventsError { events: 0, reason })
}

/// A processor of version 6 (SDM vol. 2A, CPUID leaves 0x0A and 0x23).
fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let own = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        let (eax, ebx, ecx, edx) = match (leaf, subleaf) {
            (0, _) => (0x23, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            (7, 0) => (1, 0, 0, 0),
            (7, 1) => (1 << 8, 0, 0, 0),
            (0x0A, _) => (0x0730_0406, 0, 0, 0x603),
            (0x23, 0) => (0b1111, 0, 0, 0),
            (0x23, 1 | 2) => (0xF, 0, 0xF, 0),
            _ => (own.eax, own.ebx, own.ecx, own.edx),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    let this = snapshot();
    let Some(registers) = pmu_intel::counter_reload(&this) else { return 1 };
    let unit = pmu_intel::counters(&this);
    // The registers are memory, in which some have one place: what is counted is not asked.
    let _ = black_box(reload(black_box(&unit), black_box(&registers)));
    0
}
