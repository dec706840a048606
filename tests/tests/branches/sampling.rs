//! Zen 3's branch sampling, which has neither a filter nor freezing, and holds the interrupt.

use core::cell::RefCell;
use pmu_core::{
    BranchError, BranchFilter, BranchKinds, BranchRecorder, BranchUnit, Branches, CounterId,
    CounterMemory, CounterSession, CounterSet, CounterSlot, Event, EventEntry, EventSelect,
    EventTable, OpenedEvents, Snapshot, service_with,
};
use pmu_tests::{FakePlatform, Fault, RegisterFile, recorded};

use super::support::Records;

/// `DebugExtnCtl`: bits 4:3 are always set; 2 samples; 5 valid; 19:16 the next record.
const STOPPED: u64 = 0x18;
const SAMPLING: u64 = 0x1C;
const CONTROL: u32 = 0xC000_010F;
const FIRST: u32 = 0xC001_0300;

fn zen_3() -> (Snapshot, BranchUnit) {
    let processor = recorded("amd-zen3.txt");
    let unit = pmu_amd::branches(&processor).unwrap();
    (processor, unit)
}

/// The registers of a Zen 3. A bit of another owner in the control register stays.
fn registers() -> RegisterFile {
    let registers = (0xC001_0200..0xC001_020C).chain(FIRST..FIRST + 32).chain([CONTROL, 0x1D9]);
    RegisterFile::new(registers, 0xC001_0201).rdpmc_step(2)
}

#[test]
fn each_interrupt_has_the_branches_that_were_sampled_the_newest_first() {
    let ((processor, unit), msr, platform) = (zen_3(), registers(), FakePlatform::default());
    let records = Records::new();
    let counter_unit = pmu_amd::counters(&processor).unwrap();
    let memory = CounterMemory::<[CounterSlot; 6]>::new();
    let table = EventTable::<[EventEntry; 2]>::new();
    let source = OpenedEvents::new(&counter_unit, &table as &EventTable);
    let mut counters =
        CounterSession::take(source, &counter_unit, CounterSet::ALL, &msr, &platform, &memory)
            .unwrap();
    // A predecessor left sampling for counter 2.
    msr.set(CONTROL, 1 << 40 | 2 << 24 | SAMPLING);
    let mut recorder = BranchRecorder::take(&unit, &msr, &records).unwrap();
    assert_eq!(msr.get(CONTROL), 1 << 40 | STOPPED);
    assert_eq!(recorder.freeze_on_interrupt(), Err(BranchError::FreezeUnsupported));
    let stack = BranchFilter::USER.call_stack();
    assert_eq!(recorder.start(stack), Err(BranchError::FilterUnsupported(stack)));
    // Nothing can be selected.
    let calls = BranchFilter::USER.only(BranchKinds::CALLS);
    assert_eq!(recorder.start(calls), Ok(BranchFilter::ALL));
    assert_eq!(msr.get(CONTROL), 1 << 40 | SAMPLING);
    let event = pmu_amd::branch_sampling_event(100_003).unwrap();
    let event = counters.open_event(&counter_unit, &event).unwrap();
    counters.start_event(event, 0).unwrap();
    assert_eq!(counters.counter_of(event), CounterId::general(0));
    for record in 0..16 {
        msr.set(FIRST + 2 * record, 0x1000 + u64::from(record));
        msr.set(FIRST + 2 * record + 1, 0x2000 + u64::from(record));
    }
    let newest = |last: u64, count: usize| (0..=last).rev().map(|n| 0x1000 + n).take(count);
    let cases: [(u64, Vec<u64>); 4] = [
        (1 << 5, newest(15, 16).collect()),
        (1 << 5 | 5 << 16, newest(4, 5).collect()),
        (1 << 5 | 15 << 16, newest(14, 15).collect()),
        (0, vec![]),
    ];
    for (state, expected) in cases {
        msr.set(CONTROL, 1 << 40 | SAMPLING | state);
        // Overflowed.
        msr.set(0xC001_0201, 3);
        msr.take_writes();
        let found = RefCell::new(vec![]);
        let branches = Branches::new(&unit, &records);
        let serviced =
            service_with(&source, &&msr, &&platform, &memory, branches, |_, branches| {
                assert!(!branches.is_frozen());
                found.borrow_mut().extend(branches.iter().map(|branch| branch.from));
            });
        assert_eq!(serviced.unwrap().overflows, 1);
        assert_eq!(found.into_inner(), expected, "{state:#X}");
        // It samples again, from the first record on.
        assert_eq!(msr.get(CONTROL), 1 << 40 | SAMPLING);
        for (register, value) in msr.take_writes() {
            assert!(register != CONTROL || value & STOPPED == STOPPED, "{value:#X}");
        }
    }
    // Before the processor goes idle, and after.
    recorder.stop().unwrap();
    assert_eq!(msr.get(CONTROL), 1 << 40 | STOPPED);
    recorder.restart().unwrap();
    assert_eq!(msr.get(CONTROL), 1 << 40 | SAMPLING);
    // The task's own reading.
    msr.set(CONTROL, 1 << 40 | SAMPLING | 1 << 5 | 2 << 16);
    let found: Vec<u64> = recorder.read().unwrap().iter().map(|branch| branch.to).collect();
    assert_eq!(found, [0x2001, 0x2000]);
    recorder.shut_down().unwrap();
    assert_eq!((msr.get(CONTROL), msr.get(FIRST)), (1 << 40 | STOPPED, 0));
}

#[test]
fn the_event_is_taken_branches_on_counter_0_sixteen_before_the_period() {
    let counter = CounterId::general(0).unwrap().only();
    let event = |period| Event::raw(EventSelect::from_bits(0xC4)).every(period).on(counter);
    assert_eq!(pmu_amd::branch_sampling_event(17), Some(event(1)));
    assert_eq!(pmu_amd::branch_sampling_event(100_003), Some(event(99_987)));
    assert_eq!([0, 15, 16].map(pmu_amd::branch_sampling_event), [None; 3]);
    assert!(zen_3().1.holds_interrupt());
}

/// Under a stopped counter, the interrupt that the sampling holds would never come.
#[test]
fn a_window_stops_the_sampling_before_the_counter() {
    const SELECT: u32 = 0xC001_0200;
    let ((processor, unit), msr, platform) = (zen_3(), registers(), FakePlatform::default());
    let records = Records::new();
    let counter_unit = pmu_amd::counters(&processor).unwrap();
    let memory = CounterMemory::<[CounterSlot; 6]>::new();
    let table = EventTable::<[EventEntry; 2]>::new();
    let source = OpenedEvents::new(&counter_unit, &table as &EventTable);
    let mut counters =
        CounterSession::take(source, &counter_unit, CounterSet::ALL, &msr, &platform, &memory)
            .unwrap();
    let mut recorder = BranchRecorder::take(&unit, &msr, &records).unwrap();
    recorder.start(BranchFilter::ALL).unwrap();
    let event = pmu_amd::branch_sampling_event(100_003).unwrap();
    let event = counters.open_event(&counter_unit, &event).unwrap();
    counters.start_event(event, 0).unwrap();
    for record in 0..4 {
        msr.set(FIRST + 2 * record, 0x1000 + u64::from(record));
        msr.set(FIRST + 2 * record + 1, 0x2000 + u64::from(record));
    }
    // It overflowed, and four of the sixteen branches are sampled: the interrupt is held.
    msr.set(CONTROL, SAMPLING | 1 << 5 | 4 << 16);
    msr.set(0xC001_0201, 3);
    msr.take_writes();
    let sampled = RefCell::new(vec![]);
    let window = counters
        .lend_with(0, &mut recorder, |_, recorder| {
            sampled.borrow_mut().extend(recorder.branches().iter().map(|branch| branch.from));
        })
        .unwrap();
    let writes = msr.take_writes();
    let stopped = writes
        .iter()
        .position(|(register, value)| (*register, value & SAMPLING) == (CONTROL, STOPPED));
    let counter = writes.iter().position(|(register, _)| *register == SELECT).unwrap();
    assert!(stopped.unwrap() < counter, "{writes:X?}");
    assert_eq!(sampled.take(), [0x1003, 0x1002, 0x1001, 0x1000]);
    assert_eq!((msr.get(CONTROL), msr.get(FIRST)), (STOPPED, 0));
    window.end(0).unwrap();
    assert_eq!(msr.get(CONTROL), SAMPLING);
    // A counter that cannot be stopped: the sampling goes on, too.
    for fault in [Fault::WritesTo(SELECT), Fault::WritesTo(FIRST)] {
        msr.set(CONTROL, SAMPLING);
        msr.fail(fault);
        let lent = counters.lend_with(0, &mut recorder, |_, _| ()).map(|_| ());
        assert!(lent.is_err(), "{fault:?}");
        msr.fail(Fault::Never);
        assert_eq!(msr.get(CONTROL), SAMPLING, "{fault:?}");
        assert!(recorder.is_recording(), "{fault:?}");
    }
}
