//! The README's `count`: events alone, on a machine of any vendor. It is linked to show that no table of sources is.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;

use machine::{Apic, Msr};
use pmu::Machine;
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, Event, EventSource, Events, GenericEvent, service};

static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 8]> = EventTable::new();

fn count(machine: &Machine, this: &Snapshot) -> Result<u64, CounterError> {
    let (events, unit) = (Events::new(machine.unit(), &EVENTS), machine.unit_of(this));
    let mut counters =
        CounterSession::take(events, &unit, CounterSet::ALL, (Msr, Apic), &COUNTERS)?;
    let event = Event::generic(GenericEvent::Instructions);
    let instructions = counters.start(&unit, &[event], 0)?;
    let serviced = service(&events, &(Msr, Apic), &COUNTERS, |overflow| _ = black_box(overflow));
    let _ = black_box(serviced);
    let count = counters.read(instructions, 0)?;
    counters.shut_down()?;
    Ok(count.value)
}

extern "C" fn main() -> i32 {
    // Whatever processor this is: the registers are memory.
    let this = Snapshot::capture(|leaf: u32, subleaf: u32| {
        let own = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        let (eax, ebx, ecx, edx) = (own.eax, own.ebx, own.ecx, own.edx);
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    });
    let machine = black_box(Machine::detect(&this));
    let _ = black_box(count(&machine, &this));
    0
}
