//! Cycles, of which few processors write records: an event that happens in each cycle is recorded in their place.

use pmu_core::error::CounterError;
use pmu_core::precise::{NotPrecise, Precision};
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_core::{Event, GenericEvent};
use pmu_tests::Reason;

use crate::scene::*;
use crate::support::*;

const LEVELS: [Precision; 3] =
    [Precision::ConstantSkid, Precision::ZeroSkidRequested, Precision::ZeroSkidRequired];

/// Starts an event. Returns the select's event number, unit mask, INV and counter mask, or why it was refused.
fn counted(
    processor: Processor,
    signature: u32,
    event: Event,
    precision: Precision,
) -> Result<u64, NotPrecise> {
    let seen_as = |plain: Snapshot| {
        Snapshot::capture(|leaf: u32, subleaf: u32| {
            let CpuIdResult { eax, ebx, ecx, edx } = plain.leaf(leaf, subleaf);
            CpuIdResult { eax: if leaf == 1 { signature } else { eax }, ebx, ecx, edx }
        })
    };
    let scene = Scene::build(processor, instruction, &[], Mock::strict, seen_as);
    let mut session = scene.take();
    let event = event.every(PERIOD).user_only().precise(precision);
    let event = match session.open(&scene.counters, &[event]).reason() {
        Err(CounterError::NotPrecise(reason)) => return Err(reason),
        outcome => outcome.unwrap_or_else(|error| panic!("{signature:#x}: {error}")),
    };
    session.enable(event, 0).unwrap();
    let counter = session.counter_of(event).unwrap();
    let outcome = if counter.is_fixed() && counter.number() == 1 {
        // Fixed counter 1 counts cycles.
        0x3C
    } else {
        let register = 0x186 + u32::from(counter.number());
        let trace = scene.mock.trace();
        let write = trace.records().filter(|record| record.register == register).last();
        let written = write.unwrap().outcome.unwrap();
        // Only user mode, enabled, and no interrupt by overflow.
        assert_eq!(written & 0x73_0000, 0x41_0000, "{signature:#x}");
        written & 0xFF80_FFFF
    };
    scene.ends(session, processor.name);
    Ok(outcome)
}

fn named(name: &str) -> Processor {
    crate::scene::named(name).next().unwrap()
}

/// The events that Linux perf records for `cycles:p` to `cycles:ppp`, by CPUID's signature.
#[test]
fn cycles_are_recorded_by_the_events_that_linux_records() {
    use NotPrecise::{NextAddressOnly, NoExactCounter};
    let (instructions, micro_ops, exact) = (Ok(0x1080_00C0), Ok(0x1080_01C2), Ok(0x1080_01C0));
    let cycles = Ok(0x3C);
    let (early, no_exact) = (Err(NextAddressOnly), Err(NoExactCounter));
    for (model, format, signature, expected) in [
        ("Penryn", "format 0", 0x0001_0676, [instructions, early, early]),
        ("Bonnell", "format 0", 0x0001_06C2, [instructions, early, early]),
        ("Nehalem", "format 1", 0x0001_06A5, [instructions, early, early]),
        ("Westmere", "format 1", 0x0002_06C2, [instructions, early, early]),
        ("Sandy Bridge", "format 1", 0x0002_06A7, [micro_ops, early, early]),
        ("Ivy Bridge", "format 1", 0x0003_06A9, [micro_ops, early, early]),
        ("Silvermont", "format 2", 0x0003_0673, [instructions, instructions, no_exact]),
        ("Haswell", "format 2", 0x0003_06C3, [micro_ops, micro_ops, exact]),
        ("Broadwell", "format 2", 0x0004_06F1, [micro_ops, micro_ops, exact]),
        ("Knights Landing", "format 2", 0x0005_0671, [instructions, instructions, no_exact]),
        ("Goldmont", "format 3", 0x0005_06C9, [cycles, cycles, no_exact]),
        ("Skylake", "format 3", 0x0005_06E3, [instructions, instructions, exact]),
        ("Cascade Lake", "format 3", 0x0005_0657, [instructions, instructions, exact]),
        ("Ice Lake", "format 4", 0x0006_06A6, [cycles, cycles, no_exact]),
        ("Sapphire Rapids", "format 4", 0x0008_06F8, [cycles, cycles, cycles]),
    ] {
        for (precision, expected) in LEVELS.into_iter().zip(expected) {
            for event in [Event::generic(GenericEvent::Cycles), raw(0x3C)] {
                let outcome = counted(named(format), signature, event, precision);
                assert_eq!(outcome, expected, "{model}, {precision:?}");
            }
        }
    }
}

fn raw(select: u64) -> Event {
    Event::raw(EventSelect::from_bits(select))
}

/// A qualifier makes it another event, and so does a unit mask.
#[test]
fn other_events_are_recorded_as_they_are() {
    let skylake = named("format 3");
    for select in [0x0100_003C, 0x0080_013C, 0x013C, 0x00C4, 0x01C2] {
        let outcome = counted(skylake, 0x0005_06E3, raw(select), Precision::ConstantSkid);
        assert_eq!(outcome, Ok(select), "{select:#x}");
    }
}

/// Intel's list has Skylake's exact event by a name of its own, with another mask: no more than 8 retire in a cycle.
#[test]
fn intels_event_list_has_the_exact_event() {
    let listed = pmu_events::SKYLAKE.event("INST_RETIRED.TOTAL_CYCLES_PS").unwrap().select();
    let recorded = counted(
        named("format 3"),
        0x0005_06E3,
        Event::generic(GenericEvent::Cycles),
        Precision::ZeroSkidRequired,
    );
    let [listed, recorded] = [listed.select_bits(), recorded.unwrap()];
    assert_eq!(listed & 0x80_FFFF, recorded & 0x80_FFFF);
    assert!(listed >> 24 > 8 && recorded >> 24 > 8);
}
