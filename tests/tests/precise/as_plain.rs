//! A precise event does all that a plain event does. The same operations at random on plain events, and on precise ones
//! in their place: each outcome, state, count and sample is the same, and the precise events' samples have records.

use core::cell::RefCell;

use pmu_core::reading::sample_read;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, Event, Sample};
use pmu_intel::precise::PreciseThreshold;
use pmu_tests::lives;
use pmu_tests::opened::{Random, happened, raw};

use crate::scene::*;
use crate::support::{Msr, Processor, processors};

/// Kinds of the events that are alone: pinned, two that rotate, one that is exclusive, and the thread's.
const ALONE: [usize; 4] = [0, 2, 3, 4];
const OF_THREAD: usize = 7;
/// Kinds of a group's members: of each group, one is never precise, and has no period.
const GROUPS: [[usize; 2]; 2] = [[5, 1], [1, 6]];
const COUNTED: usize = 1;

/// The events that are precise, by the bits of their tags.
type PreciseTags = u64;

/// A sample: its tag and period, and the counts that the handler read of the event's group.
type Found = (u64, u64, Vec<Option<u64>>);

type Lives = lives::Lives<'static, Source, Msr>;

struct World {
    scene: &'static Scene,
    lives: Lives,
    samples: &'static RefCell<Vec<Found>>,
}

/// Returns the counters that the events share: two, or the one that writes records.
fn shared(processor: &Processor) -> CounterSet {
    CounterSet::from_bits(if processor.name == "format 0" { 0b1 } else { 0b11 })
}

impl World {
    fn new(processor: Processor, tags: PreciseTags, reacts: bool) -> Self {
        let scene = Scene::new(processor);
        let samples: &'static RefCell<Vec<Found>> = Box::leak(Box::default());
        let mut session = scene.take();
        let on = shared(&processor);
        let event = |tag: u64, kind: usize| -> Event {
            let event = raw(kind).user_only().on(on).tagged(tag).with_total().every(PERIOD);
            if tags >> tag & 1 != 0 { precise(kind).on(on).tagged(tag).with_total() } else { event }
        };
        let alone = ALONE.into_iter().enumerate().map(|(tag, kind)| match tag {
            0 => event(0, kind),
            3 => event(3, kind).rotating().exclusive(),
            tag => event(tag as u64, kind).rotating(),
        });
        let open = |event: Event| session.open(&scene.counters, &[event]).unwrap();
        let alone = alone.map(open).collect();
        let counted = raw(COUNTED).user_only().rotating();
        let groups = GROUPS.into_iter().zip([10, 20]).map(|(kinds, tag)| {
            let members = kinds.map(|kind| match kind {
                COUNTED => counted.tagged(tag + 1),
                kind => event(tag, kind).rotating(),
            });
            // The counted member has a counter beside that of the other one.
            let members = members.map(|of| if of.period().is_none() { of } else { of.on(on) });
            session.open(&scene.counters, &members).unwrap()
        });
        let groups = groups.collect();
        let parent = event(4, OF_THREAD).rotating();
        let parent = session.open(&scene.counters, &[parent]).unwrap();
        let child: SavedEvent = session.child_event(parent, 5).unwrap().to_be_enabled(true);
        let react = move |scene: &'static Scene, seen: &Seen| {
            let source = scene.source();
            let read = sample_read(&source, scene.mock, &scene.counter_memory, seen.event, 0);
            let read = read.unwrap().map(|read| read.count.ok().map(|count| count.value));
            samples.borrow_mut().push((seen.tag, seen.period, read.collect()));
            let number = scene.samples(seen.tag);
            if reacts && number % 3 == 2 {
                scene.table.set_period(seen.event, 60 + 10 * (number as u64 % 5)).unwrap();
            }
            if reacts && number % 7 == 6 {
                scene.table.stop_reporting(seen.event).unwrap();
            }
        };
        *scene.react.borrow_mut() = Some(Box::new(react));
        let thread = [ThreadEvent::SwitchedOut(child)];
        let (unit, table) = (&scene.counters, &scene.table);
        let (now, log) = (0, vec![]);
        let lives = Lives { session, unit, table, alone, groups, parent, thread, reacts, now, log };
        Self { scene, lives, samples }
    }

    fn operate(&mut self, operation: (u64, usize, u64)) {
        let scene = self.scene;
        let note = |sample: Sample<'_, _>| scene.note(&sample);
        let borrow = || scene.mock.advance(&mut happened(3, 50));
        self.lives.operate(operation, note, borrow, || scene.lose_registers());
    }

    /// Everything that is seen of the events.
    fn state(&mut self) -> String {
        let scene = self.scene;
        self.lives.session.report_samples(|sample| scene.note(&sample)).unwrap();
        let events = self.lives.state(|status| format!("{status:?}"));
        let mut samples = self.samples.take();
        if !self.lives.reacts {
            // Those with records are reported later.
            samples.sort_by_key(|(tag, ..)| *tag);
            samples.iter_mut().for_each(|(.., counts)| counts.clear());
        }
        format!("{events}\n{samples:?}")
    }
}

/// Operates at random on a world of plain events, and on one of precise events.
fn alike(processor: Processor, tags: PreciseTags, seed: u64, threshold: PreciseThreshold) {
    let reacts = threshold == PreciseThreshold::EachRecord;
    let mut worlds = [0, tags].map(|tags| World::new(processor, tags, reacts));
    worlds.iter().for_each(|world| world.scene.memory.set_threshold(threshold));
    let mut random = Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for _ in 0..100 {
        let operation = (random.below(16), random.below(4) as usize, random.below(80));
        let happens: [(usize, u64); 2] = [(); 2].map(|()| {
            let kind = [0, 1, 2, 3, 4, 5, 6, 7][random.below(8) as usize];
            (kind, random.below(130))
        });
        let [plain, precise] = worlds.each_mut().map(|world| {
            world.operate(operation);
            happens.iter().for_each(|(kind, count)| world.scene.happen(*kind, *count));
            world.state()
        });
        let what = || format!("{}, {tags:#b}, seed {seed}, {threshold:?}", name(&processor));
        assert_eq!(worlds[0].lives.log.last(), worlds[1].lives.log.last(), "{}", what());
        assert!(plain == precise, "{}: {:#?}\n{plain}\n\n{precise}", what(), worlds[1].lives.log);
    }
    let [plain, precise] = worlds;
    for seen in precise.scene.seen.borrow().iter() {
        assert_eq!(seen.address.is_some(), tags >> seen.tag & 1 != 0, "{seen:?}");
    }
    for world in [plain, precise] {
        world.scene.ends(world.lives.session, processor.name);
    }
}

/// Returns the tags of the events that a processor records.
fn recorded(processor: Processor) -> PreciseTags {
    let scene = Scene::new(processor);
    let mut session = scene.take();
    let kinds = ALONE.into_iter().zip(0..).chain([(OF_THREAD, 4), (5, 10), (6, 20)]);
    let mut can = |kind: usize| {
        let opened = session.open(&scene.counters, &[precise(kind).on(shared(&processor))]);
        opened.is_ok_and(|id| session.close(id, 0).is_ok())
    };
    let tags = kinds.filter(|(kind, _)| can(*kind)).map(|(_, tag)| 1 << tag).sum::<u64>();
    // The child is as its parent.
    tags | (tags >> 4 & 1) << 5
}

#[test]
fn precise_events_live_as_plain_events_do() {
    for processor in processors() {
        let tags = recorded(processor);
        assert!(tags.count_ones() >= if tells_apart(&processor) { 7 } else { 1 });
        let alone = (0..64).map(|tag| tags & 1 << tag).filter(|tag| *tag != 0 && *tag != 1 << 5);
        let alone = alone.map(|tag| if tag == 1 << 4 { 0b11 << 4 } else { tag });
        // Records of formats 0 and 1 are those of one event.
        let together = tells_apart(&processor).then_some(tags);
        for tags in together.into_iter().chain(alone) {
            for seed in 0..if tags.count_ones() > 2 { 8 } else { 1 } {
                for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
                    alike(processor, tags, seed, threshold);
                }
            }
        }
    }
}

/// Also if one occurrence of the former period is left, as that of a counter whose record is due.
#[test]
fn a_period_that_is_applied_begins_at_once_however_little_of_the_former_is_left() {
    for processor in processors() {
        for left in 1..=3 {
            for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
                let what = format!("{}, {left}, {threshold:?}", name(&processor));
                let scene = Scene::new(processor);
                scene.memory.set_threshold(threshold);
                let mut session = scene.take();
                let event = scene.start(&mut session, &precise(0).with_total());
                scene.happen(0, PERIOD - left);
                session.apply_period(event, 60, 0, |_| panic!("{what}")).unwrap();
                scene.happen(0, 59);
                session.report_samples(|sample| scene.note(&sample)).unwrap();
                assert_eq!(*scene.seen.borrow(), [], "{what}");
                scene.happen(0, 1);
                session.report_samples(|sample| scene.note(&sample)).unwrap();
                let periods: Vec<u64> = scene.seen.borrow().iter().map(|of| of.period).collect();
                assert_eq!(periods, [60], "{what}");
                let count = session.read(event, 0).unwrap().value;
                assert_eq!(count, PERIOD - left + 60, "{what}");
                scene.ends(session, &what);
            }
        }
    }
}
