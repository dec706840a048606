//! One event of a group is closed that has issue slots and their parts.

use pmu_core::EventCount;

use crate::support::*;

macro_rules! scene {
    ($processor:ident, $mock:ident, $kernel:ident, $session:ident, $events:expr, $group:ident, $ids:ident) => {
        let $mock = $processor.mock();
        let $kernel = Kernel::new(&$processor, &$mock);
        let handler = |mock: &Mock<'_>| $kernel.handle(mock);
        $mock.on_interrupt(&handler);
        let mut $session = $kernel.take(&$mock);
        let $group = $session.open(&$kernel.counters, &$events).unwrap();
        let $ids: Vec<_> = $session.group_events($group).collect();
        $session.enable($group, 0).unwrap();
    };
}

#[test]
fn a_closed_part_returns_its_last_count() {
    for processor in processors() {
        scene!(processor, mock, kernel, session, [slots(), part(0), part(1)], _group, ids);
        pass(&mock, 2550, MIXES[1]);
        let last = session.close_member(ids[1], 10).unwrap();
        assert_eq!(last, EventCount { value: 400, enabled: 10, running: 10 });
    }
}

#[test]
fn closed_slots_return_their_last_count() {
    for processor in processors() {
        scene!(processor, mock, kernel, session, [slots(), part(0), part(1)], _group, ids);
        pass(&mock, 2550, MIXES[1]);
        let last = session.close_member(ids[0], 10).unwrap();
        assert_eq!(last, EventCount { value: 2550, enabled: 10, running: 10 });
    }
}

#[test]
fn slots_that_are_not_the_first_are_closed_with_their_parts() {
    for processor in processors() {
        scene!(processor, mock, kernel, session, [branch(), slots(), part(0)], group, ids);
        pass(&mock, 2550, MIXES[1]);
        session.close_member(ids[1], 10).unwrap();
        pass(&mock, 2550, MIXES[1]);
        branches(&mock, 7);
        assert_eq!(session.read(ids[0], 20).unwrap().value, 7, "branches go on");
        let left: Vec<_> = session.group_events(group).collect();
        assert_eq!(left, [ids[0]], "the part went with its slots");
    }
}

#[test]
fn a_leader_that_is_not_the_slots_is_closed_and_the_slots_go_on() {
    for processor in processors() {
        scene!(processor, mock, kernel, session, [branch(), slots(), part(0)], _group, ids);
        pass(&mock, 2550, MIXES[1]);
        session.close_member(ids[0], 10).unwrap();
        pass(&mock, 2550, MIXES[1]);
        assert_eq!(session.read(ids[1], 20).map(|c| c.value), Ok(5100), "slots go on");
    }
}

#[test]
fn an_event_beside_the_slots_goes_on_as_they_are_closed() {
    for processor in processors() {
        scene!(processor, mock, kernel, session, [slots(), part(0), branch()], _group, ids);
        branches(&mock, 7);
        session.close_member(ids[0], 10).unwrap();
        branches(&mock, 7);
        assert_eq!(session.read(ids[2], 20).map(|c| c.value), Ok(14), "branches go on");
    }
}

/// Also over the wraps of the counter.
#[test]
fn slots_count_on_as_their_last_part_is_closed() {
    for processor in processors() {
        for steps in [
            vec![1000u64],
            vec![1 << 47, (1 << 47) - 1],
            vec![1 << 47, 1 << 47],
            vec![1 << 47, 1 << 47, 99],
        ] {
            for read in [false, true] {
                scene!(processor, mock, kernel, session, [slots(), part(0)], _group, ids);
                for step in &steps {
                    pass(&mock, *step, MIXES[1]);
                }
                if read {
                    session.read(ids[0], 0).unwrap();
                }
                session.close_member(ids[1], 10).unwrap();
                let all: u64 = steps.iter().sum();
                let what = format!("{processor:?} {steps:?} {read}");
                assert_eq!(session.read(ids[0], 20).unwrap().value, all, "{what}");
                pass(&mock, 5, MIXES[1]);
                assert_eq!(session.read(ids[0], 20).unwrap().value, all + 5, "{what}");
                pass(&mock, 1 << 48, MIXES[1]);
                assert_eq!(session.read(ids[0], 20).unwrap().value, all + 5 + (1 << 48), "{what}");
                let last = session.close_member(ids[0], 30).unwrap();
                assert_eq!(last.value, all + 5 + (1 << 48), "{what}");
                session.shut_down().unwrap();
                assert!(mock.breach().is_none());
            }
        }
    }
}
