//! Events of one type of core of a hybrid machine, whose thread runs on the other, too.

use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, Event, EventCount, EventId, Events, GenericEvent};
use pmu_tests::opened::*;
use pmu_tests::recorded;
use pmu_virt::configuration::IntelConfiguration;

const PERFORMANCE: u32 = 0x4000_0001;
const EFFICIENT: u32 = 0x2000_0001;

/// A core of this type with so many general counters.
fn core(core_type: u32, general: u8) -> Processor {
    let mut core = Processor::intel(IntelConfiguration::new(5, general, 3));
    core.unit.set_core_type(core_type);
    core
}

fn take<'a, 'm>(
    machine: &'a Processor,
    core: &Processor,
    mock: &'m Mock<'m>,
    memory: &'a Memory,
    table: &'a Table,
) -> Opened<'a, 'm> {
    let source = Events::new(&machine.unit, table);
    CounterSession::take(source, &core.unit, CounterSet::ALL, mock, memory).unwrap()
}

fn id(event: ThreadEvent) -> EventId {
    match event {
        ThreadEvent::Opened(id) => id,
        other => panic!("{other:?}"),
    }
}

/// SDM vol. 2A, CPUID, leaf 7, EDX bit 15 (Hybrid), and leaf 0x1A, EAX: read from the dumps by hand.
#[test]
fn a_hybrid_processor_s_type_of_core_is_that_of_its_cpuid() {
    for (file, core_type) in [
        ("intel-alderlake.txt", 0x4000_0001),
        ("intel-arrowlake.txt", 0x4000_0003),
        ("intel-lakefield.txt", 0x2000_0000),
        // Alder Lake-N and Skylake have one type of core, whatever the leaf holds.
        ("intel-gracemont.txt", 0),
        ("intel-skylake.txt", 0),
    ] {
        let unit = pmu_intel::counters(&recorded(file));
        assert_eq!(unit.core_type(), core_type, "{file}");
    }
}

/// `mem_load_retired.l3_miss` of a P-core is something else, or nothing, on an E-core.
#[test]
fn a_raw_event_of_one_type_of_core_counts_nothing_on_the_other() {
    let cores = [core(PERFORMANCE, 8), core(EFFICIENT, 6)];
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let mocks = cores.map(|core| core.mock());
    let [mut first, mut second] =
        [0, 1].map(|n| take(&cores[0], &cores[n], &mocks[n], &memories[n], &tables[n]));
    let units = cores.map(|core| core.unit);
    let kinds = [2, 1, 3, 4, 5];
    let group = first.open(&units[0], &[raw(4), raw(5)]).unwrap();
    let alone = [raw(2).every(0x1000).with_total(), Event::generic(GenericEvent::Cycles)];
    let anywhere = raw(3).on_any_core_type();
    let alone = alone.into_iter().chain([anywhere]);
    let opened = alone.map(|event| first.open(&units[0], &[event]).unwrap());
    let opened: Vec<EventId> = opened.collect();
    opened.iter().for_each(|id| first.enable(*id, 0).unwrap());
    first.enable(group, 0).unwrap();
    let members: Vec<EventId> = first.group_events(group).collect();
    let mut thread = [ThreadEvent::Unused; 5];
    let all = opened.into_iter().chain(members);
    thread.iter_mut().zip(all).for_each(|(place, id)| *place = ThreadEvent::Opened(id));
    let (mut now, mut expected) = (0, [EventCount::default(); 5]);
    for turn in 0..6 {
        let on_second = turn % 2 == 1;
        let (here, mock) =
            if on_second { (&mut second, &mocks[1]) } else { (&mut first, &mocks[0]) };
        if turn > 0 {
            now += 7;
            here.switch_in(&units[turn % 2], &mut thread, now).unwrap();
        }
        for (place, kind) in kinds.into_iter().enumerate() {
            let counts = !on_second || (1..3).contains(&place);
            let on = here.counter_of(id(thread[place])).is_some();
            assert_eq!(on, counts, "turn {turn}, event {place}");
            assert!(here.is_enabled(id(thread[place])));
            happen(mock, kind, 0x300);
            expected[place].enabled += 10;
            expected[place].running += if counts { 10 } else { 0 };
            expected[place].value += if counts { 0x300 } else { 0 };
        }
        now += 10;
        here.rotate(now).unwrap();
        for (place, expected) in expected.iter().enumerate() {
            let count = here.read(id(thread[place]), now);
            assert_eq!(count, Ok(*expected), "turn {turn}, event {place}");
        }
        here.switch_out(&mut thread, now, |o| panic!("{o:?}")).unwrap();
    }
    assert!(mocks.iter().all(|mock| running(mock).is_empty()));
}

/// It is confined to counters that only the other core has.
#[test]
fn an_event_whose_counters_the_core_lacks_stands_still_without_an_error() {
    let cores = [core(0, 8), core(0, 6)];
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let mocks = cores.map(|core| core.mock());
    let [mut first, mut second] =
        [0, 1].map(|n| take(&cores[0], &cores[n], &mocks[n], &memories[n], &tables[n]));
    let event = raw(2).on(CounterSet::from_bits(1 << 7));
    let opened = first.open(&cores[0].unit, &[event]).unwrap();
    first.enable(opened, 0).unwrap();
    let mut thread = [ThreadEvent::Opened(opened)];
    first.switch_out(&mut thread, 5, |o| panic!("{o:?}")).unwrap();
    assert_eq!(second.switch_in(&cores[1].unit, &mut thread, 10), Ok(()));
    let there = id(thread[0]);
    happen(&mocks[1], 2, 9);
    let count = EventCount { value: 0, enabled: 9, running: 5 };
    assert_eq!(second.read(there, 14), Ok(count));
    // Stopped and started there, it keeps its times.
    second.disable(there, 15).unwrap();
    assert_eq!(second.enable(there, 25), Ok(()));
    assert_eq!(second.enable(there, 26), Ok(()));
    second.switch_out(&mut thread, 30, |o| panic!("{o:?}")).unwrap();
    first.switch_in(&cores[0].unit, &mut thread, 40).unwrap();
    happen(&mocks[0], 2, 3);
    let count = EventCount { value: 3, enabled: 17, running: 7 };
    assert_eq!(first.read(id(thread[0]), 42), Ok(count));
}
