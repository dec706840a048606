//! Events that are throttled, or sampled at a frequency, while others silence, move, close and disturb them.

use core::cell::Cell;

use pmu::core::interrupt::EventOverflow;
use pmu::core::memory::EventTable;
use pmu::core::thread::{SavedEvent, ThreadEvent, Tick};
use pmu::core::{EventCount, EventStatus, Events, service};
use pmu_tests::opened::{Memory, Mock, Opened, Processor, Table, happened, plain, raw};
use pmu_virt::mock::Fault;

const NANOSECONDS: u64 = 4_000_000;
/// At most two interrupts of an event per tick.
const TICK: Tick = Tick::new(250, 500);
const PERIOD: u64 = EventTable::DEFAULT_MIN_PERIOD;

/// A processor of version 4, whose handler accounts for each sample.
struct Scene<'s, 'm> {
    processor: &'s Processor,
    mock: &'m Mock<'m>,
    table: &'s Table,
    session: Opened<'s, 'm>,
    samples: &'s Cell<u64>,
    now: &'s Cell<u64>,
    sampled: &'s dyn Fn(EventOverflow),
}

impl Scene<'_, '_> {
    fn tick(&mut self) {
        self.now.set(self.now.get() + NANOSECONDS);
        let sampled = self.sampled;
        self.session.tick(TICK, self.now.get(), sampled).unwrap();
    }

    /// The event of the tests happens so many times.
    fn happen(&self, periods: u64) {
        self.mock.advance(&mut happened(2, periods * PERIOD));
    }
}

/// Runs `test`. After each sample is accounted for, the handler calls `after` with its number.
fn scene(after: &dyn Fn(&EventTable, EventOverflow, u64), test: impl FnOnce(Scene<'_, '_>)) {
    let processor = plain(4);
    let (mock, memory, table) = (processor.mock(), Memory::new(), Table::new());
    let source = Events::new(&processor.unit, &table as &EventTable);
    let (samples, now) = (Cell::new(0), Cell::new(1));
    let sampled = |overflow: EventOverflow| {
        samples.set(samples.get() + 1);
        table.account_sample(overflow.event, true, || now.get());
        after(&table, overflow, samples.get());
    };
    let handler = |mock: &Mock<'_>| {
        service(&source, mock, &memory, |sample| sampled(*sample)).unwrap();
    };
    mock.on_interrupt(&handler);
    let session = processor.take(&mock, &memory, &table);
    let (processor, mock, table, samples) = (&processor, &mock, &table, &samples);
    test(Scene { processor, mock, table, session, samples, now: &now, sampled: &sampled });
}

fn nothing(_: &EventTable, _: EventOverflow, _: u64) {}

/// As with `PERF_EVENT_IOC_REFRESH`: the last sample is also the last one of the tick.
#[test]
fn the_tick_does_not_let_an_event_go_on_that_its_user_silenced() {
    let silence = |table: &EventTable, overflow: EventOverflow, number| {
        if number == 2 {
            table.stop_reporting(overflow.event).unwrap();
        }
    };
    scene(&silence, |mut scene| {
        let event = scene.session.open(&scene.processor.unit, &[raw(2).every(PERIOD)]).unwrap();
        scene.session.enable(event, 0).unwrap();
        scene.tick();
        for _ in 0..3 {
            scene.happen(10);
            assert_eq!(scene.samples.get(), 2);
            scene.tick();
        }
    });
}

/// An event that is open keeps a period that is below a new minimum, and so does one that is switched in.
#[test]
fn a_period_below_the_minimum_begins_again_after_the_tick() {
    for is_threads in [false, true] {
        scene(&nothing, |mut scene| {
            let unit = &scene.processor.unit;
            let event = raw(2).every(PERIOD);
            if is_threads {
                scene.table.set_min_period(10_000);
                let saved = SavedEvent::new(unit, &event).unwrap().to_be_enabled(true);
                let mut thread = [ThreadEvent::SwitchedOut(saved)];
                scene.session.switch_in(unit, &mut thread, 0).unwrap();
            } else {
                let event = scene.session.open(unit, &[event]).unwrap();
                scene.session.enable(event, 0).unwrap();
                scene.table.set_min_period(10_000);
            }
            scene.tick();
            for tick in 1..20 {
                scene.happen(10);
                assert_eq!(scene.samples.get(), 2 * tick, "a thread's: {is_threads}");
                scene.tick();
            }
        });
    }
}

#[test]
fn a_frequency_begins_with_the_shortest_period_of_its_table() {
    scene(&nothing, |mut scene| {
        scene.table.set_min_period(10_000);
        let unit = &scene.processor.unit;
        let event = scene.session.open(unit, &[raw(2).at_frequency(1_000)]).unwrap();
        scene.session.enable(event, 0).unwrap();
        scene.mock.advance(&mut happened(2, 9_999));
        assert_eq!(scene.samples.get(), 0);
        scene.mock.advance(&mut happened(2, 1));
        assert_eq!(scene.samples.get(), 1);
    });
}

/// A thread that runs between the ticks has what each tick allows, and no tick meets it.
#[test]
fn a_threads_event_has_its_samples_of_each_tick_also_if_no_tick_meets_it() {
    // So many periods in each slice, and slices per tick: the samples of each tick.
    for (periods, slices, samples) in [(10, 1, 2), (1, 1, 1), (10, 3, 2), (1, 3, 2)] {
        scene(&nothing, |mut scene| {
            let unit = &scene.processor.unit;
            let saved = SavedEvent::new(unit, &raw(2).every(PERIOD)).unwrap().to_be_enabled(true);
            let mut thread = [ThreadEvent::SwitchedOut(saved)];
            // A tick's number is kept by its low bits.
            for tick in 1..200 {
                scene.tick();
                for _ in 0..slices {
                    let now = scene.now.get();
                    scene.session.switch_in(unit, &mut thread, now).unwrap();
                    scene.happen(periods);
                    let sampled = scene.sampled;
                    scene.session.switch_out(&mut thread, now, |of| sampled(*of)).unwrap();
                }
                assert_eq!(scene.samples.get(), samples * tick, "{periods}, {slices}");
            }
        });
    }
}

/// Nothing happens in these ticks but the end of a child.
#[test]
fn a_childs_count_is_not_taken_for_the_parents_rate() {
    scene(&nothing, |mut scene| {
        let unit = &scene.processor.unit;
        let event = scene.session.open(unit, &[raw(2).at_frequency(250)]).unwrap();
        scene.session.enable(event, 0).unwrap();
        let sampled_in = |scene: &mut Scene<'_, '_>, ticks: u64| {
            scene.samples.set(0);
            for _ in 0..ticks {
                for _ in 0..8 {
                    scene.happen(1);
                    scene.now.set(scene.now.get() + NANOSECONDS / 8);
                }
                let (now, sampled) = (scene.now.get(), scene.sampled);
                scene.session.tick(Tick::new(250, 0), now, sampled).unwrap();
            }
            scene.samples.get()
        };
        sampled_in(&mut scene, 100);
        assert_eq!(sampled_in(&mut scene, 25), 25);
        let child = EventCount { value: 1_000_000_000_000, ..EventCount::default() };
        scene.session.add_count(event, child).unwrap();
        assert_eq!(sampled_in(&mut scene, 25), 25);
        let back = EventCount { value: child.value.wrapping_neg(), ..child };
        scene.session.add_count(event, back).unwrap();
        assert_eq!(sampled_in(&mut scene, 25), 25);
    });
}

/// A register that does not answer at one tick: the event goes on at the next, or its status is an error that its
/// kernel finds; and an event that rotates goes on by itself.
#[test]
fn no_event_stays_silent_after_a_fault_of_the_tick() {
    for (is_grouped, rotates) in [(false, false), (false, true), (true, false), (true, true)] {
        for at in 1..30 {
            scene(&nothing, |mut scene| {
                let what = format!("grouped: {is_grouped}, rotates: {rotates}, access {at}");
                let unit = &scene.processor.unit;
                let first = raw(2).every(PERIOD);
                let first = if rotates { first.rotating() } else { first };
                let event = if is_grouped {
                    let group = scene.session.open(unit, &[first, raw(3)]).unwrap();
                    scene.session.enable(group, 0).unwrap();
                    scene.session.group_events(group).next().unwrap()
                } else {
                    let event = scene.session.open(unit, &[first]).unwrap();
                    scene.session.enable(event, 0).unwrap();
                    event
                };
                scene.tick();
                scene.happen(10);
                assert_eq!(scene.samples.get(), 2, "{what}");
                scene.mock.inject(Fault::Twice(at));
                let sampled = scene.sampled;
                let ticked = scene.session.tick(TICK, scene.now.get(), sampled);
                scene.mock.inject(Fault::None);
                for _ in 0..4 {
                    // A register that answers again.
                    let _ = scene.session.tick(TICK, scene.now.get(), sampled);
                    scene.happen(10);
                }
                let status = scene.session.event_status(event).unwrap();
                let goes_on = scene.samples.get() > 2;
                let is_told = ticked.is_err() && status == EventStatus::Error;
                assert!(goes_on || !rotates && is_told, "{what}: {ticked:?}, {status:?}");
            });
        }
    }
}

/// A task or a handler sets a new period: the limit on the event's samples still holds.
#[test]
fn a_new_period_does_not_end_the_limit() {
    scene(&nothing, |mut scene| {
        let unit = &scene.processor.unit;
        let event = scene.session.open(unit, &[raw(2).every(PERIOD)]).unwrap();
        scene.session.enable(event, 0).unwrap();
        scene.tick();
        scene.happen(10);
        assert!(scene.table.is_throttled(event) && scene.samples.get() == 2);
        // As Linux' PERF_EVENT_IOC_PERIOD, and as a restart, it lets the event go on at once.
        let sampled = scene.sampled;
        scene.session.apply_period(event, 2 * PERIOD, 0, sampled).unwrap();
        assert!(!scene.table.is_throttled(event));
        scene.happen(20);
        assert!(scene.table.is_throttled(event) && scene.samples.get() == 4);

        let mut thread = [ThreadEvent::Opened(event)];
        scene.session.switch_out(&mut thread, 0, |_| panic!("no sample waits")).unwrap();
        let ThreadEvent::SwitchedOut(saved) = thread[0] else { panic!() };
        thread[0] = ThreadEvent::SwitchedOut(saved.to_be_enabled(true));
        scene.session.switch_in(unit, &mut thread, 0).unwrap();
        scene.happen(20);
        assert_eq!(scene.samples.get(), 6);
    });
    let adapts = |table: &EventTable, overflow: EventOverflow, _| {
        table.set_period(overflow.event, PERIOD).unwrap();
    };
    scene(&adapts, |mut scene| {
        let unit = &scene.processor.unit;
        let event = scene.session.open(unit, &[raw(2).every(PERIOD)]).unwrap();
        scene.session.enable(event, 0).unwrap();
        for tick in 0..3 {
            scene.tick();
            scene.happen(20);
            assert_eq!(scene.samples.get(), 2 * (tick + 1));
        }
    });
}

/// An interrupt at each access of the tick that begins a shorter period, whose handler silences the event.
#[test]
fn an_interrupt_in_the_tick_silences_an_event_for_good() {
    let mut interrupted = 0;
    for at in 1..12 {
        let (is_on, last) = (Cell::new(false), Cell::new(0));
        let silence = |table: &EventTable, overflow: EventOverflow, number| {
            if is_on.get() && last.get() == 0 {
                table.stop_reporting(overflow.event).unwrap();
                last.set(number);
            }
        };
        scene(&silence, |mut scene| {
            let unit = &scene.processor.unit;
            let event = scene.session.open(unit, &[raw(2).at_frequency(1_000)]).unwrap();
            scene.session.enable(event, 0).unwrap();
            let sampled = scene.sampled;
            // A long period, and then fewer events for each tick, until a shorter period begins.
            scene.session.apply_period(event, 1_000 * PERIOD, 0, sampled).unwrap();
            is_on.set(true);
            for _ in 0..40 {
                scene.happen(1);
                scene.mock.interrupt_at(at);
                scene.now.set(scene.now.get() + NANOSECONDS);
                scene.session.tick(Tick::new(250, 0), scene.now.get(), sampled).unwrap();
                scene.mock.interrupt_at(0);
            }
            scene.happen(20_000);
            interrupted += u32::from(last.get() != 0);
            assert!(last.get() == 0 || scene.samples.get() == last.get(), "access {at}");
        });
    }
    assert!(interrupted > 3, "{interrupted}");
}

/// Its table is another session's by then.
#[test]
fn a_tick_of_a_session_that_was_shut_down_does_nothing() {
    scene(&nothing, |mut scene| {
        scene.session.shut_down().unwrap();
        let memory = Box::leak(Box::new(Memory::new()));
        let mut other = scene.processor.take(scene.mock, memory, scene.table);
        let event = other.open(&scene.processor.unit, &[raw(2).every(PERIOD)]).unwrap();
        other.enable(event, 0).unwrap();
        other.tick(TICK, 0, |_| ()).unwrap();
        for _ in 0..2 {
            scene.table.account_sample(event, true, || 0);
        }
        scene.tick();
        assert!(scene.table.is_throttled(event));
        other.tick(TICK, 0, |_| ()).unwrap();
        assert!(!scene.table.is_throttled(event));
    });
}
