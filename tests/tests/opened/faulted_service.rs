//! An interrupt whose registers do not answer: it does not come again forever, and its handler learns which counters
//! faulted.

use core::cell::RefCell;

use pmu_core::error::{CounterError, EventsError, ServiceError};
use pmu_core::interrupt::{EventOverflow, Serviced};
use pmu_core::registers::CounterId;
use pmu_core::{CounterSession, CounterSet, EventCount, EventId, EventStatus, Events, service};
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviation, Deviations, Fault};

const PERIOD: u64 = 0x1000;
/// The mask bit of the LVT entry (SDM vol. 3A, "Local Vector Table").
const MASKED: u32 = 1 << 16;

/// Processors with an overflow status, on platforms that mask the LVT entry on delivery, or do not, and on those where
/// unmasking raises an interrupt.
fn processors_with_status() -> Vec<Processor> {
    use Deviation::{MasksOnDelivery, RaisesOnUnmask};
    let platforms: [&[Deviation]; 4] =
        [&[], &[RaisesOnUnmask], &[MasksOnDelivery], &[RaisesOnUnmask, MasksOnDelivery]];
    let on = |platform: &[Deviation]| processors(Deviations::of(platform));
    let all = platforms.into_iter().flat_map(on);
    all.filter(|processor| processor.unit.global().is_some()).collect()
}

/// Three events on counters, whose handler keeps what `service` returned.
struct World<'p> {
    processor: &'p Processor,
    memory: Memory,
    table: Table,
    outcomes: RefCell<Vec<Result<Serviced, ServiceError>>>,
    reports: RefCell<Vec<EventOverflow>>,
}

impl<'p> World<'p> {
    fn new(processor: &'p Processor) -> Self {
        let (memory, table) = (Memory::new(), Table::new());
        Self { processor, memory, table, outcomes: RefCell::default(), reports: RefCell::default() }
    }

    fn handle(&self, mock: &Mock<'_>) {
        assert!(mock.interrupts() < 100, "{:?}: interrupts without end", self.processor);
        let source = Events::new(&self.processor.unit, &self.table);
        let told = |overflow| self.reports.borrow_mut().push(overflow);
        self.outcomes
            .borrow_mut()
            .push(service(&source, mock, &self.memory, |sample| told(*sample)));
    }

    /// Opens and starts events of the first kinds from 2 on.
    fn start<'w, 'm>(&'w self, mock: &'m Mock<'m>) -> (Opened<'w, 'm>, [EventId; 2]) {
        let mut counters = self.processor.take(mock, &self.memory, &self.table);
        let events = [2, 3].map(|kind| {
            let event = raw(kind).every(PERIOD).with_total().on(CounterSet::GENERAL);
            let id = counters.open(&self.processor.unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        });
        (counters, events)
    }
}

#[test]
fn a_status_that_can_be_neither_read_nor_cleared_does_not_interrupt_for_ever() {
    for processor in processors_with_status() {
        let global = processor.unit.global().unwrap();
        for register in [global.status, global.acknowledge] {
            let context = format!("{processor:?}, {register:?}");
            let (world, mock) = (World::new(&processor), processor.mock());
            let handler = |mock: &Mock<'_>| world.handle(mock);
            mock.on_interrupt(&handler);
            let (mut counters, events) = world.start(&mock);
            let on: CounterSet =
                events.map(|of| counters.counter_of(of).unwrap()).into_iter().collect();
            mock.inject(Fault::Register(register.get()));
            happen(&mock, 2, PERIOD);
            let outcomes = world.outcomes.take();
            assert!(!outcomes.is_empty() && outcomes.len() <= 3, "{context}: {outcomes:?}");
            let error = outcomes[0].unwrap_err();
            assert_eq!(error.fault.register, register.get(), "{context}");
            assert!(error.masked, "{context}");
            assert_eq!(error.counters, on, "{context}");
            assert_ne!(mock.performance_entry() & MASKED, 0, "{context}: the entry is not masked");
            // Other interrupts, and overflows, touch nothing.
            mock.clear();
            (0..3).for_each(|_| _ = mock.interrupt_from_elsewhere());
            happen(&mock, 3, 3 * PERIOD);
            assert_eq!(mock.accesses().total(), 0, "{context}");
            assert_eq!(world.outcomes.take().len(), 3, "{context}: masked");
            assert_ne!(mock.performance_entry() & MASKED, 0, "{context}");
            // Nothing is started that would not interrupt, also when the register answers again.
            mock.inject(Fault::None);
            for event in events {
                assert!(!counters.is_enabled(event), "{context}");
                let started = counters.enable(event, 1);
                assert_eq!(started.reason(), Err(CounterError::NoFreeCounter), "{context}");
                let started = counters.enable_if_free(event, 1);
                assert_eq!(started, Err(CounterError::NoFreeCounter), "{context}");
            }
            world.reports.take();
            counters.reprogram(|overflow| panic!("{context}: {overflow:?}")).unwrap();
            assert_eq!(mock.performance_entry() & MASKED, 0, "{context}: still masked");
            for event in events {
                counters.enable(event, 2).unwrap();
            }
            happen(&mock, 2, PERIOD);
            happen(&mock, 3, PERIOD);
            let told: Vec<EventId> = world.reports.take().iter().map(|of| of.event).collect();
            assert_eq!(told, events, "{context}");
            counters.shut_down().unwrap();
            assert_eq!(running(&mock), CounterSet::NONE, "{context}");
        }
    }
}

/// The interrupt that finds the status dead comes at any access of a start.
#[test]
fn an_event_that_starts_as_the_interrupt_is_masked_does_not_run() {
    for processor in processors_with_status() {
        let global = processor.unit.global().unwrap();
        for register in [global.status, global.acknowledge] {
            for access in 1..=4 {
                let context = format!("{processor:?}, {register:?}, access {access}");
                let (world, mock) = (World::new(&processor), processor.mock());
                let handler = |mock: &Mock<'_>| world.handle(mock);
                mock.on_interrupt(&handler);
                let (mut counters, [first, second]) = world.start(&mock);
                counters.disable(second, 0).unwrap();
                mock.inject(Fault::Register(register.get()));
                mock.interrupt_at(access);
                let started = counters.enable(second, 1);
                let masked = mock.performance_entry() & MASKED != 0;
                assert_eq!(counters.is_enabled(first), !masked, "{context}");
                assert_eq!(counters.is_enabled(second), !masked, "{context}: {started:?}");
                assert_eq!(started.is_ok(), !masked, "{context}: {started:?}");
                mock.inject(Fault::None);
                counters.shut_down().unwrap();
                assert_eq!(running(&mock), CounterSet::NONE, "{context}");
            }
        }
    }
}

/// Each register of the counters, and of all of them.
#[test]
fn no_register_that_stays_faulted_gives_interrupts_without_end() {
    for processor in processors_with_status() {
        let global = processor.unit.global().unwrap();
        let of_counters = processor.unit.iter().take(3).flat_map(|(_, counter)| {
            [counter.control().register().get(), counter.value_register().get()]
        });
        let registers = of_counters
            .chain([global.control, global.status, global.acknowledge].map(|of| of.get()));
        for register in registers {
            let (world, mock) = (World::new(&processor), processor.mock());
            let handler = |mock: &Mock<'_>| world.handle(mock);
            mock.on_interrupt(&handler);
            let (mut counters, events) = world.start(&mock);
            let before = events.map(|event| counters.counter_of(event).unwrap());
            mock.inject(Fault::Register(register));
            happen(&mock, 2, PERIOD);
            happen(&mock, 3, PERIOD);
            let context = format!("{processor:?}, {register:#X}");
            assert!(world.outcomes.borrow().len() <= 4, "{context}");
            // The errors name the counters that faulted.
            let outcomes = world.outcomes.take().into_iter();
            let named = outcomes
                .filter_map(Result::err)
                .fold(CounterSet::NONE, |all, error| all | error.counters);
            let expected: CounterSet = events
                .into_iter()
                .zip(before)
                .filter_map(|(event, on)| (!counters.is_enabled(event)).then_some(on))
                .collect();
            assert_eq!(named, expected, "{context}");
            mock.inject(Fault::None);
            counters.shut_down().unwrap();
            assert_eq!(running(&mock), CounterSet::NONE, "{context}");
        }
    }
}

/// Faults the register of an event's counter, so that its next overflow cannot load it again. Returns what the handler
/// was told.
fn fault_counter(world: &World<'_>, mock: &Mock<'_>, on: CounterId, kind: usize) -> ServiceError {
    let value = world.processor.unit.counter(on).unwrap().value_register().get();
    world.outcomes.take();
    mock.inject(Fault::Register(value));
    happen(mock, kind, PERIOD);
    mock.inject(Fault::None);
    let outcomes = world.outcomes.take();
    let context = format!("{:?}: {outcomes:?}", world.processor);
    assert_eq!(outcomes.len(), 1, "{context}");
    let error = outcomes[0].unwrap_err();
    assert_eq!((error.fault.register, error.masked), (value, false), "{context}");
    error
}

#[test]
fn an_event_whose_counter_faulted_gains_no_running_time_and_is_not_read() {
    for processor in processors(Deviations::NONE) {
        let context = format!("{processor:?}");
        let (world, mock) = (World::new(&processor), processor.mock());
        let handler = |mock: &Mock<'_>| world.handle(mock);
        mock.on_interrupt(&handler);
        let (mut counters, [lost, other]) = world.start(&mock);
        assert_eq!(counters.read(lost, 10).unwrap().running, 10, "{context}");
        let on = counters.counter_of(lost).unwrap();
        let error = fault_counter(&world, &mock, on, 2);
        assert_eq!(error.counters, on.only(), "{context}");
        assert_eq!(world.memory.counter_of(lost), None, "{context}");
        assert_eq!(world.memory.counter_of(other), counters.counter_of(other), "{context}");
        // Its times are not seen until it is started again, on another counter.
        for now in [20, 30] {
            let read = counters.read(lost, now);
            assert_eq!(read, Err(CounterError::CounterLost(lost)), "{context}");
        }
        assert_eq!(counters.read(other, 30).unwrap().running, 30, "{context}");
        counters.enable(lost, 40).unwrap();
        assert_ne!(counters.counter_of(lost), Some(on), "{context}");
        let count = counters.read(lost, 45).unwrap();
        assert_eq!((count.enabled, count.running), (35, 15), "{context}");
        counters.shut_down().unwrap();
    }
}

#[test]
fn a_group_falls_out_with_its_event_and_takes_its_turn_again() {
    for processor in processors(Deviations::NONE) {
        for reprograms in [true, false] {
            let context = format!("{processor:?}, {reprograms}");
            let (world, mock) = (World::new(&processor), processor.mock());
            let handler = |mock: &Mock<'_>| world.handle(mock);
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &world.memory, &world.table);
            let unit = &processor.unit;
            let event =
                |kind| raw(kind).every(PERIOD).with_total().rotating().on(CounterSet::GENERAL);
            let group = counters.open(unit, &[event(2), event(3)]).unwrap();
            let alone = counters.open(unit, &[event(4)]).unwrap();
            counters.enable(group, 0).unwrap();
            counters.enable(alone, 0).unwrap();
            let members: Vec<EventId> = counters.group_events(group).collect();
            let on: Vec<CounterId> =
                members.iter().map(|of| counters.counter_of(*of).unwrap()).collect();
            counters.rotate(10).unwrap();
            let error = fault_counter(&world, &mock, on[1], 3);
            assert_eq!(error.counters, on[0].only() | on[1].only(), "{context}");
            world.reports.take();
            // The rest does not run on; what is not of the group does.
            assert!(members.iter().all(|of| !counters.is_enabled(*of)), "{context}");
            (2..5).for_each(|kind| happen(&mock, kind, PERIOD));
            let told: Vec<EventId> = world.reports.take().iter().map(|of| of.event).collect();
            assert_eq!(told, [alone], "{context}");
            let mut counts = [EventCount::default(); 2];
            let lost = counters.read_group(group, 20, &mut counts);
            let reason = CounterError::CounterLost(members[0]);
            assert_eq!(lost, Err(EventsError { events: 1 << 0, reason }), "{context}");
            if reprograms {
                assert_eq!(counters.reprogram(|o| panic!("{o:?}")), Ok(CounterSet::NONE));
            }
            counters.rotate(30).unwrap();
            // Without it on other counters, perhaps that of the event that is alone.
            let runs = members.iter().all(|of| counters.counter_of(*of).is_some());
            assert!(runs, "{context}");
            counters.read_group(group, 35, &mut counts).unwrap();
            let times = counts.map(|count| (count.enabled, count.running));
            assert_eq!(times, [(35, 15); 2], "{context}");
            (2..4).for_each(|kind| happen(&mock, kind, PERIOD));
            let told: Vec<EventId> = world.reports.take().iter().map(|of| of.event).collect();
            assert_eq!(told, members, "{context}");
            counters.shut_down().unwrap();
            assert_eq!(running(&mock), CounterSet::NONE, "{context}");
        }
    }
}

/// The control register faults as the interrupt restarts the counters.
fn fail_the_restart(world: &World<'_>, mock: &Mock<'_>) {
    let control = world.processor.unit.global().unwrap().control.get();
    mock.inject(Fault::Register(control));
    happen(mock, 2, PERIOD);
    mock.inject(Fault::None);
    assert!(world.outcomes.take()[0].is_err(), "{:?}", world.processor);
}

/// Processors that write the control register in each interrupt.
fn processors_that_restart() -> Vec<Processor> {
    let all = processors_with_status().into_iter();
    all.filter(|processor| {
        let (world, mock) = (World::new(processor), processor.mock());
        let handler = |mock: &Mock<'_>| world.handle(mock);
        mock.on_interrupt(&handler);
        let (mut counters, _) = world.start(&mock);
        let control = processor.unit.global().unwrap().control.get();
        mock.inject(Fault::Register(control));
        happen(&mock, 2, PERIOD);
        mock.inject(Fault::None);
        counters.shut_down().unwrap();
        world.outcomes.take()[0].is_err()
    })
    .collect()
}

#[test]
fn a_failed_restart_does_not_outlast_reprogram() {
    let mut tried = 0;
    for processor in processors_that_restart() {
        let context = format!("{processor:?}");
        let (world, mock) = (World::new(&processor), processor.mock());
        let handler = |mock: &Mock<'_>| world.handle(mock);
        mock.on_interrupt(&handler);
        let (mut counters, events) = world.start(&mock);
        let among = CounterSet::GENERAL.without(events_on(&counters, &events));
        let beside = counters.open(&processor.unit, &[raw(4).on(among)]).unwrap();
        fail_the_restart(&world, &mock);
        counters.reprogram(|overflow| panic!("{context}: {overflow:?}")).unwrap();
        // Before anything else is started.
        counters.enable_if_free(beside, 0).unwrap();
        happen(&mock, 4, 7);
        assert_eq!(total(&counters, beside), 7, "{context}");
        counters.shut_down().unwrap();
        tried += 1;
    }
    assert!(tried >= 4, "{tried}");
}

/// The counters of these events.
fn events_on(counters: &Opened<'_, '_>, events: &[EventId]) -> CounterSet {
    events.iter().filter_map(|event| counters.counter_of(*event)).collect()
}

/// The interrupt comes at any access of a start, the first included, and its restart faults.
#[test]
fn an_event_that_starts_as_a_restart_fails_counts_or_the_start_says_so() {
    for processor in processors_that_restart() {
        let control = processor.unit.global().unwrap().control.get();
        for access in 1..=4 {
            for if_free in [false, true] {
                let context = format!("{processor:?}, access {access}, {if_free}");
                let (world, mock) = (World::new(&processor), processor.mock());
                let handler = |mock: &Mock<'_>| {
                    mock.inject(Fault::Register(control));
                    world.handle(mock);
                    mock.inject(Fault::None);
                };
                mock.on_interrupt(&handler);
                let (mut counters, [_, second]) = world.start(&mock);
                counters.disable(second, 0).unwrap();
                mock.interrupt_at(access);
                let started = match if_free {
                    false => counters.enable(second, 1).reason(),
                    true => counters.enable_if_free(second, 1),
                };
                mock.interrupt_at(0); // No more.
                let no_more = |_: &Mock<'_>| {};
                mock.on_interrupt(&no_more);
                let before = counters.read(second, 2);
                happen(&mock, 3, 9);
                match started {
                    Ok(()) if counters.is_enabled(second) => {
                        let count = counters.read(second, 2).unwrap().value;
                        assert_eq!(count, before.unwrap().value + 9, "{context}");
                    }
                    Ok(()) => assert!(before.is_err(), "{context}"),
                    Err(error) => assert!(!counters.is_enabled(second), "{context}: {error}"),
                }
                counters.shut_down().unwrap();
                assert_eq!(running(&mock), CounterSet::NONE, "{context}");
            }
        }
    }
}

#[test]
fn a_reprogram_that_cannot_enable_leaves_that_to_the_next_start() {
    for processor in processors_with_status() {
        let context = format!("{processor:?}");
        let control = processor.unit.global().unwrap().control.get();
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let event = counters.open(&processor.unit, &[raw(2)]).unwrap();
        counters.enable(event, 0).unwrap();
        mock.lose_registers();
        let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
        mock.inject(Fault::Register(control));
        let done = counters.reprogram(|_| ());
        mock.inject(Fault::None);
        assert!(matches!(done, Err(CounterError::StateUnknown(_))), "{context}: {done:?}");
        assert!(!counters.is_enabled(event), "{context}");
        counters.enable(event, 1).unwrap();
        let before = total(&counters, event);
        happen(&mock, 2, 9);
        assert_eq!(total(&counters, event), before + 9, "{context}");
    }
}

#[test]
fn a_start_that_a_failed_restart_stopped_keeps_the_rest_of_its_period() {
    let mut refused = 0;
    for processor in processors_that_restart() {
        let control = processor.unit.global().unwrap().control.get();
        for access in 1..=6 {
            let (world, mock) = (World::new(&processor), processor.mock());
            let fails = core::cell::Cell::new(false);
            let handler = |mock: &Mock<'_>| {
                if fails.get() {
                    mock.inject(Fault::Register(control));
                }
                world.handle(mock);
                mock.inject(Fault::None);
            };
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &world.memory, &world.table);
            let event = raw(2).every(PERIOD).with_total();
            let event = counters.open(&processor.unit, &[event]).unwrap();
            counters.enable_if_free(event, 0).unwrap();
            happen(&mock, 2, PERIOD - 0x100);
            counters.disable(event, 1).unwrap();
            fails.set(true);
            mock.interrupt_at(access);
            let started = counters.enable_if_free(event, 2);
            mock.interrupt_at(0);
            fails.set(false);
            if started.is_ok() {
                continue;
            }
            refused += 1;
            counters.reprogram(|_| ()).unwrap();
            counters.enable(event, 3).unwrap();
            happen(&mock, 2, 0x100);
            assert_eq!(world.reports.take().len(), 1, "{processor:?}, access {access}");
        }
    }
    assert!(refused > 0);
}

/// A counter faults under a rotating event, alone or with its group, and a task disables the event: it takes no turn.
#[test]
fn an_event_that_is_disabled_after_its_counter_faulted_stays_so_until_it_is_enabled() {
    for processor in processors(Deviations::NONE) {
        for is_grouped in [false, true] {
            let context = format!("{processor:?}, {is_grouped}");
            let (world, mock) = (World::new(&processor), processor.mock());
            let handler = |mock: &Mock<'_>| world.handle(mock);
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &world.memory, &world.table);
            let unit = &processor.unit;
            let event =
                |kind| raw(kind).every(PERIOD).with_total().rotating().on(CounterSet::GENERAL);
            let events: Vec<EventId> = if is_grouped {
                let group = counters.open(unit, &[event(2), event(3)]).unwrap();
                counters.group_events(group).collect()
            } else {
                vec![counters.open(unit, &[event(2)]).unwrap()]
            };
            counters.enable(events[0], 0).unwrap();
            let on = counters.counter_of(events[0]).unwrap();
            fault_counter(&world, &mock, on, 2);
            world.reports.take();
            assert_eq!(counters.disable(events[0], 10), Ok(()), "{context}");
            let status = |counters: &CounterSession<'_, _, _>| {
                events.iter().map(|of| counters.event_status(*of).unwrap()).collect::<Vec<_>>()
            };
            assert!(status(&counters).iter().all(|of| *of == EventStatus::Off), "{context}");
            counters.rotate(20).unwrap();
            assert!(status(&counters).iter().all(|of| *of == EventStatus::Off), "{context}");
            (2..4).for_each(|kind| happen(&mock, kind, PERIOD));
            assert_eq!(world.reports.take(), [], "{context}");
            counters.reprogram(|o| panic!("{o:?}")).unwrap();
            counters.enable(events[0], 30).unwrap();
            (2..4).for_each(|kind| happen(&mock, kind, PERIOD));
            let told: Vec<EventId> = world.reports.take().iter().map(|of| of.event).collect();
            assert_eq!(told, events, "{context}");
            counters.shut_down().unwrap();
        }
    }
}
