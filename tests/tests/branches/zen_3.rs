//! A Zen 3 that samples branches and holds interrupts, with a session of events.

use core::cell::{Cell, RefCell};
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::branches::{BranchUnit, Branches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::x86::Snapshot;
use pmu_core::{
    Claim, CounterSession, CounterSet, CounterUnit, Event, EventId, Events, Sample, service,
};
use pmu_tests::{FakePlatform, RegisterFile, recorded};

use super::support::Records;

/// `DebugExtnCtl`: bits 4:3 are always set; 2 samples; 5 valid; 19:16 the next record.
pub(crate) const STOPPED: u64 = 0x18;
pub(crate) const SAMPLING: u64 = 0x1C;
pub(crate) const CONTROL: u32 = 0xC000_010F;
/// Bit 40 is another owner's.
pub(crate) const OTHERS: u64 = 1 << 40;
pub(crate) const FIRST: u32 = 0xC001_0300;
pub(crate) const SELECT: u32 = 0xC001_0200;
pub(crate) const COUNTER: u32 = 0xC001_0201;
pub(crate) const TAKEN: u64 = 0xC4;

pub(crate) fn zen_3() -> (Snapshot, BranchUnit) {
    let processor = recorded("amd-zen3.txt");
    let unit = pmu_amd::branches(&processor).unwrap();
    (processor, unit)
}

type Handler<'h> = &'h dyn Fn(&Zen3<'h>);

/// The registers of a Zen 3, which holds interrupts.
pub(crate) struct Zen3<'h> {
    pub(crate) file: RegisterFile,
    pub(crate) is_held: Cell<bool>,
    /// The processor's interrupts are disabled: those that come wait.
    pub(crate) is_masked: Cell<bool>,
    pub(crate) waits: Cell<u32>,
    /// Interrupts that the sampling held as their counter was stopped. They may come nevertheless.
    pub(crate) late: Cell<u32>,
    pub(crate) comes_late: Cell<bool>,
    pub(crate) handler: Cell<Option<Handler<'h>>>,
}

impl Zen3<'_> {
    pub(crate) fn new() -> Self {
        let registers = (SELECT..SELECT + 12).chain(FIRST..FIRST + 32).chain([CONTROL, 0x1D9]);
        let file = RegisterFile::new(registers, COUNTER).rdpmc_step(2);
        file.set(CONTROL, OTHERS | STOPPED);
        let (is_held, is_masked, comes_late) = Default::default();
        let (waits, late, handler) = Default::default();
        Self { file, is_held, is_masked, waits, late, comes_late, handler }
    }

    pub(crate) fn interrupt(&self) {
        match self.handler.get() {
            Some(handler) if !self.is_masked.get() => handler(self),
            _ => self.waits.set(self.waits.get() + 1),
        }
    }

    /// Counter 0 overflowed, and so many branches were taken since.
    pub(crate) fn overflow(&self, taken: u64) {
        let control = self.file.get(CONTROL);
        let samples = control & SAMPLING == SAMPLING;
        if samples {
            for record in 0..taken {
                let from = FIRST + 2 * record as u32;
                self.file.set(from, 0x1000 + record);
                self.file.set(from + 1, 0x2000 + record);
            }
            let valid = if taken == 0 { 0 } else { 1 << 5 };
            self.file.set(CONTROL, control & !(0xF << 16) | valid | (taken & 0xF) << 16);
        }
        self.file.set(COUNTER, taken);
        self.is_held.set(samples && taken < 16);
        if !self.is_held.get() {
            self.interrupt();
        }
    }

    /// Delivers what waits.
    pub(crate) fn unmask(&self) {
        self.is_masked.set(false);
        (0..self.waits.take()).for_each(|_| self.interrupt());
    }

    fn written(&self, register: u32, before: u64) {
        let after = self.file.get(register);
        if register == SELECT && after & 1 << 22 == 0 && self.is_held.get() {
            self.is_held.set(false);
            self.late.set(self.late.get() + 1);
        }
        if register == CONTROL && before & !after & 1 << 2 != 0 {
            if self.comes_late.get() {
                (0..self.late.take()).for_each(|_| self.interrupt());
            }
            if self.is_held.take() {
                self.interrupt();
            }
        }
    }

    pub(crate) fn is_sampling(&self) -> bool {
        let control = self.file.get(CONTROL);
        assert!([STOPPED, SAMPLING].contains(&(control & 0xFF & !(1 << 5))), "{control:#X}");
        assert_eq!(control & OTHERS, OTHERS);
        control & SAMPLING == SAMPLING
    }

    /// Checks that nothing of the sampling is left.
    pub(crate) fn check_clear(&self, at: &str) {
        assert_eq!(self.file.get(CONTROL), OTHERS | STOPPED, "{at}");
        for record in FIRST..FIRST + 32 {
            assert_eq!(self.file.get(record), 0, "{at}: {record:#X}");
        }
    }

    pub(crate) fn lose_registers(&self) {
        let registers = (SELECT..SELECT + 12).chain(FIRST..FIRST + 32);
        registers.for_each(|register| self.file.set(register, 0));
        self.file.set(CONTROL, OTHERS | STOPPED);
    }
}

impl RegisterBackend for Zen3<'_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.file.read(address)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        // Only by updates: the register has other owners.
        assert_ne!(address.get(), CONTROL);
        self.file.write(address, value)?;
        self.written(address.get(), 0);
        Ok(())
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.file.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let found = self.file.update(update)?;
        self.written(update.register(), found);
        Ok(found)
    }
}

type Source<'a> = Events<'a, CounterUnit, Branches<'a>>;
type Session<'a> = CounterSession<'a, Source<'a>, (&'a Zen3<'a>, &'a FakePlatform)>;

/// A sample: its tag, and where its branches came from.
pub(crate) type Taken = (u64, Vec<u64>);

pub(crate) struct Scene<'a> {
    pub(crate) hardware: &'a Zen3<'a>,
    pub(crate) records: &'a Records,
    pub(crate) unit: &'a BranchUnit,
    pub(crate) counters: &'a CounterUnit,
    pub(crate) session: Session<'a>,
    pub(crate) samples: &'a RefCell<Vec<Taken>>,
    /// The claims of the interrupts.
    pub(crate) claims: &'a RefCell<Vec<Claim>>,
}

pub(crate) fn taken_of(sample: &Sample<'_, Branches<'_>>) -> Taken {
    assert!(!sample.branch_records().is_some_and(Branches::is_frozen));
    (sample.tag, sample.branches().map(|of| of.from).collect())
}

pub(crate) fn with_scene(act: impl FnOnce(&mut Scene<'_>)) {
    let (processor, unit) = zen_3();
    let counters = pmu_amd::counters(&processor);
    let (records, platform, hardware) = (Records::new(), FakePlatform::default(), Zen3::new());
    let memory = CounterMemory::<[CounterSlot; 6]>::new();
    let table = EventTable::<[EventEntry; 8]>::new();
    let source = Events::new(&counters, &table as &EventTable);
    let source = source.with(Branches::new(&unit, &records));
    let (samples, claims) = (RefCell::new(vec![]), RefCell::new(vec![]));
    let handler = |hardware: &Zen3<'_>| {
        let report = |sample: Sample<'_, _>| samples.borrow_mut().push(taken_of(&sample));
        if let Ok(serviced) = service(&source, &(hardware, &platform), &memory, report) {
            claims.borrow_mut().push(serviced.claim);
        }
    };
    hardware.handler.set(Some(&handler));
    let session =
        CounterSession::take(source, &counters, CounterSet::ALL, (&hardware, &platform), &memory);
    // One of a predecessor's may come.
    hardware.interrupt();
    assert_eq!(claims.take(), [Claim::Ours]);
    act(&mut Scene {
        hardware: &hardware,
        records: &records,
        unit: &unit,
        counters: &counters,
        session: session.unwrap(),
        samples: &samples,
        claims: &claims,
    });
}

/// Returns where the newest of 16 branches came from, the newest first.
pub(crate) fn sampled(taken: u64) -> Vec<u64> {
    (0..taken).rev().map(|number| 0x1000 + number).collect()
}

impl Scene<'_> {
    pub(crate) fn open(&mut self, event: Event) -> EventId {
        self.session.open(self.counters, &[event]).unwrap()
    }

    pub(crate) fn start(&mut self, tag: u64) -> EventId {
        let event = self.open(event().tagged(tag));
        self.session.enable(event, 0).unwrap();
        event
    }

    /// Checks that the samples since the last call are these, and that each interrupt was claimed.
    #[track_caller]
    pub(crate) fn check(&self, expected: &[Taken], at: &str) {
        assert_eq!(self.samples.take(), expected, "{at}");
        assert!(!self.claims.take().contains(&Claim::NotOurs), "{at}");
    }

    /// Checks that no interrupt of the session's is expected any more: the next one is another driver's.
    #[track_caller]
    pub(crate) fn check_none_expected(&self, at: &str) {
        self.hardware.interrupt();
        assert_eq!(self.claims.take(), [Claim::NotOurs], "{at}");
    }
}

pub(crate) fn event() -> Event {
    pmu_amd::branch_sampling_event(100_003).unwrap()
}
