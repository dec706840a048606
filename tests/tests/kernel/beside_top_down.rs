//! Top-down counts of a `Pmu` beside other operations of the processor.

use core::cell::RefCell;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use pmu::PmuError;
use pmu::core::{CounterError, Event, EventSelect, GenericEvent, SavedEvent, ThreadEvent};
use pmu::intel::topdown::{SavedTopDown, TopDownError, TopDownFilter, TopDownPart};
use pmu_tests::opened::{Mock, Random, running};
use pmu_virt::mock::Fault;

use crate::top_down::{
    MIX, Thread, check, has_level_2, is_e_core, machine, machines, pass, switch,
};
use crate::world::{Happens, Machine, TestPmu};

fn start(machine: &'static Machine, pmu: &'static TestPmu) {
    let started = pmu.with_top_down(&machine.top_down, |topdown, session, _| {
        topdown.start(session.counters_mut(), TopDownFilter::ALL)
    });
    started.unwrap().unwrap();
}

/// A kernel that did not release the counters before the processor went down releases them afterwards. Meanwhile, the
/// new session's own events are left alone.
#[test]
fn counters_that_were_not_released_before_a_processor_went_down_are_released_later() {
    for (processors, level_2) in machines() {
        for counting in [false, true] {
            let (machine, pmu) = machine(processors, level_2);
            machine.up();
            let (top_down, this) = (&machine.top_down, machine.snapshot());
            pmu.take_top_down(top_down, &this).unwrap();
            if counting {
                start(machine, pmu);
            }
            pass(machine, 0, 10);
            pmu.processor_down().unwrap();
            pmu.processor_up(&this).unwrap();
            let group = pmu.with(|session, unit| {
                let counters = session.counters_mut();
                let event = Event::generic(GenericEvent::Instructions);
                let group = counters.open_group(unit, &[event; 2])?;
                counters.start_group(group, 0)?;
                Ok::<_, PmuError>(group)
            });
            let group = group.unwrap().unwrap();
            let taken = pmu.take_top_down(top_down, &this);
            assert_eq!(taken, Err(PmuError::TopDown(TopDownError::MemoryInUse)));
            machine.happen(0, Happens::Instructions, 1_000);
            pmu.release_top_down(top_down).unwrap();
            machine.happen(0, Happens::Instructions, 1_000);
            let count =
                || pmu.count_slots(top_down, &this, TopDownFilter::ALL, || pass(machine, 0, 4));
            check(&count().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
            if !is_e_core(machine, 0) {
                let slots = Event::raw(EventSelect::from_bits(0x0400));
                assert_eq!(pmu.count(&[slots], || pass(machine, 0, 4)).unwrap()[0].value, 1_020);
            }
            let counts = pmu.with(|session, _| {
                let mut counts = [Default::default(); 2];
                session.counters_mut().read_group(group, 0, &mut counts).map(|_| counts)
            });
            assert_eq!(counts.unwrap().unwrap().map(|count| count.value), [2_000; 2]);
            check(&count().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
            machine.down();
            assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
        }
    }
}

/// A kernel that forgets the release is refused where the documents of `release_top_down` say so. After the release,
/// the counters serve as before the processor went down.
#[test]
fn counters_of_a_processor_that_went_down_serve_again_after_their_release() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        let (top_down, this) = (&machine.top_down, machine.snapshot());
        let count = || pmu.count_slots(top_down, &this, TopDownFilter::ALL, || pass(machine, 0, 4));
        for _ in 0..3 {
            pmu.take_top_down(top_down, &this).unwrap();
            pmu.processor_down().unwrap();
            pmu.processor_up(&this).unwrap();
            let taken = pmu.take_top_down(top_down, &this);
            assert_eq!(taken, Err(PmuError::TopDown(TopDownError::MemoryInUse)));
            match count() {
                Ok(counts) if is_e_core(machine, 0) => check(&counts, 4, false, 1),
                Err(PmuError::TopDown(TopDownError::Session(_))) if !is_e_core(machine, 0) => {}
                other => panic!("{other:?}"),
            }
            pmu.release_top_down(top_down).unwrap();
            check(&count().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
            pmu.take_top_down(top_down, &this).unwrap();
            check(&count().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
            pmu.release_top_down(top_down).unwrap();
        }
        machine.down();
        assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
    }
}

#[test]
fn a_snapshot_of_another_type_of_core_is_refused_and_forgotten() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        let top_down = &machine.top_down;
        let [this, other] = [0, 1].map(|processor| machine.on(processor, || machine.snapshot()));
        let count = |of| pmu.count_slots(top_down, of, TopDownFilter::ALL, || pass(machine, 0, 4));
        if processors[0] != processors[1] {
            let refused = PmuError::TopDown(TopDownError::Session(CounterError::OtherProcessor));
            assert_eq!(count(&other), Err(refused));
            assert_eq!(pmu.take_top_down(top_down, &other), Err(refused));
            assert!(top_down.here().is_none() && running(&machine.mocks[0]).is_empty());
        }
        check(&count(&this).unwrap(), 4, has_level_2(machine, 0, level_2), 1);
        machine.down();
    }
}

/// The kernel took the counters before. An access of the count fails, and with `Fault::From` each later access. If the
/// count's end failed, the slots are still counted, and `stop` ends that, as the documents of `count_slots` say.
#[test]
fn a_failed_count_of_taken_counters_is_repeated_after_a_stop() {
    let mut stopped = [0; 2];
    for (processors, level_2) in machines() {
        for fault in [Fault::At, Fault::From] {
            for access in 1..60 {
                let (machine, pmu) = machine(processors, level_2);
                machine.up();
                let (top_down, this) = (&machine.top_down, machine.snapshot());
                pmu.take_top_down(top_down, &this).unwrap();
                let mock = &machine.mocks[0];
                let count =
                    || pmu.count_slots(top_down, &this, TopDownFilter::ALL, || pass(machine, 0, 4));
                mock.inject(fault(access));
                let counted = count();
                mock.inject(Fault::None);
                let what = format!("{processors:?}, {:?}: {counted:?}", fault(access));
                pmu.processor_resumed().expect(&what);
                let mut again = count();
                if again == Err(PmuError::TopDown(TopDownError::AlreadyStarted)) {
                    assert!(counted.is_err(), "{what}");
                    let end = pmu.with_top_down(top_down, |topdown, session, _| {
                        topdown.stop(session.counters_mut())
                    });
                    end.unwrap().expect(&what);
                    stopped[usize::from(is_e_core(machine, 0))] += 1;
                    again = count();
                }
                check(&again.expect(&what), 4, has_level_2(machine, 0, level_2), 2);
                pmu.release_top_down(top_down).expect(&what);
                machine.down();
            }
        }
    }
    assert!(stopped.iter().all(|times| *times > 0));
}

/// Makes the accesses `first` and the next one fail: an access and its retry.
fn fail_twice(mock: &'static Mock<'static>, first: u32) {
    let last = mock.accesses().total() + first + 1;
    mock.inject(Fault::From(first));
    mock.on_access(Box::leak(Box::new(move |mock: &Mock<'static>| {
        if mock.accesses().total() == last {
            mock.inject(Fault::None);
        }
    })));
}

/// The kernel did not take the counters before. An access fails with its retry, then all succeed. The counters are
/// released, except where the release itself failed.
#[test]
fn a_count_that_failed_before_its_release_leaves_the_counters_free() {
    for (processors, level_2) in machines() {
        let counts = |access: u32| {
            let (machine, pmu) = machine(processors, level_2);
            machine.up();
            let (top_down, this) = (&machine.top_down, machine.snapshot());
            let mock = &machine.mocks[0];
            let total = || mock.accesses().total();
            let count =
                || pmu.count_slots(top_down, &this, TopDownFilter::ALL, || pass(machine, 0, 4));
            // The accesses of a release of stopped counters.
            pmu.take_top_down(top_down, &this).unwrap();
            count().unwrap();
            let before = total();
            pmu.release_top_down(top_down).unwrap();
            let of_release = total() - before;
            let before = total();
            count().unwrap();
            let until_release = total() - before - of_release;
            fail_twice(mock, access);
            let counted = count();
            mock.inject(Fault::None);
            mock.on_access(&|_| ());
            let what = format!("{processors:?}, {access}: {counted:?}");
            let released = pmu.release_top_down(top_down);
            if access <= until_release {
                assert!(counted.is_err(), "{what}");
                assert_eq!(released, Err(PmuError::TopDown(TopDownError::ShutDown)), "{what}");
            }
            pmu.processor_resumed().expect(&what);
            check(&count().expect(&what), 4, has_level_2(machine, 0, level_2), 1);
            machine.down();
            access < until_release
        };
        assert!((1..).take_while(|access| counts(*access)).count() > 3);
    }
}

/// The thread that runs on a processor of an [`Attack`].
#[derive(Default)]
struct Running {
    thread: Option<usize>,
}

/// Operations at random on two processors, whose slots are taken.
struct Attack {
    machine: &'static Machine,
    pmu: &'static TestPmu,
    level_2: bool,
    random: RefCell<Random>,
    log: RefCell<Vec<String>>,
    running: [RefCell<Running>; 2],
    threads: RefCell<Vec<Thread>>,
    /// Expected times of 255 slots, and expected instructions, of each thread; and how often they were read.
    expected: RefCell<[[u64; 3]; 3]>,
}

impl Attack {
    fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().below(end)
    }

    fn say(&self, what: String) {
        self.log.borrow_mut().push(what);
    }

    /// Slots and instructions pass on a processor, on which its thread runs.
    fn pass(&self, cpu: usize, is_counted: bool) -> u64 {
        let times = self.below(50);
        pass(self.machine, cpu, times);
        self.machine.happen(cpu, Happens::Instructions, 10 * times);
        self.machine.happen(cpu, Happens::Cycles, 100 * times);
        if let Some(thread) = self.running[cpu].borrow().thread
            && is_counted
        {
            let mut expected = self.expected.borrow_mut();
            expected[thread][0] += times;
            expected[thread][1] += 10 * times;
        }
        times
    }

    fn switch(&self, cpu: usize, to: Option<usize>) {
        let from = core::mem::replace(&mut self.running[cpu].borrow_mut().thread, to);
        let mut threads = self.threads.borrow_mut();
        if let Some(from) = from {
            self.expected.borrow_mut()[from][2] += 1;
            switch(self.machine, self.pmu, Some(&mut threads[from]), None).unwrap();
        }
        if let Some(to) = to {
            switch(self.machine, self.pmu, None, Some(&mut threads[to])).unwrap();
        }
    }

    fn check_running(&self, cpu: usize) {
        let Some(number) = self.running[cpu].borrow().thread else { return };
        let threads = self.threads.borrow();
        let expected = &mut self.expected.borrow_mut()[number];
        let counts = self.pmu.with_top_down(&self.machine.top_down, |topdown, session, _| {
            topdown.read_thread(session.counters_mut(), &threads[number].slots)
        });
        expected[2] += 1;
        assert_eq!(counts.unwrap().unwrap().slots, 255 * expected[0]);
    }

    fn act(&self) {
        let (machine, pmu) = (self.machine, self.pmu);
        let cpu = self.below(2) as usize;
        let operation = self.below(9);
        self.say(format!("{cpu}: {operation}"));
        machine.on(cpu, || match operation {
            0 | 1 => drop(self.pass(cpu, true)),
            2 | 3 => {
                let other = self.running[1 - cpu].borrow().thread;
                let to = Some(self.below(3) as usize).filter(|to| Some(*to) != other);
                self.switch(cpu, to.filter(|_| self.below(4) != 0));
            }
            4 => self.check_running(cpu),
            5 => {
                let mut times = 0;
                let this = machine.snapshot();
                let counts = pmu.count_slots(&machine.top_down, &this, TopDownFilter::ALL, || {
                    for _ in 0..self.below(4) {
                        times += self.pass(cpu, true);
                        self.check_running(cpu);
                    }
                });
                if let Some(thread) = self.running[cpu].borrow().thread {
                    self.expected.borrow_mut()[thread][2] += 2;
                }
                let level_2 = times > 0 && has_level_2(machine, cpu, self.level_2);
                check(&counts.unwrap(), times, level_2, 8);
            }
            6 => {
                let lent = pmu.with_top_down(&machine.top_down, |topdown, session, _| {
                    let counters = session.counters_mut();
                    let window = counters.lend_with(0, topdown, |_, _| ()).unwrap();
                    self.pass(cpu, false);
                    window.end(0).unwrap();
                });
                lent.unwrap();
            }
            7 => {
                self.check_running(cpu);
                pmu.with_top_down(&machine.top_down, |topdown, session, _| {
                    topdown.read(session.counters_mut()).map(drop)
                })
                .unwrap()
                .unwrap();
                pmu.processor_suspended(|_| ()).unwrap();
                self.pass(cpu, false);
                if self.below(2) == 0 {
                    machine.mocks[cpu].lose_registers();
                }
                pmu.processor_resumed().unwrap();
                pmu.with_top_down(&machine.top_down, |topdown, session, _| {
                    topdown.reprogram(session.counters_mut())
                })
                .unwrap()
                .unwrap();
            }
            _ => {
                self.switch(cpu, None);
                pmu.release_top_down(&machine.top_down).unwrap();
                if self.below(2) == 0 {
                    pmu.processor_down().unwrap();
                    pmu.processor_up(&machine.snapshot()).unwrap();
                    pmu.watch(10_007, 1_000_000).unwrap();
                }
                pmu.take_top_down(&machine.top_down, &machine.snapshot()).unwrap();
            }
        });
    }
}

#[test]
fn random_operations_beside_top_down_counts_lose_no_slot_and_no_instruction() {
    for (processors, level_2) in machines() {
        for seed in 0..60 {
            let (machine, pmu) = machine(processors, level_2);
            machine.up();
            for cpu in 0..2 {
                machine.on(cpu, || {
                    pmu.take_top_down(&machine.top_down, &machine.snapshot()).unwrap();
                    pmu.watch(10_007, 1_000_000).unwrap();
                });
            }
            let instructions = Event::generic(GenericEvent::Instructions);
            let threads = (0..3).map(|_| {
                let event = pmu.with(|_, unit| SavedEvent::new(unit, &instructions));
                let event = event.unwrap().unwrap().to_be_started(true);
                let slots = SavedTopDown::new(TopDownFilter::ALL);
                Thread { events: [ThreadEvent::SwitchedOut(event)], slots }
            });
            let attack = Attack {
                machine,
                pmu,
                level_2,
                random: RefCell::new(Random(seed)),
                log: RefCell::default(),
                running: Default::default(),
                threads: RefCell::new(threads.collect()),
                expected: RefCell::default(),
            };
            let done = catch_unwind(AssertUnwindSafe(|| {
                (0..80).for_each(|_| attack.act());
                (0..2).for_each(|cpu| machine.on(cpu, || attack.switch(cpu, None)));
                for (thread, expected) in attack.threads.borrow().iter().zip(attack.expected.take())
                {
                    let [times, instructions, reads] = expected;
                    let counts = thread.slots.counts();
                    assert_eq!(counts.slots, 255 * times);
                    for (part, share) in TopDownPart::LEVEL_1.into_iter().zip(MIX.shares) {
                        let off = counts.of(part).unwrap().abs_diff(u64::from(share) * times);
                        assert!(off <= 8 * (reads + 1), "{part}: {off}");
                    }
                    let ThreadEvent::SwitchedOut(event) = thread.events[0] else { panic!() };
                    assert_eq!(event.count().value, instructions);
                }
                let interrupted = machine.interrupted.take();
                assert!(interrupted.iter().all(|(_, of)| of.error.is_none() && !of.is_stuck));
                machine.down();
                assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
            }));
            if let Err(panic) = done {
                println!("{processors:?} {seed}: {:?}", attack.log.take());
                std::panic::resume_unwind(panic);
            }
        }
    }
}
