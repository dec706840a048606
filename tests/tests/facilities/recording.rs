//! A third party's facility whose hardware writes records, against the public traits alone. Whenever a counter overflows
//! that its register names, the hardware writes a record, and loads the counter again. The status reports the overflow
//! too. Random operations on its events and on plain ones, with an interrupt at any access, against a naive model: each
//! event counts what happens while it has a counter, and is sampled after each period of that.

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;

use pmu_core::{
    Asked, CounterError, CounterId, CounterSession, CounterSet, Event, EventControl, EventFacility,
    EventId, EventTable, Facility, GroupId, Interrupted, MsrAccess, MsrAddress, MsrBackend,
    MsrErrorKind, MsrFault, MsrUpdate, OpenedEvents, PmcIndex, PreciseSample, Precision, Recorded,
    Running, RunningEvent, Sample, SavedEvent, ThreadEvent, Unsettled, Waiting, service,
};
use pmu_tests::opened::{Memory, Mock, Processor, Random, Table, happen, processors, raw};
use pmu_virt::Read;
use pmu_virt::mock::Deviations;

/// The register of the counters that write records. No processor of the tests has it.
const ENABLE: u32 = 0x7000_0000;
const PERIOD: u64 = 100;

/// A record, and the event that left its counter while it waited, with the period that it ended.
#[derive(Clone, Copy)]
struct Written {
    counter: CounterId,
    number: u64,
    left: Option<(EventId, u64)>,
}

/// What the driver knows, and the buffer that the hardware fills.
#[derive(Default)]
struct Lent {
    /// The counters' events, and the numbers of events for which the hardware loads the counters.
    slots: RefCell<Vec<(CounterId, EventId, u64)>>,
    recording: Cell<u64>,
    known: Cell<Option<u64>>,
    buffer: RefCell<VecDeque<Written>>,
    /// The records that an interrupt is reporting.
    batch: RefCell<VecDeque<Written>>,
    interrupts: Cell<u32>,
}

#[derive(Clone, Copy)]
struct Recorder<'a> {
    lent: &'a Lent,
    shown: Option<u64>,
}

impl Lent {
    fn slot(&self, counter: CounterId) -> Option<(EventId, u64)> {
        let slots = self.slots.borrow();
        slots.iter().find(|(of, ..)| *of == counter).map(|(_, event, reload)| (*event, *reload))
    }

    fn recording(&self) -> CounterSet {
        CounterSet::from_bits(self.recording.get())
    }

    /// Calls `act` with each record of the event that is on a counter.
    fn each_of(&self, counter: CounterId, mut act: impl FnMut(&mut Written)) {
        for records in [&self.batch, &self.buffer] {
            let mut records = records.borrow_mut();
            let its = records.iter_mut();
            its.filter(|of| of.counter == counter && of.left.is_none()).for_each(&mut act);
        }
    }
}

/// Returns the register's address.
fn enable() -> MsrAddress {
    // SAFETY: no processor is behind it.
    unsafe { MsrAddress::new(ENABLE) }
}

impl Facility for Recorder<'_> {
    const RECORDS: bool = true;

    fn own_counters(&self) -> CounterSet {
        self.lent.recording()
    }

    fn collect<M: MsrBackend>(&mut self, _: &M, _: Interrupted<'_>) -> Result<u32, MsrFault> {
        self.lent.batch.borrow_mut().append(&mut self.lent.buffer.borrow_mut());
        Ok(self.lent.interrupts.take())
    }

    fn has_records(&self) -> bool {
        !self.lent.batch.borrow().is_empty()
    }

    fn next_record(&mut self) -> Option<Recorded> {
        self.shown = None;
        let Written { counter, number, left } = self.lent.batch.borrow_mut().pop_front()?;
        let (event, reloaded) = self.lent.slot(counter)?;
        self.shown = Some(number);
        let event = left.map_or(event, |(event, _)| event);
        let left = left.map(|(_, period)| period);
        Some(Recorded { counter, event, reloaded, left, hidden: false })
    }

    fn set_reload<M: MsrBackend>(
        &self,
        _: &M,
        counter: CounterId,
        events: u64,
    ) -> Result<(), MsrFault> {
        let mut slots = self.lent.slots.borrow_mut();
        slots.iter_mut().filter(|(of, ..)| *of == counter).for_each(|slot| slot.2 = events);
        Ok(())
    }
}

impl EventFacility for Recorder<'_> {
    const OFFERS: bool = true;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let is_met = asked.precision.take().is_some();
        Ok(if is_met { counters & CounterSet::GENERAL } else { counters })
    }

    fn control(&self, event: &RunningEvent<'_>) -> EventControl {
        EventControl { silent: event.precision().is_some(), ..EventControl::default() }
    }

    fn settle<M: MsrBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let precise = |counter| running.on(counter).filter(|of| of.precision().is_some());
        let counters = running.counters().iter();
        let wanted: CounterSet = counters.filter(|counter| precise(*counter).is_some()).collect();
        for (counter, event) in wanted.iter().filter_map(|on| Some((on, precise(on)?))) {
            if self.lent.recording().contains(counter) {
                continue;
            }
            let reload = event.reloaded(&running.registers(counter));
            let mut slots = self.lent.slots.borrow_mut();
            slots.retain(|(of, ..)| *of != counter);
            slots.push((counter, event.id(), reload));
        }
        self.lent.recording.set(wanted.bits());
        if self.lent.known.replace(None) != Some(wanted.bits()) {
            msr.wrmsr_retrying(enable(), wanted.bits())
                .map_err(|fault| Unsettled { counters: wanted, fault })?;
        }
        self.lent.known.set(Some(wanted.bits()));
        Ok(())
    }

    fn lose(&self) {
        self.lent.known.set(None);
    }

    /// The facility's register is written while the event's slot is not free yet.
    fn leave<M: MsrBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        event: &RunningEvent<'_>,
    ) -> Result<Waiting, MsrFault> {
        let (waiting, mut period) = (self.waiting(msr, counter)?, event.period_under_way());
        self.lent.each_of(counter, |record| {
            record.left = Some((event.id(), period));
            period = waiting.reloaded;
        });
        let others = self.lent.recording().without(counter.only()).bits();
        self.lent.recording.set(others);
        self.lent.known.set(None);
        msr.wrmsr_retrying(enable(), others)?;
        self.lent.known.set(Some(others));
        Ok(waiting)
    }

    fn waiting<M: MsrBackend>(&self, _: &M, counter: CounterId) -> Result<Waiting, MsrFault> {
        let (mut records, slot) = (0, self.lent.slot(counter));
        if !self.lent.recording().contains(counter) {
            return Ok(Waiting::NONE);
        }
        self.lent.each_of(counter, |_| records += 1);
        let waiting = slot.filter(|_| records != 0);
        Ok(waiting.map_or(Waiting::NONE, |(_, reloaded)| Waiting { records, reloaded }))
    }

    fn has_waiting<M: MsrBackend>(&self, _: &M) -> Result<bool, MsrFault> {
        Ok(!self.lent.buffer.borrow().is_empty())
    }

    fn instruction(&self) -> Option<PreciseSample> {
        let address = Some(0x40_0000 + self.shown?);
        Some(PreciseSample { address, ..PreciseSample::default() })
    }
}

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

impl MsrBackend for Hardware<'_> {
    type Error = MsrErrorKind;

    fn read(&self, address: MsrAddress) -> Result<u64, MsrErrorKind> {
        self.access();
        self.mock.read(address)
    }

    fn write(&self, address: MsrAddress, value: u64) -> Result<(), MsrErrorKind> {
        self.access();
        if address.get() == ENABLE {
            self.enabled.set(value);
            return Ok(());
        }
        self.mock.write(address, value)
    }

    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MsrErrorKind> {
        self.access();
        self.mock.read_pmc(index)
    }

    fn update(&self, update: MsrUpdate) -> Result<u64, MsrErrorKind> {
        self.access();
        self.mock.update(update)
    }
}

type Source<'a> = OpenedEvents<'a, Recorder<'a>>;
type Session<'a> = CounterSession<'a, Source<'a>, &'a Hardware<'a>, &'a Mock<'a>>;

/// A sample: tag, period, and the record's number.
type Seen = (u64, u64, Option<u64>);

struct World<'a> {
    hardware: &'a Hardware<'a>,
    session: Session<'a>,
    seen: &'a RefCell<Vec<Seen>>,
    /// Kinds, places in their group, and what has happened.
    events: Vec<(usize, Option<EventId>, u64)>,
    group: GroupId,
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
    let source = OpenedEvents::new(unit, &table as &EventTable).with(facility);
    let handler = |_: &Mock<'_>| {
        let report = |sample: Sample<'_, Recorder<'_>>| note(&seen, &sample);
        service(&source, &hardware, &mock, &memory, report).unwrap();
    };
    mock.on_interrupt(&handler);
    let all = CounterSet::ALL;
    let mut session = CounterSession::take(source, unit, all, &hardware, &mock, &memory).unwrap();
    if processor.freezing {
        session.freeze_on_interrupt().unwrap();
    }
    let mut events = vec![];
    for kind in [2, 3] {
        let id = session.open_event(unit, &recorded(kind)).unwrap();
        events.push((kind, Some(id), 0));
    }
    let counted = raw(5).tagged(5).rotating();
    let group = session.open_group(unit, &[recorded(4), counted]).unwrap();
    let members: Vec<_> = session.group_events(group).collect();
    events.extend([4, 5].into_iter().zip(members).map(|(kind, id)| (kind, Some(id), 0)));
    events.push((OF_THREAD, None, 0));
    let event = SavedEvent::new(unit, &recorded(OF_THREAD).every(100_000)).unwrap();
    let mut event = event.to_be_started(true);
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
            0 | 1 => drop(session.start_event(id, now)),
            2 => drop(session.stop_event(id, now)),
            3 => drop(session.start_group(self.group, now)),
            4 => drop(session.stop_group(self.group, now)),
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
                (Some(id), _) => self.session.read_event(*id, self.now).unwrap().value,
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
