//! Records of a mock processor, and its deviations.

use super::guest::*;
use crate::naive_precise::memory::{RAM, Ram};
use core::cell::{Cell, RefCell};
use pmu_core::access::{AccessErrorKind, RegisterBackend};
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::precise::{FedRecord, GuestMemory, PreciseConfiguration, VirtualPrecise};
use pmu_virt::{FedEvents, Feed, Privilege, VirtualPmu};

/// A driver on the mock, with an area at [`AREA`] and a buffer of so many bytes and a threshold; counters 0 and 1 count
/// branches, with a record each 100.
fn on_mock<'h>(
    memory: &'h RefCell<Ram>,
    instructions: &'h dyn Fn(u64) -> FedRecord<'h>,
    own: PreciseConfiguration,
    deviations: &[Deviation],
    threshold: u64,
) -> MockMsr<'h, 8> {
    let events = FedEvents::new(&[BRANCHES]).unwrap();
    let precise = VirtualPrecise::new(&intel(5), own).unwrap();
    let pmu = VirtualPmu::new(intel(5), events).unwrap();
    let mock = MockMsr::<8>::strict(pmu)
        .with_precise(precise, memory, instructions)
        .deviating(Deviations::of(deviations));
    let words = [BUFFER, BUFFER, BUFFER + 0x1000, BUFFER + threshold];
    for (number, word) in (4..).zip(words) {
        memory.borrow_mut().put(AREA + 8 * number, word);
    }
    memory.borrow_mut().put(AREA + 0x40, 100u64.wrapping_neg());
    memory.borrow_mut().put(AREA + 0x48, 100u64.wrapping_neg());
    mock.set_performance_entry(0x400);
    let period = FULL - 100;
    for (address, value) in [(0x600, AREA), (0x4C1, period), (0x4C2, period), (0x186, 0x43_00C4)] {
        mock.write(msr(address), value).unwrap();
    }
    mock
}

fn advance(mock: &MockMsr<'_, 8>, count: u64) {
    let events = mock.with_pmu(|pmu| *pmu.events());
    let mut feed = Feed::new(&events);
    feed.add(events.find(BRANCHES).unwrap(), Privilege::User, count).unwrap();
    mock.advance(&mut feed);
}

#[test]
fn the_mock_writes_a_record_for_each_overflow_and_interrupts_at_the_threshold() {
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(0x40_0000 + number);
    let own = PreciseConfiguration::debug_store(4);
    let mock = on_mock(&memory, &instructions, own, &[], 4 * 32);
    let seen = Cell::new(0);
    let handler = |mock: &MockMsr<8>| {
        assert_eq!(mock.read(msr(0x38E)), Ok(1 << 62));
        let mut memory = memory.borrow_mut();
        seen.set(seen.get() + (memory.word(AREA + 0x28).unwrap() - BUFFER) / 32);
        memory.put(AREA + 0x28, BUFFER);
        mock.write(msr(0x390), 1 << 62).unwrap();
        mock.set_performance_entry(0x400);
    };
    mock.on_interrupt(&handler);
    mock.write(msr(0x3F1), 1).unwrap();
    advance(&mock, 1_250);
    assert_eq!((mock.written_records(), mock.lost_records()), (12, 0));
    assert_eq!((mock.interrupts(), seen.get()), (3, 12));
    // An overflow just before an access is a record, too.
    mock.interrupt_at(1);
    assert!(mock.read(msr(0x3F1)).is_ok());
    assert_eq!(mock.written_records(), 13);
    mock.lose_registers();
    assert_eq!(mock.read(msr(0x3F1)), Ok(0));
    assert_eq!(mock.read(msr(0x345)).unwrap() >> 8 & 0xF, 4);
    assert_eq!(mock.snapshot().leaf(1, 0).edx >> 21 & 1, 1);
}

/// Counter 1 interrupts, and freezes counter 0 at the event that makes its record due.
#[test]
fn a_due_record_of_a_frozen_counter_is_written_at_the_counters_next_event() {
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(0x40_0000 + number);
    let own = PreciseConfiguration::debug_store(4);
    let mock = on_mock(&memory, &instructions, own, &[], 0x1000);
    for (address, value) in [(0x3F1, 1), (0x187, 0x53_00C4), (0x1D9, 1 << 12)] {
        mock.write(msr(address), value).unwrap();
    }
    advance(&mock, 100);
    let due = || mock.with_precise_records(|precise| precise.due());
    assert_eq!((mock.written_records(), mock.interrupts(), due()), (0, 1, Some(1)));
    // Frozen, and then without an event of the counter.
    advance(&mock, 5);
    mock.write(msr(0x390), 1 << 59 | 0b10).unwrap();
    let events = mock.with_pmu(|pmu| *pmu.events());
    let _ = mock.pass(&mut Feed::new(&events));
    assert_eq!((mock.written_records(), due(), mock.read(msr(0x4C1))), (0, Some(1), Ok(0)));
    let mut feed = Feed::new(&events);
    feed.add(events.find(BRANCHES).unwrap(), Privilege::User, 3).unwrap();
    // The overflow was counted before, and the record is written now.
    let advanced = mock.pass(&mut feed);
    assert_eq!((advanced.overflowed, advanced.wraps(0), advanced.records), (0, 0, 1));
    assert_eq!((mock.written_records(), mock.lost_records(), due()), (1, 0, Some(0)));
    assert_eq!(mock.read(msr(0x4C1)), Ok(FULL - 100));
    // The event of the record, and the two others.
    mock.advance(&mut feed);
    assert_eq!([0x4C1, 0x4C2].map(|counter| mock.read(msr(counter))), [Ok(FULL - 98), Ok(3)]);
}

#[test]
#[should_panic(expected = "illegal bits 0x1")]
fn a_strict_mock_refuses_a_counter_that_is_recorded_and_interrupts() {
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(number);
    let own = PreciseConfiguration::debug_store(4);
    let mock = on_mock(&memory, &instructions, own, &[], 32);
    mock.write(msr(0x3F1), 1).unwrap();
    let _ = mock.write(msr(0x186), 0x53_00C4);
}

#[test]
fn bits_of_counters_and_registers_that_are_not_offered_fault() {
    let refused = Err(AccessErrorKind::Fault);
    let mock = |own| {
        let precise = VirtualPrecise::new(&intel(5), own).unwrap();
        (VirtualPmu::new(intel(5), FedEvents::NONE).unwrap(), precise)
    };
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(number);
    let registers: [(_, u32, u64); 9] = [
        (PreciseConfiguration::debug_store(4), 0x3F1, 0x7_0000_000F),
        // Load latency of counters 0-3, without the baseline.
        (PreciseConfiguration::debug_store(3), 0x3F1, 0xF_0000_000F),
        (PreciseConfiguration::debug_store(0), 0x3F1, 1),
        (PreciseConfiguration::debug_store(3), 0x3F2, 0),
        (PreciseConfiguration::debug_store(4), 0x3F2, 0x1F00_000F),
        (PreciseConfiguration::debug_store(6), 0x3F2, 0x0007_000F_1F00_003F),
        (PreciseConfiguration::debug_store(0), 0x3F6, 0),
        (PreciseConfiguration::debug_store(1), 0x3F6, 0xFFFF),
        (PreciseConfiguration::debug_store(4), 0x3F4, 0),
    ];
    for (own, address, legal) in registers {
        for bit in 0..64 {
            let (pmu, precise) = mock(own);
            let mock = MockMsr::<8>::new(pmu).with_precise(precise, &memory, &instructions);
            let written = mock.write(msr(address), 1 << bit);
            let expected = if legal >> bit & 1 == 1 { Ok(()) } else { refused };
            assert_eq!(written, expected, "{address:#X} bit {bit} of {own:?}");
            assert_eq!(mock.breach().is_some(), expected.is_err());
        }
    }
}

#[test]
fn each_deviation_of_records_does_what_it_says() {
    let run = |own, deviation, threshold, counters, count| {
        let memory = RefCell::new(Ram::new());
        let instructions = |number| FedRecord::new(0x40_0000 + number);
        let platform: &[_] = &[deviation];
        let mock = on_mock(&memory, &instructions, own, platform, threshold);
        mock.write(msr(0x187), if counters == 3 { 0x43_00C4 } else { 0 }).unwrap();
        mock.write(msr(0x3F1), counters).unwrap();
        advance(&mock, count);
        let status = mock.read(msr(0x38E)).unwrap();
        let counts = (mock.written_records(), mock.lost_records(), mock.interrupts());
        let ram = memory.borrow().clone();
        (counts, status, ram)
    };
    let adaptive = PreciseConfiguration::debug_store(4);
    // The counter's own bit beside the buffer's.
    let (counts, status, _) = run(adaptive, Deviation::PreciseStatusBeside, 32, 1, 100);
    assert_eq!((counts, status), ((1, 0, 1), 1 << 62 | 1));
    // Half of 4,096 bytes: 64 records, and the interrupt after 32.
    let (counts, status, mut ram) = run(adaptive, Deviation::ShortDebugStore, 0x1000, 1, 3_200);
    assert_eq!((counts, status), ((32, 0, 1), 1 << 62));
    let (counts, ..) = run(adaptive, Deviation::ShortDebugStore, 0x1000, 1, 7_000);
    assert_eq!((counts.0, counts.1), (64, 6));
    assert_eq!(ram.word(AREA + 0x30), Ok(BUFFER + 0x1000));
    // The fourth index is beyond the buffer: the next record is lost.
    let (counts, _, mut ram) = run(adaptive, Deviation::ScribbledIndex, 0x1000, 1, 500);
    assert_eq!((counts.0, counts.1), (4, 1));
    assert_eq!(ram.word(AREA + 0x28), Ok(BUFFER + 0x2000));
    // One record of both counters; formats 1 and 2 name both in the status.
    let format_2 = PreciseConfiguration::debug_store(2);
    let (counts, _, mut ram) = run(format_2, Deviation::CollidedRecords, 0x1000, 3, 100);
    assert_eq!(counts, (1, 0, 0));
    assert_eq!(ram.word(BUFFER + 0x90), Ok(0b11));
    assert_eq!(ram.word(AREA + 0x28), Ok(BUFFER + 0xC0));
    let (counts, _, mut ram) = run(format_2, Deviation::LateIbs, 0x1000, 3, 100);
    assert_eq!(counts, (2, 0, 0));
    assert_eq!(ram.word(BUFFER + 0x90), Ok(0b01));
    assert_eq!(ram.word(BUFFER + 0xC0 + 0x90), Ok(0b10));
}

/// The trace of the mock's driver, and its interrupt.
#[test]
fn the_mock_traces_branches() {
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(number);
    let mut own = PreciseConfiguration::debug_store(4);
    own.branch_trace = true;
    let mock = on_mock(&memory, &instructions, own, &[], 32);
    for (number, word) in (0..).zip([BUFFER, BUFFER, BUFFER + 240, BUFFER + 24]) {
        memory.borrow_mut().put(AREA + 8 * number, word);
    }
    let branch = FedBranch::new(7, 9, FedBranchKind::Far, Privilege::Kernel);
    assert!(!mock.trace_branch(&branch));
    mock.write(msr(0x1D9), 0x1C0).unwrap();
    assert!(mock.trace_branch(&branch));
    assert_eq!((mock.interrupts(), mock.read(msr(0x38E))), (1, Ok(1 << 62)));
    assert_eq!(memory.borrow_mut().word(BUFFER + 8), Ok(9));
    assert_eq!(mock.with_precise_records(|precise| precise.is_tracing()), Some(true));
    let mut short = [0; 4];
    assert!(memory.borrow_mut().read(RAM - 1, &mut short).is_err());
}

/// PEBS that firmware left enabled: the driver reads it, and until the driver disables it, an overflow is recorded.
#[test]
fn records_that_were_left_enabled_go_to_an_area_that_is_not_there() {
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(number);
    let own = PreciseConfiguration::debug_store(4);
    let mock = on_mock(&memory, &instructions, own, &[Deviation::LeftPrecise], 32);
    assert_eq!(mock.read(msr(0x3F1)), Ok(0x7_0000_000F));
    mock.write(msr(0x600), 0).unwrap();
    advance(&mock, 100);
    assert_eq!((mock.written_records(), mock.lost_records(), mock.interrupts()), (0, 1, 0));
    mock.write(msr(0x3F1), 0).unwrap();
    mock.write(msr(0x4C1), FULL - 100).unwrap();
    mock.write(msr(0x186), 0x53_00C4).unwrap();
    advance(&mock, 100);
    assert_eq!((mock.lost_records(), mock.interrupts(), mock.read(msr(0x38E))), (1, 1, Ok(1)));
}
