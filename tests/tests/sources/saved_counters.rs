//! Save areas, and sources that are restored on other counters.

use core::cell::Cell;

use pmu_amd::{Amd64, Generation, Zen};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{InterfaceError, KProfileSource, Session};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource, Events};
use pmu_intel::Emon;
use pmu_tests::opened::{self, Processor};
use pmu_tests::reports::{Report, service_reports};
use pmu_tests::{FakePlatform, RegisterFile, intel_processor};
use pmu_virt::configuration::{AmdConfiguration, Configuration};
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{FedEvents, VirtualPmu};

#[test]
fn a_save_area_tells_how_many_counters_it_holds() {
    let processor = intel_processor(1, 4);
    let interface = Emon::detect(&processor).unwrap();
    let (msr, platform) = (RegisterFile::intel(4, false), FakePlatform::default());
    let memory = CounterMemory::<[CounterSlot; 4]>::new();
    let mut session =
        Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
            .unwrap();
    let mut area = SavedCounters::<[SavedCounter; 4]>::new();
    assert_eq!((area.len(), area.is_empty()), (0, true), "a new one holds nothing");

    for (running, source) in (0..).zip([
        KProfileSource::TOTAL_CYCLES,
        KProfileSource::TOTAL_ISSUES,
        KProfileSource::BRANCH_INSTRUCTIONS,
    ]) {
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
        assert_eq!((area.len(), area.is_empty()), (running, running == 0));
        session.restore(&area).unwrap();
        assert_eq!(area.len(), running, "it stays as it is");
        session.start(source).unwrap();
    }
    session.shut_down().unwrap();
}

#[test]
fn an_area_with_fewer_places_than_the_session_has_counters_is_refused() {
    let processor = intel_processor(1, 4);
    let interface = Emon::detect(&processor).unwrap();
    let (msr, platform) = (RegisterFile::intel(4, false), FakePlatform::default());
    let memory = CounterMemory::<[CounterSlot; 4]>::new();
    let mut session =
        Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
            .unwrap();
    session.start(KProfileSource::TOTAL_CYCLES).unwrap();
    let mut small = SavedCounters::<[SavedCounter; 3]>::new();
    let mut large = SavedCounters::<[SavedCounter; 5]>::new();
    let refused =
        Err(InterfaceError::Counters(CounterError::InsufficientMemory { needed: 4, lent: 3 }));
    assert_eq!(session.save(&mut small, |overflow| panic!("{overflow:?}")), refused);
    assert!(small.is_empty() && session.is_running(KProfileSource::TOTAL_CYCLES));
    session.save(&mut large, |overflow| panic!("{overflow:?}")).unwrap();
    assert_eq!(large.len(), 1);
    session.restore(&large).unwrap();
    session.shut_down().unwrap();
}

/// Both have the same counters; a row of one table is another event, or none, in the other.
#[test]
fn what_was_saved_with_one_table_of_sources_is_refused_with_another() {
    let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE).unwrap());
    let (zen4, memory) = (mock.snapshot(), CounterMemory::<[CounterSlot; 6]>::new());
    let (zen, windows) = (Zen::detect(&zen4).unwrap(), Amd64::detect(&zen4).unwrap());
    let mut area = SavedCounters::<[SavedCounter; 6]>::new();
    let mut session = Session::take(&zen, &zen4, CounterSet::GENERAL, &mock, &memory).unwrap();
    session.start(Zen::sources(Generation::Zen4).unwrap().last().unwrap().source()).unwrap();
    session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
    session.shut_down().unwrap();
    assert_eq!(area.len(), 1);
    let mut session = Session::take(&windows, &zen4, CounterSet::GENERAL, &mock, &memory).unwrap();
    let refused = Err(InterfaceError::Counters(CounterError::NotRestorable));
    assert_eq!(session.restore(&area), refused);
    assert!(windows.sources().iter().all(|row| !session.is_running(row.source())));
    session.shut_down().unwrap();
}

/// A process's source and the machine's events: while the process is away, an event takes the source's counter.
#[test]
fn a_source_whose_counter_was_taken_meanwhile_is_restored_on_another() {
    for processor in opened::processors(Deviations::NONE) {
        let told = match processor.configuration {
            Configuration::Intel(_) => {
                restored(&processor, &Emon::detect(&processor.snapshot).unwrap())
            }
            _ => restored(&processor, &Amd64::detect(&processor.snapshot).unwrap()),
        };
        assert_eq!(told, 2, "{processor:?}");
    }
}

/// An event is the processor's, and not the process's.
#[test]
fn an_event_counts_on_while_no_sources_counters_are_loaded() {
    for processor in opened::processors(Deviations::NONE) {
        for is_saved in [false, true] {
            match processor.configuration {
                Configuration::Intel(_) => {
                    beside(&processor, &Emon::detect(&processor.snapshot).unwrap(), is_saved);
                }
                _ => beside(&processor, &Amd64::detect(&processor.snapshot).unwrap(), is_saved),
            }
        }
    }
}

/// Starts an event before the sources' counters are saved, or afterwards.
fn beside<I: EventSource<Processor = Snapshot>>(
    processor: &Processor,
    interface: &I,
    is_saved: bool,
) {
    let (memory, table) = (opened::Memory::new(), opened::Table::new());
    let both = Events::new(interface, &table);
    let mock = processor.mock();
    let only = processor.unit.counters() & CounterSet::GENERAL;
    let mut session = Session::take(both, &processor.snapshot, only, &mock, &memory).unwrap();
    session.start(KProfileSource::TOTAL_ISSUES).unwrap();
    let mut area = SavedCounters::<[SavedCounter; MAX_COUNTERS]>::new();
    if is_saved {
        session.save(&mut area, |o| panic!("{o:?}")).unwrap();
    }
    let counters = session.counters_mut();
    let event = counters.open(&processor.unit, &[opened::raw(2)]).unwrap();
    counters.enable(event, 0).unwrap();
    if !is_saved {
        session.save(&mut area, |o| panic!("{o:?}")).unwrap();
    }
    opened::happen(&mock, 2, 55);
    assert_eq!(session.counters_mut().read(event, 0).unwrap().value, 55, "{processor:?}");
    session.restore(&area).unwrap();
    assert!(session.is_running(KProfileSource::TOTAL_ISSUES), "{processor:?}");
    opened::happen(&mock, 2, 55);
    assert_eq!(session.counters_mut().read(event, 0).unwrap().value, 110, "{processor:?}");
    session.shut_down().unwrap();
}

/// Lets two intervals of the source pass, in halves: one before it is saved, the rest after it is restored. Returns
/// the number of its reports.
fn restored<I: EventSource<Processor = Snapshot>>(processor: &Processor, interface: &I) -> u32 {
    const INTERVAL: u64 = 0x1000;
    // Instructions: event 0xC0 of both vendors.
    let source = KProfileSource::TOTAL_ISSUES;
    interface.set_interval(source, INTERVAL).unwrap();
    let (memory, table) = (opened::Memory::new(), opened::Table::new());
    let told = Cell::new(0);
    let both = Events::new(interface, &table);
    let handler = |mock: &opened::Mock<'_>| {
        let count = |report: Report| match report {
            Report::Source(overflow) => {
                assert_eq!((overflow.source, overflow.events), (source, INTERVAL));
                told.set(told.get() + 1);
            }
            Report::Event(overflow) => panic!("{overflow:?}"),
        };
        service_reports(&both, mock, &memory, count).unwrap();
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let only = processor.unit.counters() & CounterSet::GENERAL;
    let mut session = Session::take(both, &processor.snapshot, only, &mock, &memory).unwrap();
    session.start(source).unwrap();
    opened::happen(&mock, 0, INTERVAL / 2);
    let mut area = SavedCounters::<[SavedCounter; MAX_COUNTERS]>::new();
    session.save(&mut area, |o| panic!("{o:?}")).unwrap();
    // Events take all counters but one, and the source's first.
    let counters = session.counters_mut();
    let events: Vec<_> = (1..only.len())
        .map(|_| {
            let id = counters.open(&processor.unit, &[opened::raw(2)]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        })
        .collect();
    let first = only.iter().next().unwrap();
    assert_eq!(counters.counter_of(events[0]), Some(first), "{processor:?}");
    // One more event leaves no counter: nothing is changed.
    let last = counters.open(&processor.unit, &[opened::raw(3)]).unwrap();
    counters.enable(last, 0).unwrap();
    let before = mock.with_pmu(|pmu| pmu.state());
    let refused = Err(InterfaceError::Counters(CounterError::NotRestorable));
    assert_eq!(session.restore(&area), refused, "{processor:?}");
    assert_eq!(mock.with_pmu(|pmu| pmu.state()), before, "{processor:?}");
    session.counters_mut().disable(last, 0).unwrap();
    session.restore(&area).unwrap();
    assert!(session.is_running(source));
    assert_eq!(session.restore(&area), refused, "{processor:?}: it is restored already");
    opened::happen(&mock, 2, 55);
    opened::happen(&mock, 0, INTERVAL / 2 - 1);
    assert_eq!(told.get(), 0, "{processor:?}");
    opened::happen(&mock, 0, 1);
    assert_eq!(told.get(), 1, "{processor:?}");
    opened::happen(&mock, 0, INTERVAL);
    for id in events {
        let count = session.counters_mut().read(id, 1).unwrap();
        assert_eq!(count.value, 55, "{processor:?}");
    }
    // On its way out it leaves the counter where it is now.
    session.save(&mut area, |o| panic!("{o:?}")).unwrap();
    session.restore(&area).unwrap();
    session.shut_down().unwrap();
    assert_eq!(opened::running(&mock), CounterSet::NONE);
    told.get()
}
