//! The smallest kernel that counts the parts of issue slots: of the processor, of a thread, and in a window. It is
//! linked to show that nothing of it can panic, and that the names of its functions, which no other program of this
//! package may have, are those that `.ci/run embedding` looks for.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;

use machine::{Apic, Msr};
use pmu_core::error::EventsError;
use pmu_core::facility::DivisionMemory;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::reading::sample_read;
use pmu_core::thread::ThreadEvent;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, EventCount, Events, service};
use pmu_intel::topdown::{TopDown, TopDownPart, TopDownUnit};

static MEMORY: CounterMemory<[CounterSlot; 12]> = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 9]> = EventTable::new();
static DIVISION: DivisionMemory = DivisionMemory::new();

/// Counts, serves and switches a group of the slots. Returns the thousandths that retired.
fn count(unit: &TopDownUnit) -> Result<Option<u32>, EventsError> {
    let of_switch = |error: EventsError| EventsError { events: 0, reason: error.reason };
    let source = Events::new(unit.counters(), &EVENTS).with(TopDown::new(unit, &DIVISION));
    let all = CounterSet::ALL;
    let taken = CounterSession::take(source, unit.counters(), all, (Msr, Apic), &MEMORY);
    let mut counters = taken.map_err(EventsError::from)?;
    let events = unit.events(counters.counters().usable).each(|event| event.user_only());
    let group = counters.open(unit.counters(), black_box(&events))?;
    counters.enable(group, 0)?;
    let _ = black_box(service(&source, &(Msr, Apic), &MEMORY, |sample| {
        let reads = sample_read(&source, &Msr, &MEMORY, sample.event, 0);
        reads.into_iter().flatten().for_each(|read| {
            let _ = black_box(read.count);
        });
    }));
    let mut counts = [EventCount::default(); 9];
    counters.read_group(group, 1, &mut counts)?;
    let mut thread = [ThreadEvent::Unused; 9];
    for (place, event) in thread.iter_mut().zip(counters.group_events(group)) {
        *place = ThreadEvent::Opened(event);
    }
    counters.switch_out(&mut thread, 1, |_| ()).map_err(of_switch)?;
    counters.switch_in(unit.counters(), &mut thread, 1).map_err(of_switch)?;
    counters.rotate(2).map_err(EventsError::from)?;
    counters.suspend(3, |_| ()).map_err(EventsError::from)?;
    counters.resume(4, |_| ()).map_err(EventsError::from)?;
    counters.shut_down().map_err(EventsError::from)?;
    Ok(unit.counts(&counts).per_mille(TopDownPart::Retiring))
}

/// A P-core of version 5 (SDM vol. 2A, CPUID leaf 0x0A).
fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let own = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        let (eax, ebx, ecx, edx) = match (leaf, subleaf) {
            (0, _) => (0x1A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            (1, _) => (0x806F0, 0, 1 << 15, own.edx),
            (7, 0) => (0, 0, 0, 0),
            (0x0A, _) => (0x0730_0805, 0, 0b1111, 0x8604),
            _ => (own.eax, own.ebx, own.ecx, own.edx),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    let this = snapshot();
    // The registers are memory, in which the metrics are not declared: nothing is asked of them.
    if let Ok(unit) = TopDownUnit::of(&this, &Msr) {
        let _ = black_box(count(black_box(&unit)));
    }
    0
}
