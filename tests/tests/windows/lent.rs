//! Counters that a session lends: a guest's window. Nothing of the session's is lost, and its interrupt path touches
//! nothing meanwhile.

use core::cell::{Cell, RefCell};

use super::borrower::*;
use pmu_core::error::CounterError;
use pmu_core::interrupt::Serviced;
use pmu_core::profile::{InterfaceError, KProfileSource, Overflow, Session};
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::x86::Snapshot;
use pmu_core::{Claim, CounterSet, EventSource, service};
use pmu_tests::StateRegisters;
use pmu_tests::opened::operations::general;
use pmu_tests::opened::*;
use pmu_tests::reports::of_sources;
use pmu_virt::configuration::{Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::{Deviations, PmiFault};

#[test]
fn a_guest_in_the_window_leaves_no_trace_in_the_hosts_events() {
    for processor in all_processors() {
        for disarms in [true, false] {
            counting(&processor, |mock, mut counters, events, reports| {
                let before = state(mock);
                for round in 0..2 {
                    let mut window = counters.lend(round, |o| panic!("{o:?}")).unwrap();
                    assert_eq!(running(mock), CounterSet::NONE, "{processor:?}");
                    borrow(&processor, mock, window.lent(), disarms);
                    window.end(round).unwrap();
                    assert_eq!(state(mock), before, "{processor:?}, {disarms}");
                }
                assert_exact(&processor, mock, &counters, events, reports, 0x700);
                counters.shut_down().unwrap();
                assert_eq!(running(mock), CounterSet::NONE);
            });
        }
    }
}

/// The interrupt of a guest's counter was served as the host's: acknowledged, and the control register overwritten.
#[test]
fn an_interrupt_in_the_window_touches_nothing_and_is_said_to_be_the_borrowers() {
    for processor in all_processors() {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = pmu_core::Events::new(&processor.unit, &table);
        let mut counters = processor.take(&mock, &memory, &table);
        let events = open(&processor, &mut counters);
        let serve = || service(&source, &mock, &memory, |o| panic!("{o:?}")).unwrap();
        assert!(!serve().lent, "before");
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        let lent = window.lent();
        lent.set_programmed(true);
        let first = lent.counters().iter().next().unwrap();
        let registers = processor.unit.counter(first).unwrap();
        write(&mock, registers.value_register().get(), 0xFFFF_FFFF);
        write(&mock, registers.control().register().get(), 0x53_003C);
        if let Some(global) = processor.unit.global() {
            write(&mock, global.control.get(), first.only().bits());
        }
        let mut feed = happened(1, 1 << 16);
        let _ = mock.pass(&mut feed);
        mock.with_pmu(pmu_virt::VirtualPmu::init);
        let (found, entry) = (state(&mock), mock.performance_entry());
        mock.set_performance_entry(1 << 16 | entry);
        mock.clear();
        let expected = Serviced { overflows: 0, claim: Claim::NotOurs, others: 0, lent: true };
        assert_eq!([serve(), serve()], [expected; 2], "{processor:?}");
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
        assert_eq!(state(&mock), found, "{processor:?}");
        assert_eq!(mock.performance_entry(), 1 << 16 | entry, "it is the borrower's");
        window.end(0).unwrap();
        assert_eq!(mock.performance_entry(), entry, "it is the session's again");
        assert!(!serve().lent, "afterwards");
        assert!(events.iter().all(|event| counters.counter_of(*event).is_some()));
    }
}

/// The counter has overflowed, and the interrupt comes only within the window, or not at all.
#[test]
fn an_overflow_that_is_pending_is_reported_once_and_its_interrupt_claimed() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = pmu_core::Events::new(&processor.unit, &table);
        let mut counters = processor.take(&mock, &memory, &table);
        let events = open(&processor, &mut counters);
        mock.inject_pmi(PmiFault::Lost);
        // Events between the overflow and the reload are not of the next period.
        let more = if processor.freezing { 0 } else { 5 };
        happen(&mock, 2, PERIOD + more);
        let mut told = vec![];
        let window = counters.lend(0, |overflow| told.push((overflow.event, overflow.period)));
        let window = window.unwrap();
        assert_eq!(told, [(events[0], PERIOD)], "{processor:?}");
        let late = service(&source, &mock, &memory, |o| panic!("{o:?}")).unwrap();
        assert!(late.lent && late.claim != Claim::NotOurs, "{processor:?}");
        window.end(0).unwrap();
        let none = service(&source, &mock, &memory, |o| panic!("{o:?}")).unwrap();
        assert_eq!(none.overflows, 0);
        assert_eq!(total(&counters, events[0]), PERIOD + more, "{processor:?}");
        let told = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let source = pmu_core::Events::new(&processor.unit, &table);
            service(&source, mock, &memory, |o| told.borrow_mut().push(o.event)).unwrap();
        };
        let handler: &dyn Fn(&Mock<'_>) = &handler;
        mock.inject_pmi(PmiFault::None);
        mock.advance(&mut happened(2, PERIOD - 1));
        handler(&mock);
        assert_eq!(told.take(), []);
        let _ = mock.pass(&mut happened(2, 1));
        handler(&mock);
        assert_eq!(told.take(), [events[0]], "{processor:?}");
    }
}

/// A guest's time is neither enabled nor running time, of an event on a counter and of one that waits for its turn.
#[test]
fn times_stand_still_in_the_window() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let only = general(&processor, 0);
        let mut counters = processor.take_only(only, &mock, &memory, &table);
        let [runs, waits] = [2, 3].map(|kind| {
            let event = counters.open(&processor.unit, &[raw(kind).rotating()]).unwrap();
            counters.enable(event, 100).unwrap();
            event
        });
        counters.lend(130, |o| panic!("{o:?}")).unwrap().end(1_000).unwrap();
        let times = |event| {
            let count = counters.read(event, 1_005).unwrap();
            (count.enabled, count.running)
        };
        assert_eq!([times(runs), times(waits)], [(35, 35), (35, 0)], "{processor:?}");
    }
}

/// The session's own sources, by name, and a thread's counters that are saved meanwhile.
#[test]
fn a_session_of_sources_lends_what_runs_and_what_is_saved() {
    fn check<I: EventSource<Processor = Snapshot>>(processor: &Processor, interface: &I) {
        let (memory, mock) = (Memory::new(), processor.mock());
        let mut session =
            Session::take(&interface, &processor.snapshot, CounterSet::GENERAL, &mock, &memory)
                .unwrap();
        let sources = [KProfileSource::TOTAL_ISSUES, KProfileSource::new(0x06).unwrap()];
        for source in sources {
            session.start(source).unwrap();
        }
        happen(&mock, 0, 0x1234);
        let before = state(&mock);
        let mut window = session.lend(0, |overflow| panic!("{:?}", *overflow)).unwrap();
        borrow(processor, &mock, window.lent(), true);
        window.end(0).unwrap();
        assert_eq!(state(&mock), before, "{processor:?}");
        assert_eq!(session.read(sources[0]), Ok(0x1234));

        let told: RefCell<Vec<Overflow>> = RefCell::new(vec![]);
        mock.inject_pmi(PmiFault::Lost);
        happen(&mock, 0, 0x1_0000 - 0x1234);
        session
            .lend(0, of_sources(interface, |overflow| told.borrow_mut().push(overflow)))
            .unwrap()
            .end(0)
            .unwrap();
        let told = told.take();
        assert_eq!(told.len(), 1, "{processor:?}");
        assert_eq!((told[0].source, told[0].events), (sources[0], 0x1_0000));

        let mut area = SavedCounters::<[SavedCounter; 24]>::new();
        happen(&mock, 0, 7);
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
        let before = state(&mock);
        let mut window = session.lend(0, |overflow| panic!("{:?}", *overflow)).unwrap();
        borrow(processor, &mock, window.lent(), true);
        window.end(0).unwrap();
        let after = state(&mock);
        assert_eq!(after.selects(), before.selects(), "{processor:?}");
        assert_eq!(after.global_control(), before.global_control(), "{processor:?}");
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        session.restore(&area).unwrap();
        assert_eq!(session.read(sources[0]), Ok(7), "{processor:?}");
        session.shut_down().unwrap();
        let none = session.lend(0, |_| ()).map(|_| ()).unwrap_err();
        assert!(matches!(none, InterfaceError::Counters(CounterError::NotAvailable(_))));
    }
    for processor in processors(Deviations::NONE) {
        match processor.configuration {
            Configuration::Intel(_) => {
                check(&processor, &pmu_intel::Emon::detect(&processor.snapshot).unwrap());
            }
            _ => check(&processor, &pmu_amd::Amd64::detect(&processor.snapshot).unwrap()),
        }
    }
}

/// Another owner's bits of the global control stay, and a borrower is told of them.
#[test]
fn another_owners_bits_of_the_control_stay_in_the_window() {
    for processor in processors(Deviations::NONE) {
        let Some(global) = processor.unit.global() else { continue };
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let (own, others) = (general(&processor, 0), general(&processor, 2).bits());
        let mut counters = processor.take_only(own, &mock, &memory, &table);
        counters.set_others_control(others, true).unwrap();
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        let control = || mock.with_pmu(|pmu| pmu.state().global_control());
        assert_eq!((window.lent().counters(), window.lent().global_control()), (own, others));
        assert_eq!(control(), others, "{processor:?}");
        write(&mock, global.control.get(), own.bits());
        write(&mock, global.control.get(), window.lent().global_control());
        window.end(0).unwrap();
        assert_eq!(control(), own.bits() | others, "{processor:?}");
    }
}

/// An event that is counted only has wrapped, and has counted further than a write of 32 bits reaches.
#[test]
fn a_value_that_no_write_reaches_is_counted_on_exactly() {
    let narrow = IntelConfiguration::new(2, 4, 3)
        .with(|intel| intel.set(IntelFeature::FullWidthWrites, false));
    for processor in [Processor::intel(narrow), plain(2)] {
        let (memory, table) = (Memory::new(), Table::new());
        let handler = |mock: &Mock<'_>| {
            let source = pmu_core::Events::new(&processor.unit, &table);
            service(&source, mock, &memory, |o| panic!("{o:?}")).unwrap();
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let event = counters.open(&processor.unit, &[raw(3)]).unwrap();
        counters.enable(event, 0).unwrap();
        let counter = counters.counter_of(event).unwrap();
        let preload = mock.with_pmu(|pmu| pmu.state().general()[usize::from(counter.number())]);
        let to_wrap = (1 << 48) - preload;
        let mut counted = to_wrap + (1 << 33) + 5;
        happen(&mock, 3, counted);
        for _ in 0..3 {
            let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
            borrow(&processor, &mock, window.lent(), true);
            window.end(0).unwrap();
            assert_eq!(total(&counters, event), counted, "{processor:?}");
            happen(&mock, 3, 1 << 32);
            counted += 1 << 32;
            assert_eq!(total(&counters, event), counted, "{processor:?}");
        }
        let stopped = counters.disable(event, 0);
        assert_eq!((stopped, total(&counters, event)), (Ok(()), counted), "{processor:?}");
    }
}

/// Interrupts of the guest's at each access of the window's beginning and end, by the guest's or the host's counters.
#[test]
fn an_interrupt_at_any_access_of_the_window_loses_nothing() {
    for processor in processors(Deviations::NONE) {
        for at in 1..24 {
            let (memory, table) = (Memory::new(), Table::new());
            let counted = Cell::new(0u64);
            let handler = |mock: &Mock<'_>| {
                let source = pmu_core::Events::new(&processor.unit, &table);
                let served = service(&source, mock, &memory, |_| counted.set(counted.get() + 1));
                served.unwrap();
            };
            let mock = processor.mock();
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &memory, &table);
            let event = raw(2).every(PERIOD).with_total();
            let event = counters.open(&processor.unit, &[event]).unwrap();
            counters.enable(event, 0).unwrap();
            mock.interrupt_at(at);
            let window = counters.lend(0, |_| counted.set(counted.get() + 1)).unwrap();
            window.end(0).unwrap();
            mock.interrupt_at(0);
            // Every running counter overflowed then: the whole period has passed, and one event more.
            let overflows = counted.replace(0);
            assert!(overflows <= 1, "{processor:?}, {at}");
            let value = total(&counters, event);
            assert_eq!(value / PERIOD, overflows, "{processor:?}, {at}: {value:#X}");
            happen(&mock, 2, PERIOD);
            assert_eq!(counted.get(), 1, "{processor:?}, {at}");
            assert_eq!(total(&counters, event), value + PERIOD, "{processor:?}, {at}");
        }
    }
}
