//! Starting and stopping profiles: the states of objects, the hardware calls, and the interrupts meanwhile.

use core::sync::atomic::AtomicU32;
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

use pmu_core::frame::{InterruptFrame, ProcessorNumber};
use pmu_core::profile::KProfileSource;
use pmu_kprofile::WindowsVersion::{Nt351, Windows8};
use pmu_kprofile::{
    Affinity, BasicProfile, DispatchOutcome, ProfileCallback, ProfileError, ProfileObject,
    Profiles, Rules, Statistics,
};
use pmu_tests::kprofile::{
    FAULT, Frame, Machine, Nothing, REFUSAL, VERSIONS, WIDTHS, active, buffer, counts, everywhere,
    leak, object, on, process, processor, request, source, unchanged, x64, x86,
};

const TIME: KProfileSource = KProfileSource::TIME;

/// Lists for few objects, on the processors of two groups.
type Lists = Profiles<5, 70>;

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
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)), DispatchOutcome::default());
    assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x19)).hits, 1);

    lists.stop(object, machine).unwrap();
    assert!(!object.is_started());
    assert_eq!(unchanged(lists, machine, |m| lists.stop(object, m)), Err(ProfileError::NotStarted));
    assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x19)).hits, 0);
    // It can be started again, and on other lists.
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
    let all: Vec<ProcessorNumber> = active().iter().collect();
    for failing in &all {
        let lists = leak(Lists::new());
        let machine = &mut Machine::new(active());
        machine.refuses_start = Affinity::of(*failing);
        let object = everywhere(0x19, machine);
        let expected = ProfileError::Hardware { processor: *failing, error: REFUSAL };
        assert_eq!(unchanged(lists, machine, |m| lists.start(object, m)), Err(expected));
        assert_eq!(expected.status().unwrap().value(), 0xC000_009A);
        assert!(!object.is_started());
        assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x19)).hits, 0);

        machine.refuses_start = Affinity::EMPTY;
        lists.start(object, machine).unwrap();
        assert_eq!(machine.running.len(), all.len());
    }
}

#[test]
fn a_failing_start_undoes_what_it_started_and_not_what_runs_for_others() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(active());
    lists.start(on(0x19, &[1], machine), machine).unwrap();
    // A start does not fail where the source already runs, because it does not start it again.
    machine.refuses_start = Affinity::of(processor(0, 1)).union(Affinity::of(processor(1, 5)));
    let object = everywhere(0x19, machine);
    let expected = ProfileError::Hardware { processor: processor(1, 5), error: REFUSAL };
    assert_eq!(unchanged(lists, machine, |m| lists.start(object, m)), Err(expected));
    assert_eq!(machine.running(), [(0, 1, 0x19)]);
}

#[test]
fn an_undo_that_fails_too_is_told_as_a_fault_that_names_the_register() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(2));
    machine.refuses_start = Affinity::of(processor(0, 1));
    machine.refuses_stop = Affinity::of(processor(0, 0));
    let object = everywhere(0x19, machine);
    let error = lists.start(object, machine).unwrap_err();
    assert!(!object.is_started());
    assert_eq!(error, ProfileError::Hardware { processor: processor(0, 0), error: FAULT });
}

#[test]
fn a_stop_that_fails_somewhere_goes_on_and_takes_the_object_off_its_list() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(active());
    let object = everywhere(0x19, machine);
    lists.start(object, machine).unwrap();
    machine.refuses_stop = [processor(0, 1), processor(1, 0)].into_iter().collect();
    let expected = ProfileError::Hardware { processor: processor(0, 1), error: FAULT };
    assert_eq!(lists.stop(object, machine), Err(expected));
    assert_eq!(expected.status(), None);
    assert_eq!(machine.running(), [(0, 1, 0x19), (1, 0, 0x19)]);
    assert!(!object.is_started() && lists.started() == 0);
    assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x19)).hits, 0);
    assert_eq!(lists.stop(object, machine), Err(ProfileError::NotStarted));
}

#[test]
fn a_source_runs_on_a_processor_from_the_first_object_that_wants_it_to_the_last() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(active());
    let a = on(0x19, &[0, 1], machine);
    let b = on(0x19, &[1, 3], machine);
    let other = on(0x1A, &[1], machine);
    let callback = leak(ProfileObject::callback(Rules::LATEST, source(0x19), &Nothing).unwrap());
    type Object = &'static ProfileObject<'static>;
    type Change = fn(&Lists, Object, &mut Machine) -> Result<(), ProfileError>;
    type Running = &'static [(u16, u8, u32)];
    let start: Change = |lists, object, machine| lists.start(object, machine);
    let stop: Change = |lists, object, machine| lists.stop(object, machine);
    let steps: [(_, _, Running); 9] = [
        (start, a, &[(0, 0, 0x19), (0, 1, 0x19)]),
        (start, other, &[(0, 0, 0x19), (0, 1, 0x19), (0, 1, 0x1A)]),
        (start, b, &[(0, 0, 0x19), (0, 1, 0x19), (0, 1, 0x1A), (0, 3, 0x19)]),
        (stop, a, &[(0, 1, 0x19), (0, 1, 0x1A), (0, 3, 0x19)]),
        (stop, other, &[(0, 1, 0x19), (0, 3, 0x19)]),
        (start, callback, &[(0, 0, 0x19), (0, 1, 0x19), (0, 3, 0x19), (1, 0, 0x19), (1, 5, 0x19)]),
        (stop, b, &[(0, 0, 0x19), (0, 1, 0x19), (0, 3, 0x19), (1, 0, 0x19), (1, 5, 0x19)]),
        (
            start,
            other,
            &[(0, 0, 0x19), (0, 1, 0x19), (0, 1, 0x1A), (0, 3, 0x19), (1, 0, 0x19), (1, 5, 0x19)],
        ),
        (stop, callback, &[(0, 1, 0x1A)]),
    ];
    for (number, (change, object, running)) in steps.into_iter().enumerate() {
        change(lists, object, machine).unwrap();
        assert_eq!(machine.running(), running, "step {number}");
    }
}

#[test]
fn lists_refuse_an_object_that_was_made_under_other_rules() {
    for of_lists in VERSIONS.map(x64) {
        let lists = leak(Lists::with_rules(of_lists));
        for of_object in VERSIONS.map(x64).into_iter().chain(VERSIONS.map(x86)) {
            let machine = &mut Machine::new(Affinity::first(1));
            let request = request(buffer(1));
            let object = leak(ProfileObject::basic(of_object, request, machine).unwrap());
            assert_eq!(object.rules(), of_object);
            let outcome = lists.start(object, machine);
            if of_lists == of_object {
                assert_eq!(outcome, Ok(()));
                lists.stop(object, machine).unwrap();
                continue;
            }
            let refused = ProfileError::OtherRules { object: of_object, lists: of_lists };
            assert_eq!((outcome, refused.status()), (Err(refused), None));
            assert!(!object.is_started() && lists.started() == 0 && machine.changes == 0);
        }
    }
    assert_eq!(Lists::new().rules(), Rules::LATEST);
    let refused = ProfileError::OtherRules { object: x86(Nt351), lists: Rules::LATEST };
    let told =
        "the profile was created for 32-bit Nt351, and the lists are for 64-bit Windows10v2004";
    assert_eq!(refused.to_string(), told);
}

/// Lists that are moved keep their objects.
#[test]
fn lists_that_were_moved_stop_their_objects() {
    let machine = &mut Machine::new(active());
    let mut lists = Lists::new();
    let of_process = |from| {
        let asked =
            BasicProfile { process: process(3), source: source(from), ..request(buffer(1)) };
        leak(object(asked, &Machine::new(active())))
    };
    let objects = [of_process(0x19), of_process(0x1A), of_process(0x1B)];
    for object in objects {
        lists.start(object, machine).unwrap();
    }
    let moved = core::mem::take(&mut lists);
    assert_eq!(moved.start(objects[0], machine), Err(ProfileError::AlreadyStarted));
    assert_eq!(lists.start(objects[0], machine), Err(ProfileError::OnAnotherList));
    moved.stop(objects[0], machine).unwrap();
    assert!(!objects[0].is_started());
    moved.stop_process(process(3).unwrap(), machine).unwrap();
    assert_eq!((machine.running(), moved.started()), (vec![], 0));
}

/// Stopping a process's profiles stops no other process's.
#[test]
fn the_profiles_of_a_process_end_with_it() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(active());
    let profile = |owner, from| {
        let request = BasicProfile { process: owner, source: source(from), ..request(buffer(1)) };
        leak(object(request, &Machine::new(active())))
    };
    let of_3 = [profile(process(3), 0x19), profile(process(3), 0x1A)];
    let others = [profile(process(4), 0x1A), profile(None, 0x1B)];
    for object in of_3.into_iter().chain(others) {
        lists.start(object, machine).unwrap();
    }
    machine.refuses_stop = Affinity::of(processor(0, 0));
    let expected = ProfileError::Hardware { processor: processor(0, 0), error: FAULT };
    assert_eq!(lists.stop_process(process(3).unwrap(), machine), Err(expected));
    machine.refuses_stop = Affinity::EMPTY;
    assert_eq!(of_3.map(ProfileObject::is_started), [false; 2]);
    assert_eq!(others.map(ProfileObject::is_started), [true; 2]);
    machine.running.remove(&(processor(0, 0), 0x19));
    let sources: BTreeSet<u32> = machine.running.iter().map(|(_, source)| *source).collect();
    assert_eq!(sources, [0x1A, 0x1B].into());
    assert_eq!(lists.stop_process(process(3).unwrap(), machine), Ok(()));
    assert_eq!(lists.started(), 2);
}

/// A callback that is interrupted itself and tries to change the lists that called it.
struct Meddler {
    lists: &'static Lists,
    itself: OnceLock<&'static ProfileObject<'static>>,
    other: &'static ProfileObject<'static>,
    machine: Mutex<Machine>,
    answers: Mutex<Vec<Result<(), ProfileError>>>,
}

impl ProfileCallback for Meddler {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
        self.lists.interrupt(&frame, source(0x1F));
        let mut machine = self.machine.lock().unwrap();
        machine.this = frame.processor();
        self.answers.lock().unwrap().extend([
            self.lists.start(self.other, &mut *machine),
            self.lists.stop(self.itself.get().unwrap(), &mut *machine),
            self.lists.stop_process(process(1).unwrap(), &mut *machine),
        ]);
    }
}

#[test]
fn an_interrupt_that_dispatches_nothing_may_not_start_and_stop_profiles_either() {
    let lists = leak(Lists::new());
    let mut machine = Machine::new(Affinity::first(2));
    let [started, other] = [0x1A, 0x1B].map(|number| on(number, &[0], &machine));
    lists.start(started, &mut machine).unwrap();
    machine.in_interrupt = true;
    let before = machine.changes;
    let refused = Err(ProfileError::WrongContext);
    assert_eq!(lists.start(other, &mut machine), refused);
    assert_eq!(lists.stop(started, &mut machine), refused);
    assert_eq!(lists.update_processors(&mut machine), refused);
    assert_eq!(machine.changes, before);
    machine.in_interrupt = false;
    assert_eq!(lists.stop(started, &mut machine), Ok(()));
}

#[test]
fn a_callback_may_not_start_and_stop_profiles_even_after_an_interrupt_of_its_own() {
    let lists = leak(Lists::new());
    let mut machine = Machine::new(Affinity::first(2));
    let meddler: &Meddler = leak(Meddler {
        lists,
        itself: OnceLock::new(),
        other: on(0x1A, &[0], &machine),
        machine: Mutex::new(machine.clone()),
        answers: Mutex::default(),
    });
    let callback = leak(ProfileObject::callback(Rules::LATEST, TIME, meddler).unwrap());
    meddler.itself.set(callback).unwrap();
    lists.start(callback, &mut machine).unwrap();
    for number in [0, 1] {
        let frame = Frame { processor: processor(0, number), ..Frame::default() };
        assert_eq!(lists.timer_interrupt(&frame).hits, 1);
    }
    assert_eq!(*meddler.answers.lock().unwrap(), [Err(ProfileError::WrongContext); 6]);
    assert_eq!(ProfileError::WrongContext.status(), None);
    assert_eq!(meddler.machine.lock().unwrap().changes, 0);
    assert!(callback.is_started() && !meddler.other.is_started());
    assert_eq!(lists.statistics(), Statistics { seen: 4, hit: 2, missed: 2, outside: 0 });
    // In task context the same call succeeds.
    lists.start(meddler.other, &mut machine).unwrap();
    lists.stop(callback, &mut machine).unwrap();
}

#[test]
fn interrupts_seen_hit_missed_and_outside_are_counted() {
    let lists = leak(Lists::with_rules(x64(Windows8)));
    let machine = &mut Machine::new(Affinity::first(70));
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)), DispatchOutcome::default());
    for _ in 0..2 {
        let basic = ProfileObject::basic(x64(Windows8), request(buffer(1)), machine).unwrap();
        lists.start(leak(basic), machine).unwrap();
    }
    for (pc, hits, outside) in [(0x1000, 2, 0), (0x1003, 2, 0), (0x1004, 0, 2), (0x1005, 0, 0)] {
        for number in [0, 1, 69] {
            let on = ProcessorNumber::from_index(number);
            let frame = Frame { processor: on, ..Frame::at(pc) };
            assert_eq!(lists.timer_interrupt(&frame), DispatchOutcome { hits, outside });
        }
    }
    // An interrupt counts once, however many objects act on it; counts outside are counted one by one.
    let expected = Statistics { seen: 13, hit: 6, missed: 7, outside: 6 };
    assert_eq!(lists.statistics(), expected);
    // The lists have no counters for a processor beyond the 70th.
    let beyond = Frame { processor: ProcessorNumber::from_index(70), ..Frame::at(0x1000) };
    assert_eq!(lists.timer_interrupt(&beyond), DispatchOutcome::default());
    assert_eq!(lists.statistics(), expected);
}

#[test]
fn counts_outlast_a_stop_and_go_on_at_the_next_start() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    let counters = [AtomicU32::new(0)];
    let object = object(request(&counters), machine);
    for round in 0..3 {
        // SAFETY: the object and its buffer live, and do not move, until the stop below.
        unsafe { lists.start_borrowed(&object, machine) }.unwrap();
        assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)).hits, 1);
        lists.stop(&object, machine).unwrap();
        assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)).hits, 0);
        assert_eq!(counts(&counters), [round + 1]);
    }
}

/// New lists have the former address of those that were moved; the object is on the moved ones.
#[test]
fn lists_in_the_place_of_others_do_not_stop_their_objects() {
    let machine = &mut Machine::new(active());
    let mut lists = Lists::new();
    let object = everywhere(0x19, machine);
    lists.start(object, machine).unwrap();
    let moved = core::mem::take(&mut lists);
    assert_eq!(lists.stop(object, machine), Err(ProfileError::OnAnotherList));
    assert!(object.is_started());
    assert_eq!(moved.interrupt(&Frame::at(0x1000), source(0x19)).hits, 1);
}

/// New lists are zeros, which must be no source, no address and no object.
#[test]
fn new_lists_have_nothing_of_any_source_at_any_address() {
    let lists = Lists::new();
    for from in (0..0x18).chain(0x19..0x200).chain([0x7FFF, u32::MAX]).map(source) {
        for pc in [0, 1, 0x1000, u64::MAX] {
            assert_eq!(lists.interrupt(&Frame::at(pc), from).hits, 0, "{from} {pc:#x}");
        }
    }
    assert_eq!(lists.statistics().hit, 0);
}

#[test]
fn lists_have_the_rules_that_they_were_made_with() {
    for version in VERSIONS {
        for width in WIDTHS {
            let rules = Rules { version, width };
            assert_eq!(Lists::with_rules(rules).rules(), rules);
        }
    }
    assert_eq!(Lists::new().rules(), Rules::LATEST);
    assert_eq!(pmu_kprofile::WindowsVersion::ALL, VERSIONS);
}
