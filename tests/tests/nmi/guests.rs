//! AMD's guest and host bits, and Intel's global control of guests, while the performance interrupt comes:
//! virtualization is switched on and off, and no event in guests, outside of them, or everywhere is lost.

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::world::{Accesses, World};
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::lending::{GuestControl, guest_control};
use pmu_core::{Claim, CounterSession, CounterSet, EventId, Events, service};
use pmu_tests::Reason;
use pmu_tests::StateRegisters;
use pmu_tests::opened::*;
use pmu_virt::EventKey;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviations, Fault};

const PERIOD: u64 = 0x1000;
/// `PERF_CTL`'s bits: counts in guests only, outside of them only (APM vol. 2, "Core Performance Event-Select
/// Registers").
const GUEST_ONLY: u64 = 1 << 40;
const HOST_ONLY: u64 = 1 << 41;
const ENABLE: u64 = 1 << 22;

/// In guests, outside, outside and only counted, everywhere.
const IN_GUESTS: usize = 0;
const OUTSIDE: usize = 1;
const COUNTED: usize = 2;
const EVERYWHERE: usize = 3;
const EVENTS: [usize; 4] = [IN_GUESTS, OUTSIDE, COUNTED, EVERYWHERE];

/// Returns the number of an event in [`KINDS`].
const fn kind(event: usize) -> usize {
    event + 2
}

/// A processor with virtualization around the software PMU. AMD's keeps the guest and host bits, and stops a counter
/// that they exclude; Intel's loads the global control register at VM entry and VM exit.
struct Svm {
    enabled: Cell<bool>,
    in_guest: Cell<bool>,
    /// The event selects, as they were written.
    selects: RefCell<BTreeMap<u32, u64>>,
}

impl Svm {
    fn of(processor: &Processor) -> Self {
        let is_amd = matches!(processor.configuration, Configuration::Amd(_));
        let counters = processor.unit.iter().filter(|_| is_amd);
        let selects = counters.map(|(_, c)| (c.control().register().get(), 0));
        let selects = RefCell::new(selects.collect());
        Self { enabled: Cell::new(false), in_guest: Cell::new(false), selects }
    }

    /// Returns the select as the software PMU has it at present.
    fn effective(&self, value: u64) -> u64 {
        let other_mode = if self.in_guest.get() { HOST_ONLY } else { GUEST_ONLY };
        let enabled = if value & other_mode != 0 { !ENABLE } else { !0 };
        value & enabled & !(GUEST_ONLY | HOST_ONLY)
    }

    /// Enters a guest, or leaves it.
    fn switch(&self, (source, memory): (&Events<'_>, &Memory), mock: &Mock<'_>, in_guest: bool) {
        self.in_guest.set(in_guest);
        if let Some(GuestControl { guest, host }) = guest_control(source, memory) {
            let value = if in_guest { guest } else { host };
            let _ = mock.with_pmu(|pmu| pmu.write(0x38F, value));
        }
        for (register, value) in &*self.selects.borrow() {
            let _ = mock.with_pmu(|pmu| pmu.write(*register, self.effective(*value)));
        }
    }
}

/// The processor's registers.
#[derive(Clone, Copy)]
struct Registers<'a, 'h>(&'a Mock<'h>, &'a Svm);

impl RegisterBackend for Registers<'_, '_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        let value = self.0.read(address)?;
        let written = self.1.selects.borrow().get(&address.get()).copied();
        Ok(written.unwrap_or(value))
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        let Self(mock, svm) = self;
        if !svm.selects.borrow().contains_key(&address.get()) {
            return mock.write(address, value);
        }
        let guest = value & (GUEST_ONLY | HOST_ONLY) != 0;
        assert!(svm.enabled.get() || !guest, "{value:#X} is reserved while EFER.SVME is clear");
        mock.write(address, svm.effective(value))?;
        svm.selects.borrow_mut().insert(address.get(), value);
        Ok(())
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.0.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.0.update(update)
    }
}

/// Expected counts and reports, from the events that were fed.
#[derive(Default)]
struct Guests {
    context: String,
    counted: [Cell<u64>; 4],
    told: [Cell<u64>; 4],
    /// Access, from 1, just before which every running counter overflows, and the number of accesses until the
    /// interrupt comes.
    plan: Cell<Option<(u32, u32)>>,
    accesses: Accesses,
    swallow: Cell<bool>,
}

impl World<64> for Guests {
    type Plan = (u32, u32);

    fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    fn plan(&self) -> Option<(u32, u32)> {
        self.plan.get()
    }

    fn disturb(&self, mock: &Mock<'_>, (at, late): (u32, u32), access: u32) {
        if access == at {
            self.overflow_all(mock, EVENTS.map(|event| (event, 1)), late);
        }
    }

    fn pass(&self, mock: &Mock<'_>, event: usize, count: u64) -> (u64, bool) {
        let (number, unit_mask) = KINDS[kind(event)];
        let key = EventKey::general(number.into(), unit_mask);
        let runs = mock.with_pmu(|pmu| pmu.running().any(|running| running.key == key));
        let mut feed = happened(kind(event), count);
        let advanced = mock.pass(&mut feed);
        let privilege = pmu_virt::Privilege::User;
        let left = feed.count(fed_events().find(key).unwrap(), privilege);
        if runs {
            self.counted[event].set(self.counted[event].get() + count - left);
        }
        (left, advanced.pmi)
    }
}

impl Guests {
    /// Lets the rest of the plan happen. Returns whether there was any.
    fn end(&self, mock: &Mock<'_>) -> bool {
        let Some((at, _)) = self.plan.take() else { return false };
        self.accesses.deliver_late(mock);
        let left = at > self.accesses.made();
        if left {
            self.overflow_all(mock, EVENTS.map(|event| (event, 1)), 0);
        }
        left
    }

    fn claimed(&self, claim: Claim) {
        let swallowed = claim == Claim::NotOurs && self.swallow.take();
        assert!(claim != Claim::NotOurs || swallowed, "{}: no handler claims it", self.context);
        self.swallow.set(claim == Claim::OursAndMore);
    }

    fn told(&self, overflow: EventOverflow) {
        let (event, context) = (overflow.tag as usize, &self.context);
        self.told[event].set(self.told[event].get() + 1);
        let most = self.counted[event].get() / PERIOD;
        assert!(event != COUNTED && self.told[event].get() <= most, "{context}: {overflow:?}");
    }

    /// Asserts that totals and reports are those of the counted events.
    #[track_caller]
    fn assert_exact<M: RegisterBackend, P: pmu_core::Platform>(
        &self,
        counters: &CounterSession<'_, Events<'_>, (M, P)>,
        ids: [EventId; 4],
    ) {
        for event in EVENTS {
            let (context, counted) = (&self.context, self.counted[event].get());
            let total = counters.read(ids[event], 0).unwrap().value;
            assert_eq!(total, counted, "{context}: {event}");
            let expected = if event == COUNTED { 0 } else { counted / PERIOD };
            assert_eq!(self.told[event].get(), expected, "{context}: {event}");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    SwitchOn,
    SwitchOff,
    /// The event of guests stops and starts, while virtualization is on.
    Restart,
}

/// Switches virtualization on, or off, or starts the event of guests again. Returns whether the plan, or the fault,
/// went beyond the operation's end.
fn switch(processor: &Processor, operation: Operation, plan: (u32, u32), fault: Fault) -> bool {
    let context = format!("{processor:?}, {operation:?}, {plan:?}, {fault:?}");
    let on = operation != Operation::SwitchOff;
    let world = Guests { context, ..Guests::default() };
    let context = &world.context;
    let (memory, table, svm) = (Memory::new(), Table::new(), Svm::of(processor));
    let stays = matches!(fault, Fault::From(_));
    let handler = |mock: &Mock<'_>| {
        let registers = Registers(mock, &svm);
        let source = Events::new(&processor.unit, &table);
        let in_guest = svm.in_guest.get();
        if in_guest {
            svm.switch((&source, &memory), mock, false);
        }
        match service(&source, &(&registers, mock), &memory, |overflow| world.told(*overflow)) {
            Ok(serviced) => world.claimed(serviced.claim),
            Err(fault) => assert!(stays, "{}: {fault:?}", world.context),
        }
        if in_guest {
            svm.switch((&source, &memory), mock, true);
        }
    };
    let before_access = |mock: &Mock<'_>| world.step(mock);
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    mock.on_access(&before_access);
    let registers = Registers(&mock, &svm);
    let source = Events::new(&processor.unit, &table);
    let mut counters =
        CounterSession::take(source, &processor.unit, CounterSet::ALL, (registers, &mock), &memory)
            .unwrap();
    let sampling = |event: usize| raw(kind(event)).every(PERIOD).with_total();
    let events = [
        sampling(IN_GUESTS).in_guests(),
        sampling(OUTSIDE).outside_guests(),
        raw(kind(COUNTED)).outside_guests(),
        sampling(EVERYWHERE),
    ];
    let ids = EVENTS.map(|event| {
        let event = events[event].tagged(event as u64);
        counters.open(&processor.unit, &[event]).unwrap()
    });
    ids.into_iter().for_each(|id| counters.enable(id, 0).unwrap());
    // Every event is one short of its overflow; that of guests, where there were guests.
    svm.enabled.set(true);
    counters.set_virtualization(true).unwrap();
    svm.switch((&source, &memory), &mock, true);
    world.happen(&mock, IN_GUESTS, PERIOD - 1);
    svm.switch((&source, &memory), &mock, false);
    world.happen(&mock, OUTSIDE, PERIOD - 1);
    world.happen(&mock, EVERYWHERE, PERIOD - 1);
    let counter = counters.counter_of(ids[COUNTED]).unwrap();
    let value = mock.with_pmu(|pmu| pmu.state()).general()[usize::from(counter.number())];
    world.happen(&mock, COUNTED, processor.unit.counter(counter).unwrap().mask() - value);
    if operation == Operation::SwitchOn {
        counters.set_virtualization(false).unwrap();
        svm.enabled.set(false);
    }

    world.plan.set(Some(plan));
    svm.enabled.set(true);
    mock.clear();
    mock.inject(fault);
    let outcome = match operation {
        Operation::Restart => {
            let stopped = counters.disable(ids[IN_GUESTS], 0);
            stopped.and_then(|()| counters.enable(ids[IN_GUESTS], 0)).reason()
        }
        _ => counters.set_virtualization(on),
    };
    svm.enabled.set(on || outcome.is_err());
    let made = mock.accesses().total();
    mock.inject(Fault::None);
    let left = world.end(&mock);
    let beyond = match fault {
        Fault::At(access) | Fault::From(access) => access > made,
        _ => left,
    };
    if let Err(error) = outcome {
        // A start that failed was undone.
        let undone = operation == Operation::Restart && matches!(error, CounterError::Unchanged(_));
        let faulted = undone || matches!(error, CounterError::StateUnknown(_));
        assert!(stays && faulted, "{context}: {error:?}");
        // An event whose register does not answer does not run; its counter is given back all the same.
        for event in EVENTS {
            let runs = counters.is_enabled(ids[event]);
            let told = world.told[event].get();
            world.happen(&mock, event, 2 * PERIOD);
            assert!(runs || world.told[event].get() == told, "{context}: {event}");
        }
    } else if !stays {
        world.assert_exact(&counters, ids);
        // In a guest, if virtualization is on: the event of guests is reported at its next occurrence.
        svm.switch((&source, &memory), &mock, true);
        EVENTS.into_iter().for_each(|event| world.happen(&mock, event, 3 * PERIOD));
        world.assert_exact(&counters, ids);
        let in_guests = PERIOD - 1 + if on { 3 * PERIOD } else { 0 };
        assert_eq!(world.counted[IN_GUESTS].get(), in_guests, "{context}");
        svm.switch((&source, &memory), &mock, false);
        EVENTS.into_iter().for_each(|event| world.happen(&mock, event, 3 * PERIOD));
        world.assert_exact(&counters, ids);
        assert_eq!(world.counted[IN_GUESTS].get(), in_guests, "{context}");
    }
    counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    assert!(svm.selects.borrow().values().all(|select| *select == 0), "{context}");
    beyond
}

fn hosts() -> impl Iterator<Item = Processor> {
    let amd = [
        AmdConfiguration::LEGACY,
        AmdConfiguration::CORE_EXTENSION,
        AmdConfiguration::perf_mon_v2(6),
    ];
    let amd = amd.map(|mut amd| {
        // CPUID declares SVM.
        amd.guest_host = true;
        Configuration::Amd(amd)
    });
    let intel = [2, 3, 4, 6].map(|version| IntelConfiguration::new(version, 4, 3));
    let all = amd.into_iter().chain(intel.map(Configuration::Intel));
    all.map(|host| Processor::new(host, false, Deviations::NONE))
}

#[test]
fn an_interrupt_while_virtualization_is_switched_loses_nothing() {
    for processor in hosts() {
        for operation in [Operation::SwitchOn, Operation::SwitchOff, Operation::Restart] {
            for late in 0..4 {
                (1..).find(|at| switch(&processor, operation, (*at, late), Fault::None));
            }
        }
    }
}

#[test]
fn an_interrupt_and_a_fault_while_virtualization_is_switched_leave_nothing_half() {
    for processor in hosts() {
        for operation in [Operation::SwitchOn, Operation::SwitchOff, Operation::Restart] {
            for fault in [Fault::At as fn(u32) -> Fault, Fault::From] {
                for at in 1..12 {
                    (1..).find(|access| switch(&processor, operation, (at, 0), fault(*access)));
                }
            }
        }
    }
}
