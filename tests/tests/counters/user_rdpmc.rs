//! User mode's reading of an event: its view, and the shared page.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pmu::core::{
    CounterError, CounterMemory, CounterSession, CounterSet, CounterSlot, CounterUnit, Event,
    EventEntry, EventSelect, EventTable, GenericEvent, KProfileSource, MAX_COUNTERS, MsrBackend,
    OpenedEvents, PmcIndex, SavedCounter, SavedCounters, SourceInterface, ThreadEvent, UserView,
    WithOpenedEvents, service,
};
use pmu::user::UserPage;
use pmu_intel::Emon;
use pmu_tests::StateRegisters;
use pmu_tests::deviations::snapshot;
use pmu_tests::software_pmu::*;
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{Configuration, EventKey, IntelConfiguration, Mode, Privilege};

type Mock<'h> = MockMsr<'h, 8>;

static INSTRUCTIONS_EVENT: Event = Event::generic(GenericEvent::Instructions);

fn unit(configuration: Configuration) -> CounterUnit {
    pmu_intel::counters(&snapshot(configuration, Deviations::NONE)).unwrap()
}

const VERSION_4: Configuration = Configuration::Intel(IntelConfiguration::new(4, 2, 3));

fn view(index: u32, width: u32, counted: u64, counted_to: u64) -> UserView {
    UserView { index: PmcIndex::new(index), width, counted, counted_to }
}

#[test]
fn user_mode_reads_what_the_kernel_reads_over_stops_and_wraps() {
    let unit = unit(VERSION_4);
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 4]>::new();
    let source = OpenedEvents::new(&unit, &events);
    let handler = |mock: &Mock<'_>| {
        service(&source, mock, mock, &memory, |_| ()).unwrap();
    };
    let mock = Mock::strict(pmu(VERSION_4));
    mock.on_interrupt(&handler);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &mock, &memory).unwrap();
    let id = counters.open_event(&unit, &INSTRUCTIONS_EVENT).unwrap();
    let page = UserPage::new();
    let user = |page: &UserPage| {
        mock.set_mode(Mode { cpl: 3, pce: true, protected: true });
        let read = page.read(|index| mock.read_pmc(PmcIndex::new(index)).unwrap());
        mock.set_mode(KERNEL);
        read
    };
    assert_eq!(counters.user_view(id), Err(CounterError::NotStarted(id)));
    assert_eq!(user(&page), None, "hidden at first");
    let mut expected = 0;
    for _ in 0..2 {
        counters.start_event(id, 0).unwrap();
        let published = counters.user_view(id).unwrap();
        assert_eq!((published.index, published.width), (PmcIndex::new(1 << 30), 47));
        page.publish(&published);
        // Each part with one view: up to the last event before the interrupt, and over it.
        for part in [[0, 1000, (1 << 47) - 2000], [1500, 0, (1 << 47) - 1501], [70, 1 << 46, 1]] {
            for count in part {
                mock.advance(&mut feed(EventKey::fixed(0).unwrap(), Privilege::User, count));
                expected += count;
                assert_eq!(counters.read_event(id, 0).unwrap().value, expected);
                assert_eq!(user(&page), Some(expected), "{count}");
            }
            page.publish(&counters.user_view(id).unwrap());
        }
        counters.stop_event(id, 0).unwrap();
        page.hide();
        assert_eq!(user(&page), None);
    }
    assert!(mock.interrupts() >= 2, "{}", mock.interrupts());
}

/// Without full-width writes an interrupt comes each 2³¹ events.
#[test]
fn a_narrow_counters_view_outlives_its_interrupts() {
    let configuration = Configuration::Intel(
        IntelConfiguration::new(2, 2, 0).with(|intel| intel.full_width_writes = false),
    );
    let unit = unit(configuration);
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 4]>::new();
    let source = OpenedEvents::new(&unit, &events);
    let handler = |mock: &Mock<'_>| {
        service(&source, mock, mock, &memory, |_| ()).unwrap();
    };
    let mock = Mock::strict(pmu(configuration));
    mock.on_interrupt(&handler);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &mock, &memory).unwrap();
    let id = counters.open_event(&unit, &INSTRUCTIONS_EVENT).unwrap();
    counters.start_event(id, 0).unwrap();
    mock.advance(&mut feed(INSTRUCTIONS, Privilege::User, 1 << 30));
    let published = counters.user_view(id).unwrap();
    assert_eq!(published.width, 31);
    mock.advance(&mut feed(INSTRUCTIONS, Privilege::User, (1 << 31) - 1));
    assert_eq!(mock.interrupts(), 1);
    let value = mock.read_pmc(published.index).unwrap();
    assert_eq!(published.total(value), (1 << 30) + (1 << 31) - 1);
}

#[test]
fn an_event_that_another_one_moves_has_another_view() {
    let unit = unit(VERSION_4);
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 4]>::new();
    let mock = Mock::strict(pmu(VERSION_4));
    let source = OpenedEvents::new(&unit, &events);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &mock, &memory).unwrap();
    let moved = counters.open_event(&unit, &INSTRUCTIONS_EVENT).unwrap();
    counters.start_event(moved, 0).unwrap();
    mock.advance(&mut feed(EventKey::fixed(0).unwrap(), Privilege::User, 70));
    let before = counters.user_view(moved).unwrap();
    let value = mock.read_pmc(before.index).unwrap();
    assert_eq!(before, view(1 << 30, 47, 70, value));
    // The other can be on fixed counter 0 alone.
    let only = INSTRUCTIONS_EVENT.on(CounterSet::fixed(1));
    let other = counters.open_event(&unit, &only).unwrap();
    counters.start_event(other, 0).unwrap();
    let after = counters.user_view(moved).unwrap();
    assert_eq!((after.index, after.counted), (PmcIndex::new(0), 70));
    mock.advance(&mut feed(INSTRUCTIONS, Privilege::User, 5));
    assert_eq!(after.total(mock.read_pmc(after.index).unwrap()), 75);
}

#[test]
fn what_user_mode_cannot_read_has_no_view() {
    let configuration = Configuration::Intel(
        IntelConfiguration::new(6, 2, 3).with(|intel| intel.rdpmc_user_disable = true),
    );
    let unit = unit(configuration);
    assert!(unit.has_user_rdpmc_control());
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 4]>::new();
    let mock = Mock::strict(pmu(configuration));
    let source = OpenedEvents::new(&unit, &events);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &mock, &memory).unwrap();
    let mut started = |event: Event| {
        let id = counters.open_event(&unit, &event).unwrap();
        counters.start_event(id, 0).unwrap();
        (id, counters.counter_of(id).unwrap().only(), counters.user_view(id))
    };
    let branches = Event::raw(EventSelect::from_bits(0xC4));
    let (_, counter, denied) = started(INSTRUCTIONS_EVENT);
    assert_eq!(denied, Err(CounterError::NotAvailable(counter)));
    let (_, _, allowed) = started(branches.with_user_rdpmc());
    assert!(allowed.is_ok());
    // Its interrupt loads the counter, and a view would be wrong from then on.
    let (id, _, sampling) = started(branches.every(100_000).with_total().with_user_rdpmc());
    assert_eq!(sampling, Err(CounterError::HasPeriod(id)));
    counters.close_event(id, 0).unwrap();
    assert_eq!(counters.user_view(id), Err(CounterError::NoSuchEvent(id)));
}

/// Offsets of the page's fields, for a thread that is not written in Rust.
#[test]
fn the_pages_layout_is_fixed() {
    // Offsets by the documentation of `UserPage`.
    let page = UserPage::new();
    page.publish(&view(7, 48, 0x1111, 0x2222));
    assert_eq!(size_of::<UserPage>(), 32);
    let base = (&raw const page).cast::<u8>();
    // SAFETY: 32 bytes of atomics, which no other thread writes, aligned to 8.
    let (words, longs) = unsafe { (*base.cast::<[u32; 3]>(), *base.add(16).cast::<[u64; 2]>()) };
    assert_eq!((words, longs), ([2, 8, 48], [0x1111, 0x2222]));
    #[repr(C)]
    struct Shared(u32, UserPage);
    assert_eq!(offset_of!(Shared, 1), 8);
}

/// A page's words are read consistently, or not at all.
#[test]
fn a_reader_never_sees_half_a_publication() {
    static PAGE: UserPage = UserPage::new();
    static STOP: AtomicBool = AtomicBool::new(false);
    static READ: AtomicU64 = AtomicU64::new(0);
    // Every word of a publication follows from its number, and the counter says which one it was read for.
    let publication = |number: u64| view(number as u32, 64, number << 32, number);
    let readers: [_; 3] = core::array::from_fn(|_| {
        std::thread::spawn(|| {
            let mut last = 0;
            while !STOP.load(Ordering::Relaxed) {
                let mut asked = 0;
                let Some(total) = PAGE.read(|index| {
                    asked = u64::from(index);
                    asked + 5
                }) else {
                    continue;
                };
                assert_eq!(total, (asked << 32) + 5, "of publication {asked}");
                assert!(asked >= last, "{asked} after {last}");
                last = asked;
                READ.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let mut number = 1;
    // Until the readers have seen enough, on a machine with few processors too.
    while number < 20_000 || READ.load(Ordering::Relaxed) < 10_000 {
        PAGE.publish(&publication(number));
        // Pauses of every length, so that readers are met at every step.
        for _ in 0..number % 64 {
            core::hint::spin_loop();
        }
        number += 1;
        if number % 256 == 0 {
            std::thread::yield_now();
        }
    }
    STOP.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn a_page_that_always_changes_is_given_up() {
    let page = UserPage::new();
    page.publish(&view(0, 48, 1, 0));
    let mut attempts = 0;
    let read = page.read(|_| {
        attempts += 1;
        page.publish(&view(0, 48, 1, 0));
        0
    });
    assert_eq!(read, None);
    assert!((2..=64).contains(&attempts), "{attempts}");
    // One change is no reason to give up.
    let mut changes = 1;
    let read = page.read(|_| {
        if changes > 0 {
            changes -= 1;
            page.publish(&view(0, 48, 9, 0));
        }
        3
    });
    assert_eq!(read, Some(12));
}

/// SDM vol. 3B, version 6: bit 37 of a configuration register. A source's counter is hidden from user mode, and so is
/// that of an event without the option, wherever the driver writes the select anew.
#[test]
fn a_sources_counter_is_not_read_by_user_mode() {
    const DENIED: u64 = 1 << 37;
    for (version, declared) in [(6, true), (6, false), (5, false)] {
        let mut intel = IntelConfiguration::new(version, 4, 0);
        intel.rdpmc_user_disable = declared;
        let configuration = Configuration::Intel(intel);
        let processor = snapshot(configuration, Deviations::NONE);
        let emon = Emon::detect(&processor).unwrap();
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let events = EventTable::<[EventEntry; 4]>::new();
        let both = WithOpenedEvents::new(&emon, &events);
        let unit = both.unit_of(&processor);
        let mock = Mock::strict(pmu(configuration));
        let mut session =
            both.initialize(&processor, CounterSet::ALL, &mock, &mock, &memory).unwrap();
        let selects = || {
            let selects = mock.with_pmu(|pmu| pmu.state()).selects();
            // Those that run.
            let selects = selects.into_iter().filter(|select| select >> 22 & 1 != 0);
            selects.map(|select| (select & 0xFFFF, select & !0xFFFF_FFFF)).collect::<Vec<_>>()
        };
        let denied = if declared { DENIED } else { 0 };
        // Cycles.
        let of_source = (0x003C, denied);
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        assert_eq!(selects(), [of_source], "version {version}: started");
        let branches = Event::raw(EventSelect::from_bits(0xC4));
        let mispredicted = Event::raw(EventSelect::from_bits(0xC5)).with_user_rdpmc();
        let counters = session.counters_mut();
        let ids = [branches, mispredicted].map(|event| {
            let id = counters.open_event(&unit, &event).unwrap();
            counters.start_event(id, 0).unwrap();
            id
        });
        let all = [of_source, (0x00C4, denied), (0x00C5, 0)];
        assert_eq!(selects(), all, "version {version}: opened");
        // A thread's, on its way out and in.
        let mut thread = ids.map(ThreadEvent::Opened);
        counters.switch_out(&mut thread, 1, |o| panic!("{o:?}")).unwrap();
        assert_eq!(selects(), [of_source]);
        counters.switch_in(&unit, &mut thread, 2).unwrap();
        assert_eq!(selects(), all, "version {version}: switched in");
        // The source of a process, after another one had its counter.
        let mut area = SavedCounters::<[SavedCounter; MAX_COUNTERS]>::new();
        session.save(&mut area, |o| panic!("{o:?}")).unwrap();
        session.start(KProfileSource::BRANCH_MISPREDICTIONS).unwrap();
        session.stop(KProfileSource::BRANCH_MISPREDICTIONS).unwrap();
        session.restore(&area).unwrap();
        assert_eq!(selects(), all, "version {version}: restored");
        mock.lose_registers();
        session.reprogram(|o| panic!("{o:?}")).unwrap();
        assert_eq!(selects(), all, "version {version}: programmed again");
        session.shut_down().unwrap();
    }
}
