//! The memory of a session, while it is in use and after.

use super::support::*;
use core::cell::Cell;
use pmu_core::CounterSet;
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{InterfaceError, Session};
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_tests::{FakePlatform, Fault, RegisterFile};

#[test]
fn memory_that_a_session_has_is_in_use_until_it_is_shut_down() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let take = || Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory);
    let mut session = take().unwrap();
    session.start(CYCLES).unwrap();
    let select = msr.get(0x186);
    assert_eq!(take().unwrap_err(), InterfaceError::Counters(CounterError::MemoryInUse));
    assert_eq!(msr.get(0x186), select, "the session goes on");
    assert!(session.is_running(CYCLES));
    session.shut_down().unwrap();
    // Dropped without a shutdown, it stays in use, and the error says so.
    take().unwrap();
    let error = take().unwrap_err();
    assert_eq!(error, InterfaceError::Counters(CounterError::MemoryInUse));
    assert!(error.to_string().contains("not shut down"), "{error}");
}

#[test]
fn a_session_that_was_shut_down_does_not_reach_into_its_successor() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let take = || {
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap()
    };
    let mut former = take();
    former.start(CYCLES).unwrap();
    former.shut_down().unwrap();
    let mut successor = take();
    successor.start(CYCLES).unwrap();
    assert!(!former.is_running(CYCLES));
    assert_eq!(former.stop(CYCLES), Err(InterfaceError::NotStarted(CYCLES)));
    assert_eq!(former.start(BRANCHES), Err(InterfaceError::UnsupportedSource(BRANCHES)));
    assert_eq!(former.shut_down(), Ok(()));
    assert_eq!(former.reprogram(|o| panic!("{o:?}")).map(CounterSet::bits), Ok(0));
    let mut area = SavedCounters::<[SavedCounter; 4]>::new();
    former.save(&mut area, |o| panic!("{o:?}")).unwrap();
    assert!(area.is_empty());
    assert!(successor.is_running(CYCLES));
    assert_eq!(msr.get(GLOBAL_CTRL), 0xF);
}

#[test]
fn a_failed_initialization_gives_the_memory_back() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    msr.fail(Fault::Register(GLOBAL_STATUS));
    let error = Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
        .unwrap_err();
    assert!(matches!(error, InterfaceError::Counters(CounterError::Unchanged(_))));
    msr.fail(Fault::Never);
    Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
}

/// The counters' numbers are bytes.
#[test]
fn more_than_255_slots_can_be_lent() {
    let ((emon, processor), memory) = (emon(2, 4), CounterMemory::<[CounterSlot; 300]>::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    assert_eq!(session.counters().usable.bits(), 0xF);
    session.start(CYCLES).unwrap();
    let mut area = SavedCounters::<[SavedCounter; 300]>::new();
    session.save(&mut area, |o| panic!("{o:?}")).unwrap();
    assert_eq!(area.len(), 1);
    session.restore(&area).unwrap();
    assert!(session.is_running(CYCLES));
    session.shut_down().unwrap();
}

/// Returns a counter's count since it was restored.
#[test]
fn a_switch_that_comes_several_intervals_late_saves_no_value_beyond_its_overflow() {
    const WIDTH: u64 = (1 << 48) - 1;
    for version in [1, 2] {
        for intervals in [1, 2, 3, 1000] {
            let ((emon, processor), memory) = (emon(version, 4), Memory::new());
            let msr = RegisterFile::intel(4, version > 1);
            let platform = FakePlatform::default();
            let mut session =
                Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                    .unwrap();
            session.start(CYCLES).unwrap();
            // It overflowed, and counted on.
            msr.set(0xC1, intervals * 0x1_0000 + 5);
            if version > 1 {
                msr.set(GLOBAL_STATUS, 1);
            }
            let mut area = SavedCounters::<[SavedCounter; 4]>::new();
            let told = Cell::new(0);
            session.save(&mut area, |_| told.set(told.get() + 1)).unwrap();
            assert_eq!(told.get(), 1);
            session.restore(&area).unwrap();
            assert_eq!(msr.get(0xC1), WIDTH - 0x1_0000 + 1 + 5, "{intervals} intervals late");
            assert_eq!(session.read(CYCLES), Ok(5));
            session.shut_down().unwrap();
        }
    }
}
