//! The state of the subsystem: its processors, tasks and events, and the events that happen.

use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, EventId, Events};
use pmu_tests::opened::{KINDS, Mock, Opened, Processor, Random, fed_events};
use pmu_virt::{EventKey, FedEvent, Feed, Privilege};

use super::expected::{Expected, Modes, Told};
use super::lent::Lent;

/// A processor, and what runs on it.
pub(crate) struct Cpu<'a, 'm> {
    pub(crate) processor: &'a Processor,
    pub(crate) lent: &'a Lent,
    pub(crate) mock: &'m Mock<'m>,
    pub(crate) counters: Opened<'a, 'm>,
    /// Its own events.
    pub(crate) own: Vec<Placed>,
    pub(crate) task: Option<usize>,
}

/// An event that is opened on a processor, by its number.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) number: usize,
    pub(crate) id: EventId,
}

/// A task's events by their numbers, and their places, which the context switch moves.
#[derive(Default)]
pub(crate) struct Task {
    pub(crate) numbers: Vec<usize>,
    pub(crate) events: Vec<ThreadEvent>,
}

/// Number of times that each kind of event happens, in user and in kernel mode.
pub(crate) type Counts = [[u64; 2]; KINDS.len()];

/// Returns a kind of event as the processors' model knows it.
pub(crate) fn fed(kind: usize) -> FedEvent {
    let (event, unit_mask) = KINDS[kind];
    fed_events().find(EventKey::general(event.into(), unit_mask)).unwrap()
}

pub(crate) fn feed_of(counts: &Counts) -> Feed {
    let mut feed = Feed::new(&fed_events());
    for (kind, [user, kernel]) in counts.iter().enumerate() {
        feed.add(fed(kind), Privilege::User, *user).unwrap();
        feed.add(fed(kind), Privilege::Kernel, *kernel).unwrap();
    }
    feed
}

/// The subsystem.
pub(crate) struct Subsystem<'a, 'm> {
    pub(crate) cpus: Vec<Cpu<'a, 'm>>,
    pub(crate) tasks: Vec<Task>,
    /// All events that ever were, by their numbers.
    pub(crate) events: Vec<Expected>,
    /// The numbers of events that were opened together.
    pub(crate) groups: Vec<Vec<usize>>,
    pub(crate) told: &'a Told,
    pub(crate) now: u64,
    pub(crate) random: Random,
    pub(crate) context: String,
}

impl<'a, 'm> Subsystem<'a, 'm> {
    /// Takes the counters of these processors of a machine whose boot processor is `machine`.
    pub(crate) fn new(
        machine: &'a Processor,
        processors: &'a [Processor],
        lent: &'a [Lent],
        mocks: &'m [Mock<'m>],
        told: &'a Told,
        seed: u64,
    ) -> Self {
        let cpus = processors.iter().zip(lent).zip(mocks).map(|((processor, lent), mock)| {
            let source = Events::new(&machine.unit, &lent.table);
            let (unit, all) = (&processor.unit, CounterSet::ALL);
            let mut counters = CounterSession::take(source, unit, all, mock, &lent.memory).unwrap();
            if processor.freezing {
                counters.freeze_on_interrupt().unwrap();
            }
            Cpu { processor, lent, mock, counters, own: vec![], task: None }
        });
        Self {
            cpus: cpus.collect(),
            tasks: (0..3).map(|_| Task::default()).collect(),
            events: vec![],
            groups: vec![],
            told,
            now: 0,
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            context: String::new(),
        }
    }

    /// Lets events happen on a processor whose interrupts are off, up to the first overflow: its interrupt is pending.
    pub(crate) fn pass_until_pending(&mut self, cpu: usize) {
        let counts = self.some_counts(cpu);
        let mut feed = feed_of(&counts);
        while !feed.is_empty() && !self.cpus[cpu].mock.pass(&mut feed).pmi {}
        let mut happened = counts;
        for (kind, happened) in happened.iter_mut().enumerate() {
            let left = [Privilege::User, Privilege::Kernel].map(|of| feed.count(fed(kind), of));
            happened.iter_mut().zip(left).for_each(|(count, left)| *count -= left);
        }
        self.count(cpu, 0, &happened);
    }

    /// Adds the time that passed on a processor, and the events that happened, to the models.
    pub(crate) fn count(&mut self, cpu: usize, passed: u64, counts: &Counts) {
        for Placed { number, id } in self.here(cpu) {
            let on = self.cpus[cpu].counters.counter_of(id).is_some();
            let event = &mut self.events[number];
            event.count.enabled += if event.is_on() { passed } else { 0 };
            if on {
                event.count.running += passed;
                event.counted(number, counts[event.kind]);
            }
        }
    }

    /// Returns how often each kind of event happens in user and in kernel mode: often just up to a report.
    pub(crate) fn some_counts(&mut self, cpu: usize) -> Counts {
        let mut counts = core::array::from_fn(|_| [0; 2].map(|_| self.some_events()));
        let here = self.here(cpu);
        let chosen = here.get(self.random.below(1 + 2 * here.len() as u64) as usize);
        if let Some(event) = chosen.map(|placed| self.events[placed.number])
            && event.period != 0
        {
            let count = event.left + self.random.below(3) - 1;
            let user = if event.modes == Modes::Kernel { 0 } else { count };
            counts[event.kind] = [user, count - user];
        }
        counts
    }

    /// Returns a number of events that is often 0, and sometimes several periods.
    fn some_events(&mut self) -> u64 {
        match self.random.below(8) {
            0..3 => 0,
            3..7 => self.random.below(0x900),
            _ => self.random.below(0x8000),
        }
    }

    /// Returns whether a processor can count an event, and its group.
    pub(crate) fn is_countable(&self, number: usize, cpu: usize) -> bool {
        let core_type = self.cpus[cpu].processor.unit.core_type();
        let is_its = |number: &usize| {
            let of = self.events[*number].core_type;
            of.is_none_or(|of| of == 0 || of == core_type)
        };
        let group = self.groups.iter().find(|group| group.contains(&number));
        group.map_or(is_its(&number), |group| group.iter().all(is_its))
    }

    /// Returns the events that are opened on a processor.
    pub(crate) fn here(&self, cpu: usize) -> Vec<Placed> {
        let Cpu { own, task, .. } = &self.cpus[cpu];
        let of_task = task.map(|task| &self.tasks[task]);
        let of_task = of_task.into_iter().flat_map(|task| {
            task.numbers.iter().zip(&task.events).filter_map(|(number, event)| match event {
                ThreadEvent::Opened(id) => Some(Placed { number: *number, id: *id }),
                _ => None,
            })
        });
        own.iter().copied().chain(of_task).collect()
    }
}
