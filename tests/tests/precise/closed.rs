//! One event of a group is closed: a load latency with the event that it needs, and events whose registers do not
//! answer.

use pmu_core::Event;
use pmu_core::error::CounterError;
use pmu_core::registers::EventSelect;
use pmu_virt::mock::Fault;

use crate::latency::*;
use crate::scene::*;

/// Golden Cove counts the latency only beside the event 0x8203.
#[test]
fn a_latency_is_closed_with_the_event_that_it_needs() {
    for processor in named("format 4") {
        for beside_another in [false, true] {
            let scene = Scene::new(processor);
            let mut session = scene.take();
            let mut events = loads(&processor, 30);
            if beside_another {
                events.insert(0, Event::raw(EventSelect::from_bits(0x01D0)));
            }
            let (group, latency) = scene.start_together(&mut session, &events);
            let ids: Vec<_> = session.group_events(group).collect();
            session.close_member(ids[usize::from(beside_another)], 0).unwrap();
            let gone = Err(CounterError::NoSuchEvent(latency));
            assert_eq!(session.event_status(latency).map(drop), gone);
            assert_eq!(session.counter_of(ids[0]).is_some(), beside_another);
        }
    }
}

/// As either event of a group.
#[test]
fn an_event_of_a_group_is_closed_although_registers_do_not_answer() {
    for processor in crate::support::processors() {
        let name = name(&processor);
        for which in [0, 1] {
            for access in 1..40 {
                let scene = Scene::new(processor);
                let mut session = scene.take();
                let events = [precise(0), precise(1).with_total()];
                let Ok(group) = session.open(&scene.counters, &events) else { break };
                session.enable(group, 0).unwrap();
                let ids: Vec<_> = session.group_events(group).collect();
                scene.mock.clear();
                scene.mock.inject(Fault::From(access));
                let _ = session.close_member(ids[which], 1);
                let reached = scene.mock.accesses().total() >= access;
                scene.mock.inject(Fault::None);
                let status = session.event_status(ids[which]);
                assert!(status.is_err(), "{name}, {which}, access {access}: {status:?}");
                assert!(session.event_status(ids[1 - which]).is_ok(), "{name}, {which}");
                if !reached {
                    break;
                }
            }
        }
    }
}
