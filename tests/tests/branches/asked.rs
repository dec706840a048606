//! Branches as a part of an event's samples: at random, against a naive model of which branches a sample may have, and
//! must have.

use core::cell::{Cell, RefCell};

use super::support::*;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit, Branches};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{
    CounterSession, CounterSet, CounterUnit, EventId, EventStatus, Events, Sample, service,
};
use pmu_tests::opened::{Random, happened, raw};
use pmu_virt::Privilege;
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::Fault;

pub(crate) type Source<'a> = Events<'a, CounterUnit, Branches<'a>>;
type Session<'a> = CounterSession<'a, Source<'a>, &'a Mock<'a>>;

/// The period of every event.
const PERIOD: u64 = 100_000;

/// The guest, as a thread.
const GUEST: u64 = 9;

/// A sample: the event's tag, and where its branches came from, the newest first; `None` for no records.
type Taken = (u64, Option<Vec<u64>>);

struct World<'a> {
    name: String,
    mock: &'a Mock<'a>,
    unit: &'a BranchUnit,
    counters: &'a CounterUnit,
    session: Session<'a>,
    samples: &'a RefCell<Vec<Taken>>,
    /// The processor's events, with the filters of their samples.
    events: Vec<(EventId, Option<BranchFilter>)>,
    /// Each thread's event; by tags 10 and 11.
    threads: [[ThreadEvent; 1]; 2],
    runs: usize,
    /// Every branch that the present thread has taken since the last switch or window, the newest last.
    taken: Vec<FedBranch>,
    /// Number of them at the last operation: a sample has what came after it at least.
    since: usize,
    now: u64,
    number: u64,
    /// Of the present operation.
    fault: Fault,
}

/// The filter of the threads' events.
const OF_THREADS: BranchFilter = BranchFilter::USER;

fn with_world(processor: &Processor, act: impl FnOnce(&mut World<'_>)) {
    let (unit, counters, mock) = (processor.unit(), processor.counters(), processor.mock());
    let records = BranchMemory::<[BranchSlot; 32]>::new();
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 8]>::new();
    let facility = Branches::new(&unit, &records);
    let source = Events::new(&counters, &table as &EventTable).with(facility);
    let session = CounterSession::take(source, &counters, CounterSet::ALL, &mock, &memory).unwrap();
    let samples = RefCell::new(vec![]);
    let handler = |mock: &Mock<'_>| {
        let _ = service(&source, mock, &memory, |sample: Sample<'_, _>| {
            samples.borrow_mut().push(taken_of(&sample));
        });
    };
    mock.on_interrupt(&handler);
    let mut world = World {
        name: processor.name.into(),
        mock: &mock,
        unit: &unit,
        counters: &counters,
        session,
        samples: &samples,
        events: vec![],
        threads: [[ThreadEvent::Unused]; 2],
        runs: 0,
        taken: vec![],
        since: 0,
        now: 0,
        number: 0,
        fault: Fault::None,
    };
    act(&mut world);
}

fn taken_of(sample: &Sample<'_, Branches<'_>>) -> Taken {
    let records = sample.branch_records().map(|records| records.iter().map(|of| of.from).collect());
    (sample.tag, records)
}

impl World<'_> {
    fn open(&mut self, tag: u64, kind: usize, filter: Option<BranchFilter>) -> EventId {
        let event = raw(kind).every(PERIOD).rotating().tagged(tag);
        let event = filter.map_or(event, |filter| event.with_branches(filter));
        let id = self.session.open(self.counters, &[event]).unwrap();
        self.events.push((id, filter));
        id
    }

    /// Opens three events of the processor: two by other filters, and one without branches. Each thread has one, too.
    fn open_all(&mut self) {
        self.open(0, 2, Some(BranchFilter::ALL));
        self.open(1, 3, Some(BranchFilter::KERNEL));
        self.open(2, 4, None);
        for (tag, thread) in [10, 11].into_iter().zip(&mut self.threads) {
            let event = raw(5).every(PERIOD).rotating().tagged(tag).with_branches(OF_THREADS);
            let saved = SavedEvent::new(self.counters, &event).unwrap();
            *thread = [ThreadEvent::SwitchedOut(saved.to_be_enabled(true))];
        }
    }

    /// Takes branches in user mode and in the kernel, whose addresses tell the thread.
    fn branch(&mut self, count: u64) {
        for _ in 0..count {
            let thread = self.runs as u64;
            self.number += 1;
            let (is_user, number) = (!self.number.is_multiple_of(3), self.number);
            let fed = fed(thread, number, is_user);
            self.mock.branch(&fed);
            self.taken.push(fed);
        }
    }

    /// Lets every event's period end, and checks the samples.
    fn sample(&mut self, at: &str) {
        for kind in 2..6 {
            self.mock.advance(&mut happened(kind, PERIOD));
        }
        self.check(at);
    }

    fn filter_of(&self, tag: u64) -> Option<BranchFilter> {
        if tag >= 10 { Some(OF_THREADS) } else { self.events[tag as usize].1 }
    }

    /// A sample has what its filter selects of this thread's last branches: all after the last operation, and then
    /// those before without a gap, as far as there are records.
    fn check(&mut self, at: &str) {
        for (tag, found) in self.samples.take() {
            let at = format!("{}, {at}: sample of {tag}", self.name);
            let filter = self.filter_of(tag);
            let Some(filter) = filter else {
                assert_eq!(found, None, "{at}");
                continue;
            };
            let recorded = self.unit.recorded(filter).unwrap();
            let selected = |of: &&FedBranch| match of.privilege {
                Privilege::User => recorded.user(),
                Privilege::Kernel => recorded.kernel(),
            };
            let all: Vec<u64> =
                self.taken.iter().rev().filter(selected).map(|of| of.from).collect();
            let least = self.taken[self.since..].iter().filter(selected).count();
            let depth = usize::from(self.unit.depth());
            let found = found.unwrap_or_else(|| panic!("{at}: no records"));
            assert!(found.len() >= least.min(depth), "{at}: {found:X?} of {all:X?}");
            assert_eq!(found, all[..found.len().min(all.len())], "{at}");
        }
    }

    /// An operation: what is recorded from now on is certain again.
    fn operated(&mut self) {
        self.now += 10;
        self.since = self.taken.len();
    }

    fn switch(&mut self, out: bool, into: bool) -> Result<(), String> {
        let (session, mut done) = (&mut self.session, Ok(()));
        if out {
            done = session.switch_out(&mut self.threads[self.runs], self.now, |_| ()).map_err(text);
        }
        self.runs = 1 - self.runs;
        self.taken.clear();
        if into {
            let thread = &mut self.threads[self.runs];
            done = done.and(session.switch_in(self.counters, thread, self.now).map_err(text));
        }
        done
    }

    fn window(&mut self, records: bool) -> Result<(), String> {
        let (now, samples, mock, unit) = (self.now, self.samples, self.mock, self.unit);
        let report =
            |sample: Sample<'_, Branches<'_>>| samples.borrow_mut().push(taken_of(&sample));
        let window = self.session.lend(now, report).map_err(text)?;
        mock.inject(Fault::None);
        check_clear(mock, unit, &self.name);
        run_guest(mock, unit, records);
        mock.inject(self.fault);
        self.taken.clear();
        window.end(now).map_err(text)
    }
}

/// The registers have nothing that a borrower could see.
fn check_clear(mock: &Mock<'_>, unit: &BranchUnit, at: &str) {
    assert!(!is_recording(mock), "{at}");
    let registers = unit.registers();
    for record in 0..u32::from(unit.depth()) {
        // SAFETY: the mock's registers are numbers.
        let from = unsafe { RegisterAddress::new(registers.from + record * registers.step) };
        assert_eq!(mock.read(from).unwrap(), 0, "{at}: {record}");
    }
    if let Some(freeze) = registers.freeze {
        let found = mock.update(freeze.bit.read()).unwrap();
        assert_eq!(found & freeze.bit.bits(), 0, "{at}: freezes");
    }
}

/// A guest leaves its own branches, recorded by its own filter.
fn run_guest(mock: &Mock<'_>, unit: &BranchUnit, records: bool) {
    if records {
        record_as_guest(mock, unit);
    }
    for number in 0..5 {
        mock.branch(&fed(GUEST, number, number % 2 == 0));
    }
}

fn fed(thread: u64, number: u64, is_user: bool) -> FedBranch {
    let (base, privilege) = match is_user {
        true => (0x40_0000, Privilege::User),
        false => (0xFFFF_FFFF_8100_0000, Privilege::Kernel),
    };
    let from = base + (thread << 20) + number * 0x10;
    FedBranch::new(from, from + 8, FedBranchKind::Conditional, privilege)
}

fn text(error: impl core::fmt::Debug) -> String {
    format!("{error:?}")
}

#[test]
fn samples_have_the_branches_of_their_own_filter_thread_and_processor_alone() {
    for processor in processors() {
        for seed in 1..=40 {
            with_world(&processor, |world| at_random(world, seed));
        }
    }
}

fn at_random(world: &mut World<'_>, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    world.open_all();
    // From the first use on, the session ends what a guest leaves.
    let (first, _) = world.events[0];
    world.session.enable(first, 0).unwrap();
    let name = world.name.clone();
    let sampled = Cell::new(0);
    for step in 0..150 {
        let before = random.below(40);
        world.branch(before);
        let operation = random.below(9);
        let at = format!("seed {seed}, step {step}, operation {operation}");
        let faulty = random.below(3) == 0;
        if faulty {
            let access = 1 + random.below(60) as u32;
            world.fault =
                if random.below(2) == 0 { Fault::From(access) } else { Fault::At(access) };
            world.mock.inject(world.fault);
        }
        world.name = format!("{name}, {at}, {:?}", world.fault);
        if random.below(2) == 0 {
            // Another owner's, at any access of the operation.
            world.mock.interrupt_at(1 + random.below(40) as u32);
        }
        let done = operate(world, operation, &mut random);
        world.fault = Fault::None;
        world.mock.inject(Fault::None);
        world.mock.interrupt_at(0);
        if done.is_err() {
            // A count that an earlier fault lost is told when the event is next touched.
            let told = format!("{done:?}");
            assert!(faulty || told.contains("CounterLost"), "{}: {told}", world.name);
            // One call makes everything well.
            let healed = match world.session.resume(world.now, |_| ()) {
                Err(CounterError::NotAvailable(_)) => panic!("{at}"),
                healed => healed.map_err(text),
            };
            assert!(healed.is_ok(), "{}, {at}: {healed:?} after {done:?}", world.name);
        }
        world.operated();
        world.samples.borrow_mut().retain(|_| false);
        world.branch(random.below(20));
        world.sample(&at);
        sampled.set(sampled.get() + 1);
        no_breach(world.mock, &at);
    }
    world.session.shut_down().unwrap();
    check_clear(world.mock, world.unit, &world.name);
}

fn operate(world: &mut World<'_>, operation: u64, random: &mut Random) -> Result<(), String> {
    let now = world.now;
    match operation {
        0..=2 => {
            let (event, _) = world.events[operation as usize];
            match world.session.event_status(event) {
                Ok(EventStatus::Off | EventStatus::Error) | Err(_) => {
                    world.session.enable(event, now).map_err(text)
                }
                Ok(_) => world.session.disable(event, now).map_err(text),
            }
        }
        3 | 4 => world.session.rotate(now).map(|_| ()).map_err(text),
        5 => world.switch(true, true),
        6 => {
            // A thread without events comes after a thread that has one, or before it.
            let is_in = matches!(world.threads[world.runs][0], ThreadEvent::Opened(_));
            world.switch(is_in, !is_in)
        }
        7 => world.window(random.below(2) == 0),
        _ => {
            world.session.suspend(now, |_| ()).map_err(text)?;
            world.mock.inject(Fault::None);
            check_clear(world.mock, world.unit, &world.name);
            world.mock.lose_registers();
            world.mock.inject(world.fault);
            world.taken.clear();
            world.session.resume(now, |_| ()).map(|_| ()).map_err(text)
        }
    }
}
