//! Instructions of a whole performance interrupt up to the count in a profile's bucket: by `Pmu`, and by the
//! same parts as a kernel composes them by hand. Each access is a load or a store of an array.
//!
//! The difference of the two is what `Pmu` costs.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu::apic::{LocalApic, NoTimer};
use pmu::{Kernel, LvtEntry, Machine, Pmu};
use pmu_core::frame::PlainFrame;
use pmu_core::msr::{MsrAddress, MsrBackend, MsrUpdate, PmcIndex};
use pmu_core::profile::{KProfileSource, Report, SourceInterface};
use pmu_core::raw_cpuid::CpuIdResult;
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{Claim, CounterMemory, CounterSlot, EventEntry, EventTable, Snapshot};
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::{BasicProfile, ProfileObject, Profiles, Rules};

/// 64 registers, by the low bits of their numbers, which differ for those that a driver uses.
static FILE: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn at(number: u32) -> &'static AtomicU64 {
    &FILE[number as usize % 64]
}

struct Registers;

impl MsrBackend for Registers {
    type Error = core::convert::Infallible;

    #[inline]
    fn read(&self, address: MsrAddress) -> Result<u64, Self::Error> {
        Ok(at(address.get()).load(Relaxed))
    }

    #[inline]
    fn write(&self, address: MsrAddress, value: u64) -> Result<(), Self::Error> {
        at(address.get()).store(value, Relaxed);
        Ok(())
    }

    #[inline]
    fn read_pmc(&self, index: PmcIndex) -> Result<u64, Self::Error> {
        Ok(at(0xC1 + index.get()).load(Relaxed))
    }

    fn update(&self, update: MsrUpdate) -> Result<u64, Self::Error> {
        let register = at(update.register());
        let found = register.load(Relaxed);
        register.store(update.apply(found).unwrap_or(found), Relaxed);
        Ok(found)
    }
}

impl pmu::apic::ApicRegisters for Registers {
    #[inline]
    fn write_performance_entry(&self, entry: LvtEntry) {
        FILE[0].store(entry.into(), Relaxed);
    }
}

struct OneProcessor;

/// A processor's number, as per-CPU data have it.
static NUMBER: AtomicU32 = AtomicU32::new(0);

#[inline]
fn number() -> usize {
    NUMBER.load(Relaxed) as usize
}

// SAFETY: there is one processor, and one task.
unsafe impl Kernel for OneProcessor {
    type Msr = Registers;
    type Architecture = pmu::X86;
    #[inline]
    fn msr() -> Registers {
        Registers
    }
    #[inline]
    fn this_processor() -> usize {
        number()
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    #[inline]
    fn write_performance_entry(entry: LvtEntry) {
        FILE[0].store(entry.into(), Relaxed);
    }
    fn end_of_interrupt() {}
    fn interrupt(_: usize) {}
}

const BASE: u64 = 0xFFFF_FFFF_8000_0000;
static BUCKETS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

static PMU: Pmu<OneProcessor, 4> = Pmu::new();

/// The same by hand.
static COUNTERS: [CounterMemory<[CounterSlot; MAX_COUNTERS]>; 4] =
    [const { CounterMemory::new() }; 4];
static EVENTS: [EventTable<[EventEntry; 8]>; 4] = [const { EventTable::new() }; 4];
static PROFILES: Profiles<16, 4> = Profiles::new();
static MACHINE: pmu_core::WriteOnce<Machine> = pmu_core::WriteOnce::new();

fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0730_0804, 0, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    })
}

fn apic() -> LocalApic<Registers> {
    LocalApic::new(Registers, pmu::apic::Delivery::NON_MASKABLE, NoTimer)
}

/// The second source of the table's counts on the first counter.
fn request() -> BasicProfile<'static> {
    BasicProfile {
        process: None,
        base: BASE,
        size: 0x1000,
        bucket_log2: 4,
        buffer: &BUCKETS,
        source: KProfileSource::TOTAL_ISSUES,
        affinity: None,
    }
}

/// Counter 0 overflows.
fn overflow() -> PlainFrame {
    at(0xC1).store(5, Relaxed);
    at(0x38E).store(1, Relaxed);
    PlainFrame { pc: BASE + 0x123, cs: 8, flags: 2, processor: 0, process: None }
}

fn pmu() -> PlainFrame {
    PMU.processor_up(&snapshot()).unwrap();
    let object = ProfileObject::basic(Rules::LATEST, request(), &PMU.hardware()).unwrap();
    PMU.profiles().try_start(Box::leak(Box::new(object)), &mut PMU.hardware()).unwrap();
    overflow()
}

fn hand() -> PlainFrame {
    let this = snapshot();
    let machine = MACHINE.set(Machine::detect(&this)).unwrap();
    let both = Box::leak(Box::new(machine.with_events(&EVENTS[0])));
    let all = pmu_core::CounterSet::ALL;
    let session = both.initialize(&this, all, Registers, apic(), &COUNTERS[0]).unwrap();
    let session = Box::leak(Box::new(session));
    let mut hardware = ThisProcessor::new(session, pmu_core::frame::ProcessorNumber::from_index(0));
    let object = ProfileObject::basic(Rules::LATEST, request(), &hardware).unwrap();
    PROFILES.try_start(Box::leak(Box::new(object)), &mut hardware).unwrap();
    assert!(both.unit().counters().len() > 1);
    overflow()
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 300)])))]
#[bench::version_4(hand())]
fn by_hand(frame: PlainFrame) -> Claim {
    let frame = black_box(&frame);
    let (Some(machine), Some(counters), Some(events)) =
        (MACHINE.get(), COUNTERS.get(number()), EVENTS.get(number()))
    else {
        return Claim::NotOurs;
    };
    let both = machine.with_events(events);
    let serviced = both.service(&Registers, &apic(), counters, |report| match report {
        Report::Source(overflow) => {
            PROFILES.interrupt(frame, overflow.source);
        }
        Report::Event(overflow) => _ = black_box(overflow),
    });
    serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 306)])))]
#[bench::version_4(pmu())]
fn by_pmu(frame: PlainFrame) -> Claim {
    PMU.interrupt(black_box(&frame), |_| ()).claim
}

library_benchmark_group!(name = interrupts, benchmarks = [by_hand, by_pmu]);

main!(library_benchmark_groups = interrupts);
