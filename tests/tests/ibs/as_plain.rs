//! A sampled op does all that a plain event does. The same operations at random on plain events of one counter, and on
//! events of the unit of ops in their place: each outcome, state, count and sample is the same.

use core::cell::RefCell;

use pmu_amd::ibs::{IbsKind, IbsSampling};
use pmu_core::reading::sample_read;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, Event, EventId, EventStatus};
use pmu_tests::Reason;
use pmu_tests::opened::{Random, happened, raw};
use pmu_virt::AmdConfiguration;

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

struct World {
    mock: &'static Mock<'static>,
    kernel: &'static Kernel,
    session: Session<'static>,
    /// The events of the unit.
    tags: Tags,
    alone: Vec<EventId>,
    groups: Vec<EventId>,
    /// The event whose child the thread has.
    parent: EventId,
    thread: [ThreadEvent; 1],
    samples: &'static RefCell<Vec<Found>>,
    now: u64,
    log: Vec<String>,
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
        let child: SavedEvent = session.child_event(parent, CHILD).unwrap().to_be_started(true);
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
        let (log, now) = (vec![], 0);
        Self { mock, kernel, session, tags, alone, groups, parent, thread, samples, now, log }
    }

    /// Every opened event, with the thread's.
    fn events(&self) -> Vec<EventId> {
        let of_thread = match self.thread[0] {
            ThreadEvent::Opened(id) => Some(id),
            _ => None,
        };
        let groups = self.groups.iter().flat_map(|group| self.session.group_events(*group));
        let alone = self.alone.iter().copied().chain([self.parent]);
        alone.chain(groups).chain(of_thread).collect()
    }

    fn operate(&mut self, operation: u64, which: usize, number: u64) {
        self.now += 7;
        let (kernel, mock, now) = (self.kernel, self.mock, self.now);
        let (event, group) = (self.alone[which % 4], self.groups[which % 2]);
        let note = |sample: pmu_core::Sample<'_, _>| kernel.note(&sample);
        let session = &mut self.session;
        let text = |done: Result<(), pmu_core::CounterError>| format!("{done:?}");
        let done = match operation {
            0 | 1 => text(session.start(event, now).reason()),
            2 => text(session.stop(event, now).reason()),
            3 => format!("{:?}", session.start(group, now)),
            4 => format!("{:?}", session.stop(group, now)),
            5..=7 => text(session.rotate(now)),
            8 => match self.thread[0] {
                ThreadEvent::Opened(_) => {
                    format!("{:?}", session.switch_out(&mut self.thread, now, note))
                }
                _ => format!("{:?}", session.switch_in(&kernel.counters, &mut self.thread, now)),
            },
            9 => {
                let window = session.lend(now, note).unwrap();
                mock.advance(&mut happened(3, 50));
                kernel.pass(mock, IbsKind::Op, 50);
                format!("{:?}", window.end(now + 3))
            }
            10 => {
                session.suspend(now, note).unwrap();
                mock.lose_registers();
                format!("{:?}", session.resume(now + 3, note).map(|_| ()))
            }
            11 => format!("{:?}", session.reprogram(note).map(|_| ())),
            // As at a tick: a throttled event reports again, and a frequency has another period.
            12 | 13 => text(session.apply_period(event, 50 + number, now, |_| panic!("pending"))),
            14 => text(kernel.table.set_period(event, 40 + number)),
            _ => {
                let leader = session.group_events(group).nth(which / 2 % 2).unwrap();
                text(match session.event_status(leader).unwrap() {
                    EventStatus::Off => session.enable(leader, now),
                    _ => session.disable(leader, now),
                })
            }
        };
        self.log.push(format!("{operation}, {which}, {number}: {done}"));
    }

    /// Lets cycles and counted events happen, to the plain events and to the unit.
    fn happen(&self, cycles: u64, counted: u64) {
        self.mock.advance(&mut happened(SAMPLED, cycles));
        self.kernel.pass(self.mock, IbsKind::Op, cycles as u32);
        self.mock.advance(&mut happened(COUNTED, counted));
    }

    /// Everything that is seen of the events.
    fn state(&mut self) -> String {
        let now = self.now;
        let events = self.events().into_iter().map(|event| {
            let count = self.session.read(event, now);
            let status = match self.session.event_status(event).unwrap() {
                EventStatus::Active(_) => String::from("Active"),
                status => format!("{status:?}"),
            };
            format!("{status}, {count:?}\n")
        });
        let events: String = events.collect();
        let thread = match self.thread[0] {
            ThreadEvent::SwitchedOut(event) => format!("{:?}", event.count()),
            _ => String::new(),
        };
        format!("{events}{thread}\n{:?}", self.samples.take())
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
            world.operate(operation.0, operation.1, operation.2);
            world.happen(happens[0], happens[1]);
            world.state()
        });
        assert_eq!(worlds[0].log.last(), worlds[1].log.last(), "{what}");
        assert!(plain == sampled, "{what}: {:#?}\n{plain}\n\n{sampled}", worlds[1].log);
    }
    for mut world in worlds {
        let kernel = world.kernel;
        for seen in kernel.seen.borrow().iter() {
            assert_eq!(seen.address.is_some(), world.tags >> seen.tag & 1 != 0, "{what}: {seen:?}");
        }
        assert!(kernel.seen.borrow().len() > 20, "{what}");
        let handled = (kernel.unclaimed.get(), kernel.faulted.get(), kernel.memory.dropped());
        assert_eq!(handled, (0, 0, 0), "{what}");
        world.session.shut_down().unwrap();
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
