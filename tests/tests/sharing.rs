//! A session beside others: memory in use, a watchdog's counter, and NMIs of others. `sharing_platforms.rs` has unlike
//! processors.

mod sharing_support;

use core::cell::Cell;
use pmu_core::{
    Claim, CounterError, CounterMemory, CounterSet, CounterSlot, InterfaceError, Overflow,
    ProfileInterface, SavedCounter, SavedCounters,
};
use pmu_intel::Emon;
use pmu_tests::StateRegisters;
use pmu_tests::deviations::snapshot;
use pmu_tests::{FakePlatform, Fault, RegisterFile};
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{
    Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege, VirtualPmu,
};
use sharing_support::*;

mod memory {
    use super::*;

    #[test]
    fn memory_that_a_session_has_is_in_use_until_it_is_shut_down() {
        let ((emon, processor), memory) = (emon(2, 4), Memory::new());
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        let take = || emon.initialize(&processor, &msr, &platform, &memory);
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
        let take = || emon.initialize(&processor, &msr, &platform, &memory).unwrap();
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
        let error = emon.initialize(&processor, &msr, &platform, &memory).unwrap_err();
        assert!(matches!(error, InterfaceError::Counters(CounterError::Access(_))));
        msr.fail(Fault::Never);
        emon.initialize(&processor, &msr, &platform, &memory).unwrap();
    }

    /// The counters' numbers are bytes.
    #[test]
    fn more_than_255_slots_can_be_lent() {
        let ((emon, processor), memory) = (emon(2, 4), CounterMemory::<[CounterSlot; 300]>::new());
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
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
                let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
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
}

mod interrupts {
    use super::*;

    #[test]
    fn without_a_session_an_interrupt_touches_no_register() {
        let (emon, _) = emon(2, 4);
        let memory = Memory::new();
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        msr.set(GLOBAL_STATUS, 0xF);
        let serviced = emon.service(&&msr, &&platform, &memory, |o| panic!("{o:?}")).unwrap();
        assert_eq!((serviced.overflows, serviced.claim), (0, Claim::NotOurs));
        assert_eq!((msr.accesses(), platform.unmasked.get()), (0, 0));
    }

    #[test]
    fn one_interrupt_after_shut_down_is_claimed_and_touches_no_register() {
        for version in [1, 2] {
            let ((emon, processor), memory) = (emon(version, 4), Memory::new());
            let (msr, platform) = (RegisterFile::intel(4, version > 1), FakePlatform::default());
            let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
            session.start(CYCLES).unwrap();
            session.shut_down().unwrap();
            let (accesses, unmasked) = (msr.accesses(), platform.unmasked.get());
            let claim =
                || emon.service(&&msr, &&platform, &memory, |o| panic!("{o:?}")).unwrap().claim;
            assert_eq!(claim(), Claim::Ours);
            // Of those left to be expected from before, one more may be claimed.
            let _ = claim();
            assert_eq!(claim(), Claim::NotOurs);
            assert_eq!((msr.accesses(), platform.unmasked.get()), (accesses, unmasked));
        }
    }

    #[test]
    fn an_interrupt_of_another_source_is_not_claimed() {
        let ((emon, processor), memory) = (emon(2, 4), Memory::new());
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
        session.start(CYCLES).unwrap();
        session.start(BRANCHES).unwrap();
        let serve = |status| {
            msr.set(GLOBAL_STATUS, status);
            let claim = emon.service(&&msr, &&platform, &memory, |_| ()).unwrap().claim;
            msr.set(GLOBAL_STATUS, 0);
            claim
        };
        assert_eq!(serve(0), Claim::NotOurs);
        // A fixed counter's, which its owner claims: unmasking while it is set may raise another, claimed ahead.
        assert_eq!(serve(1 << 32), Claim::Ours);
        assert_eq!(serve(1 << 32 | 1), Claim::OursAndMore);
        assert_eq!(serve(0b01), Claim::Ours);
        assert_eq!(serve(0b11), Claim::OursAndMore);
        assert_eq!(
            [Claim::NotOurs, Claim::Ours, Claim::OursAndMore].map(Claim::interrupts),
            [0, 1, 2]
        );
    }

    #[test]
    fn an_interrupt_of_an_overflow_that_stop_dropped_is_claimed_once() {
        for version in [1, 2] {
            let ((emon, processor), memory) = (emon(version, 4), Memory::new());
            let (msr, platform) = (RegisterFile::intel(4, version > 1), FakePlatform::default());
            let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
            let claim =
                || emon.service(&&msr, &&platform, &memory, |o| panic!("{o:?}")).unwrap().claim;
            // Without a status, the first may be of a counter that firmware left.
            let _ = claim();
            assert_eq!(claim(), Claim::NotOurs);
            session.start(CYCLES).unwrap();
            session.stop(CYCLES).unwrap();
            assert_eq!(claim(), Claim::NotOurs, "version {version}: it had not overflowed");
            session.start(CYCLES).unwrap();
            msr.set(0xC1, 3);
            if version > 1 {
                msr.set(GLOBAL_STATUS, 1);
            }
            session.stop(CYCLES).unwrap();
            if version > 1 {
                msr.set(GLOBAL_STATUS, 0);
            }
            assert_eq!([claim(), claim()], [Claim::Ours, Claim::NotOurs], "version {version}");
        }
    }

    /// An interrupt within the callback only leaves a note.
    #[test]
    fn an_overflow_is_reported_once_though_its_callback_is_interrupted() {
        for version in [1, 2] {
            let ((emon, processor), memory) = (emon(version, 4), Memory::new());
            let (msr, platform) = (RegisterFile::intel(4, version > 1), FakePlatform::default());
            let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
            session.start(CYCLES).unwrap();
            msr.set(0xC1, 3);
            if version > 1 {
                msr.set(GLOBAL_STATUS, 1);
            }
            let (told, nested) = (Cell::new(0), Cell::new(None));
            let callback = |_: Overflow| {
                told.set(told.get() + 1);
                if version > 1 {
                    msr.set(GLOBAL_STATUS, 0);
                }
                let inner = emon.service(&&msr, &&platform, &memory, |o| panic!("{o:?}")).unwrap();
                nested.set(Some(inner));
            };
            let outer = emon.service(&&msr, &&platform, &memory, callback).unwrap();
            let inner = nested.get().unwrap();
            assert_eq!((inner.overflows, inner.claim), (0, Claim::Ours));
            assert_eq!((outer.overflows, told.get()), (1, 1));
            // The note is forgotten with the service that it was for.
            let later = emon.service(&&msr, &&platform, &memory, |o| panic!("{o:?}")).unwrap();
            assert_eq!(later.overflows, 0);
        }
    }
}

mod others {
    use super::*;

    /// A watchdog on a fixed counter, and its bit of the shared registers.
    const WATCHDOG: u64 = 1 << 33;

    #[test]
    fn a_watchdog_survives_service_and_shut_down() {
        let ((emon, processor), memory) = (emon(2, 4), Memory::new());
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
        session.start(CYCLES).unwrap();
        msr.take_writes();
        // It comes after the session, and declares its bit.
        session.set_others_control(WATCHDOG, true).unwrap();
        let is_off =
            |(register, value): &(u32, u64)| *register == GLOBAL_CTRL && value & 0xF != 0xF;
        assert!(!msr.take_writes().iter().any(is_off), "the session's counters count meanwhile");
        assert_eq!(msr.get(GLOBAL_CTRL), WATCHDOG | 0xF);
        msr.set(GLOBAL_STATUS, WATCHDOG | 1);
        msr.take_writes();
        let serviced = emon.service(&&msr, &&platform, &memory, |_| ()).unwrap();
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
        let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
        session.set_others_control(WATCHDOG, false).unwrap();
        assert_eq!(msr.get(GLOBAL_CTRL), 0xF);
        session.shut_down().unwrap();
        assert_eq!(msr.get(GLOBAL_CTRL), 0b10, "its own bits as they were found");
    }

    #[test]
    fn own_bits_are_not_anothers_to_set() {
        let ((emon, processor), memory) = (emon(2, 4), Memory::new());
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
        let refused = session.set_others_control(WATCHDOG | 0b101, false);
        assert_eq!(refused, Err(InterfaceError::Counters(CounterError::OwnControlBits(0b101))));
        assert_eq!(msr.get(GLOBAL_CTRL), 0xF);
        msr.fail(Fault::WritesTo(GLOBAL_CTRL));
        assert!(matches!(
            session.set_others_control(WATCHDOG, true),
            Err(InterfaceError::Counters(CounterError::Access(_)))
        ));
        msr.fail(Fault::Never);
        session.start(CYCLES).unwrap();
        assert_eq!(msr.get(GLOBAL_CTRL), 0xF, "what failed left nothing behind");

        let ((emon, processor), memory) = (super::emon(1, 4), Memory::new());
        let msr = RegisterFile::intel(4, false);
        let mut session = emon.initialize(&processor, &msr, &platform, &memory).unwrap();
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
            emon.service(mock, mock, &memory, |_| own.set(own.get() + 1)).unwrap();
            mock.with_pmu(|pmu| {
                if pmu.state().global_status() & WATCHDOG != 0 {
                    let _ = pmu.write(STATUS_RESET, WATCHDOG);
                    let _ = pmu.write(0x30A, u64::MAX >> 16 & !0xFFF);
                    watchdog.set(watchdog.get() + 1);
                }
            });
        };
        mock.on_interrupt(&handler);
        let mut session = emon.initialize(&processor, &mock, &mock, &memory).unwrap();
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
        // From here on its owner unmasks the entry itself.
        assert_eq!(mock.performance_entry(), 0x1_0400);
    }
}
