//! Two owners on the same counters: a session whose counters are lent, a guest that is left on them, and another
//! owner's bits.

use core::cell::Cell;

use pmu_core::error::CounterError;
use pmu_core::{CounterSet, service};
use pmu_tests::opened::*;
use pmu_virt::mediated::{GuestInterrupts, HostCounters};
use pmu_virt::mock::{Deviation, Deviations, Fault};
use pmu_virt::{FedEvents, VirtualPmu, Write};

const PERIOD: u64 = 0x1000;

fn write(mock: &Mock<'_>, register: u32, value: u64) {
    let written = mock.with_pmu(|pmu| pmu.write(register, value).answer);
    assert_eq!(written, Write::Done, "{register:#X}");
}

fn read(mock: &Mock<'_>, register: u32) -> u64 {
    match mock.with_pmu(|pmu| pmu.read(register)) {
        pmu_virt::Read::Value(value) => value,
        other => panic!("{register:#X}: {other:?}"),
    }
}

/// The processors on which guests can be loaded.
fn hosts() -> Vec<(Processor, HostCounters)> {
    let mut all = processors(Deviations::NONE);
    all.extend(processors(Deviations::of(&[
        Deviation::NestsInterrupts,
        Deviation::MasksOnDelivery,
        Deviation::RaisesOnUnmask,
    ])));
    let with =
        |processor: Processor| Some((processor, HostCounters::new(processor.configuration).ok()?));
    all.into_iter().filter_map(with).collect()
}

/// A source table's session has general counters alone. A guest's fixed counters were still armed, and their overflow
/// in the status, after the end of the window.
#[test]
fn the_end_of_a_window_disarms_fixed_counters_that_were_added_to_it() {
    for (processor, host) in hosts() {
        let fixed = processor.unit.counters() & CounterSet::FIXED;
        if fixed.is_empty() {
            continue;
        }
        let (memory, table) = (Memory::new(), Table::new());
        let interrupts = Cell::new(0);
        let handler = |mock: &Mock<'_>| {
            let source = pmu_core::Events::new(&processor.unit, &table);
            interrupts.set(interrupts.get() + 1);
            assert!(interrupts.get() < 100, "{processor:?}: a storm");
            let _ = service(&source, mock, &memory, |_| ());
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let mut counters = processor.take_only(CounterSet::GENERAL, &mock, &memory, &table);
        let event = counters.open(&processor.unit, &[raw(2).every(PERIOD)]).unwrap();
        counters.enable(event, 0).unwrap();
        let mut guest = VirtualPmu::new(host.guest(), FedEvents::NONE).unwrap();
        let first = fixed.iter().next().unwrap().number();
        let _ = guest.write(0x309 + u32::from(first), 77);
        let _ = guest.write(0x38D, 0xB << (4 * first));
        // An overflow that the guest has not acknowledged.
        let _ = guest.write(0x391, 1 << (32 + first));
        let shared = GuestInterrupts::new();
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        window.lent().add_unowned(fixed);
        drop(host.load(window.lent(), &mut guest, &shared, &mock).unwrap());
        window.end(0).unwrap();
        assert_eq!(read(&mock, 0x38D), 0, "{processor:?}");
        assert_eq!(read(&mock, 0x309 + u32::from(first)), 0, "{processor:?}");
        assert_eq!(read(&mock, 0x38E), 0, "{processor:?}");
        happen(&mock, 2, PERIOD);
        assert!(interrupts.get() <= 2, "{processor:?}: {}", interrupts.get());
    }
}

/// The guest's value of the fixed counters' control became what the session takes for the other owners'.
#[test]
fn another_owners_fixed_counters_are_not_changed_while_all_are_lent() {
    for processor in processors(Deviations::NONE).into_iter().filter(Processor::fixed) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let event = counters.open(&processor.unit, &[raw(0)]).unwrap();
        counters.enable(event, 0).unwrap();
        let on = running(&mock);
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        window.lent().set_programmed(true);
        write(&mock, 0x38D, 0);
        drop(window);
        let refused = Err(CounterError::OwnControlBits(0));
        assert_eq!(counters.set_others_fixed_control(0xF00, 0), refused, "{processor:?}");
        assert_eq!(counters.set_others_control(0b1, true), refused, "{processor:?}");
        assert_eq!(counters.acknowledge_others(0b1), refused, "{processor:?}");
        counters.lend(0, |o| panic!("{o:?}")).unwrap().end(0).unwrap();
        assert_eq!(running(&mock), on, "{processor:?}");
        happen(&mock, 0, 5);
        assert_eq!(total(&counters, event), 5);
    }
}

/// The status stayed faulted once, and the LVT entry is masked; then a guest has the counters, and then all is
/// programmed again.
#[test]
fn a_window_of_a_masked_session_ends_and_reprogram_brings_it_back() {
    for processor in processors(Deviations::of(&[Deviation::MasksOnDelivery])) {
        let Some(global) = processor.unit.global() else { continue };
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = pmu_core::Events::new(&processor.unit, &table);
        let mut counters = processor.take(&mock, &memory, &table);
        let event = counters.open(&processor.unit, &[raw(2).every(PERIOD).with_total()]).unwrap();
        counters.enable(event, 0).unwrap();
        happen(&mock, 2, PERIOD + 3);
        mock.inject(Fault::Register(global.status.get()));
        let error = service(&source, &mock, &memory, |_| ()).unwrap_err();
        assert!(error.masked);
        for fault in [Fault::Register(global.status.get()), Fault::None] {
            mock.inject(fault);
            let lent = counters.lend(10, |_| ());
            let Ok(mut window) = lent else { continue };
            let lent = window.lent();
            lent.set_programmed(true);
            for counter in (lent.counters() & CounterSet::GENERAL).iter() {
                let registers = processor.unit.counter(counter).unwrap();
                write(&mock, registers.control().register().get(), 0x53_003C);
            }
            write(&mock, global.control.get(), lent.counters().bits());
            let ended = window.end(20);
            assert_eq!(running(&mock), CounterSet::NONE, "{processor:?} {fault:?} {ended:?}");
        }
        mock.inject(Fault::None);
        let reports = Cell::new(0);
        let _ = counters.reprogram(|_| ()).unwrap();
        if counters.is_enabled(event) {
            counters.disable(event, 30).unwrap();
        }
        counters.enable(event, 30).unwrap();
        let before = total(&counters, event);
        happen(&mock, 2, PERIOD);
        service(&source, &mock, &memory, |_| reports.set(reports.get() + 1)).unwrap();
        assert_eq!((reports.get(), total(&counters, event)), (1, before + PERIOD), "{processor:?}");
    }
}

/// The window's end fails for good, and a second window follows before anything is programmed again.
#[test]
fn rotating_events_run_after_a_window_that_failed_another_window_and_reprogram() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let events: Vec<_> = (2..8)
            .map(|kind| {
                let event = counters.open(&processor.unit, &[raw(kind).rotating()]).unwrap();
                counters.enable(event, 0).unwrap();
                event
            })
            .collect();
        for from in [1, 2, 3, 5, 8] {
            let window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
            mock.inject(Fault::From(from));
            let first = window.end(0);
            mock.inject(Fault::None);
            let second = counters.lend(0, |o| panic!("{o:?}")).map(|window| window.end(0));
            let _ = counters.reprogram(|o| panic!("{o:?}")).unwrap();
            for turn in 0..4 {
                counters.rotate(turn).unwrap();
            }
            let on: CounterSet =
                events.iter().filter_map(|event| counters.counter_of(*event)).collect();
            assert!(!on.is_empty(), "{processor:?}");
            assert_eq!(running(&mock), on, "{processor:?}, {from}, {first:?}, {second:?}");
        }
    }
}
/// `?` drops the guest and the window. The guest's counters ran on.
#[test]
fn a_shut_down_stops_what_a_forgotten_window_left_running() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let event = counters.open(&processor.unit, &[raw(2)]).unwrap();
        counters.enable(event, 0).unwrap();
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        let lent = window.lent();
        lent.set_programmed(true);
        for counter in (lent.counters() & CounterSet::GENERAL).iter() {
            let registers = processor.unit.counter(counter).unwrap();
            write(&mock, registers.control().register().get(), 0x53_003C);
        }
        if let Some(global) = processor.unit.global() {
            write(&mock, global.control.get(), lent.counters().bits());
        }
        drop(window);
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
    }
}
