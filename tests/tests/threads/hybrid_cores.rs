//! Sources and events on the cores of a hybrid machine: each core's own CPUID says what it counts.

use core::sync::atomic::AtomicU32;

use pmu_core::error::{CounterError, EventsError};
use pmu_core::memory::CounterMemory;
use pmu_core::profile::{
    AddedSlot, AddedSource, AddedSources, Availability, InterfaceError, KProfileSource,
    ProfileSource, ProfileSources, Session, SourceIndex, SourceTable,
};
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::thread::{SavedCounter, SavedCounters, ThreadEvent};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, EventSource, Events, GenericEvent};
use pmu_intel::Emon;
use pmu_tests::Reason;
use pmu_tests::StateRegisters;
use pmu_tests::opened::{self, Memory, Mock, Processor, Table, raw, running};
use pmu_virt::configuration::{IntelConfiguration, IntelFeature};

type Area = SavedCounters<[SavedCounter; MAX_COUNTERS]>;

const CYCLES: KProfileSource = KProfileSource::TOTAL_CYCLES;
const INSTRUCTIONS: KProfileSource = KProfileSource::TOTAL_ISSUES;
const MISSES: KProfileSource = KProfileSource::BRANCH_MISPREDICTIONS;

/// A core of version 6, with counters of the same number on every core.
fn core(change: impl FnOnce(&mut IntelConfiguration)) -> Processor {
    Processor::intel(IntelConfiguration::new(6, 6, 3).with(change))
}

/// A core with every architectural event of version 1, and one without mispredicted branches (leaf 0x0A, EBX bit 6).
fn whole_and_lacking() -> [Processor; 2] {
    [core(|_| ()), core(|intel| intel.events = 0b11_1111)]
}

/// A core with unit mask 2 (leaf 0x23, EBX bit 0; select bits 47:40), and one without.
fn with_and_without_unit_mask_2() -> [Processor; 2] {
    [core(|intel| intel.set(IntelFeature::UnitMask2, true)), core(|_| ())]
}

/// Selects of the counters that run.
fn selects(mock: &Mock<'_>) -> Vec<u64> {
    let selects = mock.with_pmu(|pmu| pmu.state()).selects();
    selects.into_iter().filter(|select| select >> 22 & 1 != 0).collect()
}

fn refused<I: EventSource>(
    mock: &Mock<'_>,
    session: &mut Session<'_, I, &Mock<'_>>,
    source: KProfileSource,
    error: InterfaceError,
) {
    mock.clear();
    let information = session.query(source);
    let found = (information.availability, information.interval);
    assert_eq!(found, (Availability::Unsupported, 0));
    assert_eq!(session.start(source), Err(error));
    assert!(!session.is_running(source));
    assert_eq!(mock.accesses().total(), 0, "before anything is written");
}

#[test]
fn a_source_whose_event_the_core_lacks_is_unsupported_there() {
    let [whole, lacking] = whole_and_lacking();
    let emon = Emon::detect(&whole.snapshot).unwrap();
    assert!(emon.query(MISSES).is_supported(), "the machine's");
    let memories = [Memory::new(), Memory::new()];
    let (mock, other) = (whole.mock(), lacking.mock());
    let mut here =
        Session::take(&emon, &whole.snapshot, CounterSet::GENERAL, &mock, &memories[0]).unwrap();
    let mut there =
        Session::take(&emon, &lacking.snapshot, CounterSet::GENERAL, &other, &memories[1]).unwrap();
    assert_eq!(here.query(MISSES).availability, Availability::Verified);
    here.start(MISSES).unwrap();
    let unsupported = InterfaceError::UnsupportedSource(MISSES);
    refused(&other, &mut there, MISSES, unsupported);
    // It has the others, and time.
    assert_eq!(there.query(CYCLES).availability, Availability::Verified);
    assert!(there.query(KProfileSource::TIME).is_supported());
    there.start(CYCLES).unwrap();
    // The same after its registers were lost.
    other.lose_registers();
    there.reprogram(|o| panic!("{o:?}")).unwrap();
    refused(&other, &mut there, MISSES, unsupported);
    // And after counters went to another owner, and came back.
    let last = CounterSet::from_bits(1 << 5);
    there.counters_mut().give_back(last).unwrap();
    refused(&other, &mut there, MISSES, unsupported);
    there.counters_mut().take_more(&lacking.unit, last).unwrap();
    refused(&other, &mut there, MISSES, unsupported);
    assert_eq!(running(&other).len(), 1);
    // The memory is the next session's, of a machine that never had the event.
    there.shut_down().unwrap();
    let emon = Emon::detect(&lacking.snapshot).unwrap();
    let mut next =
        Session::take(&emon, &whole.snapshot, CounterSet::GENERAL, &mock, &memories[1]).unwrap();
    refused(&mock, &mut next, MISSES, unsupported);
}

#[test]
fn a_source_that_another_core_saved_is_not_restored_where_its_event_lacks() {
    let [whole, lacking] = whole_and_lacking();
    let emon = Emon::detect(&whole.snapshot).unwrap();
    let memories = [Memory::new(), Memory::new()];
    let (mock, other) = (whole.mock(), lacking.mock());
    let mut here =
        Session::take(&emon, &whole.snapshot, CounterSet::GENERAL, &mock, &memories[0]).unwrap();
    let mut there =
        Session::take(&emon, &lacking.snapshot, CounterSet::GENERAL, &other, &memories[1]).unwrap();
    for source in [INSTRUCTIONS, MISSES] {
        here.start(source).unwrap();
    }
    let mut area = Area::new();
    here.save(&mut area, |o| panic!("{o:?}")).unwrap();
    other.clear();
    let refused = InterfaceError::Counters(CounterError::NotRestorable);
    assert_eq!(there.restore(&area), Err(refused));
    assert_eq!(other.accesses().total(), 0);
    // Without that source it goes on there, and with it here.
    here.restore(&area).unwrap();
    here.stop(MISSES).unwrap();
    here.save(&mut area, |o| panic!("{o:?}")).unwrap();
    there.restore(&area).unwrap();
    assert!(there.is_running(INSTRUCTIONS));
    assert_eq!(running(&other).len(), 1);
}

/// Emon's counters with a table of its own, whose source has a bit of unit mask 2.
struct Wide(Emon, ProfileSources<[AtomicU32; ROWS.len()]>);

static ROWS: [ProfileSource; 2] = [
    ProfileSource::new(0, "ProfileTime", EventSelect::from_bits(0)),
    ProfileSource::new(2, "ProfileTotalIssues", EventSelect::from_bits(1 << 40 | 0x3_01D0)),
];
static INDEX: SourceIndex<4> = SourceIndex::new(&ROWS);
static TABLE: SourceTable = SourceTable::new(&ROWS, &INDEX);

impl Wide {
    fn of(boot: &Snapshot) -> Self {
        let emon = Emon::detect(boot).unwrap();
        let sources = ProfileSources::new("Wide", *emon.unit());
        Self(emon, sources)
    }
}

// SAFETY: the units are Emon's, and there are no opened events.
unsafe impl EventSource for Wide {
    type Processor = Snapshot;
    type Facility = ();

    fn facility(&self) {}

    fn profile_sources(&self) -> &ProfileSources {
        &self.1
    }
    fn table(&self) -> &'static SourceTable {
        &TABLE
    }
    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        self.0.unit_of(processor)
    }
    fn requires_memory(&self) -> bool {
        true
    }
}

#[test]
fn a_source_with_a_select_bit_that_the_core_lacks_is_unsupported_there() {
    // Whichever of them is the boot core.
    for boot in with_and_without_unit_mask_2() {
        let [with, without] = with_and_without_unit_mask_2();
        let wide = Wide::of(&boot.snapshot);
        let memories = [Memory::new(), Memory::new()];
        let (mock, other) = (with.mock(), without.mock());
        let mut here =
            Session::take(&wide, &with.snapshot, CounterSet::GENERAL, &mock, &memories[0]).unwrap();
        let mut there =
            Session::take(&wide, &without.snapshot, CounterSet::GENERAL, &other, &memories[1])
                .unwrap();
        assert_eq!(here.query(INSTRUCTIONS).availability, Availability::Verified);
        here.start(INSTRUCTIONS).unwrap();
        assert_eq!(selects(&mock), [1 << 40 | 0x53_01D0]);
        let unsupported = InterfaceError::UnsupportedSource(INSTRUCTIONS);
        refused(&other, &mut there, INSTRUCTIONS, unsupported);
        let mut area = Area::new();
        here.save(&mut area, |o| panic!("{o:?}")).unwrap();
        let not_restorable = InterfaceError::Counters(CounterError::NotRestorable);
        assert_eq!(there.restore(&area), Err(not_restorable));
        assert_eq!(other.accesses().total(), 0);
    }
}

#[test]
fn an_added_source_is_the_core_s_that_has_its_select_bits() {
    static WIDE: AddedSource = AddedSource::new(
        ProfileSource::new(0x25, "ProfileWide", EventSelect::from_bits(1 << 41 | 0x3_01D0)),
        CounterSet::GENERAL,
    );
    let source = KProfileSource::new(0x25).unwrap();
    for boot in with_and_without_unit_mask_2() {
        let [with, without] = with_and_without_unit_mask_2();
        let added: &'static AddedSources =
            Box::leak(Box::new(AddedSources::<[AddedSlot; 1]>::new()));
        added.add(&WIDE).unwrap();
        let emon = Emon::detect(&boot.snapshot).unwrap();
        let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
        let (mock, other) = (with.mock(), without.mock());
        let of = |place: usize| Events::new(&emon, &tables[place]).adding(added);
        let all = CounterSet::ALL;
        let here = Session::take(of(0), &with.snapshot, all, &mock, &memories[0]);
        let there = Session::take(of(1), &without.snapshot, all, &other, &memories[1]);
        let (mut here, mut there) = (here.unwrap(), there.unwrap());
        let information = here.query(source);
        assert_eq!(
            (information.availability, information.interval),
            (Availability::Verified, 65_536)
        );
        here.start(source).unwrap();
        assert_eq!(selects(&mock), [1 << 41 | 0x53_01D0]);
        let illegal = CounterError::IllegalBits(1 << 41);
        refused(&other, &mut there, source, InterfaceError::Counters(illegal));
    }
}

/// SDM vol. 3B, version 6: bit 37 of a configuration register, which leaf 0x23, EBX bit 2, declares for each core. On
/// a core without it the bit is reserved: setting it faults.
#[test]
fn a_source_hides_its_counter_from_user_mode_where_the_core_can() {
    let kinds = || [core(|intel| intel.set(IntelFeature::RdpmcUserDisable, true)), core(|_| ())];
    for boot in kinds() {
        let emon = Emon::detect(&boot.snapshot).unwrap();
        for (processor, hidden) in kinds().into_iter().zip([1 << 37, 0]) {
            let expected = [hidden | 0x53_003C];
            let (mock, memory) = (processor.mock(), Memory::new());
            let session =
                Session::take(&emon, &processor.snapshot, CounterSet::GENERAL, &mock, &memory);
            let mut session = session.unwrap();
            session.start(CYCLES).unwrap();
            assert_eq!(selects(&mock), expected, "started");
            let mut area = Area::new();
            session.save(&mut area, |o| panic!("{o:?}")).unwrap();
            session.start(INSTRUCTIONS).unwrap();
            session.stop(INSTRUCTIONS).unwrap();
            session.restore(&area).unwrap();
            assert_eq!(selects(&mock), expected, "restored");
            mock.lose_registers();
            session.reprogram(|o| panic!("{o:?}")).unwrap();
            assert_eq!(selects(&mock), expected, "programmed again");
        }
    }
}

/// The boot core cannot deny RDPMC; the core that the event runs on can, and does.
#[test]
fn an_event_that_its_core_hides_from_user_mode_has_no_view() {
    let (boot, hiding) =
        (core(|_| ()), core(|intel| intel.set(IntelFeature::RdpmcUserDisable, true)));
    let (memory, table, mock) = (Memory::new(), Table::new(), hiding.mock());
    let mut counters = on_core(&boot, &hiding, &mock, &memory, &table);
    for (event, hidden) in [(raw(2), true), (raw(2).with_user_reads(), false)] {
        let id = counters.open(&hiding.unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        let counter = counters.counter_of(id).unwrap();
        let view = counters.user_view(id, 0).unwrap();
        let index = hiding.unit.counter(counter).unwrap().read_index();
        let expected = if hidden { (None, false) } else { (index, true) };
        assert_eq!((view.index, view.readable), expected);
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
    let source = Events::new(&boot.unit, table);
    CounterSession::take(source, &processor.unit, CounterSet::ALL, mock, memory).unwrap()
}

#[test]
fn a_thread_s_named_event_stands_still_with_its_group_where_the_core_lacks_it() {
    let [whole, lacking] = whole_and_lacking();
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let (mock, other) = (whole.mock(), lacking.mock());
    let mut here = on_core(&whole, &whole, &mock, &memories[0], &tables[0]);
    let mut there = on_core(&whole, &lacking, &other, &memories[1], &tables[1]);
    let misses = Event::generic(GenericEvent::BranchMisses);
    let alone = here.open(&whole.unit, &[misses]).unwrap();
    // Neither core says its type: the same event by its number is the caller's to judge.
    let number = Event::raw(EventSelect::from_bits(0xC5));
    let by_number = here.open(&whole.unit, &[number]).unwrap();
    let group = [Event::generic(GenericEvent::Branches), misses];
    let group = here.open(&whole.unit, &group).unwrap();
    let mut thread = [ThreadEvent::Unused; 4];
    let all = [alone, by_number].into_iter().chain(here.group_events(group));
    thread.iter_mut().zip(all).for_each(|(place, id)| *place = ThreadEvent::Opened(id));
    here.enable(alone, 0).unwrap();
    here.enable(by_number, 0).unwrap();
    here.enable(group, 0).unwrap();
    here.switch_out(&mut thread, 10, |o| panic!("{o:?}")).unwrap();
    other.clear();
    assert_eq!(there.switch_in(&lacking.unit, &mut thread, 100), Ok(()));
    assert_eq!(selects(&other), [0x53_00C5], "only the event without a name runs");
    let times = |counters: &opened::Opened<'_, '_>, thread: &[ThreadEvent], now| {
        let count = |event: &ThreadEvent| match event {
            ThreadEvent::Opened(id) => counters.read(*id, now).unwrap(),
            other => panic!("{other:?}"),
        };
        thread.iter().map(count).map(|count| (count.enabled, count.running)).collect::<Vec<_>>()
    };
    assert_eq!(times(&there, &thread, 107), [(17, 10), (17, 17), (17, 10), (17, 10)]);
    there.switch_out(&mut thread, 110, |o| panic!("{o:?}")).unwrap();
    // Back on the core that has it.
    here.switch_in(&whole.unit, &mut thread, 200).unwrap();
    let mut all = selects(&mock);
    all.sort();
    assert_eq!(all, [0x53_00C4, 0x53_00C5, 0x53_00C5, 0x53_00C5]);
    assert_eq!(times(&here, &thread, 203), [(23, 13), (23, 23), (23, 13), (23, 13)]);
}

/// Whichever core it was opened on.
#[test]
fn a_thread_s_event_is_hidden_from_user_mode_on_each_core_that_can_hide_it() {
    let kinds = [core(|_| ()), core(|intel| intel.set(IntelFeature::RdpmcUserDisable, true))];
    for (event, hidden) in [(raw(2), 1 << 37), (raw(2).with_user_reads(), 0)] {
        for first in [0, 1] {
            let mut thread = [ThreadEvent::Unused];
            for (turn, of) in [first, 1 - first, first].into_iter().enumerate() {
                let (memory, table, mock) = (Memory::new(), Table::new(), kinds[of].mock());
                let mut counters = on_core(&kinds[0], &kinds[of], &mock, &memory, &table);
                if turn == 0 {
                    let id = counters.open(&kinds[of].unit, &[event]).unwrap();
                    counters.enable(id, 0).unwrap();
                    thread = [ThreadEvent::Opened(id)];
                } else {
                    counters.switch_in(&kinds[of].unit, &mut thread, 0).unwrap();
                }
                let expected = if of == 1 { hidden } else { 0 } | 0x53_01D0;
                assert_eq!(selects(&mock), [expected], "{first}, {turn}");
                counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
            }
        }
    }
}

/// The session knows its own core; `Machine::unit` is the boot core's.
#[test]
fn events_are_not_taken_by_the_word_of_another_core_and_nothing_reaches_a_register() {
    for [boot, here] in [with_and_without_unit_mask_2(), whole_and_lacking()] {
        let (mock, memory, table) = (here.mock(), Memory::new(), Table::new());
        let source = Events::new(&boot.unit, &table);
        let counters = CounterSession::take(source, &here.unit, CounterSet::ALL, &mock, &memory);
        let mut counters = counters.unwrap();
        mock.clear();
        let other = Err(CounterError::OtherProcessor);
        for event in [raw(2), Event::generic(GenericEvent::BranchMisses), raw(2).every(0x1000)] {
            assert_eq!(counters.open(&boot.unit, &[event]).reason(), other);
            let group = counters.open(&boot.unit, &[event]).map_err(|error| error.reason);
            assert_eq!(group.map(drop), other.map(drop));
        }
        let own = counters.open(&here.unit, &[raw(2)]).unwrap();
        let mut thread = [ThreadEvent::Opened(own)];
        counters.switch_out(&mut thread, 0, |_| ()).unwrap();
        let reason = CounterError::OtherProcessor;
        let in_other = counters.switch_in(&boot.unit, &mut thread, 0);
        assert_eq!(in_other, Err(EventsError { events: 1, reason }));
        assert!(matches!(thread, [ThreadEvent::SwitchedOut(_)]));
        assert_eq!(mock.accesses().total(), 0);
        counters.switch_in(&here.unit, &mut thread, 0).unwrap();
    }
}
