//! Interrupts that a session shares with others: a watchdog's counter, and NMIs of others.

use super::support::*;
use core::cell::Cell;
use pmu_core::profile::{Overflow, Session};
use pmu_core::{Claim, CounterSet};
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, RegisterFile};

#[test]
fn without_a_session_an_interrupt_touches_no_register() {
    let (emon, _) = emon(2, 4);
    let memory = Memory::new();
    let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    msr.set(GLOBAL_STATUS, 0xF);
    let serviced =
        service_sources(&emon, &(&msr, &platform), &memory, |o| panic!("{o:?}")).unwrap();
    assert_eq!((serviced.overflows, serviced.claim), (0, Claim::NotOurs));
    assert_eq!((msr.accesses(), platform.unmasked.get()), (0, 0));
}

#[test]
fn one_interrupt_after_shut_down_is_claimed_and_touches_no_register() {
    for version in [1, 2] {
        let ((emon, processor), memory) = (emon(version, 4), Memory::new());
        let (msr, platform) = (RegisterFile::intel(4, version > 1), FakePlatform::default());
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        session.start(CYCLES).unwrap();
        session.shut_down().unwrap();
        let (accesses, unmasked) = (msr.accesses(), platform.unmasked.get());
        let claim = || {
            service_sources(&emon, &(&msr, &platform), &memory, |o| panic!("{o:?}")).unwrap().claim
        };
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
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    session.start(CYCLES).unwrap();
    session.start(BRANCHES).unwrap();
    let serve = |status| {
        msr.set(GLOBAL_STATUS, status);
        let claim = service_sources(&emon, &(&msr, &platform), &memory, |_| ()).unwrap().claim;
        msr.set(GLOBAL_STATUS, 0);
        claim
    };
    assert_eq!(serve(0), Claim::NotOurs);
    // A fixed counter's, which its owner claims: unmasking while it is set may raise another, claimed ahead.
    assert_eq!(serve(1 << 32), Claim::Ours);
    assert_eq!(serve(1 << 32 | 1), Claim::OursAndMore);
    assert_eq!(serve(0b01), Claim::Ours);
    assert_eq!(serve(0b11), Claim::OursAndMore);
    assert_eq!([Claim::NotOurs, Claim::Ours, Claim::OursAndMore].map(Claim::interrupts), [0, 1, 2]);
}

#[test]
fn an_interrupt_of_an_overflow_that_stop_dropped_is_claimed_once() {
    for version in [1, 2] {
        let ((emon, processor), memory) = (emon(version, 4), Memory::new());
        let (msr, platform) = (RegisterFile::intel(4, version > 1), FakePlatform::default());
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        let claim = || {
            service_sources(&emon, &(&msr, &platform), &memory, |o| panic!("{o:?}")).unwrap().claim
        };
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
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
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
            let inner =
                service_sources(&emon, &(&msr, &platform), &memory, |o| panic!("{o:?}")).unwrap();
            nested.set(Some(inner));
        };
        let outer = service_sources(&emon, &(&msr, &platform), &memory, callback).unwrap();
        let inner = nested.get().unwrap();
        assert_eq!((inner.overflows, inner.claim), (0, Claim::Ours));
        assert_eq!((outer.overflows, told.get()), (1, 1));
        // The note is forgotten with the service that it was for.
        let later =
            service_sources(&emon, &(&msr, &platform), &memory, |o| panic!("{o:?}")).unwrap();
        assert_eq!(later.overflows, 0);
    }
}
