//! Top-down counts of threads, of guests' hosts, and of E-cores.

use core::cell::Cell;

use pmu_core::reading::{RemoteCount, remote_count};
use pmu_core::registers::EventSelect;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{
    Claim, CounterSession, CounterSet, Event, EventCount, EventStatus, Events, service,
};
use pmu_intel::topdown::{TopDownCounts, TopDownPart, TopDownUnit};
use pmu_tests::opened::Random;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::topdown::TopDownMix;
use pmu_virt::{EventKey, FedEvents, Feed, GuestFacility, Privilege, VirtualPmu, Writer};

use crate::support::*;

/// The processor's slots take turns: while a thread that is counted runs, the thread has the counter.
#[test]
fn the_slots_of_each_thread_are_its_own_and_the_processors_are_all() {
    for processor in processors() {
        for whole in [false, true] {
            counting!(processor => mock, kernel, session);
            let group = kernel.open(&mut session, Event::rotating).unwrap();
            if whole {
                session.enable(group, 0).unwrap();
            }
            let mut threads = [(); 3].map(|()| kernel.thread(&session, |event| event));
            let mut expected = [0; 3].map(|_| Expected::of(&processor));
            let (mut all, mut own) = (Expected::of(&processor), Expected::of(&processor));
            let mut random = Random(0xABCD_EF01);
            for _ in 0..60 {
                let (next, mix) = (random.below(3) as usize, MIXES[random.below(4) as usize]);
                let bits = random.below(44);
                let slots = 1 + random.below(1 << bits);
                // A thread that is not counted runs in between.
                pass(&mock, 1_000, MIXES[0]);
                all.add(1_000, MIXES[0]);
                own.add(1_000, MIXES[0]);
                session.switch_in(&kernel.counters, &mut threads[next], 0).unwrap();
                pass(&mock, slots, mix);
                expected[next].add(slots, mix);
                all.add(slots, mix);
                if random.below(3) == 0 {
                    let ThreadEvent::Opened(first) = threads[next][0] else { panic!() };
                    let read = kernel.read(&session, first).unwrap();
                    expected[next].check(&read, 200, "of a running thread");
                }
                session.switch_out(&mut threads[next], 0, |_| ()).unwrap();
                // The next thread sees nothing of this one.
                assert_eq!(mock.with_metrics(|metrics| metrics.metrics()), Some(0));
                assert_eq!(mock.with_pmu(|pmu| pmu.read(0x30C)), pmu_virt::Read::Value(0));
                session.rotate(0).unwrap();
            }
            let mut sum = kernel.read(&session, group).unwrap();
            match whole {
                true => own.check(&sum, 300, &format!("{processor:?}")),
                false => assert_eq!(sum.slots, 0),
            }
            for (thread, expected) in threads.iter().zip(&expected) {
                let counts = kernel.counts_of(thread);
                expected.check(&counts, 200, &format!("{processor:?}"));
                sum = sum.plus(&counts);
            }
            if whole {
                all.check(&sum, 500, &format!("{processor:?}: all"));
            }
            assert_eq!(counts_slots(&mock), whole);
            assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0));
        }
    }
}

/// Groups of the processor and of threads, with filters of their own and with other events, take turns.
#[test]
fn groups_with_their_own_filters_take_turns_and_lose_no_slot() {
    type Filter = fn(Event) -> Event;
    let filters: [(Filter, [bool; 2]); 3] = [
        (|event| event.rotating(), [true, true]),
        (|event| event.rotating().user_only(), [true, false]),
        (|event| event.rotating().kernel_only(), [false, true]),
    ];
    for processor in processors() {
        counting!(processor => mock, kernel, session);
        let usable = session.counters().usable;
        let beside = Event::raw(EventSelect::from_bits(0xC4));
        // In each group, an event of a general counter comes after the slots and before the parts.
        let groups = filters.map(|(filter, _)| {
            let slots = kernel.unit.events(usable).each(filter);
            let mut events = slots.to_vec();
            events.insert(1, filter(beside));
            let group = session.open(&kernel.counters, &events).unwrap();
            session.enable(group, 0).unwrap();
            group
        });
        let mut expected = [0; 3].map(|_| Expected::of(&processor));
        let mut taken = [0; 3];
        let mut counted_branches = [0; 3];
        let mut random = Random(0x1234_0001);
        for turn in 1..100 {
            let first = |group| session.group_events(group).next().unwrap();
            let on = groups.map(|group| session.counter_of(first(group)).is_some());
            assert_eq!(on.iter().filter(|on| **on).count(), 1, "they have one counter");
            let running = on.iter().position(|on| *on).unwrap();
            taken[running] += 1;
            for (privilege, level) in [(Privilege::User, 0), (Privilege::Kernel, 1)] {
                let (slots, mix) = (random.below(1 << 30), MIXES[random.below(4) as usize]);
                pass_at(&mock, privilege, slots, mix);
                if filters[running].1[level] {
                    expected[running].add(slots, mix);
                }
            }
            branches(&mock, 10 * turn);
            counted_branches[running] += if filters[running].1[0] { 10 * turn } else { 0 };
            session.rotate(turn).unwrap();
        }
        assert!(taken.iter().all(|turns| (30..=36).contains(turns)), "{taken:?}");
        for ((group, expected), branches) in groups.into_iter().zip(&expected).zip(counted_branches)
        {
            let mut counts = [EventCount::default(); 10];
            let read = session.read_group(group, 99, &mut counts).unwrap();
            let (others, parts) = counts[..read].split_at(2);
            let of_slots: Vec<_> = others[..1].iter().chain(parts).copied().collect();
            expected.check(&kernel.unit.counts(&of_slots), 80, &format!("{processor:?}"));
            assert_eq!(others[1].value, branches);
            let times = counts[..read].iter().map(|count| (count.enabled, count.running));
            assert!(times.clone().all(|times| times == (others[0].enabled, others[0].running)));
            assert!(others[0].running < others[0].enabled);
        }
        assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0));
        assert!(mock.breach().is_none());
    }
}

/// A part has the state, the times and the count of the slots that it is a part of, however it is asked for.
#[test]
fn a_part_follows_the_slots() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let mut session = kernel.take(&mock);
        let group = kernel.open(&mut session, |event| event.tagged(7)).unwrap();
        let [slots, part] = [0, 4].map(|at| session.group_events(group).nth(at).unwrap());
        let status = |session: &Session<'_, '_>| session.event_status(part).unwrap();
        assert_eq!(status(&session), EventStatus::Off);
        session.enable(group, 100).unwrap();
        let on = session.counter_of(slots).unwrap();
        assert_eq!((status(&session), session.counter_of(part)), (EventStatus::Active(on), None));
        pass(&mock, 510, MIXES[2]);
        let count = session.read(part, 130).unwrap();
        assert_eq!((count.value, count.enabled, count.running), (498, 30, 30));
        let remote = remote_count(&kernel.table, &kernel.counter_memory, part, 130);
        assert_eq!(remote, Ok(RemoteCount::Changing));
        // Neither changes anything.
        session.disable(part, 130).unwrap();
        session.enable(part, 130).unwrap();
        pass(&mock, 510, MIXES[2]);
        assert_eq!(session.read(part, 150).unwrap().value, 2 * 498);
        session.disable(group, 150).unwrap();
        let count = session.read(part, 190).unwrap();
        assert_eq!((count.value, count.enabled, status(&session)), (2 * 498, 50, EventStatus::Off));
        assert_eq!(session.event_tag(part), Ok(7));
        session.close(group, 190).unwrap();
        assert_eq!(session.events().count(), 0);
    }
}

/// A thread's parts come with its slots, in whatever order the kernel keeps them; its children begin at 0.
#[test]
fn the_parts_of_a_thread_come_with_it_in_any_order() {
    for processor in processors() {
        let [one, other] = [processor.mock(), processor.mock()];
        let kernels = [Kernel::new(&processor, &one), Kernel::new(&processor, &other)];
        let mut sessions = [kernels[0].take(&one), kernels[1].take(&other)];
        let mut thread = kernels[0].thread(&sessions[0], |event| event);
        let mut expected = Expected::of(&processor);
        for round in 0..6 {
            let (kernel, mock) = (&kernels[round % 2], [&one, &other][round % 2]);
            let session = &mut sessions[round % 2];
            session.switch_in(&kernel.counters, &mut thread, 10).unwrap();
            pass(mock, 9_000, MIXES[1]);
            expected.add(9_000, MIXES[1]);
            // The parts are taken before the slots.
            thread.reverse();
            session.switch_out(&mut thread, 20, |_| ()).unwrap();
            thread.reverse();
            expected.check(&kernel.counts_of(&thread), 8, &format!("{processor:?}, {round}"));
            for event in &thread {
                let ThreadEvent::SwitchedOut(event) = event else { panic!() };
                let times = (event.count().enabled, event.count().running);
                assert_eq!(times, (10 * (round as u64 + 1), 10 * (round as u64 + 1)));
            }
        }
        // A child of the thread, and its count at its exit.
        let saved = |event: &ThreadEvent| match event {
            ThreadEvent::SwitchedOut(event) => *event,
            _ => panic!("it runs nowhere"),
        };
        let mut children: Vec<_> = thread.iter().map(|event| saved(event).child(3)).collect();
        SavedEvent::make_group(&mut children).unwrap();
        let mut child: Vec<_> = children.into_iter().map(ThreadEvent::SwitchedOut).collect();
        let (kernel, session) = (&kernels[0], &mut sessions[0]);
        session.switch_in(&kernel.counters, &mut child, 0).unwrap();
        pass(&one, 5_100, MIXES[3]);
        session.switch_out(&mut child, 0, |_| ()).unwrap();
        let mut of_child = Expected::of(&processor);
        of_child.add(5_100, MIXES[3]);
        of_child.check(&kernel.counts_of(&child), 2, "of the child");
        for (parent, child) in thread.iter_mut().zip(&child) {
            let mut sum = saved(parent);
            sum.add_count(saved(child).count());
            *parent = ThreadEvent::SwitchedOut(sum);
        }
        expected.add(5_100, MIXES[3]);
        expected.check(&kernel.counts_of(&thread), 10, "of both");
    }
}

/// Slots that are sampled beside a part of them, which a kernel made a group of: the samples come, and the part is 0.
#[test]
fn slots_that_are_sampled_have_no_parts() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let samples = Cell::new(0);
        let handler = |mock: &Mock<'_>| {
            let source = kernel.source();
            let served = service(&source, mock, &kernel.counter_memory, |_| {
                samples.set(samples.get() + 1);
            });
            assert!(served.unwrap().claim != Claim::NotOurs);
        };
        mock.on_interrupt(&handler);
        let mut session = kernel.take(&mock);
        let slots = Event::raw(EventSelect::from_bits(0x0400)).every(100_000).with_total();
        let saved = [slots, Event::part(0)].map(|event| SavedEvent::new(&kernel.counters, &event));
        let mut saved = saved.map(|event| event.unwrap().to_be_enabled(true));
        SavedEvent::make_group(&mut saved).unwrap();
        let mut thread = saved.map(ThreadEvent::SwitchedOut);
        session.switch_in(&kernel.counters, &mut thread, 0).unwrap();
        for _ in 0..5 {
            pass(&mock, 50_000, MIXES[0]);
        }
        session.switch_out(&mut thread, 0, |_| ()).unwrap();
        let counts = thread.map(|event| match event {
            ThreadEvent::SwitchedOut(event) => event.count().value,
            other => panic!("{other:?}"),
        });
        assert_eq!((samples.get(), counts), (2, [250_000, 0]), "{processor:?}");
    }
}

/// Another owner of the registers counts slots, and leaves the shares of them.
fn borrow(mock: &Mock<'_>, slots: u64, mix: TopDownMix) {
    let write = |register, value| {
        let _ = mock.with_pmu(|pmu| pmu.host_write(register, value));
    };
    let control = mock.with_pmu(|pmu| pmu.read(0x38F));
    let metrics = mock.with_metrics(|metrics| metrics.write(Writer::Guest, 0x38F, 1 << 48));
    write(0x38D, 0b11 << 12);
    write(0x38F, 1 << 35);
    pass(mock, slots, mix);
    assert!(metrics.is_some() && mock.with_metrics(|metrics| metrics.metrics()) != Some(0));
    write(0x38D, 0);
    let pmu_virt::Read::Value(control) = control else { panic!("{control:?}") };
    write(0x38F, control);
}

/// In a window, the borrower finds the slots' counter stopped and nothing of the host in it.
#[test]
fn a_window_suspends_the_counts_and_leaves_nothing_of_them() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let mut session = kernel.take(&mock);
        let group = kernel.start(&mut session);
        let mut expected = Expected::of(&processor);
        for round in 0..4u64 {
            pass(&mock, 700 + round, MIXES[1]);
            expected.add(700 + round, MIXES[1]);
            let mut window = session.lend(0, |_| ()).unwrap();
            assert!(!counts_slots(&mock));
            pass(&mock, 5_000, MIXES[2]);
            let held = mock.with_pmu(|pmu| pmu.read(0x30C));
            assert_eq!(held, pmu_virt::Read::Value(0), "{processor:?}");
            assert_eq!(mock.with_metrics(|metrics| metrics.metrics()), Some(0));
            if round == 2 {
                // A borrower that leaves values and status bits there.
                window.lent().set_programmed(true);
                borrow(&mock, 90_000, MIXES[0]);
                let _ = mock.with_pmu(|pmu| pmu.host_write(0x30C, 0x777));
                let _ = mock.with_pmu(|pmu| pmu.host_write(0x38E, 1 << 35));
                let written =
                    mock.with_metrics(|metrics| metrics.write(Writer::Guest, 0x38E, 1 << 48));
                assert!(written.is_some());
            }
            window.end(0).unwrap();
            assert!(counts_slots(&mock));
            assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38E)), pmu_virt::Read::Value(0));
            let status = mock.with_metrics(|metrics| metrics.read(0x38E));
            assert_eq!(status, Some(pmu_virt::Read::Shared { value: 0, mask: 1 << 48 }));
        }
        pass(&mock, 99, MIXES[3]);
        expected.add(99, MIXES[3]);
        expected.check(&kernel.read(&session, group).unwrap(), 10, &format!("{processor:?}"));
    }
}

/// After a suspend, both registers begin again: nothing is lost, or without `suspend` what was counted since the last
/// read.
#[test]
fn after_a_suspend_the_slots_are_counted_on() {
    for processor in processors() {
        for suspends in [false, true] {
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let mut session = kernel.take(&mock);
            let group = kernel.start(&mut session);
            let mut expected = Expected::of(&processor);
            pass(&mock, 1_000, MIXES[1]);
            expected.add(1_000, MIXES[1]);
            if suspends {
                session.suspend(0, |_| ()).unwrap();
            } else {
                kernel.read(&session, group).unwrap();
                pass(&mock, 300, MIXES[0]);
            }
            mock.lose_registers();
            // Firmware counts slots.
            borrow(&mock, 50_000, MIXES[0]);
            let _ = mock.with_metrics(|metrics| metrics.write(Writer::Guest, 0x38E, 1 << 48));
            session.resume(0, |_| ()).unwrap();
            let status = mock.with_metrics(|metrics| metrics.read(0x38E));
            assert_eq!(status, Some(pmu_virt::Read::Shared { value: 0, mask: 1 << 48 }));
            pass(&mock, 2_000, MIXES[2]);
            expected.add(2_000, MIXES[2]);
            expected.check(&kernel.read(&session, group).unwrap(), 2, &format!("{processor:?}"));
        }
    }
}

/// A session that ends leaves nothing in the metrics, and the next one counts.
#[test]
fn the_next_session_counts_and_finds_nothing() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        for round in 1..4 {
            let mut session = kernel.take(&mock);
            let group = kernel.start(&mut session);
            pass(&mock, 255 * round, MIXES[1]);
            if round == 2 {
                assert_eq!(kernel.read(&session, group).unwrap().slots, 510);
            }
            session.shut_down().unwrap();
            assert_eq!(mock.with_metrics(|metrics| metrics.metrics()), Some(0), "{processor:?}");
            assert!(!counts_slots(&mock));
        }
        assert!(mock.breach().is_none());
    }
}

/// An E-core counts each part by a counter: three fixed ones, and the architectural event of the back end.
#[test]
fn an_e_core_has_the_same_parts_as_counts() {
    let intel = IntelConfiguration::new(6, 8, 4).with(|intel| intel.fixed = 0b111_0111);
    let keys = [
        EventKey::fixed(6).unwrap(),
        EventKey::fixed(4).unwrap(),
        EventKey::fixed(5).unwrap(),
        EventKey::general(0xA4, 0x02),
    ];
    let events = FedEvents::new(&keys).unwrap();
    let pmu = VirtualPmu::new(Configuration::Intel(intel), events).unwrap();
    let mock = Mock::strict(pmu);
    let unit = TopDownUnit::of(&mock.snapshot(), &mock).unwrap();
    assert!(!unit.has_metrics() && !unit.has_level_2());
    let counters = pmu_intel::counters(&mock.snapshot());
    let memory = pmu_core::memory::CounterMemory::<[_; 24]>::new();
    let table = pmu_core::memory::EventTable::<[pmu_core::memory::EventEntry; 8]>::new();
    // No facility is needed.
    let source = Events::new(&counters, &table as &pmu_core::memory::EventTable);
    let mut session =
        CounterSession::take(source, &counters, CounterSet::ALL, &mock, &memory).unwrap();
    let feed = |slots: [u64; 4]| {
        let mut feed = Feed::new(&events);
        for (key, slots) in keys.into_iter().zip(slots) {
            feed.add(events.find(key).unwrap(), Privilege::User, slots).unwrap();
        }
        mock.advance(&mut feed);
    };
    let listed = unit.events(session.counters().usable).each(|event| event.user_only().rotating());
    let group = session.open(&counters, &listed).unwrap();
    session.enable(group, 0).unwrap();
    feed([500, 20, 300, 180]);
    let read = |session: &CounterSession<'_, _, _>| {
        let mut counts = [EventCount::default(); 4];
        session.read_group(group, 0, &mut counts).unwrap();
        unit.counts(&counts)
    };
    let counts = read(&session);
    let of = |counts: &TopDownCounts| TopDownPart::LEVEL_1.map(|part| counts.of(part).unwrap());
    assert_eq!((counts.slots, of(&counts)), (1_000, [500, 20, 300, 180]));
    assert_eq!(counts.per_mille(TopDownPart::FrontendBound), Some(300));
    assert_eq!(counts.of(TopDownPart::MemoryBound), None);
    // A thread takes the processor's counters meanwhile.
    let saved = listed.iter().map(|event| SavedEvent::new(&counters, event).unwrap());
    let mut saved: Vec<_> = saved.map(|event| event.to_be_enabled(true)).collect();
    SavedEvent::make_group(&mut saved).unwrap();
    let mut thread: Vec<_> = saved.into_iter().map(ThreadEvent::SwitchedOut).collect();
    session.switch_in(&counters, &mut thread, 0).unwrap();
    session.rotate(0).unwrap();
    let ThreadEvent::Opened(first) = thread[0] else { panic!() };
    let processors = session.group_events(group).next().unwrap();
    let turns = [first, processors].map(|event| session.counter_of(event).is_some());
    feed([1, 2, 3, 4]);
    session.switch_out(&mut thread, 0, |_| ()).unwrap();
    session.rotate(0).unwrap();
    feed([10, 0, 0, 0]);
    let counts: Vec<_> = thread
        .iter()
        .map(|event| match event {
            ThreadEvent::SwitchedOut(event) => event.count(),
            other => panic!("{other:?}"),
        })
        .collect();
    let of_thread = of(&unit.counts(&counts));
    assert!(turns == [true, false] && of_thread == [1, 2, 3, 4], "{turns:?}: {of_thread:?}");
    session.disable(group, 0).unwrap();
    feed([7; 4]);
    assert_eq!(of(&read(&session)), [510, 20, 300, 180]);
    session.close(group, 0).unwrap();
    assert_eq!(session.events().count(), 0);
    assert!(mock.breach().is_none());
}
