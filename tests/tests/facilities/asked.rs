//! A facility of a third party, written against the public traits alone: the session settles it on the events that are
//! on counters, whatever happens, and a fault of its registers leaves no event running without it.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;

use pmu_core::access::{
    AccessErrorKind, AccessFault, CounterIndex, RegisterAccess, RegisterAddress, RegisterBackend,
    RegisterUpdate,
};
use pmu_core::facility::{EventFacility, Facility, Interrupted, Running, Unsettled};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, CounterUnit, EventId, Events, Sample, service};
use pmu_tests::opened::{Mock, Processor, happen, plain, processors, raw};
use pmu_virt::mock::{Deviations, Fault};

/// Registers that no processor of the tests has: one per counter, at the place of its bit.
const FIRST: u32 = 0x7000_0000;

/// The values of the registers plus 1, or 0 if the facility does not know them.
type Known = [AtomicU64; 64];

/// Marks each counter with the period of its event.
#[derive(Clone, Copy)]
struct Marks<'a>(&'a Known);

/// Place of the counters that overflowed last: no counter has this bit.
const OVERFLOWED: usize = 63;

impl Facility for Marks<'_> {
    fn collect<M: RegisterBackend>(
        &mut self,
        _: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        self.0[OVERFLOWED].store(interrupted.overflowed.bits(), Relaxed);
        Ok(0)
    }
}

impl EventFacility for Marks<'_> {
    const OFFERS: bool = true;

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let mut outcome: Result<(), Unsettled> = Ok(());
        for counter in running.counters().iter() {
            let wanted = running.on(counter).map_or(0, |event| event.period()) + 1;
            let known = &self.0[usize::from(counter.bit())];
            if known.load(Relaxed) == wanted {
                continue;
            }
            // SAFETY: no processor is behind it.
            let register = unsafe { RegisterAddress::new(FIRST + u32::from(counter.bit())) };
            match msr.write_retrying(register, wanted - 1) {
                Ok(()) => known.store(wanted, Relaxed),
                Err(fault) => {
                    known.store(0, Relaxed);
                    let before = outcome.err().map_or(CounterSet::NONE, |of| of.counters);
                    outcome = Err(Unsettled { counters: before | counter.only(), fault });
                }
            }
        }
        outcome
    }

    fn lose(&self) {
        self.0[..OVERFLOWED].iter().for_each(|known| known.store(0, Relaxed));
    }
}

/// The mock, and the marks beside it.
struct Hardware<'m> {
    mock: &'m Mock<'m>,
    marks: RefCell<BTreeMap<u32, u64>>,
    /// The marks' accesses, and those that fault.
    accesses: Cell<u32>,
    faults: RefCell<core::ops::Range<u32>>,
}

impl RegisterBackend for Hardware<'_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.mock.read(address)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        if !(FIRST..FIRST + 64).contains(&address.get()) {
            return self.mock.write(address, value);
        }
        self.accesses.set(self.accesses.get() + 1);
        if self.faults.borrow().contains(&self.accesses.get()) {
            return Err(AccessErrorKind::Fault);
        }
        self.marks.borrow_mut().insert(address.get() - FIRST, value);
        Ok(())
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.mock.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.mock.update(update)
    }
}

type Session<'a> =
    CounterSession<'a, Events<'a, CounterUnit, Marks<'a>>, (&'a Hardware<'a>, &'a Mock<'a>)>;

struct World<'a> {
    processor: &'a Processor,
    hardware: &'a Hardware<'a>,
    session: Session<'a>,
    /// Three events that take turns on two counters, and a group of two.
    events: Vec<EventId>,
    thread: [ThreadEvent; 1],
    now: u64,
}

/// The period of the event at a place, of which the kind is the same.
fn period(place: usize) -> u64 {
    100_000 + place as u64
}

impl World<'_> {
    /// Returns the marks that there are, by counters.
    fn marks(&self) -> BTreeMap<u32, u64> {
        let marks = self.hardware.marks.borrow();
        marks.iter().filter(|(_, mark)| **mark != 0).map(|(bit, mark)| (*bit, *mark)).collect()
    }

    /// Returns the periods of the events that are on counters, by counters.
    fn on_counters(&self) -> BTreeMap<u32, u64> {
        let of_thread = match self.thread[0] {
            ThreadEvent::Opened(event) => Some((event, period(5))),
            _ => None,
        };
        let events = self.events.iter().enumerate().map(|(place, event)| (*event, period(place)));
        let on = |(event, period)| Some((self.session.counter_of(event)?.bit().into(), period));
        events.chain(of_thread).filter_map(on).collect()
    }

    /// A mark may be missing where no event runs, never the other way.
    fn check(&self, what: &str) {
        let (marks, on) = (self.marks(), self.on_counters());
        assert_eq!(marks, on, "{:?}: {what}", self.processor);
    }
}

fn with_world(processor: &Processor, act: impl FnOnce(&mut World<'_>)) {
    let mock = processor.mock();
    let hardware = Hardware {
        mock: &mock,
        marks: RefCell::default(),
        accesses: Cell::new(0),
        faults: RefCell::default(),
    };
    // A predecessor's.
    hardware.marks.borrow_mut().insert(1, 77);
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 8]>::new();
    let known: Known = [const { AtomicU64::new(0) }; 64];
    let unit = &processor.unit;
    let source = Events::new(unit, &table as &EventTable).with(Marks(&known));
    let session =
        CounterSession::take(source, unit, CounterSet::ALL, (&hardware, &mock), &memory).unwrap();
    let (events, thread) = (vec![], [ThreadEvent::Unused]);
    let mut world = World { processor, hardware: &hardware, session, events, thread, now: 0 };
    let two = CounterSet::from_bits(0b11);
    for place in 0..3 {
        let event = raw(2 + place).every(period(place)).rotating().on(two);
        world.events.push(world.session.open(unit, &[event]).unwrap());
    }
    let group = [3, 4].map(|place| raw(2 + place).every(period(place)));
    let group = world.session.open(unit, &group).unwrap();
    let members: Vec<EventId> = world.session.group_events(group).collect();
    world.events.extend(members);
    let event = raw(2).every(period(5)).rotating();
    let saved = pmu_core::thread::SavedEvent::new(unit, &event).unwrap().to_be_enabled(true);
    world.thread = [ThreadEvent::SwitchedOut(saved)];
    act(&mut world);
}

/// An operation; its error says what went wrong, if a register faulted.
type Operation = (&'static str, fn(&mut World<'_>) -> Result<(), String>);

fn text<T, E: core::fmt::Debug>(done: Result<T, E>) -> Result<(), String> {
    done.map(|_| ()).map_err(|error| format!("{error:?}"))
}

const OPERATIONS: [Operation; 9] = [
    ("start", |world| text(world.session.enable(world.events[0], world.now))),
    ("start of two more", |world| {
        text(world.session.enable(world.events[1], world.now))?;
        text(world.session.enable(world.events[2], world.now))
    }),
    ("start of a group", |world| {
        let first = world.events[3];
        text(world.session.enable(first, world.now))
    }),
    ("turn", |world| text(world.session.rotate(world.now))),
    ("switch in", |world| {
        let unit = &world.processor.unit;
        text(world.session.switch_in(unit, &mut world.thread, world.now))
    }),
    ("switch out", |world| text(world.session.switch_out(&mut world.thread, world.now, |_| ()))),
    ("window", |world| {
        let (hardware, now) = (world.hardware, world.now);
        let window = text_of(world.session.lend(now, |_| ()))?;
        let left = hardware.marks.borrow().values().any(|mark| *mark != 0);
        assert!(!left, "a borrower sees the marks");
        text(window.end(now))
    }),
    ("stop of a member", |world| text(world.session.disable(world.events[4], world.now))),
    ("stop", |world| text(world.session.disable(world.events[0], world.now))),
];

fn text_of<T, E: core::fmt::Debug>(done: Result<T, E>) -> Result<T, String> {
    done.map_err(|error| format!("{error:?}"))
}

#[test]
fn a_third_partys_facility_is_settled_on_what_is_on_counters() {
    for processor in processors(Deviations::NONE) {
        with_world(&processor, |world| {
            for (name, operation) in OPERATIONS {
                world.now += 10;
                assert_eq!(operation(world), Ok(()), "{processor:?}: {name}");
                world.check(name);
            }
            assert!(!world.on_counters().is_empty(), "{processor:?}");
            // All registers lose their contents.
            world.session.suspend(100, |_| ()).unwrap();
            assert!(world.marks().is_empty(), "{processor:?}");
            world.hardware.mock.lose_registers();
            world.hardware.marks.borrow_mut().insert(0, 99);
            world.session.resume(110, |_| ()).unwrap();
            world.check("resume");
            world.hardware.mock.lose_registers();
            world.hardware.marks.borrow_mut().clear();
            world.session.reprogram(|_| ()).unwrap();
            world.check("reprogram");
            world.session.shut_down().unwrap();
            assert!(world.marks().is_empty(), "{processor:?}");
        });
    }
}

/// The facility's registers fault from one access on, in each operation: for good, or for an access and its retry.
#[test]
fn no_event_runs_without_the_facility_that_it_has_and_reprogram_heals() {
    let processor = plain(4);
    for (failing, stays) in (0..OPERATIONS.len()).flat_map(|of| [(of, false), (of, true)]) {
        let failed = OPERATIONS[failing].0;
        for from in 1.. {
            let mut ended = false;
            with_world(&processor, |world| {
                for (number, (name, operation)) in OPERATIONS.into_iter().enumerate() {
                    world.now += 10;
                    let what = format!("{failed}, access {from}, {stays}: {name}");
                    if number != failing {
                        let _ = operation(world);
                        world.check(&what);
                        continue;
                    }
                    world.hardware.accesses.set(0);
                    let until = if stays { u32::MAX } else { from + 2 };
                    *world.hardware.faults.borrow_mut() = from..until;
                    let done = operation(world);
                    *world.hardware.faults.borrow_mut() = 0..0;
                    ended = world.hardware.accesses.get() < from;
                    assert_eq!(done.is_ok(), ended, "{what}: {done:?}");
                    let (marks, on) = (world.marks(), world.on_counters());
                    for (counter, period) in &on {
                        assert_eq!(marks.get(counter), Some(period), "{what}: {on:?} {marks:?}");
                    }
                    // A stopped event leaves no mark, if the register answers.
                    assert!(stays || marks == on, "{what}: {marks:?}, {on:?}");
                    world.session.reprogram(|_| ()).unwrap();
                    world.check(&what);
                    // Stopped events start again.
                    for event in world.events.clone().into_iter().take(3) {
                        if !world.session.is_enabled(event) {
                            let _ = world.session.enable(event, world.now);
                        }
                    }
                    world.check(&what);
                }
                world.session.shut_down().unwrap();
                assert!(world.marks().is_empty(), "{failed}, access {from}");
            });
            if ended {
                break;
            }
        }
    }
}

/// Faults of the counters' registers, not of the facility's.
#[test]
fn a_fault_of_a_counter_leaves_no_mark_of_an_event_that_does_not_run() {
    let processor = plain(4);
    for failing in 1..200 {
        let mut ended = false;
        with_world(&processor, |world| {
            let mock = world.hardware.mock;
            let before = mock.accesses().total();
            mock.inject(Fault::From(failing));
            for (name, operation) in OPERATIONS {
                world.now += 10;
                let _ = operation(world);
                // A counter that could not be stopped is presumed running, with its mark.
                for (counter, period) in world.on_counters() {
                    let what = format!("access {failing}: {name}");
                    assert_eq!(world.marks().get(&counter), Some(&period), "{what}");
                }
            }
            ended = mock.accesses().total() - before < failing;
            mock.inject(Fault::None);
            world.session.reprogram(|_| ()).unwrap();
            world.check("reprogram");
            world.session.shut_down().unwrap();
            assert!(world.marks().is_empty(), "{failing}");
        });
        if ended {
            return;
        }
    }
    panic!("no end");
}

#[test]
fn a_sample_has_what_the_facility_of_its_source_collected() {
    for processor in processors(Deviations::NONE) {
        let mock = processor.mock();
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let table = EventTable::<[EventEntry; 8]>::new();
        let known: Known = [const { AtomicU64::new(0) }; 64];
        let source = Events::new(&processor.unit, &table as &EventTable).with(Marks(&known));
        let hardware = Hardware {
            mock: &mock,
            marks: RefCell::default(),
            accesses: Cell::new(0),
            faults: RefCell::default(),
        };
        let samples = RefCell::new(vec![]);
        let handler = |_: &Mock<'_>| {
            let report = |sample: Sample<'_, Marks<'_>>| {
                let collected = sample.facility().unwrap().0[OVERFLOWED].load(Relaxed);
                samples.borrow_mut().push((sample.tag, collected & sample.counter.only().bits()));
            };
            service(&source, &(&hardware, &mock), &memory, report).unwrap();
        };
        mock.on_interrupt(&handler);
        let all = CounterSet::ALL;
        let mut session =
            CounterSession::take(source, &processor.unit, all, (&hardware, &mock), &memory)
                .unwrap();
        let event = raw(2).every(period(0)).tagged(7).on(CounterSet::GENERAL);
        let event = session.open(&processor.unit, &[event]).unwrap();
        session.enable(event, 0).unwrap();
        let on = session.counter_of(event).unwrap().only().bits();
        happen(&mock, 2, 2 * period(0));
        assert_eq!(samples.take(), [(7, on); 2], "{processor:?}");
        session.shut_down().unwrap();
    }
}

#[test]
fn an_event_that_starts_on_a_free_counter_has_its_facility() {
    for processor in processors(Deviations::NONE) {
        with_world(&processor, |world| {
            world.session.enable_if_free(world.events[0], 1).unwrap();
            assert!(!world.on_counters().is_empty());
            world.check("a start on a free counter");
        });
    }
}

#[test]
fn a_period_that_is_applied_is_the_facility_s_too() {
    for processor in processors(Deviations::NONE) {
        with_world(&processor, |world| {
            world.session.enable(world.events[0], 1).unwrap();
            world.session.apply_period(world.events[0], 5_000, 2, |_| ()).unwrap();
            let marks: Vec<u64> = world.marks().into_values().collect();
            assert_eq!(marks, [5_000], "{processor:?}");
        });
    }
}

#[test]
fn registers_that_a_borrower_changed_are_written_again_after_its_window() {
    for processor in processors(Deviations::NONE) {
        with_world(&processor, |world| {
            world.session.enable(world.events[0], 1).unwrap();
            let mut window = world.session.lend(2, |_| ()).unwrap();
            window.lent().set_programmed(true);
            world.hardware.marks.borrow_mut().insert(0, 55);
            world.hardware.marks.borrow_mut().insert(1, 66);
            window.end(3).unwrap();
            world.check("a window");
        });
    }
}
