//! The smallest kernel with profiles: Emon and `pmu-kprofile`, an interrupt's handler, and a function that profiles.
//! It is linked to measure its text, which is their size in a kernel.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering};

use machine::{Apic, Frame, Msr, register};
use pmu_core::frame::ProcessorNumber;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource, service};
use pmu_intel::Emon;
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::{BasicProfile, ProfileObject, Profiles, Rules};

static MEMORY: CounterMemory<[CounterSlot; 8]> = CounterMemory::new();
static PROFILES: Profiles<64, 1> = Profiles::new();
static BUFFER: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];

/// The handler of the performance interrupt.
fn performance_interrupt(emon: &Emon, frame: &Frame) {
    let serviced = service(emon, &(Msr, Apic), &MEMORY, |sample| {
        if let Some(overflow) = emon.overflow(&sample) {
            PROFILES.interrupt(frame, overflow.source);
        }
    });
    black_box(serviced.is_ok());
}

/// The handler of the profile timer's interrupt.
fn timer_interrupt(frame: &Frame) {
    PROFILES.timer_interrupt(frame);
}

/// Profiles for as long as `run` runs.
fn profile(emon: &Emon, source: KProfileSource, run: fn(&Emon)) -> Result<(), i32> {
    emon.set_interval(source, 0x10000).map_err(|_| 2)?;
    let mut session = Session::take(emon, &snapshot(), CounterSet::GENERAL, (Msr, Apic), &MEMORY)
        .map_err(|_| 3)?;
    let mut hardware = ThisProcessor::new(&mut session, ProcessorNumber::from_index(0));
    let request = BasicProfile {
        process: None,
        base: 0x1000,
        size: 0x40,
        bucket_log2: 2,
        buffer: &BUFFER,
        source,
        affinity: None,
    };
    let object = ProfileObject::basic(Rules::LATEST, request, &hardware).map_err(|_| 4)?;
    // SAFETY: the object is stopped below, before it goes out of scope; its buffer is static. A failing
    // stop could only be one of the hardware, which stops the object all the same.
    unsafe { PROFILES.start_borrowed(&object, &mut hardware) }.map_err(|_| 5)?;
    run(emon);
    PROFILES.stop(&object, &mut hardware).map_err(|_| 6)?;
    session.shut_down().map_err(|_| 7)
}

/// A workload, and both interrupts.
fn run(emon: &Emon) {
    let frame = Frame { pc: 0x1009, process: None };
    // IA32_PERF_GLOBAL_STATUS: the first counter has overflowed.
    if let Some(register) = register(0x38E) {
        register.store(1, Ordering::Relaxed);
    }
    performance_interrupt(emon, black_box(&frame));
    timer_interrupt(black_box(&frame));
}

/// Captures the processor's CPUID, with a Skylake's leaf 0x0A, so that every machine has it.
fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let own = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0730_0404, 0, 0, 0x603),
            _ => (own.eax, own.ebx, own.ecx, own.edx),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    let Ok(emon) = Emon::detect(&snapshot()) else { return 1 };
    for source in [KProfileSource::BRANCH_INSTRUCTIONS, KProfileSource::TIME] {
        if let Err(what) = profile(&emon, black_box(source), run) {
            return what;
        }
    }
    // Once by each interrupt, in the bucket of 0x1008.
    match BUFFER.get(2) {
        Some(bucket) if bucket.load(Ordering::Relaxed) == 2 => 0,
        _ => 8,
    }
}
