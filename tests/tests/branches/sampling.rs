//! Zen 3's branch sampling, as a part of an event's samples: it samples for one event on one counter, has neither a
//! filter nor freezing, and holds the counter's interrupt until 16 branches are taken.

use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{BranchFilter, BranchKinds, BranchMemory, BranchSlot, Branches};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{Claim, CounterSession, CounterSet, Event, EventId, EventStatus, Events, Sample};
use pmu_tests::Reason;
use pmu_tests::{FakePlatform, Fault};

use super::zen_3::*;

#[test]
fn each_interrupt_has_the_branches_that_were_sampled_the_newest_first() {
    with_scene(|scene| {
        let hardware = scene.hardware;
        // A predecessor left sampling for counter 2.
        hardware.file.set(CONTROL, OTHERS | 2 << 24 | SAMPLING);
        // Nothing can be selected.
        let calls = event().with_branches(BranchFilter::USER.only(BranchKinds::CALLS)).tagged(7);
        let event = scene.open(calls);
        assert_eq!(scene.unit.recorded(calls.branches().unwrap()), Some(BranchFilter::ALL));
        hardware.file.take_writes();
        scene.session.enable(event, 0).unwrap();
        assert_eq!(hardware.file.get(CONTROL), OTHERS | SAMPLING);
        assert_eq!(scene.session.counter_of(event), CounterId::general(0));
        for record in 0..16 {
            hardware.file.set(FIRST + 2 * record, 0x1000 + u64::from(record));
            hardware.file.set(FIRST + 2 * record + 1, 0x2000 + u64::from(record));
        }
        let newest = |last: u64, count: usize| (0..=last).rev().map(|n| 0x1000 + n).take(count);
        let cases: [(u64, Vec<u64>); 5] = [
            (1 << 5, newest(15, 16).collect()),
            (1 << 5 | 5 << 16, newest(4, 5).collect()),
            (1 << 5 | 15 << 16, newest(14, 15).collect()),
            (1 << 5 | 2 << 16, newest(1, 2).collect()),
            (0, vec![]),
        ];
        for (state, expected) in cases {
            hardware.file.set(CONTROL, OTHERS | SAMPLING | state);
            // Overflowed.
            hardware.file.set(COUNTER, 3);
            hardware.interrupt();
            scene.check(&[(7, expected)], &format!("{state:#X}"));
            // It samples again, from the first record on.
            assert_eq!(hardware.file.get(CONTROL), OTHERS | SAMPLING);
        }
        for (register, value) in hardware.file.take_writes() {
            assert!(register != CONTROL || value & STOPPED == STOPPED, "{value:#X}");
        }
        scene.session.disable(event, 1).unwrap();
        hardware.check_clear("stopped");
    });
}

#[test]
fn the_event_is_taken_branches_and_its_counter_overflows_sixteen_before_the_period() {
    let event = |period| {
        let taken = Event::raw(EventSelect::from_bits(TAKEN)).every(period);
        taken.with_branches(BranchFilter::ALL)
    };
    assert_eq!(pmu_amd::branch_sampling_event(17), Some(event(17)));
    assert_eq!(pmu_amd::branch_sampling_event(100_003), Some(event(100_003)));
    assert_eq!([0, 15, 16].map(pmu_amd::branch_sampling_event), [None; 3]);
    assert!(zen_3().1.holds_interrupt());
    with_scene(|scene| {
        scene.start(7);
        let loaded = |scene: &Scene<'_>| {
            (1_u64 << 48) - (scene.hardware.file.get(COUNTER) & ((1 << 48) - 1))
        };
        assert_eq!(loaded(scene), 99_987);
        scene.hardware.overflow(16);
        assert_eq!(loaded(scene), 99_987);
    });
}

#[test]
fn only_the_sampling_of_its_event_on_its_counter_is_offered() {
    let of = |select: u64| {
        let event = Event::raw(EventSelect::from_bits(select)).every(100_003);
        event.with_branches(BranchFilter::ALL)
    };
    with_scene(|scene| {
        let refused = Err(CounterError::NoCounterForEvent);
        // Another event, unit mask, edge, inversion, threshold, and PMCx1C4.
        let others =
            [0xC2, 0x1C4, TAKEN | 1 << 18, TAKEN | 1 << 23, TAKEN | 1 << 24, TAKEN | 1 << 32];
        for select in others {
            let opened = scene.session.open(scene.counters, &[of(select)]);
            assert_eq!(opened.reason(), refused, "{select:#X}");
        }
        let counted = Event::raw(EventSelect::from_bits(TAKEN)).with_branches(BranchFilter::ALL);
        assert_eq!(scene.session.open(scene.counters, &[counted]).reason(), refused);
        for filter in [BranchFilter::USER.call_stack(), BranchFilter::ALL.only(BranchKinds::NONE)] {
            let event = event().with_branches(filter);
            assert_eq!(
                scene.session.open(scene.counters, &[event]).reason(),
                refused,
                "{filter:?}"
            );
        }
        let elsewhere = elsewhere(event());
        let no_counter = Err(CounterError::NoCounterForEvent);
        assert_eq!(scene.session.open(scene.counters, &[elsewhere]).reason(), no_counter);
        // A thread's event is not counted here, and no error.
        let saved = SavedEvent::new(scene.counters, &of(0xC2)).unwrap().to_be_enabled(true);
        let mut thread = [ThreadEvent::SwitchedOut(saved)];
        scene.session.switch_in(scene.counters, &mut thread, 0).unwrap();
        let ThreadEvent::Opened(id) = thread[0] else { panic!("{thread:?}") };
        assert_eq!(scene.session.event_status(id), Ok(EventStatus::Inactive));
        // At either privilege, and without branches on any counter.
        scene.session.open(scene.counters, &[event().user_only()]).unwrap();
        let plain = Event::raw(EventSelect::from_bits(TAKEN)).every(100_003);
        scene.session.open(scene.counters, &[self::elsewhere(plain)]).unwrap();
        scene.hardware.file.fail(Fault::Never);
        let taken = BranchRecorder::take(scene.unit, scene.hardware, scene.records).map(|_| ());
        assert_eq!(taken, Err(BranchError::RecordsForEvents));
        assert_eq!(scene.hardware.file.accesses(), 0);
    });
    // A part of the records would be shown as all of them; and no facility at all.
    let (processor, unit) = zen_3();
    let counters = pmu_amd::counters(&processor);
    let (few, hardware) = (BranchMemory::<[BranchSlot; 15]>::new(), Zen3::new());
    let platform = FakePlatform::default();
    for facility in [Some(Branches::new(&unit, &few)), None] {
        let memory = CounterMemory::<[CounterSlot; 6]>::new();
        let table = EventTable::<[EventEntry; 2]>::new();
        let source = Events::new(&counters, &table as &EventTable).with(facility);
        let session = CounterSession::take(
            source,
            &counters,
            CounterSet::ALL,
            (&hardware, &platform),
            &memory,
        );
        let opened = session.unwrap().open(&counters, &[event()]);
        assert_eq!(opened.reason(), Err(CounterError::BranchesUnsupported));
    }
}

fn elsewhere(event: Event) -> Event {
    event.on(CounterId::general(1).unwrap().only())
}

#[test]
fn two_events_take_turns_on_the_counter() {
    with_scene(|scene| {
        let [one, other] = [1, 2].map(|tag| scene.open(event().rotating().tagged(tag)));
        scene.session.enable(one, 0).unwrap();
        scene.session.enable(other, 0).unwrap();
        for turn in 0..4 {
            let (runs, waits, tag) = if turn % 2 == 0 { (one, other, 1) } else { (other, one, 2) };
            let at = format!("turn {turn}");
            let status = |event| scene.session.event_status(event);
            assert_eq!(
                status(runs),
                Ok(EventStatus::Active(CounterId::general(0).unwrap())),
                "{at}"
            );
            assert_eq!(status(waits), Ok(EventStatus::Inactive), "{at}");
            assert!(scene.hardware.is_sampling());
            scene.hardware.overflow(16);
            scene.check(&[(tag, sampled(16))], &at);
            // It leaves with a held interrupt, whose branches are not the next event's.
            scene.hardware.overflow(5);
            scene.check(&[], &at);
            scene.session.rotate(turn + 1).unwrap();
            scene.check(&[(tag, sampled(5))], &at);
            scene.check_none_expected(&at);
        }
        assert_eq!(scene.hardware.late.get(), 0);
        // Another event on the counter: without branches it does not sample.
        scene.session.disable(one, 9).unwrap();
        scene.session.disable(other, 9).unwrap();
        let plain = Event::raw(EventSelect::from_bits(TAKEN)).every(100_003).tagged(3);
        let plain = plain.on(CounterId::general(0).unwrap().only());
        let plain = scene.open(plain);
        scene.session.enable(plain, 9).unwrap();
        scene.hardware.check_clear("without branches");
        scene.hardware.overflow(16);
        scene.check(&[(3, vec![])], "without branches");
    });
}

/// An operation that takes an event from its counter.
type Leaves = fn(&mut Scene<'_>, EventId, &mut Vec<Taken>);

/// Under a stopped counter, the interrupt that the sampling holds might never come.
#[test]
fn the_sampling_stops_before_its_counter_and_the_held_interrupt_has_its_branches() {
    let leaves: [(&str, bool, Leaves); 6] = [
        ("stop", false, |scene, event, _| scene.session.disable(event, 1).unwrap()),
        ("close", false, |scene, event, _| _ = scene.session.close(event, 1).unwrap()),
        ("period", true, |scene, event, _| {
            scene.session.apply_period(event, 5_000, 1, |_| ()).unwrap();
        }),
        ("switch", false, |scene, event, reported| {
            let mut thread = [ThreadEvent::Opened(event)];
            let report = |sample: Sample<'_, _>| reported.push(taken_of(&sample));
            scene.session.switch_out(&mut thread, 1, report).unwrap();
        }),
        ("suspend", false, |scene, _, reported| {
            scene.session.suspend(1, |sample| reported.push(taken_of(&sample))).unwrap();
        }),
        ("window", true, |scene, _, reported| {
            let report = |sample: Sample<'_, _>| reported.push(taken_of(&sample));
            let window = scene.session.lend(1, report).unwrap();
            window.end(2).unwrap();
        }),
    ];
    for (name, goes_on, leave) in leaves {
        with_scene(|scene| {
            let event = scene.start(7);
            scene.hardware.overflow(4);
            scene.check(&[], name);
            scene.hardware.file.take_writes();
            let mut reported = vec![];
            leave(scene, event, &mut reported);
            let writes = scene.hardware.file.take_writes();
            let is_stop = |(register, value): &(u32, u64)| {
                (*register, value & SAMPLING) == (CONTROL, STOPPED)
            };
            let stopped = writes.iter().position(is_stop).unwrap();
            let counter = writes.iter().position(|(register, _)| *register == SELECT).unwrap();
            assert!(stopped < counter, "{name}: {writes:X?}");
            assert_eq!(scene.hardware.late.get(), 0, "{name}");
            assert_eq!(reported, [], "{name}");
            scene.check(&[(7, sampled(4))], name);
            scene.check_none_expected(name);
            assert_eq!(scene.hardware.is_sampling(), goes_on, "{name}");
            if !goes_on {
                scene.hardware.check_clear(name);
            } else {
                scene.hardware.overflow(16);
                scene.check(&[(7, sampled(16))], name);
            }
        });
    }
}

#[test]
fn a_window_reports_a_held_overflow_with_its_branches_while_interrupts_are_disabled() {
    with_scene(|scene| {
        scene.start(7);
        scene.hardware.overflow(4);
        scene.hardware.is_masked.set(true);
        let mut reported = vec![];
        let window = scene.session.lend(1, |sample| reported.push(taken_of(&sample))).unwrap();
        assert_eq!(reported, [(7, sampled(4))]);
        scene.hardware.check_clear("lent");
        scene.hardware.unmask();
        assert_eq!(scene.claims.take(), [Claim::Ours]);
        // The borrower samples, too.
        scene.hardware.file.set(CONTROL, OTHERS | SAMPLING | 1 << 5 | 3 << 16);
        scene.hardware.file.set(FIRST, 0x66);
        window.end(2).unwrap();
        assert!(scene.hardware.is_sampling());
        // With lost registers, as in a suspend to memory.
        for clears in [false, true] {
            scene.session.suspend(3, |_| ()).unwrap();
            scene.hardware.check_clear("suspended");
            if clears {
                scene.hardware.lose_registers();
            }
            scene.session.resume(4, |_| ()).unwrap();
            assert!(scene.hardware.is_sampling(), "{clears}");
            scene.hardware.overflow(9);
            scene.check(&[], "resumed");
            scene.hardware.overflow(16);
            scene.check(&[(7, sampled(16))], "resumed");
        }
        scene.hardware.lose_registers();
        scene.session.reprogram(|_| ()).unwrap();
        assert!(scene.hardware.is_sampling());
        scene.hardware.overflow(16);
        scene.check(&[(7, sampled(16))], "programmed again");
    });
}

#[test]
fn a_switch_leaves_no_branches_of_the_thread_before() {
    with_scene(|scene| {
        scene.start(7);
        scene.hardware.overflow(4);
        scene.session.switch_out(&mut [], 1, |_| ()).unwrap();
        // The processor's event was not stopped: the interrupt came, without the branches of the thread before.
        scene.check(&[(7, vec![])], "switched");
        assert_eq!(scene.hardware.file.get(FIRST), 0);
        assert!(scene.hardware.is_sampling());
        scene.session.switch_in(scene.counters, &mut [], 1).unwrap();
        scene.hardware.overflow(16);
        scene.check(&[(7, sampled(16))], "switched");
    });
}

#[test]
fn the_session_ends_with_no_sampling_and_a_late_interrupt_is_claimed() {
    for (taken, comes_late) in [(16, false), (4, false), (4, true)] {
        with_scene(|scene| {
            scene.hardware.comes_late.set(comes_late);
            scene.start(7);
            scene.hardware.overflow(taken);
            scene.samples.take();
            scene.session.shut_down().unwrap();
            scene.hardware.check_clear("shut down");
            let claimed = scene.claims.take();
            assert!(!claimed.contains(&Claim::NotOurs), "{taken} {comes_late}: {claimed:?}");
            assert_eq!(
                claimed.len(),
                usize::from(taken == 16 || comes_late),
                "{taken} {comes_late}"
            );
        });
    }
}

#[test]
fn an_idle_processor_does_not_sample_and_holds_no_interrupt() {
    with_scene(|scene| {
        let (hardware, branches) = (scene.hardware, Branches::new(scene.unit, scene.records));
        let without_access = || {
            hardware.file.fail(Fault::Never);
            branches.before_idle(&hardware).unwrap();
            branches.after_idle(&hardware).unwrap();
            assert_eq!(hardware.file.accesses(), 0);
        };
        without_access();
        let event = scene.start(7);
        for _ in 0..2 {
            branches.before_idle(&hardware).unwrap();
            assert_eq!(hardware.file.get(CONTROL), OTHERS | STOPPED);
            branches.after_idle(&hardware).unwrap();
            assert_eq!(hardware.file.get(CONTROL), OTHERS | SAMPLING);
            hardware.overflow(4);
            scene.check(&[], "before idle");
            branches.before_idle(&hardware).unwrap();
            // The interrupt came, and did not start the sampling again.
            scene.check(&[(7, sampled(4))], "idle");
            assert!(!hardware.is_sampling());
            branches.after_idle(&hardware).unwrap();
            hardware.overflow(16);
            scene.check(&[(7, sampled(16))], "after idle");
            scene.check_none_expected("after idle");
        }
        // A change meanwhile starts the sampling again, also of another event.
        branches.before_idle(&hardware).unwrap();
        let plain = Event::raw(EventSelect::from_bits(0xC2)).every(100_003);
        let plain = scene.open(plain);
        scene.session.enable(plain, 1).unwrap();
        assert!(hardware.is_sampling());
        branches.before_idle(&hardware).unwrap();
        scene.session.disable(event, 2).unwrap();
        hardware.check_clear("stopped");
        without_access();
        hardware.check_clear("stopped");
        // Each access that fails.
        scene.session.enable(event, 3).unwrap();
        for (number, retried) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
            let fault = if retried == 1 { Fault::Once(number) } else { Fault::From(number) };
            hardware.file.fail(fault);
            let stopped = branches.before_idle(&hardware);
            assert_eq!(stopped.is_ok(), retried == 1, "{fault:?}");
            hardware.file.fail(Fault::Never);
            branches.before_idle(&hardware).unwrap();
            assert!(!hardware.is_sampling(), "{fault:?}");
            hardware.file.fail(fault);
            let started = branches.after_idle(&hardware);
            assert_eq!(started.is_ok(), retried == 1, "{fault:?}");
            hardware.file.fail(Fault::Never);
            branches.after_idle(&hardware).unwrap();
            hardware.overflow(16);
            scene.check(&[(7, sampled(16))], "after a fault");
        }
    });
}

/// An operation on the event.
type Operation = fn(&mut Scene<'_>, EventId) -> Result<(), String>;

fn text(error: impl core::fmt::Debug) -> String {
    format!("{error:?}")
}

#[test]
fn a_fault_at_each_access_heals_as_the_operation_is_repeated() {
    // With each, whether the event runs before it.
    let operations: [(&str, bool, Operation); 9] = [
        ("start", false, |scene, event| scene.session.enable(event, 1).map_err(text)),
        ("start if free", false, |scene, event| {
            scene.session.enable_if_free(event, 1).map_err(text)
        }),
        ("stop", true, |scene, event| scene.session.disable(event, 1).map_err(text)),
        ("window", true, |scene, _| {
            let window = scene.session.lend(1, |_| ()).map_err(text)?;
            scene.hardware.check_clear("lent");
            window.end(1).map_err(text)
        }),
        ("switch out", true, |scene, _| scene.session.switch_out(&mut [], 1, |_| ()).map_err(text)),
        ("switch in", true, |scene, _| {
            scene.session.switch_in(scene.counters, &mut [], 1).map_err(text)
        }),
        ("suspend", true, |scene, _| {
            scene.session.suspend(1, |_| ()).map_err(text)?;
            scene.session.resume(1, |_| ()).map(|_| ()).map_err(text)
        }),
        ("reprogram", true, |scene, _| scene.session.reprogram(|_| ()).map(|_| ()).map_err(text)),
        ("interrupt", true, |scene, _| {
            scene.hardware.overflow(16);
            Ok(())
        }),
    ];
    for (name, runs, operate) in operations {
        for (held, lasting) in [(false, true), (true, true), (true, false)] {
            let mut at = 0;
            while with_fault(name, (runs, operate), (held && runs, lasting), at) {
                at += 1;
            }
            assert!(at > 3, "{name}");
        }
    }
}

/// Returns whether there was such an access.
fn with_fault(
    name: &str,
    (runs, operate): (bool, Operation),
    (held, lasting): (bool, bool),
    at: usize,
) -> bool {
    let mut was_met = false;
    with_scene(|scene| {
        let context = format!("{name}, held {held}, lasting {lasting}, access {at}");
        let event = scene.open(event().tagged(7));
        if runs {
            scene.session.enable(event, 0).unwrap();
        }
        if held {
            scene.hardware.overflow(4);
        }
        scene.hardware.file.fail(if lasting { Fault::From(at) } else { Fault::Once(at) });
        let done = operate(scene, event);
        was_met = scene.hardware.file.accesses() > at;
        scene.hardware.file.fail(Fault::Never);
        if !lasting {
            // It was tried again.
            assert_eq!(done, Ok(()), "{context}");
        }
        let stops = name == "stop";
        let again = if done.is_err() { operate(scene, event) } else { done.clone() };
        let is_active = |scene: &Scene<'_>| {
            matches!(scene.session.event_status(event), Ok(EventStatus::Active(_)))
        };
        // A counter that faulted, or an access that is tried again with the next change.
        if again.is_err() || done.is_ok() && lasting || !is_active(scene) {
            let healed = scene.session.resume(2, |_| ()).map(|_| ());
            assert!(healed.is_ok(), "{context}: {healed:?} after {done:?}");
        }
        scene.samples.take();
        scene.claims.take();
        scene.hardware.is_held.set(false);
        if is_active(scene) {
            assert!(!stops || done.is_err(), "{context}");
        } else {
            // A number that the first start tries a record with may stay there.
            match runs {
                true => scene.hardware.check_clear(&context),
                false => assert!(!scene.hardware.is_sampling(), "{context}"),
            }
            assert_eq!(scene.session.enable(event, 3), Ok(()), "{context}");
        }
        assert!(scene.hardware.is_sampling(), "{context}");
        scene.hardware.overflow(16);
        scene.check(&[(7, sampled(16))], &context);
        scene.session.shut_down().unwrap();
        scene.hardware.check_clear(&context);
    });
    was_met
}

#[test]
fn a_counter_or_a_record_that_does_not_answer_leaves_no_sampling_without_its_event() {
    for fault in [Fault::WritesTo(SELECT), Fault::WritesTo(FIRST), Fault::Register(CONTROL)] {
        with_scene(|scene| {
            let event = scene.start(7);
            scene.hardware.file.fail(fault);
            let lent = scene.session.lend(0, |_| ()).map(|_| ());
            assert!(lent.is_err(), "{fault:?}");
            scene.hardware.file.fail(Fault::Never);
            if let Ok(EventStatus::Active(_)) = scene.session.event_status(event) {
                assert!(scene.hardware.is_sampling(), "{fault:?}");
            }
            scene.session.resume(1, |_| ()).unwrap();
            if !matches!(scene.session.event_status(event), Ok(EventStatus::Active(_))) {
                scene.session.enable(event, 1).unwrap();
            }
            scene.samples.take();
            scene.hardware.overflow(16);
            scene.check(&[(7, sampled(16))], &format!("{fault:?}"));
        });
    }
}
