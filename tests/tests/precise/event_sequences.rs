//! Random operations on precise and plain events, against a naive model: each event counts what happens while it has a
//! counter, and is sampled after each period of that.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use pmu_core::EventId;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_intel::precise::PreciseThreshold;
use pmu_tests::opened::{Random, happened, raw};
use pmu_virt::VirtualPmu;
use pmu_virt::mock::Fault;

use crate::scene::*;
use crate::support::{Mock, Processor, address, instruction, processors};

/// The access, the kind, and how many of it.
type AtAccess = Cell<(u32, usize, u64)>;

/// An event of the model.
struct Known {
    kind: usize,
    is_precise: bool,
    /// `None` while the event is its thread's, which does not run.
    id: Option<EventId>,
    group: Option<EventId>,
    count: u64,
}

struct World {
    scene: &'static Scene,
    session: Session,
    /// The kind of the event whose overflow each record is, in the records' order.
    truth: Rc<RefCell<Vec<usize>>>,
    happening: Rc<Cell<usize>>,
    events: Vec<Known>,
    thread: Vec<ThreadEvent>,
    /// Tags of the thread's events.
    tags: Vec<usize>,
    now: u64,
    /// At this access so many of a kind happen, or another owner's NMI comes.
    at_access: Rc<AtAccess>,
}

/// A record that was due for any event when something happened.
const ANY: usize = usize::MAX;

/// Returns whether a counter has overflowed whose record is yet to be written.
fn is_due(mock: &Mock<'_>) -> bool {
    mock.with_precise_records(|records| records.due()) != Some(0)
}

impl World {
    fn new(
        processor: Processor,
        threshold: PreciseThreshold,
        new: fn(VirtualPmu) -> Mock<'static>,
    ) -> Self {
        let truth = Rc::new(RefCell::new(vec![]));
        let happening = Rc::new(Cell::new(0));
        let (noted, kind) = (truth.clone(), happening.clone());
        let fed = move |number| {
            // Asked for each record, in their order, and again if it could not be written.
            noted.borrow_mut().truncate(number as usize);
            noted.borrow_mut().push(kind.get());
            instruction(number)
        };
        let scene = Scene::with(processor, fed, new);
        scene.memory.set_threshold(threshold);
        let at_access = Rc::new(Cell::new((0, 0, 0)));
        let (pending, kind): (Rc<AtAccess>, _) = (at_access.clone(), happening.clone());
        let hook = move |mock: &Mock<'static>| {
            let (access, of, count) = pending.get();
            pending.set((access.saturating_sub(1), of, count));
            if access == 1 && count == 0 {
                mock.interrupt_from_elsewhere();
            } else if access == 1 {
                let before = kind.replace(if is_due(mock) { ANY } else { of });
                mock.advance(&mut happened(of, count));
                kind.set(before);
            }
        };
        scene.mock.on_access(Box::leak(Box::new(hook)));
        let session = scene.take();
        Self {
            scene,
            session,
            truth,
            happening,
            events: vec![],
            thread: vec![],
            tags: vec![],
            now: 0,
            at_access,
        }
    }

    /// Opens precise and plain events: alone, in a group, and of a thread.
    fn open(&mut self) {
        let scene = self.scene;
        // A processor has no records of some events.
        let probe = |kind: usize| {
            let session = &mut self.session;
            let id = session.open(&scene.counters, &[precise(kind).rotating()]);
            id.is_ok_and(|id| session.close(id, 0).is_ok())
        };
        let can: Vec<bool> = (0..8).map(probe).collect();
        let event = |tag: usize, kind: usize, is_precise: bool| {
            let is_precise = is_precise && can[kind];
            let event = if is_precise { precise(kind) } else { raw(kind).user_only() };
            event.tagged(tag as u64).with_total().rotating()
        };
        // No two precise events are of one kind: of those that overflow together, the processor loses counts.
        let alone = [(0, true), (2, true), (2, false), (3, true), (4, true)];
        for (kind, is_precise) in alone {
            let event = event(self.events.len(), kind, is_precise);
            let id = self.session.open(&scene.counters, &[event]).unwrap();
            let is_precise = is_precise && can[kind];
            self.events.push(Known { kind, is_precise, id: Some(id), group: None, count: 0 });
        }
        let first = self.events.len();
        let members = [event(first, 5, true), event(first + 1, 2, false)];
        let group = self.session.open(&scene.counters, &members).unwrap();
        let ids: Vec<_> = self.session.group_events(group).collect();
        for (id, (kind, is_precise)) in ids.into_iter().zip([(5, true), (2, false)]) {
            let (id, group, is_precise) = (Some(id), Some(group), is_precise && can[kind]);
            self.events.push(Known { kind, is_precise, id, group, count: 0 });
        }
        for kind in [6, 7] {
            let event = event(self.events.len(), kind, true);
            let mut saved = SavedEvent::new(&scene.counters, &event.every(100_000)).unwrap();
            saved.set_period(&scene.table, PERIOD).unwrap();
            let saved = saved.to_be_enabled(true);
            self.thread.push(ThreadEvent::SwitchedOut(saved));
            self.tags.push(self.events.len());
            self.events.push(Known {
                kind,
                is_precise: can[kind],
                id: None,
                group: None,
                count: 0,
            });
        }
    }

    fn happen(&mut self, kind: usize, count: u64) {
        for event in self.events.iter_mut().filter(|event| event.kind == kind) {
            let is_on = event.id.is_some_and(|id| self.session.counter_of(id).is_some());
            event.count += if is_on { count } else { 0 };
        }
        self.happening.set(if is_due(self.scene.mock) { ANY } else { kind });
        self.scene.happen(kind, count);
    }

    /// Does an operation. Returns whether it was possible and succeeded.
    fn operate(&mut self, operation: u64, which: usize) -> bool {
        self.now += 1;
        let (scene, now) = (self.scene, self.now);
        let known = &self.events[which];
        let note = |sample: pmu_core::Sample<'_, _>| scene.note(&sample);
        match (operation, known.id, known.group) {
            (0 | 1, Some(id), None) => self.session.enable(id, now).is_ok(),
            (0 | 1, _, Some(group)) => self.session.enable(group, now).is_ok(),
            (2, Some(id), None) => self.session.disable(id, now).is_ok(),
            (2, _, Some(group)) => self.session.disable(group, now).is_ok(),
            (3 | 4, ..) => self.session.rotate(now).is_ok(),
            (5, ..) => {
                let outcome = self.session.switch_out(&mut self.thread, now, note);
                self.tags.iter().for_each(|tag| self.events[*tag].id = None);
                outcome.is_ok()
            }
            (6, ..) => {
                let outcome = self.session.switch_in(&scene.counters, &mut self.thread, now);
                for (tag, event) in self.tags.iter().zip(&self.thread) {
                    if let ThreadEvent::Opened(id) = event {
                        self.events[*tag].id = Some(*id);
                    }
                }
                outcome.is_ok()
            }
            (7, ..) => {
                let Ok(window) = self.session.lend(now, note) else { return false };
                scene.mock.advance(&mut happened(3, 50));
                window.end(now).is_ok()
            }
            (8, ..) => {
                let suspended = self.session.suspend(now, note).is_ok();
                if suspended {
                    scene.mock.lose_registers();
                }
                // Not suspended, it goes on.
                self.session.resume(now, note).is_ok() && suspended
            }
            (9, ..) => self.session.report_samples(note).is_ok(),
            (10, Some(id), _) => self.session.read(id, now).is_ok(),
            _ => self.session.reprogram(note).is_ok(),
        }
    }

    /// Checks that each sample is of the event whose overflow it is, and is reported once and in order.
    fn check_samples(&self, at: &str) {
        let (seen, truth) = (self.scene.seen.borrow(), self.truth.borrow());
        let mut last = None;
        for seen in seen.iter().filter(|seen| self.events[seen.tag as usize].is_precise) {
            let address = seen.address.unwrap_or_else(|| panic!("{at}: {seen:?} has no record"));
            let number = (address - self::address(0)) / 16;
            assert!(last < Some(number), "{at}: {seen:?} after {last:?}");
            last = Some(number);
            let kind = self.events[seen.tag as usize].kind;
            let of = truth[number as usize];
            assert!(of == ANY || of == kind, "{at}: {seen:?} is that of {of}");
        }
    }

    /// Checks the counts, and that no sample is missing.
    fn check_exactly(&mut self, at: &str) {
        for (tag, event) in self.events.iter().enumerate() {
            let count = match event.id {
                Some(id) => self.session.read(id, self.now).map(|count| count.value),
                None => {
                    let place = self.tags.iter().position(|of| *of == tag).unwrap();
                    let ThreadEvent::SwitchedOut(saved) = self.thread[place] else { panic!() };
                    Ok(saved.count().value)
                }
            };
            assert_eq!(count, Ok(event.count), "{at}: {tag}");
        }
        let scene = self.scene;
        self.session.report_samples(|sample| scene.note(&sample)).unwrap();
        self.check_samples(at);
        for (tag, event) in self.events.iter().enumerate().filter(|(_, event)| event.is_precise) {
            let samples = scene.addresses(tag as u64).len() as u64;
            assert_eq!(
                samples,
                event.count / PERIOD,
                "{at}: samples of {tag} of {}, {:?}",
                event.count,
                scene.memory.dropped()
            );
        }
        assert_eq!(scene.mock.lost_records(), 0, "{at}");
    }

    fn end(mut self, at: &str) {
        self.scene.mock.inject(Fault::None);
        self.at_access.set((0, 0, 0));
        let mut outcome = self.session.shut_down();
        if outcome.is_err() {
            outcome = self.session.shut_down();
        }
        outcome.expect(at);
        crate::support::nothing_is_enabled(self.scene.mock, at);
    }
}

fn random(seed: u64, at: usize) -> Random {
    Random((seed + 1000 * at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

const THRESHOLDS: [PreciseThreshold; 2] =
    [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull];

/// Other owners' NMIs and single faults, which are retried, change nothing.
#[test]
fn events_count_and_are_sampled_as_in_a_naive_model() {
    for (at, processor) in processors().into_iter().enumerate() {
        for (seed, threshold) in (0..30).flat_map(|seed| THRESHOLDS.map(|of| (seed, of))) {
            let mut random = random(seed, at);
            let mut world = World::new(processor, threshold, Mock::strict);
            world.open();
            let mut log = vec![];
            for _ in 0..80 {
                let (operation, which) = (random.below(12), random.below(7) as usize);
                let fault = if random.below(4) == 0 { 1 + random.below(40) as u32 } else { 0 };
                let nmi = if random.below(4) == 0 { 1 + random.below(40) as u32 } else { 0 };
                log.push((operation, which, fault, nmi));
                let name = || format!("{}, seed {seed}, {threshold:?}, {log:?}", processor.name);
                world.scene.mock.inject(if fault == 0 { Fault::None } else { Fault::At(fault) });
                world.at_access.set((nmi, 0, 0));
                let _ = world.operate(operation, which);
                world.scene.mock.inject(Fault::None);
                world.at_access.set((0, 0, 0));
                let kind = [0, 2, 3, 4, 5, 6, 7][random.below(7) as usize];
                world.happen(kind, random.below(130));
                world.check_samples(&name());
                if log.len() % 8 == 0 {
                    world.check_exactly(&name());
                }
            }
            assert_eq!(world.scene.faulted.get(), 0);
            assert_eq!(world.scene.mock.breach(), None);
            world.end(&format!("{}, seed {seed}, {threshold:?}", processor.name));
        }
    }
}

/// Whatever happens in the middle of an operation, and whatever fails, no sample is another event's, and none comes
/// twice. Nothing stays enabled after the end.
#[test]
fn no_fault_gives_an_event_the_sample_of_another_one() {
    for (at, processor) in processors().into_iter().enumerate() {
        for (seed, threshold) in (0..40).flat_map(|seed| THRESHOLDS.map(|of| (seed, of))) {
            let mut random = random(seed, at + 100);
            let mut world = World::new(processor, threshold, Mock::new);
            world.open();
            let mut log = vec![];
            for _ in 0..80 {
                let (operation, which) = (random.below(12), random.below(7) as usize);
                let fault = match random.below(6) {
                    0 => Fault::From(1 + random.below(40) as u32),
                    1 => Fault::At(1 + random.below(40) as u32),
                    2 => {
                        let registers = [0x38F, 0x390, 0x3F1, 0x600, 0x3F5, 0x186, 0xC1, 0x38D];
                        Fault::Register(registers[random.below(8) as usize])
                    }
                    _ => Fault::None,
                };
                let kind = [0, 2, 3, 4, 5, 6, 7][random.below(7) as usize];
                if random.below(3) == 0 {
                    let access = 1 + random.below(40) as u32;
                    world.at_access.set((access, kind, random.below(260)));
                }
                log.push((operation, which, fault));
                let name = || format!("{}, seed {seed}, {threshold:?}, {log:?}", processor.name);
                world.scene.mock.inject(fault);
                let _ = world.operate(operation, which);
                world.scene.mock.inject(Fault::None);
                world.at_access.set((0, 0, 0));
                let kind = [0, 2, 3, 4, 5, 6, 7][random.below(7) as usize];
                world.happen(kind, random.below(130));
                world.check_samples(&name());
            }
            world.end(&format!("{}, seed {seed}, {threshold:?}", processor.name));
        }
    }
}
