//! Precise events where they meet their neighbors: windows, guests, closures, other events, lost registers.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use pmu_core::error::CounterError;
use pmu_core::facility::EventFacility;
use pmu_core::lending::guest_control;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::precise::SampleParts;
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::reload::{AutoCounterReload, ReloadMemory};
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Events, Sample, service};
use pmu_intel::precise::{Pebs, PreciseThreshold, PreciseUnit};
use pmu_tests::opened::{fed_events, happened, raw};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::ProcessMemory;
use pmu_virt::precise::{GuestMemory, PreciseConfiguration, VirtualPrecise};
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::{Read, VirtualPmu};

use crate::scene::*;
use crate::support::{
    Mock, PHYSICAL, Processor, instruction, lend, nothing_is_enabled, processors, words,
};

fn what(processor: &Processor) -> String {
    format!("{}, freezes: {}", processor.name, processor.freezes)
}

fn adaptive() -> impl Iterator<Item = Processor> {
    let fixed = ["format 0", "format 1", "format 2", "format 3"];
    processors().into_iter().filter(move |processor| !fixed.contains(&processor.name))
}

/// The linear addresses in the registers are the host's: a guest's counter must not write records.
#[test]
fn no_record_is_written_while_a_guest_runs() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), what(&processor));
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0));
        let plain = scene.start(&mut session, &raw(2));
        let bit = |id| session.counter_of(id).unwrap().only().bits();
        let control = guest_control(&scene.source(), &scene.counter_memory).expect(&what);
        assert_eq!(control.host & bit(event), bit(event), "{what}");
        assert_eq!(control.guest & bit(event), 0, "{what}: {control:x?}");
        assert_eq!(control.guest & bit(plain), bit(plain), "{what}");
        scene.ends(session, &what);
    }
}

/// The records become greater while many small ones wait.
#[test]
fn records_that_grow_behind_many_small_ones_lose_none() {
    for processor in adaptive() {
        for before in [100, 300, 340, 380, 420, 460, 480, 490, 500, 505, 508, 509, 510] {
            let (scene, what) = (Scene::new(processor), format!("{}, {before}", what(&processor)));
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            let small = scene.start(&mut session, &precise(0).with_total());
            scene.happen(0, before * PERIOD);
            let parts = SampleParts::REGISTERS | SampleParts::VECTORS | SampleParts::ACCESS;
            let large = precise(2).recording(parts).with_total();
            let large = scene.start(&mut session, &large);
            scene.happen(2, 3 * PERIOD);
            scene.happen(0, 3 * PERIOD + 7);
            let total = |id| session.read(id, 0).unwrap().value;
            assert_eq!((total(small), total(large)), ((before + 3) * PERIOD + 7, 300), "{what}");
            session.report_samples(|sample| scene.note(&sample)).unwrap();
            let samples = (scene.addresses(0).len() as u64, scene.addresses(2).len());
            assert_eq!(samples, (before + 3, 3), "{what}: {:?}", scene.memory.dropped());
            scene.all_reported(&what);
            scene.ends(session, &what);
        }
    }
}

/// Lets `count` of a kind happen at an access of the mock.
fn at_access(scene: &'static Scene) -> Rc<Cell<(u32, usize, u64)>> {
    let pending: Rc<Cell<(u32, usize, u64)>> = Rc::default();
    let hook = {
        let pending = pending.clone();
        move |mock: &Mock<'static>| {
            let (access, kind, count) = pending.get();
            pending.set((access.saturating_sub(1), kind, count));
            if access == 1 {
                mock.advance(&mut happened(kind, count));
            }
        }
    };
    scene.mock.on_access(Box::leak(Box::new(hook)));
    pending
}

/// Between the start of the counter and the settlement of the facility no record may be written.
#[test]
fn a_period_that_is_applied_loses_no_count_and_no_sample_at_any_access() {
    for processor in processors() {
        for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
            for access in 1..40 {
                let what = format!("{}, {threshold:?}, {access}", what(&processor));
                let scene = Scene::new(processor);
                scene.memory.set_threshold(threshold);
                let pending = at_access(scene);
                let mut session = scene.take();
                let event = scene.start(&mut session, &precise(0).with_total());
                scene.happen(0, 250);
                // So many that a period of 10 ends, and none of 100.
                pending.set((access, 0, 15));
                session.apply_period(event, 10, 0, |_| ()).expect(&what);
                let done = pending.get().0 == 0;
                pending.set((0, 0, 0));
                let before = session.read(event, 0).unwrap().value;
                assert!([250, 265].contains(&before), "{what}: {before}");
                scene.happen(0, 35);
                let total = session.read(event, 0).unwrap().value;
                assert_eq!(total, before + 35, "{what}");
                session.report_samples(|sample| scene.note(&sample)).unwrap();
                scene.all_reported(&what);
                assert_eq!(scene.memory.dropped().unattributed, 0, "{what}");
                scene.ends(session, &what);
                if !done {
                    break;
                }
            }
        }
    }
}

/// The registers of architectural PEBS lose the records' place, and the records.
#[test]
fn records_behind_lost_registers_are_those_of_their_event() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), what(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        let first = scene.start(&mut session, &precise(0));
        scene.happen(0, 3 * PERIOD);
        let counter = session.counter_of(first);
        session.disable(first, 0).unwrap();
        let second = scene.start(&mut session, &precise(0).tagged(9).with_total());
        assert_eq!(session.counter_of(second), counter, "{what}");
        scene.mock.lose_registers();
        scene.mock.set_performance_entry(0x400);
        session.reprogram(|sample| scene.note(&sample)).unwrap();
        let before = scene.addresses(0).len();
        scene.happen(0, 2 * PERIOD);
        session.report_samples(|sample| scene.note(&sample)).unwrap();
        assert_eq!((scene.addresses(0).len(), scene.addresses(9).len()), (before, 2), "{what}");
        assert_eq!(session.read(second, 0).unwrap().value, 200, "{what}");
        scene.ends(session, &what);
    }
}

/// The first of the records that wait ends another period than the others.
#[test]
fn records_of_an_event_that_left_have_the_periods_that_they_ended() {
    for processor in processors() {
        for leaves in [false, true] {
            let (scene, what) = (Scene::new(processor), what(&processor));
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            let event = scene.start(&mut session, &precise(0).with_total());
            scene.happen(0, 70);
            session.disable(event, 0).unwrap();
            scene.table.set_period(event, 200).unwrap();
            session.enable(event, 0).unwrap();
            scene.happen(0, 30 + 200 + 200);
            if leaves {
                session.disable(event, 0).unwrap();
            }
            session.report_samples(|sample| scene.note(&sample)).unwrap();
            let periods: Vec<_> = scene.seen.borrow().iter().map(|seen| seen.period).collect();
            assert_eq!(periods, [100, 200, 200], "{what}, leaves: {leaves}");
            assert_eq!(session.read(event, 0).unwrap().value, 500, "{what}");
            scene.ends(session, &what);
        }
    }
}

/// While a task reports samples, other events of the processor go on.
#[test]
fn what_happens_while_a_task_reports_is_reported_once_and_as_its_own() {
    for processor in processors() {
        for operation in 0..3 {
            let what = format!("{}, operation {operation}", what(&processor));
            let scene = Scene::new(processor);
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            let of_thread = scene.start(&mut session, &precise(0));
            // Some processors have no records of this event.
            let other = session.open(&scene.counters, &[precise(2).with_total()]);
            let Ok(other) = other else { continue };
            session.enable(other, 0).unwrap();
            scene.happen(0, 2 * PERIOD);
            scene.happen(2, PERIOD);
            scene.happen(0, 2 * PERIOD);
            let happens = Cell::new(true);
            *scene.react.borrow_mut() = Some(Box::new(move |scene, _| {
                if happens.take() {
                    scene.happen(2, 3 * PERIOD);
                }
            }));
            let mut thread = [ThreadEvent::Opened(of_thread)];
            let note = |sample: pmu_core::Sample<'_, _>| scene.note(&sample);
            match operation {
                0 => session.switch_out(&mut thread, 0, note).unwrap(),
                1 => session.report_samples(note).unwrap(),
                _ => session.reprogram(note).map(|_| ()).unwrap(),
            }
            let total = session.read(other, 0).unwrap().value;
            session.report_samples(|sample| scene.note(&sample)).unwrap();
            let samples = (scene.addresses(0).len(), scene.addresses(2).len() as u64);
            assert_eq!(samples, (4, total / PERIOD), "{what}: {:?}", scene.seen.borrow());
            scene.all_reported(&what);
            scene.ends(session, &what);
        }
    }
}

/// A plain event's interrupt freezes the counters as a precise one overflows: the record is yet to be written.
#[test]
fn a_record_that_is_due_is_not_lost_in_a_window() {
    for processor in processors() {
        for operation in 0..4 {
            let what = format!("{}, operation {operation}", what(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            scene.start(&mut session, &raw(0).user_only().every(PERIOD).tagged(5));
            let event = scene.start(&mut session, &precise(0).with_total());
            scene.happen(0, PERIOD);
            match operation {
                0 => session.lend(0, |sample| scene.note(&sample)).unwrap().end(0).unwrap(),
                1 => {
                    session.suspend(0, |sample| scene.note(&sample)).unwrap();
                    scene.mock.lose_registers();
                    session.resume(0, |sample| scene.note(&sample)).map(|_| ()).unwrap();
                }
                2 => {
                    session.disable(event, 0).unwrap();
                    session.enable(event, 0).unwrap();
                }
                _ => session.reprogram(|sample| scene.note(&sample)).map(|_| ()).unwrap(),
            }
            assert_eq!(session.read(event, 0).unwrap().value, PERIOD, "{what}");
            scene.happen(0, 2);
            assert_eq!(scene.addresses(0).len(), 1, "{what}");
            scene.happen(0, 3 * PERIOD - 2);
            assert_eq!(session.read(event, 0).unwrap().value, 4 * PERIOD, "{what}");
            assert!(scene.addresses(0).len() >= 3, "{what}");
            scene.ends(session, &what);
        }
    }
}

/// A record is lost, and the processor has loaded the counter for it with more than it was loaded with before.
#[test]
fn a_lost_record_costs_its_count_and_no_more() {
    for processor in processors() {
        for leaves in [false, true] {
            let what = format!("{}, leaves: {leaves}", what(&processor));
            let scene = Scene::new(processor);
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            let event = scene.start(&mut session, &precise(0).with_total());
            scene.happen(0, 70);
            session.disable(event, 0).unwrap();
            session.enable(event, 0).unwrap();
            scene.happen(0, 30 + 5);
            // The index is overwritten, as if nothing had been recorded.
            let [area, _] = words(scene.memory);
            area[5].store(area[4].load(Relaxed), Relaxed);
            scene.mock.with_precise_records(|records| {
                scene.mock.with_pmu(|pmu| {
                    if let Read::Value(index) = pmu.read_beside(records, 0x3F5) {
                        let _ = pmu.write_beside(records, 0x3F5, index & !0x7FF_FFF0);
                    }
                });
            });
            if leaves {
                session.disable(event, 0).unwrap();
            }
            let total = session.read(event, 0).unwrap().value;
            assert!(total <= 105, "{what}: {total}");
            scene.ends(session, &what);
        }
    }
}

/// A borrower's records end with the session, also if its window was dropped.
#[test]
fn a_borrowers_records_end_with_the_session() {
    for processor in processors().into_iter().filter(|of| of.counters.version < 6) {
        for again in [false, true] {
            let (scene, what) = (Scene::new(processor), what(&processor));
            let mut session = scene.take();
            scene.start(&mut session, &precise(0));
            let mut window = session.lend(0, |_| ()).unwrap();
            window.lent().set_programmed(true);
            scene.mock.with_precise_records(|records| {
                scene.mock.with_pmu(|pmu| {
                    let _ = pmu.write_beside(records, 0x600, 0x1234_5000);
                    let _ = pmu.write_beside(records, 0x3F1, 1);
                });
            });
            drop(window);
            if again {
                let window = session.lend(0, |_| ()).unwrap();
                let enabled = scene.mock.with_precise_records(|records| records.enabled());
                assert_eq!(enabled, Some(0), "{what}");
                drop(window);
            }
            session.shut_down().unwrap();
            nothing_is_enabled(scene.mock, &what);
        }
    }
}

type PairSource<F> = Events<'static, CounterUnit, F>;

/// Takes a session of a processor with architectural records and counter reload, in either order.
fn both_facilities<F: EventFacility + 'static>(
    with: impl Fn(Pebs<'static>, AutoCounterReload<'static>) -> F,
) {
    let memory = lend();
    // SAFETY: the area and the buffer, one page behind it, consist of atomics.
    let ram = unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) };
    let ram: &'static RefCell<dyn GuestMemory> = Box::leak(Box::new(RefCell::new(ram)));
    let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 3));
    let records = PreciseConfiguration::ARCHITECTURAL;
    let records = VirtualPrecise::new(&configuration, records).unwrap();
    let reload = ReloadConfiguration::of(0xFF, 0x7);
    let reload = VirtualReload::new(&configuration, reload).unwrap();
    let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
    let mock = Mock::strict(pmu).with_reload(reload.sharing(&records));
    let mock = mock.with_precise(records, ram, Box::leak(Box::new(instruction)));
    let mock: &'static Mock<'static> = Box::leak(Box::new(mock));
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    let snapshot = mock.snapshot();
    let unit: &'static _ = Box::leak(Box::new(PreciseUnit::detect(&snapshot, mock).unwrap()));
    let counters: &'static _ = Box::leak(Box::new(pmu_intel::counters(&snapshot)));
    let reload: &'static _ = Box::leak(Box::new(pmu_intel::counter_reload(&snapshot).unwrap()));
    let reloads: &'static ReloadMemory = Box::leak(Box::new(ReloadMemory::new()));
    let table: &'static EventTable<[EventEntry; 12]> = Box::leak(Box::new(EventTable::new()));
    table.set_min_period(1);
    // SAFETY: the mock writes to the lent memory alone, which lasts.
    let pebs = unsafe { Pebs::new(unit, memory, Some(PHYSICAL)) }.unwrap();
    let facility = with(pebs, AutoCounterReload::new(reload, reloads));
    let source: PairSource<F> = Events::new(counters, table as &EventTable).with(facility);
    let counter_memory: &'static CounterMemory<[CounterSlot; MAX_COUNTERS]> =
        Box::leak(Box::new(CounterMemory::new()));
    let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
    let (noted, in_handler) = (seen.clone(), source);
    mock.on_interrupt(Box::leak(Box::new(move |mock: &Mock<'static>| {
        let report = |sample: Sample<'_, F>| noted.borrow_mut().push(sample.tag);
        service(&in_handler, mock, counter_memory, report).unwrap();
    })));
    let all = CounterSet::ALL;
    let session = CounterSession::take(source, counters, all, mock, counter_memory);
    let mut session = session.unwrap();
    // A precise event cannot be reloaded: the register of its reload is that of the records.
    let members = [precise(2).reloaded_by(0b10), raw(3).every(1000).reloaded_by(0b10)];
    let refused = session.open(counters, &members).map_err(|error| error.reason);
    assert_eq!(refused, Err(CounterError::NotReloadable));
    // It may reload others, and counters go from the one use to the other.
    let reloaded = raw(3).user_only().every(PERIOD).tagged(3).reloaded_by(0b10);
    let delimits = raw(4).user_only().every(1000).tagged(4).reloaded_by(0b10);
    for round in 0..6 {
        let group = session.open(counters, &[reloaded, delimits]).unwrap();
        let alone: Vec<_> = (0..6)
            .map(|_| session.open(counters, &[precise(2).with_total().rotating()]).unwrap())
            .collect();
        let start = |session: &mut CounterSession<'static, _, _>| {
            session.enable(group, 0).unwrap();
        };
        if round % 2 == 0 {
            start(&mut session);
        }
        alone.iter().for_each(|event| session.enable(*event, 0).unwrap());
        if round % 2 != 0 {
            start(&mut session);
        }
        seen.borrow_mut().clear();
        mock.advance(&mut happened(2, PERIOD));
        mock.advance(&mut happened(3, PERIOD));
        let mut tags = seen.borrow().clone();
        tags.sort_unstable();
        assert_eq!(tags, [2, 2, 2, 2, 2, 2, 3], "round {round}");
        for event in &alone {
            assert_eq!(session.read(*event, 0).unwrap().value, PERIOD, "round {round}");
        }
        // The others stay, the group's counters become those of precise events.
        session.close(group, 0).unwrap();
        let more: Vec<_> =
            (0..2).map(|_| session.open(counters, &[precise(5).with_total()]).unwrap()).collect();
        more.iter().for_each(|event| session.enable(*event, 0).unwrap());
        seen.borrow_mut().clear();
        mock.advance(&mut happened(5, 3 * PERIOD));
        assert_eq!(*seen.borrow(), [5; 6], "round {round}");
        for event in alone.into_iter().chain(more) {
            session.close(event, 0).unwrap();
        }
    }
    session.shut_down().unwrap();
    nothing_is_enabled(mock, "both");
    assert_eq!(mock.breach(), None);
}

#[test]
fn counters_go_from_reload_to_records_and_back_in_either_order_of_the_facilities() {
    both_facilities(|pebs, reload| (pebs, reload));
    both_facilities(|pebs, reload| (reload, pebs));
}

/// A period in parts begins while the threshold is of many records.
#[test]
fn a_long_period_that_is_set_behind_waiting_records_is_not_longer_than_asked() {
    const LONG: u64 = 3 << 31;
    for processor in processors() {
        for leaves in [false, true] {
            let what = format!("{}, leaves: {leaves}", what(&processor));
            let scene = Scene::new(processor);
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            let event = scene.start(&mut session, &precise(0).with_total());
            scene.happen(0, 2 * PERIOD);
            scene.table.set_period(event, LONG).unwrap();
            session.report_samples(|sample| scene.note(&sample)).unwrap();
            scene.happen(0, LONG - 7);
            if leaves {
                session.disable(event, 0).unwrap();
                session.enable(event, 0).unwrap();
            }
            session.report_samples(|sample| scene.note(&sample)).unwrap();
            let periods = || scene.seen.borrow().iter().map(|seen| seen.period).collect::<Vec<_>>();
            assert_eq!(periods(), [100, 100], "{what}");
            scene.happen(0, 7);
            session.report_samples(|sample| scene.note(&sample)).unwrap();
            assert_eq!(periods(), [100, 100, LONG], "{what}");
            assert_eq!(session.read(event, 0).unwrap().value, 200 + LONG, "{what}");
            scene.ends(session, &what);
        }
    }
}

/// An event goes on while others come and go, whatever it records in the middle of that.
#[test]
fn a_bystander_is_counted_and_sampled_exactly_at_any_access() {
    for processor in processors() {
        for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
            for operation in 0..9 {
                for (access, happens) in (1..80).flat_map(|at| [(at, 150), (at, 0)]) {
                    let what =
                        format!("{}, {threshold:?}, {operation}, {access}", what(&processor));
                    if !passes_by(
                        Scene::new(processor),
                        threshold,
                        operation,
                        access,
                        happens,
                        &what,
                    ) {
                        break;
                    }
                }
            }
        }
    }
}

/// Returns whether the operation had so many accesses.
fn passes_by(
    scene: &'static Scene,
    threshold: PreciseThreshold,
    operation: u32,
    access: u32,
    happens: u64,
    what: &str,
) -> bool {
    scene.memory.set_threshold(threshold);
    let pending = Rc::new(Cell::new(0));
    let hook = {
        let pending: Rc<Cell<u32>> = pending.clone();
        move |mock: &Mock<'static>| {
            let access = pending.get();
            pending.set(access.saturating_sub(1));
            match (access, happens) {
                (1, 0) => {
                    mock.interrupt_from_elsewhere();
                }
                (1, _) => mock.advance(&mut happened(0, happens)),
                _ => {}
            }
        }
    };
    scene.mock.on_access(Box::leak(Box::new(hook)));
    let mut session = scene.take();
    let processor = &scene.counters;
    let bystander = scene.start(&mut session, &precise(0).with_total());
    // Some processors have no records of this event.
    let other = if session.open(processor, &[precise(2)]).is_ok() { precise(2) } else { raw(2) };
    let has_parts = scene.unit.groups().contains(SampleParts::REGISTERS);
    let large = match has_parts && other.precision().is_some() {
        true => other.recording(SampleParts::REGISTERS),
        false => other,
    };
    let members = [raw(3).user_only(), large, other.tagged(8)];
    let group = session.open(processor, &members).expect(what);
    let second = session.group_events(group).nth(1).unwrap();
    let third = session.group_events(group).nth(2).unwrap();
    let alone = session.open(processor, &[large.rotating()]).expect(what);
    scene.happen(0, 270);
    let note = |sample: Sample<'_, Option<Pebs<'static>>>| scene.note(&sample);
    let mut thread = [ThreadEvent::Opened(alone)];
    if operation > 0 {
        session.enable(alone, 0).expect(what);
    }
    if (4..6).contains(&operation) {
        session.disable(third, 0).expect(what);
        session.enable(group, 0).expect(what);
    }
    scene.happen(2, 130);
    pending.set(access);
    match operation {
        0 => session.enable_if_free(alone, 0).expect(what),
        1 => session.disable(alone, 0).expect(what),
        2 => session.enable(group, 0).expect(what),
        3 => session.switch_out(&mut thread, 0, note).expect(what),
        4 => session.enable(third, 0).expect(what),
        5 => session.disable(second, 0).expect(what),
        6 => session.rotate(1).map(|_| ()).expect(what),
        7 => session.report_samples(note).expect(what),
        _ => session.reprogram(note).map(|_| ()).expect(what),
    }
    let done = pending.replace(0) == 0;
    let total = session.read(bystander, 0).unwrap().value;
    // Nothing is counted while the counter is stopped.
    let is_one = [270, 270 + happens].contains(&total);
    // An interrupt in the middle is served as the counters are stopped, or afterwards.
    let is_part = total > 270 && total < 270 + happens && total.is_multiple_of(PERIOD);
    assert!(is_one || is_part, "{what}: {total}");
    scene.happen(0, 60);
    let now = session.read(bystander, 0).unwrap().value;
    assert_eq!(now, total + 60, "{what}");
    session.report_samples(note).expect(what);
    let dropped = scene.memory.dropped();
    assert_eq!(scene.addresses(0).len() as u64, now / PERIOD, "{what}: {dropped:?}");
    assert_eq!((scene.faulted.get(), scene.mock.lost_records()), (0, 0), "{what}");
    scene.ends(session, what);
    done
}
