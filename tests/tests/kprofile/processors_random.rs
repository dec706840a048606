//! Random programs while processors come, go, and fail, against a naive model of the running sources.

use std::collections::BTreeSet;

use pmu_core::frame::ProcessorNumber;
use pmu_kprofile::WindowsVersion::Windows2000;
use pmu_kprofile::{Affinity, BasicProfile, ProfileError, ProfileObject, Profiles};
use pmu_tests::kprofile::{Machine, REFUSAL, active, buffer, leak, request, source, x64};
use proptest::prelude::*;

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
