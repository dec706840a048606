//! Counters and bits of other owners, beside a session.

use super::support;
use super::support::*;
use core::cell::Cell;
use pmu_core::error::CounterError;
use pmu_core::profile::{InterfaceError, Session};
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::{CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_tests::StateRegisters;
use pmu_tests::deviations::snapshot;
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, Fault, RegisterFile};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

/// A watchdog on a fixed counter, and its bit of the shared registers.
const WATCHDOG: u64 = 1 << 33;

#[test]
fn a_watchdog_survives_service_and_shut_down() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    session.start(CYCLES).unwrap();
    msr.take_writes();
    // It comes after the session, and declares its bit.
    session.set_others_control(WATCHDOG, true).unwrap();
    let is_off = |(register, value): &(u32, u64)| *register == GLOBAL_CTRL && value & 0xF != 0xF;
    assert!(!msr.take_writes().iter().any(is_off), "the session's counters count meanwhile");
    assert_eq!(msr.get(GLOBAL_CTRL), WATCHDOG | 0xF);
    msr.set(GLOBAL_STATUS, WATCHDOG | 1);
    msr.take_writes();
    let serviced = service_sources(&emon, &(&msr, &platform), &memory, |_| ()).unwrap();
    assert_eq!(serviced.overflows, 1);
    assert!(msr.take_writes().contains(&(STATUS_RESET, 1)), "its status bit is its own");
    assert_eq!(msr.get(GLOBAL_CTRL), WATCHDOG | 0xF);
    msr.set(GLOBAL_STATUS, 0);
    let mut area = SavedCounters::<[SavedCounter; 4]>::new();
    session.save(&mut area, |o| panic!("{o:?}")).unwrap();
    assert_eq!(msr.get(GLOBAL_CTRL), WATCHDOG);
    session.restore(&area).unwrap();
    session.shut_down().unwrap();
    assert_eq!(msr.get(GLOBAL_CTRL), WATCHDOG);
}

#[test]
fn a_watchdog_that_leaves_takes_its_bit_with_it() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    msr.set(GLOBAL_CTRL, WATCHDOG | 0b10);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    session.set_others_control(WATCHDOG, false).unwrap();
    assert_eq!(msr.get(GLOBAL_CTRL), 0xF);
    session.shut_down().unwrap();
    assert_eq!(msr.get(GLOBAL_CTRL), 0b10, "its own bits as they were found");
}

#[test]
fn own_bits_are_not_anothers_to_set() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    let refused = session.set_others_control(WATCHDOG | 0b101, false);
    assert_eq!(refused, Err(InterfaceError::Counters(CounterError::OwnControlBits(0b101))));
    assert_eq!(msr.get(GLOBAL_CTRL), 0xF);
    msr.fail(Fault::WritesTo(GLOBAL_CTRL));
    assert!(matches!(
        session.set_others_control(WATCHDOG, true),
        Err(InterfaceError::Counters(CounterError::Unchanged(_)))
    ));
    msr.fail(Fault::Never);
    session.start(CYCLES).unwrap();
    assert_eq!(msr.get(GLOBAL_CTRL), 0xF, "what failed left nothing behind");

    let ((emon, processor), memory) = (support::emon(1, 4), Memory::new());
    let msr = RegisterFile::intel(4, false);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    let none = session.set_others_control(WATCHDOG, true);
    assert_eq!(none, Err(InterfaceError::Counters(CounterError::OwnControlBits(0))));
}

/// The watchdog's counter interrupts, on the software PMU, while the session's counters do.
#[test]
fn a_watchdogs_counter_goes_on_counting_through_interrupts_of_the_session() {
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    let processor = snapshot(configuration, Deviations::NONE);
    let emon = Emon::detect(&processor).unwrap();
    // Fixed counter 1 counts cycles, as the session does.
    let key = EventKey::general(0x3C, 0);
    let events = FedEvents::new(&[key]).unwrap();
    let happened = || {
        let mut feed = Feed::new(&events);
        feed.add(events.find(key).unwrap(), Privilege::Kernel, 0x1000).unwrap();
        feed
    };
    let mock = MockMsr::<8>::strict(VirtualPmu::new(configuration, events).unwrap());
    let memory = Memory::new();
    let (own, watchdog) = (Cell::new(0), Cell::new(0));
    let handler = |mock: &MockMsr<'_, 8>| {
        service_sources(&emon, mock, &memory, |_| own.set(own.get() + 1)).unwrap();
        mock.with_pmu(|pmu| {
            if pmu.state().global_status() & WATCHDOG != 0 {
                let _ = pmu.write(STATUS_RESET, WATCHDOG);
                let _ = pmu.write(0x30A, u64::MAX >> 16 & !0xFFF);
                watchdog.set(watchdog.get() + 1);
            }
        });
    };
    mock.on_interrupt(&handler);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    emon.set_interval(CYCLES, 0x1000).unwrap();
    session.start(CYCLES).unwrap();
    mock.with_pmu(|pmu| {
        let _ = pmu.write(0x30A, u64::MAX >> 16 & !0xFFF);
        let _ = pmu.write(0x38D, 0xB0);
    });
    session.set_others_control(WATCHDOG, true).unwrap();
    for _ in 0..8 {
        mock.advance(&mut happened());
    }
    assert_eq!((own.get(), watchdog.get()), (8, 8));
    session.shut_down().unwrap();
    mock.advance(&mut happened());
    assert_eq!((own.get(), watchdog.get()), (8, 9), "it counts on");
    // From here on the watchdog unmasks the LVT entry itself.
    assert_eq!(mock.performance_entry(), 0x1_0400);
}
