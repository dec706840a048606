//! Branches as a part of an event's samples: the exact cases.

use core::cell::RefCell;

use super::asked::Source;
use super::support::*;
use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{BranchFilter, BranchKinds, BranchMemory, BranchSlot, Branches};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{
    CounterSession, CounterSet, EventId, EventSource, EventStatus, Events, Sample, service,
};
use pmu_tests::Reason;
use pmu_tests::opened::{happened, raw};
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::{Deviation, Fault};

const PERIOD: u64 = 100_000;

type Session<'a> = CounterSession<'a, Source<'a>, &'a Mock<'a>>;

/// The samples of a session: tags, branches, and whether these were frozen; `None` without records.
type Found = Vec<(u64, Option<(Vec<u64>, bool)>)>;

struct Scene<'a> {
    mock: &'a Mock<'a>,
    records: &'a Records,
    session: Session<'a>,
    samples: &'a RefCell<Found>,
}

fn found(sample: &Sample<'_, Branches<'_>>) -> (u64, Option<(Vec<u64>, bool)>) {
    let branches = || sample.branches().map(|of| of.from).collect();
    (sample.tag, sample.branch_records().map(|records| (branches(), records.is_frozen())))
}

/// A session whose handler takes five branches itself before its service.
fn with_scene(processor: &Processor, act: impl FnOnce(&mut Scene<'_>, &Prepared)) {
    let prepared = Prepared::new(processor);
    let (unit, counters, mock) = (&prepared.unit, processor.counters(), processor.mock());
    let records: Records = BranchMemory::<[BranchSlot; 32]>::new();
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 8]>::new();
    let source = Events::new(&counters, &table as &EventTable);
    let source = source.with(Branches::new(unit, &records));
    let samples = RefCell::new(vec![]);
    let handler = |mock: &Mock<'_>| {
        (1..=5).for_each(|number| mock.branch(&kernel(number)));
        let report = |sample: Sample<'_, _>| samples.borrow_mut().push(found(&sample));
        assert_eq!(service(&source, mock, &memory, report).map(|of| of.others), Ok(0));
    };
    mock.on_interrupt(&handler);
    let session = CounterSession::take(source, &counters, CounterSet::ALL, &mock, &memory).unwrap();
    let mut scene = Scene { mock: &mock, records: &records, session, samples: &samples };
    act(&mut scene, &prepared);
    no_breach(&mock, processor.name);
}

impl Scene<'_> {
    fn overflow(&self, kind: usize) -> Found {
        self.mock.advance(&mut happened(kind, PERIOD));
        self.samples.take()
    }
}

/// Returns the addresses of these branches of user mode, the newest first.
fn users(numbers: core::ops::RangeInclusive<u64>) -> Vec<u64> {
    numbers.rev().map(|number| user(number).from).collect()
}

#[test]
fn a_sample_has_the_branches_before_it_and_none_of_the_handler_where_they_freeze() {
    let deviating = |processor: &Processor| processor.deviating(&[Deviation::NeverFreezesBranches]);
    for processor in processors().iter().flat_map(|of| [*of, deviating(of)]) {
        with_scene(&processor, |scene, of| {
            let event = raw(2).every(PERIOD).with_branches(BranchFilter::ALL);
            let event = scene.session.open(&processor.counters(), &[event]).unwrap();
            scene.session.enable(event, 0).unwrap();
            for _ in 0..2 {
                (1..=40).for_each(|number| scene.mock.branch(&user(number)));
                let samples = scene.overflow(2);
                let [(0, Some((branches, is_frozen)))] = &samples[..] else {
                    panic!("{}: {samples:?}", processor.name);
                };
                let never = processor.deviations.contains(Deviation::NeverFreezesBranches);
                let freezes = of.unit.can_freeze() && !never;
                assert_eq!(*is_frozen, freezes, "{}", processor.name);
                let depth = u64::from(of.unit.depth());
                let own = if *is_frozen { 0 } else { 5 };
                assert_eq!(branches.len() as u64, depth, "{}", processor.name);
                assert_eq!(branches[own..], users(41 + own as u64 - depth..=40));
            }
        });
    }
}

#[test]
fn what_no_facility_meets_is_refused_as_the_event_is_opened() {
    for processor in processors() {
        let (counters, mock) = (processor.counters(), processor.mock());
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let table = EventTable::<[EventEntry; 8]>::new();
        let source = Events::new(&counters, &table as &EventTable);
        let mut without =
            CounterSession::take(source, &counters, CounterSet::ALL, &mock, &memory).unwrap();
        let plain = raw(2).every(PERIOD);
        let event = plain.with_branches(BranchFilter::ALL);
        let refused = CounterError::BranchesUnsupported;
        assert_eq!(without.open(&counters, &[event]).reason(), Err(refused));
        let group = without.open(&counters, &[plain, event]).unwrap_err();
        assert_eq!((group.events, group.reason), (0b10, refused));
        // A thread's event is not counted here, and no error.
        let saved = SavedEvent::new(&counters, &event).unwrap().to_be_enabled(true);
        let mut thread = [ThreadEvent::SwitchedOut(saved)];
        without.switch_in(&counters, &mut thread, 0).unwrap();
        let ThreadEvent::Opened(id) = thread[0] else { panic!("{thread:?}") };
        assert_eq!(without.event_status(id), Ok(EventStatus::Inactive));
        with_scene(&processor, |scene, of| {
            let empty = BranchFilter::ALL.only(BranchKinds::NONE);
            let mut filters = vec![empty];
            let stack = BranchFilter::USER.call_stack();
            if of.unit.recorded(stack).is_none() {
                filters.push(stack);
            }
            for filter in filters {
                let event = plain.with_branches(filter);
                assert_eq!(scene.session.open(&counters, &[event]).reason(), Err(refused));
            }
            assert!(!is_recording(scene.mock), "{}", processor.name);
        });
    }
}

/// A part of the records would be shown as all of them.
#[test]
fn memory_with_room_for_fewer_records_than_there_are_is_refused() {
    for processor in processors() {
        let (unit, counters, mock) = (processor.unit(), processor.counters(), processor.mock());
        let records = BranchMemory::<[BranchSlot; 15]>::new();
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let table = EventTable::<[EventEntry; 2]>::new();
        let source = Events::new(&counters, &table as &EventTable);
        let source = source.with(Branches::new(&unit, &records));
        let mut session =
            CounterSession::take(source, &counters, CounterSet::ALL, &mock, &memory).unwrap();
        let event = raw(2).every(PERIOD).with_branches(BranchFilter::ALL);
        let opened = session.open(&counters, &[event]).map(|_| ());
        // Core 2's format has eight records.
        let has_room = unit.depth() <= 15;
        let refused = Err(CounterError::BranchesUnsupported);
        assert_eq!(opened.reason(), if has_room { Ok(()) } else { refused }, "{}", processor.name);
    }
}

#[test]
fn another_filter_waits_for_its_turn_or_is_refused() {
    for processor in processors() {
        with_scene(&processor, |scene, _| {
            let counters = processor.counters();
            let all = raw(2).every(PERIOD).with_branches(BranchFilter::ALL);
            let kernel = raw(3).every(PERIOD).with_branches(BranchFilter::KERNEL);
            let mut open = |event| scene.session.open(&counters, &[event]).unwrap();
            let [first, second, alike] = [open(all), open(kernel), open(all)];
            let [waits, group] = [kernel.rotating(), all.rotating()];
            let waits = open(waits);
            scene.session.enable(first, 0).unwrap();
            let refused = Err(CounterError::BranchFilterInUse);
            assert_eq!(scene.session.enable(second, 0).reason(), refused);
            assert_eq!(scene.session.enable_if_free(second, 0), refused);
            assert_eq!(scene.session.enable_if_free(alike, 0), Ok(()));
            scene.session.enable(waits, 0).unwrap();
            assert_eq!(scene.session.event_status(waits), Ok(EventStatus::Inactive));
            // No group can have two filters.
            let both = scene.session.open(&counters, &[group, kernel]).unwrap_err();
            assert_eq!((both.events, both.reason), (0b10, CounterError::BranchFilterInUse));
            scene.session.disable(first, 1).unwrap();
            scene.session.disable(alike, 1).unwrap();
            scene.session.rotate(1).unwrap();
            assert!(matches!(scene.session.event_status(waits), Ok(EventStatus::Active(_))));
        });
    }
}

#[test]
fn a_recorder_and_the_events_of_a_session_have_the_records_in_turn() {
    for processor in processors() {
        with_scene(&processor, |scene, of| {
            let counters = processor.counters();
            let event = raw(2).every(PERIOD).with_branches(BranchFilter::USER);
            let event = scene.session.open(&counters, &[event]).unwrap();
            let (mock, records) = (scene.mock, scene.records);
            let take = || BranchRecorder::take(&of.unit, mock, records);
            scene.session.enable(event, 0).unwrap();
            assert_eq!(take().map(|_| ()), Err(BranchError::MemoryInUse), "{}", processor.name);
            scene.session.disable(event, 1).unwrap();
            assert!(!is_recording(mock), "{}", processor.name);
            // A recorder of another filter: the event's samples have none, and leave the recording alone.
            let mut recorder = take().unwrap();
            recorder.start(BranchFilter::ALL).unwrap();
            scene.session.enable(event, 2).unwrap();
            mock.branch(&user(1));
            let other = scene.overflow(2);
            assert_eq!(other, [(0, None)], "{}", processor.name);
            assert!(is_recording(mock));
            // Of the same filter: they have its branches.
            recorder.start(BranchFilter::USER).unwrap();
            mock.branch(&user(2));
            let [(0, Some((same, _)))] = &scene.overflow(2)[..] else { panic!() };
            assert_eq!(same[..], users(2..=2), "{}", processor.name);
            recorder.shut_down().unwrap();
            // The next change gives the records to the event.
            scene.session.disable(event, 3).unwrap();
            scene.session.enable(event, 4).unwrap();
            mock.branch(&user(3));
            let [(0, Some((own, _)))] = &scene.overflow(2)[..] else { panic!() };
            assert_eq!(own[..], users(3..=3), "{}", processor.name);
            scene.session.shut_down().unwrap();
            take().unwrap().shut_down().unwrap();
        });
    }
}

/// A near call, which a call stack has until it returns.
fn call(number: u64) -> FedBranch {
    FedBranch { kind: FedBranchKind::RelativeCall, ..user(number) }
}

#[test]
fn a_call_stack_outlasts_a_window_and_not_a_switch() {
    let mut tried = 0;
    for processor in processors() {
        let stack = BranchFilter::USER.call_stack();
        if processor.unit().recorded(stack).is_none() {
            continue;
        }
        tried += 1;
        with_scene(&processor, |scene, _| {
            let counters = processor.counters();
            let event = raw(2).every(PERIOD).with_branches(stack);
            let event = scene.session.open(&counters, &[event]).unwrap();
            scene.session.enable(event, 0).unwrap();
            (1..=3).for_each(|number| scene.mock.branch(&call(number)));
            let window = scene.session.lend(1, |_| ()).unwrap();
            (7..=9).for_each(|number| scene.mock.branch(&call(number)));
            window.end(1).unwrap();
            scene.mock.branch(&call(4));
            let [(0, Some((after, false)))] = &scene.overflow(2)[..] else { panic!() };
            assert_eq!(after[..], users(1..=4), "{}", processor.name);
            scene.session.suspend(2, |_| ()).unwrap();
            scene.mock.lose_registers();
            scene.session.resume(2, |_| ()).unwrap();
            let [(0, Some((resumed, false)))] = &scene.overflow(2)[..] else { panic!() };
            assert_eq!(resumed[..], users(1..=4), "{}", processor.name);
            scene.session.switch_out(&mut [], 3, |_| ()).unwrap();
            scene.mock.branch(&call(5));
            let [(0, Some((switched, false)))] = &scene.overflow(2)[..] else { panic!() };
            assert_eq!(switched[..], users(5..=5), "{}", processor.name);
        });
    }
    assert!(tried >= 3);
}

#[test]
fn records_that_do_not_answer_stop_the_event_and_not_the_others() {
    for processor in processors() {
        with_scene(&processor, |scene, of| {
            let counters = processor.counters();
            let plain = scene.session.open(&counters, &[raw(3).every(PERIOD)]).unwrap();
            let event = raw(2).every(PERIOD).with_branches(BranchFilter::ALL);
            let event = scene.session.open(&counters, &[event]).unwrap();
            scene.session.enable(plain, 0).unwrap();
            let (registers, mock) = (of.unit.registers(), scene.mock);
            let last = u32::from(of.unit.depth() - 1) * registers.step;
            let dead = registers.to.unwrap_or(registers.from) + last;
            mock.inject(Fault::Register(dead));
            let started = scene.session.enable(event, 0).reason();
            assert!(matches!(started, Err(CounterError::Unchanged(_))), "{started:?}");
            assert!(!is_recording(mock), "{}", processor.name);
            let samples = scene.overflow(3);
            assert_eq!(samples, [(0, None)], "{}", processor.name);
            // Other events start and stop as ever.
            let other = scene.session.open(&counters, &[raw(4).every(PERIOD)]).unwrap();
            scene.session.enable(other, 0).unwrap();
            scene.session.disable(other, 0).unwrap();
            mock.inject(Fault::None);
            scene.session.enable(event, 1).unwrap();
            mock.branch(&user(1));
            let [(0, Some((branches, _)))] = &scene.overflow(2)[..] else { panic!() };
            assert!(branches.contains(&user(1).from), "{}", processor.name);
        });
    }
}

#[test]
fn a_facility_that_no_event_asks_costs_no_access() {
    for processor in processors() {
        let counters = processor.counters();
        let operate = |mock: &Mock<'_>, mut act: Box<dyn FnMut(u32) + '_>| {
            let before = mock.accesses().total();
            (0..4).for_each(&mut act);
            mock.accesses().total() - before
        };
        let mut with = 0;
        with_scene(&processor, |scene, _| {
            let plain = scene.session.open(&counters, &[raw(3).every(PERIOD)]).unwrap();
            let session = RefCell::new(&mut scene.session);
            with =
                operate(scene.mock, Box::new(|step| run(&mut session.borrow_mut(), plain, step)));
        });
        let mock = processor.mock();
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let table = EventTable::<[EventEntry; 8]>::new();
        let source = Events::new(&counters, &table as &EventTable);
        let mut session =
            CounterSession::take(source, &counters, CounterSet::ALL, &mock, &memory).unwrap();
        let plain = session.open(&counters, &[raw(3).every(PERIOD)]).unwrap();
        let without = operate(&mock, Box::new(|step| run(&mut session, plain, step)));
        assert_eq!(with, without, "{}", processor.name);
    }
}

fn run<S: EventSource>(session: &mut CounterSession<'_, S, &Mock<'_>>, event: EventId, step: u32) {
    match step {
        0 => session.enable(event, 0).unwrap(),
        1 => session.switch_out(&mut [], 1, |_| ()).unwrap(),
        2 => session.lend(1, |_| ()).unwrap().end(1).unwrap(),
        _ => session.disable(event, 2).unwrap(),
    }
}
