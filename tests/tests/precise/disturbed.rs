//! A fault or an interrupt at each access of each operation.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, Event, EventId, Sample};
use pmu_intel::precise::PreciseThreshold;
use pmu_tests::Reason;
use pmu_tests::opened::raw;
use pmu_virt::mock::Fault;

use crate::frontend::{frontend, has_register};
use crate::latency::loads;
use crate::scene::*;
use crate::support::*;

/// A session with one event that runs, of whose records one was reported.
struct World {
    scene: &'static Scene,
    session: Session,
    /// The event that runs, and another one that does not.
    first: pmu_core::EventId,
    other: pmu_core::EventId,
    thread: [ThreadEvent; 1],
}

type Operation = fn(&mut World) -> Result<(), CounterError>;

fn switched(outcome: Result<(), EventsError>) -> Result<(), CounterError> {
    outcome.map_err(|error| error.reason)
}

/// Operations, each with its name.
fn operations() -> [(&'static str, Operation); 11] {
    [
        ("start", |world| world.session.enable(world.other, 0).reason()),
        ("report", |world| {
            let scene = world.scene;
            world.session.report_samples(|sample| scene.note(&sample))
        }),
        ("stop", |world| world.session.disable(world.first, 0).reason()),
        ("switch in", |world| {
            switched(world.session.switch_in(&world.scene.counters, &mut world.thread, 0))
        }),
        ("switch in and out", |world| {
            let scene = world.scene;
            switched(world.session.switch_in(&scene.counters, &mut world.thread, 0))?;
            let thread = &mut world.thread;
            switched(world.session.switch_out(thread, 0, |sample| scene.note(&sample)))
        }),
        ("lend", |world| {
            let scene = world.scene;
            let window = world.session.lend(0, |sample| scene.note(&sample))?;
            Ok(window.end(0)?)
        }),
        ("suspend and resume", |world| {
            let scene = world.scene;
            world.session.suspend(0, |sample| scene.note(&sample))?;
            world.session.resume(0, |sample| scene.note(&sample)).map(|_| ())
        }),
        ("reprogram", |world| {
            let scene = world.scene;
            world.session.reprogram(|sample| scene.note(&sample)).map(|_| ())
        }),
        ("rotate", |world| world.session.rotate(0)),
        ("apply a period", |world| world.session.apply_period(world.first, PERIOD, 0, |_| ())),
        ("shut down", |world| world.session.shut_down()),
    ]
}

/// Returns the operations, without those that start a second event where two are not told apart.
fn operations_on(processor: &Processor) -> impl Iterator<Item = (&'static str, Operation)> + use<> {
    let is_one = !tells_apart(processor);
    let second = ["start", "switch in", "switch in and out"];
    operations().into_iter().filter(move |(name, _)| !is_one || !second.contains(name))
}

impl World {
    /// Makes a session of which the operation is to be disturbed.
    fn new(processor: Processor, operation: &str) -> Self {
        let scene = Scene::new(processor);
        let mut session = scene.take();
        let rotates = operation == "rotate";
        let on = CounterSet::from_bits(1);
        let first = if rotates { precise(0).on(on).rotating() } else { precise(0) };
        let first = scene.start(&mut session, &first);
        let probe = if tells_apart(&processor) { precise(3) } else { raw(3).every(10_000) };
        let other = session.open(&scene.counters, &[probe]).unwrap();
        if rotates {
            scene.start(&mut session, &raw(2).on(on).user_only().every(10_000).rotating());
        }
        let thread = thread(scene, &precise(if tells_apart(&processor) { 3 } else { 0 }));
        scene.happen(0, PERIOD);
        assert_eq!(scene.reported(), 1);
        Self { scene, session, first, other, thread }
    }

    fn note(&mut self) {
        let scene = self.scene;
        let _ = self.session.report_samples(|sample| scene.note(&sample));
    }

    /// Each record was reported once, and in order. A shutdown drops those that wait.
    #[track_caller]
    fn each_once(&self, what: &str) {
        let seen = self.scene.seen.borrow();
        let found: Vec<_> = seen.iter().filter_map(|seen| seen.address).collect();
        let expected: Vec<_> = (0..self.scene.mock.written_records()).map(address).collect();
        assert_eq!(found, expected, "{what}");
    }

    /// No record was reported twice, or as that of another event.
    #[track_caller]
    fn none_twice(&self, what: &str) {
        let seen = self.scene.seen.borrow();
        let found: Vec<_> = seen.iter().filter_map(|seen| seen.address).collect();
        assert!(found.is_sorted_by(|before, after| before < after), "{what}: {found:x?}");
        let written = self.scene.mock.written_records();
        assert!(found.len() as u64 <= written, "{what}");
    }

    /// Shuts the session down. Nothing is left on the processor.
    #[track_caller]
    fn end(mut self, what: &str) {
        self.session.shut_down().expect(what);
        nothing_is_enabled(self.scene.mock, what);
        assert_eq!(self.scene.mock.breach(), None, "{what}");
    }
}

#[test]
fn with_an_interrupt_at_each_access_no_record_is_lost_and_none_is_reported_twice() {
    for processor in processors() {
        for (operation, run) in operations_on(&processor) {
            for access in 1.. {
                let what = format!("{}, {operation}, {access}", name(&processor));
                let mut world = World::new(processor, operation);
                let mock = world.scene.mock;
                let (before, written) = (mock.accesses().total(), mock.written_records());
                mock.interrupt_at(access);
                run(&mut world).expect(&what);
                let done = mock.accesses().total() - before < access;
                mock.interrupt_at(0);
                // While the counters are paused, none overflows: the interrupt is another one's.
                if mock.written_records() != written {
                    assert_eq!(world.scene.unknown.get(), 0, "{what}");
                }
                world.scene.happen(0, PERIOD);
                world.note();
                if operation != "shut down" {
                    world.each_once(&what);
                }
                world.none_twice(&what);
                let lost = (world.scene.faulted.get(), mock.lost_records());
                assert_eq!((lost, world.scene.memory.dropped()), ((0, 0), Default::default()));
                world.end(&what);
                if done {
                    break;
                }
            }
        }
    }
}

#[test]
fn with_a_fault_at_each_access_an_operation_succeeds() {
    for processor in processors() {
        for (operation, run) in operations_on(&processor) {
            for access in 1.. {
                let what = format!("{}, {operation}, {access}", name(&processor));
                let mut world = World::new(processor, operation);
                let mock = world.scene.mock;
                let before = mock.accesses().total();
                mock.inject(Fault::At(access));
                // One fault is retried.
                run(&mut world).expect(&what);
                let done = mock.accesses().total() - before < access;
                mock.inject(Fault::None);
                world.scene.happen(0, PERIOD);
                world.note();
                world.each_once(&what);
                world.end(&what);
                if done {
                    break;
                }
            }
        }
    }
}

/// The repeat, or a reprogramming and a start, heal everything.
#[test]
fn after_a_fault_that_lasts_from_each_access_everything_is_well_again() {
    for processor in processors() {
        for (operation, run) in operations_on(&processor) {
            for access in 1.. {
                let what = format!("{}, {operation}, from {access}", name(&processor));
                let mut world = World::new(processor, operation);
                let mock = world.scene.mock;
                let scene = world.scene;
                let before = mock.accesses().total();
                mock.inject(Fault::From(access));
                let failed = run(&mut world);
                let done = mock.accesses().total() - before < access;
                mock.inject(Fault::None);
                assert!(!done || failed.is_ok(), "{what}: {failed:?}");
                scene.happen(0, PERIOD);
                if failed.is_err() && operation != "shut down" {
                    // As documented: it is repeated, or, if counters faulted, the session is programmed again.
                    if operation == "suspend and resume" {
                        world.session.resume(0, |sample| scene.note(&sample)).expect(&what);
                    }
                    world.session.reprogram(|sample| scene.note(&sample)).expect(&what);
                    let waiting = &mut world.thread;
                    let _ = world.session.switch_out(waiting, 0, |sample| scene.note(&sample));
                    world.note();
                    world.none_twice(&what);
                    if operation == "rotate" {
                        let events: Vec<_> = world.session.events().collect();
                        for event in events {
                            let _ = world.session.close(event, 0);
                        }
                        scene.start(&mut world.session, &precise(0));
                    } else if world.session.counter_of(world.first).is_none() {
                        let _ = world.session.disable(world.first, 0);
                        world.session.enable(world.first, 0).expect(&what);
                    }
                    let count = scene.reported();
                    let (written, dropped) = (mock.written_records(), scene.memory.dropped());
                    scene.happen(0, 2 * PERIOD);
                    world.note();
                    assert!(scene.reported() >= count + 2, "{what}: {dropped:?}");
                    let (now, found) = (mock.written_records(), scene.reported() - count);
                    assert_eq!(found as u64, now - written, "{what}");
                }
                world.none_twice(&what);
                world.end(&what);
                if done {
                    break;
                }
            }
        }
    }
}

/// One fault is retried, wherever the interrupt comes.
#[test]
fn with_a_fault_and_an_interrupt_at_each_two_accesses_each_record_is_reported_once() {
    let is_meant =
        |p: &Processor| ["format 0", "format 3", "format 4", "fragments"].contains(&p.name);
    for processor in processors().into_iter().filter(is_meant) {
        for (operation, run) in operations_on(&processor) {
            let mut world = World::new(processor, operation);
            let before = world.scene.mock.accesses().total();
            run(&mut world).unwrap();
            // The interrupt, too, has accesses.
            let all = world.scene.mock.accesses().total() - before + 4;
            for (fault, interrupt) in (1..all).flat_map(|at| (1..all).map(move |other| (at, other)))
            {
                let what = format!("{}, {operation}, {fault}, {interrupt}", name(&processor));
                let mut world = World::new(processor, operation);
                let mock = world.scene.mock;
                mock.inject(Fault::At(fault));
                mock.interrupt_at(interrupt);
                let ended = run(&mut world);
                mock.inject(Fault::None);
                mock.interrupt_at(0);
                ended.expect(&what);
                world.scene.happen(0, PERIOD);
                world.note();
                if operation != "shut down" {
                    world.each_once(&what);
                }
                world.none_twice(&what);
                let lost = (world.scene.faulted.get(), mock.lost_records());
                assert_eq!(lost, (0, 0), "{what}");
                world.end(&what);
            }
        }
    }
}

#[test]
fn with_a_fault_at_each_access_of_an_interrupt_the_next_one_reports_the_records() {
    for processor in processors() {
        for access in 1..8 {
            let what = format!("{}, {access}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            scene.start(&mut session, &precise(0));
            scene.mock.inject(Fault::At(access));
            scene.happen(0, PERIOD);
            scene.mock.inject(Fault::None);
            scene.happen(0, PERIOD);
            assert_eq!(scene.faulted.get(), 0, "{what}");
            scene.ends_after(session, 2, &what);
        }
    }
}

/// A write of the index would drop the records that are in the buffer. Where a start need not pause the other events,
/// it succeeds.
#[test]
fn a_start_that_cannot_pause_the_other_events_leaves_their_records_in_the_buffer() {
    let mut failures = 0;
    for processor in processors().into_iter().filter(tells_apart) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        let first = scene.start(&mut session, &precise(0));
        scene.happen(0, 2 * PERIOD);
        assert_eq!(scene.reported(), 0, "{what}");
        // In parts, after each of which the processor interrupts: the index has another threshold.
        let other = precise(3).every(1 << 40);
        let other = session.open(&scene.counters, &[other]).unwrap();
        // IA32_PERF_GLOBAL_CTRL.
        scene.mock.inject(Fault::Register(0x38F));
        let failed = session.enable(other, 0);
        scene.mock.inject(Fault::None);
        failures += u32::from(failed.is_err());
        let _ = session.report_samples(|sample| scene.note(&sample));
        session.reprogram(|sample| scene.note(&sample)).expect(&what);
        if session.counter_of(first).is_none() {
            session.enable(first, 0).expect(&what);
        }
        scene.happen(0, PERIOD);
        scene.ends_after(session, 3, &what);
    }
    assert_ne!(failures, 0);
}

/// Returns the number of events that can be started beside those that run, and closes them.
fn free_for_records(session: &mut Session, scene: &'static Scene) -> usize {
    let mut started = vec![];
    let refused = loop {
        let event = session.open(&scene.counters, &[precise(3)]).unwrap();
        started.push(event);
        if let Err(error) = session.enable(event, 0) {
            break error;
        }
    };
    assert_eq!(refused.reason, CounterError::NoFreeCounter);
    for event in &started {
        session.close(*event, 0).unwrap();
    }
    started.len() - 1
}

/// Returns groups of events whose start and stop fail.
fn failing(processor: &Processor) -> impl Iterator<Item = Vec<Event>> + use<> {
    let frontend = has_register(processor).then(|| vec![frontend(0x11)]);
    [Some(vec![precise(3)]), Some(loads(processor, 30)), frontend].into_iter().flatten()
}

/// The operation after the failed start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Start,
    ShutDown,
    Reprogram,
}

/// The next start, shutdown or reprogramming takes back what the failed start could not.
#[test]
fn a_start_that_fails_and_cannot_be_undone_leaves_no_counter_taken_for_good() {
    for processor in processors().into_iter().filter(tells_apart) {
        for events in failing(&processor) {
            for next in [Next::Start, Next::ShutDown, Next::Reprogram] {
                for access in 1.. {
                    if fails_to_start(processor, &events, access, next) {
                        assert!(access > 3);
                        break;
                    }
                }
            }
        }
    }
}

/// Starts events while all accesses from this one on fail. Returns whether there were fewer accesses.
fn fails_to_start(processor: Processor, events: &[Event], access: u32, next: Next) -> bool {
    let what = format!("{}, {events:?}, {access}, {next:?}", name(&processor));
    let scene = Scene::new(processor);
    let mut session = scene.take();
    let first = scene.start(&mut session, &precise(0).tagged(7));
    scene.happen(0, PERIOD);
    let free = free_for_records(&mut session, scene);
    let group: EventId = session.open(&scene.counters, events).unwrap();
    scene.mock.inject(Fault::From(access));
    let started = session.enable(group, 0);
    scene.mock.inject(Fault::None);
    let Err(error) = started else { return true };
    // The event may be counted: its records are no event's.
    scene.happen(3, 3 * PERIOD);
    let _ = session.close(group, 0);
    let note = |sample: Sample<'_, _>| scene.note(&sample);
    // Faulted counters come back with a reprogramming, and the others at once.
    let faulted = matches!(error.reason, CounterError::StateUnknown(_));
    if next == Next::Reprogram || next == Next::Start && faulted {
        session.reprogram(note).expect(&what);
    }
    if next != Next::ShutDown {
        if session.counter_of(first).is_none() {
            assert!(faulted, "{what}, {error:?}");
            session.enable(first, 0).expect(&what);
        }
        assert_eq!(free_for_records(&mut session, scene), free, "{what}");
        let before = scene.samples(7);
        scene.happen(0, PERIOD);
        session.report_samples(note).unwrap();
        assert_eq!(scene.samples(7), before + 1, "{what}");
    }
    let own = |seen: &Seen| seen.tag == 7;
    assert!(scene.seen.borrow().iter().all(own), "{what}");
    scene.ends(session, &what);
    false
}

/// A stop that fails is repeated, or its counters come back with a reprogramming.
#[test]
fn after_a_stop_that_fails_at_any_access_its_counters_are_free() {
    for processor in processors().into_iter().filter(tells_apart) {
        for events in failing(&processor) {
            for access in 1.. {
                let what = format!("{}, {events:?}, {access}", name(&processor));
                let scene = Scene::new(processor);
                let mut session = scene.take();
                let free = free_for_records(&mut session, scene);
                let (group, _) = scene.start_together(&mut session, &events);
                let before = scene.mock.accesses().total();
                scene.mock.inject(Fault::From(access));
                let failed = session.disable(group, 0);
                let done = scene.mock.accesses().total() - before < access;
                scene.mock.inject(Fault::None);
                if failed.is_err() {
                    let _ = session.disable(group, 0);
                    session.reprogram(|_| ()).expect(&what);
                }
                let now = free_for_records(&mut session, scene);
                assert_eq!((now, scene.enabled()), (free, 0), "{what}");
                scene.ends(session, &what);
                if done {
                    break;
                }
            }
        }
    }
}

/// A window that cannot begin leaves the records in the buffer, and a window that begins reports them.
#[test]
fn a_window_that_fails_to_suspend_the_records_loses_none() {
    // An access fails twice with its retry, or all fail from then on.
    let processors = || processors().into_iter().filter(tells_apart);
    for (processor, lasts) in processors().flat_map(|of| [(of, false), (of, true)]) {
        for access in 1.. {
            let what = format!("{}, {access}, {lasts}", name(&processor));
            let scene = Scene::new(processor);
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            scene.start(&mut session, &precise(0));
            scene.happen(0, 3 * PERIOD);
            assert_eq!(scene.reported(), 0, "{what}");
            let note = |sample: Sample<'_, _>| scene.note(&sample);
            let before = scene.mock.accesses().total();
            let lend = |session: &mut Session| match session.lend(0, note) {
                Ok(window) => {
                    scene.mock.inject(Fault::None);
                    window.end(0).expect(&what);
                    true
                }
                Err(_) => false,
            };
            let begun = if lasts {
                scene.mock.inject(Fault::From(access));
                let begun = lend(&mut session);
                scene.mock.inject(Fault::None);
                begun
            } else {
                scene.fails_twice_at(access, || lend(&mut session)).unwrap_or(true)
            };
            let done = scene.mock.accesses().total() - before < access || begun;
            if !begun && session.report_samples(note).is_err() {
                session.reprogram(note).expect(&what);
            }
            // If the register with the index does not answer, the records in the buffer belong to no known event.
            let may_drop = lasts && scene.unit.needs_physical_address();
            let dropped = if may_drop { scene.memory.dropped().unattributed } else { 0 };
            assert_eq!(scene.reported() as u32 + dropped, 3, "{what}");
            if dropped == 0 {
                scene.all_reported(&what);
            }
            scene.ends(session, &what);
            if done {
                break;
            }
        }
    }
}
