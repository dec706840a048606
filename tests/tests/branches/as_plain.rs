//! An event with branches does all that a plain event does: the same operations at random on plain events, and on
//! events that ask for branches. Each outcome, state, count and sample is the same, and each sample has the branches
//! before it. And: such an event on the cores of a hybrid machine.

use pmu_core::branches::BranchFilter;
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSession, CounterSet, Event, EventId, EventSource, EventStatus, Events};
use pmu_tests::Reason;
use pmu_tests::opened::{Random, happened, raw};

use super::scene::*;
use super::support::*;

const EVERY: u64 = 10_000;

/// Kinds of the events that are alone: pinned, two that rotate, one that is exclusive, and the thread's.
const ALONE: [usize; 4] = [2, 3, 4, 5];
const OF_THREAD: usize = 6;
/// Kinds of a group's members: of each group, one only counts.
const GROUPS: [[usize; 2]; 2] = [[7, 1], [1, 0]];
const COUNTED: usize = 1;

/// Events on two counters, and what has happened to them.
struct World<'s, 'a> {
    scene: &'s mut Scene<'a>,
    asks: bool,
    alone: Vec<EventId>,
    groups: Vec<EventId>,
    thread: [ThreadEvent; 1],
    now: u64,
    /// Number of the thread or owner that runs, and of its newest branch.
    epoch: u64,
    number: u64,
}

impl<'s, 'a> World<'s, 'a> {
    fn new(scene: &'s mut Scene<'a>, asks: bool) -> Self {
        let event = |tag: u64, kind: usize| -> Event {
            let event = raw(kind).user_only().on(CounterSet::from_bits(0b11)).tagged(tag);
            let event = event.every(EVERY).with_total();
            if asks { event.with_branches(BranchFilter::USER) } else { event }
        };
        let (session, unit) = (&mut scene.session, scene.counters);
        let alone = ALONE.into_iter().enumerate().map(|(tag, kind)| match tag {
            0 => event(0, kind),
            3 => event(3, kind).rotating().exclusive(),
            tag => event(tag as u64, kind).rotating(),
        });
        let alone = alone.map(|event| session.open(unit, &[event]).unwrap()).collect();
        let groups = GROUPS.into_iter().zip([10, 20]).map(|(kinds, tag)| {
            let members = kinds.map(|kind| match kind {
                COUNTED => raw(COUNTED).user_only().rotating().tagged(tag + 1),
                kind => event(tag, kind).rotating(),
            });
            session.open(unit, &members).unwrap()
        });
        let groups = groups.collect();
        // The thread's event is the child of one that never runs.
        let parent = session.open(unit, &[event(4, OF_THREAD).rotating()]).unwrap();
        let child = session.child_event(parent, 5).unwrap().to_be_enabled(true);
        let thread = [ThreadEvent::SwitchedOut(child)];
        Self { scene, asks, alone, groups, thread, now: 0, epoch: 0, number: 0 }
    }

    /// From now on branches are those of another thread or owner.
    fn changed(&mut self) {
        (self.epoch, self.number) = (self.epoch + 1, 0);
    }

    fn branches(&mut self, count: u64) {
        for _ in 0..count {
            self.number += 1;
            self.scene.mock.branch(&user(100 * self.epoch + self.number));
        }
    }

    fn operate(&mut self, operation: u64, which: usize, number: u64) -> String {
        self.now += 7;
        let (now, mock) = (self.now, self.scene.mock);
        let (event, group) = (self.alone[which % 4], self.groups[which % 2]);
        let (session, unit) = (&mut self.scene.session, self.scene.counters);
        let pending = |_: &_| panic!("an overflow is pending");
        match operation {
            0 | 1 => text(session.enable(event, now)),
            2 => text(session.disable(event, now)),
            3 => text(session.enable(group, now)),
            4 => text(session.disable(group, now)),
            5..=7 => text(session.rotate(now)),
            8 => {
                let done = match self.thread[0] {
                    ThreadEvent::Opened(_) => {
                        text(session.switch_out(&mut self.thread, now, |of| pending(&of.tag)))
                    }
                    _ => text(session.switch_in(unit, &mut self.thread, now)),
                };
                self.changed();
                done
            }
            9 => {
                let window = session.lend(now, |of| pending(&of.tag)).unwrap();
                mock.branch(&user(9_999));
                mock.advance(&mut happened(3, 5_000));
                let done = text(window.end(now + 3));
                self.changed();
                done
            }
            10 => {
                session.suspend(now, |of| pending(&of.tag)).unwrap();
                mock.lose_registers();
                mock.set_performance_entry(0x400);
                let done = text(session.resume(now + 3, |of| pending(&of.tag)).map(|_| ()));
                self.changed();
                done
            }
            // As at a tick: a throttled event reports again, and a frequency has another period.
            11 => text(session.apply_period(event, 5_000 + number, now, |of| pending(&of.tag))),
            12 => text(self.scene.source.opened().set_period(event, 6_000 + number)),
            13 => text(self.scene.source.opened().stop_reporting(event)),
            _ => {
                let member = session.group_events(group).nth(which / 2 % 2).unwrap();
                text(match session.event_status(member).unwrap() {
                    EventStatus::Off => session.enable(member, now),
                    _ => session.disable(member, now),
                })
            }
        }
    }

    /// Lets events happen behind new branches. Returns the tags of the samples.
    fn happen(&mut self, (kind, count): (usize, u64), what: &str) -> Vec<u64> {
        self.branches(1 + count % 3);
        self.scene.mock.advance(&mut happened(kind, count));
        let samples = self.scene.samples.take().into_iter();
        let newest: Vec<u64> =
            (1..=self.number).rev().map(|number| user(100 * self.epoch + number).from).collect();
        let checked = samples.map(|(tag, branches)| {
            let found = branches.unwrap_or_default();
            assert_eq!(found.is_empty(), !self.asks, "{what}: sample of {tag}");
            assert_eq!(found, newest[..found.len()], "{what}: sample of {tag}");
            tag
        });
        checked.collect()
    }

    fn state(&self) -> String {
        let session = &self.scene.session;
        let groups = self.groups.iter().flat_map(|group| session.group_events(*group));
        let of_thread = match self.thread[0] {
            ThreadEvent::Opened(id) => Some(id),
            _ => None,
        };
        let events = self.alone.iter().copied().chain(groups).chain(of_thread);
        let each = events.map(|event| {
            let status = session.event_status(event).unwrap();
            format!("{status:?}, {:?}\n", session.read(event, self.now))
        });
        let thread = match self.thread[0] {
            ThreadEvent::SwitchedOut(event) => format!("{:?}", event.count()),
            _ => String::new(),
        };
        each.collect::<String>() + &thread
    }
}

#[test]
fn events_with_branches_live_as_plain_events_do() {
    for processor in processors() {
        for seed in 0..20 {
            with_scene(&processor, |plain| {
                with_scene(&processor, |asking| {
                    let (plain, asking) = (World::new(plain, false), World::new(asking, true));
                    live_alike(plain, asking, processor.name, seed);
                });
            });
        }
    }
}

type Operation = (u64, usize, u64);

impl World<'_, '_> {
    /// Operates, and lets events happen. Returns everything that is seen of it.
    fn step(&mut self, operation: Operation, happens: [(usize, u64); 2], what: &str) -> String {
        let done = self.operate(operation.0, operation.1, operation.2);
        let samples = happens.map(|happens| self.happen(happens, what));
        format!("{done}, {samples:?}\n{}", self.state())
    }

    fn end(self, what: &str) {
        self.scene.session.shut_down().unwrap();
        assert_eq!(self.scene.visible(), None, "{what}");
    }
}

fn live_alike(mut plain: World<'_, '_>, mut asking: World<'_, '_>, name: &str, seed: u64) {
    let mut random = Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut log = vec![];
    for _ in 0..100 {
        let operation = (random.below(15), random.below(4) as usize, random.below(3_000));
        let happens = [(); 2].map(|()| (random.below(8) as usize, random.below(13_000)));
        log.push((operation, happens));
        let what = format!("{name}, seed {seed}, {log:?}");
        let seen = [plain.step(operation, happens, &what), asking.step(operation, happens, &what)];
        assert!(seen[0] == seen[1], "{what}: {}\n\n{}", seen[0], seen[1]);
    }
    plain.end(name);
    asking.end(name);
}

/// A thread goes between two cores with other records, and one without. Its samples have the branches since it came.
#[test]
fn a_threads_event_has_the_branches_of_the_core_on_which_it_is() {
    let pairs = processors().into_iter().flat_map(|here| processors().map_there(here));
    for (here, there) in pairs {
        for filter in [BranchFilter::USER, BranchFilter::USER.call_stack()] {
            with_scene(&here, |first| {
                with_scene(&there, |second| goes_between(first, second, filter));
            });
        }
    }
}

trait Pairs {
    fn map_there(self, here: Processor) -> Vec<(Processor, Processor)>;
}

impl Pairs for Vec<Processor> {
    /// Returns the pairs of one vendor's cores, of other kinds.
    fn map_there(self, here: Processor) -> Vec<(Processor, Processor)> {
        let others = self.into_iter().filter(|of| of.is_amd() == here.is_amd());
        others.filter(|of| of.name != here.name).map(|of| (here, of)).collect()
    }
}

fn goes_between(first: &mut Scene<'_>, second: &mut Scene<'_>, filter: BranchFilter) {
    let what = format!("{} and {}, {filter:?}", first.name, second.name);
    let asked = raw(2).every(EVERY).rotating().tagged(2).with_branches(filter).with_total();
    let Ok(saved) = SavedEvent::new(first.counters, &asked) else { panic!("{what}") };
    let mut thread = [ThreadEvent::SwitchedOut(saved.to_be_enabled(true))];
    // The third core has no records.
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 8]>::new();
    let source = Events::new(first.counters, &table as &EventTable);
    let (mock, all) = (first.mock, CounterSet::ALL);
    let mut counted = 0;
    for round in 1..=6 {
        counted += visit(first, &mut thread, filter, round, &what);
        counted += visit(second, &mut thread, filter, round, &what);
    }
    let ThreadEvent::SwitchedOut(saved) = thread[0] else { panic!("{what}") };
    assert_eq!(saved.count().value, counted, "{what}");
    first.session.shut_down().unwrap();
    let mut without = CounterSession::take(source, first.counters, all, mock, &memory).unwrap();
    without.switch_in(first.counters, &mut thread, 7).expect(&what);
    let ThreadEvent::Opened(id) = thread[0] else { panic!("{what}") };
    assert_eq!(without.event_status(id), Ok(EventStatus::Inactive), "{what}");
    let opened = without.open(first.counters, &[asked]);
    assert_eq!(opened.reason(), Err(CounterError::BranchesUnsupported), "{what}");
    without.shut_down().unwrap();
}

/// Runs the thread on a core. Returns what its event has counted there.
fn visit(
    scene: &mut Scene<'_>,
    thread: &mut [ThreadEvent; 1],
    filter: BranchFilter,
    round: u64,
    what: &str,
) -> u64 {
    let can = scene.unit.recorded(filter).is_some();
    scene.session.switch_in(scene.counters, thread, round).expect(what);
    let ThreadEvent::Opened(id) = thread[0] else { panic!("{what}") };
    assert_eq!(scene.session.counter_of(id).is_some(), can, "{what}");
    let from = |number| call(100 * round + number).from;
    (1..=3).for_each(|number| scene.mock.branch(&call(100 * round + number)));
    let expected = (2, Some([3, 2, 1].map(from).to_vec()));
    let expected = if can { vec![expected] } else { vec![] };
    assert_eq!(scene.overflow_after(EVERY), expected, "{what}");
    scene.session.switch_out(thread, round, |_| panic!("{what}")).expect(what);
    scene.mock.branch(&call(7_777));
    if can { EVERY } else { 0 }
}

impl Scene<'_> {
    /// Lets so many of the event with the tag 2 happen, and returns the samples.
    fn overflow_after(&self, count: u64) -> Found {
        self.mock.advance(&mut happened(2, count));
        self.samples.take()
    }
}
