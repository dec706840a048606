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
    FAULT, Frame, Machine, Nothing, REFUSAL, VERSIONS, active, buffer, counts, everywhere, leak,
    object, on, process, processor, request, source, unchanged, x64, x86,
};
use pmu_core::{InterfaceError, InterruptFrame, KProfileSource, ProcessorNumber};
use pmu_kprofile::WindowsVersion::{self, Nt351, Windows8, Windows10v2004};
use pmu_kprofile::{
    Affinity, BasicProfile, DispatchOutcome, ProfileCallback, ProfileError, ProfileHardware,
    ProfileObject, Profiles, Rules, Statistics,
};
use proptest::prelude::*;

const TIME: KProfileSource = KProfileSource::TIME;

/// Room for few objects, and for the processors of two groups.
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
    // Where it runs already, nothing is started that could fail.
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

/// The lists are where they were moved to, and so are the objects.
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

/// A process's profiles are stopped with it, and no other process's.
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

/// A callback that is interrupted itself, and tries to change the lists that called it.
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
    // In task context the same is fine.
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
    // An interrupt counts once, however many objects act on it; a count outside, each.
    let expected = Statistics { seen: 13, hit: 6, missed: 7, outside: 6 };
    assert_eq!(lists.statistics(), expected);
    // The lists have no place for a processor beyond the 70th.
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
        // SAFETY: object and buffer live, and stay where they are, until the stop below.
        unsafe { lists.start_borrowed(&object, machine) }.unwrap();
        assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)).hits, 1);
        lists.stop(&object, machine).unwrap();
        assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)).hits, 0);
        assert_eq!(counts(&counters), [round + 1]);
    }
}

/// A profile of the random programs below.
#[derive(Clone, Debug)]
struct Definition {
    process: Option<u64>,
    base: u64,
    size: u64,
    bucket_log2: u32,
    spare: usize,
    source: u32,
    affinity: BTreeSet<ProcessorNumber>,
    is_callback: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Start { object: usize, refusing: Option<ProcessorNumber> },
    Stop { object: usize },
    StopProcess { process: u64 },
    Interrupt { pc: u64, source: u32, process: Option<u64>, on: ProcessorNumber },
}

/// What should happen, the simplest way.
struct Model<'d> {
    definitions: &'d [Definition],
    inclusive: bool,
    list: Vec<usize>,
    counts: Vec<Vec<u32>>,
    statistics: Statistics,
}

impl<'d> Model<'d> {
    fn new(definitions: &'d [Definition], inclusive: bool) -> Self {
        let counts = definitions.iter().map(|of| vec![0; of.counters()]).collect();
        let statistics = Statistics::default();
        Self { definitions, inclusive, list: Vec::new(), counts, statistics }
    }

    fn running(&self) -> BTreeSet<(ProcessorNumber, u32)> {
        let started = self.list.iter().map(|object| &self.definitions[*object]);
        started.flat_map(|of| of.affinity.iter().map(|on| (*on, of.source))).collect()
    }

    fn start(
        &mut self,
        object: usize,
        refusing: Option<ProcessorNumber>,
    ) -> Result<(), ProfileError> {
        let Definition { affinity, source, .. } = &self.definitions[object];
        if self.list.contains(&object) {
            return Err(ProfileError::AlreadyStarted);
        }
        if self.list.len() == 5 {
            return Err(ProfileError::AtLimit);
        }
        match refusing {
            Some(on) if affinity.contains(&on) && !self.running().contains(&(on, *source)) => {
                Err(ProfileError::Hardware { processor: on, error: REFUSAL })
            }
            _ => {
                self.list.push(object);
                Ok(())
            }
        }
    }

    fn stop(&mut self, object: usize) -> Result<(), ProfileError> {
        let place = self.list.iter().position(|started| *started == object);
        self.list.remove(place.ok_or(ProfileError::NotStarted)?);
        Ok(())
    }

    fn interrupt(
        &mut self,
        pc: u64,
        from: u32,
        process: Option<u64>,
        on: ProcessorNumber,
    ) -> DispatchOutcome {
        let mut outcome = DispatchOutcome::default();
        for object in &self.list {
            let of = &self.definitions[*object];
            let counts = &mut self.counts[*object];
            let own_process = of.process.is_none() || of.process == process;
            let limit = of.base + of.size;
            let inside = (of.base..limit).contains(&pc) || (self.inclusive && pc == limit);
            if of.source != from {
            } else if of.is_callback {
                counts[0] += 1;
                outcome.hits += 1;
            } else if own_process && of.affinity.contains(&on) && inside {
                let own = (pc - of.base) / 2u64.pow(of.bucket_log2);
                match counts.get_mut(own as usize) {
                    Some(count) => {
                        *count += 1;
                        outcome.hits += 1;
                    }
                    None => outcome.outside += 1,
                }
            }
        }
        self.statistics.seen += 1;
        match outcome.hits {
            0 => self.statistics.missed += 1,
            _ => self.statistics.hit += 1,
        }
        self.statistics.outside += u64::from(outcome.outside);
        outcome
    }
}

impl Definition {
    fn counters(&self) -> usize {
        (self.size.div_ceil(1 << self.bucket_log2) as usize + self.spare).max(1)
    }

    /// The object, and its counters: a callback object's is one that it counts its calls in.
    fn create(
        &self,
        rules: Rules,
        machine: &Machine,
    ) -> (&'static ProfileObject<'static>, &'static [AtomicU32]) {
        let counters = buffer(self.counters());
        let object = if self.is_callback {
            ProfileObject::callback(rules, source(self.source), leak(Calls(&counters[0])))
        } else {
            let request = BasicProfile {
                process: self.process.and_then(process),
                base: self.base,
                size: self.size,
                bucket_log2: self.bucket_log2,
                buffer: counters,
                source: source(self.source),
                affinity: Some(self.affinity.iter().copied().collect()),
            };
            ProfileObject::basic(rules, request, machine)
        };
        (leak(object.expect("a good request")), counters)
    }
}

/// A callback that counts.
struct Calls(&'static AtomicU32);

impl ProfileCallback for Calls {
    fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn a_processor() -> impl Strategy<Value = ProcessorNumber> {
    prop::sample::select(active().iter().collect::<Vec<_>>())
}

fn a_process() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(1u64..4)
}

fn a_source() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 0x19, 0x1A])
}

prop_compose! {
    fn a_definition()(
        is_callback in prop::bool::weighted(0.2),
        process in a_process(),
        base in 0x1000u64..0x1010,
        size in 0u64..0x30,
        bucket_log2 in 2u32..5,
        spare in 0usize..2,
        source in a_source(),
        affinity in prop::collection::btree_set(a_processor(), 1..5),
    ) -> Definition {
        let (process, affinity) =
            if is_callback { (None, active().iter().collect()) } else { (process, affinity) };
        Definition { process, base, size, bucket_log2, spare, source, affinity, is_callback }
    }
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..8, prop::option::weighted(0.2, a_processor()))
            .prop_map(|(object, refusing)| Step::Start { object, refusing }),
        2 => (0usize..8).prop_map(|object| Step::Stop { object }),
        1 => (1u64..4).prop_map(|process| Step::StopProcess { process }),
        8 => (0xFF8u64..0x1048, a_source(), a_process(), a_processor())
            .prop_map(|(pc, source, process, on)| Step::Interrupt { pc, source, process, on }),
    ]
}

proptest! {
    #[test]
    fn random_programs_do_what_the_naive_model_does(
        inclusive: bool,
        definitions in prop::collection::vec(a_definition(), 8),
        steps in prop::collection::vec(a_step(), 1..80),
    ) {
        let version: WindowsVersion = if inclusive { Windows8 } else { Windows10v2004 };
        let mut machine = Machine::new(active());
        machine.this = processor(0, 3);
        let lists = leak(Lists::with_rules(x64(version)));
        let (objects, buffers): (Vec<_>, Vec<_>) =
            definitions.iter().map(|of| of.create(x64(version), &machine)).unzip();
        let mut model = Model::new(&definitions, inclusive);
        for step in steps {
            match step {
                Step::Start { object, refusing } => {
                    machine.refuses_start = refusing.map_or(Affinity::EMPTY, Affinity::of);
                    let outcome = lists.start(objects[object], &mut machine);
                    prop_assert_eq!(outcome, model.start(object, refusing));
                }
                Step::Stop { object } => {
                    let outcome = lists.stop(objects[object], &mut machine);
                    prop_assert_eq!(outcome, model.stop(object));
                }
                Step::StopProcess { process: id } => {
                    lists.stop_process(process(id).unwrap(), &mut machine).unwrap();
                    model.list.retain(|object| definitions[*object].process != Some(id));
                }
                Step::Interrupt { pc, source: from, process: id, on } => {
                    let frame =
                        Frame { process: id.and_then(process), processor: on, ..Frame::at(pc) };
                    let outcome = lists.interrupt(&frame, source(from));
                    prop_assert_eq!(outcome, model.interrupt(pc, from, id, on));
                }
            }
            prop_assert_eq!(&machine.running, &model.running());
            prop_assert_eq!(lists.started(), model.list.len());
            for (number, object) in objects.iter().enumerate() {
                prop_assert_eq!(object.is_started(), model.list.contains(&number));
            }
        }
        prop_assert_eq!(buffers.into_iter().map(counts).collect::<Vec<_>>(), model.counts);
        prop_assert_eq!(lists.statistics(), model.statistics);
    }
}

/// Bases and sizes of ranges that touch, overlap, contain each other, are empty, or lie at either end
/// of the address space.
fn a_range() -> impl Strategy<Value = (u64, u64)> {
    let base = prop_oneof![0x1000u64..0x1018, 0u64..4, u64::MAX - 0x30..u64::MAX - 0x20];
    (base, prop_oneof![4 => 0u64..0x20, 1 => Just(0x4_0000_0000)])
        .prop_map(|(base, size)| (base, size.min(u64::MAX - base)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the lists do to find objects quickly: each interrupt finds exactly those that hold it.
    #[test]
    fn each_address_is_counted_by_every_started_range_that_has_it_and_by_no_other(
        inclusive: bool,
        ranges in prop::collection::vec((a_range(), prop::bool::weighted(0.8)), 20),
        toggles in prop::collection::vec(0usize..20, 1..50),
    ) {
        let rules = x64(if inclusive { Windows8 } else { Windows10v2004 });
        let machine = &mut Machine::new(Affinity::first(1));
        let lists = leak(Profiles::<20, 1>::with_rules(rules));
        let mut place = |((base, size), is_global): &((u64, u64), bool)| {
            let owner = if *is_global { None } else { process(7) };
            let asked = BasicProfile {
                process: owner,
                base: *base,
                size: *size,
                bucket_log2: 31,
                ..request(buffer(10))
            };
            let object = leak(ProfileObject::basic(rules, asked, machine).unwrap());
            (object, asked.buffer)
        };
        let (objects, buffers): (Vec<_>, Vec<_>) = ranges.iter().map(&mut place).unzip();
        let mut expected = vec![0; ranges.len()];
        let edges = |((base, size), _): &((u64, u64), bool)| {
            let end = base + size;
            [base.wrapping_sub(1), *base, end.wrapping_sub(1), end, end.wrapping_add(1)]
        };
        let addresses: BTreeSet<u64> = ranges.iter().flat_map(edges).collect();
        for toggled in toggles {
            match lists.stop(objects[toggled], machine) {
                Err(ProfileError::NotStarted) => lists.start(objects[toggled], machine).unwrap(),
                stopped => stopped.unwrap(),
            }
            for (number, pc) in addresses.iter().enumerate() {
                let of_process = number % 3 == 0;
                let owner = if of_process { process(7) } else { None };
                let outcome = lists.timer_interrupt(&Frame { process: owner, ..Frame::at(*pc) });
                let mut hits = 0;
                for (index, ((base, size), is_global)) in ranges.iter().enumerate() {
                    let distance = pc.checked_sub(*base);
                    let inside = distance.is_some_and(|at| at < *size || inclusive && at == *size);
                    if inside && (*is_global || of_process) && objects[index].is_started() {
                        expected[index] += 1;
                        hits += 1;
                    }
                }
                prop_assert_eq!(outcome, DispatchOutcome { hits, outside: 0 }, "{:#X}", pc);
            }
        }
        let sums: Vec<u32> = buffers.into_iter().map(|b| counts(b).iter().sum()).collect();
        prop_assert_eq!(sums, expected);
    }
}

/// One machine's hardware as several processors reach it.
struct Shared<'m>(&'m Mutex<Machine>, ProcessorNumber);

impl Shared<'_> {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap()
    }
}

impl ProfileHardware for Shared<'_> {
    fn this_processor(&self) -> ProcessorNumber {
        self.1
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        self.machine().active
    }
    fn supports(&self, source: KProfileSource) -> bool {
        self.machine().supports(source)
    }
    fn start(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.machine().start(on, source)
    }
    fn stop(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.machine().stop(on, source)
    }
}

/// Hardware that takes its time to start a source.
struct SlowHardware<'m> {
    machine: Shared<'m>,
    began: &'m AtomicBool,
    done: &'m AtomicBool,
}

impl ProfileHardware for SlowHardware<'_> {
    fn this_processor(&self) -> ProcessorNumber {
        self.machine.this_processor()
    }
    fn in_interrupt(&self) -> bool {
        self.machine.in_interrupt()
    }
    fn active_processors(&self) -> Affinity {
        self.machine.active_processors()
    }
    fn supports(&self, source: KProfileSource) -> bool {
        self.machine.supports(source)
    }
    fn start(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.began.store(true, Ordering::Release);
        thread::sleep(A_WHILE);
        self.done.store(true, Ordering::Release);
        self.machine.start(on, source)
    }
    fn stop(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.machine.stop(on, source)
    }
}

#[test]
fn one_writer_of_the_lists_waits_for_the_other() {
    let lists = leak(Lists::new());
    let machine = Mutex::new(Machine::new(Affinity::first(1)));
    let [one, other] = [0, 1].map(|_| on(0x19, &[0], &machine.lock().unwrap()));
    let (began, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let shared = |number| Shared(&machine, processor(0, number));
        let mut slow = SlowHardware { machine: shared(0), began: &began, done: &done };
        scope.spawn(move || lists.start(one, &mut slow).unwrap());
        wait_for(&began);
        // It shares the source that is just being started.
        lists.start(other, &mut shared(1)).unwrap();
        assert!(done.load(Ordering::Acquire));
    });
    assert_eq!(machine.into_inner().unwrap().changes, 1);
}

/// How long a test gives others to do what they must not.
const A_WHILE: Duration = Duration::from_millis(50);

#[track_caller]
fn wait_for(flag: &AtomicBool) {
    let begin = Instant::now();
    while !flag.load(Ordering::Acquire) {
        assert!(begin.elapsed() < Duration::from_secs(20), "it does not come");
        thread::yield_now();
    }
}

/// A callback that takes its time, and is interrupted meanwhile.
struct Slow {
    lists: &'static Lists,
    began: AtomicBool,
    stop_returned: AtomicBool,
    was_stopped_meanwhile: AtomicBool,
}

impl ProfileCallback for Slow {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
        self.began.store(true, Ordering::Release);
        thread::sleep(A_WHILE);
        self.lists.interrupt(&frame, source(0x1F));
        thread::sleep(A_WHILE);
        let returned = self.stop_returned.load(Ordering::Acquire);
        self.was_stopped_meanwhile.store(returned, Ordering::Release);
    }
}

#[test]
fn stop_waits_for_an_interrupt_on_another_processor_and_not_for_what_interrupts_that() {
    let lists = leak(Lists::new());
    let mut machine = Machine::new(Affinity::first(2));
    let [began, stop_returned, was_stopped_meanwhile] = [const { AtomicBool::new(false) }; 3];
    let slow: &Slow = leak(Slow { lists, began, stop_returned, was_stopped_meanwhile });
    let object = leak(ProfileObject::callback(Rules::LATEST, TIME, slow).unwrap());
    lists.start(object, &mut machine).unwrap();
    thread::scope(|scope| {
        let frame = Frame { processor: processor(0, 1), ..Frame::default() };
        scope.spawn(move || lists.timer_interrupt(&frame));
        wait_for(&slow.began);
        lists.stop(object, &mut machine).unwrap();
        slow.stop_returned.store(true, Ordering::Release);
    });
    assert!(!slow.was_stopped_meanwhile.load(Ordering::Acquire));
}

/// Two threads are interrupted again and again, as processors 0 and 1, while two start and stop
/// profiles that live no longer than they must, as processors 2 and 3.
#[test]
fn after_stop_nothing_touches_the_buffer_and_every_hit_is_in_it() {
    let lists = leak(Lists::new());
    let machine = Mutex::new(Machine::new(Affinity::first(4)));
    let (over, counted, rounds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let begin = Instant::now();
    // Long enough to have met often, and on a busy machine as long as that takes.
    let enough = || {
        let often = [&counted, &rounds].iter().all(|count| count.load(Ordering::Relaxed) > 100);
        begin.elapsed() > Duration::from_millis(if often { 500 } else { 20_000 })
    };
    let play = |number| {
        let (mut hits, mut seen) = (0, 0);
        let mut frame = Frame { processor: processor(0, number), ..Frame::default() };
        while !over.load(Ordering::Relaxed) {
            frame.pc = 0x1000 + seen % 20;
            frame.process = process(1 + seen % 2);
            hits += u64::from(lists.timer_interrupt(&frame).hits);
            seen += 1;
            thread::yield_now();
        }
        (hits, seen)
    };
    let write = |number: u8| {
        let mut hardware = Shared(&machine, processor(0, number));
        while !enough() {
            let counters: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
            let owner = process(rounds.fetch_add(1, Ordering::Relaxed) % 3);
            let request = BasicProfile { process: owner, ..request(&counters) };
            let object = ProfileObject::basic(Rules::LATEST, request, &hardware).unwrap();
            // SAFETY: object and buffer live, and stay where they are, until the stop below.
            unsafe { lists.start_borrowed(&object, &mut hardware) }.unwrap();
            thread::yield_now();
            lists.stop(&object, &mut hardware).unwrap();
            let at_stop = counts(&counters);
            thread::yield_now();
            assert_eq!(counts(&counters), at_stop, "counted after stop");
            counted.fetch_add(at_stop.iter().map(|n| u64::from(*n)).sum(), Ordering::Relaxed);
        }
    };
    let played = thread::scope(|scope| {
        let players = [0, 1].map(|number| scope.spawn(move || play(number)));
        let writers = [2, 3].map(|number| scope.spawn(move || write(number)));
        let written = writers.map(|writer| writer.join());
        over.store(true, Ordering::Relaxed);
        let played = players.map(|player| player.join().unwrap());
        written.into_iter().for_each(Result::unwrap);
        played
    });
    let [(hits_0, seen_0), (hits_1, seen_1)] = played;
    assert_eq!(counted.into_inner(), hits_0 + hits_1);
    let statistics = lists.statistics();
    assert_eq!((statistics.seen, statistics.outside), (seen_0 + seen_1, 0));
    assert_eq!(statistics.hit + statistics.missed, statistics.seen);
    assert!(machine.into_inner().unwrap().running.is_empty());
    assert_eq!(lists.started(), 0);
    assert!(hits_0 + hits_1 > 100, "nothing happened");
}

/// Lists that were moved, and others in their place, have one address; the object is on the first.
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

/// Stays inside until it is let go.
#[derive(Default)]
struct Hold {
    inside: AtomicU32,
    released: [AtomicBool; 2],
}

impl ProfileCallback for Hold {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
        self.inside.fetch_add(1, Ordering::SeqCst);
        while !self.released[frame.pc() as usize].load(Ordering::SeqCst) {
            thread::yield_now();
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Frames that name one processor on two, which a careless kernel's may, and dispatches that then
/// end in another order than a processor's own: `stop` waits for all of them.
#[test]
fn stop_waits_for_dispatches_that_do_not_nest() {
    let lists = leak(Profiles::<4, 8>::new());
    let hold: &'static Hold = leak(Hold::default());
    let object = leak(ProfileObject::callback(Rules::LATEST, TIME, hold).unwrap());
    let machine = Mutex::new(Machine::new(Affinity::of(processor(0, 5))));
    let mut hardware = Shared(&machine, processor(0, 5));
    lists.start(object, &mut hardware).unwrap();
    let (first, second) = (Frame::at(0), Frame::at(1));
    thread::scope(|scope| {
        for (number, frame) in [&first, &second].into_iter().enumerate() {
            scope.spawn(move || lists.timer_interrupt(frame));
            while hold.inside.load(Ordering::SeqCst) as usize != number + 1 {
                thread::yield_now();
            }
        }
        let stopping = scope.spawn(|| lists.stop(object, &mut Shared(&machine, processor(0, 5))));
        // The first in is the first out. The second is inside still, and so is `stop`.
        hold.released[0].store(true, Ordering::SeqCst);
        while hold.inside.load(Ordering::SeqCst) != 1 {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(50));
        let too_early = stopping.is_finished();
        hold.released[1].store(true, Ordering::SeqCst);
        stopping.join().unwrap().unwrap();
        assert!(!too_early);
    });
}
