//! Counters that a session lends: a guest's window. Nothing of the session's is lost, and its interrupt path touches
//! nothing meanwhile.

use core::cell::{Cell, RefCell};

use pmu_core::{
    Claim, CounterError, CounterSet, EventId, EventOverflow, InterfaceError, KProfileSource,
    LentCounters, Overflow, ProfileInterface, SavedCounter, SavedCounters, Serviced, SwitchError,
    ThreadEvent, WindowError, service,
};
use pmu_tests::StateRegisters;
use pmu_tests::opened::operations::general;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviation, Deviations, Fault, PmiFault};
use pmu_virt::{Configuration, IntelConfiguration, PmuState, Write};

const PERIOD: u64 = 0x1000;

fn state(mock: &Mock<'_>) -> PmuState {
    mock.with_pmu(|pmu| pmu.state())
}

fn write(mock: &Mock<'_>, register: u32, value: u64) {
    let written = mock.with_pmu(|pmu| pmu.write(register, value).answer);
    assert_eq!(written, Write::Done, "{register:#X}");
}

/// Counts on each lent counter, as a guest does. Then disarms and clears them, or leaves them as they are.
fn borrow(processor: &Processor, mock: &Mock<'_>, lent: &mut LentCounters, disarms: bool) {
    lent.set_programmed(true);
    let own = lent.counters();
    let unit = &processor.unit;
    for (number, counter) in own.iter().enumerate() {
        let registers = unit.counter(counter).unwrap();
        write(mock, registers.value_register().get(), 0x1000 + number as u64);
        if !counter.is_fixed() {
            write(mock, registers.control().register().get(), 0x53_003C);
        }
    }
    if !(own & CounterSet::FIXED).is_empty() {
        write(mock, 0x38D, 0xB | 0xB << 4);
    }
    if let Some(global) = unit.global() {
        write(mock, global.control.get(), own.bits());
    }
    // 100 cycles and instructions of the guest's, without an overflow.
    let mut feed = happened(1, 100);
    let _ = mock.pass(&mut feed);
    if !disarms {
        return;
    }
    for counter in own.iter() {
        let registers = unit.counter(counter).unwrap();
        write(mock, registers.control().register().get(), 0);
        write(mock, registers.value_register().get(), 0);
    }
    if let Some(global) = unit.global() {
        write(mock, global.control.get(), lent.global_control());
    }
    lent.set_programmed(false);
}

/// The events of a case: 0 interrupts, 1 is counted, 2 interrupts on a fixed counter where there is one, 3 and 4 are a
/// group.
fn open(processor: &Processor, counters: &mut Opened<'_, '_>) -> Vec<EventId> {
    let unit = &processor.unit;
    let sampled = |kind: usize| raw(kind).every(PERIOD).with_total().tagged(kind as u64);
    let alone = [sampled(2), raw(3), sampled(if processor.fixed() { 0 } else { 4 })];
    let mut events: Vec<EventId> =
        alone.iter().map(|event| counters.open_event(unit, event).unwrap()).collect();
    for event in &events {
        counters.start_event(*event, 0).unwrap();
    }
    if processor.fixed() {
        let group = counters.open_group(unit, &[sampled(5), raw(6)]).unwrap();
        counters.start_group(group, 0).unwrap();
        events.extend(counters.group_events(group));
    }
    events
}

fn kinds(processor: &Processor) -> &'static [usize] {
    if processor.fixed() { &[2, 3, 0, 5, 6] } else { &[2, 3, 4] }
}

/// Returns whether the event of this place interrupts.
fn interrupts(place: usize) -> bool {
    ![1, 4].contains(&place)
}

/// Asserts that each event has counted `before`, and that its period ends where it should.
#[track_caller]
fn assert_exact(
    processor: &Processor,
    mock: &Mock<'_>,
    counters: &Opened<'_, '_>,
    events: &[EventId],
    reports: &RefCell<Vec<EventOverflow>>,
    before: u64,
) {
    let context = format!("{processor:?}");
    for (place, (event, kind)) in events.iter().zip(kinds(processor)).enumerate() {
        assert_eq!(total(counters, *event), before, "{context}: {place}");
        happen(mock, *kind, PERIOD - before % PERIOD - 1);
        assert_eq!(reports.take(), [], "{context}: {place} is early");
        happen(mock, *kind, 1);
        let told: Vec<EventId> = reports.take().iter().map(|overflow| overflow.event).collect();
        let due = if interrupts(place) { vec![*event] } else { vec![] };
        assert_eq!(told, due, "{context}: {place}");
        assert_eq!(
            total(counters, *event),
            before + PERIOD - before % PERIOD,
            "{context}: {place}"
        );
    }
}

/// Processors as the manuals have them, and with interrupts that platforms are known to have.
fn all_processors() -> Vec<Processor> {
    let mut all = processors(Deviations::NONE);
    all.extend(processors(Deviations::of(&[
        Deviation::NestsInterrupts,
        Deviation::MasksOnDelivery,
        Deviation::RaisesOnUnmask,
    ])));
    all
}

#[test]
fn a_guest_in_the_window_leaves_no_trace_in_the_hosts_events() {
    for processor in all_processors() {
        for disarms in [true, false] {
            let (memory, table) = (Memory::new(), Table::new());
            let reports = RefCell::new(vec![]);
            let handler = |mock: &Mock<'_>| {
                let source = pmu_core::OpenedEvents::new(&processor.unit, &table);
                service(&source, mock, mock, &memory, |o| reports.borrow_mut().push(o)).unwrap();
            };
            let mock = processor.mock();
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &memory, &table);
            let events = open(&processor, &mut counters);
            kinds(&processor).iter().for_each(|kind| happen(&mock, *kind, 0x700));
            let before = state(&mock);
            for round in 0..2 {
                let mut window = counters.lend(round, |o| panic!("{o:?}")).unwrap();
                assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
                borrow(&processor, &mock, window.lent(), disarms);
                window.end(round).unwrap();
                assert_eq!(state(&mock), before, "{processor:?}, {disarms}");
            }
            assert_exact(&processor, &mock, &counters, &events, &reports, 0x700);
            counters.shut_down().unwrap();
            assert_eq!(running(&mock), CounterSet::NONE);
        }
    }
}

/// The interrupt of a guest's counter was served as the host's: acknowledged, and the control register overwritten.
#[test]
fn an_interrupt_in_the_window_touches_nothing_and_is_said_to_be_the_borrowers() {
    for processor in all_processors() {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = pmu_core::OpenedEvents::new(&processor.unit, &table);
        let mut counters = processor.take(&mock, &memory, &table);
        let events = open(&processor, &mut counters);
        let serve = || service(&source, &mock, &mock, &memory, |o| panic!("{o:?}")).unwrap();
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
        let source = pmu_core::OpenedEvents::new(&processor.unit, &table);
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
        let late = service(&source, &mock, &mock, &memory, |o| panic!("{o:?}")).unwrap();
        assert!(late.lent && late.claim != Claim::NotOurs, "{processor:?}");
        window.end(0).unwrap();
        let none = service(&source, &mock, &mock, &memory, |o| panic!("{o:?}")).unwrap();
        assert_eq!(none.overflows, 0);
        assert_eq!(total(&counters, events[0]), PERIOD + more, "{processor:?}");
        let told = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let source = pmu_core::OpenedEvents::new(&processor.unit, &table);
            service(&source, mock, mock, &memory, |o| told.borrow_mut().push(o.event)).unwrap();
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
            let event = counters.open_event(&processor.unit, &raw(kind).rotating()).unwrap();
            counters.start_event(event, 100).unwrap();
            event
        });
        counters.lend(130, |o| panic!("{o:?}")).unwrap().end(1_000).unwrap();
        let times = |event| {
            let count = counters.read_event(event, 1_005).unwrap();
            (count.enabled, count.running)
        };
        assert_eq!([times(runs), times(waits)], [(35, 35), (35, 0)], "{processor:?}");
    }
}

/// A fault at any access that passes: done, and exact. It is tried again at the same place.
#[test]
fn a_fault_that_passes_leaves_everything_exact() {
    for processor in processors(Deviations::NONE) {
        for (at, at_end) in (1..24).flat_map(|at| [(at, false), (at, true)]) {
            let (memory, table) = (Memory::new(), Table::new());
            let reports = RefCell::new(vec![]);
            let handler = |mock: &Mock<'_>| {
                let source = pmu_core::OpenedEvents::new(&processor.unit, &table);
                service(&source, mock, mock, &memory, |o| reports.borrow_mut().push(o)).unwrap();
            };
            let mock = processor.mock();
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &memory, &table);
            let events = open(&processor, &mut counters);
            kinds(&processor).iter().for_each(|kind| happen(&mock, *kind, 0x700));
            let before = state(&mock);
            if !at_end {
                mock.inject(Fault::At(at));
            }
            let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
            mock.inject(Fault::None);
            borrow(&processor, &mock, window.lent(), at % 2 == 0);
            if at_end {
                mock.inject(Fault::At(at));
            }
            window.end(0).unwrap();
            mock.inject(Fault::None);
            assert_eq!(state(&mock), before, "{processor:?}, {at}, {at_end}");
            assert_exact(&processor, &mock, &counters, &events, &reports, 0x700);
        }
    }
}

/// One register does not answer: that counter alone is missing, with those of its event's group. The error names it.
#[test]
fn a_register_that_stays_faulted_takes_its_own_counter_and_its_group_alone() {
    for processor in processors(Deviations::NONE) {
        let own: Vec<_> =
            processor.unit.iter().filter(|(counter, _)| !counter.is_fixed()).collect();
        for (place, broken) in own.iter().take(3).flat_map(|(counter, registers)| {
            [registers.control().register().get(), registers.value_register().get()]
                .map(|register| (counter.only(), register))
        }) {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let events = open(&processor, &mut counters);
            kinds(&processor).iter().for_each(|kind| happen(&mock, *kind, 0x700));
            let before = state(&mock);
            let on: Vec<_> = events.iter().map(|event| counters.counter_of(*event)).collect();
            let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
            borrow(&processor, &mock, window.lent(), true);
            mock.inject(Fault::Register(broken));
            let ended = window.end(0);
            mock.inject(Fault::None);
            let used = on.iter().flatten().any(|counter| place.contains(*counter));
            // A preload may go to the counter's other address.
            if !used || ended == Ok(()) && before == state(&mock) {
                continue;
            }
            let WindowError { counters: lost, fault } = ended.unwrap_err();
            let group: CounterSet = on.iter().skip(3).flatten().copied().collect();
            let expected = if (group & place).is_empty() { place } else { group };
            assert_eq!((lost, fault.register), (expected, broken), "{processor:?}");
            for (event, on) in events.iter().zip(on) {
                let runs = on.is_some_and(|counter| !lost.contains(counter));
                assert_eq!(counters.counter_of(*event), on.filter(|_| runs), "{processor:?}");
                if runs {
                    assert_eq!(total(&counters, *event), 0x700, "{processor:?}");
                }
            }
            assert_eq!(running(&mock) & place, CounterSet::NONE, "{processor:?}");
            let _ = counters.reprogram(|o| panic!("{o:?}")).unwrap();
            assert!(counters.counters().usable.without(place) != counters.counters().usable);
        }
    }
}

/// Nothing can be written any more while the window ends: every counter is named.
#[test]
fn a_second_fault_does_not_hide_the_first() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let events = open(&processor, &mut counters);
        let on: CounterSet =
            events.iter().filter_map(|event| counters.counter_of(*event)).collect();
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        borrow(&processor, &mock, window.lent(), true);
        mock.inject(Fault::From(1));
        let error = window.end(0).unwrap_err();
        mock.inject(Fault::None);
        assert_eq!(error.counters, on, "{processor:?}");
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        let _ = counters.reprogram(|o| panic!("{o:?}")).unwrap();
        for event in &events[..3] {
            if counters.is_started(*event) {
                counters.stop_event(*event, 0).unwrap();
            }
            counters.start_event(*event, 0).unwrap();
        }
        let on: CounterSet =
            events.iter().filter_map(|event| counters.counter_of(*event)).collect();
        assert_eq!(running(&mock), on, "{processor:?}");
    }
}

/// `?` between the beginning and the end of a window drops it, with what a guest left.
#[test]
fn a_forgotten_window_is_recovered_by_the_end_of_the_next_one() {
    for processor in processors(Deviations::NONE) {
        let (memory, table) = (Memory::new(), Table::new());
        let reports = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let source = pmu_core::OpenedEvents::new(&processor.unit, &table);
            let _ = service(&source, mock, mock, &memory, |o| reports.borrow_mut().push(o));
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let usable = counters.counters();
        let events = open(&processor, &mut counters);
        kinds(&processor).iter().for_each(|kind| happen(&mock, *kind, 0x700));
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        borrow(&processor, &mock, window.lent(), false);
        drop(window);
        // Nothing is done with counters that are another owner's.
        let not_available = |error| matches!(error, CounterError::NotAvailable(_));
        mock.clear();
        assert!(counters.reprogram(|o| panic!("{o:?}")).is_err_and(not_available));
        assert!(counters.take_more(&processor.unit, usable.usable).is_err_and(not_available));
        assert!(counters.start_event(events[1], 0).is_err());
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
        counters.lend(0, |o| panic!("{o:?}")).unwrap().end(0).unwrap();
        assert_eq!(reports.take(), []);
        let on: CounterSet =
            events.iter().filter_map(|event| counters.counter_of(*event)).collect();
        assert_eq!((running(&mock), on.len()), (on, events.len()), "{processor:?}");
        // Their periods begin anew, and what was counted before is lost.
        assert_exact(&processor, &mock, &counters, &events, &reports, 0);
        assert_eq!(counters.counters().usable, usable.usable);
        // Shut down while they are lent, no counter runs, and whoever comes next has them.
        drop(counters.lend(0, |o| panic!("{o:?}")).unwrap());
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        let mut next = processor.take(&mock, &memory, &table);
        assert_eq!(next.counters().usable, usable.usable);
        next.shut_down().unwrap();
    }
}

/// Nothing is left over where a lend fails for good: everything goes on, or the error says that it does not.
#[test]
fn a_lend_that_fails_lends_nothing() {
    for processor in processors(Deviations::NONE) {
        for from in 1..20 {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let events = open(&processor, &mut counters);
            let before = state(&mock);
            let mut failed = None;
            for fault in [Fault::From(from), Fault::Register(0x38E), Fault::Register(0x186)] {
                mock.inject(fault);
                failed = failed.or(counters.lend(0, |o| panic!("{o:?}")).map(|_| ()).err());
                mock.inject(Fault::None);
            }
            let Some(error) = failed else { continue };
            let on: CounterSet =
                events.iter().filter_map(|event| counters.counter_of(*event)).collect();
            match error {
                CounterError::Access(_) if state(&mock) == before => {
                    assert_eq!(running(&mock), on, "{processor:?}");
                }
                CounterError::Access(_) | CounterError::Faulted(_) => {
                    assert_eq!(
                        on.without(running(&mock)),
                        CounterSet::NONE,
                        "{processor:?}, {from}"
                    );
                }
                other => panic!("{processor:?}: {other:?}"),
            }
        }
    }
}

/// The session's own sources, by name, and a thread's counters that are saved meanwhile.
#[test]
fn a_session_of_sources_lends_what_runs_and_what_is_saved() {
    fn check<I: ProfileInterface>(processor: &Processor, interface: &I) {
        let (memory, mock) = (Memory::new(), processor.mock());
        let mut session = interface.initialize(&processor.snapshot, &mock, &mock, &memory).unwrap();
        let sources = [KProfileSource::TOTAL_ISSUES, KProfileSource::new(0x06).unwrap()];
        for source in sources {
            session.start(source).unwrap();
        }
        happen(&mock, 0, 0x1234);
        let before = state(&mock);
        let mut window = session.lend(0, |overflow| panic!("{overflow:?}")).unwrap();
        borrow(processor, &mock, window.lent(), true);
        window.end(0).unwrap();
        assert_eq!(state(&mock), before, "{processor:?}");
        assert_eq!(session.read(sources[0]), Ok(0x1234));

        let told: RefCell<Vec<Overflow>> = RefCell::new(vec![]);
        mock.inject_pmi(PmiFault::Lost);
        happen(&mock, 0, 0x1_0000 - 0x1234);
        session.lend(0, |overflow| told.borrow_mut().push(overflow)).unwrap().end(0).unwrap();
        let told = told.take();
        assert_eq!(told.len(), 1, "{processor:?}");
        assert_eq!((told[0].source, told[0].events), (sources[0], 0x1_0000));

        let mut area = SavedCounters::<[SavedCounter; 24]>::new();
        happen(&mock, 0, 7);
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
        let before = state(&mock);
        let mut window = session.lend(0, |overflow| panic!("{overflow:?}")).unwrap();
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
    let narrow = IntelConfiguration::new(2, 4, 3).with(|intel| intel.full_width_writes = false);
    for processor in [Processor::intel(narrow), plain(2)] {
        let (memory, table) = (Memory::new(), Table::new());
        let handler = |mock: &Mock<'_>| {
            let source = pmu_core::OpenedEvents::new(&processor.unit, &table);
            service(&source, mock, mock, &memory, |o| panic!("{o:?}")).unwrap();
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let event = counters.open_event(&processor.unit, &raw(3)).unwrap();
        counters.start_event(event, 0).unwrap();
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
        let stopped = counters.stop_event(event, 0);
        assert_eq!((stopped, total(&counters, event)), (Ok(()), counted), "{processor:?}");
    }
}

/// A thread's events are switched out after a window that was forgotten: their counters are free.
#[test]
fn an_event_that_went_away_after_a_forgotten_window_does_not_come_back() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let event = counters.open_event(&processor.unit, &raw(2)).unwrap();
        counters.start_event(event, 0).unwrap();
        drop(counters.lend(0, |o| panic!("{o:?}")).unwrap());
        let mut thread = [ThreadEvent::Opened(event)];
        let lost = counters.switch_out(&mut thread, 0, |o| panic!("{o:?}"));
        let reason = CounterError::CounterLost(event);
        assert_eq!(lost, Err(SwitchError { events: 1, reason }), "its count is");
        counters.lend(0, |o| panic!("{o:?}")).unwrap().end(0).unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        counters.switch_in(&processor.unit, &mut thread, 0).unwrap();
        assert_eq!(running(&mock).len(), 1, "{processor:?}");
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
                let source = pmu_core::OpenedEvents::new(&processor.unit, &table);
                let served =
                    service(&source, mock, mock, &memory, |_| counted.set(counted.get() + 1));
                served.unwrap();
            };
            let mock = processor.mock();
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &memory, &table);
            let event = raw(2).every(PERIOD).with_total();
            let event = counters.open_event(&processor.unit, &event).unwrap();
            counters.start_event(event, 0).unwrap();
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
