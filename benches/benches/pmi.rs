//! Instructions of a whole performance interrupt: one overflow, a minimal backend and a minimal handler. Each access
//! is a load or a store of an array, so the rest is the driver's.
//!
//! `nothing` is the same call on memory that no session has taken.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu::Machine;
use pmu_amd::Amd64;
use pmu_benches::{Registers, intels};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_core::{Claim, CounterSession, CounterSet, Event, EventSource, Events, service};
use pmu_intel::Emon;

type Memory = CounterMemory<[CounterSlot; 8]>;

/// A processor in the middle of a performance interrupt.
struct Processor<I: 'static> {
    interface: &'static I,
    registers: &'static Registers,
    memory: &'static Memory,
}

/// Starts four sources, one of which then overflows.
fn interrupted<I: EventSource<Processor = Snapshot>>(
    interface: I,
    processor: &Snapshot,
    counters: (u32, u32),
    freezes: bool,
    status: Option<(u32, u64)>,
) -> Processor<I> {
    let interface: &'static I = Box::leak(Box::new(interface));
    let registers: &'static Registers = Box::leak(Box::new(Registers::new(counters)));
    let memory: &'static Memory = Box::leak(Box::new(Memory::new()));
    let mut session =
        Session::take(interface, processor, CounterSet::GENERAL, registers, memory).unwrap();
    if freezes {
        session.freeze_on_interrupt().unwrap();
    }
    for row in interface.sources().iter().skip(1).take(4) {
        session.start(row.source()).unwrap();
    }
    registers.at(counters.0).store(5, Relaxed);
    if let Some((register, value)) = status {
        registers.at(register).store(value, Relaxed);
    }
    Processor { interface, registers, memory }
}

fn intel(version: u32, freezes: bool) -> Processor<Emon> {
    intel_as(|processor| Emon::detect(processor).unwrap(), version, freezes)
}

fn intel_as<I: EventSource<Processor = Snapshot>>(
    detect: impl Fn(&Snapshot) -> I,
    version: u32,
    freezes: bool,
) -> Processor<I> {
    let processor = intels(version);
    let status = status_of(version, freezes);
    interrupted(detect(&processor), &processor, (0xC1, 1), freezes, status)
}

/// The global status, if there is one: counter 0 overflowed.
fn status_of(version: u32, freezes: bool) -> Option<(u32, u64)> {
    (version >= 2).then_some((0x38E, 1 | u64::from(freezes) << 59))
}

fn amds(v2: bool) -> Snapshot {
    Snapshot::capture(move |leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (1, 0x6874_7541, 0x444D_4163, 0x6974_6E65),
            0x8000_0000 => (0x8000_0022, 0, 0, 0),
            0x8000_0001 => (0, 0, u32::from(v2) << 23, 1 << 29),
            0x8000_0022 => (v2.into(), 6, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    })
}

fn amd(v2: bool) -> Processor<Amd64> {
    let processor = amds(v2);
    let interface = Amd64::detect(&processor).unwrap();
    interrupted(interface, &processor, counters_of(v2), false, v2.then_some((0xC000_0300, 1)))
}

/// The register of AMD's counter 0, and the distance to that of counter 1.
fn counters_of(v2: bool) -> (u32, u32) {
    if v2 { (0xC001_0201, 2) } else { (0xC001_0004, 1) }
}

/// A processor whose first of four opened events has overflowed.
struct Opened {
    source: Events<'static>,
    registers: &'static Registers,
    memory: &'static Memory,
}

fn opened(
    processor: &Snapshot,
    counters: (u32, u32),
    freezes: bool,
    status: Option<(u32, u64)>,
) -> Opened {
    let machine: &'static Machine = Box::leak(Box::new(Machine::detect(processor)));
    let table: &'static EventTable<[EventEntry; 8]> = Box::leak(Box::new(EventTable::new()));
    let source = Events::new(machine.unit(), table);
    let registers: &'static Registers = Box::leak(Box::new(Registers::new(counters)));
    let memory: &'static Memory = Box::leak(Box::new(Memory::new()));
    let (all, unit) = (CounterSet::ALL, machine.unit());
    let mut session = CounterSession::take(source, unit, all, registers, memory).unwrap();
    if freezes {
        session.freeze_on_interrupt().unwrap();
    }
    for number in 0..4 {
        let select = EventSelect::from_bits(0xC0 + number);
        let event = Event::raw(select).every(1_000_003).tagged(number);
        let event = session.open(unit, &[event]).unwrap();
        session.enable(event, 0).unwrap();
    }
    registers.at(counters.0).store(5, Relaxed);
    if let Some((register, value)) = status {
        registers.at(register).store(value, Relaxed);
    }
    Opened { source, registers, memory }
}

fn intels_opened(version: u32, freezes: bool) -> Opened {
    opened(&intels(version), (0xC1, 1), freezes, status_of(version, freezes))
}

fn amds_opened(v2: bool) -> Opened {
    opened(&amds(v2), counters_of(v2), false, v2.then_some((0xC000_0300, 1)))
}

/// The same of an event that was opened, by a handler that uses its tag.
#[inline(always)]
fn interrupt_of_opened(processor: &Opened) -> (u64, Claim) {
    let Opened { source, registers, memory } = processor;
    let mut last = 0;
    let serviced = service(source, *registers, memory, |sample| last = sample.tag);
    (black_box(last), serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim))
}

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

#[library_benchmark(config = at_most(243))]
#[bench::version_4(intels_opened(4, true))]
fn opened_freezing(processor: Opened) -> (u64, Claim) {
    interrupt_of_opened(black_box(&processor))
}

#[library_benchmark(config = at_most(253))]
#[bench::version_2(intels_opened(2, false))]
fn opened_stopping(processor: Opened) -> (u64, Claim) {
    interrupt_of_opened(black_box(&processor))
}

#[library_benchmark(config = at_most(235))]
#[bench::perf_mon_v2(amds_opened(true))]
fn opened_by_status(processor: Opened) -> (u64, Claim) {
    interrupt_of_opened(black_box(&processor))
}

#[library_benchmark(config = at_most(290))]
#[bench::legacy(amds_opened(false))]
fn opened_by_value(processor: Opened) -> (u64, Claim) {
    interrupt_of_opened(black_box(&processor))
}

/// An interrupt's handler, which uses only the source's value.
#[inline(always)]
fn interrupt<I: EventSource<Processor = Snapshot>>(processor: &Processor<I>) -> (u32, Claim) {
    let Processor { interface, registers, memory } = processor;
    let mut last = 0;
    let serviced = service(*interface, *registers, memory, |sample| {
        if let Some(overflow) = interface.overflow(&sample) {
            last = KProfileSource::value(overflow.source);
        }
    });
    (black_box(last), serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim))
}

// The same of a machine that was detected, which is asked for the table of its interface.
#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 152)])))]
#[bench::version_4(intel_as(Machine::detect, 4, true))]
fn of_a_machine(processor: Processor<Machine>) -> (u32, Claim) {
    interrupt(black_box(&processor))
}

fn untaken() -> Processor<Emon> {
    Processor { memory: Box::leak(Box::new(Memory::new())), ..intel(2, false) }
}

#[library_benchmark]
#[bench::untaken(untaken())]
fn nothing(processor: Processor<Emon>) -> (u32, Claim) {
    interrupt(black_box(&processor))
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 142)])))]
#[bench::version_2(intel(2, false))]
fn stopping(processor: Processor<Emon>) -> (u32, Claim) {
    interrupt(black_box(&processor))
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 135)])))]
#[bench::version_4(intel(4, true))]
fn freezing(processor: Processor<Emon>) -> (u32, Claim) {
    interrupt(black_box(&processor))
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 133)])))]
#[bench::perf_mon_v2(amd(true))]
fn running_by_status(processor: Processor<Amd64>) -> (u32, Claim) {
    interrupt(black_box(&processor))
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 186)])))]
#[bench::legacy(amd(false))]
fn running_by_value(processor: Processor<Amd64>) -> (u32, Claim) {
    interrupt(black_box(&processor))
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 218)])))]
#[bench::version_1(intel(1, false))]
fn running_by_value_of_eight(processor: Processor<Emon>) -> (u32, Claim) {
    interrupt(black_box(&processor))
}

library_benchmark_group!(
    name = interrupts,
    benchmarks = [
        nothing,
        stopping,
        freezing,
        of_a_machine,
        running_by_status,
        running_by_value,
        running_by_value_of_eight,
        opened_freezing,
        opened_stopping,
        opened_by_status,
        opened_by_value
    ]
);

main!(library_benchmark_groups = interrupts);
