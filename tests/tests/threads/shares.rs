//! The shares of events that rotate: of a processor and of its threads, at rotations and at switches.

use pmu_core::memory::EventTable;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, EventId, Events};
use pmu_tests::opened::*;
use pmu_virt::configuration::IntelConfiguration;

/// Returns an event on a processor or in a thread, which rotates.
fn rotating() -> Event {
    raw(2).rotating()
}

/// Events that are counted together, or one that is alone.
struct Together {
    group: Option<EventId>,
    events: Vec<EventId>,
}

impl Together {
    fn open(counters: &mut Opened<'_, '_>, unit: &CounterUnit, events: &[Event]) -> Self {
        if let [event] = events {
            return Self { group: None, events: vec![counters.open(unit, &[*event]).unwrap()] };
        }
        let group = counters.open(unit, events).unwrap();
        Self { group: Some(group), events: counters.group_events(group).collect() }
    }

    fn start(&self, counters: &mut Opened<'_, '_>, now: u64) {
        match self.group {
            Some(group) => counters.enable(group, now).unwrap(),
            None => counters.enable(self.events[0], now).unwrap(),
        }
    }
}

/// Order of a rotation and a switch at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    RotateFirst,
    SwitchFirst,
    /// The thread's events leave, the others rotate, and the next thread's come.
    RotateBetween,
}

const ORDERS: [Order; 3] = [Order::RotateFirst, Order::SwitchFirst, Order::RotateBetween];

/// A processor with general counters, and what is counted on it: for each of its groups its events.
struct Load {
    counters: u8,
    processor: Vec<Vec<Event>>,
    threads: Vec<Vec<Vec<Event>>>,
    order: Order,
    /// Units of time between two rotations.
    tick: u64,
    /// Units of time between two switches.
    slice: u64,
    /// Thread of a unit of time; beyond the last one, a thread without events.
    runs: fn(u64) -> usize,
    /// Time at which the processor's last group is started.
    late: u64,
    has_clock: bool,
}

impl Load {
    /// Creates one of events that rotate: so many of the processor, and so many of each thread.
    fn new(counters: u8, processor: usize, threads: &[usize]) -> Self {
        let alone = |events: usize| vec![vec![rotating()]; events];
        Self {
            counters,
            processor: alone(processor),
            threads: threads.iter().copied().map(alone).collect(),
            order: Order::RotateFirst,
            tick: 1,
            slice: 1,
            runs: |_| 0,
            late: 0,
            has_clock: true,
        }
    }

    /// Runs up to a time. Returns, for the processor's groups and then each thread's, in how many thousandths of the
    /// time in which they were enabled they were on counters, `from` a time on; and the least number of counters that
    /// were in use.
    fn run(&self, from: u64, to: u64) -> (Vec<u64>, usize) {
        let processor = Processor::intel(IntelConfiguration::new(2, self.counters, 0));
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let unit = &processor.unit;
        let mut threads: Vec<Vec<ThreadEvent>> = vec![];
        for groups in &self.threads {
            let mut thread = vec![];
            for events in groups {
                let together = Together::open(&mut counters, unit, events);
                together.start(&mut counters, 0);
                thread.extend(together.events.into_iter().map(ThreadEvent::Opened));
            }
            counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
            threads.push(thread);
        }
        let open = |events: &Vec<Event>| Together::open(&mut counters, unit, events);
        let of_processor: Vec<Together> = self.processor.iter().map(open).collect();
        let groups = of_processor.len() + self.threads.iter().map(Vec::len).sum::<usize>();
        let (mut times, mut least) = (vec![[0; 2]; groups], usize::MAX);
        let mut running = usize::MAX;
        for time in 0..to {
            let now = if self.has_clock { time } else { 0 };
            for (place, together) in of_processor.iter().enumerate() {
                let is_late = place + 1 == of_processor.len();
                if time == if is_late { self.late } else { 0 } {
                    together.start(&mut counters, now);
                }
            }
            let rotates = |order| time % self.tick == 0 && self.order == order;
            let switches = time % self.slice == 0;
            if rotates(Order::RotateFirst) {
                counters.rotate(now).unwrap();
            }
            if let Some(thread) = threads.get_mut(running).filter(|_| switches) {
                counters.switch_out(thread, now, |o| panic!("{o:?}")).unwrap();
            }
            if rotates(Order::RotateBetween) {
                counters.rotate(now).unwrap();
            }
            if switches {
                running = (self.runs)(time);
                let thread = threads.get_mut(running).map_or(&mut [][..], |thread| thread);
                counters.switch_in(unit, thread, now).unwrap();
            }
            if rotates(Order::SwitchFirst) {
                counters.rotate(now).unwrap();
            }
            if time < from {
                continue;
            }
            let mut add = |place: usize, events: &[EventId]| {
                let is_on = |event: &&EventId| counters.counter_of(**event).is_some();
                let on = events.iter().filter(is_on).count();
                assert!(on == 0 || on == events.len(), "{on} of {events:?}");
                let [enabled, running]: &mut [u64; 2] = &mut times[place];
                *enabled += 1;
                *running += u64::from(on != 0);
                on
            };
            let mut in_use = 0;
            for (place, together) in of_processor.iter().enumerate() {
                if counters.is_enabled(together.events[0]) {
                    in_use += add(place, &together.events);
                }
            }
            if let Some(thread) = threads.get(running) {
                let before: usize = self.threads[..running].iter().map(Vec::len).sum();
                let mut events = thread.iter().map(|event| match event {
                    ThreadEvent::Opened(id) => *id,
                    other => panic!("{other:?}"),
                });
                for (place, group) in self.threads[running].iter().enumerate() {
                    let events: Vec<_> = events.by_ref().take(group.len()).collect();
                    in_use += add(of_processor.len() + before + place, &events);
                }
            }
            least = least.min(in_use);
        }
        (times.iter().map(|[enabled, running]| running * 1000 / enabled).collect(), least)
    }

    /// Checks the shares over 10,000 units of time.
    #[track_caller]
    fn check(&self, expected: &[u64], tolerance: u64) {
        self.check_within(0, 10_000, expected, tolerance);
    }

    #[track_caller]
    fn check_within(&self, from: u64, to: u64, expected: &[u64], tolerance: u64) {
        let (shares, _) = self.run(from, to);
        let is_near = |(share, expected): (&u64, &u64)| share.abs_diff(*expected) <= tolerance;
        let near = shares.len() == expected.len() && shares.iter().zip(expected).all(is_near);
        assert!(near, "{:?}, clock: {}: {shares:?}, not {expected:?}", self.order, self.has_clock);
    }
}

/// In each tick five events, for two counters.
#[test]
fn a_threads_event_has_the_share_of_the_processors() {
    for order in ORDERS {
        let runs = |time| (time % 2) as usize;
        Load { order, runs, ..Load::new(2, 4, &[1, 1]) }.check(&[400; 6], 4);
    }
}

#[test]
fn two_events_of_a_processor_and_a_thread_halve_a_counter() {
    for order in ORDERS {
        Load { order, ..Load::new(1, 1, &[1]) }.check(&[500; 2], 2);
    }
}

/// The same by turns of a thread without events: to have as much of its own time, the thread's event has less.
#[test]
fn a_thread_that_runs_half_of_the_time_has_the_same_share_of_that() {
    for order in ORDERS {
        let runs = |time| (time % 2) as usize;
        Load { order, runs, ..Load::new(1, 1, &[1]) }.check(&[667; 2], 7);
    }
}

#[test]
fn groups_have_equal_shares() {
    for order in ORDERS {
        let pair = || vec![rotating(), raw(3)];
        let load = Load {
            processor: vec![pair(), vec![rotating()], pair()],
            threads: vec![vec![pair()], vec![vec![rotating()], pair()]],
            order,
            runs: |time| (time / 2 % 2) as usize,
            ..Load::new(3, 0, &[])
        };
        load.check(&[333, 667, 333, 333, 667, 333], 10);
    }
}

#[test]
fn three_threads_of_one_processor_share_its_counters_with_its_events() {
    for order in ORDERS {
        let runs = |time| (time % 3) as usize;
        let load = Load { order, runs, ..Load::new(2, 2, &[2, 2, 2]) };
        load.check(&[500; 8], 5);
    }
}

/// In the time of the one, five events; in that of the other, three.
#[test]
fn threads_of_unequal_numbers_of_events_have_equal_shares() {
    for order in ORDERS {
        let runs = |time| (time % 2) as usize;
        let load = Load { order, runs, ..Load::new(2, 2, &[3, 1]) };
        load.check(&[500; 6], 10);
    }
}

#[test]
fn threads_of_unequal_slices_have_equal_shares() {
    for order in ORDERS {
        for slice in [1, 3, 7, 10, 16] {
            let runs: fn(u64) -> usize = match slice {
                1 => |time| usize::from(time % 10 >= 7),
                3 => |time| usize::from(time % 12 >= 9),
                7 => |time| usize::from(time % 28 >= 21),
                10 => |time| usize::from(time % 40 >= 30),
                _ => |time| usize::from(time % 64 >= 48),
            };
            let load = Load { order, runs, slice, tick: 10, ..Load::new(2, 3, &[1, 1]) };
            load.check(&[500; 5], 15);
        }
    }
}

/// Those that do not rotate keep their counters, in a thread for its time; the others share what is left.
#[test]
fn events_that_do_not_rotate_come_before_those_that_do() {
    for order in ORDERS {
        let load = Load {
            processor: vec![vec![raw(3)], vec![rotating()], vec![rotating()]],
            threads: vec![vec![vec![raw(4)], vec![rotating()]], vec![vec![rotating()]]],
            order,
            runs: |time| (time % 2) as usize,
            ..Load::new(3, 0, &[])
        };
        load.check(&[1000, 500, 500, 1000, 500, 500], 20);
    }
}

#[test]
fn an_event_that_starts_late_neither_starves_nor_takes_more_than_its_share() {
    for has_clock in [true, false] {
        let load = Load { late: 5000, has_clock, ..Load::new(1, 2, &[]) };
        load.check_within(5000, 5050, &[500; 2], 60);
        let load = Load { late: 5000, has_clock, ..Load::new(1, 2, &[1]) };
        load.check_within(5000, 5050, &[333; 3], 40);
    }
}

/// The rotations are its clock: what is on the processor then had the time since the one before.
#[test]
fn without_a_clock_the_shares_are_equal_where_rotations_come_before_switches() {
    let runs = |time| (time % 2) as usize;
    Load { runs, has_clock: false, ..Load::new(2, 4, &[1, 1]) }.check(&[400; 6], 5);
    Load { has_clock: false, ..Load::new(1, 1, &[1]) }.check(&[500; 2], 5);
}

/// One event follows its thread between two processors, on each of which one more waits for the only counter.
#[test]
fn a_share_follows_a_thread() {
    let processor = Processor::intel(IntelConfiguration::new(2, 1, 0));
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let mocks = [processor.mock(), processor.mock()];
    let take = |at: usize| processor.take(&mocks[at], &memories[at], &tables[at]);
    let mut counters = [take(0), take(1)];
    let others = counters.each_mut().map(|counters| {
        let other = counters.open(&processor.unit, &[rotating()]).unwrap();
        counters.enable(other, 0).unwrap();
        other
    });
    let event = counters[0].open(&processor.unit, &[rotating()]).unwrap();
    counters[0].enable(event, 0).unwrap();
    let mut thread = [ThreadEvent::Opened(event)];
    counters[0].switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
    for now in 0..10_000 {
        let here = &mut counters[(now % 2) as usize];
        here.switch_in(&processor.unit, &mut thread, now).unwrap();
        here.rotate(now + 1).unwrap();
        here.switch_out(&mut thread, now + 1, |o| panic!("{o:?}")).unwrap();
        here.switch_in(&processor.unit, &mut [], now + 1).unwrap();
    }
    let [ThreadEvent::SwitchedOut(event)] = thread else { panic!("{thread:?}") };
    // The thread is half of the time on each: a share of 2/3 leaves the other event 2/3 of all its time.
    let [here, there] = [0, 1].map(|at| counters[at].read(others[at], 10_000).unwrap());
    for count in [event.count(), here, there] {
        assert_eq!(count.enabled, 10_000);
        assert!(count.running.abs_diff(6_667) < 70, "{count:?}");
    }
}

/// Between two rotations.
#[test]
fn a_counter_that_a_thread_leaves_counts_a_waiting_event_from_the_next_switch_on() {
    let load = Load {
        threads: vec![vec![vec![raw(4)]]],
        runs: |time| (time % 2) as usize,
        tick: 100,
        ..Load::new(2, 3, &[])
    };
    assert_eq!(load.run(0, 1000).1, 2);
}

/// Its enabled time goes on meanwhile, and it claims nothing for that afterwards.
#[test]
fn an_event_that_another_type_of_core_cannot_count_takes_no_more_than_its_share_when_it_is_back() {
    let mut cores = [1, 1].map(|general| Processor::intel(IntelConfiguration::new(5, general, 0)));
    let types = [0x4000_0001, 0x2000_0001];
    cores.iter_mut().zip(types).for_each(|(core, core_type)| core.unit.set_core_type(core_type));
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let mocks = [cores[0].mock(), cores[1].mock()];
    let [mut here, mut there] = [0, 1].map(|at| {
        let source = Events::new(&cores[0].unit, &tables[at] as &EventTable);
        let (mock, memory) = (&mocks[at], &memories[at]);
        CounterSession::take(source, &cores[at].unit, CounterSet::ALL, mock, memory).unwrap()
    });
    let [other, event] = [0, 1].map(|_| {
        let event = here.open(&cores[0].unit, &[rotating()]).unwrap();
        here.enable(event, 0).unwrap();
        event
    });
    let mut thread = [ThreadEvent::Opened(event)];
    for now in 1..=100 {
        here.rotate(now).unwrap();
    }
    here.switch_out(&mut thread, 100, |o| panic!("{o:?}")).unwrap();
    there.switch_in(&cores[1].unit, &mut thread, 100).unwrap();
    for now in 101..=5100 {
        here.rotate(now).unwrap();
        there.rotate(now).unwrap();
    }
    there.switch_out(&mut thread, 5100, |o| panic!("{o:?}")).unwrap();
    here.switch_in(&cores[0].unit, &mut thread, 5100).unwrap();
    let before = here.read(other, 5100).unwrap();
    for now in 5101..=5160 {
        here.rotate(now).unwrap();
    }
    let running = here.read(other, 5160).unwrap().running - before.running;
    assert!((20..=31).contains(&running), "{running} of 60");
    let [ThreadEvent::Opened(event)] = thread else { panic!("{thread:?}") };
    assert_eq!(here.read(event, 5160).unwrap().enabled, 5160);
}
