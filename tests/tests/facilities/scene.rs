//! A processor with two events and all fake facilities, whose interrupts are serviced together.

use core::cell::{Cell, RefCell};

use pmu_core::error::ServiceError;
use pmu_core::interrupt::Serviced;
use pmu_core::registers::CounterId;
use pmu_core::{Claim, CounterSession, CounterSet, CounterUnit, EventId, Events, Sample, service};
use pmu_tests::deviations::{pairs, single};
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviation, Deviations};
use pmu_virt::{EventKey, Privilege};

use super::hardware::*;

pub(crate) const PERIOD: u64 = 0x1000;

/// Numbers in [`KINDS`] of the event that the session reports, and of the one that fills the buffer.
pub(crate) const SAMPLED: usize = 2;
pub(crate) const PRECISE: usize = 3;

/// The facilities of the source of the events.
pub(crate) type Facilities<'a> = (LastBranch<'a>, (Trace<'a>, (Ops<'a>, Buffer<'a>)));

pub(crate) type Source<'a> = Events<'a, CounterUnit, Facilities<'a>>;

/// Counters of a session, over registers that call the scene before each access.
pub(crate) type Session<'a, 'r, 'h, B> = CounterSession<'a, Source<'a>, &'r Registers<'r, 'h, B>>;

pub(crate) struct Scene<'a> {
    pub(crate) processor: &'a Processor,
    pub(crate) context: String,
    pub(crate) hardware: Hardware,
    pub(crate) memory: Memory,
    pub(crate) table: Table,
    /// Counters of the two events; the second one only where counters are stopped in their interrupt.
    pub(crate) counters: [Option<CounterId>; 2],
    /// Overflows of the two events.
    pub(crate) overflows: [Cell<u64>; 2],
    /// The sampled event's reports by `service`, with the records.
    pub(crate) told: RefCell<Vec<Option<u64>>>,
    pub(crate) last: Cell<Option<Result<Serviced, ServiceError>>>,
    pub(crate) errors: Cell<u32>,
    /// Counters faulted in an interrupt.
    pub(crate) fell: Cell<bool>,
    /// The access, from 1, before which everything overflows once more.
    pub(crate) at: Cell<Option<u32>>,
    samples_only: bool,
    disturbed: Cell<bool>,
    swallow: Cell<bool>,
    foreign: Cell<bool>,
}

impl<'a> Scene<'a> {
    pub(crate) fn new(processor: &'a Processor, freezes: bool) -> Self {
        let hardware = Hardware::new(&processor.unit, freezes);
        let mut general = (processor.unit.counters() & CounterSet::GENERAL).iter();
        let sampled = general.next();
        let stops = processor.freezing
            || processor.unit.global().is_some_and(|global| global.stop_while_serviced);
        let has_own = stops
            && processor.unit.global().is_some()
            && !processor.deviations.contains(Deviation::DeadCounter);
        let precise = general.next().filter(|_| has_own);
        Self {
            processor,
            context: format!("{processor:?}, records freeze: {}", hardware.freezes),
            hardware,
            memory: Memory::new(),
            table: Table::new(),
            counters: [sampled, precise],
            overflows: Default::default(),
            told: RefCell::default(),
            last: Cell::default(),
            errors: Cell::default(),
            fell: Cell::default(),
            at: Cell::default(),
            samples_only: false,
            disturbed: Cell::default(),
            swallow: Cell::default(),
            foreign: Cell::default(),
        }
    }

    /// Creates a scene in which only the sampled event happens.
    pub(crate) fn of_samples(processor: &'a Processor, freezes: bool) -> Self {
        let scene = Self::new(processor, freezes);
        Self { counters: [scene.counters[0], None], samples_only: true, ..scene }
    }

    /// Takes the counters, and starts the events and the facilities.
    pub(crate) fn take<'s, 'r, 'h, B: Fn(&Mock<'_>)>(
        &'s self,
        registers: &'r Registers<'r, 'h, B>,
    ) -> Session<'s, 'r, 'h, B> {
        let (unit, memory) = (&self.processor.unit, &self.memory);
        let all = CounterSet::ALL;
        let taken = CounterSession::take(self.source(), unit, all, registers, memory);
        let mut counters = taken.unwrap();
        self.start(&mut counters);
        counters
    }

    /// Opens and starts the events, and the facilities.
    pub(crate) fn start<B: Fn(&Mock<'_>)>(&self, counters: &mut Session<'_, '_, '_, B>) {
        let deviates = |deviation| self.processor.deviations.contains(deviation);
        if self.processor.freezing {
            let frozen = counters.freeze_on_interrupt();
            assert!(frozen.is_ok() || deviates(Deviation::IgnoresDebugControl), "{frozen:?}");
        }
        for (kind, counter) in [SAMPLED, PRECISE].into_iter().zip(self.counters) {
            let Some(counter) = counter else { continue };
            let event = raw(kind).every(PERIOD).on(counter.only()).tagged(kind as u64);
            let id = counters.open(&self.processor.unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
        }
        self.hardware.recording.set(true);
        self.hardware.wanted.set(true);
    }

    /// Returns the event that is sampled.
    pub(crate) fn sampled_event(&self) -> EventId {
        let runs = |event: &EventId| self.memory.counter_of(*event) == self.counters[0];
        (0..2).map(EventId::of_index).find(runs).unwrap()
    }

    /// Returns the source of the events, with all facilities.
    pub(crate) fn source(&self) -> Source<'_> {
        let hardware = &self.hardware;
        let buffer = Buffer { hardware, counter: self.counters[1] };
        let others = (Trace(hardware), (Ops(hardware), buffer));
        Events::new(&self.processor.unit, &self.table).with((LastBranch::new(hardware), others))
    }

    /// Notes a sample, with the records.
    pub(crate) fn note(&self, sample: &Sample<'_, Facilities<'_>>) {
        assert_eq!(sample.tag, SAMPLED as u64, "{}: the facility's event", self.context);
        self.told.borrow_mut().push(sample.facility().unwrap().0.newest);
    }

    /// Services an interrupt.
    pub(crate) fn interrupt(&self, mock: &Mock<'_>) {
        let registers = Registers(mock, &self.hardware, |mock: &Mock<'_>| self.step(mock));
        let outer = self.hardware.serving.replace(true);
        let (source, told) = (self.source(), |sample: Sample<'_, _>| self.note(&sample));
        let serviced = service(&source, &registers, &self.memory, told);
        self.hardware.serving.set(outer);
        self.last.set(Some(serviced));
        let claim = match serviced {
            Ok(Serviced { claim, others, .. }) => {
                assert_eq!(others & (FROZEN | FULL), 0, "{}: another owner's bits", self.context);
                claim
            }
            Err(error) => {
                assert!(self.hardware.faulted.get(), "{}: {error}", self.context);
                self.errors.set(self.errors.get() + 1);
                let fell = !error.counters.is_empty() || error.masked;
                self.fell.set(self.fell.get() || fell);
                Claim::OursAndMore
            }
        };
        let claims = claim.interrupts() + u32::from(self.foreign.take());
        let swallowed = claims == 0 && self.swallow.take();
        assert!(claims > 0 || swallowed, "{}: no handler claims it", self.context);
        if claims > 1 {
            self.swallow.set(true);
        }
    }

    /// Lets `count` of an event happen; each overflow interrupts. A branch comes with each event.
    pub(crate) fn happen(&self, mock: &Mock<'_>, kind: usize, count: u64) {
        let (number, unit_mask) = KINDS[kind];
        let key = EventKey::general(number.into(), unit_mask);
        let place = kind - SAMPLED;
        let mut left = count;
        while left > 0 {
            let mut feed = happened(kind, left);
            self.hardware.branch();
            let advanced = mock.pass(&mut feed);
            left = feed.count(fed_events().find(key).unwrap(), Privilege::User);
            let bit = self.counters[place].map_or(0, |counter| counter.only().bits());
            if advanced.overflowed & bit != 0 {
                self.overflows[place].set(self.overflows[place].get() + 1);
                if kind == PRECISE {
                    let unit = &self.processor.unit;
                    let counter = unit.counter(self.counters[1].unwrap()).unwrap();
                    let value = counter.value_register().get();
                    self.hardware.record_precise(mock, value, counter.preload(PERIOD));
                }
            }
            if advanced.pmi {
                self.hardware.raised();
                mock.deliver();
            }
        }
    }

    /// Lets everything overflow once more.
    pub(crate) fn overflow_all(&self, mock: &Mock<'_>) {
        if self.counters[1].is_some() {
            self.happen(mock, PRECISE, PERIOD);
        }
        self.happen(mock, SAMPLED, PERIOD);
        if !self.samples_only {
            self.hardware.sample_op(mock);
        }
    }

    /// Called before each access of a service, or of a task's operation.
    pub(crate) fn step(&self, mock: &Mock<'_>) {
        let due = self.at.get().is_some_and(|at| self.hardware.accesses.get() + 1 >= at);
        if due {
            self.at.set(None);
            self.disturbed.set(true);
            self.overflow_all(mock);
        }
    }

    /// Returns whether the plan went beyond the operation's end.
    pub(crate) fn is_beyond(&self) -> bool {
        !self.disturbed.get()
    }

    /// Asserts that nothing is lost, and nothing invented.
    #[track_caller]
    pub(crate) fn assert_complete(&self) {
        let (context, hardware) = (&self.context, &self.hardware);
        assert_eq!(self.told.borrow().len() as u64, self.overflows[0].get(), "{context}: samples");
        let sampled = hardware.op_samples.borrow().clone();
        let ops: Vec<_> = (1..=hardware.ops.get()).collect();
        assert_eq!(sampled, ops, "{context}: ops");
        assert_eq!(hardware.drained.get(), self.overflows[1].get(), "{context}: records");
        assert!(!hardware.frozen.get() && !hardware.full.get(), "{context}: left in the status");
        assert!(hardware.recording.get(), "{context}: the recording goes on");
    }
}

/// Runs `act` on a processor whose events and facilities are started.
pub(crate) fn on(processor: &Processor, freezes: bool, act: impl FnOnce(&Scene<'_>, &Mock<'_>)) {
    let scene = Scene::new(processor, freezes);
    let handler = |mock: &Mock<'_>| scene.interrupt(mock);
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let registers = Registers(&mock, &scene.hardware, |mock: &Mock<'_>| scene.step(mock));
    let _counters = scene.take(&registers);
    scene.hardware.accesses.set(0);
    act(&scene, &mock);
    assert_eq!(mock.breach(), None, "{}", scene.context);
}

/// Each processor, with records that freeze and that do not.
pub(crate) fn each(
    deviations: impl IntoIterator<Item = Deviations>,
    mut test: impl FnMut(&Processor, bool),
) {
    for deviations in deviations {
        for processor in processors(deviations) {
            for freezes in [true, false] {
                test(&processor, freezes);
            }
        }
    }
}

/// Returns the platforms of the manuals, each deviation from them, and some pairs.
pub(crate) fn platforms() -> Vec<Deviations> {
    // Frozen counters whose acknowledgement faults cannot be taken.
    let taken = |deviations: &Deviations| {
        let both = [Deviation::NarrowAcknowledge, Deviation::LeftFrozen];
        !both.into_iter().all(|deviation| deviations.contains(deviation))
    };
    let all = core::iter::once(Deviations::NONE).chain(single()).chain(pairs(12, 0x28));
    all.filter(taken).collect()
}

impl Scene<'_> {
    /// The next interrupt is another driver's, which claims it.
    pub(crate) fn expect_foreign(&self) {
        self.foreign.set(true);
    }
}
