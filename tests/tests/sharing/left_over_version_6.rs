//! Leftovers of a predecessor in the registers of version 6 that belong to one counter each: auto counter reload
//! (CFG_B) and architectural PEBS (CFG_C).
//!
//! SDM vol. 4, table 2-2: IA32_PMC_GPn_CFG_B and _CFG_C at 0x1902 and 0x1903 + 4n, IA32_PMC_FXn_CFG_B and _CFG_C at
//! 0x1982 and 0x1983 + 4n. Vol. 2A, CPUID leaf 23H: sub-leaf 0, EAX bit 2 declares sub-leaf 2, whose EAX and EBX are
//! the general and fixed counters that can be reloaded; EAX bits 4 and 5 declare sub-leaves 4 and 5, of which the
//! latter's EAX and ECX are those that architectural PEBS can record.

use pmu_core::access::AccessOperation;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::testing::RecordingMsr;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, Events};
use pmu_tests::{FakePlatform, Fault, RegisterFile, amd_processor, intel_processor};

type Memory = CounterMemory<[CounterSlot; MAX_COUNTERS]>;
type Table = EventTable<[EventEntry; 2]>;

/// Sub-leaves 0 and 1, reload (2), and PEBS (4 and 5).
const DECLARED: u32 = 0b11_0111;

/// Four general counters and three fixed ones. General counters 2:0 and fixed counter 0 can be reloaded; PEBS records
/// general counters 0 and 3 and fixed counter 1; sub-leaf 5 also declares others as precisely distributed, which has
/// no effect here.
fn processor(version: u32, declared: u32) -> Snapshot {
    let plain = intel_processor(version, 4);
    Snapshot::capture(move |leaf, subleaf| {
        let mut answer = plain.leaf(leaf, subleaf);
        let [eax, ebx, ecx, edx] = match (leaf, subleaf) {
            (0, _) => [0x23, answer.ebx, answer.ecx, answer.edx],
            (7, 1) => [1 << 8, 0, 0, 0],
            (0x0A, _) => [answer.eax, 0, 0, 48 << 5 | 3],
            (0x23, 0) => [declared, 0, 0, 0],
            (0x23, 1) => [0b1111, 0b111, 0, 0],
            (0x23, 2) => [0b0111, 0b001, 0b1000, 0b110],
            (0x23, 5) => [0b1001, 0b0110, 0b010, 0b101],
            _ => [0; 4],
        };
        (answer.eax, answer.ebx, answer.ecx, answer.edx) = (eax, ebx, ecx, edx);
        answer
    })
}

/// By hand: the registers that exist, with their counters.
fn existing() -> [(u32, CounterSet); 7] {
    let general = |n: u32| CounterSet::from_bits(1 << n);
    [
        (0x1902, general(0)),
        (0x1906, general(1)),
        (0x190A, general(2)),
        (0x1982, CounterSet::fixed(0b001)),
        (0x1903, general(0)),
        (0x190F, general(3)),
        (0x1987, CounterSet::fixed(0b010)),
    ]
}

const LEFT: u64 = 1 << 63 | 0b10;

/// Returns a processor that has the registers, with a value left in each.
fn registers() -> RegisterFile {
    let general = (0x1900..0x1910).filter(|register| register % 4 < 2);
    let fixed = (0x1980..0x198C).filter(|register| register % 4 == 0);
    let file = RegisterFile::new(general.chain(fixed).chain(0x38D..0x391), 0x1900).version_6();
    existing().into_iter().for_each(|(register, _)| file.set(register, LEFT));
    file
}

fn left(file: &RegisterFile) -> Vec<u32> {
    let registers = existing().into_iter().map(|(register, _)| register);
    registers.filter(|register| file.get(*register) != 0).collect()
}

/// Clears the leftovers of these counters. Returns the counters for which that failed, the registers that were
/// accessed, and the fake.
fn clear(
    processor: &Snapshot,
    counters: CounterSet,
    file: RegisterFile,
) -> (CounterSet, Vec<u32>, RegisterFile) {
    let msr = RecordingMsr::<_, 256>::new(&file);
    let stays = pmu_intel::clear_stale(processor, counters, &msr);
    let accesses = msr.take();
    assert!(accesses.iter().all(|access| access.operation == AccessOperation::Write));
    let mut touched: Vec<u32> = accesses.into_iter().map(|access| access.register).collect();
    touched.sort_unstable();
    (stays, touched, file)
}

const NONE: CounterSet = CounterSet::NONE;
const ALL: CounterSet = CounterSet::ALL;

#[test]
fn what_a_predecessor_left_on_is_taken_away_by_one_write_a_register() {
    let processor = processor(6, DECLARED);
    let mut all = existing().map(|(register, _)| register).to_vec();
    all.sort_unstable();
    let (stays, touched, file) = clear(&processor, ALL, registers());
    assert_eq!((stays, touched, left(&file)), (NONE, all, vec![]));
    // Only of the counters to be taken: others have the rest.
    let (stays, touched, file) = clear(&processor, CounterSet::from_bits(0b11), registers());
    assert_eq!((stays, touched), (NONE, vec![0x1902, 0x1903, 0x1906]));
    assert_eq!(left(&file), [0x190A, 0x1982, 0x190F, 0x1987]);
}

#[test]
fn registers_that_cpuid_does_not_declare_are_not_touched() {
    let (reload, record) = ([0x1902, 0x1906, 0x190A, 0x1982], [0x1903, 0x190F, 0x1987]);
    for (version, declared, expected) in [
        (6, DECLARED & !0b11_0000, &reload[..]),
        (6, DECLARED & !0b100, &record),
        // Both sub-leaves of PEBS, or none.
        (6, 0b10_0011, &[]),
        (6, 0b01_0011, &[]),
        (6, 0, &[]),
        // Before version 6 the counters are elsewhere, and what comes two registers after one is another one.
        (5, DECLARED, &[]),
    ] {
        let (stays, touched, _) = clear(&processor(version, declared), ALL, registers());
        assert_eq!((stays, &*touched), (NONE, expected), "{version}, {declared:#b}");
    }
    let (_, touched, _) = clear(&amd_processor(true, 6), ALL, registers());
    assert_eq!(touched, []);
    // Leaf 7.1, EAX bit 8, declares leaf 0x23.
    let declared = processor(6, DECLARED);
    let hidden = Snapshot::capture(move |leaf, subleaf| {
        let mut answer = declared.leaf(leaf, subleaf);
        answer.eax = if leaf == 7 { 0 } else { answer.eax };
        answer
    });
    assert_eq!(clear(&hidden, ALL, registers()).1, []);
}

/// Counters that a session refuses are cleared nevertheless, for the kernel that comes next.
#[test]
fn registers_of_counters_that_cannot_be_used_are_cleared() {
    let declared = processor(6, DECLARED);
    let implausible = Snapshot::capture(move |leaf, subleaf| {
        let mut answer = declared.leaf(leaf, subleaf);
        // 31 bits wide.
        answer.eax = if leaf == 0x0A { answer.eax & !0xFF_0000 | 31 << 16 } else { answer.eax };
        answer
    });
    assert!(pmu_intel::counters(&implausible).counters().is_empty());
    let mut all = existing().map(|(register, _)| register).to_vec();
    all.sort_unstable();
    let (stays, touched, file) = clear(&implausible, ALL, registers());
    assert_eq!((stays, touched, left(&file)), (NONE, all, vec![]));
}

#[test]
fn a_counter_from_which_it_cannot_be_taken_is_told_and_the_others_are_cleared() {
    let processor = processor(6, DECLARED);
    for (register, counter) in existing() {
        let file = registers();
        file.fail(Fault::WritesTo(register));
        let (stays, _, file) = clear(&processor, ALL, file);
        assert_eq!((stays, left(&file)), (counter, vec![register]));
    }
    // A transient fault does no harm.
    for access in 0..7 {
        let file = registers();
        file.fail(Fault::Once(access));
        let (stays, touched, file) = clear(&processor, ALL, file);
        assert_eq!((stays, touched.len(), left(&file)), (NONE, 7 + 1, vec![]));
    }
}

#[test]
fn the_counters_that_were_cleared_are_taken_and_the_others_are_left_out() {
    let processor = processor(6, DECLARED);
    let (unit, msr, platform) =
        (pmu_intel::counters(&processor), registers(), FakePlatform::default());
    msr.fail(Fault::WritesTo(0x1987));
    let only = ALL.without(pmu_intel::clear_stale(&processor, ALL, &msr));
    let (memory, table) = (Memory::new(), Table::new());
    let source = Events::new(&unit, &table);
    let mut counters =
        CounterSession::take(source, &unit, only, (&msr, &platform), &memory).unwrap();
    let usable = CounterSet::from_bits(0b1111) | CounterSet::fixed(0b101);
    assert_eq!(counters.counters().usable, usable);
    counters.shut_down().unwrap();
    assert_eq!(left(&msr), [0x1987], "nothing is given back");
}
