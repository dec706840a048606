//! Profiles while processors come, go, and fail: the running sources, and the errors that callers get.
//! (`processors_random.rs` has random programs of it.)

use pmu_kprofile::{Affinity, BasicProfile, ProfileError, ProfileObject, Profiles, Rules};
use pmu_tests::kprofile::{
    Frame, Machine, Nothing, REFUSAL, VERSIONS, active, buffer, counts, everywhere,
    everywhere_ever, leak, on, process, processor, request, source, unchanged, x64,
};

/// Lists for few objects, on the processors of two groups.
type Lists = Profiles<5, 70>;

/// The sources that run after processors came and went must be those that the started objects want.
#[test]
fn a_processor_that_becomes_active_gets_the_sources_that_are_started_from_then_on() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    let callback = leak(ProfileObject::callback(Rules::LATEST, source(0x19), &Nothing).unwrap());
    lists.start(callback, machine).unwrap();
    machine.active = Affinity::first(2);
    let later = on(0x19, &[1], machine);
    lists.start(later, machine).unwrap();
    assert_eq!(machine.running(), [(0, 0, 0x19), (0, 1, 0x19)]);
    lists.stop(callback, machine).unwrap();
    assert_eq!(machine.running(), [(0, 1, 0x19)]);
    lists.stop(later, machine).unwrap();
    assert_eq!(machine.running(), []);
}

#[test]
fn processors_that_come_and_go_run_what_is_wanted_while_they_are_there() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    let objects = [0x19, 0x19, 0x1A]
        .map(|from| leak(ProfileObject::callback(Rules::LATEST, source(from), &Nothing).unwrap()));
    for object in objects {
        lists.start(object, machine).unwrap();
    }
    lists.start(on(0x1B, &[0], machine), machine).unwrap();
    let alone = [(0, 0, 0x19), (0, 0, 0x1A), (0, 0, 0x1B)];
    unchanged(lists, machine, |m| lists.update_processors(m)).unwrap();
    assert_eq!(machine.running(), alone);

    // The second source fails there until it is retried; the first one runs.
    machine.active = Affinity::first(2);
    machine.counterless = Some(source(0x1A));
    let failure = ProfileError::Hardware { processor: processor(0, 1), error: REFUSAL };
    assert_eq!(lists.update_processors(machine), Err(failure));
    assert_eq!(machine.running(), [alone.as_slice(), &[(0, 1, 0x19)]].concat());
    machine.counterless = None;
    lists.update_processors(machine).unwrap();
    let both = [alone.as_slice(), &[(0, 1, 0x19), (0, 1, 0x1A)]].concat();
    assert_eq!(machine.running(), both);
    unchanged(lists, machine, |m| lists.update_processors(m)).unwrap();

    // Of two more, one fails and one does not.
    machine.active = Affinity::first(4);
    machine.refuses_start = Affinity::of(processor(0, 2));
    let failure = ProfileError::Hardware { processor: processor(0, 2), error: REFUSAL };
    assert_eq!(lists.update_processors(machine), Err(failure));
    let three = [both.as_slice(), &[(0, 3, 0x19), (0, 3, 0x1A)]].concat();
    assert_eq!(machine.running(), three);
    machine.refuses_start = Affinity::EMPTY;
    lists.update_processors(machine).unwrap();
    assert_eq!(machine.running.len(), 9);

    // They go, with their counters, and one comes back without them.
    machine.active = Affinity::first(1);
    machine.running.retain(|(on, _)| on.number == 0);
    unchanged(lists, machine, |m| lists.update_processors(m)).unwrap();
    machine.active = Affinity::first(2);
    lists.update_processors(machine).unwrap();
    assert_eq!(machine.running(), both);

    // A source is not stopped on a processor on which it was never started.
    machine.active = Affinity::first(3);
    for object in objects {
        lists.stop(object, machine).unwrap();
    }
    assert_eq!(machine.running(), [(0, 0, 0x1B)]);
}

/// Objects of other processors start and stop as if the failing one were absent; only a caller that wants the failing
/// start gets its error.
#[test]
fn a_processor_that_cannot_start_a_source_does_not_block_the_objects_of_others() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    let everywhere = leak(ProfileObject::callback(Rules::LATEST, source(0x19), &Nothing).unwrap());
    lists.start(everywhere, machine).unwrap();
    machine.active = Affinity::first(2);
    machine.refuses_start = Affinity::of(processor(0, 1));
    let [same_source, other_source] = [0x19, 0x1A].map(|from| on(from, &[0], machine));
    lists.start(same_source, machine).unwrap();
    lists.start(other_source, machine).unwrap();
    assert_eq!(machine.running(), [(0, 0, 0x19), (0, 0, 0x1A)]);

    let failure = ProfileError::Hardware { processor: processor(0, 1), error: REFUSAL };
    assert_eq!(unchanged(lists, machine, |m| lists.update_processors(m)), Err(failure));
    let there = on(0x1A, &[0, 1], machine);
    assert_eq!(unchanged(lists, machine, |m| lists.start(there, m)), Err(failure));
    lists.stop(other_source, machine).unwrap();
    lists.stop(everywhere, machine).unwrap();
    assert_eq!(machine.running(), [(0, 0, 0x19)]);
}

/// A start does not retry what other objects lack: their owners could not be told of an error.
#[test]
fn a_start_touches_no_processor_that_its_object_does_not_want() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    lists.start(everywhere_ever(0x19, machine), machine).unwrap();
    machine.active = Affinity::first(2);
    machine.refuses_start = Affinity::of(processor(0, 1));
    lists.start(on(0x1A, &[0], machine), machine).unwrap();
    assert_eq!(machine.refusals, 0);
}

#[test]
fn a_source_that_cannot_start_does_not_block_the_others_of_its_processor() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    let [first, second, third] = [0x19, 0x1A, 0x1B].map(|from| everywhere_ever(from, machine));
    for object in [first, second, third] {
        lists.start(object, machine).unwrap();
    }
    machine.active = Affinity::first(2);
    machine.counterless = Some(source(0x1A));
    let failure = ProfileError::Hardware { processor: processor(0, 1), error: REFUSAL };
    assert_eq!(lists.update_processors(machine), Err(failure));
    let there = processor(0, 1);
    assert_eq!([first, second, third].map(|object| object.runs_on(there)), [true, false, true]);
    assert!(!machine.running.contains(&(there, 0x1A)) && machine.running.len() == 5);
    // A source is not stopped on a processor on which it does not run.
    for object in [second, first, third] {
        lists.stop(object, machine).unwrap();
        assert!(!object.runs_on(there) && !object.runs_on(processor(0, 0)));
    }
    assert_eq!(machine.running(), []);
}

/// Each attempt may cost the processor a counter.
#[test]
fn what_several_objects_lack_is_tried_once_for_all_of_them() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    let objects = [0x19, 0x19, 0x19].map(|from| everywhere_ever(from, machine));
    for object in objects {
        lists.start(object, machine).unwrap();
    }
    machine.active = Affinity::first(3);
    machine.refuses_start = Affinity::of(processor(0, 1));
    let failure = ProfileError::Hardware { processor: processor(0, 1), error: REFUSAL };
    assert_eq!(lists.update_processors(machine), Err(failure));
    assert_eq!(machine.refusals, 1);
    assert_eq!(machine.running(), [(0, 0, 0x19), (0, 2, 0x19)]);
    for object in objects {
        assert!(object.runs_on(processor(0, 2)) && !object.runs_on(processor(0, 1)));
    }
}

/// A source that one object lacked runs from another object's start on, and continues after that one's stop.
#[test]
fn an_object_keeps_what_another_one_s_start_brought_it() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(1));
    let wants_all = everywhere_ever(0x19, machine);
    lists.start(wants_all, machine).unwrap();
    machine.active = Affinity::first(2);
    let other = on(0x19, &[1], machine);
    lists.start(other, machine).unwrap();
    assert!(wants_all.runs_on(processor(0, 1)));
    lists.stop(other, machine).unwrap();
    assert_eq!(machine.running(), [(0, 0, 0x19), (0, 1, 0x19)]);
    lists.stop(wants_all, machine).unwrap();
    assert_eq!(machine.running(), []);
}

#[test]
fn nothing_is_started_on_a_processor_beyond_those_of_the_lists() {
    let lists = leak(Profiles::<4, 2>::new());
    let machine = &mut Machine::new(Affinity::first(2));
    let callback = leak(ProfileObject::callback(Rules::LATEST, source(0x19), &Nothing).unwrap());
    lists.start(callback, machine).unwrap();
    let both = machine.running();
    for count in [3, 4, 70] {
        machine.active = Affinity::first(count);
        let beyond = Err(ProfileError::ProcessorBeyondLists(processor(0, 2)));
        assert_eq!(lists.update_processors(machine), beyond);
        assert_eq!(lists.restart_processor(processor(0, 2), machine), beyond);
        assert_eq!(machine.running(), both);
    }
    // This failure blocks no other object.
    lists.start(on(0x1A, &[1], machine), machine).unwrap();
    lists.stop(callback, machine).unwrap();
    assert_eq!(machine.running(), [(0, 1, 0x1A)]);
    assert_eq!(lists.update_processors(machine), Ok(()));
}

#[test]
fn a_profile_of_all_processors_ever_counts_on_those_that_come_later() {
    for version in VERSIONS {
        let lists = leak(Lists::with_rules(x64(version)));
        let machine = &mut Machine::new(Affinity::first(1));
        let counters = buffer(1);
        let asked = BasicProfile { affinity: Some(Affinity::ALL), ..request(counters) };
        let object = leak(ProfileObject::basic(x64(version), asked, machine).unwrap());
        lists.start(object, machine).unwrap();
        machine.active = active();
        lists.update_processors(machine).unwrap();
        let running: Affinity = machine.running.iter().map(|(on, _)| *on).collect();
        assert_eq!(running, active(), "{version:?}");
        for processor in active().iter() {
            assert!(object.runs_on(processor));
            let frame = Frame { processor, ..Frame::at(0x1000) };
            assert_eq!(lists.timer_interrupt(&frame).hits, 1);
        }
        assert_eq!(counts(counters), [5]);
        lists.stop(object, machine).unwrap();
        assert_eq!(machine.running(), []);
    }
}

/// Windows' call without an affinity means the processors that are active when the profile is created.
#[test]
fn a_profile_without_affinity_stays_on_the_processors_that_were_active_when_it_was_created() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(2));
    lists.start(everywhere(0x19, machine), machine).unwrap();
    machine.active = Affinity::first(4);
    unchanged(lists, machine, |m| lists.update_processors(m)).unwrap();
    assert_eq!(machine.running(), [(0, 0, 0x19), (0, 1, 0x19)]);
}

#[test]
fn a_processor_that_lost_its_state_between_two_calls_is_started_again_when_that_is_told() {
    let lists = leak(Lists::new());
    let machine = &mut Machine::new(Affinity::first(2));
    lists.start(everywhere_ever(0x19, machine), machine).unwrap();
    lists.start(on(0x1A, &[1], machine), machine).unwrap();
    let all = machine.running();
    let there = processor(0, 1);
    // Down and up again: no call looked at the active processors meanwhile.
    machine.lose(there);
    lists.restart_processor(there, machine).unwrap();
    assert_eq!(machine.running(), all);

    // The restart is reported while the processor is down; there is nothing to start then.
    machine.lose(there);
    machine.active = Affinity::first(1);
    unchanged(lists, machine, |m| lists.restart_processor(there, m)).unwrap();
    machine.active = Affinity::first(2);
    lists.update_processors(machine).unwrap();
    assert_eq!(machine.running(), all);

    // One source does not come back, the other one does.
    machine.lose(there);
    machine.counterless = Some(source(0x19));
    let failure = ProfileError::Hardware { processor: there, error: REFUSAL };
    assert_eq!(lists.restart_processor(there, machine), Err(failure));
    assert_eq!(machine.running(), [(0, 0, 0x19), (0, 1, 0x1A)]);

    // The form that does not wait does the same, in the same context.
    machine.counterless = None;
    machine.in_interrupt = true;
    let refused = Err(ProfileError::WrongContext);
    assert_eq!(lists.try_restart_processor(there, machine), refused);
    assert_eq!(machine.running(), [(0, 0, 0x19), (0, 1, 0x1A)]);
    machine.in_interrupt = false;
    machine.lose(there);
    lists.try_restart_processor(there, machine).unwrap();
    assert_eq!(machine.running(), all);
}

#[test]
fn a_processor_that_any_call_sees_inactive_is_known_to_have_lost_its_state() {
    type Call = fn(&Lists, &'static ProfileObject<'static>, &mut Machine);
    let calls: [Call; 4] = [
        |lists, other, machine| lists.start(other, machine).unwrap(),
        |lists, other, machine| {
            assert_eq!(lists.stop(other, machine), Err(ProfileError::NotStarted));
        },
        |lists, _, machine| lists.stop_process(process(9).unwrap(), machine).unwrap(),
        |lists, _, machine| lists.update_processors(machine).unwrap(),
    ];
    for call in calls {
        let lists = leak(Lists::new());
        let machine = &mut Machine::new(Affinity::first(2));
        lists.start(everywhere_ever(0x19, machine), machine).unwrap();
        let there = processor(0, 1);
        machine.lose(there);
        machine.active = Affinity::first(1);
        call(lists, on(0x1A, &[0], machine), machine);
        machine.active = Affinity::first(2);
        lists.update_processors(machine).unwrap();
        assert!(machine.running.contains(&(there, 0x19)));
    }
}

/// An interrupt there would find nothing, so the start is refused.
#[test]
fn a_processor_beyond_those_of_the_lists_is_refused() {
    let lists = leak(Profiles::<4, 2>::new());
    let machine = &mut Machine::new(Affinity::first(3));
    let beyond = Err(ProfileError::ProcessorBeyondLists(processor(0, 2)));
    assert_eq!(lists.start(everywhere(0x19, machine), machine), beyond);
    assert!(machine.running.is_empty());
    lists.start(on(0x19, &[0, 1], machine), machine).unwrap();
}
