//! A sampled op does all that a plain event does. The same operations at random on plain events of one counter, and on
//! events of the unit of ops in their place: each outcome, state, count and sample is the same.

use core::cell::RefCell;

use pmu_amd::ibs::{IbsKind, IbsSampling};
use pmu_core::reading::sample_read;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, Event, EventStatus, Sample};
use pmu_tests::lives;
use pmu_tests::opened::{Random, happened, raw};
use pmu_virt::configuration::AmdConfiguration;

use crate::support::*;

/// The period of the events, in cycles. The unit's random numbers belong to periods of ops.
const PERIOD: u64 = 100;

/// Places of the event that the plain events count, and of the one of a group's other member.
const SAMPLED: usize = 0;
const COUNTED: usize = 1;

/// The events by the bits of their tags.
type Tags = u64;

/// The tags of the events that are alone, of a thread's parent and child, and of the groups' sampling members.
const ALONE: u64 = 4;
const PARENT: u64 = 4;
const CHILD: u64 = 5;
const GROUPS: [u64; 2] = [10, 20];
const ALL: Tags = 0b11_1111 | 1 << 10 | 1 << 20;

/// A sample: its tag and period, and the counts that the handler read of the event's group.
type Found = (u64, u64, Vec<Option<u64>>);

type Lives = lives::Lives<'static, Source<'static>, &'static Mock<'static>>;

struct World {
    mock: &'static Mock<'static>,
    kernel: &'static Kernel,
    lives: Lives,
    /// The events of the unit.
    tags: Tags,
    samples: &'static RefCell<Vec<Found>>,
}

impl World {
    fn new(processor: Processor, tags: Tags, reacts: bool) -> Self {
        let mock: &'static Mock<'static> = Box::leak(Box::new(processor.mock()));
        let kernel: &'static Kernel =
            Box::leak(Box::new(Kernel::new(processor, IbsKind::Op, mock)));
        mock.on_interrupt(Box::leak(Box::new(|mock: &Mock<'static>| kernel.handle(mock))));
        kernel.period.set(0);
        let samples: &'static RefCell<Vec<Found>> = Box::leak(Box::default());
        let mut session = kernel.take(mock);
        let event = |tag: u64| -> Event {
            let event = match tags >> tag & 1 {
                0 => raw(SAMPLED).on(CounterSet::from_bits(0b1)),
                _ => IbsSampling::cycles().event(),
            };
            event.user_only().tagged(tag).with_total().every(PERIOD)
        };
        let alone = (0..ALONE).map(|tag| match tag {
            0 => event(0),
            3 => event(3).rotating().exclusive(),
            tag => event(tag).rotating(),
        });
        let open = |event: Event| session.open(&kernel.counters, &[event]).unwrap();
        let alone = alone.map(open).collect();
        let counted = raw(COUNTED).user_only().rotating().on(CounterSet::from_bits(0b10));
        let groups = GROUPS.into_iter().map(|tag| {
            let (sampling, counted) = (event(tag).rotating(), counted.tagged(tag + 1));
            // The sampling member leads the one group, and follows in the other.
            let members = if tag == 10 { [sampling, counted] } else { [counted, sampling] };
            session.open(&kernel.counters, &members).unwrap()
        });
        let groups = groups.collect();
        let parent = session.open(&kernel.counters, &[event(PARENT).rotating()]).unwrap();
        let child: SavedEvent = session.child_event(parent, CHILD).unwrap().to_be_enabled(true);
        let react = move |kernel: &Kernel, seen: &Seen| {
            let source = kernel.source();
            let read = sample_read(&source, mock, &kernel.counter_memory, seen.event, 0);
            let read = read.unwrap().map(|read| read.count.ok().map(|count| count.value));
            samples.borrow_mut().push((seen.tag, seen.period, read.collect()));
            let number = kernel.seen.borrow().iter().filter(|of| of.tag == seen.tag).count();
            if reacts && number % 3 == 2 {
                kernel.table.set_period(seen.event, 60 + 90 * (number as u64 % 5)).unwrap();
            }
            if reacts && number % 7 == 6 {
                kernel.table.stop_reporting(seen.event).unwrap();
            }
        };
        *kernel.react.borrow_mut() = Some(Box::new(react));
        let thread = [ThreadEvent::SwitchedOut(child)];
        let (unit, table) = (&kernel.counters, &kernel.table);
        let (now, log) = (0, vec![]);
        let lives =
            Lives { session, unit, table, alone, groups, parent, thread, reacts: true, now, log };
        Self { mock, kernel, lives, tags, samples }
    }

    fn operate(&mut self, operation: (u64, usize, u64)) {
        let (kernel, mock) = (self.kernel, self.mock);
        let borrow = || {
            mock.advance(&mut happened(3, 50));
            kernel.pass(mock, IbsKind::Op, 50);
        };
        let note = |sample: Sample<'_, _>| kernel.note(&sample);
        self.lives.operate(operation, note, borrow, || mock.lose_registers());
    }

    /// Lets cycles and counted events happen, to the plain events and to the unit.
    fn happen(&self, cycles: u64, counted: u64) {
        self.mock.advance(&mut happened(SAMPLED, cycles));
        self.kernel.pass(self.mock, IbsKind::Op, cycles as u32);
        self.mock.advance(&mut happened(COUNTED, counted));
    }

    /// Everything that is seen of the events.
    fn state(&mut self) -> String {
        // A plain event has another counter.
        let events = self.lives.state(|status| match status {
            EventStatus::Active(_) => String::from("Active"),
            status => format!("{status:?}"),
        });
        format!("{events}\n{:?}", self.samples.take())
    }
}

/// Operates at random on a world of plain events, and on one of events of the unit.
fn alike(processor: Processor, tags: Tags, reacts: bool, seed: u64) {
    let what = format!(
        "{}, {:?}, {tags:#b}, {reacts}, seed {seed}",
        processor.name, processor.counters.counters
    );
    let mut worlds = [0, tags].map(|tags| World::new(processor, tags, reacts));
    let mut random = Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for _ in 0..150 {
        let operation = (random.below(16), random.below(4) as usize, random.below(80));
        let happens = [random.below(250), random.below(100)];
        let [plain, sampled] = worlds.each_mut().map(|world| {
            world.operate(operation);
            world.happen(happens[0], happens[1]);
            world.state()
        });
        assert_eq!(worlds[0].lives.log.last(), worlds[1].lives.log.last(), "{what}");
        assert!(plain == sampled, "{what}: {:#?}\n{plain}\n\n{sampled}", worlds[1].lives.log);
    }
    for mut world in worlds {
        let kernel = world.kernel;
        for seen in kernel.seen.borrow().iter() {
            assert_eq!(seen.address.is_some(), world.tags >> seen.tag & 1 != 0, "{what}: {seen:?}");
        }
        assert!(kernel.seen.borrow().len() > 20, "{what}");
        let handled = (kernel.unclaimed.get(), kernel.faulted.get(), kernel.memory.dropped());
        assert_eq!(handled, (0, 0, 0), "{what}");
        world.lives.session.shut_down().unwrap();
        assert!(!is_enabled(world.mock), "{what}");
        world.mock.on_interrupt(&|_| ());
    }
}

#[test]
fn sampled_ops_live_as_plain_events_do() {
    for counters in [
        AmdConfiguration::LEGACY,
        AmdConfiguration::CORE_EXTENSION,
        AmdConfiguration::perf_mon_v2(6),
    ] {
        for processor in processors().into_iter().filter(|of| of.is_exact(IbsKind::Op)) {
            let processor = Processor { counters, ..processor };
            for reacts in [false, true] {
                for seed in 0..4 {
                    alike(processor, ALL, reacts, seed);
                }
            }
        }
    }
}
