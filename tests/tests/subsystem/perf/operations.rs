//! The operations of the subsystem, each on one processor.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, EventCount, EventId};
use pmu_virt::mock::Fault;

use super::expected::{Expected, MAX_EVENTS, Modes};
use super::state::{Cpu, Placed, Subsystem, Task, feed_of};
use pmu_tests::Reason;
use pmu_tests::opened::{KINDS, Opened, running};

/// Greatest number of events of a processor, and of a task.
const MAX_OF_OWNER: usize = 6;

/// Faults of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    /// Of one access.
    Passing,
    /// Of all accesses from one on, until the processor is programmed again.
    Lasting,
}

/// Returns the first event of an event's group, which stands for it.
fn leader(counters: &Opened<'_, '_>, event: EventId) -> EventId {
    counters.group_events(event).next().unwrap()
}

impl Subsystem<'_, '_> {
    /// Does one thing on a processor.
    pub(crate) fn operate(&mut self, cpu: usize, faults: Faults) {
        if faults != Faults::None && self.random.below(3) == 0 {
            let access = 1 + self.random.below(12) as u32;
            self.context += &format!(", a fault at access {access}");
            if faults == Faults::Lasting {
                return self.fail(cpu, access);
            }
            self.cpus[cpu].mock.inject(Fault::At(access));
        }
        match self.random.below(17) {
            0..4 => self.rotate(cpu),
            4..7 => self.switch(cpu),
            7..10 => self.open(cpu),
            10..12 => self.start(cpu),
            12..14 => self.stop(cpu),
            14 => self.close(cpu),
            15 if self.random.below(2) == 0 => self.lose(cpu),
            15 => self.suspend(cpu),
            _ => self.lend(cpu),
        }
        self.cpus[cpu].mock.inject(Fault::None);
    }

    /// Does something while no register answers from this access on; then the processor is programmed again.
    fn fail(&mut self, cpu: usize, access: u32) {
        let operation = self.random.below(5);
        let number = self.some_here(cpu, operation == 0);
        self.cpus[cpu].mock.inject(Fault::From(access));
        let stopped = number.map_or(vec![], |number| self.together(number));
        let id = number.map(|number| self.placed(cpu, number).id);
        let Self { cpus, tasks, events, groups, told, now, .. } = self;
        let Cpu { counters, processor, mock, lent, task, own } = &mut cpus[cpu];
        let report = |overflow| lent.report(overflow, told);
        match (operation, id) {
            (0, Some(id)) => drop(counters.disable(leader(counters, id), *now)),
            (1, Some(id)) => drop(counters.enable(leader(counters, id), *now)),
            (2, ..) => drop(counters.rotate(*now)),
            (3, ..) => {
                if let Ok(window) = counters.lend(*now, |sample| report(*sample)) {
                    let _ = window.end(*now);
                }
            }
            _ => {
                if let Some(task) = *task {
                    let _ = counters
                        .switch_out(&mut tasks[task].events, *now, |sample| report(*sample));
                    let _ = counters.switch_in(&processor.unit, &mut tasks[task].events, *now);
                }
            }
        }
        self.context += &format!(": fail {operation} of {number:?}");
        mock.inject(Fault::None);
        // A second fault, that passes.
        mock.inject(Fault::At(1 + access / 2));
        counters.reprogram(|sample| report(*sample)).unwrap();
        mock.inject(Fault::None);
        // Events whose counters faulted are to be started again.
        let of_task = task.map(|task| &tasks[task]);
        let of_task = of_task.into_iter().flat_map(|task| task.numbers.iter().zip(&task.events));
        let own = own.iter().map(|placed| (placed.number, ThreadEvent::Opened(placed.id)));
        let all = own.chain(of_task.map(|(number, event)| (*number, *event)));
        let all: Vec<_> = all.collect();
        for (number, event) in &all {
            let ThreadEvent::Opened(id) = *event else { continue };
            let stopped = operation == 0 && stopped.contains(number);
            if stopped || !events[*number].started || counters.is_enabled(id) {
                continue;
            }
            let started = match groups.iter().find(|group| group.contains(number)) {
                None => counters.enable(id, *now).reason(),
                Some(_) => {
                    let first = leader(counters, id);
                    let _ = counters.disable(first, *now);
                    counters.enable(first, *now).reason()
                }
            };
            assert!(
                matches!(started, Ok(()) | Err(CounterError::NoFreeCounter)),
                "{}: {number}: {started:?}",
                self.context
            );
        }
        for (number, event) in all {
            let expected = &mut events[number];
            let count = match event {
                ThreadEvent::Opened(id) => {
                    let is_on = counters.is_enabled(id);
                    let of_thread = task.is_some_and(|task| tasks[task].numbers.contains(&number));
                    expected.refused = of_thread && expected.started && !is_on;
                    expected.started = is_on || expected.refused;
                    if expected.wants_total() {
                        counters.read(id, *now).unwrap()
                    } else {
                        expected.count
                    }
                }
                ThreadEvent::SwitchedOut(saved) => {
                    expected.started = saved.is_enabled();
                    saved.count()
                }
                ThreadEvent::Unused => panic!("{}: {number} is gone", self.context),
            };
            expected.lose(count, told.of(number));
        }
    }

    fn rotate(&mut self, cpu: usize) {
        self.context += ": rotate";
        let rotated = self.cpus[cpu].counters.rotate(self.now);
        assert_eq!(rotated, Ok(()), "{}", self.context);
    }

    /// Takes the processor from its task, and gives it to another one that waits, or to none.
    fn switch(&mut self, cpu: usize) {
        let waiting: Vec<usize> = (0..self.tasks.len())
            .filter(|task| self.cpus.iter().all(|cpu| cpu.task != Some(*task)))
            .collect();
        let next = waiting.get(self.random.below(waiting.len() as u64 + 1) as usize).copied();
        self.context += &format!(": switch to {next:?}");
        if self.random.below(2) == 0 {
            self.pass_until_pending(cpu);
        }
        self.leave(cpu);
        self.cpus[cpu].mock.deliver();
        if let Some(task) = next {
            self.enter(cpu, task);
        }
    }

    /// Takes the processor from its task. What is pending of the task's events is reported here.
    fn leave(&mut self, cpu: usize) {
        let here = &mut self.cpus[cpu];
        if let Some(task) = here.task.take() {
            let report = |overflow| here.lent.report(overflow, self.told);
            let events = &mut self.tasks[task].events;
            let left = here.counters.switch_out(events, self.now, |sample| report(*sample));
            assert_eq!(left, Ok(()), "{}", self.context);
            let Task { numbers, events } = &self.tasks[task];
            for (number, event) in numbers.iter().zip(events) {
                let expected = &mut self.events[*number];
                expected.refused = false;
                if let (ThreadEvent::SwitchedOut(saved), Some(_)) = (event, expected.uncertain) {
                    expected.started = saved.is_enabled();
                    expected.check_times(saved.count(), &self.context);
                    expected.count = saved.count();
                }
            }
        }
    }

    fn enter(&mut self, cpu: usize, task: usize) {
        let here = &mut self.cpus[cpu];
        here.task = Some(task);
        let Self { tasks, events, .. } = self;
        let unit = &here.processor.unit;
        let entered = here.counters.switch_in(unit, &mut tasks[task].events, self.now);
        // An event that takes no turns, and for which there is no room, is not started here.
        let mut refused = 0;
        for (place, (number, event)) in
            tasks[task].numbers.iter().zip(&tasks[task].events).enumerate()
        {
            let ThreadEvent::Opened(id) = *event else { panic!("{}: {event:?}", self.context) };
            let expected = &mut events[*number];
            if expected.started && !here.counters.is_enabled(id) {
                assert!(!expected.rotates, "{}: {expected:?}", self.context);
                expected.refused = true;
                refused |= 1 << place;
            }
        }
        let reason = CounterError::NoFreeCounter;
        let outcome =
            if refused == 0 { Ok(()) } else { Err(EventsError { events: refused, reason }) };
        assert_eq!(entered, outcome, "{}", self.context);
    }

    /// Opens an event, or a group, of the processor or of its task, and mostly starts it.
    fn open(&mut self, cpu: usize) {
        let of_task = self.cpus[cpu].task.filter(|_| self.random.below(2) == 0);
        let owned = of_task.map_or(self.cpus[cpu].own.len(), |task| self.tasks[task].events.len());
        let count = [1, 1, 1, 2, 3][self.random.below(5) as usize];
        if owned + count > MAX_OF_OWNER || self.events.len() + count > MAX_EVENTS {
            return;
        }
        self.context += &format!(": open {count} of {of_task:?}");
        let first = self.events.len();
        let mut expected: Vec<Expected> = (0..count).map(|_| self.some_event()).collect();
        let core_type = self.cpus[cpu].processor.unit.core_type();
        for event in &mut expected {
            event.core_type = (self.random.below(2) == 0).then_some(core_type);
        }
        let rotates = expected[0].rotates;
        expected.iter_mut().for_each(|event| event.rotates = rotates);
        let here = &mut self.cpus[cpu];
        let unit = &here.processor.unit;
        let events: Vec<_> =
            expected.iter().zip(first..).map(|(event, number)| event.event(number)).collect();
        let ids = match *events {
            [event] => vec![here.counters.open(unit, &[event]).unwrap()],
            _ => match here.counters.open(unit, &events) {
                Ok(id) => {
                    self.groups.push((first..first + count).collect());
                    here.counters.group_events(id).collect()
                }
                Err(error) => {
                    assert_eq!(error.reason, CounterError::NoFreeCounter, "{}", self.context);
                    return;
                }
            },
        };
        self.events.extend(expected);
        for (number, id) in (first..).zip(ids) {
            match of_task {
                None => here.own.push(Placed { number, id }),
                Some(task) => {
                    self.tasks[task].numbers.push(number);
                    self.tasks[task].events.push(ThreadEvent::Opened(id));
                }
            }
        }
        if self.random.below(4) != 0 {
            self.start_number(cpu, first);
        }
    }

    fn some_event(&mut self) -> Expected {
        let random = &mut self.random;
        let period = if random.below(3) == 0 { 0 } else { 0x1000 + random.below(0x800) };
        Expected {
            kind: random.below(KINDS.len() as u64) as usize,
            modes: [Modes::All, Modes::All, Modes::User, Modes::Kernel][random.below(4) as usize],
            period,
            has_frequency: period != 0 && random.below(2) == 0,
            has_total: random.below(2) == 0,
            rotates: random.below(4) != 0,
            core_type: None,
            started: false,
            refused: false,
            uncertain: None,
            count: EventCount::default(),
            left: period,
            current: period,
            reports: (0, 0),
        }
    }

    /// Returns one of the events here, started or not.
    fn some_here(&mut self, cpu: usize, started: bool) -> Option<usize> {
        let mut here = self.here(cpu);
        here.retain(|placed| self.events[placed.number].is_on() == started);
        let chosen = self.random.below(here.len().max(1) as u64) as usize;
        here.get(chosen).map(|placed| placed.number)
    }

    /// Returns the numbers of the events that start and stop with this one.
    fn together(&self, number: usize) -> Vec<usize> {
        let group = self.groups.iter().find(|group| group.contains(&number));
        group.cloned().unwrap_or_else(|| vec![number])
    }

    fn placed(&self, cpu: usize, number: usize) -> Placed {
        self.here(cpu).into_iter().find(|placed| placed.number == number).unwrap()
    }

    fn start(&mut self, cpu: usize) {
        if let Some(number) = self.some_here(cpu, false) {
            self.start_number(cpu, number);
        }
    }

    fn start_number(&mut self, cpu: usize, number: usize) {
        self.context += &format!(": start {number}");
        let numbers = self.together(number);
        let id = self.placed(cpu, number).id;
        let counters = &mut self.cpus[cpu].counters;
        let started = counters.enable(leader(counters, id), self.now).reason();
        match started {
            Ok(()) => numbers.iter().for_each(|number| {
                let event = &mut self.events[*number];
                (event.started, event.refused) = (true, false);
            }),
            Err(error) => {
                assert_eq!(error, CounterError::NoFreeCounter, "{}", self.context);
                assert!(!self.events[number].rotates, "{}: it waits for its turn", self.context);
            }
        }
    }

    fn stop(&mut self, cpu: usize) {
        let Some(number) = self.some_here(cpu, true) else { return };
        self.context += &format!(": stop {number}");
        let numbers = self.together(number);
        let id = self.placed(cpu, number).id;
        let counters = &mut self.cpus[cpu].counters;
        let stopped = counters.disable(leader(counters, id), self.now);
        assert_eq!(stopped, Ok(()), "{}", self.context);
        numbers.iter().for_each(|number| self.events[*number].started = false);
    }

    fn close(&mut self, cpu: usize) {
        let started = self.random.below(2) == 0;
        let Some(number) = self.some_here(cpu, started) else { return };
        self.context += &format!(": close {number}");
        let numbers = self.together(number);
        let id = self.placed(cpu, number).id;
        let counters = &mut self.cpus[cpu].counters;
        let closed = counters.close(id, self.now).unwrap();
        self.events[number].check_times(closed, &self.context);
        self.groups.retain(|group| !group.contains(&number));
        let stays = |number: &usize| !numbers.contains(number);
        self.cpus[cpu].own.retain(|placed| stays(&placed.number));
        for task in &mut self.tasks {
            let mut kept = task.numbers.iter().map(stays);
            task.events.retain(|_| kept.next().unwrap());
            task.numbers.retain(stays);
        }
    }

    /// Suspends the processor, with an interrupt pending. Mostly its registers lose their contents.
    fn suspend(&mut self, cpu: usize) {
        self.context += ": suspend";
        self.pass_until_pending(cpu);
        let (away, loses) = (self.random.below(20), self.random.below(3) != 0);
        let here = &mut self.cpus[cpu];
        let report = |overflow| here.lent.report(overflow, self.told);
        here.counters.suspend(self.now, |sample| report(*sample)).unwrap();
        assert_eq!(running(here.mock), CounterSet::NONE, "{}", self.context);
        here.mock.inject(Fault::None);
        here.mock.deliver();
        if loses {
            here.mock.lose_registers();
        }
        self.now += away;
        let context = &self.context;
        here.counters.resume(self.now, |o| panic!("{context}: {o:?}")).unwrap();
        for other in (0..self.cpus.len()).filter(|other| *other != cpu) {
            self.count(other, away, &Default::default());
        }
    }

    /// The processor loses its registers' contents. The task's events are off their counters before, while the
    /// processor's own lose what they counted since their last interrupt.
    fn lose(&mut self, cpu: usize) {
        self.context += ": lose";
        let task = self.cpus[cpu].task;
        self.leave(cpu);
        let Self { cpus, events, told, now, context, .. } = self;
        let here = &mut cpus[cpu];
        here.mock.inject(Fault::None);
        here.mock.lose_registers();
        let report = |o| panic!("{context}: {o:?}");
        let anew = here.counters.reprogram(|sample| report(*sample)).unwrap();
        for Placed { number, id } in &here.own {
            let event = &mut events[*number];
            let counter = here.counters.counter_of(*id);
            if counter.is_some_and(|counter| anew.contains(counter)) {
                event.left = event.current;
                event.uncertain = event.uncertain.map(|_| (told.of(*number).1, 0));
            }
            if event.wants_total() && counter.is_some() {
                let count = here.counters.read(*id, *now).unwrap();
                assert!(count.value <= event.count.value, "{context}: {count:?}, {event:?}");
                event.count.value = count.value;
            }
        }
        if let Some(task) = task {
            self.enter(cpu, task);
        }
    }

    /// Lends the processor's counters, to a guest say, which counts on all of them, and leaves them programmed.
    fn lend(&mut self, cpu: usize) {
        self.context += ": lend";
        self.pass_until_pending(cpu);
        let (away, happened) = (1 + self.random.below(20), self.some_counts(cpu));
        let Cpu { counters, processor, mock, lent, .. } = &mut self.cpus[cpu];
        let report = |overflow| lent.report(overflow, self.told);
        let mut window = counters.lend(self.now, |sample| report(*sample)).unwrap();
        mock.deliver();
        window.lent().set_programmed(true);
        for (counter, registers) in processor.unit.iter().filter(|(of, _)| !of.is_fixed()) {
            let select = registers.control().register().get();
            let value = registers.preload(0x100 << counter.number());
            let value = (registers.value_register().get(), value);
            for (register, value) in [(select, 0x53_00C0), value] {
                let _ = mock.with_pmu(|pmu| pmu.write(register, value));
            }
        }
        // The global control registers of both vendors, of which there may be one.
        for control in [0x38F, 0xC000_0301] {
            let _ = mock.with_pmu(|pmu| pmu.write(control, processor.unit.counters().bits()));
        }
        mock.clear();
        mock.advance(&mut feed_of(&happened));
        assert_eq!(mock.accesses().total(), 0, "{}: the host's handler", self.context);
        self.now += away;
        let ended = window.end(self.now);
        assert_eq!(ended, Ok(()), "{}", self.context);
        for other in (0..self.cpus.len()).filter(|other| *other != cpu) {
            self.count(other, away, &Default::default());
        }
    }

    /// Closes everything: nothing runs, and no overflow is left.
    pub(crate) fn end(&mut self) {
        self.context = "end".to_owned();
        for cpu in 0..self.cpus.len() {
            self.leave(cpu);
        }
        self.check();
        for cpu in &mut self.cpus {
            cpu.counters.shut_down().unwrap();
            assert_eq!(running(cpu.mock), CounterSet::NONE);
        }
    }
}
