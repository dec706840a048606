//! Top-down counts of a `Pmu` beside other operations of the processor.

use core::cell::RefCell;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use pmu::PmuError;
use pmu::core::error::CounterError;
use pmu::core::registers::EventSelect;
use pmu::core::{Event, EventId, GenericEvent};
use pmu::intel::topdown::TopDownPart;
use pmu_tests::opened::{Mock, Random, running};
use pmu_virt::mock::Fault;

use crate::top_down::{
    MIX, Thread, check, has_level_2, is_e_core, machine, machines, no_counter, pass, switch,
};
use crate::world::{Happens, Machine, TestPmu};

/// Opens and starts the slots of this processor, which take turns.
fn start(pmu: &'static TestPmu, processor: usize) -> EventId {
    let group = pmu.with(|session, unit| {
        let counters = session.counters_mut();
        let events = pmu.top_down(processor)?.events(counters.counters().usable);
        let group = counters.open(unit, &events.each(Event::rotating))?;
        counters.enable(group, 0)?;
        Ok::<_, PmuError>(group)
    });
    group.unwrap().unwrap()
}

/// A processor goes down while its slots are counted. Afterwards, they are counted anew, and the new session's own
/// events are left alone.
#[test]
fn slots_of_a_processor_that_went_down_are_counted_anew() {
    for (processors, level_2) in machines() {
        for counting in [false, true] {
            let (machine, pmu) = machine(processors, level_2);
            machine.up();
            for _ in 0..3 {
                if counting {
                    start(pmu, 0);
                }
                pass(machine, 0, 10);
                pmu.processor_down().unwrap();
                if !is_e_core(machine, 0) {
                    let left = machine.mocks[0].with_metrics(|metrics| metrics.metrics());
                    assert_eq!(left, Some(0), "nothing is left for the next owner");
                }
                pmu.processor_up(&machine.snapshot()).unwrap();
                let group = pmu.with(|session, unit| {
                    let counters = session.counters_mut();
                    let event = Event::generic(GenericEvent::Instructions);
                    let group = counters.open(unit, &[event; 2])?;
                    counters.enable(group, 0)?;
                    Ok::<_, PmuError>(group)
                });
                let group = group.unwrap().unwrap();
                machine.happen(0, Happens::Instructions, 1_000);
                let count = || pmu.count_slots(|event| event, || pass(machine, 0, 4));
                check(&count().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
                machine.happen(0, Happens::Instructions, 1_000);
                if !is_e_core(machine, 0) {
                    let slots = Event::raw(EventSelect::from_bits(0x0400));
                    assert_eq!(
                        pmu.count(&[slots], || pass(machine, 0, 4)).unwrap()[0].value,
                        1_020
                    );
                }
                let counts = pmu.with(|session, _| {
                    let mut counts = [Default::default(); 2];
                    session.counters_mut().read_group(group, 0, &mut counts).map(|_| counts)
                });
                assert_eq!(counts.unwrap().unwrap().map(|count| count.value), [2_000; 2]);
                check(&count().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
            }
            machine.down();
            assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
        }
    }
}

/// A kernel that opens the events of another type of core for this processor.
#[test]
fn the_slots_of_another_type_of_core_are_refused_and_forgotten() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        let other = pmu.top_down(1).unwrap();
        if processors[0] != processors[1] {
            let opened = pmu.with(|session, unit| {
                let counters = session.counters_mut();
                let events = other.events(counters.counters().usable);
                let opened = [other.counters(), unit].map(|of| {
                    let group = counters.open(of, &events)?;
                    counters.close(group, 0)
                });
                (opened, counters.events().count())
            });
            let (opened, left) = opened.unwrap();
            for opened in opened {
                // Raw selects of an E-core are selects of general counters elsewhere, too.
                let refused = Err(no_counter(CounterError::NoCounterForEvent));
                let expected = if is_e_core(machine, 0) { refused } else { Ok(()) };
                assert_eq!(opened.map(drop).map_err(PmuError::from), expected);
            }
            assert_eq!(left, 0);
            assert!(running(&machine.mocks[0]).is_empty());
        }
        let counts = pmu.count_slots(|event| event, || pass(machine, 0, 4));
        check(&counts.unwrap(), 4, has_level_2(machine, 0, level_2), 1);
        machine.down();
    }
}

/// A thread's slots are counted, and take turns. An access of a count of a function fails, and with `Fault::From` each
/// later access. After a resume, both are counted.
#[test]
fn a_failed_count_beside_a_thread_is_repeated() {
    for (processors, level_2) in machines() {
        for fault in [Fault::At, Fault::From] {
            for access in 1..60 {
                let (machine, pmu) = machine(processors, level_2);
                machine.up();
                let mut thread = Thread::new(machine, pmu, Event::rotating);
                switch(pmu, None, Some(&mut thread)).unwrap();
                let mock = &machine.mocks[0];
                let count = || pmu.count_slots(|event| event, || pass(machine, 0, 4));
                mock.inject(fault(access));
                let counted = count();
                mock.inject(Fault::None);
                let what = format!("{processors:?}, {:?}: {counted:?}", fault(access));
                pmu.processor_resumed().expect(&what);
                check(&count().expect(&what), 4, has_level_2(machine, 0, level_2), 2);
                let _ = switch(pmu, Some(&mut thread), None);
                let before = thread.counts();
                switch(pmu, None, Some(&mut thread)).expect(&what);
                pass(machine, 0, 10);
                switch(pmu, Some(&mut thread), None).expect(&what);
                let more = thread.counts().since(&before);
                check(&more, 10, has_level_2(machine, 0, level_2), 2);
                let left = pmu.with(|session, _| session.counters_mut().events().count());
                assert_eq!(left, Ok(0), "{what}");
                machine.down();
            }
        }
    }
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

/// An access fails with its retry, then all succeed. Nothing of the count stays open.
#[test]
fn a_count_of_which_an_access_failed_leaves_the_counters_free() {
    for (processors, level_2) in machines() {
        let counts = |access: u32| {
            let (machine, pmu) = machine(processors, level_2);
            machine.up();
            let mock = &machine.mocks[0];
            let total = || mock.accesses().total();
            let count = || pmu.count_slots(|event| event, || pass(machine, 0, 4));
            // The first count has accesses that later ones lack.
            count().unwrap();
            let before = total();
            count().unwrap();
            let made = total() - before;
            fail_twice(mock, access);
            let counted = count();
            mock.inject(Fault::None);
            mock.on_access(&|_| ());
            let what = format!("{processors:?}, {access}: {counted:?}");
            assert!(counted.is_err(), "{what}");
            let left = pmu.with(|session, _| session.counters_mut().events().count());
            assert_eq!(left, Ok(0), "{what}");
            pmu.processor_resumed().expect(&what);
            check(&count().expect(&what), 4, has_level_2(machine, 0, level_2), 1);
            machine.down();
            access < made
        };
        assert!((1..).take_while(|access| counts(*access)).count() > 3);
    }
}

/// The thread that runs on a processor of an [`Attack`].
#[derive(Default)]
struct Running {
    thread: Option<usize>,
}

/// Operations at random on two processors.
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

    /// Slots and instructions pass on a processor, on which its thread runs. `is_counted`: its counters are not lent.
    /// `slots`: the thread's slots are on counters.
    fn pass(&self, cpu: usize, is_counted: bool, slots: bool) -> u64 {
        let times = self.below(50);
        pass(self.machine, cpu, times);
        self.machine.happen(cpu, Happens::Instructions, 10 * times);
        self.machine.happen(cpu, Happens::Cycles, 100 * times);
        if let Some(thread) = self.running[cpu].borrow().thread
            && is_counted
        {
            let mut expected = self.expected.borrow_mut();
            expected[thread][0] += if slots { times } else { 0 };
            expected[thread][1] += 10 * times;
        }
        times
    }

    fn switch(&self, cpu: usize, to: Option<usize>) {
        let from = core::mem::replace(&mut self.running[cpu].borrow_mut().thread, to);
        let mut threads = self.threads.borrow_mut();
        if let Some(from) = from {
            self.expected.borrow_mut()[from][2] += 1;
            switch(self.pmu, Some(&mut threads[from]), None).unwrap();
        }
        if let Some(to) = to {
            switch(self.pmu, None, Some(&mut threads[to])).unwrap();
        }
    }

    /// Returns whether the thread's slots are on counters.
    fn check_running(&self, cpu: usize) -> bool {
        let Some(number) = self.running[cpu].borrow().thread else { return false };
        let threads = self.threads.borrow();
        let expected = &mut self.expected.borrow_mut()[number];
        let (counts, is_on) = threads[number].read(self.pmu, cpu);
        expected[2] += 1;
        assert_eq!(counts.slots, 255 * expected[0]);
        is_on
    }

    /// The timer's tick, which gives a thread its counters again after a count of a function.
    fn tick(&self, cpu: usize) {
        self.pmu.with(|session, _| session.counters_mut().rotate(0)).unwrap().unwrap();
        let is_on = self.check_running(cpu);
        let runs = self.running[cpu].borrow().thread.is_some();
        assert_eq!(is_on, runs);
    }

    fn act(&self) {
        let (machine, pmu) = (self.machine, self.pmu);
        let cpu = self.below(2) as usize;
        let operation = self.below(9);
        self.say(format!("{cpu}: {operation}"));
        machine.on(cpu, || match operation {
            0 | 1 => drop(self.pass(cpu, true, true)),
            2 | 3 => {
                let other = self.running[1 - cpu].borrow().thread;
                let to = Some(self.below(3) as usize).filter(|to| Some(*to) != other);
                self.switch(cpu, to.filter(|_| self.below(4) != 0));
            }
            4 => drop(self.check_running(cpu)),
            5 => {
                let mut times = 0;
                let work = || {
                    for _ in 0..self.below(4) {
                        let is_on = self.check_running(cpu);
                        times += self.pass(cpu, true, is_on);
                    }
                };
                let counts = pmu.count_slots(|event| event, work);
                if let Some(thread) = self.running[cpu].borrow().thread {
                    self.expected.borrow_mut()[thread][2] += 2;
                }
                let level_2 = times > 0 && has_level_2(machine, cpu, self.level_2);
                check(&counts.unwrap(), times, level_2, 8);
                self.tick(cpu);
            }
            6 => {
                let lent = pmu.with(|session, _| {
                    let window = session.counters_mut().lend(0, |_| ()).unwrap();
                    self.pass(cpu, false, false);
                    window.end(0).unwrap();
                });
                lent.unwrap();
            }
            7 => {
                self.check_running(cpu);
                pmu.processor_suspended().unwrap();
                self.pass(cpu, false, false);
                if self.below(2) == 0 {
                    machine.mocks[cpu].lose_registers();
                }
                pmu.processor_resumed().unwrap();
            }
            _ => {
                self.switch(cpu, None);
                if self.below(2) == 0 {
                    pmu.processor_down().unwrap();
                    pmu.processor_up(&machine.snapshot()).unwrap();
                    pmu.watch(10_007, 1_000_000).unwrap();
                }
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
                machine.on(cpu, || pmu.watch(10_007, 1_000_000).unwrap());
            }
            let threads = (0..3).map(|_| Thread::new(machine, pmu, Event::rotating));
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
                    let counts = thread.counts();
                    assert_eq!(counts.slots, 255 * times);
                    for (part, share) in TopDownPart::LEVEL_1.into_iter().zip(MIX.shares) {
                        let off = counts.of(part).unwrap().abs_diff(u64::from(share) * times);
                        assert!(off <= 8 * (reads + 1), "{part}: {off}");
                    }
                    assert_eq!(thread.instructions(), instructions);
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
