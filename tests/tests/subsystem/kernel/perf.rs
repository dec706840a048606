//! The subsystem: its system calls, the scheduler's calls, and the timer's.

use core::cell::{Cell, RefCell};

use pmu::core::error::{CounterError, EventsError};
use pmu::core::lending::guest_control;
use pmu::core::reading::{RemoteCount, remote_count};
use pmu::core::thread::{SavedEvent, ThreadEvent};
use pmu::core::{CounterSet, EventCount, EventId, EventStatus};
use pmu::perf::{AttrFlags, PerfEventAttr};
use pmu::user::UserClock;
use pmu_tests::opened::{Mock, Processor};

use super::event::{Opened, PER_TICK};
use super::processor::{Cpu, Shared};

/// `IA32_PERF_GLOBAL_CTRL` (SDM vol. 4, table 2-2).
const GLOBAL_CONTROL: u32 = 0x38F;

/// A task's events by their numbers, and where they are.
#[derive(Default)]
pub(crate) struct Task {
    pub(crate) numbers: Vec<usize>,
    events: Vec<ThreadEvent>,
}

impl Task {
    /// Returns the events that are opened where the task runs.
    fn opened(&self) -> impl Iterator<Item = (usize, EventId)> {
        self.numbers.iter().zip(&self.events).filter_map(|(number, event)| match event {
            ThreadEvent::Opened(id) => Some((*number, *id)),
            _ => None,
        })
    }
}

/// The owner of an event, which the event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Processor(usize),
    Task(usize),
}

pub(crate) struct Perf {
    pub(crate) shared: &'static Shared,
    pub(crate) cpus: Vec<Option<Cpu>>,
    pub(crate) tasks: Vec<Task>,
    /// Counts of events that ended, by their numbers.
    ended: Vec<Option<EventCount>>,
}

impl Perf {
    /// Boots the machine, whose first processor is the boot processor.
    pub(crate) fn boot(processors: &'static [Processor], mocks: &[&'static Mock<'static>]) -> Self {
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            events: RefCell::new(vec![Box::leak(Box::new(Opened::parse("cycles")))]),
            tsc: Cell::new(0),
            clock: UserClock::new(2_000_000_000, 0, 5_000).unwrap(),
        }));
        let cpus = processors
            .iter()
            .zip(mocks)
            .map(|(processor, mock)| Some(Cpu::new(&processors[0].unit, processor, mock, shared)));
        Self { shared, cpus: cpus.collect(), tasks: vec![], ended: vec![None] }
    }

    pub(crate) fn cpu(&mut self, cpu: usize) -> &mut Cpu {
        self.cpus[cpu].as_mut().unwrap()
    }

    fn now(&self) -> u64 {
        self.shared.now()
    }

    /// Creates a task without events.
    pub(crate) fn spawn(&mut self) -> usize {
        self.tasks.push(Task::default());
        self.tasks.len() - 1
    }

    fn note(&mut self, opened: Opened) -> usize {
        self.shared.events.borrow_mut().push(Box::leak(Box::new(opened)));
        self.ended.push(None);
        self.ended.len() - 1
    }

    /// Opens events, as a group if they are several. Returns their numbers.
    pub(crate) fn open(
        &mut self,
        target: Target,
        texts: &[&str],
    ) -> Result<Vec<usize>, EventsError> {
        let attrs: Vec<_> = texts.iter().map(|text| Opened::parse(text).attr).collect();
        self.open_attrs(target, &attrs, None)
    }

    fn open_attrs(
        &mut self,
        target: Target,
        attrs: &[PerfEventAttr],
        parents: Option<&[usize]>,
    ) -> Result<Vec<usize>, EventsError> {
        let mut numbers = vec![];
        for (place, attr) in attrs.iter().enumerate() {
            numbers.push(self.note(Opened::new(*attr, parents.map(|parents| parents[place]))));
        }
        let of_task = matches!(target, Target::Task(_));
        let event = |number: &usize| self.shared.event(*number).event(*number, of_task);
        let events: Vec<_> = numbers.iter().map(event).collect();
        let now = self.now();
        match target {
            Target::Processor(cpu) => {
                let Cpu { session, unit, own, .. } = self.cpus[cpu].as_mut().unwrap();
                if let [event] = events[..] {
                    let id = session.open(unit, &[event])?;
                    own.push((numbers[0], id));
                    session.enable(id, now)?;
                } else {
                    let group = session.open(unit, &events)?;
                    own.extend(numbers.iter().copied().zip(session.group_events(group)));
                    session.enable(group, now)?;
                }
                self.to_user_mode(cpu);
            }
            Target::Task(task) => {
                let unit = &self.cpus[0].as_ref().unwrap().unit;
                let saved = |event| Ok(SavedEvent::new(unit, event)?.to_be_enabled(true));
                let mut saved: Vec<_> =
                    events.iter().map(saved).collect::<Result<_, CounterError>>()?;
                if saved.len() > 1 {
                    SavedEvent::make_group(&mut saved)?;
                }
                self.add(task, &numbers, saved);
            }
        }
        Ok(numbers)
    }

    /// Gives a task these events, wherever it is.
    fn add(&mut self, task: usize, numbers: &[usize], events: Vec<SavedEvent>) {
        let on = self.processor_of(task);
        if let Some(cpu) = on {
            self.switch(cpu, None);
        }
        self.tasks[task].numbers.extend(numbers);
        self.tasks[task].events.extend(events.into_iter().map(ThreadEvent::SwitchedOut));
        if let Some(cpu) = on {
            self.switch(cpu, Some(task));
        }
    }

    pub(crate) fn processor_of(&self, task: usize) -> Option<usize> {
        let runs = |cpu: &Option<Cpu>| cpu.as_ref().is_some_and(|cpu| cpu.task == Some(task));
        self.cpus.iter().position(runs)
    }

    // ANCHOR: switch
    /// Switches a processor to another task, or to none.
    pub(crate) fn switch(&mut self, cpu: usize, next: Option<usize>) {
        let now = self.now();
        let Cpu { session, unit, task, per, mock, .. } = self.cpus[cpu].as_mut().unwrap();
        if let Some(old) = task.take() {
            let report = |overflow| per.overflowed(mock, overflow);
            let report = |sample: pmu_core::Sample<'_>| report(*sample);
            session.switch_out(&mut self.tasks[old].events, now, report).unwrap();
        }
        if let Some(new) = next {
            *task = Some(new);
            let switched = session.switch_in(unit, &mut self.tasks[new].events, now);
            // A pinned event without a counter is in an error state, which its owner sees.
            let is_placed = |error: pmu::core::error::EventsError| error.reason;
            let reason = switched.map_err(is_placed);
            assert!(matches!(reason, Ok(()) | Err(CounterError::NoFreeCounter)), "{reason:?}");
        }
        self.to_user_mode(cpu);
    }
    // ANCHOR_END: switch

    fn to_user_mode(&self, cpu: usize) {
        let cpu = self.cpus[cpu].as_ref().unwrap();
        cpu.to_user_mode(cpu.task.into_iter().flat_map(|task| self.tasks[task].opened()));
    }

    // ANCHOR: fork
    /// Creates a task with children of another task's events that are inherited.
    pub(crate) fn fork(&mut self, parent: usize) -> usize {
        let child = self.spawn();
        let on = self.processor_of(parent);
        let all: Vec<_> = {
            let Task { numbers, events } = &self.tasks[parent];
            numbers.iter().copied().zip(events.iter().copied()).collect()
        };
        for (number, event) in all {
            let attr = self.shared.event(number).attr;
            if !attr.flags.contains(AttrFlags::INHERIT) {
                continue;
            }
            let own = self.note(Opened::new(attr, Some(number)));
            let saved = match event {
                ThreadEvent::Opened(id) => {
                    let session = &self.cpus[on.unwrap()].as_ref().unwrap().session;
                    session.child_event(id, own as u64).unwrap()
                }
                ThreadEvent::SwitchedOut(saved) => saved.child(own as u64),
                ThreadEvent::Unused => continue,
            };
            self.add(child, &[own], vec![saved]);
        }
        child
    }

    /// Ends a task: what its events counted is added to their parents' counts.
    pub(crate) fn exit(&mut self, task: usize) {
        if let Some(cpu) = self.processor_of(task) {
            self.switch(cpu, None);
        }
        let Task { numbers, events } = core::mem::take(&mut self.tasks[task]);
        for (number, event) in numbers.into_iter().zip(events) {
            let ThreadEvent::SwitchedOut(saved) = event else { continue };
            match self.shared.event(number).parent {
                Some(parent) => self.add_count(parent, saved.count()),
                None => self.ended[number] = Some(saved.count()),
            }
        }
    }
    // ANCHOR_END: fork

    /// Adds a child's count to an event's, wherever that is.
    fn add_count(&mut self, number: usize, child: EventCount) {
        for task in 0..self.tasks.len() {
            let on = self.processor_of(task);
            let Task { numbers, events } = &mut self.tasks[task];
            let Some(place) = numbers.iter().position(|of| *of == number) else { continue };
            match &mut events[place] {
                ThreadEvent::Opened(id) => {
                    let cpu = on.unwrap();
                    self.cpus[cpu].as_mut().unwrap().session.add_count(*id, child).unwrap();
                    self.to_user_mode(cpu);
                }
                ThreadEvent::SwitchedOut(saved) => saved.add_count(child),
                ThreadEvent::Unused => {}
            }
            return;
        }
    }

    /// Reads an event and its children, as `read` does.
    pub(crate) fn read(&self, number: usize) -> EventCount {
        let mut sum = self.own_count(number);
        for child in 1..self.ended.len() {
            let is_live = self.tasks.iter().any(|task| task.numbers.contains(&child));
            if is_live && self.shared.event(child).parent == Some(number) {
                let count = self.read(child);
                sum.value += count.value;
                sum.enabled += count.enabled;
                sum.running += count.running;
            }
        }
        sum
    }

    fn own_count(&self, number: usize) -> EventCount {
        if let Some(count) = self.ended[number] {
            return count;
        }
        if let Some((cpu, id)) = self.place(number) {
            let session = &self.cpus[cpu].as_ref().unwrap().session;
            return session.read(id, self.now()).unwrap();
        }
        let events = self.tasks.iter().flat_map(|task| task.numbers.iter().zip(&task.events));
        match events.filter(|(of, _)| **of == number).map(|(_, event)| event).next() {
            Some(ThreadEvent::SwitchedOut(saved)) => saved.count(),
            _ => EventCount::default(),
        }
    }

    /// Returns the processor on which an event is opened.
    pub(crate) fn place(&self, number: usize) -> Option<(usize, EventId)> {
        self.cpus.iter().enumerate().find_map(|(place, cpu)| {
            let cpu = cpu.as_ref()?;
            let task = cpu.task.into_iter().flat_map(|task| self.tasks[task].opened());
            let (_, id) = cpu.own.iter().copied().chain(task).find(|(of, _)| *of == number)?;
            Some((place, id))
        })
    }

    // ANCHOR: remote
    /// Reads an event of a processor from another one, without asking the processor.
    pub(crate) fn read_remotely(&self, number: usize) -> Option<RemoteCount> {
        let (cpu, id) = self.place(number)?;
        let per = self.cpus[cpu].as_ref().unwrap().per;
        Some(remote_count(&per.table, &per.memory, id, self.now()).unwrap())
    }
    // ANCHOR_END: remote

    pub(crate) fn status(&self, number: usize) -> Option<EventStatus> {
        let (cpu, id) = self.place(number)?;
        Some(self.cpus[cpu].as_ref().unwrap().session.event_status(id).unwrap())
    }

    /// Returns whether an event is on a counter.
    pub(crate) fn is_active(&self, number: usize) -> bool {
        matches!(self.status(number), Some(EventStatus::Active(_)))
    }

    /// Does what the timer tick of a processor does.
    pub(crate) fn tick(&mut self, cpu: usize) {
        let now = self.now();
        let Cpu { session, per, mock, .. } = self.cpus[cpu].as_mut().unwrap();
        per.watchdog.touch();
        session.tick(PER_TICK, now, |overflow| per.overflowed(mock, overflow)).unwrap();
        self.to_user_mode(cpu);
    }

    /// Closes an event of a processor, and its group.
    pub(crate) fn close(&mut self, number: usize) {
        let (now, (cpu, id)) = (self.now(), self.place(number).unwrap());
        let Cpu { session, own, .. } = self.cpus[cpu].as_mut().unwrap();
        let members: Vec<_> = session.group_events(id).collect();
        session.disable(members[0], now).unwrap();
        for (number, id) in own.extract_if(.., |(_, id)| members.contains(id)) {
            self.ended[number] = Some(session.read(id, now).unwrap());
        }
        session.close(id, now).unwrap();
        self.to_user_mode(cpu);
    }

    /// Runs a guest without counters of its own: `until_exit` executes it up to its next exit, and returns whether it
    /// is done. The writes of the register are the processor's own, by the VMCS.
    pub(crate) fn run_guest(&self, cpu: usize, mut until_exit: impl FnMut(&Mock<'_>) -> bool) {
        let Cpu { per, mock, .. } = self.cpus[cpu].as_ref().unwrap();
        let load = |value| mock.with_pmu(|pmu| pmu.write(GLOBAL_CONTROL, value));
        let mut is_done = false;
        while !is_done {
            let control = guest_control(&per.source(), &per.memory);
            control.map(|control| load(control.guest));
            is_done = until_exit(mock);
            control.map(|control| load(control.host));
            // The interrupt that was the reason of the exit, if one was.
            mock.deliver();
        }
    }

    /// Lends a processor's counters to a guest that has them for its own. `estimates`: the window is time in which
    /// events without `exclude_guest` were enabled.
    pub(crate) fn lend(
        &mut self,
        cpu: usize,
        estimates: bool,
        run: impl FnOnce(&Mock<'_>, CounterSet),
    ) {
        let (shared, now) = (self.shared, self.now());
        let Cpu { session, per, mock, .. } = self.cpus[cpu].as_mut().unwrap();
        let report = |overflow| per.overflowed(mock, overflow);
        let mut window = session.lend(now, |sample| report(*sample)).unwrap();
        window.lent().set_programmed(true);
        run(mock, window.lent().counters());
        if estimates {
            window.count_as_enabled(shared.now());
        }
        window.end(shared.now()).unwrap();
        self.to_user_mode(cpu);
    }

    /// Stops everything of a processor, whose registers lose their contents, and starts it again.
    pub(crate) fn suspend(&mut self, cpu: usize) {
        let now = self.now();
        let Cpu { session, per, mock, .. } = self.cpus[cpu].as_mut().unwrap();
        session.suspend(now, |sample| per.overflowed(mock, *sample)).unwrap();
        mock.lose_registers();
        session.resume(now, |overflow| per.overflowed(mock, *overflow)).unwrap();
        self.to_user_mode(cpu);
    }

    /// Takes a processor offline: its events end, its task waits, and its counters are as they were found.
    pub(crate) fn offline(&mut self, cpu: usize) {
        self.switch(cpu, None);
        while let Some((number, _)) = self.cpu(cpu).own.first() {
            let number = *number;
            self.close(number);
        }
        let Cpu { per, session, .. } = self.cpu(cpu);
        per.watchdog.unwatch();
        session.shut_down().unwrap();
        self.to_user_mode(cpu);
    }

    /// Brings a processor back that was taken offline.
    pub(crate) fn online(&mut self, cpu: usize, processor: &Processor) {
        let Cpu { per, mock, .. } = self.cpus[cpu].take().unwrap();
        self.cpus[cpu] = Some(Cpu::online(per, mock, processor));
    }
}
