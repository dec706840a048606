//! Opened events on one processor: their periods, their registers, and other owners' registers.

mod opened;

use core::cell::{Cell, RefCell};
use pmu_tests::StateRegisters;

use opened::*;
use pmu_core::testing::RecordingMsr;
use pmu_core::{
    CounterId, CounterSet, CounterUnit, Counters, Event, EventId, EventOverflow, EventSelect,
    EventTable, KProfileSource, MsrOperation, NamedEvent, OpenedEvents, ProfileInterface, Report,
    WithEvents, service, silence,
};
use pmu_intel::Emon;
use pmu_tests::{FakePlatform, RegisterFile};
use pmu_virt::mock::{Deviation, Deviations};
use pmu_virt::{AmdConfiguration, Configuration, IntelConfiguration};

const PERIOD: u64 = 0x1000;

fn general(number: u8) -> CounterSet {
    CounterId::general(number).unwrap().only()
}

/// Periods of any length are reported exactly when they are over: one report each.
#[test]
fn periods_beyond_a_counters_reach_are_counted_in_pieces_and_reported_once() {
    let wide = [5, 6].map(|version| {
        let configuration = IntelConfiguration::new(version, 4, 3).with(|intel| {
            intel.general_width = 64;
            intel.fixed_width = 64;
        });
        Processor::intel(configuration)
    });
    for processor in processors(Deviations::NONE).into_iter().chain(wide) {
        for period in [
            0x1000,
            (1 << 31) - 1,
            1 << 31,
            (1 << 31) + 1,
            (1 << 32) + 5,
            (1 << 39) - 1,
            1 << 40,
            (1 << 47) - 1,
            1 << 47,
            (1 << 48) - 1,
            1 << 48,
            (1 << 48) + 1,
            1 << 50,
        ] {
            for (event, places) in [(raw(2), CounterSet::GENERAL), (raw(0), CounterSet::FIXED)] {
                if (processor.unit.counters() & places).is_empty() {
                    continue;
                }
                if period >> 47 != 0
                    && processor.unit.counter(CounterId::general(0).unwrap()).unwrap().width() < 48
                {
                    continue;
                }
                let kind = usize::from(places == CounterSet::GENERAL) * 2;
                let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
                let reports = RefCell::new(vec![]);
                let handler = |mock: &Mock<'_>| {
                    let source = OpenedEvents::new(&processor.unit, &table as &EventTable);
                    let push = |o: EventOverflow| reports.borrow_mut().push(o.period);
                    service(&source, mock, mock, &memory, push).unwrap();
                };
                mock.on_interrupt(&handler);
                let mut counters = processor.take(&mock, &memory, &table);
                let event = event.every(period).with_total().on(places);
                let id = counters.open_event(&processor.unit, &event).unwrap();
                counters.start_event(id, 0).unwrap();
                let context = format!("{processor:?}, {period:#X} on {places:?}");
                // Without full-width writes a period takes 2¹⁹ interrupts.
                let times = if period >> 44 != 0 { 1 } else { 2 };
                let narrow = counters.counter_of(id).is_some_and(|counter| {
                    !counter.is_fixed()
                        && matches!(processor.configuration, Configuration::Intel(intel)
                            if intel.version < 6 && !intel.full_width_writes)
                });
                if narrow && period > 1 << 41 {
                    continue;
                }
                for whole in 1..=times {
                    happen(&mock, kind, period - 1);
                    assert_eq!(reports.take(), [], "{context}");
                    assert_eq!(total(&counters, id), whole * period - 1, "{context}");
                    happen(&mock, kind, 1);
                    assert_eq!(reports.take(), [period], "{context}");
                }
                counters.shut_down().unwrap();
                assert_eq!(running(&mock), CounterSet::NONE);
            }
        }
    }
}

/// The counter is loaded after the report: the period that the callback sets is the next one.
#[test]
fn a_period_is_changed_from_its_own_interrupt() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let reports = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let source = OpenedEvents::new(&processor.unit, &table as &EventTable);
            service(&source, mock, mock, &memory, |o| {
                reports.borrow_mut().push(o.period);
                table.set_period(o.event, o.period + 0x100).unwrap();
            })
            .unwrap();
        };
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let event = raw(2).every(PERIOD).with_total();
        let id = counters.open_event(&processor.unit, &event).unwrap();
        counters.start_event(id, 0).unwrap();
        let mut passed = 0;
        for period in [0x1000, 0x1100, 0x1200, 0x1300] {
            happen(&mock, 2, period - 1);
            assert_eq!(reports.take(), []);
            happen(&mock, 2, 1);
            assert_eq!(reports.take(), [period], "{processor:?}");
            passed += period;
            assert_eq!(total(&counters, id), passed);
        }
        counters.shut_down().unwrap();
    }
}

/// Expected values: SDM vol. 3B, "IA32_FIXED_CTR_CTRL" and "Layout of IA32_PERFEVTSELx MSRs".
#[test]
fn an_events_modes_are_in_the_bits_of_its_counter() {
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 3));
    let state = |mock: &Mock<'_>| mock.with_pmu(|pmu| pmu.state());
    for (event, fixed, select) in [
        (Event::named(NamedEvent::Instructions), 0xB, 0x53_00C0),
        (Event::named(NamedEvent::Instructions).user_only(), 0xA, 0x51_00C0),
        (Event::named(NamedEvent::Instructions).kernel_only(), 0x9, 0x52_00C0),
        (Event::raw(EventSelect::from_bits(0x2_00C0)), 0x9, 0x52_00C0),
        (Event::raw(EventSelect::from_bits(0x1_00C0)), 0xA, 0x51_00C0),
    ] {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let id = counters.open_event(&processor.unit, &event).unwrap();
        let same = event.on(CounterSet::GENERAL);
        let beside = counters.open_event(&processor.unit, &same).unwrap();
        counters.start_event(id, 0).unwrap();
        counters.start_event(beside, 0).unwrap();
        assert_eq!(counters.counter_of(id), CounterId::fixed(0));
        assert_eq!(state(&mock).fixed_control(), fixed);
        assert_eq!(state(&mock).selects()[0], select);
        counters.stop_event(id, 0).unwrap();
        assert_eq!((state(&mock).fixed_control(), state(&mock).selects()[0]), (0, select));
        // A qualified event is not the fixed counter's: cycles with 2 instructions or more.
        let qualified = Event::raw(EventSelect::from_bits(0xC0 | 2 << 24));
        let id = counters.open_event(&processor.unit, &qualified).unwrap();
        counters.start_event(id, 0).unwrap();
        assert_eq!(counters.counter_of(id), CounterId::general(1));
        // Reference cycles, by which only fixed counter 2 counts.
        let reference = Event::named(NamedEvent::ReferenceCycles);
        let id = counters.open_event(&processor.unit, &reference).unwrap();
        counters.start_event(id, 0).unwrap();
        assert_eq!(counters.counter_of(id), CounterId::fixed(2));
    }
}

/// SDM vol. 3B, version 6: bit 37 of a configuration register, bit 33 + 4n of the fixed counters' control.
#[test]
fn user_mode_reads_only_the_counters_that_it_may() {
    let configuration =
        IntelConfiguration::new(6, 4, 3).with(|intel| intel.rdpmc_user_disable = true);
    let processor = Processor::intel(configuration);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let open = |counters: &mut Opened<'_, '_>, event: Event| {
        let id = counters.open_event(unit, &event).unwrap();
        counters.start_event(id, 0).unwrap();
        counters.counter_of(id).unwrap()
    };
    let found = [
        open(&mut counters, raw(2)),
        open(&mut counters, raw(2).with_user_rdpmc()),
        open(&mut counters, raw(0)),
        open(&mut counters, raw(1).with_user_rdpmc()),
    ];
    assert_eq!(found.map(CounterId::bit), [0, 1, 32, 33]);
    let state = mock.with_pmu(|pmu| pmu.state());
    assert_eq!(state.selects()[..2], [1 << 37 | 0x53_01D0, 0x53_01D0]);
    assert_eq!(state.fixed_control(), 1 << 33 | 0xBB);
    // A counter that it may not read is 0.
    let user = pmu_virt::Mode { cpl: 3, pce: true, protected: true };
    let read = |index| mock.with_pmu(|pmu| pmu.read_pmc(index, user));
    let may = [0, 1, 1 << 30, 1 << 30 | 1].map(|index| match read(index) {
        pmu_virt::Read::Value(value) => value != 0,
        other => panic!("{other:?}"),
    });
    assert_eq!(may, [false, true, false, true]);
}

/// Version 6 has its own addresses from 0x1900 on, version 5 writes in full width at 0x4C1 what a write of 32
/// bits cannot hold, and a processor without that never does.
#[test]
fn counters_are_written_at_the_addresses_that_they_have() {
    let plain = IntelConfiguration::new;
    for (configuration, period, allowed) in [
        (plain(6, 4, 3), 1 << 40, 0x1900..0x1A00),
        (plain(6, 4, 3), 0x1000, 0x1900..0x1A00),
        (plain(5, 4, 3), 1 << 40, 0x4C1..0x4C9),
        (plain(5, 4, 3), 0x1000, 0xC1..0xC9),
        (plain(5, 4, 3).with(|intel| intel.full_width_writes = false), 1 << 40, 0xC1..0xC9),
    ] {
        let processor = Processor::intel(configuration);
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let event = raw(2).every(period);
        let id = counters.open_event(&processor.unit, &event).unwrap();
        mock.clear();
        counters.start_event(id, 0).unwrap();
        let trace = mock.trace();
        let written: Vec<u32> = trace.records().map(|record| record.register).collect();
        assert_eq!(written.len(), 2, "one write of the counter, one of its select");
        assert!(allowed.contains(&written[0]), "{configuration:?}: {written:X?}");
    }
}

/// AMD's event selects, as plain registers: bit 40 counts in guests only, bit 41 outside them; both are reserved
/// while EFER.SVME is clear (APM vol. 2, "Core Performance Event-Select Registers").
#[test]
fn guest_bits_are_set_only_while_virtualization_is_on() {
    let mut amd = AmdConfiguration::perf_mon_v2(6);
    amd.guest_host = true;
    let processor = Processor::new(Configuration::Amd(amd), false, Deviations::NONE);
    let (memory, table) = (Memory::new(), Table::new());
    let registers = (0xC001_0200..0xC001_020C).chain(0xC000_0300..0xC000_0304);
    let msr = RegisterFile::new(registers, 0xC001_0201).rdpmc_step(2);
    let platform = FakePlatform::default();
    let source = OpenedEvents::new(&processor.unit, &table);
    let mut counters =
        Counters::take(source, &processor.unit, CounterSet::ALL, &msr, &platform, &memory).unwrap();
    let ids = [raw(2), raw(2).in_guests().every(PERIOD), raw(2).outside_guests()].map(|event| {
        let id = counters.open_event(&processor.unit, &event).unwrap();
        counters.start_event(id, 0).unwrap();
        id
    });
    assert_eq!(ids.map(|id| counters.counter_of(id).unwrap().bit()), [0, 1, 2]);
    let selects = || [0, 2, 4].map(|n| msr.get(0xC001_0200 + n));
    let off = [0x53_01D0, 0, 0x53_01D0];
    let on = [0x53_01D0, 1 << 40 | 0x53_01D0, 1 << 41 | 0x53_01D0];
    assert_eq!(selects(), off);
    counters.set_virtualization(true).unwrap();
    assert_eq!(selects(), on);
    let late = counters.open_event(&processor.unit, &raw(2).in_guests()).unwrap();
    counters.start_event(late, 0).unwrap();
    assert_eq!(msr.get(0xC001_0206), on[1]);
    counters.stop_event(late, 0).unwrap();
    counters.set_virtualization(false).unwrap();
    assert_eq!(selects(), off);
    let written = msr.take_writes().len();
    counters.set_virtualization(false).unwrap();
    assert_eq!(msr.take_writes().len(), 0, "after {written}");
    // Registers that were kept go on.
    assert_eq!(counters.reprogram(|o| panic!("{o:?}")).map(CounterSet::bits), Ok(0));
    assert_eq!(selects(), off);
    // Suspended with virtualization off, and resumed: an event of guests lost its counter, too.
    for register in (0xC001_0200..0xC001_020C).chain([0xC000_0301]) {
        msr.set(register, 0);
    }
    assert_eq!(counters.reprogram(|o| panic!("{o:?}")).map(CounterSet::bits), Ok(0b111));
    assert_eq!(selects(), off);
    counters.set_virtualization(true).unwrap();
    assert_eq!(selects(), on);
    let value = msr.get(0xC001_0203);
    assert_eq!(value, (1 << 48) - PERIOD, "its period begins anew");
    assert_eq!(counters.read_event(ids[2], 0).map(|count| count.value), Ok(0));
    counters.shut_down().unwrap();
    assert_eq!(selects(), [0; 3]);
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
        let source = OpenedEvents::new(&processor.unit, &table as &EventTable);
        let handler = |mock: &Mock<'_>| {
            let count = |_: EventOverflow| reports.set(reports.get() + 1);
            others.set(service(&source, mock, mock, &memory, count).unwrap().others);
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
                let pmc = record.operation == MsrOperation::ReadPmc;
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
                counters.open_event(unit, &event).unwrap()
            })
            .collect();
        for id in &ids {
            counters.start_event(*id, 0).unwrap();
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
        let source = OpenedEvents::new(&processor.unit, &table as &EventTable);
        let handler = |mock: &Mock<'_>| {
            let count = |_: EventOverflow| reports.set(reports.get() + 1);
            service(&source, mock, mock, &memory, count).unwrap();
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
            let id = counters.open_event(unit, &event).unwrap();
            counters.start_event(id, 0).unwrap();
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
            counters.close_event(id, 0).unwrap();
        }
        counters.give_up(more).unwrap();
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
        let source = OpenedEvents::new(&processor.unit, &table as &EventTable);
        let others = Cell::new(0);
        let handler = |mock: &Mock<'_>| {
            let none = |o: EventOverflow| panic!("{o:?}");
            others.set(service(&source, mock, mock, &memory, none).unwrap().others);
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
        let id =
            counters.open_event(&processor.unit, &raw(2).on(general(3)).every(PERIOD)).unwrap();
        counters.start_event(id, 0).unwrap();
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
            let source = OpenedEvents::new(&processor.unit, &table as &EventTable);
            let only = general(0) | general(1);
            let mut counters =
                Counters::take(source, &processor.unit, only, &msr, &platform, &memory).unwrap();
            let id = counters.open_event(&processor.unit, &raw(2).every(PERIOD)).unwrap();
            counters.start_event(id, 0).unwrap();
            let counter = if version == 6 { 0x1900 } else { 0xC1 };
            msr.inner().set(counter, 2);
            msr.inner().set(0x38E, 1 | set);
            msr.take();
            let serviced = service(&source, &msr, &platform, &memory, |_| ()).unwrap();
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
        silence(&processor.unit, &mock).unwrap();
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
        let source = OpenedEvents::new(&processor.unit, &table as &EventTable);
        let handler = |mock: &Mock<'_>| {
            let count = |_: EventOverflow| reports.set(reports.get() + 1);
            service(&source, mock, mock, &memory, count).unwrap();
        };
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let unit: &CounterUnit = &processor.unit;
        let ids = [0, 2].map(|kind| {
            let id = counters.open_event(unit, &raw(kind).every(PERIOD)).unwrap();
            counters.start_event(id, 0).unwrap();
            id
        });
        // The processor stops at every access of it.
        for access in 1..30 {
            mock.inject(pmu_virt::mock::Fault::At(access));
            let _ = silence(unit, &mock);
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
        let both = WithEvents::new(&emon, &table);
        let reports = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let push = |report: Report| reports.borrow_mut().push(report);
            both.service(mock, mock, &memory, push).unwrap();
        };
        mock.on_interrupt(&handler);
        let cycles = KProfileSource::TOTAL_CYCLES;
        emon.set_interval(cycles, PERIOD).unwrap();
        let mut session =
            both.initialize(&processor.snapshot, only, &mock, &mock, &memory).unwrap();
        session.start(cycles).unwrap();
        let counters = session.counters_mut();
        let unit = &processor.unit;
        // The same event as the source's.
        let same = counters.open_event(unit, &raw(1).every(2 * PERIOD)).unwrap();
        counters.start_event(same, 0).unwrap();
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
        session.reprogram_all(|report| reports.borrow_mut().push(report)).unwrap();
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
        let mut session =
            emon.initialize_only(&processor.snapshot, only, &mock, &mock, &memory).unwrap();
        assert_eq!(session.counters().usable, general(1) | general(3));
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        assert_eq!(running(&mock), general(1));
        session.shut_down().unwrap();
    }
}
