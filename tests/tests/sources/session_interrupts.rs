//! The driver's interrupt path on passive registers, with a status and without.

use super::support::*;
use core::cell::RefCell;
use pmu_amd::Amd64;
use pmu_core::error::ServiceError;
use pmu_core::memory::CounterMemory;
use pmu_core::profile::{InterfaceError, Overflow, Session};
use pmu_core::testing::{Access, RecordingMsr};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource};
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, Fault, RegisterFile, intel_processor};

const WIDTH: u64 = (1 << 48) - 1;

/// Services an interrupt and returns the overflows.
fn service<I: EventSource<Processor = Snapshot>>(
    interface: &I,
    msr: &RegisterFile,
    platform: &FakePlatform,
    memory: &CounterMemory,
) -> Vec<Overflow> {
    let found = RefCell::new(Vec::new());
    let result = service_sources(&interface, &(&msr, &platform), memory, |overflow| {
        found.borrow_mut().push(overflow)
    });
    assert_eq!(result.unwrap().overflows as usize, found.borrow().len());
    found.into_inner()
}

/// Without a status register each running counter is read: one that wrapped has its top bit clear.
#[test]
fn a_counter_that_wrapped_is_reported_and_loaded_again() {
    let (msr, platform, memory) =
        (RegisterFile::intel(4, false), FakePlatform::default(), Memory::new());
    let interface = emon(1, 4);
    let mut session = open(&interface, &msr, &platform, &memory);
    session.start(CYCLES).unwrap();
    session.start(INSTRUCTIONS).unwrap();
    platform.unmasked.set(0);

    assert_eq!(service(&interface, &msr, &platform, &memory), []);
    assert_eq!(platform.unmasked.get(), 1, "a spurious interrupt is unmasked too");
    msr.set(0xC2, 5);
    let expected = Overflow { source: INSTRUCTIONS, events: 0x1_0000, counter: counter(1) };
    assert_eq!(service(&interface, &msr, &platform, &memory), [expected]);
    assert_eq!(msr.get(0xC2), WIDTH - 0xFFFF);
    // A new interval applies from the next overflow on; this one still stands for the old.
    interface.set_interval(INSTRUCTIONS, 0x2000).unwrap();
    msr.set(0xC2, 0);
    msr.set(0xC1, 0);
    let found = service(&interface, &msr, &platform, &memory);
    assert_eq!(
        found.iter().map(|o| (o.counter.bit(), o.events)).collect::<Vec<_>>(),
        [(0, 0x1_0000), (1, 0x1_0000)]
    );
    assert_eq!(msr.get(0xC2), WIDTH - 0x1FFF);
    msr.set(0xC2, 0);
    assert_eq!(service(&interface, &msr, &platform, &memory)[0].events, 0x2000);

    // A stopped source is silent, whatever its counter holds.
    session.stop(INSTRUCTIONS).unwrap();
    msr.set(0xC2, 0);
    assert_eq!(service(&interface, &msr, &platform, &memory), []);
}

#[test]
fn amd_does_not_unmask_the_entry_again() {
    let (msr, platform, memory) = (RegisterFile::amd(), FakePlatform::default(), Memory::new());
    let interface = Amd64::declared();
    let mut session = open(&interface, &msr, &platform, &memory);
    session.start(source(0xBF)).unwrap();
    assert_eq!(platform.unmasked.get(), 1);
    msr.set(0xC001_0004, 3);
    let expected = Overflow { source: source(0xBF), events: 0x1_0000, counter: counter(0) };
    assert_eq!(service(&interface, &msr, &platform, &memory), [expected]);
    assert_eq!(platform.unmasked.get(), 1);
}

/// From version 2 on the status shows the overflows; the counters stand still meanwhile; bits of others in the
/// shared registers stay as they are.
#[test]
fn the_status_register_is_believed_and_others_bits_are_left_alone() {
    const FIXED: u64 = 7 << 32;
    let platform = FakePlatform::default();
    let (interface, memory) = (emon(2, 4), Memory::new());
    let msr = RecordingMsr::<_, 32>::new(RegisterFile::intel(4, true));
    msr.inner().set(0x38F, FIXED);
    let processor = intel_processor(2, 4);
    let mut session =
        Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
            .unwrap();
    assert_eq!(msr.inner().get(0x38F), FIXED | 0xF);
    session.start(CYCLES).unwrap();
    session.start(BRANCHES).unwrap();
    msr.take();
    platform.unmasked.set(0);

    msr.inner().set(0x38E, 1 << 63 | 1 << 32 | 0b10);
    let result = service_sources(&interface, &(&msr, &&platform), &memory, |overflow| {
        assert_eq!((overflow.source, overflow.counter), (BRANCHES, counter(1)));
        assert_eq!(msr.inner().get(0x38F), FIXED, "the own counters stand still");
    });
    assert_eq!(result.unwrap().overflows, 1);
    let expected = [
        Access::write(0x38F, FIXED),
        Access::read(0x38E, 1 << 63 | 1 << 32 | 0b10),
        // Acknowledged first: an overflow after that sets the status anew.
        Access::write(0x390, 0b10),
        Access::write(0xC2, WIDTH - 0xFFFF),
        Access::write(0x38F, FIXED | 0xF),
    ];
    assert_eq!(msr.take(), expected);
    assert_eq!(platform.unmasked.get(), 1);

    // An overflow that is pending when its source stops is acknowledged and dropped.
    msr.inner().set(0x38E, 0b01);
    session.stop(CYCLES).unwrap();
    assert_eq!(msr.inner().get(0x390), 0b01);
    session.shut_down().unwrap();
    assert_eq!(msr.inner().get(0x38F), FIXED);
}

/// A fault on the way is reported after the remaining accesses.
#[test]
fn a_fault_does_not_keep_the_rest_from_being_serviced() {
    let platform = FakePlatform::default();
    let (interface, memory) = (emon(2, 4), Memory::new());
    let msr = RegisterFile::intel(4, true);
    let mut session = open(&interface, &msr, &platform, &memory);
    session.start(CYCLES).unwrap();
    session.start(BRANCHES).unwrap();
    msr.set(0x38E, 0b11);
    msr.fail(Fault::Register(0xC1));
    platform.unmasked.set(0);
    let mut seen = Vec::new();
    let result = service_sources(&interface, &(&msr, &platform), &memory, |o| seen.push(o.source));
    let counters = CounterSet::from_bits(0b01);
    let error = ServiceError { fault: write_fault(0xC1), counters, masked: false };
    assert_eq!(result, Err(error));
    assert_eq!(seen, [CYCLES, BRANCHES]);
    assert_eq!(msr.get(0xC2), WIDTH - 0xFFFF);
    assert_eq!((msr.get(0x390), msr.get(0x38F)), (0b11, 0xF));
    assert_eq!(platform.unmasked.get(), 1);
}

#[test]
fn read_tells_the_events_since_the_counter_was_loaded() {
    let (msr, platform, memory) =
        (RegisterFile::intel(4, false), FakePlatform::default(), Memory::new());
    let interface = emon(1, 4);
    let mut session = open(&interface, &msr, &platform, &memory);
    assert_eq!(session.read(CYCLES), Err(InterfaceError::NotStarted(CYCLES)));
    session.start(CYCLES).unwrap();
    msr.set(0xC1, msr.get(0xC1) + 77);
    assert_eq!(session.read(CYCLES), Ok(77));
    msr.set(0xC1, 2);
    assert_eq!(session.read(CYCLES), Ok(0x1_0002));
}
