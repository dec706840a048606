//! Counters that a facility has reserved for itself: refusals, periods, and acknowledgements.

use pmu_core::{CounterError, CounterId, CounterSet, OpenedEvents, service};
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};
use pmu_virt::{Configuration, IntelConfiguration, Read};

/// `IA32_PERF_GLOBAL_STATUS`, and the register that sets its bits.
const STATUS: u32 = 0x38E;
const STATUS_SET: u32 = 0x391;
/// `OvfBuffer`, a status bit of a facility.
const BUFFER: u64 = 1 << 62;

fn machines() -> Vec<Processor> {
    processors(Deviations::NONE)
}

fn general(processor: &Processor) -> Vec<CounterId> {
    (processor.unit.counters() & CounterSet::GENERAL).iter().collect()
}

/// Returns the errors of all operations on a counter that is not reserved.
fn refusals(session: &mut Opened<'_, '_>, counter: CounterId) -> [CounterError; 7] {
    let select = raw(2).select().unwrap();
    [
        session.load_reserved(counter, 100).unwrap_err(),
        session.start_reserved(counter, select, false).unwrap_err(),
        session.stop_reserved(counter).unwrap_err(),
        session.read_reserved(counter).unwrap_err(),
        session.pause_reserved(counter.only(), true).unwrap_err(),
        session.acknowledge_reserved(counter.only(), 0).unwrap_err(),
        session.release_reserved(counter).unwrap_err(),
    ]
}

#[test]
fn operations_on_a_counter_that_is_not_reserved_are_refused_and_access_nothing() {
    for processor in machines() {
        let (mock, memory, table) = (processor.mock(), Memory::new(), Table::new());
        let of_unit = general(&processor);
        let (other, only) = of_unit.split_last().unwrap();
        let only: CounterSet = only.iter().copied().collect();
        let mut session = processor.take_only(only, &mock, &memory, &table);
        let on = of_unit[0].only();
        let event = session.open_event(&processor.unit, &raw(2).on(on)).unwrap();
        session.start_event(event, 0).unwrap();
        let (reserved, select) = session.reserve(&processor.unit, &raw(3), only).unwrap();
        session.load_reserved(reserved, 1_000).unwrap();
        session.start_reserved(reserved, select, false).unwrap();
        let runs = running(&mock);
        mock.clear();
        let free = of_unit.iter().find(|of| only.contains(**of) && !runs.contains(**of));
        for counter in free.into_iter().chain([&of_unit[0], other]) {
            let refused = CounterError::NotAvailable(counter.only());
            assert_eq!(refusals(&mut session, *counter), [refused; 7], "{processor:?}");
            let both = reserved.only() | counter.only();
            assert_eq!(session.pause_reserved(both, true), Err(refused), "{processor:?}");
            assert_eq!(session.acknowledge_reserved(both, 0), Err(refused), "{processor:?}");
            // Only a free counter can be reserved again.
            if Some(counter) != free {
                assert_eq!(session.reserve_again(*counter, select), Err(refused), "{processor:?}");
            }
        }
        assert_eq!((mock.accesses().total(), running(&mock)), (0, runs), "{processor:?}");
        happen(&mock, 2, 7);
        assert_eq!(total(&session, event), 7, "{processor:?}");
        // A dropped window leaves the counters lent.
        drop(session.lend(0, |o| panic!("{o:?}")).unwrap());
        mock.clear();
        let lent = CounterError::NotAvailable(reserved.only());
        assert_eq!(refusals(&mut session, reserved), [lent; 7], "{processor:?}");
        assert_eq!(session.reserve_again(reserved, select), Err(lent), "{processor:?}");
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
    }
}

/// Half of the counter's range at most, or what a write of 32 bits with their sign can reach (SDM vol. 3B, "Full-Width
/// Writes to Performance Counter Registers").
#[test]
fn a_reserved_counter_is_loaded_for_each_period_that_its_writes_allow() {
    for processor in machines() {
        let (width, is_narrow) = match processor.configuration {
            Configuration::Intel(of) => (of.general_width, !of.full_width_writes),
            _ => (48, false),
        };
        let longest = if is_narrow { (1 << 31) - 1 } else { (1 << (width - 1)) - 1 };
        let (mock, memory, table) = (processor.mock(), Memory::new(), Table::new());
        let mut session = processor.take(&mock, &memory, &table);
        let only = processor.unit.counters() & CounterSet::GENERAL;
        let (counter, select) = session.reserve(&processor.unit, &raw(2), only).unwrap();
        for period in [1, 2, 1_000, longest - 1, longest] {
            let loaded = session.load_reserved(counter, period);
            assert_eq!(loaded, Ok((1 << width) - period), "{processor:?}");
            session.start_reserved(counter, select, false).unwrap();
            happen(&mock, 2, period - 1);
            assert_eq!(session.read_reserved(counter), Ok((1 << width) - 1), "{processor:?}");
            happen(&mock, 2, 1);
            assert_eq!(session.read_reserved(counter), Ok(0), "{processor:?}");
            session.stop_reserved(counter).unwrap();
            session.acknowledge_reserved(counter.only(), 0).unwrap();
        }
        mock.clear();
        for period in [0, longest + 1, u64::MAX] {
            let refused = Err(CounterError::Period(period));
            assert_eq!(session.load_reserved(counter, period), refused, "{processor:?}");
        }
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
    }
}

#[test]
fn an_acknowledgement_clears_the_bits_it_names_and_writes_only_if_one_is_set() {
    // Processors whose status a test can set.
    let has_set = |of: &Processor| matches!(of.configuration, Configuration::Intel(intel) if intel.version >= 4);
    let machines: Vec<_> = machines().into_iter().filter(has_set).collect();
    assert!(machines.len() > 2);
    for processor in machines {
        let (mock, memory, table) = (processor.mock(), Memory::new(), Table::new());
        let mut session = processor.take(&mock, &memory, &table);
        let only = processor.unit.counters() & CounterSet::GENERAL;
        let (first, select) = session.reserve(&processor.unit, &raw(2), only).unwrap();
        let (second, other) = session.reserve(&processor.unit, &raw(3), only).unwrap();
        for (counter, select) in [(first, select), (second, other)] {
            session.load_reserved(counter, 10).unwrap();
            session.start_reserved(counter, select, false).unwrap();
        }
        let status = || match mock.with_pmu(|pmu| pmu.read(STATUS)) {
            Read::Value(status) => status,
            other => panic!("{other:?}"),
        };
        let mut acknowledge = |facility, left: u64| {
            mock.clear();
            session.acknowledge_reserved(first.only(), facility).unwrap();
            assert_eq!(status(), left, "{processor:?}");
            mock.accesses().total()
        };
        // Two overflows, none of which interrupts, and a facility's bit.
        happen(&mock, 2, 10);
        happen(&mock, 3, 10);
        let _ = mock.with_pmu(|pmu| pmu.write(STATUS_SET, BUFFER));
        let of_second = second.only().bits();
        assert_eq!(status(), first.only().bits() | of_second | BUFFER, "{processor:?}");
        assert_eq!(acknowledge(0, of_second | BUFFER), 2);
        assert_eq!(acknowledge(0, of_second | BUFFER), 1, "a read: nothing to write");
        assert_eq!(acknowledge(BUFFER, of_second), 2);
        assert_eq!(acknowledge(BUFFER, of_second), 1);
    }
}

#[test]
fn a_counter_is_reserved_neither_for_another_core_nor_while_the_interrupt_is_masked() {
    let intel = IntelConfiguration::new(6, 4, 3);
    let [here, other] = [false, true]
        .map(|unit_mask_2| Processor::intel(intel.with(|intel| intel.unit_mask_2 = unit_mask_2)));
    let (mock, memory, table) = (here.mock(), Memory::new(), Table::new());
    let mut session = here.take(&mock, &memory, &table);
    mock.clear();
    let refused = session.reserve(&other.unit, &raw(2), CounterSet::ALL);
    assert_eq!(refused, Err(CounterError::OtherProcessor));
    assert_eq!(mock.accesses().total(), 0);
    let sampled = session.open_event(&here.unit, &raw(3).every(0x1000)).unwrap();
    session.start_event(sampled, 0).unwrap();
    let source = OpenedEvents::new(&here.unit, &table);
    let masked = core::cell::Cell::new(false);
    let handler = |mock: &Mock<'_>| {
        let failed = service(&source, mock, mock, &memory, |_| ()).unwrap_err();
        masked.set(failed.masked);
    };
    mock.on_interrupt(&handler);
    mock.inject(Fault::From(1));
    happen(&mock, 3, 0x1000);
    mock.inject(Fault::None);
    assert!(masked.get());
    let refused = session.reserve(&here.unit, &raw(2), CounterSet::ALL);
    assert_eq!(refused, Err(CounterError::NoFreeCounter));
    session.reprogram(|_| ()).unwrap();
    session.reserve(&here.unit, &raw(2), CounterSet::ALL).unwrap();
}
