//! Counts and times by the loop of Linux' header and by our own reader, against the naive count: over wraps, switches
//! between processors and moves between counters, with interrupts late and at each access, and with faults.

use core::array::from_fn;
use core::cell::Cell;

use pmu::core::access::{CounterIndex, RegisterBackend};
use pmu::core::error::CounterError;
use pmu::core::reading::user_view;
use pmu::core::thread::ThreadEvent;
use pmu::core::{CounterSession, CounterSet, Event, EventCount, EventId, Events, service};
use pmu::user::{UserClock, UserPage};
use pmu_tests::linux_page::{LinuxPage, Read};
use pmu_tests::opened::operations::{Operation, PERIOD, Scene, general};
use pmu_tests::opened::*;
use pmu_tests::software_pmu::KERNEL;
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::{Deviations, Fault};
use pmu_virt::{FedEvents, Feed, Mode, Privilege};

/// Events of a thread, each of which has a page.
const EVENTS: usize = 5;

/// The thread's view of the machine: its pages, and the processor on which it runs.
struct Thread {
    pages: [UserPage; EVENTS],
    /// Its events on the processor on which it runs.
    ids: Cell<[Option<EventId>; EVENTS]>,
    clock: UserClock,
    tsc: Cell<u64>,
}

impl Thread {
    fn new() -> Self {
        Self {
            pages: from_fn(|_| UserPage::new()),
            ids: Cell::default(),
            clock: UserClock::new(2_400_000_000, 0, 1_000).unwrap(),
            tsc: Cell::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.clock.time(self.tsc.get())
    }

    /// Plays the kernel's handler.
    fn handle(&self, source: &Events<'_>, mock: &Mock<'_>, memory: &Memory) {
        let _ = service(source, mock, memory, |_| ());
        for (page, id) in self.pages.iter().zip(self.ids.get()) {
            if let Some(id) = id {
                let view = || user_view(source, mock, memory, id, self.now());
                let _ = page.publish(Some(&self.clock), view);
            }
        }
    }

    /// Plays the kernel's task, before it returns to the thread.
    fn publish(&self, counters: &Opened<'_, '_>) {
        for (page, id) in self.pages.iter().zip(self.ids.get()) {
            match id {
                Some(id) => {
                    let view = || counters.user_view(id, self.now());
                    let _ = page.publish(Some(&self.clock), view);
                }
                None => page.hide(),
            }
        }
    }

    /// Executes RDPMC at privilege level 3.
    fn rdpmc(mock: &Mock<'_>, index: u32) -> u64 {
        mock.set_mode(Mode { cpl: 3, pce: true, protected: true });
        let value = mock.read_counter(CounterIndex::new(index)).unwrap();
        mock.set_mode(KERNEL);
        value
    }

    /// Reads an event as a program for Linux does, and as our own reader does.
    fn read(&self, mock: &Mock<'_>, event: usize) -> [Option<Read>; 2] {
        let (rdpmc, rdtsc) = (|index| Self::rdpmc(mock, index), || self.tsc.get());
        let page = &self.pages[event];
        let own = page.read_with_times(rdpmc, rdtsc);
        assert_eq!(page.read(rdpmc), own.map(|count| count.value));
        let own =
            own.map(|EventCount { value, enabled, running }| Read { value, enabled, running });
        [LinuxPage::of(page).read(rdpmc, rdtsc), own]
    }
}

/// The thread's events: counted; sampled; counted in turns; sampled in turns; and one that may be on a fixed counter.
fn events() -> [(usize, Event); EVENTS] {
    let turns = |event: Event| event.rotating().on_any_core_type();
    [
        (2, raw(2).with_user_reads()),
        (3, raw(3).every(PERIOD).with_total().with_user_reads().on_any_core_type()),
        (4, turns(raw(4)).with_user_reads()),
        (5, turns(raw(5)).every(5 * PERIOD).with_total()),
        (0, raw(0).user_only().with_user_reads().on_any_core_type()),
    ]
}

/// An event as it is to be.
#[derive(Clone, Copy, Default)]
struct Expected {
    count: EventCount,
    started: bool,
}

/// Two processors of a machine, alike or not.
struct Machine<'a, 'm> {
    thread: &'a Thread,
    processors: &'a [Processor; 2],
    mocks: [&'m Mock<'m>; 2],
    counters: [Opened<'a, 'm>; 2],
    /// The processors' own events, which take a counter.
    pinned: [EventId; 2],
    on: Option<usize>,
    events: [ThreadEvent; EVENTS],
    expected: [Expected; EVENTS],
    context: String,
}

impl Machine<'_, '_> {
    fn note_ids(&self) {
        let id = |event: &ThreadEvent| match event {
            ThreadEvent::Opened(id) => Some(*id),
            _ => None,
        };
        self.thread.ids.set(self.events.each_ref().map(id));
    }

    /// Does one thing that a kernel does between two returns to the thread.
    fn operate(&mut self, random: &mut Random) {
        let now = self.thread.now();
        let operation = random.below(12);
        self.context += &format!(": {operation}");
        let Some(cpu) = self.on else { return self.enter(random.below(2) as usize) };
        let counters = &mut self.counters[cpu];
        match operation {
            0 => counters.rotate(now).unwrap(),
            1 => {
                let event = random.below(EVENTS as u64) as usize;
                let ThreadEvent::Opened(id) = self.events[event] else { unreachable!() };
                let started = &mut self.expected[event].started;
                if *started { counters.disable(id, now) } else { counters.enable(id, now) }
                    .unwrap();
                *started = !*started;
            }
            2 if counters.is_enabled(self.pinned[cpu]) => {
                counters.disable(self.pinned[cpu], now).unwrap();
            }
            2 => counters.enable(self.pinned[cpu], now).unwrap(),
            3 => {
                counters.switch_out(&mut self.events, now, |_| ()).unwrap();
                self.on = None;
            }
            // The thread is switched out and in again, on the other processor or on the same.
            4 => {
                counters.switch_out(&mut self.events, now, |_| ()).unwrap();
                self.enter(random.below(2) as usize);
            }
            // A tick: the pages are published, and nothing else.
            _ => {}
        }
    }

    fn enter(&mut self, cpu: usize) {
        self.on = Some(cpu);
        let unit = &self.processors[cpu].unit;
        self.counters[cpu].switch_in(unit, &mut self.events, self.thread.now()).unwrap();
    }

    /// Lets time pass.
    fn tick(&mut self, ticks: u64) {
        let before = self.thread.now();
        self.thread.tsc.set(self.thread.tsc.get() + ticks);
        let passed = self.thread.now() - before;
        let Some(cpu) = self.on else { return };
        for (expected, id) in self.expected.iter_mut().zip(self.thread.ids.get()) {
            if expected.started {
                expected.count.enabled += passed;
                let runs = self.counters[cpu].counter_of(id.unwrap()).is_some();
                expected.count.running += if runs { passed } else { 0 };
            }
        }
    }

    /// Lets these events happen where the thread runs. The thread reads before each interrupt, too.
    fn happen(&mut self, counts: [u64; EVENTS]) {
        let Some(cpu) = self.on else { return };
        let fed = fed_events();
        let (mut feed, keys) = (Feed::new(&fed), events().map(|(kind, _)| key(&fed, kind)));
        for (key, count) in keys.iter().zip(counts) {
            feed.add(*key, Privilege::User, count).unwrap();
        }
        while !feed.is_empty() {
            let before = keys.map(|key| feed.count(key, Privilege::User));
            let pending = self.mocks[cpu].pass(&mut feed).pmi;
            for (event, id) in self.thread.ids.get().into_iter().enumerate() {
                let passed = before[event] - feed.count(keys[event], Privilege::User);
                if self.counters[cpu].counter_of(id.unwrap()).is_some() {
                    self.expected[event].count.value += passed;
                }
            }
            self.check();
            if pending {
                self.mocks[cpu].deliver();
                self.check();
            }
        }
    }

    /// Compares what the thread reads.
    fn check(&self) {
        let Some(cpu) = self.on else { return };
        let (now, mock) = (self.thread.now(), self.mocks[cpu]);
        for (event, id) in self.thread.ids.get().into_iter().enumerate() {
            let context = format!("{}: event {event}", self.context);
            let id = id.unwrap();
            let expected = self.expected[event].count;
            assert_eq!(self.counters[cpu].read(id, now), Ok(expected), "{context}");
            let is_on = self.counters[cpu].counter_of(id).is_some();
            let denied = event == 3 && self.processors[cpu].unit.can_deny_user_reads();
            let page = LinuxPage::of(&self.thread.pages[event]);
            assert_eq!(page.field("index") != 0, is_on && !denied, "{context}");
            let [linux, own] = self.thread.read(mock, event);
            if denied && is_on {
                assert_eq!([linux, own], [None; 2], "{context}");
                continue;
            }
            let EventCount { value, enabled, running } = expected;
            if let Some(own) = own {
                assert_eq!(own, Read { value, enabled, running }, "{context}");
            }
            // The program leaves times that are the same as they were published.
            let [published, ran] = ["time_enabled", "time_running"].map(|name| page.field(name));
            let [enabled, running] =
                if published == ran { [published, ran] } else { [enabled, running] };
            let expected = (own.is_some() || !denied).then_some(Read { value, enabled, running });
            assert_eq!(linux, expected, "{context}");
        }
    }
}

fn key(fed: &FedEvents, kind: usize) -> pmu_virt::FedEvent {
    let (event, unit_mask) = KINDS[kind];
    fed.find(pmu_virt::EventKey::general(event.into(), unit_mask)).unwrap()
}

/// Returns some counts: of events without a period up to half of the narrowest counter's range.
fn some_counts(random: &mut Random) -> [u64; EVENTS] {
    let large = |random: &mut Random| match random.below(6) {
        0 => (1 << 38) + random.below(1 << 38),
        1 => (1 << 31) - 1 + random.below(3),
        _ => random.below(1 << 20),
    };
    let small = |random: &mut Random| random.below(3 * PERIOD);
    [large(random), small(random), large(random), small(random), large(random)]
}

fn wander(processors: &[Processor; 2], seed: u64) {
    let boot = &processors[0];
    let thread = Thread::new();
    let lent: [(Memory, Table); 2] = from_fn(|_| (Memory::new(), Table::new()));
    let handlers = lent.each_ref().map(|(memory, table)| {
        let (thread, source) = (&thread, Events::new(&boot.unit, table));
        move |mock: &Mock<'_>| thread.handle(&source, mock, memory)
    });
    let mocks = processors.each_ref().map(Processor::mock);
    let mut counters: Vec<_> = vec![];
    for cpu in 0..2 {
        let (processor, mock, (memory, table)) = (&processors[cpu], &mocks[cpu], &lent[cpu]);
        mock.on_interrupt(&handlers[cpu]);
        let generals = (0..4).fold(CounterSet::NONE, |all, n| all | general(processor, n));
        let only = generals | CounterSet::fixed(1);
        let source = Events::new(&boot.unit, table);
        counters.push(CounterSession::take(source, &processor.unit, only, mock, memory).unwrap());
        if processor.freezing {
            counters[cpu].freeze_on_interrupt().unwrap();
        }
    }
    let mut counters: [_; 2] = counters.try_into().ok().unwrap();
    let pinned = from_fn(|cpu| {
        let unit = &processors[cpu].unit;
        let first = general(&processors[cpu], 0);
        counters[cpu].open(unit, &[raw(6).on(first)]).unwrap()
    });
    let opened = events()
        .map(|(_, event)| ThreadEvent::Opened(counters[0].open(&boot.unit, &[event]).unwrap()));
    let mut machine = Machine {
        thread: &thread,
        processors,
        mocks: mocks.each_ref(),
        counters,
        pinned,
        on: Some(0),
        events: opened,
        expected: Default::default(),
        context: String::new(),
    };
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for step in 0..150 {
        machine.context = format!("{processors:?}, seed {seed}, step {step}");
        machine.operate(&mut random);
        machine.note_ids();
        if let Some(cpu) = machine.on {
            thread.publish(&machine.counters[cpu]);
        }
        machine.check();
        machine.tick(1 + random.below(1 << 34));
        machine.check();
        machine.happen(some_counts(&mut random));
    }
}

/// Returns two processors of each kind, and two types of core.
fn machines() -> Vec<[Processor; 2]> {
    let mut all: Vec<_> = processors(Deviations::NONE).into_iter().map(|of| [of; 2]).collect();
    let core = |general, core_type| {
        let mut core = Processor::intel(IntelConfiguration::new(5, general, 3));
        core.unit.set_core_type(core_type);
        core
    };
    all.push([core(8, 0x4000_0001), core(6, 0x2000_0001)]);
    all.push([core(6, 0x2000_0001), core(6, 0x4000_0001)]);
    all
}

#[test]
fn a_program_for_linux_reads_every_event_wherever_its_thread_goes() {
    for machine in machines() {
        for seed in 1..=2 {
            wander(&machine, seed);
        }
    }
}

/// The thread reads after an operation and the publication behind it. Every event overflows just before one of their
/// accesses, and the handler publishes in the middle of them, too.
#[test]
fn an_interrupt_at_any_access_leaves_every_page_right() {
    for processor in processors(Deviations::NONE) {
        for scene in Scene::all(&processor) {
            let accesses = (1..).take_while(|access| interrupted(&processor, scene, *access));
            assert!(accesses.count() > 0, "{processor:?}, {scene:?}");
        }
    }
}

/// Returns whether there was such an access.
fn interrupted(processor: &Processor, scene: Scene, access: u32) -> bool {
    let context = format!("{processor:?}, {scene:?}, before access {access}");
    let (memory, table, thread) = (Memory::new(), Table::new(), Thread::new());
    let source = Events::new(&processor.unit, &table);
    let handler = |mock: &Mock<'_>| thread.handle(&source, mock, &memory);
    let (left, counted) = (Cell::new(0u32), [const { Cell::new(0u64) }; 3]);
    let before = |mock: &Mock<'_>| {
        left.set(left.get().saturating_sub(1));
        if left.get() == 1 {
            let mut pmi = false;
            for (place, counted) in counted.iter().enumerate() {
                let more = u64::from(scene.counts(mock, place));
                counted.set(counted.get() + more);
                pmi |= mock.pass(&mut scene.happened(place, 1)).pmi;
            }
            if pmi {
                mock.deliver();
            }
        }
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    mock.on_access(&before);
    let mut case = scene.prepare(processor, PERIOD - 1, &mock, &memory, &table);
    let ids = |events: [EventId; 3]| from_fn(|event| events.get(event).copied());
    thread.ids.set(ids(case.events));
    counted.iter().for_each(|counted| counted.set(PERIOD - 1));
    // The event without a period is before its counter's wrap.
    if let Some(counter) = case.counters.counter_of(case.events[1]) {
        let registers = processor.unit.counter(counter).unwrap();
        let value = mock.read_counter(registers.read_index().unwrap()).unwrap();
        scene.happen(&mock, 1, registers.mask() - value);
        counted[1].set(PERIOD - 1 + registers.mask() - value);
    }
    left.set(access + 1);
    scene.operate(processor, &mut case, |_| ()).unwrap();
    thread.ids.set(ids(case.events));
    thread.publish(&case.counters);
    // The reading's accesses are the thread's.
    let made = left.replace(0) <= 1;
    let gone = match scene.operation {
        Operation::ShutDown => 0..3,
        Operation::SwitchOut | Operation::Close => 2..3,
        _ => 0..0,
    };
    for (place, counted) in counted.iter().enumerate() {
        let context = format!("{context}: event {place}");
        let denied = processor.unit.can_deny_user_reads();
        for read in thread.read(&mock, place) {
            let read = read.map(|read| read.value);
            let is_hidden = denied || gone.contains(&place);
            assert_eq!(read, (!is_hidden).then_some(counted.get()), "{context}");
        }
    }
    made
}

/// A counter that cannot be read is not shown: neither its last count, nor another one.
#[test]
fn a_fault_at_any_access_hides_the_event_until_it_is_published_again() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, thread) = (Memory::new(), Table::new(), Thread::new());
        let source = Events::new(&processor.unit, &table);
        let mock = processor.mock();
        let mut counters = processor.take(&mock, &memory, &table);
        let event = raw(2).every(PERIOD).with_total().with_user_reads();
        let id = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        happen(&mock, 2, 70);
        thread.ids.set(from_fn(|event| (event == 0).then_some(id)));
        for by_task in [true, false] {
            let publish = || {
                let of_task = || counters.user_view(id, 0);
                let of_handler = || user_view(&source, &mock, &memory, id, 0);
                let page = &thread.pages[0];
                if by_task { page.publish(None, of_task) } else { page.publish(None, of_handler) }
            };
            publish().unwrap();
            mock.clear();
            publish().unwrap();
            let accesses = mock.accesses().total();
            assert_eq!(accesses, 1, "{processor:?}");
            mock.inject(Fault::From(1));
            assert!(matches!(publish(), Err(CounterError::Unchanged(_))), "{processor:?}");
            mock.inject(Fault::None);
            assert_eq!(thread.read(&mock, 0), [None; 2], "{processor:?}");
            mock.inject(Fault::At(1));
            publish().unwrap();
            mock.inject(Fault::None);
            let [linux, own] = thread.read(&mock, 0).map(|read| read.unwrap().value);
            assert_eq!([linux, own], [70; 2], "{processor:?}");
        }
    }
}
