//! A perf-like subsystem in small: processors with events of their own, and tasks that wander between them with
//! theirs, alone and in groups. After each operation every count, time and report is the naive model's.

mod check;
pub(crate) mod expected;
pub(crate) mod operations;

use expected::{Expected, Modes, Told, next_period};
use operations::Faults;
use pmu_core::{
    CounterMemory, CounterSet, CounterSlot, Counters, EventEntry, EventId, EventOverflow,
    EventTable, GroupId, MAX_COUNTERS, OpenedEvents, ThreadEvent, service,
};
use pmu_virt::{EventKey, FedEvent, Feed, Privilege};

use pmu_tests::opened::{KINDS, Mock, Opened, Processor, Random, fed_events};

/// Memory that a processor's counters are lent for a run.
pub(crate) struct Lent {
    memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    table: EventTable<[EventEntry; 24]>,
}

impl Lent {
    pub(crate) const fn new() -> Self {
        Self { memory: CounterMemory::new(), table: EventTable::new() }
    }

    /// Serves an interrupt of the processor whose memory it is.
    pub(crate) fn serve(&self, machine: &Processor, mock: &Mock<'_>, told: &Told) {
        let source = OpenedEvents::new(&machine.unit, &self.table);
        let report = |overflow: EventOverflow| self.report(overflow, told);
        // A register that faults is the next operation's to tell.
        let _ = service(&source, mock, mock, &self.memory, report);
    }

    /// Takes a report as a kernel does that keeps the frequency of some events.
    fn report(&self, overflow: EventOverflow, told: &Told) {
        let (number, has_frequency) = (overflow.tag >> 1, overflow.tag & 1 != 0);
        let reports = told.add(number, overflow.period);
        if has_frequency {
            let period = next_period(number, reports);
            self.table.set_period(overflow.event, period).unwrap();
        }
    }
}

/// A processor, and what runs on it.
struct Cpu<'a, 'm> {
    processor: &'a Processor,
    lent: &'a Lent,
    mock: &'m Mock<'m>,
    counters: Opened<'a, 'm>,
    /// Its own events.
    own: Vec<Placed>,
    task: Option<usize>,
}

/// An event that is opened on a processor, by its number.
#[derive(Clone, Copy)]
struct Placed {
    number: usize,
    id: EventId,
}

/// A task's events by their numbers, and their places, which the context switch moves.
#[derive(Default)]
struct Task {
    numbers: Vec<usize>,
    events: Vec<ThreadEvent>,
}

/// Events that were opened together.
struct Group {
    id: GroupId,
    numbers: Vec<usize>,
}

/// Number of times that each kind of event happens, in user and in kernel mode.
type Counts = [[u64; 2]; KINDS.len()];

/// Returns a kind of event as the processors' model knows it.
fn fed(kind: usize) -> FedEvent {
    let (event, unit_mask) = KINDS[kind];
    fed_events().find(EventKey::general(event.into(), unit_mask)).unwrap()
}

fn feed_of(counts: &Counts) -> Feed {
    let mut feed = Feed::new(&fed_events());
    for (kind, [user, kernel]) in counts.iter().enumerate() {
        feed.add(fed(kind), Privilege::User, *user).unwrap();
        feed.add(fed(kind), Privilege::Kernel, *kernel).unwrap();
    }
    feed
}

/// The subsystem.
pub(crate) struct Subsystem<'a, 'm> {
    cpus: Vec<Cpu<'a, 'm>>,
    tasks: Vec<Task>,
    /// All events that ever were, by their numbers.
    events: Vec<Expected>,
    groups: Vec<Group>,
    told: &'a Told,
    now: u64,
    random: Random,
    context: String,
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
            let source = OpenedEvents::new(&machine.unit, &lent.table);
            let (unit, all) = (&processor.unit, CounterSet::ALL);
            let mut counters = Counters::take(source, unit, all, mock, mock, &lent.memory).unwrap();
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

    /// Does something, so many times, and compares everything after each.
    pub(crate) fn run(&mut self, steps: u32, faults: Faults) {
        for step in 0..steps {
            let cpu = self.random.below(self.cpus.len() as u64) as usize;
            self.context = format!("{:?}, step {step}, processor {cpu}", self.cpus[cpu].processor);
            self.operate(cpu, faults);
            self.pass();
            self.check();
        }
        self.end();
    }

    /// Lets time pass and events happen on every processor.
    fn pass(&mut self) {
        let passed = 1 + self.random.below(20);
        self.now += passed;
        for cpu in 0..self.cpus.len() {
            let counts = self.some_counts(cpu);
            let mut feed = feed_of(&counts);
            self.count(cpu, passed, &counts);
            self.cpus[cpu].mock.advance(&mut feed);
        }
    }

    /// Lets events happen on a processor whose interrupts are off, up to the first overflow: its interrupt is pending.
    fn pass_until_pending(&mut self, cpu: usize) {
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
    fn count(&mut self, cpu: usize, passed: u64, counts: &Counts) {
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
    fn some_counts(&mut self, cpu: usize) -> Counts {
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
    fn is_countable(&self, number: usize, cpu: usize) -> bool {
        let core_type = self.cpus[cpu].processor.unit.core_type();
        let is_its = |number: &usize| {
            let of = self.events[*number].core_type;
            of.is_none_or(|of| of == 0 || of == core_type)
        };
        let group = self.groups.iter().find(|group| group.numbers.contains(&number));
        group.map_or(is_its(&number), |group| group.numbers.iter().all(is_its))
    }

    /// Returns the events that are opened on a processor.
    fn here(&self, cpu: usize) -> Vec<Placed> {
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
