//! Instructions of a session's operations on 1, 4 and 8 events, on Intel's version 4 with eight general counters. Each
//! access is a load or a store of an array, so the rest is the driver's.
//!
//! `worst` is a start that moves all events that run: each counter's event may be on the next counter alone, too.

use std::hint::black_box;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu_benches::{Registers, intels};
use pmu_core::error::{CounterError, EventsError};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::EventSelect;
use pmu_core::thread::ThreadEvent;
use pmu_core::{
    CounterSession, CounterSet, CounterUnit, Event, EventCount, EventId, Events, SoftwareEvent,
};

type Session = CounterSession<'static, Events<'static>, &'static Registers>;

const COUNTERS: usize = 8;

/// A session, its processor's counters, and the group, event or thread of the operation.
struct Bench<T> {
    session: &'static mut Session,
    unit: &'static CounterUnit,
    table: &'static EventTable,
    of: T,
}

/// Takes this many counters.
fn session<T>(
    counters: usize,
    of: impl FnOnce(&mut Session, &'static CounterUnit) -> T,
) -> Bench<T> {
    let unit: &'static CounterUnit = Box::leak(Box::new(pmu_intel::counters(&intels(4))));
    let table: &'static EventTable<[EventEntry; 2 * COUNTERS]> =
        Box::leak(Box::new(EventTable::new()));
    let memory: &'static CounterMemory<[CounterSlot; COUNTERS]> =
        Box::leak(Box::new(CounterMemory::new()));
    let registers: &'static Registers = Box::leak(Box::new(Registers::new((0xC1, 1))));
    let only = CounterSet::from_bits((1 << counters) - 1);
    let source = Events::new(unit, table);
    let taken = CounterSession::take(source, unit, only, registers, memory).unwrap();
    let session: &'static mut Session = Box::leak(Box::new(taken));
    let of = of(session, unit);
    Bench { session, unit, table, of }
}

fn event(number: usize) -> Event {
    Event::raw(EventSelect::from_bits(0xC0 + number as u64))
}

fn group(events: usize, starts: bool) -> Bench<EventId> {
    session(COUNTERS, |session, unit| {
        let events: Vec<_> = (0..events).map(event).collect();
        let group = session.open(unit, &events).unwrap();
        if starts {
            session.enable(group, 1).unwrap();
        }
        group
    })
}

/// Twice as many events as counters, which take turns.
fn turns(counters: usize) -> Bench<()> {
    session(counters, |session, unit| {
        for number in 0..2 * counters {
            let event = session.open(unit, &[event(number).rotating()]).unwrap();
            session.enable(event, 1).unwrap();
        }
    })
}

/// A thread's events, on the processor or switched out.
fn thread(events: usize, runs: bool) -> Bench<&'static mut [ThreadEvent]> {
    session(COUNTERS, |session, unit| {
        let of_thread: Vec<_> = (0..events)
            .map(|number| {
                let event = session.open(unit, &[event(number)]).unwrap();
                session.enable(event, 1).unwrap();
                ThreadEvent::Opened(event)
            })
            .collect();
        let of_thread = Vec::leak(of_thread);
        if !runs {
            session.switch_out(of_thread, 2, |_| ()).unwrap();
        }
        of_thread
    })
}

/// Each event may be on two counters, and is on the first of them; the next event may be on the first counter alone.
fn chain() -> Bench<EventId> {
    session(COUNTERS, |session, unit| {
        for number in 0..COUNTERS - 1 {
            let event = event(number).on(CounterSet::from_bits(0b11 << number));
            let event = session.open(unit, &[event]).unwrap();
            session.enable(event, 1).unwrap();
        }
        for number in COUNTERS..2 * COUNTERS - 1 {
            let event = session.open(unit, &[event(number).rotating()]).unwrap();
            session.enable(event, 1).unwrap();
        }
        session.open(unit, &[event(2 * COUNTERS).on(CounterSet::from_bits(1))]).unwrap()
    })
}

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

#[library_benchmark]
#[bench::one(args = (group(1, false)), config = at_most(4_240))]
#[bench::four(args = (group(4, false)), config = at_most(11_417))]
#[bench::eight(args = (group(8, false)), config = at_most(20_233))]
fn enable(bench: Bench<EventId>) -> Result<(), EventsError> {
    black_box(bench.session).enable(bench.of, 2)
}

#[library_benchmark]
#[bench::one(args = (group(1, true)), config = at_most(556))]
#[bench::four(args = (group(4, true)), config = at_most(2_112))]
#[bench::eight(args = (group(8, true)), config = at_most(3_869))]
fn read(bench: Bench<EventId>) -> Result<usize, EventsError> {
    let mut counts = [EventCount::default(); COUNTERS];
    let read = black_box(bench.session).read_group(bench.of, 2, &mut counts);
    black_box(&counts);
    read
}

#[library_benchmark]
#[bench::one(args = (group(1, true)), config = at_most(1_079))]
#[bench::four(args = (group(4, true)), config = at_most(3_754))]
#[bench::eight(args = (group(8, true)), config = at_most(7_284))]
fn disable(bench: Bench<EventId>) -> Result<(), EventsError> {
    black_box(bench.session).disable(bench.of, 2)
}

#[library_benchmark]
#[bench::one(args = (turns(1)), config = at_most(6_073))]
#[bench::four(args = (turns(4)), config = at_most(33_391))]
#[bench::eight(args = (turns(8)), config = at_most(98_901))]
fn rotate(bench: Bench<()>) -> Result<(), CounterError> {
    black_box(bench.session).rotate(2)
}

#[library_benchmark]
#[bench::one(args = (thread(1, true)), config = at_most(880))]
#[bench::four(args = (thread(4, true)), config = at_most(3_541))]
#[bench::eight(args = (thread(8, true)), config = at_most(8_067))]
fn switch_out(bench: Bench<&'static mut [ThreadEvent]>) -> Result<(), EventsError> {
    black_box(bench.session).switch_out(bench.of, 2, |_| ())
}

#[library_benchmark]
#[bench::one(args = (thread(1, false)), config = at_most(4_894))]
#[bench::four(args = (thread(4, false)), config = at_most(16_003))]
#[bench::eight(args = (thread(8, false)), config = at_most(36_331))]
fn switch_in(bench: Bench<&'static mut [ThreadEvent]>) -> Result<(), EventsError> {
    black_box(bench.session).switch_in(bench.unit, bench.of, 3)
}

// The kernel tells of a page fault that no event counts, beside eight that other events count, of sixteen places.
#[library_benchmark]
#[bench::unasked(args = (group(8, true)), config = at_most(162))]
fn happened(bench: Bench<EventId>) {
    black_box(bench.table).happened(SoftwareEvent::MinorFaults, 1, true, |overflow| {
        black_box(overflow);
    });
}

#[library_benchmark]
#[bench::moves_seven(args = (chain()), config = at_most(33_070))]
fn worst(bench: Bench<EventId>) -> Result<(), EventsError> {
    black_box(bench.session).enable(bench.of, 2)
}

library_benchmark_group!(
    name = operations,
    benchmarks = [enable, read, disable, rotate, switch_out, switch_in, happened, worst]
);

main!(library_benchmark_groups = operations);
