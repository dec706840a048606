//! Opened events on one processor: their periods, their registers, and other owners' registers.

use core::cell::RefCell;
use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::memory::EventTable;
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::{CounterSession, CounterSet, Event, Events, GenericEvent, service};
use pmu_tests::Reason;
use pmu_tests::StateRegisters;
use pmu_tests::opened::*;
use pmu_tests::{FakePlatform, RegisterFile};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::Deviations;

const PERIOD: u64 = 0x1000;

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
                    let source = Events::new(&processor.unit, &table as &EventTable);
                    let push = |o: EventOverflow| reports.borrow_mut().push(o.period);
                    service(&source, mock, &memory, |sample| push(*sample)).unwrap();
                };
                mock.on_interrupt(&handler);
                let mut counters = processor.take(&mock, &memory, &table);
                let event = event.every(period).with_total().on(places);
                let id = counters.open(&processor.unit, &[event]).unwrap();
                counters.enable(id, 0).unwrap();
                let context = format!("{processor:?}, {period:#X} on {places:?}");
                // Without full-width writes a period takes 2¹⁹ interrupts.
                let times = if period >> 44 != 0 { 1 } else { 2 };
                let narrow = counters.counter_of(id).is_some_and(|counter| {
                    !counter.is_fixed()
                        && matches!(processor.configuration, Configuration::Intel(intel)
                            if intel.version < 6 && !intel.has(IntelFeature::FullWidthWrites))
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
            let source = Events::new(&processor.unit, &table as &EventTable);
            service(&source, mock, &memory, |o| {
                reports.borrow_mut().push(o.period);
                table.set_period(o.event, o.period + 0x100).unwrap();
            })
            .unwrap();
        };
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let event = raw(2).every(PERIOD).with_total();
        let id = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
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
        (Event::generic(GenericEvent::Instructions), 0xB, 0x53_00C0),
        (Event::generic(GenericEvent::Instructions).user_only(), 0xA, 0x51_00C0),
        (Event::generic(GenericEvent::Instructions).kernel_only(), 0x9, 0x52_00C0),
        (Event::raw(EventSelect::from_bits(0x2_00C0)), 0x9, 0x52_00C0),
        (Event::raw(EventSelect::from_bits(0x1_00C0)), 0xA, 0x51_00C0),
    ] {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let id = counters.open(&processor.unit, &[event]).unwrap();
        let same = event.on(CounterSet::GENERAL);
        let beside = counters.open(&processor.unit, &[same]).unwrap();
        counters.enable(id, 0).unwrap();
        counters.enable(beside, 0).unwrap();
        assert_eq!(counters.counter_of(id), CounterId::fixed(0));
        assert_eq!(state(&mock).fixed_control(), fixed);
        assert_eq!(state(&mock).selects()[0], select);
        counters.disable(id, 0).unwrap();
        assert_eq!((state(&mock).fixed_control(), state(&mock).selects()[0]), (0, select));
        // A qualified event is not the fixed counter's: cycles with 2 instructions or more.
        let qualified = Event::raw(EventSelect::from_bits(0xC0 | 2 << 24));
        let id = counters.open(&processor.unit, &[qualified]).unwrap();
        counters.enable(id, 0).unwrap();
        assert_eq!(counters.counter_of(id), CounterId::general(1));
        // Reference cycles, by which only fixed counter 2 counts.
        let reference = Event::generic(GenericEvent::ReferenceCycles);
        let id = counters.open(&processor.unit, &[reference]).unwrap();
        counters.enable(id, 0).unwrap();
        assert_eq!(counters.counter_of(id), CounterId::fixed(2));
    }
}

/// SDM vol. 3B, version 6: bit 37 of a configuration register, bit 33 + 4n of the fixed counters' control.
#[test]
fn user_mode_reads_only_the_counters_that_it_may() {
    let configuration = IntelConfiguration::new(6, 4, 3)
        .with(|intel| intel.set(IntelFeature::RdpmcUserDisable, true));
    let processor = Processor::intel(configuration);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let open = |counters: &mut Opened<'_, '_>, event: Event| {
        let id = counters.open(unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        counters.counter_of(id).unwrap()
    };
    let found = [
        open(&mut counters, raw(2)),
        open(&mut counters, raw(2).with_user_reads()),
        open(&mut counters, raw(0)),
        open(&mut counters, raw(1).with_user_reads()),
    ];
    assert_eq!(found.map(CounterId::bit), [0, 1, 32, 33]);
    let state = mock.with_pmu(|pmu| pmu.state());
    assert_eq!(state.selects()[..2], [1 << 37 | 0x53_01D0, 0x53_01D0]);
    assert_eq!(state.fixed_control(), 1 << 33 | 0xBB);
    // A counter that it may not read is 0.
    let user = pmu_virt::Mode { cpl: 3, pce: true, protected: true };
    let read = |index| mock.with_pmu(|pmu| pmu.read_counter(index, user));
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
        (
            plain(5, 4, 3).with(|intel| intel.set(IntelFeature::FullWidthWrites, false)),
            1 << 40,
            0xC1..0xC9,
        ),
    ] {
        let processor = Processor::intel(configuration);
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let event = raw(2).every(period);
        let id = counters.open(&processor.unit, &[event]).unwrap();
        mock.clear();
        counters.enable(id, 0).unwrap();
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
    let source = Events::new(&processor.unit, &table);
    let mut counters =
        CounterSession::take(source, &processor.unit, CounterSet::ALL, (&msr, &platform), &memory)
            .unwrap();
    let ids = [raw(2), raw(2).in_guests().every(PERIOD), raw(2).outside_guests()].map(|event| {
        let id = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        id
    });
    assert_eq!(ids.map(|id| counters.counter_of(id).unwrap().bit()), [0, 1, 2]);
    let selects = || [0, 2, 4].map(|n| msr.get(0xC001_0200 + n));
    let off = [0x53_01D0, 0, 0x53_01D0];
    let on = [0x53_01D0, 1 << 40 | 0x53_01D0, 1 << 41 | 0x53_01D0];
    assert_eq!(selects(), off);
    counters.set_virtualization(true).unwrap();
    assert_eq!(selects(), on);
    let late = counters.open(&processor.unit, &[raw(2).in_guests()]).unwrap();
    counters.enable(late, 0).unwrap();
    assert_eq!(msr.get(0xC001_0206), on[1]);
    counters.disable(late, 0).unwrap();
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
    assert_eq!(counters.read(ids[2], 0).map(|count| count.value), Ok(0));
    counters.shut_down().unwrap();
    assert_eq!(selects(), [0; 3]);
}

/// AMD without SVM runs no guest (APM vol. 3, appendix E: leaf 0x80000001, ECX bit 2). Linux opens such events, too.
#[test]
fn an_event_outside_guests_is_counted_all_the_time_without_svm() {
    for configuration in [
        AmdConfiguration::LEGACY,
        AmdConfiguration::CORE_EXTENSION,
        AmdConfiguration::perf_mon_v2(6),
    ] {
        let processor = Processor::new(Configuration::Amd(configuration), false, Deviations::NONE);
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let refused = counters.open(&processor.unit, &[raw(2).in_guests()]);
        assert_eq!(refused.reason(), Err(CounterError::GuestModeUnsupported), "{processor:?}");
        let [plain, outside] = [raw(2), raw(2).outside_guests()].map(|event| {
            let id = counters.open(&processor.unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        });
        let mut counted = 0;
        for is_on in [false, true, false] {
            counters.set_virtualization(is_on).unwrap();
            happen(&mock, 2, 5);
            counted += 5;
            let totals = [plain, outside].map(|id| total(&counters, id));
            assert_eq!(totals, [counted; 2], "{processor:?}: virtualization {is_on}");
        }
        counters.shut_down().unwrap();
    }
}
