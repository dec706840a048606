//! Sources and events on the cores of a hybrid machine: each core's own CPUID says what it counts.

mod opened;

use opened::{Memory, Mock, Processor, Table, raw};
use pmu_core::{
    CounterError, CounterMemory, CounterSet, Counters, Event, EventSelect, NamedEvent,
    OpenedEvents, ThreadEvent,
};
use pmu_tests::StateRegisters;
use pmu_virt::IntelConfiguration;

/// A core of version 6, with counters of the same number on every core.
fn core(change: impl FnOnce(&mut IntelConfiguration)) -> Processor {
    Processor::intel(IntelConfiguration::new(6, 6, 3).with(change))
}

/// A core with every architectural event of version 1, and one without mispredicted branches (leaf 0x0A, EBX bit 6).
fn whole_and_lacking() -> [Processor; 2] {
    [core(|_| ()), core(|intel| intel.events = 0b11_1111)]
}

/// Selects of the counters that run.
fn selects(mock: &Mock<'_>) -> Vec<u64> {
    let selects = mock.with_pmu(|pmu| pmu.state()).selects();
    selects.into_iter().filter(|select| select >> 22 & 1 != 0).collect()
}

/// The boot core cannot deny RDPMC; the core that the event runs on can, and does.
#[test]
fn an_event_that_its_core_hides_from_user_mode_has_no_view() {
    let (boot, hiding) = (core(|_| ()), core(|intel| intel.rdpmc_user_disable = true));
    let (memory, table, mock) = (Memory::new(), Table::new(), hiding.mock());
    let mut counters = on_core(&boot, &hiding, &mock, &memory, &table);
    for (event, hidden) in [(raw(2), true), (raw(2).with_user_rdpmc(), false)] {
        let id = counters.open_event(&hiding.unit, &event).unwrap();
        counters.start_event(id, 0).unwrap();
        let counter = counters.counter_of(id).unwrap().only();
        let view = counters.user_view(id).map(|_| ());
        let not = Err(CounterError::NotAvailable(counter));
        assert_eq!(view, if hidden { not } else { Ok(()) });
    }
}

/// Takes all counters of a core of a machine whose boot core is another one.
fn on_core<'a, 'm>(
    boot: &'a Processor,
    processor: &Processor,
    mock: &'m Mock<'m>,
    memory: &'a CounterMemory,
    table: &'a Table,
) -> opened::Opened<'a, 'm> {
    let source = OpenedEvents::new(&boot.unit, table);
    Counters::take(source, &processor.unit, CounterSet::ALL, mock, mock, memory).unwrap()
}

#[test]
fn a_thread_s_named_event_stays_where_it_is_if_the_core_lacks_it() {
    let [whole, lacking] = whole_and_lacking();
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let (mock, other) = (whole.mock(), lacking.mock());
    let mut here = on_core(&whole, &whole, &mock, &memories[0], &tables[0]);
    let mut there = on_core(&whole, &lacking, &other, &memories[1], &tables[1]);
    let misses = Event::named(NamedEvent::BranchMisses);
    let alone = here.open_event(&whole.unit, &misses).unwrap();
    // The same event by its number is the caller's to judge.
    let number = Event::raw(EventSelect::from_bits(0xC5));
    let by_number = here.open_event(&whole.unit, &number).unwrap();
    let group = [Event::named(NamedEvent::Branches), misses];
    let group = here.open_group(&whole.unit, &group).unwrap();
    let mut thread = [ThreadEvent::Unused; 4];
    let all = [alone, by_number].into_iter().chain(here.group_events(group));
    thread.iter_mut().zip(all).for_each(|(place, id)| *place = ThreadEvent::Opened(id));
    here.start_event(alone, 0).unwrap();
    here.start_event(by_number, 0).unwrap();
    here.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
    let unsupported = Err(CounterError::Unsupported(NamedEvent::BranchMisses));
    let before = thread;
    for place in [0, 3] {
        other.clear();
        let one = &mut thread[place..=place];
        assert_eq!(there.switch_in(&lacking.unit, one, 0), unsupported, "{place}");
        assert_eq!(thread, before, "it stays where it is");
        assert_eq!(other.accesses().total(), 0);
    }
    assert_eq!(there.switch_in(&lacking.unit, &mut thread[1..3], 0), Ok(()));
    assert!(matches!(thread[1..3], [ThreadEvent::Opened(_), ThreadEvent::Opened(_)]));
    assert_eq!(selects(&other), [0x53_00C5]);
    // Back on the core that has it.
    here.switch_in(&whole.unit, &mut thread[..1], 0).unwrap();
    assert_eq!(selects(&mock), [0x53_00C5]);
}
