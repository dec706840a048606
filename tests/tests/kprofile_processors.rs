//! Profiles while processors come, go, and fail: the running sources, and the errors that callers get.

mod kprofile;

use std::collections::BTreeSet;

use kprofile::{
    Frame, Machine, Nothing, REFUSAL, VERSIONS, active, buffer, counts, everywhere,
    everywhere_ever, leak, on, process, processor, request, source, unchanged, x64,
};
use pmu_core::ProcessorNumber;
use pmu_kprofile::WindowsVersion::Windows2000;
use pmu_kprofile::{Affinity, BasicProfile, ProfileError, ProfileObject, Profiles, Rules};
use proptest::prelude::*;

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

/// A step of a program with objects of three sources, of which the third wants all processors, present and future.
#[derive(Clone, Debug)]
enum Step {
    Start(usize),
    Stop(usize),
    Update,
    /// A processor goes down and comes back, and its restart is reported.
    Restart(ProcessorNumber),
    /// These processors are active from now on; the others have lost their state.
    Active(Affinity),
    /// These processors cannot start anything from now on.
    Refuse(Affinity),
}

/// A naive model of the sources that should run.
struct Model {
    wishes: Vec<(u32, Affinity)>,
    started: BTreeSet<usize>,
    running: BTreeSet<(ProcessorNumber, u32)>,
}

/// Number of processors that the lists cover: the last of the active ones is not among them.
const PROCESSORS: usize = 69;

impl Model {
    fn is_wanted(&self, on: ProcessorNumber, from: u32) -> bool {
        let wanting = |object: &usize| {
            let (source, affinity) = &self.wishes[*object];
            *source == from && affinity.contains(on)
        };
        self.started.iter().any(wanting)
    }

    fn start(&mut self, object: usize, machine: &Machine) -> Result<(), ProfileError> {
        let (source, affinity) = self.wishes[object];
        let wanted: Vec<_> = affinity.intersection(machine.active).iter().collect();
        let refuses = |on: &&ProcessorNumber| {
            machine.refuses_start.contains(**on) && !self.running.contains(&(**on, source))
        };
        if self.started.contains(&object) {
            Err(ProfileError::AlreadyStarted)
        } else if wanted.is_empty() {
            Err(ProfileError::NoProcessor)
        } else if let Some(beyond) = wanted.iter().find(|on| on.index() >= PROCESSORS) {
            Err(ProfileError::ProcessorBeyondLists(*beyond))
        } else if let Some(processor) = wanted.iter().find(refuses) {
            Err(ProfileError::Hardware { processor: *processor, error: REFUSAL })
        } else {
            self.started.insert(object);
            self.running.extend(wanted.into_iter().map(|on| (on, source)));
            Ok(())
        }
    }

    fn stop(&mut self, object: usize) -> Result<(), ProfileError> {
        if !self.started.remove(&object) {
            return Err(ProfileError::NotStarted);
        }
        let running = self.running.clone();
        self.running = running.into_iter().filter(|(on, s)| self.is_wanted(*on, *s)).collect();
        Ok(())
    }

    /// Updates the model, and returns the starts that fail.
    fn update(&mut self, on: Affinity, machine: &Machine) -> BTreeSet<(ProcessorNumber, u32)> {
        let pairs = on.intersection(machine.active);
        let pairs = pairs.iter().flat_map(|on| [0x19, 0x1A, 0x1B].map(|source| (on, source)));
        let wanted = |(on, source): &(_, _)| self.is_wanted(*on, *source);
        let missing: Vec<_> = pairs.filter(wanted).filter(|p| !self.running.contains(p)).collect();
        let fails = |(on, _): &(ProcessorNumber, u32)| {
            on.index() >= PROCESSORS || machine.refuses_start.contains(*on)
        };
        let (failing, starting): (BTreeSet<_>, BTreeSet<_>) = missing.into_iter().partition(fails);
        self.running.extend(starting);
        failing
    }
}

fn a_set() -> impl Strategy<Value = Affinity> {
    let all = active().iter().collect::<Vec<_>>();
    prop::sample::subsequence(all, 0..=5).prop_map(|set| set.into_iter().collect())
}

fn a_step() -> impl Strategy<Value = Step> {
    let a_processor = prop::sample::select(active().iter().collect::<Vec<_>>());
    prop_oneof![
        4 => (0usize..5).prop_map(Step::Start),
        2 => (0usize..5).prop_map(Step::Stop),
        3 => Just(Step::Update),
        1 => a_processor.prop_map(Step::Restart),
        3 => a_set().prop_map(Step::Active),
        2 => prop_oneof![Just(Affinity::EMPTY), a_set()].prop_map(Step::Refuse),
    ]
}

proptest! {
    /// However processors come, go and fail: the running sources are those that the started objects want and the
    /// hardware permits, and the call that met a failure reports it.
    #[test]
    fn what_runs_where_is_what_a_naive_model_says(
        affinities in prop::collection::vec(a_set(), 4),
        steps in prop::collection::vec(a_step(), 1..60),
    ) {
        let lists = leak(Profiles::<5, PROCESSORS>::with_rules(x64(Windows2000)));
        let mut machine = Machine::new(active());
        let mut wishes: Vec<(u32, Affinity)> = [0x19, 0x19, 0x1A, 0x1A].into_iter().zip(affinities).collect();
        wishes.push((0x1B, Affinity::ALL));
        // Under these rules a set without active processors means all active ones.
        wishes.iter_mut().filter(|(_, set)| set.is_empty()).for_each(|(_, set)| *set = active());
        let create = |(from, affinity): &(u32, Affinity)| {
            let asked = BasicProfile { source: source(*from), affinity: Some(*affinity), ..request(buffer(1)) };
            leak(ProfileObject::basic(x64(Windows2000), asked, &machine).unwrap())
        };
        let objects: Vec<_> = wishes.iter().map(create).collect();
        let mut model = Model { wishes, started: BTreeSet::new(), running: BTreeSet::new() };
        // Processors that lost their state, which no call has seen yet.
        let mut unseen = Affinity::EMPTY;
        for step in steps {
            let refusals = machine.refusals;
            let told = |outcome, failing: BTreeSet<(ProcessorNumber, u32)>, machine: &Machine| {
                match outcome {
                    Ok(()) => prop_assert!(failing.is_empty(), "{:?}", failing),
                    Err(
                        ProfileError::Hardware { processor, error: REFUSAL }
                        | ProfileError::ProcessorBeyondLists(processor),
                    ) => prop_assert!(failing.iter().any(|(on, _)| *on == processor)),
                    Err(other) => prop_assert!(false, "{}", other),
                }
                let tried = failing.iter().filter(|(on, _)| on.index() < PROCESSORS).count();
                prop_assert_eq!(machine.refusals - refusals, tried);
                Ok(())
            };
            match step {
                Step::Start(object) => {
                    let expected = model.start(object, &machine);
                    prop_assert_eq!(lists.start(objects[object], &mut machine), expected);
                    unseen = unseen.intersection(machine.active);
                }
                Step::Stop(object) => {
                    let expected = model.stop(object);
                    prop_assert_eq!(lists.stop(objects[object], &mut machine), expected);
                    unseen = unseen.intersection(machine.active);
                }
                Step::Update => {
                    let failing = model.update(Affinity::ALL, &machine);
                    told(lists.update_processors(&mut machine), failing, &machine)?;
                    unseen = unseen.intersection(machine.active);
                }
                Step::Restart(processor) => {
                    machine.lose(processor);
                    model.running.retain(|(on, _)| *on != processor);
                    let failing = model.update(Affinity::of(processor), &machine);
                    told(lists.restart_processor(processor, &mut machine), failing, &machine)?;
                    unseen = unseen.intersection(machine.active);
                }
                Step::Active(active) => {
                    for gone in machine.active.difference(active).iter() {
                        machine.lose(gone);
                        model.running.retain(|(on, _)| *on != gone);
                        unseen = unseen.union(Affinity::of(gone));
                    }
                    machine.active = active;
                    for back in unseen.intersection(active).iter() {
                        let refusals = machine.refusals;
                        let failing = model.update(Affinity::of(back), &machine);
                        let outcome = lists.restart_processor(back, &mut machine);
                        prop_assert_eq!(outcome.is_ok(), failing.is_empty());
                        prop_assert!(machine.refusals - refusals <= failing.len());
                        unseen = Affinity::EMPTY;
                    }
                }
                Step::Refuse(set) => machine.refuses_start = set,
            }
            prop_assert_eq!(&machine.running, &model.running);
            prop_assert_eq!(lists.started(), model.started.len());
            for (number, object) in objects.iter().enumerate() {
                let (source, affinity) = model.wishes[number];
                for on in active().iter() {
                    let runs = model.running.contains(&(on, source)) && affinity.contains(on);
                    let runs = runs && model.started.contains(&number);
                    if !unseen.contains(on) {
                        prop_assert_eq!(object.runs_on(on), runs, "{} on {}", number, on);
                    }
                }
            }
        }
    }
}
