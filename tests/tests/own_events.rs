//! Any event of a processor's manual, by a table of the embedder's own, on the software PMU of each vendor.

use core::cell::RefCell;

use pmu::core::{
    CounterMemory, CounterSlot, EventSelect, InterfaceError, KProfileSource, MAX_COUNTERS,
    ProfileInterface, ProfileSource, SavedCounter, SavedCounters, SourceIndex, SourceTable,
};
use pmu::{Events, Machine};
use pmu_tests::deviations::snapshot;
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{
    AmdConfiguration, Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege,
    VirtualPmu,
};

/// An event of the manuals of both vendors (SDM vol. 3B and APM vol. 2): instructions retired, plainly and as
/// cycles with at least four of them, at privilege level 0 only; and two that not every select can have.
static ROWS: [ProfileSource; 4] = [
    ProfileSource::new(0x19, "KernelInstructions", EventSelect::from_bits(0x0002_00C0)),
    ProfileSource::new(0x1A, "KernelBusyCycles", EventSelect::from_bits(0x0402_00C0)),
    ProfileSource::new(0x1B, "OfTwelveBits", EventSelect::from_bits(0x1_0003_00C0)),
    ProfileSource::new(0x1C, "OnAllThreads", EventSelect::from_bits(0x0023_00C0)),
];
static INDEX: SourceIndex<8> = SourceIndex::new(&ROWS);
static TABLE: SourceTable = SourceTable::new(&ROWS, &INDEX);

fn source(row: usize) -> KProfileSource {
    ROWS[row].source()
}

/// Whether the select's bits are legal there, of the last two rows.
const CONFIGURATIONS: [(Configuration, [bool; 2]); 5] = [
    (Configuration::Intel(IntelConfiguration::new(1, 2, 0)), [false, false]),
    (
        Configuration::Intel(IntelConfiguration {
            any_thread: true,
            ..IntelConfiguration::new(3, 4, 3)
        }),
        [false, true],
    ),
    (Configuration::Intel(IntelConfiguration::new(5, 8, 3)), [false, false]),
    (Configuration::Amd(AmdConfiguration::Legacy), [true, false]),
    (Configuration::Amd(AmdConfiguration::PerfMonV2 { counters: 6 }), [true, false]),
];

#[test]
fn any_event_is_counted_where_and_when_its_select_says() {
    for (configuration, _) in CONFIGURATIONS {
        let processor = snapshot(configuration, Deviations::NONE);
        let machine = Machine::detect(&processor);
        let events = Events::<4>::new(&machine, &TABLE);
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let told = RefCell::new(Vec::new());
        let handler = |mock: &MockMsr<'_, 64>| {
            let tell = |overflow: pmu::core::Overflow| told.borrow_mut().push(overflow.source);
            events.service(mock, mock, &memory, tell).unwrap();
        };
        let keys = [EventKey::general(0xC0, 0), EventKey::general(0xC0, 0).counter_mask(4, false)];
        let fed = FedEvents::new(&keys).unwrap();
        let mock = MockMsr::<64>::strict(VirtualPmu::new(configuration, fed).unwrap());
        mock.on_interrupt(&handler);
        let mut session = events.initialize(&processor, &mock, &mock, &memory).unwrap();
        for row in [0, 1] {
            events.set_interval(source(row), 0x1000).unwrap();
            session.start(source(row)).unwrap();
        }
        let happen = |key: usize, privilege, count| {
            let mut feed = Feed::new();
            feed.add(fed.find(keys[key]).unwrap(), privilege, count);
            mock.advance(&mut feed);
        };
        happen(0, Privilege::User, 0x1_0000);
        assert!(told.borrow().is_empty(), "{configuration:?}: at privilege level 0 only");
        happen(0, Privilege::Kernel, 0x2000);
        happen(1, Privilege::Kernel, 0x1000);
        assert_eq!(*told.borrow(), [source(0), source(0), source(1)], "{configuration:?}");
        session.shut_down().unwrap();
    }
}

#[test]
fn an_event_with_bits_that_a_select_cannot_have_is_refused_before_anything_is_written() {
    for (configuration, legal) in CONFIGURATIONS {
        let processor = snapshot(configuration, Deviations::NONE);
        let machine = Machine::detect(&processor);
        let events = Events::<4>::new(&machine, &TABLE);
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let mock = MockMsr::<64>::strict(pmu);
        let mut session = events.initialize(&processor, &mock, &mock, &memory).unwrap();
        for ((row, illegal), legal) in [(2, 1 << 32), (3, 1 << 21)].into_iter().zip(legal) {
            mock.clear();
            let started = session.start(source(row));
            let expected = if legal { Ok(()) } else { Err(InterfaceError::IllegalEvent(illegal)) };
            assert_eq!(started, expected, "{configuration:?}, {}", ROWS[row].name());
            assert!(legal || mock.accesses().total() == 0, "{configuration:?}");
        }
        session.shut_down().unwrap();
    }
}

/// Rows of one table mean nothing in another.
#[test]
fn counters_that_were_saved_with_one_table_are_not_restored_with_another() {
    static OTHERS: [ProfileSource; 1] =
        [ProfileSource::new(0x19, "Cycles", EventSelect::from_bits(0x0003_003C))];
    static OTHER_INDEX: SourceIndex<2> = SourceIndex::new(&OTHERS);
    static OTHER_TABLE: SourceTable = SourceTable::new(&OTHERS, &OTHER_INDEX);
    let (configuration, _) = CONFIGURATIONS[2];
    let processor = snapshot(configuration, Deviations::NONE);
    let machine = Machine::detect(&processor);
    let (events, others) =
        (Events::<4>::new(&machine, &TABLE), Events::<1>::new(&machine, &OTHER_TABLE));
    let mock = MockMsr::<64>::strict(VirtualPmu::new(configuration, FedEvents::NONE).unwrap());
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let mut area = SavedCounters::<[SavedCounter; MAX_COUNTERS]>::new();
    let mut session = events.initialize(&processor, &mock, &mock, &memory).unwrap();
    session.start(source(1)).unwrap();
    session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
    session.shut_down().unwrap();
    let mut session = others.initialize(&processor, &mock, &mock, &memory).unwrap();
    assert_eq!(session.restore(&area), Err(InterfaceError::NotRestorable));
    session.shut_down().unwrap();
    let mut session = events.initialize(&processor, &mock, &mock, &memory).unwrap();
    session.restore(&area).unwrap();
    assert!(session.is_running(source(1)));
    session.shut_down().unwrap();
}
