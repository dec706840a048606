//! Refusals of opened events, each with its error, and without an effect.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::memory::{CounterMemory, EventTable};
use pmu_core::profile::Session;
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::thread::ThreadEvent;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, Event, EventId, Events, GenericEvent};
use pmu_intel::Emon;
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_tests::{FakePlatform, RegisterFile};
use pmu_virt::configuration::{Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::Deviations;

fn general(number: u8) -> CounterSet {
    CounterId::general(number).unwrap().only()
}

#[test]
fn events_that_the_processor_lacks_are_refused_by_name_bits_counter_and_period() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        mock.clear();
        let unit = &processor.unit;
        let mut refused = |event: Event, error| {
            let refused = counters.open(unit, &[event]).reason();
            assert_eq!(refused, Err(error), "{processor:?}: {event:?}");
        };
        // Bits of running and interrupting, of pin control, and reserved ones (SDM vol. 3B, "Layout of
        // IA32_PERFEVTSELx MSRs"; APM vol. 2, "Core Performance Event-Select Register").
        for bit in [19, 20, 22, 37, 48, 63] {
            let select = EventSelect::from_bits(0xC0 | 1 << bit);
            refused(Event::raw(select), CounterError::IllegalBits(1 << bit));
        }
        let none = CounterError::NoCounterForEvent;
        refused(raw(0).on(CounterSet::NONE), none);
        refused(raw(0).on(CounterSet::from_bits(1 << 15)), none);
        refused(raw(2).on(CounterSet::fixed(1 << 6)), none);
        refused(
            raw(0).every(EventTable::DEFAULT_MIN_PERIOD - 1),
            CounterError::Period(EventTable::DEFAULT_MIN_PERIOD - 1),
        );
        refused(raw(0).every(1), CounterError::Period(1));
        refused(raw(0).every(1 << 63), CounterError::Period(1 << 63));
        if processor.fixed() {
            refused(Event::raw(EventSelect::from_bits(0x0500)), none);
        }
        match processor.configuration {
            // From version 2 on, the global control register confines them.
            Configuration::Intel(intel) if intel.version >= 2 => {}
            Configuration::Intel(_) => {
                refused(raw(0).in_guests(), CounterError::GuestModeUnsupported);
                refused(raw(0).outside_guests(), CounterError::GuestModeUnsupported);
            }
            _ => refused(
                Event::raw(EventSelect::from_bits(0xC0 | 1 << 40)),
                CounterError::IllegalBits(1 << 40),
            ),
        }
        assert_eq!(mock.accesses().total(), 0);
        counters.shut_down().unwrap();
    }
}

#[test]
fn named_events_that_cpuid_denies_are_unsupported() {
    // Leaf 0x0A, EBX: the processor has instructions alone.
    let configuration = IntelConfiguration::new(2, 4, 0).with(|intel| intel.events = 0b10);
    let processor = Processor::intel(configuration);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    for name in GenericEvent::ALL {
        let found = counters.open(&processor.unit, &[Event::generic(name)]).map(|_| ());
        let there = name == GenericEvent::Instructions;
        assert_eq!(processor.unit.generic(name).is_some(), there);
        assert_eq!(
            found.reason(),
            if there { Ok(()) } else { Err(CounterError::Unsupported(name)) }
        );
    }
}

#[test]
fn operations_on_events_in_another_state_are_refused_or_change_nothing() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let (unit, table) = (&processor.unit, &table as &EventTable);
        let id = counters.open(unit, &[raw(2).every(0x1000)]).unwrap();
        let counted = counters.open(unit, &[raw(3)]).unwrap();
        mock.clear();
        assert_eq!(counters.disable(id, 0), Ok(()));
        assert_eq!(mock.accesses().total(), 0);
        counters.enable(id, 0).unwrap();
        mock.clear();
        assert_eq!(counters.enable(id, 0), Ok(()));
        let none = CounterError::NoSuchEvent;
        assert_eq!(counters.read(id, 0), Err(CounterError::NoTotal(id)));
        assert_eq!(table.set_period(counted, 0x1000), Err(CounterError::NoPeriod(counted)));
        assert_eq!(table.set_period(id, 0xFFF), Err(CounterError::Period(0xFFF)));
        table.set_min_period(1);
        table.set_period(id, 1).unwrap();
        assert_eq!(table.set_period(id, 0), Err(CounterError::Period(0)));
        assert_eq!(mock.accesses().total(), 0);
        counters.disable(id, 0).unwrap();
        counters.close(id, 0).unwrap();
        for event in [id, EventId::clone(&id)] {
            assert_eq!(counters.enable(event, 0).reason(), Err(none(event)));
            assert_eq!(counters.disable(event, 0).reason(), Err(none(event)));
            assert_eq!(counters.read(event, 0), Err(none(event)));
            assert_eq!(counters.close(event, 0).reason(), Err(none(event)));
            assert_eq!(table.set_period(event, 0x1000), Err(none(event)));
            let mut events = [ThreadEvent::Opened(event)];
            let out = counters.switch_out(&mut events, 0, |o| panic!("{o:?}"));
            let error = EventsError { events: 1, reason: none(event) };
            assert_eq!((out, events), (Err(error), [ThreadEvent::Unused]));
        }
    }
}

#[test]
fn more_events_than_counters_find_no_free_one_and_more_than_places_no_place() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let own = counters.counters().usable & CounterSet::GENERAL;
        let mut started = 0;
        let last = loop {
            let id = counters.open(&processor.unit, &[raw(2)]).unwrap();
            mock.clear();
            match counters.enable(id, 0) {
                Ok(()) => started += 1,
                Err(error) => {
                    assert_eq!(error.reason, CounterError::NoFreeCounter);
                    break id;
                }
            }
        };
        assert_eq!((started, mock.accesses().total()), (own.len(), 0));
        assert!(!counters.is_enabled(last));
        for _ in started + 1..12 {
            counters.open(&processor.unit, &[raw(2)]).unwrap();
        }
        let full = CounterError::InsufficientMemory { needed: 13, lent: 12 };
        assert_eq!(counters.open(&processor.unit, &[raw(2)]).reason(), Err(full));
        counters.shut_down().unwrap();
    }
}

#[test]
fn a_table_has_one_owner() {
    let processor = plain(4);
    let (memory, other, table) = (Memory::new(), Memory::new(), Table::new());
    let (mock, second) = (processor.mock(), processor.mock());
    let counters = processor.take(&mock, &memory, &table);
    let source = Events::new(&processor.unit, &table);
    let take =
        |memory| CounterSession::take(source, &processor.unit, CounterSet::ALL, &second, memory);
    let in_use = Some(CounterError::MemoryInUse);
    assert_eq!(take(&memory).err(), in_use);
    assert_eq!(take(&other).err(), in_use, "the table");
    assert_eq!(second.accesses().total(), 0);
    let _lost = counters;
    // SAFETY: the session is not used any more.
    unsafe {
        (&memory as &CounterMemory).reclaim();
        (&table as &EventTable).reclaim();
    }
    let mut next = processor.take(&mock, &memory, &table);
    next.shut_down().unwrap();
}

/// A session that leaves events running is lost; the next one finds everything free.
#[test]
fn a_lost_session_is_reclaimed_with_its_events() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut lost = processor.take(&mock, &memory, &table);
        let id = lost.open(&processor.unit, &[raw(0).every(0x1000)]).unwrap();
        lost.enable(id, 0).unwrap();
        assert_eq!(running(&mock).len(), 1);
        // SAFETY: the session is not used any more.
        unsafe {
            (&memory as &CounterMemory).reclaim();
            (&table as &EventTable).reclaim();
        }
        let mut next = processor.take(&mock, &memory, &table);
        assert_eq!(running(&mock), CounterSet::NONE);
        assert_eq!(next.enable(id, 0).reason(), Err(CounterError::NoSuchEvent(id)));
        let again = next.open(&processor.unit, &[raw(0)]).unwrap();
        next.enable(again, 0).unwrap();
        happen(&mock, 0, 77);
        assert_eq!(total(&next, again), 77);
        next.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

/// The former handle of a table does nothing to its next owner's events.
#[test]
fn a_session_that_was_shut_down_does_not_reach_its_successors_events() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut former = processor.take(&mock, &memory, &table);
        former.shut_down().unwrap();
        let mut next = processor.take(&mock, &memory, &table);
        let running_id = next.open(&processor.unit, &[raw(0)]).unwrap();
        let waiting = next.open(&processor.unit, &[raw(0).rotating()]).unwrap();
        next.enable(running_id, 10).unwrap();
        mock.clear();
        let none = |event| CounterError::NoSuchEvent(event);
        for event in [running_id, waiting] {
            assert!(!former.is_enabled(event));
            assert_eq!(former.enable(event, 0).reason(), Err(none(event)));
            assert_eq!(former.disable(event, 0).reason(), Err(none(event)));
            assert_eq!(former.close(event, 0).reason(), Err(none(event)));
            assert_eq!(former.read(event, 9999), Err(none(event)));
            let mut events = [ThreadEvent::Opened(event)];
            let out = former.switch_out(&mut events, 9999, |o| panic!("{o:?}"));
            assert_eq!(out, Err(EventsError { events: 1, reason: none(event) }));
        }
        former.rotate(9999).unwrap();
        former.set_virtualization(true).unwrap();
        let opened = former.open(&processor.unit, &[raw(0)]);
        assert_eq!(opened.reason(), Err(CounterError::NoCounterForEvent));
        assert_eq!(former.give_back(general(0)), Err(CounterError::NotAvailable(general(0))));
        let more = former.take_more(&processor.unit, general(0));
        assert_eq!(more, Err(CounterError::NotAvailable(general(0))));
        assert_eq!(mock.accesses().total(), 0);
        happen(&mock, 0, 5);
        assert_eq!(next.read(running_id, 20).map(|c| (c.value, c.running)), Ok((5, 10)));
        next.shut_down().unwrap();
    }
}

/// A plain session has general counters only, and takes no others later.
#[test]
fn fixed_counters_are_no_use_without_events_to_open() {
    for version in [2, 4, 6] {
        let processor = plain(version);
        let (memory, mock) = (Memory::new(), processor.mock());
        let emon = Emon::detect(&processor.snapshot).unwrap();
        let session =
            Session::take(&emon, &processor.snapshot, CounterSet::GENERAL, &mock, &memory);
        let mut session = session.unwrap();
        let fixed = CounterSet::fixed(1);
        mock.clear();
        let more = session.counters_mut().take_more(&processor.unit, fixed);
        assert_eq!(more, Err(CounterError::NotAvailable(fixed)));
        assert_eq!(mock.accesses().total(), 0);
        session.shut_down().unwrap();
    }
}

#[test]
fn counters_that_are_not_there_or_in_use_are_neither_taken_nor_given() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take_only(general(0) | general(1), &mock, &memory, &table);
        let (unit, not) = (&processor.unit, CounterError::NotAvailable);
        let beyond = CounterSet::from_bits(1 << 15);
        assert_eq!(counters.take_more(unit, beyond), Err(not(beyond)));
        assert_eq!(counters.take_more(unit, general(0)), Ok(CounterSet::NONE), "its own");
        let id = counters.open(unit, &[raw(2).on(general(1))]).unwrap();
        counters.enable(id, 0).unwrap();
        mock.clear();
        assert_eq!(counters.give_back(general(1)), Err(not(general(1))), "in use");
        assert_eq!(counters.give_back(general(3)), Err(not(general(3))), "not its own");
        let both = general(0) | general(1);
        assert_eq!(counters.give_back(both), Err(not(both)), "all");
        assert_eq!(mock.accesses().total(), 0);
        counters.disable(id, 0).unwrap();
        counters.give_back(general(1)).unwrap();
        assert_eq!(counters.give_back(general(0)), Err(not(general(0))), "the last");
        assert_eq!(counters.enable(id, 0).reason(), Err(CounterError::NoFreeCounter));
        counters.shut_down().unwrap();
    }
}

/// CPUID leaf 0x23 of an efficient core lacks unit mask 2: IA32_PERFEVTSELx bits 47:40.
#[test]
fn an_event_that_a_core_lacks_is_an_error_or_stands_still_before_anything_is_written() {
    let with =
        IntelConfiguration::new(6, 8, 4).with(|intel| intel.set(IntelFeature::UnitMask2, true));
    let (big, small) = (Processor::intel(with), Processor::intel(IntelConfiguration::new(6, 6, 3)));
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let (mock, other) = (big.mock(), small.mock());
    let select = EventSelect::from_bits(0xD0 | 0x12 << 40);
    let source = |table| Events::new(&big.unit, table);
    let mut on_big = big.take(&mock, &memories[0], &tables[0]);
    let table: &EventTable = &tables[1];
    let mut on_small =
        CounterSession::take(source(table), &small.unit, CounterSet::ALL, &other, &memories[1])
            .unwrap();
    let usable = on_small.counters().usable;
    assert_eq!(usable, small.unit.counters());
    other.clear();
    let illegal = CounterError::IllegalBits(0x12 << 40);
    assert_eq!(on_small.open(&small.unit, &[Event::raw(select)]).reason(), Err(illegal));
    let id = on_big.open(&big.unit, &[Event::raw(select)]).unwrap();
    let on_7 = on_big.open(&big.unit, &[raw(2).on(general(7))]).unwrap();
    let mut events = [ThreadEvent::Opened(id), ThreadEvent::Opened(on_7), ThreadEvent::Unused];
    on_big.enable(id, 0).unwrap();
    on_big.enable(on_7, 0).unwrap();
    on_big.switch_out(&mut events, 0, |o| panic!("{o:?}")).unwrap();
    // A thread brings them along: they stand still there.
    assert_eq!(on_small.switch_in(&small.unit, &mut events, 0), Ok(()));
    assert!(matches!(events[..2], [ThreadEvent::Opened(_), ThreadEvent::Opened(_)]));
    on_small.switch_out(&mut events, 0, |o| panic!("{o:?}")).unwrap();
    assert_eq!(other.accesses().total(), 0);
    on_big.switch_in(&big.unit, &mut events, 0).unwrap();
    assert!(matches!(events[..2], [ThreadEvent::Opened(_), ThreadEvent::Opened(_)]));
}

/// A fixed counter counts its own event, and refuses any other.
#[test]
fn an_event_is_not_put_on_a_fixed_counter_that_counts_another() {
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 3));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let instructions = Event::generic(GenericEvent::Instructions).on(CounterSet::FIXED);
    let first = counters.open(&processor.unit, &[instructions]).unwrap();
    counters.enable(first, 0).unwrap();
    assert_eq!(counters.counter_of(first), CounterId::fixed(0));
    let second = counters.open(&processor.unit, &[instructions]).unwrap();
    assert_eq!(counters.enable(second, 0).reason(), Err(CounterError::NoFreeCounter));
    let other = Event::raw(EventSelect::from_bits(0x412E)).on(CounterSet::FIXED);
    let refused = counters.open(&processor.unit, &[other]);
    assert_eq!(refused.reason(), Err(CounterError::NoCounterForEvent));
}

/// SDM vol. 3B, "Performance Monitoring and Intel TSX": IN_TXCP is counter 2's alone, and not for sampling.
#[test]
fn in_txcp_is_counter_2s() {
    let plain = Processor::intel(IntelConfiguration::new(4, 4, 0)).snapshot;
    let with_transactions = Snapshot::capture(|leaf: u32, subleaf: u32| {
        let mut answer = plain.leaf(leaf, subleaf);
        answer.ebx |= u32::from(leaf == 7 && subleaf == 0) << 11;
        answer.eax = if leaf == 0 { 0x0A } else { answer.eax };
        answer
    });
    let unit = pmu_intel::counters(&with_transactions);
    let select = EventSelect::from_bits(1 << 33 | 0xC0);
    assert_eq!(unit.illegal_bits(select), 0);
    assert_eq!(unit.counters_for(select), CounterSet::from_bits(0b100));
    let (registers, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let (memory, table) = (Memory::new(), Table::new());
    let source = Events::new(&unit, &table);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, (&registers, &platform), &memory)
            .unwrap();
    let sampled = counters.open(&unit, &[Event::raw(select).every(0x1000)]);
    assert_eq!(sampled.reason(), Err(CounterError::IllegalBits(1 << 33)));
    let id = counters.open(&unit, &[Event::raw(select)]).unwrap();
    counters.enable(id, 0).unwrap();
    assert_eq!(counters.counter_of(id), CounterId::general(2));
    assert_eq!(registers.get(0x188), 1 << 33 | 0x0053_00C0);
}

/// SDM vol. 3B, "Pre-defined Architectural Performance Events": without fixed counter 2, reference cycles are event
/// 0x3C, unit mask 1. Leaf 0x0A counts three fixed counters here, which have no width.
#[test]
fn reference_cycles_are_not_a_fixed_counters_that_is_not_there() {
    let processor = Snapshot::capture(|leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0730_0402, 0, 0, 3),
            _ => (0, 0, 0, 0),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    });
    let unit = pmu_intel::counters(&processor);
    assert_eq!(unit.counters(), CounterSet::from_bits(0b1111));
    let select = unit.generic(GenericEvent::ReferenceCycles).unwrap();
    assert_eq!(select.select_bits() & 0xFFFF, 0x013C);
}

/// An identity that the kernel kept means no event that came to its place later, whatever is asked.
#[test]
fn an_identity_of_a_closed_event_names_no_later_one() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let unit = &processor.unit;
        let first = counters.open(unit, &[raw(2)]).unwrap();
        counters.close(first, 0).unwrap();
        let second = counters.open(unit, &[raw(3)]).unwrap();
        assert_eq!(second, first, "its place");
        counters.enable(second, 0).unwrap();
        let gone = CounterError::NoSuchEvent(first);
        assert_eq!(counters.counter_of(first), None);
        assert!(!counters.is_enabled(first));
        assert_eq!(counters.read(first, 0), Err(gone));
        assert_eq!(counters.disable(first, 0).reason(), Err(gone));
        assert_eq!(counters.enable(first, 0).reason(), Err(gone));
        assert_eq!(counters.event_status(first), Err(gone));
        assert_eq!(counters.open_member(unit, first, &raw(4)).reason(), Err(gone));
        assert_eq!(table.opening(first), None);
        let mut thread = [ThreadEvent::Opened(first)];
        assert_eq!(counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).reason(), Err(gone));
        assert_eq!(counters.close(first, 0).reason(), Err(gone));
        happen(&mock, 3, 5);
        // Whatever is in the place; and the later one itself.
        assert_eq!(total(&counters, EventId::of_index(second.index().unwrap())), 5);
        assert_eq!(total(&counters, second), 5);
        assert_eq!(
            counters.group_events(second).map(|event| total(&counters, event)).sum::<u64>(),
            5
        );
    }
}
