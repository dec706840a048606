//! User mode's reading of an event: its view, and the shared page.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pmu::core::access::{CounterIndex, RegisterBackend};
use pmu::core::error::CounterError;
use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu::core::profile::{KProfileSource, Session};
use pmu::core::reading::UserView;
use pmu::core::registers::{EventSelect, MAX_COUNTERS};
use pmu::core::thread::{SavedCounter, SavedCounters, ThreadEvent};
use pmu::core::{
    CounterSession, CounterSet, CounterUnit, Event, EventSource, Events, GenericEvent, service,
};
use pmu::user::UserPage;
use pmu_intel::Emon;
use pmu_tests::StateRegisters;
use pmu_tests::deviations::snapshot;
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{EventKey, Mode, Privilege};

type Mock<'h> = MockMsr<'h, 8>;

static INSTRUCTIONS_EVENT: Event = Event::generic(GenericEvent::Instructions);

fn unit(configuration: Configuration) -> CounterUnit {
    pmu_intel::counters(&snapshot(configuration, Deviations::NONE))
}

const VERSION_4: Configuration = Configuration::Intel(IntelConfiguration::new(4, 2, 3));

fn view(index: u32, width: u32, offset: u64) -> UserView {
    UserView {
        index: Some(CounterIndex::new(index)),
        readable: true,
        width,
        offset,
        is_enabled: true,
        enabled: 0,
        running: 0,
        now: 0,
    }
}

fn publish(page: &UserPage, view: UserView) {
    page.publish(None, || Ok::<_, CounterError>(view)).unwrap();
}

#[test]
fn user_mode_reads_what_the_kernel_reads_over_stops_and_wraps() {
    let unit = unit(VERSION_4);
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 4]>::new();
    let source = Events::new(&unit, &events);
    let handler = |mock: &Mock<'_>| {
        service(&source, mock, &memory, |_| ()).unwrap();
    };
    let mock = Mock::strict(pmu(VERSION_4));
    mock.on_interrupt(&handler);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &memory).unwrap();
    let id = counters.open(&unit, &[INSTRUCTIONS_EVENT]).unwrap();
    let page = UserPage::new();
    let user = |page: &UserPage| {
        mock.set_mode(Mode { cpl: 3, pce: true, protected: true });
        let read = page.read(|index| mock.read_counter(CounterIndex::new(index)).unwrap());
        mock.set_mode(KERNEL);
        read
    };
    assert_eq!(user(&page), None, "hidden at first");
    publish(&page, counters.user_view(id, 0).unwrap());
    assert_eq!(user(&page), Some(0), "on no counter");
    let mut expected = 0;
    for _ in 0..2 {
        counters.enable(id, 0).unwrap();
        let published = counters.user_view(id, 0).unwrap();
        assert_eq!((published.index, published.width), (Some(CounterIndex::new(1 << 30)), 48));
        publish(&page, published);
        // Each part with one view: up to the last event before the interrupt, and over it.
        for part in [[0, 1000, (1 << 47) - 2000], [1500, 0, (1 << 47) - 1501], [70, 1 << 46, 1]] {
            for count in part {
                mock.advance(&mut feed(EventKey::fixed(0).unwrap(), Privilege::User, count));
                expected += count;
                assert_eq!(counters.read(id, 0).unwrap().value, expected);
                assert_eq!(user(&page), Some(expected), "{count}");
            }
            publish(&page, counters.user_view(id, 0).unwrap());
        }
        counters.disable(id, 0).unwrap();
        publish(&page, counters.user_view(id, 0).unwrap());
        assert_eq!(user(&page), Some(expected));
        page.hide();
        assert_eq!(user(&page), None);
    }
    assert!(mock.interrupts() >= 2, "{}", mock.interrupts());
}

/// Without full-width writes an interrupt comes each 2³¹ events.
#[test]
fn a_narrow_counters_view_outlives_its_interrupts() {
    let configuration = Configuration::Intel(
        IntelConfiguration::new(2, 2, 0)
            .with(|intel| intel.set(IntelFeature::FullWidthWrites, false)),
    );
    let unit = unit(configuration);
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 4]>::new();
    let source = Events::new(&unit, &events);
    let handler = |mock: &Mock<'_>| {
        service(&source, mock, &memory, |_| ()).unwrap();
    };
    let mock = Mock::strict(pmu(configuration));
    mock.on_interrupt(&handler);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &memory).unwrap();
    let id = counters.open(&unit, &[INSTRUCTIONS_EVENT]).unwrap();
    counters.enable(id, 0).unwrap();
    mock.advance(&mut feed(INSTRUCTIONS, Privilege::User, 1 << 30));
    let published = counters.user_view(id, 0).unwrap();
    assert_eq!(published.width, 48);
    mock.advance(&mut feed(INSTRUCTIONS, Privilege::User, (1 << 31) - 1));
    assert_eq!(mock.interrupts(), 1);
    let value = mock.read_counter(published.index.unwrap()).unwrap();
    assert_eq!(published.total(value), (1 << 30) + (1 << 31) - 1);
}

#[test]
fn an_event_that_another_one_moves_has_another_view() {
    let unit = unit(VERSION_4);
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 4]>::new();
    let mock = Mock::strict(pmu(VERSION_4));
    let source = Events::new(&unit, &events);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &memory).unwrap();
    let moved = counters.open(&unit, &[INSTRUCTIONS_EVENT]).unwrap();
    counters.enable(moved, 0).unwrap();
    mock.advance(&mut feed(EventKey::fixed(0).unwrap(), Privilege::User, 70));
    let before = counters.user_view(moved, 0).unwrap();
    let value = mock.read_counter(before.index.unwrap()).unwrap();
    assert_eq!(before, view(1 << 30, 48, 70u64.wrapping_sub(value | !0 << 48)));
    // The other can be on fixed counter 0 alone.
    let only = INSTRUCTIONS_EVENT.on(CounterSet::fixed(1));
    let other = counters.open(&unit, &[only]).unwrap();
    counters.enable(other, 0).unwrap();
    let after = counters.user_view(moved, 0).unwrap();
    let of_after = || after.total(mock.read_counter(after.index.unwrap()).unwrap());
    assert_eq!((after.index, of_after()), (Some(CounterIndex::new(0)), 70));
    mock.advance(&mut feed(INSTRUCTIONS, Privilege::User, 5));
    assert_eq!(of_after(), 75);
}

#[test]
fn what_user_mode_cannot_read_has_no_view() {
    let configuration = Configuration::Intel(
        IntelConfiguration::new(6, 2, 3)
            .with(|intel| intel.set(IntelFeature::RdpmcUserDisable, true)),
    );
    let unit = unit(configuration);
    assert!(unit.can_deny_user_reads());
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 4]>::new();
    let mock = Mock::strict(pmu(configuration));
    let source = Events::new(&unit, &events);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &memory).unwrap();
    let mut started = |event: Event| {
        let id = counters.open(&unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        (id, counters.user_view(id, 0))
    };
    let branches = Event::raw(EventSelect::from_bits(0xC4));
    let (_, denied) = started(INSTRUCTIONS_EVENT);
    assert_eq!(denied.map(|view| (view.index, view.readable)), Ok((None, false)));
    let (_, allowed) = started(branches.with_user_reads());
    assert!(allowed.is_ok_and(|view| view.index.is_some() && view.readable));
    // Without a total there is nothing to add to.
    let (id, sampling) = started(branches.every(100_000).with_user_reads());
    assert_eq!(sampling, Err(CounterError::NoTotal(id)));
    counters.close(id, 0).unwrap();
    assert_eq!(counters.user_view(id, 0), Err(CounterError::NoSuchEvent(id)));
    // A page of what has no view says that user mode is to ask.
    let page = UserPage::new();
    publish(&page, allowed.unwrap());
    let published = page.publish(None, || counters.user_view(id, 0));
    assert_eq!(published, Err(CounterError::NoSuchEvent(id)));
    assert_eq!(page.read(|_| unreachable!("it is hidden")), None);
    publish(&page, denied.unwrap());
    assert_eq!(page.read(|_| unreachable!("it is denied")), None);
}

/// A page's words are read consistently, or not at all.
#[test]
fn a_reader_never_sees_half_a_publication() {
    static PAGE: UserPage = UserPage::new();
    static STOP: AtomicBool = AtomicBool::new(false);
    static READ: AtomicU64 = AtomicU64::new(0);
    // Every word of a publication follows from its number, and the counter says which one it was read for.
    let publication = |number: u64| view(number as u32, 64, (number << 32) - number);
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
    let failed = || readers.iter().any(std::thread::JoinHandle::is_finished);
    while (number < 20_000 || READ.load(Ordering::Relaxed) < 10_000) && !failed() {
        publish(&PAGE, publication(number));
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

/// A handler interrupts the publication when the task has its view, and the counter is loaded anew. The page then has
/// the view of the new load.
#[test]
fn a_view_that_an_interrupt_made_wrong_is_not_published() {
    let (page, loads, asked) = (UserPage::new(), Cell::new(0), Cell::new(0));
    let view_of_load = || view(0, 48, 1_000 * loads.get());
    let handler = || {
        loads.set(loads.get() + 1);
        publish(&page, view_of_load());
    };
    for interrupts in 0..4 {
        asked.set(0);
        let of_task = || {
            let view = view_of_load();
            if asked.replace(asked.get() + 1) < interrupts {
                (0..interrupts).for_each(|_| handler());
            }
            Ok::<_, CounterError>(view)
        };
        page.publish(None, of_task).unwrap();
        assert_eq!(asked.get(), interrupts + 1, "once for each time that it was interrupted");
        assert_eq!(page.read(|_| 5), Some(1_000 * loads.get() + 5), "{interrupts}");
    }
    // The handler's own.
    handler();
    assert_eq!(page.read(|_| 5), Some(1_000 * loads.get() + 5));
}

#[test]
fn a_page_that_always_changes_is_given_up() {
    let page = UserPage::new();
    publish(&page, view(0, 48, 1));
    let mut attempts = 0;
    let read = page.read(|_| {
        attempts += 1;
        publish(&page, view(0, 48, 1));
        0
    });
    assert_eq!(read, None);
    assert!((2..=64).contains(&attempts), "{attempts}");
    // One change is no reason to give up.
    let mut changes = 1;
    let read = page.read(|_| {
        if changes > 0 {
            changes -= 1;
            publish(&page, view(0, 48, 9));
        }
        3
    });
    assert_eq!(read, Some(12));
}

/// SDM vol. 3B, version 6: bit 37 of a configuration register. A source's counter is hidden from user mode, and so is
/// that of an event without the option, wherever the driver writes the select anew.
#[test]
fn a_sources_counter_is_not_read_by_user_mode() {
    let bit = pmu_tests::field("IA32_PERFEVTSELx", "RDPMC_USR_DISABLE");
    for (version, declared) in [(6, true), (6, false), (5, false)] {
        let mut intel = IntelConfiguration::new(version, 4, 0);
        intel.set(IntelFeature::RdpmcUserDisable, declared);
        let configuration = Configuration::Intel(intel);
        let processor = snapshot(configuration, Deviations::NONE);
        let emon = Emon::detect(&processor).unwrap();
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let events = EventTable::<[EventEntry; 4]>::new();
        let both = Events::new(&emon, &events);
        let unit = both.unit_of(&processor);
        let mock = Mock::strict(pmu(configuration));
        let mut session = Session::take(both, &processor, CounterSet::ALL, &mock, &memory).unwrap();
        let selects = || {
            let selects = mock.with_pmu(|pmu| pmu.state()).selects();
            // Those that run.
            let selects = selects.into_iter().filter(|select| select >> 22 & 1 != 0);
            selects.map(|select| (select & 0xFFFF, select & !0xFFFF_FFFF)).collect::<Vec<_>>()
        };
        let denied = if declared { bit } else { 0 };
        // Cycles.
        let of_source = (0x003C, denied);
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        assert_eq!(selects(), [of_source], "version {version}: started");
        let branches = Event::raw(EventSelect::from_bits(0xC4));
        let mispredicted = Event::raw(EventSelect::from_bits(0xC5)).with_user_reads();
        let counters = session.counters_mut();
        let ids = [branches, mispredicted].map(|event| {
            let id = counters.open(&unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
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
