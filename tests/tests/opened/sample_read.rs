//! The counts of an event and its group with its overflow, and an event that stops reporting in its handler.

use core::cell::{Cell, RefCell};

use pmu_core::error::{CounterError, EventsError};
use pmu_core::reading::sample_read;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, Event, EventCount, EventId, EventSource, Events, service};
use pmu_tests::StateRegisters;
use pmu_tests::opened::*;
use pmu_virt::configuration::{Configuration, IntelFeature};
use pmu_virt::mock::{Deviation, Deviations};

const PERIOD: u64 = 0x1000;

type Read = (u64, Result<EventCount, CounterError>);

/// Reads within the closure, and once more after the service.
struct Reads {
    within: RefCell<Vec<Vec<Read>>>,
    after: RefCell<Vec<Vec<Read>>>,
    now: Cell<u64>,
}

impl Reads {
    fn new() -> Self {
        Self { within: RefCell::default(), after: RefCell::default(), now: Cell::new(0) }
    }

    fn handle(&self, source: &Events<'_>, mock: &Mock<'_>, memory: &Memory) {
        let read = |event| {
            let counts = sample_read(source, mock, memory, event, self.now.get()).unwrap();
            counts.map(|read| (read.tag, read.count)).collect::<Vec<_>>()
        };
        let overflowed = Cell::new(None);
        let sample = |overflow: pmu_core::interrupt::EventOverflow| {
            overflowed.set(Some(overflow.event));
            self.within.borrow_mut().push(read(overflow.event));
        };
        service(source, mock, memory, |of| sample(*of)).unwrap();
        if let Some(event) = overflowed.get() {
            self.after.borrow_mut().push(read(event));
        }
    }
}

/// A sampled leader and two members, one of which is sampled, too, each happening as it likes: with each overflow the
/// counts are what happened until then.
#[test]
fn an_overflow_comes_with_the_exact_counts_of_its_group() {
    let all = processors(Deviations::NONE).into_iter().chain(
        [Deviation::RaisesOnUnmask, Deviation::LatchesSecondInterrupt]
            .into_iter()
            .flat_map(|deviation| processors(Deviations::of(&[deviation]))),
    );
    for processor in all {
        let (memory, table, reads) = (Memory::new(), Table::new(), Reads::new());
        let source = Events::new(&processor.unit, &table);
        let handler = |mock: &Mock<'_>| reads.handle(&source, mock, &memory);
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let unit = &processor.unit;
        let leader = raw(2).every(PERIOD).with_total().tagged(2);
        let sampled = raw(4).every(3 * PERIOD).with_total().tagged(4);
        let group = counters.open(unit, &[leader, raw(3).tagged(3), sampled]).unwrap();
        let alone = counters.open(unit, &[raw(5).every(PERIOD).tagged(5)]).unwrap();
        counters.enable(group, 100).unwrap();
        counters.enable(alone, 100).unwrap();
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        let (mut passed, mut seen) = ([0u64; 3], 0);
        for step in 0..300 {
            reads.now.set(100 + step);
            let kind = random.below(3) as usize;
            // Up to the next overflow at most, which is served at once.
            let period = [PERIOD, u64::MAX, 3 * PERIOD][kind];
            let count = random.below(0x900).min(period - passed[kind] % period);
            passed[kind] += count;
            happen(&mock, 2 + kind, count);
            let expected: Vec<Read> = (0..3)
                .map(|kind| {
                    let (tag, value) = (2 + kind as u64, passed[kind]);
                    (tag, Ok(EventCount { value, enabled: step, running: step }))
                })
                .collect();
            for moment in [&reads.within, &reads.after] {
                for read in moment.take() {
                    assert_eq!(read, expected, "{processor:?}, step {step}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 50, "{seen}");
        // An event that is only sampled has no count.
        happen(&mock, 5, PERIOD);
        let no_total = vec![(5, Err(CounterError::NoTotal(alone)))];
        assert_eq!(reads.within.take(), [no_total], "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// A member that only counts wraps, once and again, with the leader's overflow in the same interrupt or not: its count
/// is exact, or is said to be unknown.
#[test]
fn a_members_wrap_is_counted_or_said_to_be_unknown() {
    for processor in processors(Deviations::NONE) {
        if processor.unit.global().is_none() {
            continue;
        }
        for leader_first in [false, true] {
            for wraps in 1..=3 {
                for with_leader in [false, true] {
                    wrap(&processor, leader_first, wraps, with_leader);
                }
            }
        }
    }
}

fn wrap(processor: &Processor, leader_first: bool, wraps: u64, with_leader: bool) {
    let context = format!("{processor:?}, {leader_first}, wrap {wraps}, together: {with_leader}");
    let (memory, table, reads) = (Memory::new(), Table::new(), Reads::new());
    let source = Events::new(&processor.unit, &table);
    let handler = |mock: &Mock<'_>| reads.handle(&source, mock, &memory);
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut counters = processor.take(&mock, &memory, &table);
    let mut general = (processor.unit.counters() & CounterSet::GENERAL).iter();
    let [first, second] = [(); 2].map(|()| general.next().unwrap().only());
    let (of_leader, of_member) = if leader_first { (first, second) } else { (second, first) };
    let leader = raw(2).every(PERIOD).with_total().tagged(2).on(of_leader);
    let events = [leader, raw(3).tagged(3).on(of_member)];
    let group = counters.open(&processor.unit, &events).unwrap();
    counters.enable(group, 0).unwrap();
    let member = of_member.iter().next().unwrap();
    let mask = processor.unit.counter(member).unwrap().mask();
    let value = || mock.with_pmu(|pmu| pmu.state().general()[usize::from(member.number())]);
    let mut passed = 0;
    for number in 1..=wraps {
        let count = mask - value() + 1;
        passed += count;
        let mut feed = happened(3, count);
        if number < wraps || !with_leader {
            mock.advance(&mut feed);
            continue;
        }
        // Both overflow before the interrupt is delivered.
        mock.pass(&mut feed);
        let frozen = processor.freezing;
        let mut feed = happened(2, PERIOD);
        mock.pass(&mut feed);
        mock.deliver();
        if frozen {
            mock.advance(&mut happened(2, PERIOD));
        }
    }
    if !with_leader {
        happen(&mock, 2, PERIOD);
    }
    let exact = |read: &Read| read.1.map(|count| count.value) == Ok(passed);
    let within = reads.within.take();
    let Some(within) = within.first() else { panic!("{context}: no overflow") };
    // A processor that froze its counters has served the wrap before the leader overflows.
    let separate = !with_leader || processor.freezing;
    let frozen = processor.freezing && processor.freezes_by_status();
    let unknown = leader_first && !frozen && (wraps > 1 || separate);
    let counter = CounterError::NotAvailable(of_member);
    assert!(exact(&within[1]) || unknown && within[1].1 == Err(counter), "{context}: {within:?}");
    let after = reads.after.take();
    assert!(after.iter().all(|reads| exact(&reads[1])), "{context}: {after:?}, {passed}");
    // Long after the wrap, it is known.
    happen(&mock, 3, 1 << 31);
    happen(&mock, 2, PERIOD);
    for reads in reads.within.take().iter().chain(&reads.after.take()) {
        assert_eq!(reads[1].1.map(|count| count.value), Ok(passed + (1 << 31)), "{context}");
    }
    // The next wrap's interrupt is pending.
    let left = mask - value() + 1;
    let mut feed = happened(3, left + 5);
    mock.pass(&mut feed);
    mock.pass(&mut feed);
    let beyond = if processor.freezing { 0 } else { 5 };
    let event = counters.group_events(group).next().unwrap();
    let msr = &mock;
    let counts = sample_read(&source, &msr, &memory, event, 0).unwrap();
    let values: Vec<_> = counts.map(|read| read.count.unwrap().value).collect();
    assert_eq!(values[1], passed + (1 << 31) + left + beyond, "{context}");
    mock.deliver();
    counters.shut_down().unwrap();
}

/// A member wraps at the very event at which its leader overflows: one pass serves both.
#[test]
fn a_wrap_at_the_leaders_own_overflow_is_counted_or_said_to_be_unknown() {
    for processor in processors(Deviations::NONE) {
        let narrow = matches!(processor.configuration,
            Configuration::Intel(intel) if !intel.has(IntelFeature::FullWidthWrites));
        if processor.unit.global().is_none() || narrow {
            continue;
        }
        for leader_first in [false, true] {
            for wraps in 1..=3 {
                wrap_together(&processor, leader_first, wraps);
            }
        }
    }
}

fn wrap_together(processor: &Processor, leader_first: bool, wraps: u64) {
    let context = format!("{processor:?}, {leader_first}, wrap {wraps}");
    let (memory, table, reads) = (Memory::new(), Table::new(), Reads::new());
    let source = Events::new(&processor.unit, &table);
    let handler = |mock: &Mock<'_>| reads.handle(&source, mock, &memory);
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut counters = processor.take(&mock, &memory, &table);
    let mut general = (processor.unit.counters() & CounterSet::GENERAL).iter();
    let [first, second] = [(); 2].map(|()| general.next().unwrap().only());
    let (of_leader, of_member) = if leader_first { (first, second) } else { (second, first) };
    let leader = raw(2).every(i64::MAX as u64).with_total().on(of_leader);
    let events = [leader, raw(2).on(of_member)];
    let group = counters.open(&processor.unit, &events).unwrap();
    counters.enable(group, 0).unwrap();
    let leader = counters.group_events(group).next().unwrap();
    let member = of_member.iter().next().unwrap();
    let mask = processor.unit.counter(member).unwrap().mask();
    let value = || mock.with_pmu(|pmu| pmu.state().general()[usize::from(member.number())]);
    let mut passed = 0;
    for number in 1..=wraps {
        let until = if number == wraps { PERIOD } else { 0 };
        let count = mask - value() + 1 - until;
        passed += count;
        happen(&mock, 2, count);
    }
    counters.apply_period(leader, PERIOD, 0, |o| panic!("{context}: {o:?}")).unwrap();
    happen(&mock, 2, PERIOD);
    let expected = Ok(passed + PERIOD);
    let within = reads.within.take();
    let [within] = &within[..] else { panic!("{context}: {within:?}") };
    let values = [0, 1].map(|place: usize| within[place].1.map(|count| count.value));
    let frozen = processor.freezing && processor.freezes_by_status();
    let unknown = leader_first && !frozen && wraps > 1;
    let not_available = Err(CounterError::NotAvailable(of_member));
    assert_eq!(values, [expected, if unknown { not_available } else { expected }], "{context}");
    for after in reads.after.take() {
        let values = [0, 1].map(|place: usize| after[place].1.map(|count| count.value));
        assert_eq!(values, [expected; 2], "{context}");
    }
    counters.shut_down().unwrap();
}

/// A group with one event switched out; closed events; a counter that faults.
#[test]
fn what_cannot_be_read_is_said() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = Events::new(&processor.unit, &table);
        let mut counters = processor.take(&mock, &memory, &table);
        let unit = source.unit();
        let group = counters.open(unit, &[raw(2).tagged(2), raw(3).tagged(3)]).unwrap();
        counters.enable(group, 0).unwrap();
        happen(&mock, 3, 4);
        let events: Vec<EventId> = counters.group_events(group).collect();
        let values = |event| {
            let reads = sample_read(&source, &mock, &memory, event, 0);
            reads.map(|reads| reads.map(|read| read.count.unwrap().value).collect::<Vec<_>>())
        };
        assert_eq!(values(events[1]), Ok(vec![0, 4]), "{processor:?}");
        counters.disable(group, 0).unwrap();
        happen(&mock, 3, 4);
        assert_eq!(values(events[0]), Ok(vec![0, 4]), "{processor:?}: stopped");
        let mut part = [ThreadEvent::Opened(events[0])];
        counters.switch_out(&mut part, 0, |o| panic!("{o:?}")).unwrap();
        let parted = EventsError { events: 0, reason: CounterError::GroupElsewhere(events[1]) };
        assert_eq!(values(events[1]), Err(parted), "{processor:?}");
        let gone = EventsError { events: 0, reason: CounterError::NoSuchEvent(events[0]) };
        assert_eq!(values(events[0]), Err(gone), "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// The event reports twice, and no more until a task starts it again; it counts on, also on another counter and after a
/// context switch.
#[test]
fn an_event_that_stops_reporting_in_its_handler_reports_when_it_is_started_again() {
    for processor in processors(Deviations::NONE) {
        let (memory, table) = (Memory::new(), Table::new());
        let source = Events::new(&processor.unit, &table);
        let (told, left) = (Cell::new(0), Cell::new(2));
        let handler = |mock: &Mock<'_>| {
            let sample = |overflow: pmu_core::interrupt::EventOverflow| {
                assert_eq!(overflow.period, PERIOD);
                told.set(told.get() + 1);
                left.set(left.get() - 1);
                if left.get() == 0 {
                    table.stop_reporting(overflow.event).unwrap();
                }
            };
            service(&source, mock, &memory, |of| sample(*of)).unwrap();
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        let event: Event = raw(2).every(PERIOD).with_total();
        let made = SavedEvent::new(unit, &event).unwrap().to_be_enabled(true);
        let mut thread = [ThreadEvent::SwitchedOut(made)];
        counters.switch_in(unit, &mut thread, 0).unwrap();
        let id = |thread: &[ThreadEvent; 1]| match thread[0] {
            ThreadEvent::Opened(id) => id,
            other => panic!("{other:?}"),
        };
        happen(&mock, 2, 5 * PERIOD);
        assert_eq!(told.get(), 2, "{processor:?}");
        assert!(counters.is_enabled(id(&thread)));
        assert_eq!(total(&counters, id(&thread)), 5 * PERIOD, "{processor:?}");
        counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
        counters.switch_in(unit, &mut thread, 0).unwrap();
        happen(&mock, 2, 5 * PERIOD);
        assert_eq!((told.get(), total(&counters, id(&thread))), (2, 10 * PERIOD), "{processor:?}");
        // A task starts it again: a whole period.
        left.set(1);
        counters.disable(id(&thread), 0).unwrap();
        counters.enable(id(&thread), 0).unwrap();
        happen(&mock, 2, PERIOD - 1);
        assert_eq!(told.get(), 2, "{processor:?}");
        happen(&mock, 2, 1);
        assert_eq!(told.get(), 3, "{processor:?}");
        happen(&mock, 2, 3 * PERIOD);
        assert_eq!(told.get(), 3, "{processor:?}");
        // By its period, at the next switch, and by the operation that begins a period at once.
        left.set(1);
        counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
        let ThreadEvent::SwitchedOut(out) = thread[0] else { panic!("{thread:?}") };
        let child = out.child(0);
        thread = [ThreadEvent::SwitchedOut(child)];
        counters.switch_in(unit, &mut thread, 0).unwrap();
        happen(&mock, 2, PERIOD);
        assert_eq!(told.get(), 4, "{processor:?}: a child reports");
        left.set(1);
        counters.apply_period(id(&thread), PERIOD, 0, |o| panic!("{o:?}")).unwrap();
        happen(&mock, 2, PERIOD);
        assert_eq!(told.get(), 5, "{processor:?}: a period at once");
        let plain = counters.open(unit, &[raw(3)]).unwrap();
        assert_eq!(table.stop_reporting(plain), Err(CounterError::NoPeriod(plain)));
        counters.close(plain, 0).unwrap();
        assert_eq!(table.stop_reporting(plain), Err(CounterError::NoSuchEvent(plain)));
        counters.shut_down().unwrap();
    }
}
