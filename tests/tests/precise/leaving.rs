//! An interrupt while a precise event leaves its counter. Some processors also report the overflow of such a counter in
//! the status: the event's records tell of its overflows, and the bit does not.

use core::cell::Cell;

use pmu_core::access::{AccessFault, RegisterBackend};
use pmu_core::facility::{EventFacility, Facility, Running, RunningEvent, Unsettled};
use pmu_core::memory::EventTable;
use pmu_core::registers::CounterId;
use pmu_core::thread::Waiting;
use pmu_core::{CounterSession, CounterSet, CounterUnit, EventSource, Events, Sample, service};
use pmu_intel::precise::Pebs;
use pmu_tests::StateRegisters;

use crate::scene::*;
use crate::support::*;

/// A facility beside the records, which is told after them that an event leaves its counter. Another owner's NMI comes
/// then, if it is to.
#[derive(Clone, Copy)]
struct Told {
    mock: Msr,
    interrupts: &'static Cell<bool>,
}

impl Facility for Told {}

impl EventFacility for Told {
    const OFFERS: bool = true;

    fn settle<M: RegisterBackend>(&self, _: &M, _: &Running<'_>) -> Result<(), Unsettled> {
        Ok(())
    }

    fn lose(&self) {}

    fn leave<M: RegisterBackend>(
        &self,
        _: &M,
        counter: CounterId,
        _: &RunningEvent<'_>,
    ) -> Result<Waiting, AccessFault> {
        if self.interrupts.get() {
            overflowed(self.mock, counter.only());
            self.mock.interrupt_from_elsewhere();
        }
        Ok(Waiting::NONE)
    }
}

type Both = (Option<Pebs<'static>>, Told);
type World = CounterSession<'static, Events<'static, CounterUnit, Both>, Msr>;

/// The status reports overflows of these counters.
fn overflowed(mock: &Mock<'_>, counters: CounterSet) {
    mock.with_pmu(|pmu| {
        let before = pmu.state().global_status();
        let _ = pmu.host_write(0x38E, before | counters.bits());
        assert_eq!(pmu.state().global_status(), before | counters.bits());
    });
}

fn take(scene: &'static Scene, told: Told) -> World {
    let source = Events::new(&scene.counters, &scene.table as &EventTable);
    let source = source.with((scene.source().facility(), told));
    let handler = move |mock: &Mock<'static>| {
        let report = |sample: Sample<'_, Both>| {
            let address = sample
                .facility()
                .and_then(|(pebs, _)| pebs.record())
                .and_then(|record| address_of(&record));
            let (event, tag, period) = (sample.event, sample.tag, sample.period);
            scene.seen.borrow_mut().push(Seen { event, tag, period, address });
        };
        let _ = service(&source, mock, &scene.counter_memory, report).unwrap();
    };
    scene.mock.on_interrupt(Box::leak(Box::new(handler)));
    let (unit, all) = (&scene.counters, CounterSet::ALL);
    let mut session =
        CounterSession::take(source, unit, all, scene.mock, &scene.counter_memory).unwrap();
    if scene.processor.freezes {
        session.freeze_on_interrupt().unwrap();
    }
    session
}

/// The ways in which an event leaves its counter.
type Leaving = fn(&mut World, pmu_core::EventId);

const LEAVING: [(&str, Leaving); 3] = [
    ("stop", |session, event| session.disable(event, 0).unwrap()),
    ("turn", |session, _| session.rotate(0).unwrap()),
    ("switch", |session, event| {
        let mut thread = [pmu_core::thread::ThreadEvent::Opened(event)];
        session.switch_out(&mut thread, 0, |_| ()).unwrap();
    }),
];

/// A session whose precise event has counted this many, and a plain event that waits for its counter.
fn counting(scene: &'static Scene, told: Told, count: u64) -> (World, pmu_core::EventId) {
    let mut session = take(scene, told);
    let on = CounterSet::from_bits(1);
    let event = precise(0).on(on).with_total().rotating();
    let event = session.open(&scene.counters, &[event]).unwrap();
    session.enable(event, 0).unwrap();
    let plain = pmu_tests::opened::raw(2).on(on).user_only().rotating();
    let plain = session.open(&scene.counters, &[plain]).unwrap();
    session.enable(plain, 0).unwrap();
    scene.happen(0, count);
    (session, event)
}

/// Lets an interrupt with these counters' bits come at an access from now on.
fn interrupt_at(scene: &'static Scene, access: u32, counters: CounterSet) {
    let comes = scene.mock.accesses().total() + access;
    let hook = move |mock: &Mock<'static>| {
        if mock.accesses().total() + 1 == comes {
            overflowed(mock, counters);
            mock.interrupt_from_elsewhere();
        }
    };
    scene.mock.on_access(Box::leak(Box::new(hook)));
}

/// At each access; and, at 0, after the facility was told and before the counter is free.
#[test]
fn a_bit_of_the_status_is_no_overflow_of_an_event_that_is_leaving() {
    for processor in processors() {
        for (name_of, leave) in LEAVING {
            for access in 0.. {
                let what = format!("{}, {name_of}, {access}", name(&processor));
                let scene = Scene::new(processor);
                let interrupts: &'static Cell<bool> = Box::leak(Box::default());
                let told = Told { mock: scene.mock, interrupts };
                let (mut session, event) = counting(scene, told, PERIOD + 30);
                assert_eq!(scene.addresses(0), [Some(address(0))], "{what}");
                let before = scene.mock.interrupts();
                interrupts.set(access == 0);
                interrupt_at(scene, access, CounterSet::from_bits(1));
                leave(&mut session, event);
                interrupts.set(false);
                scene.mock.on_access(&|_| ());
                let came = scene.mock.interrupts() - before;
                assert_eq!(scene.addresses(0), [Some(address(0))], "{what}: no period is over");
                if name_of != "switch" {
                    continues(scene, &mut session, event, &what);
                }
                session.shut_down().unwrap();
                nothing_is_enabled(scene.mock, &what);
                if came == 0 {
                    assert!(access > 2, "{what}");
                    break;
                }
            }
        }
    }
}

/// The event has counted all, and goes on with the rest of its period.
fn continues(scene: &'static Scene, session: &mut World, event: pmu_core::EventId, what: &str) {
    assert_eq!(session.read(event, 0).unwrap().value, PERIOD + 30, "{what}");
    for other in session.events().collect::<Vec<_>>() {
        let _ = session.disable(other, 0);
    }
    session.enable(event, 0).unwrap();
    scene.happen(0, PERIOD - 31);
    assert_eq!(scene.samples(0), 1, "{what}: the rest of the period");
    scene.happen(0, 1);
    assert_eq!(scene.addresses(0), [0, 1].map(|of| Some(address(of))), "{what}");
}

/// At each access. The counter is the event's before the facility knows that.
#[test]
fn an_interrupt_with_its_counters_bit_changes_nothing_while_an_event_comes() {
    for processor in processors() {
        for in_group in [false, true] {
            for access in 1.. {
                let what = format!("{}, in a group: {in_group}, {access}", name(&processor));
                let scene = Scene::new(processor);
                let told = Told { mock: scene.mock, interrupts: Box::leak(Box::default()) };
                let mut session = take(scene, told);
                let one = CounterSet::from_bits(1);
                let events = [precise(0).on(one).with_total(), pmu_tests::opened::raw(2)];
                let events = if in_group { &events[..] } else { &events[..1] };
                let group = session.open(&scene.counters, events).unwrap();
                let event = session.group_events(group).next().unwrap();
                let before = scene.mock.interrupts();
                interrupt_at(scene, access, one);
                session.enable(group, 0).unwrap();
                scene.mock.on_access(&|_| ());
                let came = scene.mock.interrupts() - before;
                scene.happen(0, PERIOD - 1);
                assert_eq!(scene.samples(0), 0, "{what}");
                scene.happen(0, 1);
                assert_eq!(scene.addresses(0), [Some(address(0))], "{what}");
                assert_eq!(session.read(event, 0).unwrap().value, PERIOD, "{what}");
                session.shut_down().unwrap();
                nothing_is_enabled(scene.mock, &what);
                if came == 0 {
                    break;
                }
            }
        }
    }
}
