//! Sessions on registers that firmware changed or cleared.

use super::support::*;
use core::cell::RefCell;
use pmu_core::access::AccessOperation;
use pmu_core::error::CounterError;
use pmu_core::profile::{InterfaceError, Overflow, Session};
use pmu_core::testing::{Access, RecordingMsr};
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::{CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_tests::StateRegisters;
use pmu_tests::deviations::snapshot;
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, Fault, RegisterFile};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

const ENTRY: u32 = 0x400;

/// Suspended: counters, selects, global control, freezing, and the LVT entry.
#[test]
fn a_session_whose_registers_were_lost_works_again() {
    for (version, freezes) in [(1, false), (2, false), (3, true), (4, false), (5, true)] {
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 0));
        let deviations = Deviations::of(&[Deviation::LosesRegisters]);
        let processor = snapshot(configuration, deviations);
        let emon = Emon::detect(&processor).unwrap();
        let keys = [EventKey::general(0x3C, 0), EventKey::general(0xC4, 0)];
        let events = FedEvents::new(&keys).unwrap();
        let pmu = VirtualPmu::new(configuration, events).unwrap();
        let mock = MockMsr::<8>::strict(pmu).deviating(deviations);
        let (memory, told) = (Memory::new(), RefCell::new(Vec::new()));
        let handler = |mock: &MockMsr<'_, 8>| {
            let tell = |overflow: Overflow| told.borrow_mut().push(overflow.source);
            service_sources(&emon, mock, &memory, tell).unwrap();
        };
        mock.on_interrupt(&handler);
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
        if freezes {
            session.freeze_on_interrupt().unwrap();
        }
        for source in [CYCLES, BRANCHES] {
            emon.set_interval(source, 0x1000).unwrap();
            session.start(source).unwrap();
        }
        let happen = |key: EventKey, count| {
            let mut feed = Feed::new(&events);
            feed.add(events.find(key).unwrap(), Privilege::User, count).unwrap();
            mock.advance(&mut feed);
        };
        happen(keys[0], 0x1000);
        assert_eq!(*told.borrow(), [CYCLES]);
        let control = mock.with_pmu(|pmu| pmu.state()).global_control();

        mock.lose_registers();
        if version > 1 {
            // Firmware ran meanwhile, and left them stopped.
            let _ = mock.with_pmu(|pmu| pmu.write(GLOBAL_CTRL, 0));
        }
        happen(keys[0], 0x2000);
        assert_eq!(told.borrow().len(), 1, "nothing counts");
        let context = format!("version {version}, {freezes}");
        assert_eq!(
            session.read(CYCLES),
            Err(InterfaceError::Counters(CounterError::RegistersLost)),
            "{context}"
        );
        let anew = session.reprogram(|o| panic!("{context}: {o:?}"));
        assert_eq!(
            anew.map(CounterSet::bits),
            Ok(0b11),
            "{context}: these lost what they had counted"
        );
        assert_eq!(mock.performance_entry(), ENTRY);
        let state = mock.with_pmu(|pmu| pmu.state());
        assert_eq!(state.global_control(), control, "{context}");
        if freezes {
            assert_eq!(
                mock.with_pmu(|pmu| pmu.read(DEBUGCTL)),
                pmu_virt::Read::Shared { value: 1 << 12, mask: 0x7FC1 }
            );
        }
        told.borrow_mut().clear();
        happen(keys[0], 0x1000);
        happen(keys[1], 0x1000);
        assert_eq!(*told.borrow(), [CYCLES, BRANCHES], "{context}");
        // Nothing was lost: nothing begins anew.
        happen(keys[0], 0x800);
        assert_eq!(session.reprogram(|o| panic!("{context}: {o:?}")).map(CounterSet::bits), Ok(0));
        assert_eq!(session.read(CYCLES), Ok(0x800), "{context}");
        session.shut_down().unwrap();
    }
}

#[test]
fn saved_counters_are_restored_after_their_processor_lost_its_registers() {
    for version in [1, 2] {
        let ((emon, processor), memory) = (emon(version, 4), Memory::new());
        let (msr, platform) = (RegisterFile::intel(4, version > 1), FakePlatform::default());
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        session.start(CYCLES).unwrap();
        msr.set(0xC1, msr.get(0xC1) + 9);
        let mut area = SavedCounters::<[SavedCounter; 4]>::new();
        session.save(&mut area, |o| panic!("{o:?}")).unwrap();
        for register in [0xC1, 0x186] {
            msr.set(register, 0);
        }
        assert_eq!(session.reprogram(|o| panic!("{o:?}")).map(CounterSet::bits), Ok(0));
        assert_eq!(msr.get(0x186), 0, "it is not on the processor");
        session.restore(&area).unwrap();
        assert_eq!(session.read(CYCLES), Ok(9));
        assert_eq!(msr.get(0x186), 0x53_003C);
    }
}

#[test]
fn a_switch_after_registers_were_lost_says_so_and_invents_no_overflow() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    session.start(CYCLES).unwrap();
    for register in [0xC1, 0x186] {
        msr.set(register, 0);
    }
    let mut area = SavedCounters::<[SavedCounter; 4]>::new();
    let saved = session.save(&mut area, |o| panic!("invented: {o:?}"));
    assert_eq!(saved, Err(InterfaceError::Counters(CounterError::RegistersLost)));
}

#[test]
fn a_counter_that_cannot_be_programmed_again_is_named() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    session.start(CYCLES).unwrap();
    session.start(BRANCHES).unwrap();
    msr.set(0x186, 0);
    msr.set(0x187, 0);
    msr.fail(Fault::WritesTo(0x186));
    let outcome = session.reprogram(|o| panic!("{o:?}"));
    assert!(
        matches!(outcome, Err(InterfaceError::Counters(CounterError::StateUnknown(f))) if f.register == 0x186)
    );
    assert!(!session.is_running(CYCLES));
    assert!(session.is_running(BRANCHES) && msr.get(0x187) == 0x53_00C4, "the other goes on");
    msr.fail(Fault::Never);
    session.shut_down().unwrap();
}

#[test]
fn the_freeze_bit_is_read_back_after_it_was_set() {
    let ((emon, processor), memory) = (emon(2, 4), Memory::new());
    let file = RegisterFile::intel(4, true);
    file.set(DEBUGCTL, 1 << 12);
    let (msr, platform) = (RecordingMsr::<_, 64>::new(file), FakePlatform::default());
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    msr.take();
    session.freeze_on_interrupt().unwrap();
    let update =
        Access { operation: AccessOperation::Update, register: DEBUGCTL, outcome: Ok(1 << 12) };
    assert_eq!(msr.take(), [update, update]);
}
