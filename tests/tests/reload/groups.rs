//! Groups of a session: programmed, sampled, rotated, switched, lent, interrupted and failing.

use core::cell::Cell;

use pmu_core::error::CounterError;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSession, CounterSet, Event, Events};
use pmu_tests::Reason;
use pmu_tests::opened::Random;
use pmu_virt::mock::Fault;
use pmu_virt::reload::ReloadConfiguration;

use crate::support::*;

const ALL: ReloadConfiguration =
    ReloadConfiguration { general: 0xF, fixed: 0, causing_general: 0xF, causing_fixed: 0 };

/// Samples of misses that are `period` within `every` branches.
fn group(period: u64, every: u64) -> [Event; 2] {
    [
        raw(0).every(period).reloaded_by(0b10).tagged(1),
        raw(1).every(every).reloaded_by(0b10).tagged(2),
    ]
}

/// Checks that the group of two is programmed: the first is reloaded by the second, which reloads itself and never
/// interrupts.
#[track_caller]
fn is_programmed(mock: &Mock<'_>, on: [u8; 2], [period, every]: [u32; 2], what: &str) {
    let [sampled, reloading] = on;
    let causes = 1u64 << reloading;
    let mut expected = [
        (sampled, causes, u64::from(period.wrapping_neg())),
        (reloading, causes, u64::from(every.wrapping_neg())),
    ];
    expected.sort_unstable();
    assert_eq!(registers(mock), expected, "{what}");
    assert_eq!(interrupts(mock, sampled), (true, true), "{what}");
    assert_eq!(interrupts(mock, reloading), (false, true), "{what}");
}

fn counters_of(session: &Session<'_, '_>, ids: &[pmu_core::EventId]) -> Vec<u8> {
    ids.iter().map(|id| session.counter_of(*id).expect("a counter").bit()).collect()
}

#[test]
fn samples_come_only_where_the_sampled_event_is_frequent() {
    for freezing in [false, true] {
        let mock = mock(ALL);
        let kernel = Kernel::new(&mock, freezing);
        let handler = |mock: &Mock<'_>| kernel.handle(mock);
        mock.on_interrupt(&handler);
        let mut session = kernel.take(&mock);
        kernel.table.set_min_period(10);
        let opened = session.open(&kernel.unit, &group(50, 1_000)).unwrap();
        session.enable(opened, 0).unwrap();
        let ids: Vec<_> = session.group_events(opened).collect();
        let on = counters_of(&session, &ids);
        is_programmed(&mock, [on[0], on[1]], [50, 1_000], "started");
        let (mut naive, mut random) = (Naive::new(50, 1_000), Random(77));
        for stretch in 0..40 {
            // Rare in most stretches, and frequent in every fifth.
            let rare = if stretch % 5 == 0 { 8 } else { 60 };
            for _ in 0..1_000 {
                let is_miss = random.below(rare) == 0;
                naive.step(is_miss);
                pass(&mock, &[(if is_miss { 0 } else { 1 }, 1)]);
            }
        }
        assert!(naive.samples > 5, "{}", naive.samples);
        assert_eq!(kernel.reported.borrow().len(), naive.samples);
        assert!(kernel.reported.borrow().iter().all(|tag| *tag == 1));
        assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0));
        session.disable(opened, 0).unwrap();
        assert_eq!(registers(&mock), []);
        session.close(opened, 0).unwrap();
        session.shut_down().unwrap();
        assert!(mock.breach().is_none());
    }
}

#[test]
fn the_reloads_follow_a_group_that_moves_rotates_and_is_switched() {
    let mock = mock(ALL);
    let kernel = Kernel::new(&mock, false);
    let mut session = kernel.take(&mock);
    // Three groups of two on four counters, with different periods.
    let groups: Vec<_> = [(5_000, 50_000), (6_000, 60_000), (7_000, 70_000)]
        .into_iter()
        .map(|(period, every)| {
            let events = group(period, every).map(Event::rotating);
            let opened = session.open(&kernel.unit, &events).unwrap();
            session.enable(opened, 0).unwrap();
            (opened, [period as u32, every as u32])
        })
        .collect();
    let check = |session: &Session<'_, '_>, what: &str| {
        let mut expected = vec![];
        for (opened, [period, every]) in &groups {
            let ids: Vec<_> = session.group_events(*opened).collect();
            let Some(reloading) = session.counter_of(ids[1]) else { continue };
            let sampled = session.counter_of(ids[0]).expect("the whole group").bit();
            let causes = reloading.only().bits();
            expected.push((sampled, causes, u64::from(period.wrapping_neg())));
            expected.push((reloading.bit(), causes, u64::from(every.wrapping_neg())));
            assert!(!interrupts(&mock, reloading.bit()).0, "{what}");
            assert!(interrupts(&mock, sampled).0, "{what}");
        }
        expected.sort_unstable();
        assert_eq!(registers(&mock), expected, "{what}");
        assert_eq!(expected.len(), 4, "{what}: two groups of three");
    };
    for turn in 1..12 {
        session.rotate(turn).unwrap();
        check(&session, &format!("turn {turn}"));
    }
    for (opened, _) in groups.iter() {
        session.close(*opened, 12).unwrap();
    }
    assert_eq!(registers(&mock), []);
    // Threads with groups of the same shape and other periods.
    let mut threads = [(5_000, 50_000), (8_192, 80_000)].map(|(period, every)| {
        let mut saved =
            group(period, every).map(|event| SavedEvent::new(&kernel.unit, &event).unwrap());
        SavedEvent::make_group(&mut saved).unwrap();
        let events = saved.map(|event| ThreadEvent::SwitchedOut(event.to_be_enabled(true)));
        (events, [period as u32, every as u32])
    });
    for turn in 0..6 {
        let (events, periods) = &mut threads[turn % 2];
        session.switch_in(&kernel.unit, events, 20).unwrap();
        let ids = events.map(|event| match event {
            ThreadEvent::Opened(id) => id,
            other => panic!("{other:?}"),
        });
        let on = counters_of(&session, &ids);
        is_programmed(&mock, [on[0], on[1]], *periods, "a thread");
        session.switch_out(events, 21, |_| ()).unwrap();
        assert_eq!(registers(&mock), []);
    }
    assert!(mock.breach().is_none());
}

#[test]
fn single_members_windows_and_a_suspend_keep_the_registers_right() {
    let mock = mock(ALL);
    let kernel = Kernel::new(&mock, false);
    let mut session = kernel.take(&mock);
    let opened = session.open(&kernel.unit, &group(5_000, 50_000)).unwrap();
    session.enable(opened, 0).unwrap();
    let ids: Vec<_> = session.group_events(opened).collect();
    let on = counters_of(&session, &ids);
    // Without its reloading event, nothing reloads the sampled one.
    session.disable(ids[1], 0).unwrap();
    assert_eq!(registers(&mock), []);
    session.enable(ids[1], 0).unwrap();
    is_programmed(&mock, [on[0], on[1]], [5_000, 50_000], "enabled again");
    // The borrower finds no counter reloaded.
    let window = session.lend(0, |_| ()).unwrap();
    assert_eq!(registers(&mock), []);
    window.end(0).unwrap();
    is_programmed(&mock, [on[0], on[1]], [5_000, 50_000], "after a window");
    mock.lose_registers();
    session.reprogram(|_| ()).unwrap();
    is_programmed(&mock, [on[0], on[1]], [5_000, 50_000], "after a suspend");
    session.shut_down().unwrap();
    assert_eq!(registers(&mock), []);
}

/// Firmware, or the kernel before, left counters that reload each other: the first group clears them.
#[test]
fn left_over_reloads_of_the_sessions_counters_are_cleared() {
    use pmu_virt::{GuestFacility, Writer};
    let mock = mock(ALL);
    let kernel = Kernel::new(&mock, false);
    for register in [0x1902, 0x1906, 0x190A, 0x190E] {
        let written = mock.with_reloads(|reload| reload.write(Writer::Guest, register, 0b1111));
        assert!(written.is_some());
    }
    let mut session = kernel.take(&mock);
    let event = session.open(&kernel.unit, &[raw(2).every(5_000)]).unwrap();
    session.enable(event, 0).unwrap();
    assert_eq!(registers(&mock), []);
    assert!(interrupts(&mock, session.counter_of(event).unwrap().bit()).0);
    // The same memory, after another owner.
    session.shut_down().unwrap();
    let written = mock.with_reloads(|reload| reload.write(Writer::Guest, 0x1906, 0b1111));
    assert!(written.is_some());
    let mut session = kernel.take(&mock);
    let event = session.open(&kernel.unit, &[raw(2).every(5_000)]).unwrap();
    session.enable(event, 0).unwrap();
    assert_eq!(registers(&mock), []);
}

/// A reload register that faults: the group does not run without its reloads, another event still does.
#[test]
fn a_group_whose_reload_register_faults_does_not_run() {
    for register in [0x1902, 0x1903, 0x1906, 0x1907, 0x190A, 0x190B, 0x190E, 0x190F] {
        let mock = mock(ALL);
        let kernel = Kernel::new(&mock, false);
        let mut session = kernel.take(&mock);
        let beside = session.open(&kernel.unit, &[raw(2).every(5_000)]).unwrap();
        session.enable(beside, 0).unwrap();
        let opened = session.open(&kernel.unit, &group(5_000, 50_000)).unwrap();
        mock.inject(Fault::Register(register));
        let started = session.enable(opened, 0);
        mock.inject(Fault::None);
        let what = format!("{register:#x}: {started:?}");
        let ids: Vec<_> = session.group_events(opened).collect();
        let on = ids.iter().filter(|id| session.counter_of(**id).is_some()).count();
        assert_eq!(on, if started.is_ok() { 2 } else { 0 }, "{what}");
        for counter in 0..4 {
            let runs = interrupts(&mock, counter).1;
            let has_event = ids
                .iter()
                .chain([&beside])
                .any(|id| session.counter_of(*id).is_some_and(|on| on.bit() == counter));
            assert_eq!(runs, has_event, "{what}: counter {counter}");
        }
    }
}

#[test]
fn illegal_combinations_are_typed_errors() {
    let mock = mock(ReloadConfiguration {
        general: 0b0011,
        fixed: 0,
        causing_general: 0b0110,
        causing_fixed: 0,
    });
    let kernel = Kernel::new(&mock, false);
    let mut session = kernel.take(&mock);
    let refused = Err((CounterError::NotReloadable, 0b1));
    let mut open = |events: &[Event]| {
        let opened = session.open(&kernel.unit, events);
        let outcome = opened.map_err(|error| (error.reason, error.events));
        let _ = opened.map(|group| session.close(group, 0));
        outcome.map(|_| ())
    };
    let [sampled, reloading] = group(5_000, 50_000);
    // Counter 1 alone can be reloaded and reload others.
    assert_eq!(open(&[sampled, reloading]), Ok(()));
    for (what, event) in [
        ("a member that the group lacks", sampled.reloaded_by(0b100)),
        ("beyond the first six", sampled.reloaded_by(1 << 6)),
        ("no period", raw(0).reloaded_by(0b10)),
        ("a long period", raw(0).every(1 << 31).reloaded_by(0b10)),
        ("a total", sampled.with_total()),
    ] {
        assert_eq!(open(&[event, reloading]), refused, "{what}");
    }
    // Two events that reload themselves: only counter 1 can.
    let both = [reloading.reloaded_by(0b01), raw(0).every(5_000).reloaded_by(0b10)];
    assert_eq!(open(&both), Err((CounterError::NoFreeCounter, 0b10)));
    assert_eq!(
        open(&[sampled, reloading.on(CounterSet::from_bits(0b1000))]).map_err(|e| e.0),
        Err(CounterError::NoCounterForEvent)
    );
    let alone = session.open(&kernel.unit, &[sampled]);
    assert_eq!(alone.reason(), Err(CounterError::NotReloadable), "in no group");
    let mut unplaced = [sampled, reloading.reloaded_by(0b1000)]
        .map(|event| SavedEvent::new(&kernel.unit, &event).unwrap());
    let made = SavedEvent::make_group(&mut unplaced);
    assert_eq!(
        made.map_err(|error| (error.reason, error.events)),
        Err((CounterError::NotReloadable, 0b10))
    );
    // Switched in without a group.
    let mut events = [ThreadEvent::SwitchedOut(unplaced[0].to_be_enabled(true))];
    let switched = session.switch_in(&kernel.unit, &mut events, 0);
    assert_eq!(switched.map_err(|error| error.reason), Err(CounterError::NotReloadable));
    assert!(matches!(events[0], ThreadEvent::SwitchedOut(_)));
    session.shut_down().unwrap();
    // A source that does not tell the registers.
    let source = Events::new(&kernel.unit, &kernel.table as &pmu_core::memory::EventTable);
    let mut plain =
        CounterSession::take(source, &kernel.unit, CounterSet::ALL, &mock, &kernel.memory).unwrap();
    let opened = plain.open(&kernel.unit, &[sampled, reloading]);
    assert_eq!(opened.map_err(|error| error.reason), Err(CounterError::NotReloadable));
    assert!(mock.breach().is_none());
}

/// An interrupt of a counter that is being started or stopped finds the group whole or not at all.
#[test]
fn an_interrupt_before_each_access_finds_no_counter_that_reloads_itself_with_its_interrupt() {
    for access in 1.. {
        let mock = mock(ALL);
        let kernel = Kernel::new(&mock, false);
        let handler = |mock: &Mock<'_>| kernel.handle(mock);
        mock.on_interrupt(&handler);
        let mut session = kernel.take(&mock);
        let beside = session.open(&kernel.unit, &[raw(2).every(5_000).tagged(3)]).unwrap();
        session.enable(beside, 0).unwrap();
        let opened = session.open(&kernel.unit, &group(5_000, 50_000)).unwrap();
        let (made, inside) = (Cell::new(0), Cell::new(false));
        let before = |mock: &Mock<'_>| {
            if inside.replace(true) {
                return;
            }
            made.set(made.get() + 1);
            for (counter, causes, _) in registers(mock) {
                let itself = causes >> counter & 1 != 0;
                let (interrupts, enabled) = interrupts(mock, counter);
                assert!(!(itself && interrupts && enabled), "counter {counter} before {access}");
            }
            if made.get() == access {
                pass(mock, &[(2, 5_000)]);
            }
            inside.set(false);
        };
        mock.on_access(&before);
        session.enable(opened, 0).unwrap();
        session.disable(opened, 0).unwrap();
        inside.set(true);
        assert_eq!(kernel.unclaimed.get(), 0, "before {access}");
        assert_eq!(registers(&mock), []);
        if made.get() < access {
            assert!(access > 10);
            break;
        }
        assert_eq!(*kernel.reported.borrow(), [3], "before {access}");
    }
}

#[test]
fn a_fault_at_each_access_leaves_no_counter_reloaded_for_an_event_that_does_not_run() {
    for (permanent, access) in
        [false, true].into_iter().flat_map(|permanent| (1..30).map(move |at| (permanent, at)))
    {
        let what = format!("fault {access}, permanent: {permanent}");
        let mock = mock(ALL);
        let kernel = Kernel::new(&mock, false);
        let mut session = kernel.take(&mock);
        let opened = session.open(&kernel.unit, &group(5_000, 50_000)).unwrap();
        mock.inject(if permanent { Fault::From(access) } else { Fault::At(access) });
        let started = session.enable(opened, 0);
        mock.inject(Fault::None);
        if !permanent {
            assert_eq!(started, Ok(()), "{what}");
        }
        let ids: Vec<_> = session.group_events(opened).collect();
        let on: Vec<_> = ids.iter().filter_map(|id| session.counter_of(*id)).collect();
        assert_eq!(on.len(), if started.is_ok() { 2 } else { 0 }, "{what}: {started:?}");
        if started.is_err() {
            // Whatever is left, `reprogram` makes the counters usable again.
            session.reprogram(|_| ()).unwrap();
            assert_eq!(registers(&mock), [], "{what}");
            session.enable(opened, 0).unwrap();
        }
        let on = counters_of(&session, &ids);
        is_programmed(&mock, [on[0], on[1]], [5_000, 50_000], &what);
        mock.inject(if permanent { Fault::From(access) } else { Fault::At(access) });
        let stopped = session.disable(opened, 0);
        mock.inject(Fault::None);
        if stopped.is_err() {
            session.reprogram(|_| ()).unwrap();
        }
        assert_eq!(registers(&mock), [], "{what}: {stopped:?}");
        session.shut_down().unwrap();
    }
}

/// As on a hybrid machine, of whose cores one type alone has the registers.
#[test]
fn a_threads_group_is_not_counted_on_a_core_without_counter_reload_and_no_error_is_returned() {
    let (mock, other) = (mock(ALL), mock(ALL));
    let (kernel, without) = (Kernel::new(&mock, false), Kernel::new(&other, false));
    let mut session = kernel.take(&mock);
    kernel.table.set_min_period(10);
    without.table.set_min_period(10);
    let source = Events::new(&without.unit, &without.table as &pmu_core::memory::EventTable);
    let memory = &without.memory;
    let mut plain =
        CounterSession::take(source, &without.unit, CounterSet::ALL, &other, memory).unwrap();
    let opened = session.open(&kernel.unit, &group(50, 1_000)).unwrap();
    session.enable(opened, 0).unwrap();
    let mut events: Vec<ThreadEvent> =
        session.group_events(opened).map(ThreadEvent::Opened).collect();
    session.switch_out(&mut events, 10, |_| ()).unwrap();
    plain.switch_in(&without.unit, &mut events, 10).unwrap();
    let ids: Vec<_> = events
        .iter()
        .map(|event| match event {
            ThreadEvent::Opened(id) => *id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(ids.iter().all(|id| plain.is_enabled(*id) && plain.counter_of(*id).is_none()));
    plain.switch_out(&mut events, 30, |_| ()).unwrap();
    session.switch_in(&kernel.unit, &mut events, 30).unwrap();
    let ThreadEvent::Opened(sampled) = events[0] else { panic!("{events:?}") };
    assert!(session.counter_of(sampled).is_some());
    session.shut_down().unwrap();
    plain.shut_down().unwrap();
    assert!(mock.breach().is_none() && other.breach().is_none());
}
