//! Any event as a profile source: cycles on every processor that has counters, and raw events.

use core::cell::RefCell;

use pmu::Machine;
use pmu_core::interval::IntervalLimits;
use pmu_core::memory::EventTable;
use pmu_core::profile::{
    AddedSlot, AddedSource, AddedSources, InterfaceError, KProfileSource, Overflow, ProfileSource,
    Session,
};
use pmu_core::registers::EventSelect;
use pmu_core::{CounterSet, Event, EventSource, Events, GenericEvent};
use pmu_tests::deviations::snapshot;
use pmu_tests::intel_processor;
use pmu_tests::opened::{self, Memory, Mock, Table, processors};
use pmu_tests::reports::{Report, service_reports};
use pmu_virt::configuration::Configuration;
use pmu_virt::mock::Deviations;
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

const PERIOD: u64 = 10_007;

fn room<const N: usize>() -> &'static AddedSources {
    Box::leak(Box::new(AddedSources::<[AddedSlot; N]>::new()))
}

/// Cycles by the manuals' numbers: SDM's UnHalted Core Cycles, and PMCx076 of AMD's references.
fn cycles(configuration: Configuration) -> EventKey {
    match configuration {
        Configuration::Intel(_) => EventKey::general(0x3C, 0),
        _ => EventKey::general(0x76, 0),
    }
}

/// Runs a test on the sources of a machine with that event, and returns the sources that were reported.
fn reported(
    configuration: Configuration,
    machine: &Machine,
    added: &'static AddedSources,
    key: EventKey,
    source: KProfileSource,
    happens: &[u64],
) -> Vec<(KProfileSource, u64)> {
    let this = snapshot(configuration, Deviations::NONE);
    let (table, memory, told) = (Table::new(), Memory::new(), RefCell::new(vec![]));
    let both = Events::new(machine, &table).adding(added);
    let events = FedEvents::new(&[key]).unwrap();
    let mock = Mock::strict(VirtualPmu::new(configuration, events).unwrap());
    let handler = |mock: &Mock<'_>| {
        let report = |report| match report {
            Report::Source(Overflow { source, events, .. }) => {
                told.borrow_mut().push((source, events))
            }
            Report::Event(event) => panic!("{event:?}"),
        };
        service_reports(&both, mock, &memory, report).unwrap();
    };
    mock.on_interrupt(&handler);
    let mut session = Session::take(both, &this, CounterSet::ALL, &mock, &memory).unwrap();
    assert!(session.query(source).is_supported(), "{configuration:?}");
    session.start(source).unwrap();
    for count in happens {
        let mut feed = Feed::new(&events);
        feed.add(events.find(key).unwrap(), Privilege::Kernel, *count).unwrap();
        mock.advance(&mut feed);
    }
    session.stop(source).unwrap();
    session.shut_down().unwrap();
    assert_eq!(opened::running(&mock), CounterSet::NONE);
    told.into_inner()
}

/// AMD's documented table has no cycles, and Hygon's counters have no table.
#[test]
fn cycles_are_a_source_of_every_processor_with_counters() {
    for processor in processors(Deviations::NONE) {
        let configuration = processor.configuration;
        let machine = Machine::detect(&processor.snapshot);
        let added = room::<2>();
        let event = Event::generic(GenericEvent::Cycles).every(PERIOD);
        let source = added.add_event(&event).unwrap();
        let whole = Events::new(&machine, EventTable::none()).adding(added);
        assert!(whole.query(source).is_supported(), "{processor:?}");
        assert_eq!(u64::from(whole.query(source).interval), PERIOD);
        let happens = [PERIOD - 1, 1, PERIOD, 1];
        let told =
            reported(configuration, &machine, added, cycles(configuration), source, &happens);
        assert_eq!(told, [(source, PERIOD); 2], "{processor:?}");
    }
}

#[test]
fn a_raw_event_is_counted_only_at_its_privilege_level() {
    let configuration = processors(Deviations::NONE)[0].configuration;
    let machine = Machine::detect(&snapshot(configuration, Deviations::NONE));
    let (key, select) = (EventKey::general(0xD1, 2), EventSelect::from_bits(0x2D1));
    for (event, reports) in [(Event::raw(select), 1), (Event::raw(select).user_only(), 0)] {
        let added = room::<1>();
        let source = added.add_event(&event.every(PERIOD)).unwrap();
        let told = reported(configuration, &machine, added, key, source, &[PERIOD]);
        assert_eq!(told, vec![(source, PERIOD); reports]);
    }
}

#[test]
fn an_event_keeps_its_source_and_its_slot() {
    let added = room::<2>();
    let cycles = Event::generic(GenericEvent::Cycles);
    let source = added.add_event(&cycles.every(PERIOD)).unwrap();
    let again = cycles.every(2 * PERIOD).tagged(7).rotating();
    assert_eq!(added.add_event(&again), Ok(source));
    let machine = Machine::detect(&intel_processor(4, 4));
    let interval =
        || Events::new(&machine, EventTable::none()).adding(added).query(source).interval;
    assert_eq!(u64::from(interval()), 2 * PERIOD);
    // Of another privilege level it is another event.
    let user = cycles.user_only().every(PERIOD);
    let other = added.add_event(&user).unwrap();
    assert_ne!(other, source);
    let misses = Event::generic(GenericEvent::CacheMisses).every(PERIOD);
    assert_eq!(added.add_event(&misses), Err(InterfaceError::Full { room: 2 }));
    // Removed, an event's slot takes the event itself, or a source that is not copied.
    assert_eq!(added.remove(source).map(|of| of.row().source()), Some(source));
    assert_eq!(interval(), 0);
    assert_eq!(added.add_event(&misses), Err(InterfaceError::Full { room: 2 }));
    assert_eq!(added.add_event(&user), Ok(other), "the slot before it is free");
    assert_eq!(added.add_event(&cycles.every(PERIOD)), Ok(source));
    static STATIC: AddedSource = AddedSource::new(
        ProfileSource::new(0x25, "ProfileStatic", EventSelect::from_bits(0xD2)),
        CounterSet::GENERAL,
    );
    added.remove(source).unwrap();
    added.add(&STATIC).unwrap();
    assert_eq!(added.add_event(&cycles.every(PERIOD)), Err(InterfaceError::Full { room: 2 }));
}

#[test]
fn an_event_that_does_not_interrupt_or_too_often_is_refused() {
    let added = room::<2>();
    let cycles = Event::generic(GenericEvent::Cycles);
    assert_eq!(added.add_event(&cycles), Err(InterfaceError::NoPeriod));
    for period in [1, 4095, 1 << 31] {
        let refused = IntervalLimits::EVENTS.check(period).unwrap_err();
        let error = added.add_event(&cycles.every(period)).unwrap_err();
        assert_eq!(error, InterfaceError::Interval(refused));
        assert!(error.to_string().contains(&period.to_string()), "{error}");
    }
    assert_eq!(added.iter().count(), 0);
}

#[test]
fn a_source_of_an_event_that_a_processor_lacks_is_unsupported_there() {
    let added = room::<1>();
    // Version 1 of the leaf, with the bit of cycles set in EBX: the event is not available.
    let plain = intel_processor(1, 2);
    let without = pmu_core::x86::Snapshot::capture(move |leaf: u32, subleaf: u32| {
        let mut found = plain.leaf(leaf, subleaf);
        if leaf == 0x0A {
            found.ebx = 1;
        }
        found
    });
    let machine = Machine::detect(&without);
    let source = added.add_event(&Event::generic(GenericEvent::Cycles).every(PERIOD)).unwrap();
    let whole = Events::new(&machine, EventTable::none()).adding(added);
    assert!(!whole.query(source).is_supported());
    let refused = Err(InterfaceError::UnsupportedSource(source));
    assert_eq!(whole.set_interval(source, PERIOD), refused);
}
