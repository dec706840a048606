//! The smallest kernel that counts: two events, one of which interrupts, without any profile source. It is linked to
//! measure its text, which is their size in a kernel.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;
use core::sync::atomic::Ordering;

use machine::{Apic, Msr, register};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, Events, GenericEvent, service};

static MEMORY: CounterMemory<[CounterSlot; 11]> = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 4]> = EventTable::new();

/// The handler of the performance interrupt. Returns the number of periods that were over.
fn performance_interrupt(unit: &CounterUnit) -> u32 {
    let mut reported = 0;
    let events = Events::new(unit, &EVENTS);
    let serviced = service(&events, &(Msr, Apic), &MEMORY, |_| reported += 1);
    if serviced.is_ok() { reported } else { 0 }
}

/// Counts cycles, and interrupts each 65,536 instructions.
fn count(unit: &CounterUnit) -> Result<bool, CounterError> {
    let events = Events::new(unit, &EVENTS);
    let mut counters = CounterSession::take(events, unit, CounterSet::ALL, (Msr, Apic), &MEMORY)?;
    let cycles = counters.open(unit, &[Event::generic(GenericEvent::Cycles)])?;
    let sampled =
        Event::generic(GenericEvent::Instructions).every(0x1_0000).on(CounterSet::GENERAL);
    let sampled = counters.open(unit, &[sampled])?;
    counters.enable_if_free(cycles, 0)?;
    counters.enable_if_free(sampled, 0)?;
    // IA32_PERF_GLOBAL_STATUS: the first counter has overflowed.
    if let Some(register) = register(0x38E) {
        register.store(1, Ordering::Relaxed);
    }
    let reported = performance_interrupt(black_box(unit));
    let counted = counters.read(cycles, 10)?;
    counters.disable(sampled, 10)?;
    counters.shut_down()?;
    Ok(counted.running == 10 && reported == 1)
}

fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let own = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            // The registers of three general and three fixed counters fall into places of their own.
            0x0A => (0x0730_0304, 0, 0, 0x603),
            _ => (own.eax, own.ebx, own.ecx, own.edx),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    let unit = pmu_intel::counters(&snapshot());
    count(black_box(&unit)).map_or(2, |counts| if counts { 0 } else { 3 })
}
