//! Branches of events after failed accesses, and beside other owners of the records.

use core::cell::{Cell, RefCell};

use super::asked::Source;
use super::support::*;
use pmu_core::{
    BranchFilter, BranchMemory, BranchRecorder, BranchSlot, BranchUnit, Branches, CounterMemory,
    CounterSession, CounterSet, CounterSlot, CounterUnit, EventEntry, EventId, EventTable,
    MAX_COUNTERS, MsrAddress, MsrBackend, OpenedEvents, Sample, service,
};
use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::Fault;
use pmu_virt::{FedBranch, FedBranchKind};

const PERIOD: u64 = 100_000;

type Session<'a> = CounterSession<'a, Source<'a>, &'a Mock<'a>, &'a Mock<'a>>;

/// The samples of a session: tags and branches; `None` without records.
type Found = Vec<(u64, Option<Vec<u64>>)>;

struct Scene<'a> {
    name: &'a str,
    mock: &'a Mock<'a>,
    unit: &'a BranchUnit,
    counters: &'a CounterUnit,
    records: &'a Records,
    source: Source<'a>,
    memory: &'a CounterMemory,
    session: Session<'a>,
    samples: &'a RefCell<Found>,
    /// The number of the access before which an event happens, from now on, and the event's kind.
    happens: &'a Cell<(u32, usize)>,
}

fn with_scene(processor: &Processor, act: impl FnOnce(&mut Scene<'_>)) {
    let prepared = Prepared::new(processor);
    let (unit, counters, mock) = (&prepared.unit, &processor.counters(), &processor.mock());
    let records: Records = BranchMemory::<[BranchSlot; 32]>::new();
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let memory: &CounterMemory = &memory;
    let table = EventTable::<[EventEntry; 8]>::new();
    let source = OpenedEvents::new(counters, &table as &EventTable);
    let source = source.with(Branches::new(unit, &records));
    let samples = RefCell::new(vec![]);
    let handler = |mock: &Mock<'_>| {
        let _ = service(&source, mock, mock, memory, |sample: Sample<'_, Branches<'_>>| {
            let records = sample.branch_records();
            let found = records.map(|records| records.iter().map(|of| of.from).collect());
            samples.borrow_mut().push((sample.tag, found));
        });
    };
    mock.on_interrupt(&handler);
    let happens = Cell::new((0_u32, 0));
    let before_access = |mock: &Mock<'_>| {
        let (left, kind) = happens.get();
        happens.set((left.saturating_sub(1), kind));
        if left == 1 {
            mock.advance(&mut happened(kind, PERIOD));
        }
    };
    mock.on_access(&before_access);
    let session = CounterSession::take(source, counters, CounterSet::ALL, mock, mock, memory);
    let (records, samples, name) = (&records, &samples, processor.name);
    let session = session.unwrap();
    act(&mut Scene {
        name,
        mock,
        unit,
        counters,
        records,
        source,
        memory,
        session,
        samples,
        happens: &happens,
    });
    no_breach(mock, processor.name);
}

impl<'a> Scene<'a> {
    fn open(&mut self, kind: usize, filter: BranchFilter) -> EventId {
        let event = raw(kind).every(PERIOD).tagged(kind as u64).with_branches(filter);
        self.session.open_event(self.counters, &event).unwrap()
    }

    fn overflow(&self, kind: usize) -> Found {
        self.mock.advance(&mut happened(kind, PERIOD));
        self.samples.take()
    }

    /// A further session takes the counters.
    fn take_again(&mut self) {
        let (mock, all) = (self.mock, CounterSet::ALL);
        self.session =
            CounterSession::take(self.source, self.counters, all, mock, mock, self.memory).unwrap();
    }

    /// Returns what a borrower of the counters would see.
    fn visible(&self) -> Option<String> {
        let (mock, registers) = (self.mock, self.unit.registers());
        if is_recording(mock) {
            return Some(String::from("records"));
        }
        for record in 0..u32::from(self.unit.depth()) {
            // SAFETY: the mock's registers are numbers.
            let from = unsafe { MsrAddress::new(registers.from + record * registers.step) };
            let found = mock.read(from).unwrap();
            if found != 0 {
                return Some(format!("record {record}: {found:#X}"));
            }
        }
        let freeze = registers.freeze?;
        let found = mock.update(freeze.bit.read()).unwrap();
        (found & freeze.bit.bits() != 0).then(|| String::from("freezes"))
    }
}

fn stack_of(processor: &Processor) -> Option<BranchFilter> {
    let stack = BranchFilter::USER.call_stack();
    processor.unit().recorded(stack).map(|_| stack)
}

/// A near call, which a call stack has until it returns.
fn call(number: u64) -> FedBranch {
    FedBranch { kind: FedBranchKind::RelativeCall, ..user(number) }
}

#[test]
fn a_call_stack_that_could_not_be_brought_back_is_not_another_events() {
    for processor in processors() {
        let Some(stack) = stack_of(&processor) else { continue };
        for failing in 1..200 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let (event, other) = (scene.open(2, stack), scene.open(3, stack));
                scene.session.start_event(event, 0).unwrap();
                (1..=3).for_each(|number| scene.mock.branch(&call(number)));
                let window = scene.session.lend(1, |_| ()).unwrap();
                scene.mock.inject(Fault::From(failing));
                ended = window.end(1).is_ok();
                scene.mock.inject(Fault::None);
                if ended {
                    return;
                }
                let at = format!("{}, {failing}", scene.name);
                let _ = scene.session.stop_event(event, 2);
                let _ = scene.session.switch_out(&mut [], 2, |_| ());
                scene.session.start_event(other, 2).unwrap();
                scene.mock.branch(&call(4));
                let found = scene.overflow(3);
                assert_eq!(found, [(3, Some(vec![call(4).from]))], "{at}");
                // Nor is it a guest's.
                let _ = scene.session.stop_event(other, 3);
                let window = scene.session.lend(4, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{at}");
            });
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_call_stack_that_could_not_be_brought_back_is_not_a_guests() {
    for processor in processors() {
        let Some(stack) = stack_of(&processor) else { continue };
        for failing in 1..200 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let event = scene.open(2, stack);
                scene.session.start_event(event, 0).unwrap();
                (1..=3).for_each(|number| scene.mock.branch(&call(number)));
                let window = scene.session.lend(1, |_| ()).unwrap();
                scene.mock.inject(Fault::From(failing));
                ended = window.end(1).is_ok();
                scene.mock.inject(Fault::None);
                if ended {
                    return;
                }
                let _ = scene.session.reprogram(|_| ());
                let window = scene.session.lend(4, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{}, {failing}", scene.name);
            });
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_recorder_within_a_window_leaves_nothing_to_the_events_after_it() {
    for processor in processors() {
        let Some(stack) = stack_of(&processor) else { continue };
        with_scene(&processor, |scene| {
            let event = scene.open(2, stack);
            scene.session.start_event(event, 0).unwrap();
            (1..=3).for_each(|number| scene.mock.branch(&call(number)));
            scene.session.suspend(1, |_| ()).unwrap();
            let mut recorder = BranchRecorder::take(scene.unit, scene.mock, scene.records).unwrap();
            recorder.start(stack).unwrap();
            (11..=13).for_each(|number| scene.mock.branch(&call(number)));
            assert_eq!(addresses(&mut recorder).len(), 3);
            recorder.shut_down().unwrap();
            scene.session.resume(2, |_| ()).unwrap();
            scene.mock.branch(&call(4));
            let found = scene.overflow(2);
            assert_eq!(found, [(2, Some(vec![call(4).from]))], "{}", scene.name);
        });
    }
}

#[test]
fn a_call_stack_does_not_outlast_its_session() {
    for processor in processors() {
        let Some(stack) = stack_of(&processor) else { continue };
        with_scene(&processor, |scene| {
            let event = scene.open(2, stack);
            scene.session.start_event(event, 0).unwrap();
            (1..=3).for_each(|number| scene.mock.branch(&call(number)));
            scene.session.shut_down().unwrap();
            scene.take_again();
            let event = scene.open(2, stack);
            scene.session.start_event(event, 0).unwrap();
            scene.mock.branch(&call(4));
            let found = scene.overflow(2);
            assert_eq!(found, [(2, Some(vec![call(4).from]))], "{}", scene.name);
        });
    }
}

#[test]
fn nothing_is_on_after_a_first_start_that_fails() {
    for processor in processors() {
        for failing in 1..200 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                scene.mock.inject(Fault::From(failing));
                ended = scene.session.start_event(event, 0).is_ok();
                scene.mock.inject(Fault::None);
                let _ = scene.session.reprogram(|_| ());
                let at = format!("{}, {failing}", scene.name);
                let window = scene.session.lend(1, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{at}");
                scene.session.shut_down().unwrap();
                assert_eq!(scene.visible(), None, "{at}");
            });
            if ended {
                break;
            }
        }
    }
}

/// Each register that a session with branches accesses.
fn accessed(processor: &Processor) -> Vec<u32> {
    let mut found = vec![];
    let unit = processor.unit();
    let registers = unit.registers();
    found.extend(registers.depth.map(MsrAddress::get));
    found.extend(registers.filter.map(MsrAddress::get));
    found.extend(registers.freeze.and_then(|freeze| freeze.status).map(|(_, of)| of.get()));
    for record in [0, u32::from(unit.depth()) - 1] {
        let at = |first: u32| first + record * registers.step;
        found.push(at(registers.from));
        found.extend(registers.to.map(at));
        found.extend(registers.info.map(at));
    }
    // The enabling registers, and those of the freeze.
    found.extend([0x1D9, 0x14CE, 0xC000_010F, 0x1C9]);
    found
}

#[test]
fn nothing_is_visible_after_a_shutdown_that_failed_and_a_reprogramming() {
    for processor in processors() {
        for register in accessed(&processor) {
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                scene.session.start_event(event, 0).unwrap();
                (1..=3).for_each(|number| scene.mock.branch(&user(number)));
                scene.mock.inject(Fault::Register(register));
                let ended = scene.session.shut_down();
                scene.mock.inject(Fault::None);
                if ended.is_ok() {
                    return;
                }
                let at = format!("{}, {register:#X}", scene.name);
                scene.session.reprogram(|_| ()).unwrap();
                let window = scene.session.lend(1, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{at}");
            });
        }
    }
}

#[test]
fn a_register_that_is_missing_does_not_keep_the_counters_from_being_lent() {
    for processor in processors() {
        for register in accessed(&processor) {
            with_scene(&processor, |scene| {
                let at = format!("{}, {register:#X}", scene.name);
                if scene.counters.global().is_some_and(|of| of.acknowledge.get() == register) {
                    return;
                }
                let event = scene.open(2, BranchFilter::ALL);
                scene.mock.inject(Fault::Register(register));
                if scene.session.start_event(event, 0).is_ok() {
                    return;
                }
                let window = scene.session.lend(1, |_| ()).map_err(|error| (at.clone(), error));
                window.unwrap().end(2).unwrap();
                scene.session.shut_down().map_err(|error| (at, error)).unwrap();
                scene.mock.inject(Fault::None);
                assert_eq!(scene.visible(), None);
            });
        }
    }
}

#[test]
fn a_recorder_that_could_not_be_taken_leaves_no_freeze_of_the_events() {
    for processor in processors() {
        for register in accessed(&processor) {
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                scene.session.start_event(event, 0).unwrap();
                scene.session.stop_event(event, 0).unwrap();
                scene.mock.inject(Fault::Register(register));
                let taken = BranchRecorder::take(scene.unit, scene.mock, scene.records);
                scene.mock.inject(Fault::None);
                let at = format!("{}, {register:#X}", scene.name);
                if let Ok(mut recorder) = taken {
                    recorder.shut_down().unwrap();
                }
                let window = scene.session.lend(1, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{at}");
            });
        }
    }
}

#[test]
fn a_start_that_failed_leaves_the_records_to_a_recorder() {
    for processor in processors() {
        for failing in 1..200 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                let other = scene.open(3, BranchFilter::USER);
                scene.session.start_event(event, 0).unwrap();
                scene.session.stop_event(event, 0).unwrap();
                scene.mock.inject(Fault::From(failing));
                ended = scene.session.start_event(other, 0).is_ok();
                scene.mock.inject(Fault::None);
                if ended {
                    return;
                }
                let _ = scene.session.reprogram(|_| ());
                let taken = BranchRecorder::take(scene.unit, scene.mock, scene.records);
                let at = format!("{}, {failing}", scene.name);
                taken.map_err(|error| (at, error)).unwrap().shut_down().unwrap();
            });
            if ended {
                break;
            }
        }
        for register in accessed(&processor) {
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                let other = scene.open(3, BranchFilter::USER);
                scene.session.start_event(event, 0).unwrap();
                scene.session.stop_event(event, 0).unwrap();
                scene.mock.inject(Fault::Register(register));
                let _ = scene.session.start_event(other, 0);
                let _ = scene.session.stop_event(other, 0);
                scene.mock.inject(Fault::None);
                let at = format!("{}, {register:#X}", scene.name);
                let plain = raw(4).every(PERIOD);
                let plain = scene.session.open_event(scene.counters, &plain).unwrap();
                scene.session.start_event(plain, 0).map_err(|error| (at.clone(), error)).unwrap();
                let taken = BranchRecorder::take(scene.unit, scene.mock, scene.records);
                taken.map_err(|error| (at, error)).unwrap().shut_down().unwrap();
            });
        }
    }
}

#[test]
fn memory_that_is_reclaimed_beside_events_ends_with_them() {
    for processor in processors() {
        with_scene(&processor, |scene| {
            let event = scene.open(2, BranchFilter::ALL);
            scene.session.start_event(event, 0).unwrap();
            // SAFETY: no recorder is there.
            unsafe { scene.records.reclaim() };
            scene.session.stop_event(event, 1).unwrap();
            scene.session.shut_down().unwrap();
            assert_eq!(scene.visible(), None, "{}", scene.name);
        });
    }
}

#[test]
fn nothing_is_on_after_two_starts_that_fail() {
    for processor in processors() {
        for register in [0x14CE, 0x1D9, 0xC000_010F] {
            for failing in 1..60 {
                let mut ended = false;
                with_scene(&processor, |scene| {
                    let event = scene.open(2, BranchFilter::ALL);
                    let other = scene.open(3, BranchFilter::ALL);
                    scene.mock.inject(Fault::From(failing));
                    ended = scene.session.start_event(event, 0).is_ok();
                    scene.mock.inject(Fault::Register(register));
                    let _ = scene.session.start_event(other, 0);
                    let _ = scene.session.stop_event(other, 0);
                    scene.mock.inject(Fault::None);
                    let _ = scene.session.reprogram(|_| ());
                    let window = scene.session.lend(1, |_| ()).unwrap();
                    drop(window);
                    assert_eq!(scene.visible(), None, "{}, {register:#X}, {failing}", scene.name);
                });
                if ended {
                    break;
                }
            }
        }
    }
}

#[test]
fn an_overflow_within_a_turn_has_its_branches() {
    for processor in processors() {
        for access in 1..100 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                for (kind, filter) in [(2, BranchFilter::ALL), (3, BranchFilter::KERNEL)] {
                    let event = raw(kind).every(PERIOD).rotating().tagged(kind as u64);
                    let event = event.with_branches(filter);
                    let event = scene.session.open_event(scene.counters, &event).unwrap();
                    scene.session.start_event(event, 0).unwrap();
                }
                scene.session.rotate(1).unwrap();
                scene.mock.advance(&mut happened(3, PERIOD - 1));
                scene.session.rotate(2).unwrap();
                scene.mock.branch(&kernel(1));
                assert_eq!(scene.samples.take(), []);
                scene.happens.set((access, 3));
                scene.session.rotate(3).unwrap();
                ended = scene.happens.get().0 != 0;
                scene.happens.set((0, 3));
                for (tag, found) in scene.samples.take() {
                    assert!(found.is_some(), "{}, {access}: sample of {tag}", scene.name);
                }
            });
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_start_that_failed_because_of_others_branches_left_no_counter_running() {
    let mut tried = 0;
    for processor in processors() {
        for failing in 1..60 {
            for register in [0x14CE, 0x1D9, 0xC000_010F] {
                with_scene(&processor, |scene| {
                    let event = scene.open(2, BranchFilter::ALL);
                    let plain = raw(3).every(PERIOD);
                    let plain = scene.session.open_event(scene.counters, &plain).unwrap();
                    scene.session.start_event(event, 0).unwrap();
                    scene.mock.inject(Fault::From(failing));
                    scene.overflow(2);
                    scene.mock.inject(Fault::Register(register));
                    let counts = scene.session.counter_of(event).is_some();
                    if !counts || is_recording(scene.mock) {
                        return;
                    }
                    let started = scene.session.start_event_if_free(plain, 1);
                    let at = format!("{}, {failing}, {register:#X}", scene.name);
                    tried += u32::from(started.is_err());
                    let on = scene.session.counter_of(plain).is_some();
                    assert_eq!(on, started.is_ok(), "{at}: {started:?}");
                    assert_eq!(scene.session.is_started(plain), on, "{at}: {started:?}");
                });
            }
        }
    }
    assert!(tried > 0);
}

#[test]
fn an_overflow_within_a_start_on_a_free_counter_has_its_branches() {
    for processor in processors() {
        for access in 1..100 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let event = raw(3).every(PERIOD).tagged(3).with_branches(BranchFilter::KERNEL);
                let event = scene.session.open_event(scene.counters, &event).unwrap();
                scene.happens.set((access, 3));
                scene.session.start_event_if_free(event, 3).unwrap();
                ended = scene.happens.get().0 != 0;
                scene.happens.set((0, 3));
                for (tag, found) in scene.samples.take() {
                    assert!(found.is_some(), "{}, {access}: sample of {tag}", scene.name);
                }
            });
            if ended {
                break;
            }
        }
    }
}
