//! Starting and stopping profiles: the state machine, the hardware behind it, and what interrupts
//! find meanwhile.

mod kprofile;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::Instant;

use kprofile::{
    Frame, Machine, REFUSAL, buffer, counts, leak, process, processor, request, source, x64,
};
use pmu_core::{InterfaceError, InterruptFrame, KProfileSource, ProcessorNumber};
use pmu_kprofile::WindowsVersion::{self, Nt351, Windows8, Windows10v2004};
use pmu_kprofile::{
    Affinity, BasicProfile, Examination, ProfileCallback, ProfileError, ProfileHardware,
    ProfileObject, Profiles, Rules, Statistics,
};
use proptest::prelude::*;

const TIME: KProfileSource = KProfileSource::TIME;

/// Room for few objects, and for the processors of two groups.
type Lists = Profiles<5, 70>;

fn object<'b>(request: BasicProfile<'b>, machine: &Machine) -> ProfileObject<'b> {
    ProfileObject::basic(Rules::LATEST, request, machine).expect("a good request")
}

/// A profile by `from` on `processors` of group 0.
fn on(from: u32, processors: &[u8], machine: &Machine) -> &'static ProfileObject<'static> {
    let affinity = processors.iter().map(|number| processor(0, *number)).collect();
    let request =
        BasicProfile { source: source(from), affinity: Some(affinity), ..request(buffer(1)) };
    leak(object(request, machine))
}

/// That a refusal changed nothing: what runs, and how many objects are started.
#[track_caller]
fn unchanged<R>(lists: &Lists, machine: &mut Machine, act: impl FnOnce(&mut Machine) -> R) -> R {
    let before = (machine.running(), lists.started(), lists.statistics());
    let result = act(machine);
    assert_eq!((machine.running(), lists.started(), lists.statistics()), before);
    result
}

#[test]
fn starting_twice_and_stopping_what_is_stopped_are_errors_that_change_nothing() {
    let (lists, other) = (leak(Lists::new()), leak(Lists::new()));
    let machine = &mut Machine::new(Affinity::first(2));
    let object = on(0x19, &[0, 1], machine);
    let stopped = unchanged(lists, machine, |m| lists.stop(object, m)).unwrap_err();
    assert_eq!(stopped, ProfileError::NotStarted);
    assert_eq!(stopped.status().unwrap().value(), 0xC000_00B7);
    assert!(!object.is_started());

    lists.start(object, machine).unwrap();
    assert!(object.is_started());
    let started = unchanged(lists, machine, |m| lists.start(object, m)).unwrap_err();
    assert_eq!(started, ProfileError::AlreadyStarted);
    assert_eq!(started.status().unwrap().value(), 0xC000_00B8);

    let elsewhere = unchanged(other, machine, |m| other.start(object, m)).unwrap_err();
    assert_eq!(elsewhere, ProfileError::OnAnotherList);
    assert_eq!(elsewhere.status().unwrap().value(), 0xC000_00B8);
    let elsewhere = unchanged(lists, machine, |m| other.stop(object, m)).unwrap_err();
    assert_eq!(elsewhere, ProfileError::OnAnotherList);
    assert!(object.is_started());
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)), Examination::default());
    assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x19)).hits, 1);

    lists.stop(object, machine).unwrap();
    assert!(!object.is_started());
    assert_eq!(unchanged(lists, machine, |m| lists.stop(object, m)), Err(ProfileError::NotStarted));
    assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x19)).hits, 0);
    // It can be used again, and on other lists.
    other.start(object, machine).unwrap();
    assert_eq!(other.interrupt(&Frame::at(0x1000), source(0x19)).hits, 1);
    assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x19)).hits, 0);
    other.stop(object, machine).unwrap();
    assert_eq!(machine.running(), []);
}

#[test]
fn full_lists_refuse_one_more_until_one_is_stopped() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    let objects: Vec<_> = (0x19..0x1F).map(|from| on(from, &[0], machine)).collect();
    for (started, object) in objects[..5].iter().enumerate() {
        assert_eq!(lists.started(), started);
        lists.start(object, machine).unwrap();
    }
    let error = unchanged(lists, machine, |m| lists.start(objects[5], m)).unwrap_err();
    assert_eq!(error, ProfileError::AtLimit);
    assert_eq!(error.status().unwrap().value(), 0xC000_00D3);
    assert!(!objects[5].is_started());
    // An object's own state comes before the limit.
    assert_eq!(lists.start(objects[2], machine), Err(ProfileError::AlreadyStarted));
    lists.stop(objects[2], machine).unwrap();
    lists.start(objects[5], machine).unwrap();
    assert_eq!(lists.started(), 5);
}

#[test]
fn an_object_without_an_active_processor_does_not_start() {
    let lists = leak(Lists::with_rules(x64(Nt351)));
    let machine = &mut Machine::new(Affinity::first(2));
    let nowhere = BasicProfile { affinity: Some(Affinity::of_group(0, 4)), ..request(buffer(1)) };
    let object = leak(ProfileObject::basic(x64(Nt351), nowhere, machine).unwrap());
    let error = unchanged(lists, machine, |m| lists.start(object, m)).unwrap_err();
    assert_eq!((error, error.status()), (ProfileError::NoProcessor, None));
    assert!(!object.is_started());
}

#[test]
fn hardware_that_fails_on_the_kth_processor_leaves_nothing_started() {
    let active = Affinity::of_group(0, 0b111).union(Affinity::of_group(1, 0b11));
    let all: Vec<ProcessorNumber> = active.iter().collect();
    for (k, failing) in all.iter().enumerate() {
        let lists = leak(Lists::new());
        let machine = &mut Machine::new(active);
        // One of the processors runs the source for somebody else all the time.
        let first = on(0x19, &[1], machine);
        lists.start(first, machine).unwrap();
        machine.refuses_start = Affinity::of(*failing);
        let everywhere = BasicProfile { source: source(0x19), ..request(buffer(1)) };
        let object = leak(object(everywhere, machine));
        let outcome = unchanged(lists, machine, |m| lists.start(object, m));
        if *failing == processor(0, 1) {
            // Where it runs already there is nothing to fail.
            unreachable!("{outcome:?}");
        }
        let expected = ProfileError::Hardware { processor: *failing, error: REFUSAL };
        assert_eq!(outcome, Err(expected), "{k}");
        assert_eq!(expected.status().unwrap().value(), 0xC000_009A);
        assert_eq!(machine.running(), [(0, 1, 0x19)]);
        assert!(!object.is_started());
        assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x19)).hits, 0);

        machine.refuses_start = Affinity::EMPTY;
        lists.start(object, machine).unwrap();
        assert_eq!(machine.running().len(), all.len());
    }
}
