//! Opened events beside other owners: registers that stay theirs, counters that are taken and given back, silence, and
//! sources on the same processor.

use core::cell::{Cell, RefCell};
use pmu_core::access::AccessOperation;
use pmu_core::interrupt::EventOverflow;
use pmu_core::memory::EventTable;
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::{CounterId, stop_all};
use pmu_core::testing::RecordingMsr;
use pmu_core::{CounterSession, CounterSet, CounterUnit, EventId, EventSource, Events, service};
use pmu_intel::Emon;
use pmu_tests::StateRegisters;
use pmu_tests::opened::operations::PERIOD;
use pmu_tests::opened::*;
use pmu_tests::reports::{Report, service_reports};
use pmu_tests::{FakePlatform, RegisterFile};
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::{Deviation, Deviations};

fn general(number: u8) -> CounterSet {
    CounterId::general(number).unwrap().only()
}

/// Every access of every operation is to a register of the session's counters, or a global one; the bits of the
/// others stay.
#[test]
fn counters_of_others_are_not_touched() {
    for processor in processors(Deviations::NONE) {
        let all: Vec<CounterId> = processor.unit.counters().iter().collect();
        let only: CounterSet =
            all.iter().copied().filter(|counter| counter.bit() % 2 == 0).collect();
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let (reports, others) = (Cell::new(0), Cell::new(0));
        let source = Events::new(&processor.unit, &table as &EventTable);
        let handler = |mock: &Mock<'_>| {
            let count = |_: EventOverflow| reports.set(reports.get() + 1);
            others.set(service(&source, mock, &memory, |sample| count(*sample)).unwrap().others);
        };
        mock.on_interrupt(&handler);
        let forbidden: Vec<u32> = all
            .iter()
            .filter(|counter| !only.contains(**counter))
            .flat_map(|counter| {
                let registers = processor.unit.counter(*counter).unwrap();
                let control = registers.control().register().get();
                let shared = counter.is_fixed();
                [registers.value_register().get(), if shared { 0 } else { control }]
            })
            .collect();
        let watch = |mock: &Mock<'_>| {
            for record in mock.trace().records() {
                let pmc = record.operation == AccessOperation::ReadCounter;
                let other = if pmc {
                    let bit = record.register & 0xFF | record.register >> 30 << 5;
                    !only.contains(all.iter().copied().find(|c| u32::from(c.bit()) == bit).unwrap())
                } else {
                    forbidden.contains(&record.register)
                };
                assert!(!other, "{processor:?}: {record:X?}");
            }
        };
        mock.on_access(&watch);
        let before = mock.with_pmu(|pmu| pmu.state());
        let mut counters = processor.take_only(only, &mock, &memory, &table);
        assert_eq!(counters.counters().usable, only);
        let unit = &processor.unit;
        let ids: Vec<EventId> = (0..6)
            .map(|n| {
                let event = raw(n).rotating().every(PERIOD).with_total();
                counters.open(unit, &[event]).unwrap()
            })
            .collect();
        for id in &ids {
            counters.enable(*id, 0).unwrap();
        }
        for tick in 1..5 {
            (0..6).for_each(|kind| happen(&mock, kind, PERIOD));
            counters.rotate(tick).unwrap();
            assert!((running(&mock).without(only)).is_empty());
        }
        assert!(reports.get() > 4);
        mock.lose_registers();
        counters.reprogram(|_| ()).unwrap();
        counters.shut_down().unwrap();
        watch(&mock);
        let after = mock.with_pmu(|pmu| pmu.state());
        assert_eq!(
            (after.selects(), after.fixed_control()),
            (before.selects(), before.fixed_control())
        );
    }
}

/// Another owner gives its counter, gets it back, and continues with it.
#[test]
fn counters_are_taken_and_given_back() {
    for processor in processors(Deviations::NONE) {
        let own: CounterSet = processor.unit.counters().iter().take(1).collect();
        let more: CounterSet = processor.unit.counters().without(own);
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let reports = Cell::new(0);
        let source = Events::new(&processor.unit, &table as &EventTable);
        let handler = |mock: &Mock<'_>| {
            let count = |_: EventOverflow| reports.set(reports.get() + 1);
            service(&source, mock, &memory, |sample| count(*sample)).unwrap();
        };
        mock.on_interrupt(&handler);
        let mut counters = processor.take_only(own, &mock, &memory, &table);
        let unit = &processor.unit;
        assert_eq!(counters.take_more(unit, more), Ok(more), "{processor:?}");
        assert_eq!(counters.counters().usable, processor.unit.counters());
        let mut ids = vec![];
        for counter in more.iter() {
            let kind = if counter.is_fixed() { 0 } else { 2 };
            let event = raw(kind).on(counter.only()).every(PERIOD);
            let id = counters.open(unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            assert_eq!(counters.counter_of(id), Some(counter));
            ids.push(id);
        }
        let global =
            |bits: CounterSet| mock.with_pmu(|pmu| pmu.state()).global_control() & bits.bits();
        let has_global = processor.unit.global().is_some();
        if has_global {
            assert_eq!(global(CounterSet::ALL), unit.counters().bits());
        }
        happen(&mock, 2, PERIOD);
        let general = (more & CounterSet::GENERAL).len();
        assert_eq!(reports.take(), general, "{processor:?}");
        for id in ids {
            counters.close(id, 0).unwrap();
        }
        counters.give_back(more).unwrap();
        assert_eq!(counters.counters().usable, own);
        if has_global {
            assert_eq!(global(CounterSet::ALL), own.bits());
            counters.set_others_control(more.bits(), true).unwrap();
        }
        counters.shut_down().unwrap();
        if has_global {
            assert_eq!(global(CounterSet::ALL), more.bits(), "what the other set stays");
        }
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

/// Its former owner left an overflow unacknowledged, and the counter's bit of the global control set.
#[test]
fn what_the_former_owner_left_of_a_counter_is_no_report() {
    for version in [4, 5, 6] {
        let processor = Processor::intel(IntelConfiguration::new(version, 4, 3));
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = Events::new(&processor.unit, &table as &EventTable);
        let others = Cell::new(0);
        let handler = |mock: &Mock<'_>| {
            let none = |o: EventOverflow| panic!("{o:?}");
            others.set(service(&source, mock, &memory, |sample| none(*sample)).unwrap().others);
        };
        mock.on_interrupt(&handler);
        let given = general(3) | CounterSet::fixed(1);
        let mut counters = processor.take_only(general(0), &mock, &memory, &table);
        counters.set_others_control(given.bits(), true).unwrap();
        // IA32_PERF_GLOBAL_STATUS_SET.
        let _ = mock.with_pmu(|pmu| pmu.write(0x391, given.bits()));
        mock.interrupt_from_elsewhere();
        assert_eq!(others.get(), given.bits());
        assert_eq!(counters.take_more(&processor.unit, given), Ok(given));
        assert_eq!(mock.with_pmu(|pmu| pmu.state()).global_status(), 0);
        let id = counters.open(&processor.unit, &[raw(2).on(general(3)).every(PERIOD)]).unwrap();
        counters.enable(id, 0).unwrap();
        mock.interrupt_from_elsewhere();
        assert_eq!(others.get(), 0);
        counters.shut_down().unwrap();
    }
}

/// Accesses of one overflow, and the reported bits of others.
#[test]
fn the_status_bits_of_others_are_handed_out_for_nothing() {
    for version in [2, 4, 5, 6] {
        let processor = Processor::intel(IntelConfiguration::new(version, 4, 3));
        let mut costs = vec![];
        // A trace buffer's bit (55), the Debug Store's (62), and another's counter.
        for set in [0, 1 << 33, 1 << 62, 1 << 55 | 1 << 3] {
            let registers = (0xC1..0xC5).chain(0x186..0x18A).chain(0x309..0x30C);
            let registers = registers.chain(0x38D..0x391).chain([0x345, 0x1A0, 0x3F1]);
            let registers = registers.chain(0x1900..0x1990);
            let file = RegisterFile::new(registers, if version == 6 { 0x1900 } else { 0xC1 });
            let file = if version == 6 { file.rdpmc_step(4) } else { file };
            let msr = RecordingMsr::<_, 64>::new(file);
            let (memory, table, platform) = (Memory::new(), Table::new(), FakePlatform::default());
            let source = Events::new(&processor.unit, &table as &EventTable);
            let only = general(0) | general(1);
            let mut counters =
                CounterSession::take(source, &processor.unit, only, (&msr, &platform), &memory)
                    .unwrap();
            let id = counters.open(&processor.unit, &[raw(2).every(PERIOD)]).unwrap();
            counters.enable(id, 0).unwrap();
            let counter = if version == 6 { 0x1900 } else { 0xC1 };
            msr.inner().set(counter, 2);
            msr.inner().set(0x38E, 1 | set);
            msr.take();
            let serviced = service(&source, &(&msr, &platform), &memory, |_| ()).unwrap();
            assert_eq!((serviced.overflows, serviced.others), (1, set), "version {version}");
            let accesses = msr.take();
            for access in &accesses {
                if access.register == 0x390 {
                    assert_eq!(access.outcome, Ok(1), "the others acknowledge theirs");
                }
            }
            costs.push(accesses.len());
        }
        assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
    }
}

/// Every counter stops, regardless of its owner, and no session is needed.
#[test]
fn silence_stops_every_counter() {
    let left = [Deviation::LeftRunning, Deviation::LeftOverflowed];
    let both = Deviations::of(&left);
    for processor in processors(both).into_iter().chain(processors(Deviations::NONE)) {
        let mock = processor.mock();
        let _ =
            mock.with_pmu(|pmu| pmu.write(0x38F, 0x7_0000_00FF & processor.unit.counters().bits()));
        let _ = mock.with_pmu(|pmu| pmu.write(0xC000_0301, processor.unit.counters().bits()));
        if processor.fixed() {
            let _ = mock.with_pmu(|pmu| pmu.write(0x38D, 0xBB));
        }
        stop_all(&processor.unit, &mock).unwrap();
        let state = mock.with_pmu(|pmu| pmu.state());
        assert_eq!(state.fixed_control(), 0);
        assert!(
            state.selects().iter().all(|select| select >> 22 & 1 == 0),
            "{processor:?}: {state:?}"
        );
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        assert_eq!(state.global_control() & processor.unit.counters().bits(), 0);
        assert_eq!(state.global_status() & processor.unit.counters().bits(), 0);
    }
}

/// In a panic within a session, and then the session is reprogrammed.
#[test]
fn silence_under_a_session_leaves_it_to_be_reprogrammed() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let reports = Cell::new(0);
        let source = Events::new(&processor.unit, &table as &EventTable);
        let handler = |mock: &Mock<'_>| {
            let count = |_: EventOverflow| reports.set(reports.get() + 1);
            service(&source, mock, &memory, |sample| count(*sample)).unwrap();
        };
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let unit: &CounterUnit = &processor.unit;
        let ids = [0, 2].map(|kind| {
            let id = counters.open(unit, &[raw(kind).every(PERIOD)]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        });
        // The processor stops at every access of it.
        for access in 1..30 {
            mock.inject(pmu_virt::mock::Fault::At(access));
            let _ = stop_all(unit, &mock);
            mock.inject(pmu_virt::mock::Fault::None);
            assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}: a fault is tried again");
            counters.reprogram(|o| panic!("{o:?}")).unwrap();
            assert_eq!(running(&mock).len(), 2);
        }
        [0, 2].into_iter().for_each(|kind| happen(&mock, kind, PERIOD));
        assert_eq!(reports.get(), 2, "{processor:?}: {ids:?}");
        counters.shut_down().unwrap();
    }
}

/// Sources and raw events on one processor: one interrupt, distinct reports.
#[test]
fn sources_and_events_share_counters_and_their_reports_are_told_apart() {
    for (version, only) in [
        (1, CounterSet::ALL),
        (2, CounterSet::ALL),
        (4, general(1) | general(2) | CounterSet::fixed(1)),
        (6, CounterSet::ALL),
    ] {
        let fixed = if version > 1 { 3 } else { 0 };
        let processor = Processor::intel(IntelConfiguration::new(version, 4, fixed));
        let emon = Emon::detect(&processor.snapshot).unwrap();
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let both = Events::new(&emon, &table);
        let reports = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let push = |report: Report| reports.borrow_mut().push(report);
            service_reports(&both, mock, &memory, push).unwrap();
        };
        mock.on_interrupt(&handler);
        let cycles = KProfileSource::TOTAL_CYCLES;
        emon.set_interval(cycles, PERIOD).unwrap();
        let mut session = Session::take(both, &processor.snapshot, only, &mock, &memory).unwrap();
        session.start(cycles).unwrap();
        let counters = session.counters_mut();
        let unit = &processor.unit;
        // The same event as the source's.
        let same = counters.open(unit, &[raw(1).every(2 * PERIOD)]).unwrap();
        counters.enable(same, 0).unwrap();
        let mut told = [0, 0];
        for _ in 0..8 {
            happen(&mock, 1, PERIOD);
            for report in reports.take() {
                match report {
                    Report::Source(overflow) => {
                        assert_eq!((overflow.source, overflow.events), (cycles, PERIOD));
                        told[0] += 1;
                    }
                    Report::Event(overflow) => {
                        assert_eq!((overflow.event, overflow.period), (same, 2 * PERIOD));
                        told[1] += 1;
                    }
                }
            }
        }
        assert_eq!(told, [8, 4], "version {version}");
        assert!(running(&mock).without(only).is_empty());
        session.stop(cycles).unwrap();
        happen(&mock, 1, 2 * PERIOD);
        assert!(matches!(reports.take()[..], [Report::Event(_)]));
        // An overflow whose interrupt is not taken before the registers are programmed again.
        mock.pass(&mut happened(1, 2 * PERIOD));
        session.reprogram(|sample| reports.borrow_mut().push(Report::of(&both, &sample))).unwrap();
        assert!(matches!(reports.take()[..], [Report::Event(o)] if o.event == same));
        mock.deliver();
        assert_eq!(reports.take(), []);
        session.shut_down().unwrap();
    }
}

/// The same without opened events: only the requested counters.
#[test]
fn a_session_of_sources_takes_only_what_it_is_told_to() {
    for version in [2, 4, 6] {
        let processor = Processor::intel(IntelConfiguration::new(version, 4, 3));
        let emon = Emon::detect(&processor.snapshot).unwrap();
        let (memory, mock) = (Memory::new(), processor.mock());
        let only = general(1) | general(3) | CounterSet::fixed(0b11);
        let mut session = Session::take(&emon, &processor.snapshot, only, &mock, &memory).unwrap();
        assert_eq!(session.counters().usable, general(1) | general(3));
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        assert_eq!(running(&mock), general(1));
        session.shut_down().unwrap();
    }
}
