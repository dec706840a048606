//! The events of a third party's facility that writes records: random operations on them and on plain events, with
//! an interrupt at any access, against a naive model. Each event counts what happens while it has a counter, and is
//! sampled after each period of that.

use core::cell::{Cell, RefCell};

use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::memory::EventTable;
use pmu_core::precise::Precision;
use pmu_core::registers::CounterId;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, EventId, Events, Sample, service};
use pmu_tests::opened::{Memory, Mock, Processor, Random, Table, happen, processors, raw};
use pmu_virt::Read;
use pmu_virt::mock::Deviations;

use super::recorder::*;

/// The mock with the recording hardware beside it.
struct Hardware<'m> {
    processor: &'m Processor,
    mock: &'m Mock<'m>,
    lent: &'m Lent,
    enabled: Cell<u64>,
    /// Kinds of the events whose overflows the records are.
    truth: RefCell<Vec<usize>>,
    /// Each record interrupts.
    interrupts: bool,
    /// An interrupt comes before this access from now on.
    at: Cell<u32>,
}

impl Hardware<'_> {
    fn access(&self) {
        let at = self.at.replace(self.at.get().saturating_sub(1));
        if at == 1 {
            self.mock.interrupt_from_elsewhere();
        }
    }

    /// One occurrence of an event.
    fn occurs(&self, kind: usize) {
        let enabled = CounterSet::from_bits(self.enabled.get());
        let counter = |of: CounterId| self.processor.unit.counter(of).unwrap();
        let value = |of: CounterId| {
            let register = counter(of).value_register().get();
            match self.mock.with_pmu(|pmu| pmu.read(register)) {
                Read::Value(value) => value,
                other => panic!("{other:?}"),
            }
        };
        let before: Vec<_> = enabled.iter().map(|of| (of, value(of))).collect();
        happen(self.mock, kind, 1);
        for (of, _) in before.into_iter().filter(|(of, before)| value(*of) < *before) {
            let number = self.truth.borrow().len() as u64;
            self.truth.borrow_mut().push(kind);
            self.lent.buffer.borrow_mut().push_back(Written { counter: of, number, left: None });
            let (registers, (_, reload)) = (counter(of), self.lent.slot(of).unwrap());
            let preload = registers.preload(reload);
            let _ =
                self.mock.with_pmu(|pmu| pmu.host_write(registers.value_register().get(), preload));
            if self.interrupts {
                self.lent.interrupts.set(1);
                self.mock.interrupt_from_elsewhere();
            }
        }
    }
}

impl RegisterBackend for Hardware<'_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.access();
        self.mock.read(address)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.access();
        if address.get() == ENABLE {
            self.enabled.set(value);
            return Ok(());
        }
        self.mock.write(address, value)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.access();
        self.mock.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.access();
        self.mock.update(update)
    }
}

type Source<'a> = Events<'a, CounterUnit, Recorder<'a>>;
type Session<'a> = CounterSession<'a, Source<'a>, (&'a Hardware<'a>, &'a Mock<'a>)>;

/// A sample: tag, period, and the record's number.
type Seen = (u64, u64, Option<u64>);

struct World<'a> {
    hardware: &'a Hardware<'a>,
    session: Session<'a>,
    seen: &'a RefCell<Vec<Seen>>,
    /// Kinds, places in their group, and what has happened.
    events: Vec<(usize, Option<EventId>, u64)>,
    group: EventId,
    thread: [ThreadEvent; 1],
    now: u64,
}

fn note(seen: &RefCell<Vec<Seen>>, sample: &Sample<'_, Recorder<'_>>) {
    let record = sample.instruction().map(|of| of.address.unwrap() - 0x40_0000);
    seen.borrow_mut().push((sample.tag, sample.period, record));
}

/// Returns an event that the hardware records, with the kind as its tag.
fn recorded(kind: usize) -> Event {
    let two = CounterSet::from_bits(0b11);
    let event = raw(kind).every(PERIOD).on(two).tagged(kind as u64).with_total().rotating();
    event.precise(Precision::ConstantSkid)
}

/// The thread's kind; the other ones are the processor's: two alone, and a group's leader and member.
const OF_THREAD: usize = 6;

fn with_world(processor: &Processor, interrupts: bool, act: impl FnOnce(&mut World<'_>)) {
    let (mock, lent, memory, table) =
        (processor.mock(), Lent::default(), Memory::new(), Table::new());
    table.set_min_period(1);
    let (enabled, truth, at) = (Cell::new(0), RefCell::default(), Cell::new(0));
    let hardware = Hardware { processor, mock: &mock, lent: &lent, enabled, truth, interrupts, at };
    let (unit, seen) = (&processor.unit, RefCell::default());
    let facility = Recorder { lent: &lent, shown: None };
    let source = Events::new(unit, &table as &EventTable).with(facility);
    let handler = |_: &Mock<'_>| {
        let report = |sample: Sample<'_, Recorder<'_>>| note(&seen, &sample);
        service(&source, &(&hardware, &mock), &memory, report).unwrap();
    };
    mock.on_interrupt(&handler);
    let all = CounterSet::ALL;
    let mut session = CounterSession::take(source, unit, all, (&hardware, &mock), &memory).unwrap();
    if processor.freezing {
        session.freeze_on_interrupt().unwrap();
    }
    let mut events = vec![];
    for kind in [2, 3] {
        let id = session.open(unit, &[recorded(kind)]).unwrap();
        events.push((kind, Some(id), 0));
    }
    let counted = raw(5).tagged(5).rotating();
    let group = session.open(unit, &[recorded(4), counted]).unwrap();
    let members: Vec<_> = session.group_events(group).collect();
    events.extend([4, 5].into_iter().zip(members).map(|(kind, id)| (kind, Some(id), 0)));
    events.push((OF_THREAD, None, 0));
    let event = SavedEvent::new(unit, &recorded(OF_THREAD).every(100_000)).unwrap();
    let mut event = event.to_be_enabled(true);
    event.set_period(&table, PERIOD).unwrap();
    let thread = [ThreadEvent::SwitchedOut(event)];
    let (hardware, seen) = (&hardware, &seen);
    act(&mut World { hardware, session, seen, events, group, thread, now: 0 });
}

impl World<'_> {
    fn happen(&mut self, kind: usize, count: u64) {
        for (of, id, happened) in &mut self.events {
            let is_on = id.is_some_and(|id| self.session.counter_of(id).is_some());
            *happened += if *of == kind && is_on { count } else { 0 };
        }
        (0..count).for_each(|_| self.hardware.occurs(kind));
    }

    /// Does an operation, which may be impossible.
    fn operate(&mut self, operation: u64, which: usize) {
        self.now += 1;
        let (now, seen, unit) = (self.now, self.seen, &self.hardware.processor.unit);
        let note = |sample: Sample<'_, Recorder<'_>>| note(seen, &sample);
        let (session, id) = (&mut self.session, self.events[which % 2].1.unwrap());
        match operation {
            0 | 1 => drop(session.enable(id, now)),
            2 => drop(session.disable(id, now)),
            3 => drop(session.enable(self.group, now)),
            4 => drop(session.disable(self.group, now)),
            5 | 6 => session.rotate(now).unwrap(),
            7 if matches!(self.thread[0], ThreadEvent::Opened(_)) => {
                session.switch_out(&mut self.thread, now, note).unwrap();
                self.events[4].1 = None;
            }
            7 => {
                session.switch_in(unit, &mut self.thread, now).unwrap();
                let ThreadEvent::Opened(id) = self.thread[0] else { panic!() };
                self.events[4].1 = Some(id);
            }
            8 => {
                let window = session.lend(now, note).unwrap();
                assert_eq!(self.hardware.enabled.get(), 0, "a borrower's counters write records");
                (0..50).for_each(|_| self.hardware.occurs(3));
                window.end(now).unwrap();
            }
            9 => {
                session.suspend(now, note).unwrap();
                assert_eq!(self.hardware.enabled.get(), 0);
                self.hardware.mock.lose_registers();
                self.hardware.enabled.set(77);
                let _ = session.resume(now, note).unwrap();
            }
            10 => session.report_samples(note).unwrap(),
            _ => session.reprogram(note).map(|_| ()).unwrap(),
        }
    }

    fn check(&mut self, at: &str) {
        let seen = self.seen;
        self.session.report_samples(|sample| note(seen, &sample)).unwrap();
        let (seen, truth) = (seen.borrow(), self.hardware.truth.borrow());
        for (kind, id, happened) in &self.events {
            let count = match (id, self.thread[0]) {
                (Some(id), _) => self.session.read(*id, self.now).unwrap().value,
                (None, ThreadEvent::SwitchedOut(event)) => event.count().value,
                (None, other) => panic!("{other:?}"),
            };
            assert_eq!(count, *happened, "{at}: {kind}");
            let samples = seen.iter().filter(|(tag, ..)| *tag == *kind as u64).count() as u64;
            let expected = if *kind == 5 { 0 } else { happened / PERIOD };
            assert_eq!(samples, expected, "{at}: samples of {kind}");
        }
        let numbers = seen.iter().map(|(tag, period, record)| {
            let number = record.unwrap_or_else(|| panic!("{at}: {tag} has no record"));
            assert_eq!((*period, truth[number as usize]), (PERIOD, *tag as usize), "{at}");
            number
        });
        assert!(numbers.eq(0..truth.len() as u64), "{at}: each record once, in order");
    }
}

#[test]
fn a_third_partys_records_are_samples_of_their_events_whatever_happens() {
    for processor in processors(Deviations::NONE) {
        for (seed, interrupts) in (0..5).flat_map(|seed| [(seed, false), (seed, true)]) {
            with_world(&processor, interrupts, |world| {
                let mut random = Random((seed + 1_u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                let mut log = vec![];
                for _ in 0..80 {
                    let (operation, which) = (random.below(12), random.below(4) as usize);
                    let nmi = if random.below(2) == 0 { 1 + random.below(30) as u32 } else { 0 };
                    log.push((operation, which, nmi));
                    world.hardware.at.set(nmi);
                    world.operate(operation, which);
                    world.hardware.at.set(0);
                    let (kind, count) = (2 + random.below(5) as usize, random.below(130));
                    world.happen(kind, count);
                    if random.below(4) == 0 {
                        world.check(&format!("{processor:?}, seed {seed}, {interrupts}: {log:?}"));
                    }
                }
                world.session.shut_down().unwrap();
                assert_eq!(world.hardware.enabled.get(), 0, "{processor:?}");
                assert_eq!(world.hardware.mock.breach(), None, "{processor:?}");
            });
        }
    }
}
