//! Costs of one opened event in register accesses.

use pmu_core::access::AccessOperation;
use pmu_core::memory::EventTable;
use pmu_core::testing::RecordingMsr;
use pmu_core::thread::ThreadEvent;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, Event, Events, service};
use pmu_tests::opened::*;
use pmu_tests::{FakePlatform, RegisterFile, intel_processor};

/// Numbers of RDMSRs, WRMSRs, RDPMCs, and of unmaskings of the LVT entry.
type Cost = [u32; 4];

/// Costs of one event.
#[derive(Debug)]
struct Costs {
    open: Cost,
    start: Cost,
    overflow: Cost,
    read: Cost,
    stop: Cost,
    /// A switch out of its thread, and in.
    out: Cost,
    back: Cost,
}

/// Returns the costs of one event on Intel's counters of this version: on a general one, or on fixed counter 0 of
/// three.
fn costs(version: u32, freezing: bool, event: Event) -> Costs {
    let plain = intel_processor(version, 8);
    let processor = Snapshot::capture(move |leaf, subleaf| {
        let mut answer = plain.leaf(leaf, subleaf);
        // Three fixed counters of 48 bits.
        answer.edx |= if leaf == 0x0A && version >= 2 { 48 << 5 | 3 } else { 0 };
        answer
    });
    let unit = pmu_intel::counters(&processor);
    let global = if version >= 2 { 0x38D..0x391 } else { 0..0 };
    let registers = (0xC1..0xC9).chain(0x186..0x18E).chain(0x309..0x30C).chain(global);
    let file = RegisterFile::new(registers, 0xC1);
    file.set(0x1D9, 0);
    let (msr, platform) = (RecordingMsr::<_, 64>::new(file), FakePlatform::default());
    let (memory, table) = (Memory::new(), Table::new());
    let source = Events::new(&unit, &table as &EventTable);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, (&msr, &platform), &memory).unwrap();
    if freezing {
        counters.freeze_on_interrupt().unwrap();
    }
    let take = || {
        let mut cost = [0, 0, 0, platform.unmasked.take()];
        for access in &msr.take() {
            cost[match access.operation {
                AccessOperation::Read | AccessOperation::Update => 0,
                AccessOperation::Write => 1,
                AccessOperation::ReadCounter => 2,
            }] += 1;
        }
        cost
    };
    take();
    let id = counters.open(&unit, &[event]).unwrap();
    let open = take();
    counters.enable(id, 0).unwrap();
    let start = take();
    let counter = counters.counter_of(id).unwrap();
    let value = if counter.is_fixed() { 0x309 } else { 0xC1 };
    msr.inner().set(value, 5);
    let frozen = u64::from(freezing && version >= 4) << 59;
    msr.inner().set(0x38E, counter.only().bits() | frozen);
    let serviced = service(&source, &(&msr, &platform), &memory, |_| ()).unwrap();
    assert_eq!(serviced.overflows, u32::from(event.period().is_some()));
    let overflow = take();
    msr.inner().set(0x38E, 0);
    let read = counters.read(id, 0).map_or([0; 4], |_| take());
    let mut thread = [ThreadEvent::Opened(id)];
    counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
    let out = take();
    counters.switch_in(&unit, &mut thread, 0).unwrap();
    let (back, ThreadEvent::Opened(id)) = (take(), thread[0]) else { panic!("{thread:?}") };
    counters.disable(id, 0).unwrap();
    Costs { open, start, overflow, read, stop: take(), out, back }
}

/// The first column is that of a source, in `sources.rs` and tests/data/accesses.md.
#[test]
fn a_total_costs_one_rdpmc_an_overflow() {
    for (version, freezing, [r, w]) in [
        (2, false, [1, 4]),
        (3, true, [1, 3]),
        (4, false, [1, 4]),
        (4, true, [1, 2]),
        (5, false, [1, 4]),
        (5, true, [1, 2]),
    ] {
        let a = 1;
        for kind in [2, 0] {
            // Of a general counter, and of a fixed one.
            let sampled = raw(kind).every(0x1000);
            let switch = [[0, 1, 1, 0], [0, 2, 0, 0]];
            let found = costs(version, freezing, sampled);
            assert_eq!(
                (found.overflow, [found.out, found.back]),
                ([r, w, 0, a], switch),
                "{found:?}"
            );
            let found = costs(version, freezing, sampled.with_total());
            assert_eq!(
                (found.overflow, [found.out, found.back]),
                ([r, w, 1, a], switch),
                "{found:?}"
            );
            // An event without a period is not loaded again; its value does not show another wrap.
            let found = costs(version, freezing, raw(kind));
            let switch = [[1, 1, 2, 0], [0, 2, 0, 0]];
            let expected = ([r, w - 1, 0, a], switch);
            assert_eq!((found.overflow, [found.out, found.back]), expected, "{found:?}");
        }
    }
    // A counter that is read anyway costs nothing more; that of an event without a period is stopped while it is set
    // back.
    for (event, overflow) in [
        (raw(2).every(0x1000), [0, 1, 1, 1]),
        (raw(2).every(0x1000).with_total(), [0, 1, 1, 1]),
        (raw(2), [1, 3, 2, 1]),
    ] {
        let found = costs(1, false, event);
        let expected = [overflow, [0, 1, 1, 0], [0, 2, 0, 0]];
        assert_eq!([found.overflow, found.out, found.back], expected);
    }
}

/// The rows of events in tests/data/accesses.md, on Intel's version 2.
#[test]
fn the_readmes_rows_of_events_are_what_is_measured() {
    let text = |cost: Cost| {
        let parts = cost.into_iter().zip("RWPA".chars()).filter(|(count, _)| *count > 0);
        let parts: Vec<_> = parts.map(|(count, kind)| format!("{count}{kind}")).collect();
        if parts.is_empty() { "–".into() } else { parts.join(" ") }
    };
    for (place, kind) in [("a general counter", 2), ("a fixed counter", 0)] {
        let sampled = raw(kind).every(0x1000);
        for (name, event) in [
            ("an event that interrupts", sampled),
            ("the same, with a total", sampled.with_total()),
            ("an event that is counted only", raw(kind)),
        ] {
            let costs = costs(2, false, event);
            let switch = core::array::from_fn(|kind| costs.out[kind] + costs.back[kind]);
            let columns =
                [costs.overflow, switch, costs.open, costs.start, costs.read, costs.stop].map(text);
            let row = format!("| {place}: {name} | {} |", columns.join(" | "));
            println!("{row}");
            assert!(
                include_str!("../../data/accesses.md").contains(&row),
                "tests/data/accesses.md lacks: {row}"
            );
        }
    }
}
