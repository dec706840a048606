//! Groups with parts of issue slots, ended as wholes, or joined by an event without room.

use pmu_core::{CounterSet, EventCount};

use crate::support::*;

fn of(value: u64, enabled: u64, running: u64) -> EventCount {
    EventCount { value, enabled, running }
}

#[test]
fn the_last_counts_of_a_group_have_the_parts() {
    for processor in processors() {
        counting!(processor => mock, kernel, session);
        let group =
            session.start(&kernel.counters, &[slots(), part(0), part(1), branch()], 0).unwrap();
        pass(&mock, 2550, MIXES[1]);
        branches(&mock, 7);
        let mut counts = [EventCount::default(); 4];
        assert_eq!(session.close_group(group, 10, &mut counts), Ok(4));
        assert_eq!(counts, [of(2550, 10, 10), of(400, 10, 10), of(150, 10, 10), of(7, 10, 10)]);
    }
}

#[test]
fn a_group_with_parts_that_leaves_for_a_member_goes_on_later() {
    for processor in processors() {
        counting!(processor => mock, kernel, session);
        let first = CounterSet::from_bits(1);
        let events = [slots().rotating(), part(0), part(1), branch().on(first)];
        let group = session.open(&kernel.counters, &events).unwrap();
        let ids: Vec<_> = session.group_events(group).collect();
        session.disable(ids[3], 0).unwrap();
        session.enable(group, 0).unwrap();
        let pinned = session.start(&kernel.counters, &[branch().on(first)], 0).unwrap();
        pass(&mock, 2550, MIXES[1]);
        session.enable(ids[3], 10).unwrap();
        pass(&mock, 2550, MIXES[1]);
        session.close(pinned, 20).unwrap();
        session.rotate(20).unwrap();
        pass(&mock, 2550, MIXES[1]);
        branches(&mock, 7);
        let mut counts = [EventCount::default(); 4];
        assert_eq!(session.close_group(group, 30, &mut counts), Ok(4));
        let whole = [of(5100, 30, 20), of(800, 30, 20), of(300, 30, 20), of(7, 20, 10)];
        assert_eq!(counts, whole, "{processor:?}");
    }
}

#[test]
fn parts_of_a_group_that_was_disabled_and_enabled_again_have_its_times() {
    for processor in processors() {
        counting!(processor => mock, kernel, session);
        let group = session.start(&kernel.counters, &[slots(), part(0), part(1)], 0).unwrap();
        let ids: Vec<_> = session.group_events(group).collect();
        session.enable(group, 5).unwrap();
        pass(&mock, 2550, MIXES[1]);
        session.disable(group, 10).unwrap();
        session.disable(group, 15).unwrap();
        session.disable(ids[1], 16).unwrap();
        session.enable(ids[1], 17).unwrap();
        session.enable(group, 20).unwrap();
        pass(&mock, 2550, MIXES[1]);
        session.disable(ids[2], 25).unwrap();
        session.enable(ids[2], 27).unwrap();
        let mut counts = [EventCount::default(); 3];
        session.read_group(group, 30, &mut counts).unwrap();
        let before = counts;
        assert_eq!(session.close_group(group, 30, &mut counts), Ok(3));
        assert_eq!(counts, before);
        assert_eq!(counts[..2], [of(5100, 20, 20), of(800, 20, 20)], "{processor:?}");
    }
}

#[test]
fn a_closed_group_of_which_a_part_is_named_has_its_times() {
    for processor in processors() {
        counting!(processor => mock, kernel, session);
        let group = session.start(&kernel.counters, &[slots(), part(0)], 0).unwrap();
        let part = session.group_events(group).nth(1).unwrap();
        pass(&mock, 2550, MIXES[1]);
        assert_eq!(session.close(part, 10), Ok(of(400, 10, 10)), "{processor:?}");
    }
}

/// The events that cannot be started leave nothing on the counters, or in the register of the shares.
#[test]
fn slots_that_cannot_be_started_are_not_opened() {
    for processor in processors() {
        for access in 1..60 {
            counting!(processor => mock, kernel, session);
            mock.clear();
            mock.inject(pmu_virt::mock::Fault::From(access));
            let started = session.start(&kernel.counters, &[slots(), part(0), branch()], 0);
            mock.inject(pmu_virt::mock::Fault::None);
            if started.is_ok() {
                assert!(access > 3);
                break;
            }
            assert_eq!(session.events().count(), 0);
            session.reprogram(|_| ()).unwrap();
            session.restart_faulted(0).unwrap();
            let group = session.start(&kernel.counters, &[slots(), part(0), branch()], 0).unwrap();
            pass(&mock, 2550, MIXES[1]);
            branches(&mock, 7);
            let mut counts = [EventCount::default(); 3];
            session.read_group(group, 10, &mut counts).unwrap();
            assert_eq!(counts.map(|count| count.value), [2550, 400, 7], "{processor:?}, {access}");
            session.shut_down().unwrap();
        }
    }
}
