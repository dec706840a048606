//! The smallest kernel with precise events: samples every 10,007th branch, in each of PEBS' formats. It is linked to
//! measure its text, to show that nothing of the facility can panic, and that the names of its functions, which no
//! other program of this package may have, are those that `.ci/run embedding` looks for.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;
use core::sync::atomic::AtomicU64;

use machine::{Apic, Msr};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::precise::Precision;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, Events, GenericEvent, service};
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};

static MEMORY: CounterMemory<[CounterSlot; 8]> = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 4]> = EventTable::new();
static RECORDS: PreciseMemory<[AtomicU64; 512]> = PreciseMemory::new();

/// Starts, serves and stops a precise event.
fn sample(unit: &CounterUnit, precise: &PreciseUnit) -> Result<(), CounterError> {
    // SAFETY: the registers are memory, and no processor writes records.
    let pebs = unsafe { Pebs::new(precise, &RECORDS, None) }.ok();
    let source = Events::new(unit, &EVENTS).with(pebs);
    let taken = CounterSession::take(source, unit, CounterSet::GENERAL, (Msr, Apic), &MEMORY);
    let mut counters = taken?;
    let branches = Event::generic(GenericEvent::Branches).every(10_007);
    let branches = branches.precise(Precision::ZeroSkidRequested);
    let event = counters.open(unit, &[*black_box(&branches)])?;
    counters.enable_if_free(event, 0)?;
    let _ = black_box(service(&source, &(Msr, Apic), &MEMORY, |sample| {
        black_box((sample.tag, sample.address(0)));
    }));
    counters.report_samples(|sample| _ = black_box(sample.tag))?;
    counters.disable(event, 1)?;
    counters.close(event, 1)?;
    counters.shut_down()
}

/// Skylake (SDM vol. 2A, CPUID leaves 1 and 0x0A): a Debug Store with 64-bit words, and IA32_PERF_CAPABILITIES.
fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let own = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        let (eax, ebx, ecx, edx) = match (leaf, subleaf) {
            (0, _) => (0x16, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            (1, _) => (0x0005_06E3, 0, 1 << 15 | 1 << 2, 1 << 21),
            (7, _) => (0, 0, 0, 0),
            (0x0A, _) => (0x0730_0804, 0, 0, 0x603),
            _ => (own.eax, own.ebx, own.ecx, own.edx),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    let this = snapshot();
    let unit = pmu_intel::counters(&this);
    // The registers are memory, in which some have one place: what is detected is not asked.
    if let Ok(precise) = black_box(PreciseUnit::detect(&this, &Msr)) {
        let _ = black_box(sample(black_box(&unit), black_box(&precise)));
    }
    0
}
