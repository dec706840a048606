//! Events of one unit take turns, and groups have a sampled event beside plain counters.

use pmu_amd::ibs::{IbsKind, IbsSampling};
use pmu_core::EventStatus;
use pmu_core::error::CounterError;
use pmu_tests::Reason;
use pmu_tests::opened::{happened, raw};
use pmu_virt::configuration::AmdConfiguration;
use pmu_virt::mock::PmiFault;

use crate::support::*;

/// A unit samples by one request. The second event is refused, and one that rotates waits.
#[test]
fn two_events_of_one_unit_take_turns_or_the_second_is_refused() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        let event = processor.event(kind);
        let first = kernel.start(&mut session, &event.tagged(1)).unwrap();
        let second = session.open(&kernel.counters, &[event.tagged(2)]).unwrap();
        assert_eq!(session.enable(second, 0).reason(), Err(CounterError::NoFreeCounter), "{what}");
        let third = kernel.start(&mut session, &event.rotating().tagged(3)).unwrap();
        assert_eq!(session.event_status(third), Ok(EventStatus::Inactive), "{what}");
        session.rotate(0).unwrap();
        assert!(is_on(&session, first), "{what}: pinned");
        // The other unit is another counter.
        let other = if kind == IbsKind::Op { IbsKind::Fetch } else { IbsKind::Op };
        kernel.start(&mut session, &processor.event(other)).unwrap();
        assert!(kernel.run(&mock, PERIOD) && kernel.run_of(&mock, other, PERIOD), "{what}");
        session.disable(first, 0).unwrap();
        session.rotate(0).unwrap();
        assert!(is_on(&session, third), "{what}");
        // One that does not rotate takes the unit of one that does.
        session.enable(second, 0).unwrap();
        assert_eq!((is_on(&session, second), is_on(&session, third)), (true, false), "{what}");
        assert!(kernel.run(&mock, PERIOD + 15), "{what}");
        assert_eq!(kernel.of_tag(2), kernel.sampled()[1..], "{what}");
        kernel.all_reported(&what);
    }
}

/// Two events with other requests: each turn has its own, from where it was. Turns that are shorter than the period
/// lose nothing, and a sample that is pending as its event's turn ends is that event's.
#[test]
fn each_turn_samples_by_its_own_request_from_where_it_was() {
    const WHOLE: u32 = 10 * PERIOD;
    const TURN: u32 = WHOLE / 4 * 3;
    for late in [false, true] {
        for processor in processors().into_iter().filter(|of| of.is_exact(IbsKind::Op)) {
            let what = format!("{}, {late}", processor.name);
            sampler!(processor, IbsKind::Op => mock, kernel, session);
            kernel.period.set(WHOLE.into());
            // By ops and by cycles: bit 19 of the control register.
            let events = [(IbsSampling::ops(), 1), (IbsSampling::cycles(), 2)].map(|(of, tag)| {
                let event = of.event().every(WHOLE.into()).with_total().rotating().tagged(tag);
                kernel.start(&mut session, &event).unwrap()
            });
            let mut own = [vec![], vec![]];
            for turn in 0..40 {
                let which = usize::from(is_on(&session, events[1]));
                assert_eq!(which, turn % 2, "{what}");
                let bits = read(&mock, control(IbsKind::Op).0);
                assert_eq!(bits >> 19 & 1 == 1, which == 0, "{what}: {bits:#X}");
                let before = kernel.sampled().len();
                if late {
                    // The last sample's interrupt is late; an earlier one would stop the unit.
                    kernel.pass(&mock, IbsKind::Op, TURN - 200);
                    mock.inject_pmi(PmiFault::Late(1_000));
                    kernel.pass(&mock, IbsKind::Op, 200);
                    mock.inject_pmi(PmiFault::None);
                } else {
                    kernel.pass(&mock, IbsKind::Op, TURN);
                }
                own[which].extend_from_slice(&kernel.sampled()[before..]);
                session.rotate(0).unwrap();
                mock.deliver_sample();
            }
            for (which, tag) in [1, 2].into_iter().enumerate() {
                assert_eq!(kernel.of_tag(tag), own[which], "{what}");
                assert!((13..=16).contains(&own[which].len()), "{what}: {}", own[which].len());
                let total = session.read(events[which], 0).unwrap().value;
                let samples = own[which].len() as u32;
                assert_eq!(total as u32 / WHOLE, samples, "{what}: {total}");
                if tag == 2 && !late {
                    assert_eq!((total as u32, samples), (20 * TURN, 15), "{what}: exactly");
                }
            }
            assert_eq!((kernel.unclaimed.get(), kernel.overflows.get()), (0, 0), "{what}");
        }
    }
}

/// The filters by privilege level and by the caches are an event's own, too.
#[test]
fn a_filter_belongs_to_the_event_whose_turn_it_is() {
    let processor = named("Zen 6");
    sampler!(processor, IbsKind::Op => mock, kernel, session);
    let requests = [
        (IbsSampling::ops().l3_misses_only(), control(IbsKind::Op).0, 1 << 16),
        (IbsSampling::ops().slower_than(256), control(IbsKind::Op).0, 1 << 59 | 1 << 63),
        (IbsSampling::ops().streaming_stores_only(), second_control(IbsKind::Op), 1 << 3),
        (IbsSampling::ops(), control(IbsKind::Op).0, 0),
    ];
    let mask = [1 << 16 | 0xF << 59 | 1 << 63, 1 << 3];
    for (request, ..) in requests {
        kernel.start(&mut session, &every(request).rotating()).unwrap();
    }
    for turn in 0..12 {
        let (_, register, bits) = requests[turn % 4];
        let values =
            [read(&mock, control(IbsKind::Op).0), read(&mock, second_control(IbsKind::Op))];
        let is_second = usize::from(register == second_control(IbsKind::Op));
        let mut expected = [0, 0];
        expected[is_second] = bits;
        assert_eq!([values[0] & mask[0], values[1] & mask[1]], expected, "{turn}");
        session.rotate(0).unwrap();
    }
}

/// A group of a sampled event and plain counters is on its counters together, and is read together.
#[test]
fn a_group_has_a_sampled_event_and_plain_counters() {
    for counters in [AmdConfiguration::LEGACY, AmdConfiguration::perf_mon_v2(6)] {
        for (processor, kind) in units() {
            for leads in [false, true] {
                let processor = Processor { counters, ..processor };
                let what = format!("{}, {kind:?}, {leads}", processor.name);
                sampler!(processor, kind => mock, kernel, session);
                let (sampled, counted) = (processor.event(kind), raw(3).with_total());
                let mut members = [counted.tagged(1), sampled.tagged(2), raw(4).tagged(3)];
                if leads {
                    members.swap(0, 1);
                }
                let members = members.map(|member| member.rotating());
                let group = session.open(&kernel.counters, &members).unwrap();
                session.enable(group, 0).unwrap();
                // Another sampled event waits, and so does the counter beside it.
                let others = [processor.event(kind).rotating().tagged(4), raw(5).rotating()];
                let other = session.open(&kernel.counters, &others).unwrap();
                session.enable(other, 0).unwrap();
                for turn in 0..6_u64 {
                    let (on, off) = if turn % 2 == 0 { (group, other) } else { (other, group) };
                    for (group, expected) in [(on, true), (off, false)] {
                        for event in session.group_events(group) {
                            assert_eq!(is_on(&session, event), expected, "{what}: turn {turn}");
                        }
                    }
                    mock.advance(&mut happened(3, 40));
                    assert!(kernel.run(&mock, PERIOD + 15), "{what}");
                    session.rotate(0).unwrap();
                }
                kernel.all_reported(&what);
                assert_eq!((kernel.of_tag(2).len(), kernel.of_tag(4).len()), (3, 3), "{what}");
                for event in session.group_events(group) {
                    let count = session.read(event, 0).unwrap().value;
                    match session.event_tag(event).unwrap() {
                        1 => assert_eq!(count, 3 * 40, "{what}"),
                        2 => assert_eq!(count / u64::from(PERIOD), 3, "{what}: {count}"),
                        _ => assert_eq!(count, 0, "{what}"),
                    }
                }
                assert_eq!((kernel.unclaimed.get(), kernel.overflows.get()), (0, 0), "{what}");
                session.shut_down().unwrap();
                assert!(!is_enabled(&mock), "{what}");
            }
        }
    }
}

/// A group that can never be on its counters together is refused as it is opened.
#[test]
fn a_group_of_two_events_of_one_unit_is_refused() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        let members = [processor.event(kind), processor.event(kind).tagged(2)];
        let refused = match session.open(&kernel.counters, &members) {
            Err(_) => true,
            Ok(group) => session.enable(group, 0).is_err(),
        };
        assert!(refused, "{what}");
        assert!(!is_enabled(&mock), "{what}");
        // One of each unit is fine.
        let members = [IbsKind::Fetch, IbsKind::Op].map(|kind| processor.event(kind));
        let group = session.open(&kernel.counters, &members).unwrap();
        session.enable(group, 0).unwrap();
        for kind in [IbsKind::Fetch, IbsKind::Op] {
            assert!(kernel.run_of(&mock, kind, PERIOD), "{what}");
        }
        kernel.all_reported(&what);
    }
}

/// Turns that all end with a sample, and no interrupt comes: one sample waits in memory and one in the registers at
/// most. A third one is taken back: its event's next occurrence is sampled in its place, when it is its turn again. No
/// event has a sample of another, and no period is counted twice.
#[test]
fn samples_of_several_turns_without_an_interrupt_are_of_their_events_or_taken_back() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        let event = processor.event(kind).rotating();
        let events = [1, 2, 3].map(|tag| kernel.start(&mut session, &event.tagged(tag)).unwrap());
        mock.inject_pmi(PmiFault::Lost);
        for on in events {
            assert!(is_on(&session, on), "{what}");
            assert!(kernel.run(&mock, PERIOD + 15), "{what}");
            session.rotate(0).unwrap();
        }
        mock.inject_pmi(PmiFault::None);
        let sampled = kernel.sampled();
        assert_eq!(kernel.reported(), [], "{what}");
        mock.interrupt_from_elsewhere();
        assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (1, 0), "{what}");
        assert_eq!(kernel.of_tag(1), sampled[..1], "{what}");
        for tag in [2, 3] {
            assert!(sampled[tag - 1..tag].starts_with(&kernel.of_tag(tag as u64)), "{what}");
        }
        // Those that were taken back come with the next occurrence.
        for (number, on) in events.into_iter().enumerate() {
            assert!(is_on(&session, on), "{what}");
            let (tag, taken_back) =
                (number as u64 + 1, kernel.of_tag(number as u64 + 1).is_empty());
            let most = match (taken_back, kind) {
                (false, _) => PERIOD + 15,
                (true, _) if processor.is_exact(kind) => 1,
                // The shortest periods.
                (true, IbsKind::Op) => 144,
                (true, IbsKind::Fetch) => 16,
            };
            assert!(kernel.run(&mock, most), "{what}: {tag}");
            assert_eq!(kernel.of_tag(tag).last(), kernel.sampled().last(), "{what}: {tag}");
            let total = session.read(on, 0).unwrap().value;
            let periods = if taken_back { 1 } else { 2 };
            assert_eq!(total / u64::from(PERIOD), periods, "{what}: {tag}, {total}");
            session.rotate(0).unwrap();
        }
        assert_eq!((kernel.unclaimed.get(), kernel.overflows.get()), (0, 0), "{what}");
    }
}
