//! Starting and stopping without waiting, and objects that do not live forever.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_kprofile::bucket::Bucket;
use pmu_kprofile::{
    Affinity, BasicProfile, CreateError, DispatchOutcome, ProfileError, ProfileHardware,
    ProfileObject, Profiles, Rules,
};
use pmu_tests::kprofile::{
    self, Frame, Machine, active, buffer, counts, everywhere, leak, object, processor, request,
};

type Lists = Profiles<4, 128>;

const TIME: KProfileSource = KProfileSource::TIME;
const HIT: DispatchOutcome = DispatchOutcome { hits: 1, outside: 0 };
const NOTHING: DispatchOutcome = DispatchOutcome { hits: 0, outside: 0 };

/// Runs an operation on processor 0 while an interrupt is dispatched on processor 1.
fn during_a_dispatch(
    lists: &'static Lists,
    machine: &mut Machine,
    act: impl FnOnce(&mut Machine) + Send,
) {
    let once = Mutex::new(Some(act));
    let shared = Mutex::new(machine);
    let callback = |_: &dyn InterruptFrame, _: KProfileSource| {
        if let Some(act) = once.lock().unwrap().take() {
            act(&mut shared.lock().unwrap());
        }
    };
    let object =
        ProfileObject::callback(Rules::LATEST, KProfileSource::TOTAL_CYCLES, &callback).unwrap();
    // SAFETY: the object lives until it is stopped below.
    unsafe { lists.start_borrowed(&object, &mut **shared.lock().unwrap()) }.unwrap();
    // The start's own grace period is over before the interrupt.
    lists.update_processors(&mut **shared.lock().unwrap()).unwrap();
    let frame = Frame { processor: processor(0, 1), ..Frame::at(0) };
    assert_eq!(lists.interrupt(&frame, KProfileSource::TOTAL_CYCLES), HIT);
    lists.stop(&object, &mut **shared.lock().unwrap()).unwrap();
    assert!(once.lock().unwrap().is_none(), "it did not happen");
}

#[test]
fn a_stop_that_does_not_wait_says_when_the_object_is_free() {
    let (lists, mut machine) = (leak(Lists::new()), Machine::new(active()));
    let object = everywhere(2, &machine);
    lists.try_start(object, &mut machine).unwrap();
    assert!(object.is_started());
    let before = machine.running().len();
    let stopping = Mutex::new(None);
    during_a_dispatch(lists, &mut machine, |machine| {
        let token = lists.try_stop(object, machine).unwrap();
        // The interrupt on processor 1 began before, so its dispatch may be reading the object.
        assert!(!token.is_over());
        assert!(!object.is_started());
        stopping.lock().unwrap().replace(token);
    });
    let token = stopping.into_inner().unwrap().unwrap();
    assert!(token.is_over() && token.is_over());
    assert_eq!(token.hardware(), Ok(()));
    assert_eq!((before, machine.running().len()), (5, 0));
    lists.try_start(object, &mut machine).unwrap();
    lists.stop(object, &mut machine).unwrap();
}

#[test]
fn an_object_cannot_be_started_before_the_grace_period_of_its_stop_is_over() {
    let (lists, mut machine) = (leak(Lists::new()), Machine::new(active()));
    let other_lists = leak(Lists::new());
    let (object, other) = (everywhere(2, &machine), everywhere(3, &machine));
    lists.start(object, &mut machine).unwrap();
    during_a_dispatch(lists, &mut machine, |machine| {
        let token = lists.try_stop(object, machine).unwrap();
        drop(token);
        assert!(!object.is_started());
        let before = machine.running();
        for _ in 0..3 {
            assert_eq!(lists.try_start(object, machine), Err(ProfileError::Busy));
            assert_eq!(lists.try_start(other, machine), Err(ProfileError::Busy));
            assert_eq!(lists.try_stop(object, machine).err(), Some(ProfileError::Busy));
            assert_eq!(lists.try_update_processors(machine), Err(ProfileError::Busy));
            let elsewhere = other_lists.try_start(object, machine);
            assert_eq!(elsewhere, Err(ProfileError::OnAnotherList));
        }
        assert_eq!(machine.running(), before);
    });
    other_lists.try_start(object, &mut machine).unwrap();
    other_lists.stop(object, &mut machine).unwrap();
}

#[test]
fn stops_without_an_interrupt_are_over_at_once() {
    let (lists, mut machine) = (leak(Lists::new()), Machine::new(active()));
    let object = everywhere(2, &machine);
    for _ in 0..5 {
        lists.try_start(object, &mut machine).unwrap();
        assert!(lists.try_stop(object, &mut machine).unwrap().is_over());
        // The grace period also ends if the token is dropped.
        lists.try_start(object, &mut machine).unwrap();
        drop(lists.try_stop(object, &mut machine).unwrap());
        assert_eq!(lists.try_stop(object, &mut machine).err(), Some(ProfileError::NotStarted));
    }
    assert_eq!(machine.running(), []);
}

#[test]
fn a_stop_whose_hardware_fails_says_so_and_unlinks_all_the_same() {
    let (lists, mut machine) = (leak(Lists::new()), Machine::new(active()));
    let object = everywhere(2, &machine);
    lists.try_start(object, &mut machine).unwrap();
    machine.refuses_stop = Affinity::of(processor(1, 0));
    let token = lists.try_stop(object, &mut machine).unwrap();
    let error = kprofile::FAULT;
    let expected = ProfileError::Hardware { processor: processor(1, 0), error };
    assert_eq!(token.hardware(), Err(expected));
    assert!(token.is_over());
    assert_eq!((lists.started(), object.is_started()), (0, false));
}

#[test]
fn interrupts_and_callbacks_are_refused_and_not_busy() {
    let (lists, mut machine) = (leak(Lists::new()), Machine::new(active()));
    let object = everywhere(2, &machine);
    machine.in_interrupt = true;
    assert_eq!(lists.try_start(object, &mut machine), Err(ProfileError::WrongContext));
    assert_eq!(lists.try_stop(object, &mut machine).err(), Some(ProfileError::WrongContext));
    let scoped = lists.scope(&[object], &mut machine, |_| ());
    assert_eq!(scoped, Err(ProfileError::WrongContext));
    assert!(!object.is_started());
}

/// Runs something that must not wait for what its own thread holds.
#[track_caller]
fn without_waiting(act: impl FnOnce() + Send + 'static) {
    let (over, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        act();
        over.send(()).unwrap();
    });
    // However slow the machine is, nothing here takes so long.
    ended
        .recv_timeout(core::time::Duration::from_secs(60))
        .expect("it waits for itself, or failed");
}

#[test]
fn a_scope_from_a_callback_is_refused_and_does_not_wait_for_its_own_dispatch() {
    without_waiting(|| {
        let (lists, mut machine) = (leak(Lists::new()), Machine::new(active()));
        let object = everywhere(2, &machine);
        // Of a change that is not over, too.
        lists.try_start(object, &mut machine).unwrap();
        let outcomes = Mutex::new(Vec::new());
        let callback = |frame: &dyn InterruptFrame, _: KProfileSource| {
            let mut machine = Machine { this: frame.processor(), ..Machine::new(active()) };
            let objects: [&[&ProfileObject<'_>]; 2] = [&[], &[object]];
            let scopes = objects.map(|objects| lists.scope(objects, &mut machine, |_| ()));
            outcomes.lock().unwrap().extend(scopes);
        };
        let cycles = KProfileSource::TOTAL_CYCLES;
        let callback = ProfileObject::callback(Rules::LATEST, cycles, &callback).unwrap();
        // SAFETY: the object lives until it is stopped below.
        unsafe { lists.start_borrowed(&callback, &mut machine) }.unwrap();
        let frame = Frame { processor: processor(0, 1), ..Frame::at(0) };
        assert_eq!(lists.interrupt(&frame, cycles), HIT);
        lists.stop(&callback, &mut machine).unwrap();
        let refused = Err(ProfileError::WrongContext);
        assert_eq!(outcomes.into_inner().unwrap(), [refused, refused]);
    });
}

/// Hardware whose start is interrupted, while its caller has the right to change the lists.
struct Interrupted {
    machine: Machine,
    lists: &'static Lists,
    outcome: Option<Result<(), ProfileError>>,
}

impl ProfileHardware for Interrupted {
    fn this_processor(&self) -> ProcessorNumber {
        self.machine.this
    }
    fn in_interrupt(&self) -> bool {
        self.machine.in_interrupt
    }
    fn active_processors(&self) -> Affinity {
        self.machine.active
    }
    fn supports(&self, _: KProfileSource) -> bool {
        true
    }
    fn start(&mut self, on: ProcessorNumber, from: KProfileSource) -> Result<(), InterfaceError> {
        let object = everywhere(3, &self.machine);
        let mut there = Machine { in_interrupt: true, ..self.machine.clone() };
        self.outcome = Some(self.lists.scope(&[object], &mut there, |_| ()));
        self.machine.start(on, from)
    }
    fn stop(&mut self, on: ProcessorNumber, from: KProfileSource) -> Result<(), InterfaceError> {
        self.machine.stop(on, from)
    }
}

#[test]
fn a_scope_from_an_interrupt_is_refused_and_does_not_wait_for_the_task_that_it_interrupted() {
    without_waiting(|| {
        let (lists, machine) = (leak(Lists::new()), Machine::new(active()));
        let object = everywhere(2, &machine);
        let mut hardware = Interrupted { machine, lists, outcome: None };
        lists.start(object, &mut hardware).unwrap();
        assert_eq!(hardware.outcome, Some(Err(ProfileError::WrongContext)));
        lists.stop(object, &mut hardware).unwrap();
    });
}

/// A task's hardware, whose task leaves processor 1 for 0 after it read where it is.
struct Moving {
    machine: Machine,
    moved: AtomicBool,
}

impl ProfileHardware for Moving {
    fn this_processor(&self) -> ProcessorNumber {
        processor(0, u8::from(!self.moved.swap(true, Ordering::Relaxed)))
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        self.machine.active
    }
    fn supports(&self, _: KProfileSource) -> bool {
        true
    }
    fn start(&mut self, on: ProcessorNumber, from: KProfileSource) -> Result<(), InterfaceError> {
        self.machine.start(on, from)
    }
    fn stop(&mut self, on: ProcessorNumber, from: KProfileSource) -> Result<(), InterfaceError> {
        self.machine.stop(on, from)
    }
}

#[test]
fn a_task_that_left_a_processor_is_not_taken_for_the_interrupt_that_came_there() {
    let (lists, mut machine) = (leak(Lists::new()), Machine::new(active()));
    let object = everywhere(2, &machine);
    during_a_dispatch(lists, &mut machine, |machine| {
        let mut moving = Moving { machine: machine.clone(), moved: AtomicBool::new(false) };
        assert_eq!(lists.try_start(object, &mut moving), Ok(()));
        *machine = moving.machine;
    });
    lists.stop(object, &mut machine).unwrap();
}

#[test]
fn a_scope_profiles_what_ends_with_it() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let counters: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
    let calls = AtomicU32::new(0);
    let callback = |_: &dyn InterruptFrame, _: KProfileSource| {
        calls.fetch_add(1, Ordering::Relaxed);
    };
    let basic = object(request(&counters), &machine);
    let callback = ProfileObject::callback(Rules::LATEST, TIME, &callback).unwrap();
    let result = lists.scope(&[&basic, &callback], &mut machine, |machine| {
        assert!(basic.is_started() && callback.is_started());
        assert_eq!(machine.running().len(), 5);
        assert_eq!(lists.timer_interrupt(&Frame::at(0x1004)).hits, 2);
        7
    });
    assert_eq!(result, Ok(7));
    assert!(!basic.is_started() && !callback.is_started());
    assert_eq!(machine.running(), []);
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1004)), NOTHING);
    assert_eq!((counts(&counters), calls.into_inner()), (vec![0, 1, 0, 0], 1));
}

#[test]
fn a_scope_that_unwinds_leaves_nothing_started() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let object = object(request(buffer(1)), &machine);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _ = lists.scope(&[&object], &mut machine, |machine| {
            // The hardware's answer about its context must not matter then.
            machine.in_interrupt = true;
            panic!("the workload");
        });
    }));
    assert!(unwound.is_err());
    assert_eq!((lists.started(), object.is_started()), (0, false));
    assert_eq!(machine.running(), []);
}

#[test]
fn a_scope_of_which_one_does_not_start_starts_none() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let first = object(request(buffer(1)), &machine);
    machine.counterless = Some(KProfileSource::TOTAL_CYCLES);
    let asked = BasicProfile { source: KProfileSource::TOTAL_CYCLES, ..request(buffer(1)) };
    let second = object(asked, &machine);
    let outcome = lists.scope(&[&first, &second], &mut machine, |_| panic!("it ran"));
    assert!(matches!(outcome, Err(ProfileError::Hardware { .. })), "{outcome:?}");
    assert_eq!((lists.started(), machine.running()), (0, vec![]));
}

#[test]
fn an_owned_object_lives_until_it_is_stopped() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let owned = Arc::new(object(request(buffer(1)), &machine));
    let started = lists.start_owned(owned.clone(), &mut machine).unwrap();
    assert!(started.object().is_started());
    let (error, again) = lists.start_owned(owned.clone(), &mut machine).unwrap_err();
    assert_eq!(error, ProfileError::AlreadyStarted);
    drop(again);
    machine.in_interrupt = true;
    let started = started.stop(&mut machine).unwrap_err();
    machine.in_interrupt = false;
    let (handle, outcome) = started.stop(&mut machine).unwrap();
    assert_eq!(outcome, Ok(()));
    drop(owned);
    assert_eq!(Arc::strong_count(&handle), 1);
    // A handle dropped without a stop leaks.
    let weak = Arc::downgrade(&handle);
    drop(lists.start_owned(handle, &mut machine).unwrap());
    assert!(weak.upgrade().is_some_and(|object| object.is_started()));
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)), HIT);
    lists.stop(&weak.upgrade().unwrap(), &mut machine).unwrap();
}

/// An embedder's own frame: plain data, so that a callback can get it back.
struct TrapFrame {
    registers: [u64; 16],
}

impl InterruptFrame for TrapFrame {
    fn pc(&self) -> u64 {
        self.registers[0]
    }
    fn cs(&self) -> u16 {
        0
    }
    fn flags(&self) -> u64 {
        0
    }
    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::default()
    }
    fn process(&self) -> Option<ProcessId> {
        None
    }
    fn embedder(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

#[test]
fn a_closure_is_a_callback_and_gets_the_embedders_own_frame() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let seen = AtomicU32::new(0);
    let erased = AtomicBool::new(false);
    let callback = |frame: &dyn InterruptFrame, _: KProfileSource| match frame
        .embedder()
        .and_then(|frame| frame.downcast_ref::<TrapFrame>())
    {
        Some(frame) => seen.store(frame.registers[7] as u32, Ordering::Relaxed),
        None => erased.store(true, Ordering::Relaxed),
    };
    let object = ProfileObject::callback(Rules::LATEST, TIME, &callback).unwrap();
    lists
        .scope(&[&object], &mut machine, |_| {
            let mut registers = [0; 16];
            registers[7] = 77;
            lists.timer_interrupt(&TrapFrame { registers });
            assert_eq!(seen.load(Ordering::Relaxed), 77);
            // Through a reference too; and a frame that does not expose itself.
            lists.timer_interrupt(&&TrapFrame { registers: [5; 16] });
            assert_eq!(seen.load(Ordering::Relaxed), 5);
            lists.timer_interrupt(&Frame::at(0));
            assert!(erased.load(Ordering::Relaxed));
        })
        .unwrap();
}

#[test]
fn an_object_says_what_was_hit_where() {
    let (lists, mut machine) = (Lists::new(), Machine::new(active()));
    let counters = buffer(4);
    // 50 bytes in buckets of 16: the last one has two.
    let asked = BasicProfile { size: 50, bucket_log2: 4, ..request(counters) };
    let object = object(asked, &machine);
    assert_eq!(object.range(), Some(0x1000..0x1032));
    assert_eq!(object.bucket(), Bucket::from_log2(4).ok());
    assert_eq!(object.buckets().len(), 4);
    lists
        .scope(&[&object], &mut machine, |_| {
            for pc in [0x1000, 0x100F, 0x1031, 0x1032] {
                lists.timer_interrupt(&Frame::at(pc));
            }
        })
        .unwrap();
    let hits: Vec<_> = object.hits().collect();
    assert_eq!(hits, [(0x1000..0x1010, 2), (0x1030..0x1032, 1)]);
    let callback = |_: &dyn InterruptFrame, _: KProfileSource| {};
    let callback = ProfileObject::callback(Rules::LATEST, TIME, &callback).unwrap();
    assert_eq!((callback.range(), callback.bucket(), callback.hits().count()), (None, None, 0));
    // At the end of the address space no bucket wraps.
    let asked = BasicProfile { base: u64::MAX - 49, size: 49, bucket_log2: 4, ..request(counters) };
    let last = ProfileObject::basic(Rules::LATEST, asked, &machine);
    assert_ne!(last.as_ref().err(), Some(&CreateError::RangeWraps));
    let spans: Vec<_> = last.unwrap().hits().map(|(range, _)| range).collect();
    assert_eq!(spans, [u64::MAX - 49..u64::MAX - 33, u64::MAX - 1..u64::MAX]);
}
