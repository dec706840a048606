//! Call stacks that follow threads, on two processors: against the naive stack of each thread.

use core::cell::RefCell;

use super::asked::Source;
use super::scene::{stack_of, text};
use super::support::*;
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, Branches};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSession, CounterSet, CounterUnit, EventId, Events, Sample, service};
use pmu_tests::opened::{Random, happened, raw};
use pmu_virt::Privilege;
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::Fault;

const PERIOD: u64 = 100_000;
const THREADS: usize = 3;
/// Kinds of a thread's events; above are the processor's.
const KINDS: [usize; 2] = [2, 3];
/// The tag of the processors' events by another filter.
const NO_STACK: u64 = 0xFF04;
/// Calls of a guest, and of what runs while no thread is known, come from here on.
const FOREIGN: u64 = 0x70_0000_0000;

type Session = CounterSession<'static, Source<'static>, &'static Mock<'static>>;

thread_local! {
    /// The memories of threads, by the tags of their events.
    static STACKS: [&'static Records; THREADS] =
        core::array::from_fn(|_| &*Box::leak(Box::new(Records::new())));
    /// Tags and branches.
    static SAMPLES: RefCell<Vec<(u64, Vec<u64>)>> = const { RefCell::new(vec![]) };
}

/// The number of a thread whose memory has room for fewer records than there are.
const SMALL: usize = 7;

/// The tags of a thread's events are its number, and its number beside bit 8. The processor's events have no memory.
fn stack(tag: u64) -> Option<&'static BranchMemory> {
    static SMALL_STACK: BranchMemory<[BranchSlot; 8]> = BranchMemory::new();
    if tag == SMALL as u64 {
        return Some(&SMALL_STACK);
    }
    STACKS.with(|stacks| stacks.get(tag as u8 as usize).map(|memory| &***memory))
}

/// A thread: its events, and its calls that have not returned, the newest last.
struct Thread {
    events: [ThreadEvent; 2],
    calls: Vec<u64>,
    /// Number of the calls that were made before its call stack began anew, or that had no room.
    lost: usize,
}

struct Core {
    mock: &'static Mock<'static>,
    counters: &'static CounterUnit,
    depth: usize,
    session: Session,
    runs: Option<usize>,
    name: &'static str,
}

struct World {
    processors: [Core; 2],
    threads: Vec<Thread>,
    number: u64,
    now: u64,
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn processor(of: &Processor) -> Core {
    let (mock, counters) = (leak(of.mock()), leak(of.counters()));
    let memory: &'static CounterMemory = leak(CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new());
    let table: &'static EventTable = leak(EventTable::<[EventEntry; 12]>::new());
    let unit = leak(of.unit());
    let records = leak(Records::new());
    records.set_call_stacks(stack);
    let source = Events::new(counters, table).with(Branches::new(unit, records));
    mock.on_interrupt(leak(move |mock: &Mock<'_>| {
        let _ = service(&source, mock, memory, |sample: Sample<'_, Branches<'_>>| {
            let found = sample.branches().map(|of| of.from).collect();
            SAMPLES.with_borrow_mut(|samples| samples.push((sample.tag, found)));
        });
    }));
    let session = CounterSession::take(source, counters, CounterSet::ALL, mock, memory).unwrap();
    let depth = unit.depth().into();
    Core { mock, counters, depth, session, runs: None, name: of.name }
}

impl World {
    fn new(of: [&Processor; 2]) -> Self {
        let processors = of.map(processor);
        Self { processors, threads: vec![], number: 0, now: 0 }
    }

    /// A thread with this many events, in the place of one that has ended.
    fn make(&mut self, thread: usize, filter: BranchFilter, events: usize, rotate: bool) {
        let made = self.events(thread, filter, events, rotate);
        let new = Thread { events: made, calls: vec![], lost: 0 };
        if thread < self.threads.len() {
            self.threads[thread] = new;
        } else {
            self.threads.push(new);
        }
    }

    fn events(
        &self,
        thread: usize,
        filter: BranchFilter,
        events: usize,
        rotate: bool,
    ) -> [ThreadEvent; 2] {
        let mut made = [ThreadEvent::Unused; 2];
        for (number, place) in made.iter_mut().enumerate().take(events) {
            let tag = (thread | number << 8) as u64;
            let event = raw(KINDS[number]).every(PERIOD).tagged(tag).with_branches(filter);
            let event = if rotate { event.rotating() } else { event };
            let saved = SavedEvent::new(self.processors[0].counters, &event).unwrap();
            *place = ThreadEvent::SwitchedOut(saved.to_be_enabled(true));
        }
        made
    }

    fn switch(&mut self, on: usize, to: Option<usize>) -> Result<(), String> {
        self.now += 10;
        let Self { processors, threads, now, .. } = self;
        let on = &mut processors[on];
        let from = on.runs.map_or(&mut [][..], |from| &mut threads[from].events);
        let done = on.session.switch_out(from, *now, |_| ()).map_err(text);
        on.runs = to;
        let to = to.map_or(&mut [][..], |to| &mut threads[to].events);
        done.and(on.session.switch_in(on.counters, to, *now).map_err(text))
    }

    /// The thread that runs there calls functions, and returns from them.
    fn run(&mut self, on: usize, random: &mut Random) {
        let on = &self.processors[on];
        let steps = if random.below(8) == 0 { 40 } else { random.below(8) };
        for _ in 0..steps {
            self.number += 1;
            let returns = random.below(5) < 2;
            let (from, kind) = match returns {
                true => (0x9010, FedBranchKind::Return),
                false => (0x10_0000 + 0x10 * self.number, FedBranchKind::RelativeCall),
            };
            match on.runs.map(|thread| &mut self.threads[thread]) {
                Some(thread) if returns => {
                    if thread.calls.pop().is_none() {
                        continue; // Nothing called its first function.
                    }
                    thread.lost = thread.lost.min(thread.calls.len());
                }
                Some(thread) => {
                    thread.calls.push(from);
                    thread.lost = thread.lost.max(thread.calls.len().saturating_sub(on.depth));
                }
                None => {
                    let from = FOREIGN + 0x10 * self.number;
                    on.mock.branch(&FedBranch::new(from, 0x9000, kind, Privilege::User));
                    continue;
                }
            }
            on.mock.branch(&FedBranch::new(from, 0x9000, kind, Privilege::User));
        }
    }

    /// Each event is sampled. `exact`: the samples of the thread's events have the whole call stack.
    fn check(&self, on: usize, exact: bool, at: &str) {
        let on = &self.processors[on];
        SAMPLES.take();
        (2..6).for_each(|kind| on.mock.advance(&mut happened(kind, PERIOD)));
        let mut sampled = 0;
        for (tag, found) in SAMPLES.take() {
            let Some(thread) = on.runs.map(|thread| &self.threads[thread]) else { continue };
            if tag == NO_STACK {
                continue;
            }
            let all: Vec<u64> = thread.calls.iter().rev().copied().collect();
            let is_its = tag < 0x200;
            sampled += usize::from(is_its);
            let known = thread.calls.len() - thread.lost;
            if exact && is_its {
                assert_eq!(found, all[..known], "{}, {at}: {tag:#x} of {all:X?}", on.name);
            } else {
                assert!(all.starts_with(&found), "{}, {at}: {found:X?} of {all:X?}", on.name);
            }
        }
        let events = on.runs.map_or(0, |thread| {
            let events = &self.threads[thread].events;
            events.iter().filter(|event| matches!(event, ThreadEvent::Opened(_))).count()
        });
        assert!(!exact || sampled == events, "{}, {at}: {sampled} of {events}", on.name);
    }

    /// An event of the processor, whose tag no thread has.
    fn open(&mut self, on: usize, kind: usize, filter: Option<BranchFilter>) -> EventId {
        let on = &mut self.processors[on];
        let event = raw(kind).every(PERIOD).rotating().tagged(0xFF00 + kind as u64);
        let event = filter.map_or(event, |filter| event.with_branches(filter));
        let event = on.session.open(on.counters, &[event]).unwrap();
        on.session.enable(event, 0).unwrap();
        event
    }

    /// A guest, or a suspend, has the registers.
    fn lend(&mut self, on: usize, suspends: bool) -> Result<(), String> {
        let (on, now) = (&mut self.processors[on], self.now);
        let guest = FedBranch::new(FOREIGN, 0x9000, FedBranchKind::RelativeCall, Privilege::User);
        if suspends {
            on.session.suspend(now, |_| ()).map_err(text)?;
            on.mock.lose_registers();
            return on.session.resume(now, |_| ()).map(|_| ()).map_err(text);
        }
        let window = on.session.lend(now, |_| ()).map_err(text)?;
        on.mock.branch(&guest);
        window.end(now).map_err(text)
    }

    /// Ends the threads. Nothing of them is left on the processors.
    fn end(&mut self, at: &str) {
        for on in &mut self.processors {
            on.session.shut_down().unwrap();
            assert!(!is_recording(on.mock), "{at}");
            no_breach(on.mock, at);
        }
    }
}

fn with_stacks() -> Vec<(Processor, BranchFilter)> {
    let all = processors().into_iter();
    let with: Vec<_> = all.filter_map(|of| Some((of, stack_of(&of)?))).collect();
    assert!(with.len() >= 3);
    with
}

fn seeds(of: u64) -> impl Iterator<Item = (u64, Random)> {
    (1..=of).map(|seed| (seed, Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))))
}

/// Without faults, and with counters for all, a sample has each call that has not returned.
#[test]
fn the_call_stack_of_a_thread_follows_it_to_each_processor_of_the_same_records() {
    for (of, filter) in with_stacks() {
        for (seed, mut random) in seeds(40) {
            let mut world = World::new([&of, &of]);
            (0..THREADS).for_each(|thread| world.make(thread, filter, thread, false));
            for on in 0..2 {
                // The processor's own event, which may record the same.
                world.open(on, 5, (seed % 2 == 0).then_some(filter));
            }
            for step in 0..120 {
                let at = format!("seed {seed}, step {step}");
                let on = random.below(2) as usize;
                if random.below(4) == 0 {
                    // An interrupt of another owner comes anywhere.
                    world.processors[on].mock.interrupt_at(1 + random.below(150) as u32);
                }
                match random.below(10) {
                    0..=4 => {
                        let to = Some(random.below(THREADS as u64 + 1) as usize);
                        let to = to.filter(|to| *to < THREADS);
                        let is_elsewhere = to.is_some() && world.processors[1 - on].runs == to;
                        if !is_elsewhere {
                            world.switch(on, to).unwrap();
                        }
                    }
                    5 => world.lend(on, false).unwrap(),
                    6 => world.lend(on, true).unwrap(),
                    7 => world.processors[on].session.rotate(world.now).unwrap(),
                    8 => {
                        // A thread ends, and another one has its memory, and its events' tags.
                        let is_out = |world: &World, thread: usize| {
                            world.processors.iter().all(|on| on.runs != Some(thread))
                        };
                        let thread = random.below(THREADS as u64) as usize;
                        if is_out(&world, thread) {
                            world.make(thread, filter, thread, false);
                        }
                    }
                    _ => {
                        // A thread changes its events.
                        if let Some(thread) = world.processors[on].runs {
                            world.switch(on, None).unwrap();
                            world.switch(on, Some(thread)).unwrap();
                        }
                    }
                }
                world.processors[on].mock.interrupt_at(0);
                world.run(on, &mut random);
                world.check(on, true, &at);
            }
            world.end(&format!("seed {seed}"));
        }
    }
}

/// Other filters take turns, registers fail, and threads run without their events: no sample ever has a call that
/// returned, or that another thread made.
#[test]
fn no_call_stack_ever_has_parts_of_another() {
    let all = with_stacks();
    for (place, (of, filter)) in all.iter().enumerate() {
        for (seed, mut random) in seeds(200) {
            let (other, _) =
                if seed % 3 == 0 { &all[(place + 1) % all.len()] } else { &all[place] };
            let mut world = World::new([of, other]);
            (0..THREADS).for_each(|thread| world.make(thread, *filter, thread, true));
            let mut own = vec![];
            for on in 0..2 {
                own.push(world.open(on, 4, Some(BranchFilter::ALL.only(filter.kinds()))));
                world.open(on, 5, Some(*filter));
            }
            for step in 0..100 {
                let on = random.below(2) as usize;
                let operation = random.below(10);
                let at = format!("seed {seed}, step {step}, {operation} on {on}");
                let fault = match random.below(4) {
                    0 => Fault::From(1 + random.below(200) as u32),
                    1 => Fault::At(1 + random.below(200) as u32),
                    _ => Fault::None,
                };
                let mock = world.processors[on].mock;
                mock.inject(fault);
                let done = match operation {
                    0..=4 => {
                        let to = Some(random.below(THREADS as u64 + 1) as usize);
                        let to = to.filter(|to| *to < THREADS);
                        let is_elsewhere = to.is_some() && world.processors[1 - on].runs == to;
                        if is_elsewhere { Ok(()) } else { world.switch(on, to) }
                    }
                    5 => world.lend(on, random.below(2) == 0),
                    6 => world.processors[on].session.rotate(world.now).map_err(text),
                    7 => world.processors[on].session.disable(own[on], world.now).map_err(text),
                    8 => world.processors[on].session.enable(own[on], world.now).map_err(text),
                    _ => {
                        // The next thread runs without its events for a while.
                        let next = random.below(THREADS as u64) as usize;
                        let is_free = world.processors.iter().all(|of| of.runs != Some(next));
                        let left = world.switch(on, None);
                        if is_free {
                            ThreadEvent::forget_call_stacks(&mut world.threads[next].events);
                            world.processors[on].runs = Some(next);
                            mock.inject(Fault::None);
                            world.run(on, &mut random);
                        }
                        left
                    }
                };
                mock.inject(Fault::None);
                if done.is_err() && random.below(2) == 0 {
                    let _ = world.processors[on].session.resume(world.now, |_| ());
                }
                world.run(on, &mut random);
                // A sample that lacks a period comes with the next one.
                world.check(on, false, &at);
            }
            world.end(&format!("seed {seed}"));
        }
    }
}

/// If one record cannot be read or written, or if there is no room, the call stack is not cut: it begins anew.
#[test]
fn a_call_stack_returns_as_a_whole_or_not_at_all() {
    const CALLS: u64 = 5;
    for (of, filter) in with_stacks() {
        let registers = *of.unit().registers();
        let record = |first: Option<u32>| {
            let first = first.into_iter();
            first.flat_map(|first| (0..32).map(move |at| first + at * registers.step))
        };
        let failing = record(Some(registers.from)).chain(record(registers.to));
        let failing = failing.chain(record(registers.info)).chain([0x1D9, 0x14CE, 0]);
        let failing: Vec<_> = failing.collect();
        for (register, is_small) in failing.iter().flat_map(|of| [(*of, false), (*of, true)]) {
            for fails_in in [false, true] {
                let at = format!("{}, {register:#X}, {is_small}, {fails_in}", of.name);
                let mut world = World::new([&of, &of]);
                let thread = if is_small { SMALL } else { 1 };
                let mut events = world.events(thread, filter, 1, false);
                let Core { session, counters, mock, .. } = &mut world.processors[0];
                session.switch_in(counters, &mut events, 0).unwrap();
                for number in 1..=CALLS {
                    let kind = FedBranchKind::RelativeCall;
                    mock.branch(&FedBranch::new(number << 12, 0x9000, kind, Privilege::User));
                }
                mock.inject(if fails_in { Fault::None } else { Fault::Register(register) });
                let _ = session.switch_out(&mut events, 1, |_| ());
                let _ = session.switch_in(counters, &mut [], 1);
                mock.inject(Fault::None);
                let other = FOREIGN + 0x10;
                let other =
                    FedBranch::new(other, 0x9000, FedBranchKind::RelativeCall, Privilege::User);
                mock.branch(&other);
                session.switch_out(&mut [], 2, |_| ()).unwrap();
                mock.inject(if fails_in { Fault::Register(register) } else { Fault::None });
                let came = session.switch_in(counters, &mut events, 2);
                mock.inject(Fault::None);
                if came.is_err() {
                    let _ = session.switch_out(&mut events, 3, |_| ());
                    session.switch_in(counters, &mut events, 4).unwrap();
                }
                SAMPLES.take();
                mock.advance(&mut happened(KINDS[0], PERIOD));
                let samples = SAMPLES.take();
                let [(_, found)] = &samples[..] else { panic!("{at}: {samples:?}") };
                let whole: Vec<u64> = (1..=CALLS).rev().map(|number| number << 12).collect();
                let may_be_whole = !is_small && came.is_ok();
                assert!(found.is_empty() || may_be_whole && *found == whole, "{at}: {found:X?}");
                assert!(register != 0 || is_small || *found == whole, "{at}: {found:X?}");
            }
        }
    }
}

/// A call stack of the processor's own event, for whose tag the kernel even has a memory.
#[test]
fn the_call_stack_of_the_processors_event_begins_anew_at_each_switch() {
    for (of, filter) in with_stacks() {
        let mut world = World::new([&of, &of]);
        let Core { session, counters, mock, .. } = &mut world.processors[0];
        let event = raw(KINDS[0]).every(PERIOD).tagged(1).with_branches(filter);
        let event = session.open(counters, &[event]).unwrap();
        session.enable(event, 0).unwrap();
        for thread in 1..5 {
            let call = FedBranch::new(thread, 0x9000, FedBranchKind::RelativeCall, Privilege::User);
            mock.branch(&call);
            SAMPLES.take();
            mock.advance(&mut happened(KINDS[0], PERIOD));
            assert_eq!(SAMPLES.take(), [(1, vec![thread])], "{}", of.name);
            session.switch_out(&mut [], thread, |_| ()).unwrap();
            session.switch_in(counters, &mut [], thread).unwrap();
        }
    }
}

/// A function returned meanwhile, and another one was called.
#[test]
fn a_call_stack_begins_anew_after_its_events_could_not_be_switched_in() {
    let all = processors();
    let amd = all.iter().find(|of| of.is_amd()).unwrap().counters();
    for (of, filter) in with_stacks() {
        let mut world = World::new([&of, &of]);
        let mut events = world.events(1, filter, 1, false);
        let Core { session, counters, mock, .. } = &mut world.processors[0];
        let call =
            |from| FedBranch::new(from, 0x9000, FedBranchKind::RelativeCall, Privilege::User);
        session.switch_in(counters, &mut events, 0).unwrap();
        mock.branch(&call(0x1000));
        session.switch_out(&mut events, 1, |_| ()).unwrap();
        let came = session.switch_in(&amd, &mut events, 2).map_err(|error| error.reason);
        assert_eq!(came, Err(CounterError::OtherProcessor));
        session.switch_out(&mut events, 3, |_| ()).unwrap();
        session.switch_in(counters, &mut events, 4).unwrap();
        mock.branch(&call(0x2000));
        SAMPLES.take();
        mock.advance(&mut happened(KINDS[0], PERIOD));
        assert_eq!(SAMPLES.take(), [(1, vec![0x2000])], "{}", of.name);
    }
}
