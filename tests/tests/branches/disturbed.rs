//! Branches of events after failed accesses, and beside other owners of the records.

use core::cell::{Cell, RefCell};

use super::asked::Source;
use super::support::*;
use pmu_core::{
    BranchEnable, BranchFilter, BranchMemory, BranchRecorder, BranchSlot, BranchUnit, Branches,
    CounterMemory, CounterSession, CounterSet, CounterSlot, CounterUnit, EventEntry, EventId,
    EventTable, MAX_COUNTERS, MsrAccess, MsrAddress, MsrBackend, OpenedEvents, Sample, service,
};
use pmu_tests::opened::{Random, happened, raw};
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
    /// The register that faults.
    missing: u32,
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
        missing: 0,
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

    /// A borrower sees nothing of a thread, and nothing at all if no guest may have left something.
    fn check_borrowed(&self, guests: bool, at: &str) {
        let visible = self.visible();
        if !guests {
            return assert_eq!(visible, None, "{at}");
        }
        let registers = self.unit.registers();
        for record in 0..u32::from(self.unit.depth()) {
            // SAFETY: the mock's registers are numbers.
            let from = unsafe { MsrAddress::new(registers.from + record * registers.step) };
            let found = self.mock.read(from).unwrap() << 16 >> 16;
            let is_of_guest = |base: u64| found.wrapping_sub(base << 16 >> 16) / 0x10 / 100 == 5000;
            let is_guests = is_of_guest(user(0).from) || is_of_guest(kernel(0).from);
            assert!(found == 0 || is_guests, "{at}: {found:#X}");
        }
    }

    /// Every sample's branches are of this thread.
    fn check(&self, epoch: u64, at: &str) {
        for (tag, found) in self.samples.take() {
            for from in found.into_iter().flatten() {
                if epoch == 0 {
                    continue;
                }
                let is_user = from >> 63 == 0;
                assert!(is_user || tag != 3, "{at}: sample of {tag} has {from:#X}");
                let base = if is_user { user(0).from } else { kernel(0).from };
                let number = (from - base) / 0x10;
                assert_eq!(number / 100, epoch, "{at}: sample of {tag} has {from:#X}");
            }
        }
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

fn text(error: impl core::fmt::Debug) -> String {
    format!("{error:?}")
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

#[test]
fn an_overflow_before_any_access_of_a_life_has_its_branches() {
    for processor in processors() {
        for access in 1..600 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let all = BranchFilter::ALL;
                let members = [
                    raw(2).every(PERIOD).tagged(2).with_branches(all),
                    raw(3).every(PERIOD).tagged(3).with_branches(all),
                    raw(4).every(PERIOD).tagged(4),
                ];
                let group = scene.session.open_group(scene.counters, &members).unwrap();
                scene.happens.set((access, 3));
                scene.session.start_group(group, 0).unwrap();
                scene.mock.branch(&user(1));
                scene.session.switch_out(&mut [], 1, |_| ()).unwrap();
                scene.mock.branch(&user(2));
                scene.session.switch_in(scene.counters, &mut [], 1).unwrap();
                scene.mock.branch(&user(3));
                let samples = scene.samples;
                let report = |sample: Sample<'_, Branches<'_>>| {
                    let records = sample.branch_records();
                    let found = records.map(|records| records.iter().map(|of| of.from).collect());
                    samples.borrow_mut().push((sample.tag, found));
                };
                scene.session.lend(2, report).unwrap().end(3).unwrap();
                scene.mock.branch(&user(4));
                scene.session.suspend(4, report).unwrap();
                scene.session.resume(5, |_| ()).unwrap();
                scene.mock.branch(&user(5));
                scene.session.reprogram(|_| ()).unwrap();
                scene.mock.branch(&user(6));
                scene.session.rotate(6).unwrap();
                scene.session.stop_group(group, 7).unwrap();
                scene.session.start_group(group, 8).unwrap();
                scene.mock.branch(&user(7));
                scene.session.shut_down().unwrap();
                let at = format!("{}, {access}", scene.name);
                assert_eq!(scene.visible(), None, "{at}");
                ended = scene.happens.get().0 != 0;
                let found = scene.samples.take();
                for (tag, found) in &found {
                    assert!(found.is_some(), "{at}: sample of {tag}");
                }
            });
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_sample_after_a_switch_or_window_that_was_interrupted_has_what_came_after_it() {
    type Operation = fn(&mut Scene<'_>);
    let operations: [(&str, Operation); 5] = [
        ("out", |scene| scene.session.switch_out(&mut [], 1, |_| ()).unwrap()),
        ("in", |scene| scene.session.switch_in(scene.counters, &mut [], 1).unwrap()),
        ("window", |scene| {
            let mut window = scene.session.lend(1, |_| ()).unwrap();
            window.lent().set_programmed(true);
            window.end(2).unwrap();
        }),
        ("suspend", |scene| {
            scene.session.suspend(1, |_| ()).unwrap();
            scene.session.resume(2, |_| ()).unwrap();
        }),
        ("reprogram", |scene| {
            scene.session.reprogram(|_| ()).unwrap();
        }),
    ];
    for processor in processors() {
        for (name, operation) in operations {
            for access in 1..300 {
                let mut ended = false;
                with_scene(&processor, |scene| {
                    let event = scene.open(2, BranchFilter::ALL);
                    scene.session.start_event(event, 0).unwrap();
                    let other = scene.open(3, BranchFilter::ALL);
                    scene.session.start_event(other, 0).unwrap();
                    (1..=3).for_each(|number| scene.mock.branch(&user(number)));
                    scene.happens.set((access, 3));
                    operation(scene);
                    ended = scene.happens.get().0 != 0;
                    scene.happens.set((0, 3));
                    let at = format!("{}, {name}, {access}", scene.name);
                    let within = scene.samples.take();
                    assert!(within.len() <= 1, "{at}: {within:X?}");
                    for (tag, found) in within {
                        assert!(found.is_some() || name != "out" && name != "in", "{at}: {tag}");
                    }
                    scene.mock.branch(&user(9));
                    let found = scene.overflow(2);
                    assert_eq!(found, [(2, Some(vec![user(9).from]))], "{at}");
                    scene.mock.branch(&user(10));
                    let found = scene.overflow(3);
                    let [(3, Some(branches))] = &found[..] else { panic!("{at}: {found:?}") };
                    assert_eq!(branches[..], [user(10).from, user(9).from], "{at}");
                });
                if ended {
                    break;
                }
            }
        }
    }
}

#[test]
fn one_reprogramming_makes_up_for_any_register_that_was_missing() {
    type Operation = fn(&mut Scene<'_>, EventId, EventId) -> Result<(), String>;
    let operations: [(&str, Operation); 9] = [
        ("out", |scene, _, _| scene.session.switch_out(&mut [], 1, |_| ()).map_err(text)),
        ("in", |scene, _, _| scene.session.switch_in(scene.counters, &mut [], 1).map_err(text)),
        ("window", |scene, _, _| {
            let mut window = scene.session.lend(1, |_| ()).map_err(text)?;
            window.lent().set_programmed(true);
            window.end(2).map_err(text)
        }),
        ("end", |scene, _, _| {
            let mock = scene.mock;
            let register = scene.missing;
            mock.inject(Fault::None);
            let window = scene.session.lend(1, |_| ()).unwrap();
            mock.inject(Fault::Register(register));
            window.end(2).map_err(text)
        }),
        ("suspend", |scene, _, _| {
            scene.session.suspend(1, |_| ()).map_err(text)?;
            scene.mock.lose_registers();
            scene.session.resume(2, |_| ()).map(|_| ()).map_err(text)
        }),
        ("stop", |scene, event, _| scene.session.stop_event(event, 1).map_err(text)),
        ("rotate", |scene, _, _| scene.session.rotate(1).map_err(text)),
        ("start", |scene, _, other| scene.session.start_event(other, 1).map_err(text)),
        ("interrupt", |scene, _, _| {
            scene.overflow(2);
            Err(String::new())
        }),
    ];
    for processor in processors() {
        for stack in [None, stack_of(&processor)] {
            for (name, operation) in operations {
                for register in accessed(&processor) {
                    with_scene(&processor, |scene| {
                        let filter = stack.unwrap_or(BranchFilter::ALL);
                        let event = scene.open(2, filter);
                        let event3 = raw(3).every(PERIOD).rotating().tagged(3);
                        let event3 = event3.with_branches(BranchFilter::USER);
                        let other = scene.session.open_event(scene.counters, &event3).unwrap();
                        scene.session.start_event(event, 0).unwrap();
                        (1..=3).for_each(|number| scene.mock.branch(&call(number)));
                        scene.mock.inject(Fault::Register(register));
                        scene.missing = register;
                        let done = operation(scene, event, other);
                        scene.mock.inject(Fault::None);
                        let at = format!("{}, {name}, {register:#X}, {stack:?}", scene.name);
                        if done.is_err() {
                            let healed = scene.session.resume(3, |_| ());
                            assert!(healed.is_ok(), "{at}: {healed:?} after {done:?}");
                        }
                        // Another thread runs.
                        scene
                            .session
                            .switch_out(&mut [], 4, |_| ())
                            .map_err(|of| (&at, of))
                            .unwrap();
                        let _ = scene.session.stop_event(event, 4);
                        let _ = scene.session.stop_event(other, 4);
                        let window = scene.session.lend(4, |_| ()).unwrap();
                        drop(window);
                        assert_eq!(scene.visible(), None, "{at}");
                        scene.session.lend(4, |_| ()).unwrap().end(5).unwrap();
                        scene.session.start_event(event, 6).map_err(|of| (&at, of)).unwrap();
                        scene.mock.branch(&call(9));
                        let _ = scene.samples.take();
                        let found = scene.overflow(2);
                        assert_eq!(found, [(2, Some(vec![call(9).from]))], "{at}");
                        scene.session.shut_down().unwrap();
                        assert_eq!(scene.visible(), None, "{at}");
                    });
                }
            }
        }
    }
}

/// The guest records its own branches in a window.
fn run_guest(scene: &Scene<'_>, number: u64) {
    let (mock, registers) = (scene.mock, scene.unit.registers());
    if let Some(filter) = registers.filter {
        mock.wrmsr_retrying(filter, 0).unwrap();
    }
    match registers.enable {
        BranchEnable::Register(control) => mock.wrmsr_retrying(control, 0x7F_0007).unwrap(),
        BranchEnable::Bits { bits, on, .. } => {
            mock.update_retrying(bits.set_to(on)).unwrap();
        }
    }
    mock.branch(&user(number));
    mock.branch(&kernel(number));
    // Its hypervisor stops the recording, and leaves the records.
    match registers.enable {
        BranchEnable::Register(control) => mock.wrmsr_retrying(control, 0).unwrap(),
        BranchEnable::Bits { bits, off, .. } => {
            mock.update_retrying(bits.set_to(off)).unwrap();
        }
    }
}

#[test]
fn no_fault_that_is_followed_by_others_shows_branches_of_another_thread_or_owner() {
    const SEEDS: u64 = 100;
    for (at, processor) in processors().into_iter().enumerate() {
        let registers = accessed(&processor);
        let stack = stack_of(&processor).unwrap_or(BranchFilter::KERNEL);
        let filters = [BranchFilter::ALL, BranchFilter::USER, stack];
        for seed in 1..SEEDS {
            let mut random = Random((seed + 1000 * at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            with_scene(&processor, |scene| {
                let mut log = vec![];
                let guests = seed.is_multiple_of(2);
                let mut epoch = 1;
                let mut events = vec![];
                let open = |scene: &mut Scene<'_>, events: &mut Vec<EventId>| {
                    events.clear();
                    for (place, filter) in filters.into_iter().enumerate() {
                        let kind = place + 2;
                        let event = raw(kind).every(PERIOD).rotating().tagged(kind as u64);
                        let event = event.with_branches(filter);
                        events.push(scene.session.open_event(scene.counters, &event).unwrap());
                    }
                };
                open(scene, &mut events);
                for _ in 0..60 {
                    let operation = random.below(14);
                    let event = events[random.below(3) as usize];
                    let fault = match random.below(5) {
                        0 => {
                            let place = random.below(registers.len() as u64) as usize;
                            Fault::Register(registers[place])
                        }
                        1 => Fault::From(1 + random.below(60) as u32),
                        _ => Fault::None,
                    };
                    if random.below(4) == 0 {
                        scene
                            .happens
                            .set((1 + random.below(40) as u32, 2 + random.below(3) as usize));
                    }
                    log.push((operation, fault));
                    let name = || format!("{}, seed {seed}, {log:?}", processor.name);
                    scene.mock.inject(fault);
                    let now = 10 * log.len() as u64;
                    match operation {
                        0 | 1 => drop(scene.session.start_event(event, now)),
                        2 => drop(scene.session.stop_event(event, now)),
                        3 => drop(scene.session.rotate(now)),
                        4 => {
                            let _ = scene.session.switch_out(&mut [], now, |_| ());
                            epoch += 1;
                            scene.check(0, &name());
                        }
                        5 => {
                            let _ = scene.session.switch_in(scene.counters, &mut [], now);
                        }
                        6 | 7 => {
                            let mut lent = false;
                            let was_lent = scene.session.counters().usable.is_empty();
                            let mock = scene.mock;
                            let guest = 100 * 5000;
                            let records = guests && random.below(2) == 0;
                            let dropped = random.below(4) == 0;
                            if let Ok(window) = scene.session.lend(now, |_| ()) {
                                mock.inject(Fault::None);
                                drop(window);
                                lent = true;
                            }
                            if lent {
                                scene.happens.set((0, 2));
                                scene.check_borrowed(was_lent || guests, &name());
                                if records {
                                    run_guest(scene, guest);
                                }
                                if !dropped {
                                    mock.inject(fault);
                                    if let Ok(mut window) = scene.session.lend(now, |_| ()) {
                                        window.lent().set_programmed(true);
                                        let _ = window.end(now);
                                    }
                                }
                            }
                        }
                        8 => {
                            if scene.session.suspend(now, |_| ()).is_ok() {
                                scene.mock.lose_registers();
                                let _ = scene.session.resume(now, |_| ());
                            }
                        }
                        9 | 10 => drop(scene.session.reprogram(|_| ())),
                        11 => {
                            if let Ok(mut recorder) =
                                BranchRecorder::take(scene.unit, scene.mock, scene.records)
                            {
                                let _ = recorder.start(filters[random.below(3) as usize]);
                                let mut ended = recorder.shut_down();
                                scene.mock.inject(Fault::None);
                                if ended.is_err() {
                                    ended = recorder.shut_down();
                                }
                                ended.unwrap();
                                scene.happens.set((0, 2));
                            }
                        }
                        12 => {
                            let mut ended = scene.session.shut_down();
                            if ended.is_err() && random.below(2) == 0 {
                                scene.mock.inject(Fault::None);
                                let _ = scene.session.reprogram(|_| ());
                                continue;
                            }
                            scene.happens.set((0, 2));
                            scene.mock.inject(Fault::None);
                            while ended.is_err() {
                                ended = scene.session.shut_down();
                            }
                            scene.check_borrowed(guests, &name());
                            epoch += 1;
                            scene.take_again();
                            open(scene, &mut events);
                        }
                        _ => drop(scene.session.start_event_if_free(event, now)),
                    }
                    scene.mock.inject(Fault::None);
                    scene.happens.set((0, 2));
                    scene.samples.take();
                    for _ in 0..random.below(6) {
                        let number = 100 * epoch + random.below(90);
                        match random.below(3) {
                            0 => scene.mock.branch(&user(number)),
                            1 => scene.mock.branch(&kernel(number)),
                            _ => scene.mock.branch(&call(number)),
                        }
                    }
                    for kind in 2..5 {
                        scene.mock.advance(&mut happened(kind, PERIOD));
                    }
                    scene.check(epoch, &name());
                }
                let _ = scene.session.reprogram(|_| ());
                scene.session.shut_down().unwrap();
                scene.check_borrowed(guests, &format!("{}, seed {seed}, {log:?}", processor.name));
            });
        }
    }
}

#[test]
fn a_start_that_failed_is_not_started() {
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
                    let started = scene.session.start_event(plain, 1);
                    let at = format!("{}, {failing}, {register:#X}", scene.name);
                    let is_started = scene.session.is_started(plain);
                    assert_eq!(is_started, started.is_ok(), "{at}: {started:?}");
                });
            }
        }
    }
}
