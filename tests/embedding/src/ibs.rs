//! The smallest kernel that samples ops and fetches: of the processor, of a thread, and beside a window. It is linked
//! to show that nothing of it can panic, and that the names of its functions, which no other program of this package
//! may have, are those that `.ci/run embedding` looks for.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;

use machine::{Apic, Msr};
use pmu_amd::ibs::{Ibs, IbsMemory, IbsSampling, IbsUnits};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::thread::ThreadEvent;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Events, service};

static MEMORY: CounterMemory<[CounterSlot; 6]> = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 2]> = EventTable::new();
static SAMPLES: IbsMemory = IbsMemory::new();

/// Samples, serves and switches an event of each unit. Returns the ops that were counted.
fn sample(counters: &CounterUnit, units: &IbsUnits) -> Result<u64, CounterError> {
    let source = Events::new(counters, &EVENTS).with(Ibs::new(units, &SAMPLES));
    let mut session =
        CounterSession::take(source, counters, CounterSet::ALL, (Msr, Apic), &MEMORY)?;
    let mut thread = [ThreadEvent::Unused; 2];
    for (place, request) in thread.iter_mut().zip([IbsSampling::ops(), IbsSampling::fetches()]) {
        let event = request.event().every(black_box(100_000)).with_total();
        let event = session.open(counters, &[*black_box(&event)])?;
        session.enable(event, 0)?;
        *place = ThreadEvent::Opened(event);
    }
    let _ = black_box(service(&source, &(Msr, Apic), &MEMORY, |sample| {
        let _ = black_box(sample.instruction());
    }));
    session.switch_out(&mut thread, 1, |_| ()).map_err(|error| error.reason)?;
    session.switch_in(counters, &mut thread, 1).map_err(|error| error.reason)?;
    session.rotate(2)?;
    session.lend(3, |_| ())?.end(4)?;
    session.suspend(5, |_| ())?;
    session.resume(6, |_| ())?;
    let mut counted = 0;
    for place in &thread {
        if let ThreadEvent::Opened(event) = place {
            counted += session.close(*event, 7)?.value;
        }
    }
    session.shut_down()?;
    Ok(counted)
}

/// Zen 4 (APM vol. 3, Fn8000_0001, Fn8000_001B, Fn8000_0022).
fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (1, 0x6874_7541, 0x444D_4163, 0x6974_6E65),
            1 => (0x00A6_0F12, 0, 0, 1 << 5), // MSRs
            0x8000_0000 => (0x8000_0022, 0, 0, 0),
            // IBS, extended counters; long mode.
            0x8000_0001 => (0, 0, 1 << 10 | 1 << 23, 1 << 29),
            0x8000_001B => (0xBFF, 0, 0, 0),
            0x8000_0022 => (1, 6, 0, 0),
            _ => (0, 0, 0, 0),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    let this = snapshot();
    let units = IbsUnits::of(&this);
    if let Some(units) = units {
        let counters = pmu_amd::counters(&this);
        // The registers are memory, whose local APIC has no entry for the units.
        let _ = black_box(sample(black_box(&counters), black_box(&units)));
        return 0;
    }
    1
}
