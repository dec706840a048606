//! Repairs, software events, profiles and the watchdog, where they meet each other: with silenced and throttled events,
//! parts of groups, tasks that move, and processors that sleep.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use pmu::core::{EventSource, EventStatus};
use pmu::frame::PlainFrame;
use pmu::{Event, GenericEvent, Kernel, PmuError, PmuEvent, PmuSample, SoftwareEvent};
use pmu_virt::mock::Fault;

use crate::software::on_each;
use crate::world::{Happens, Machine, TestPmu, World, sampling};

const INSTRUCTIONS: Event = Event::generic(GenericEvent::Instructions);
const CYCLES: Event = Event::generic(GenericEvent::Cycles);
const FAULTS: Event = Event::software(SoftwareEvent::PageFaults);
const CLOCK: Event = Event::software(SoftwareEvent::CpuClock);
const MILLISECOND: u64 = 1_000_000;
const PERIOD: u64 = 10_007;

fn frame(pc: u64) -> PlainFrame {
    PlainFrame::new(pc, 0x33, 2, World::this_processor())
}

fn hits(buffer: &[AtomicU32]) -> u32 {
    buffer.iter().map(|hits| hits.load(Ordering::Relaxed)).sum()
}

/// The counters of processor 0 fault as the event's interrupt comes.
fn lose(machine: &'static Machine) {
    machine.mocks[0].inject(Fault::From(1));
    machine.happen(0, Happens::Instructions, PERIOD);
    machine.mocks[0].inject(Fault::None);
    machine.interrupted.take();
    machine.overflows.take();
}

fn status(pmu: &'static TestPmu, event: PmuEvent) -> EventStatus {
    pmu.status(event).unwrap()
}

fn resume(pmu: &'static TestPmu) {
    for _ in 0..3 {
        if pmu.processor_resumed().is_ok() {
            return;
        }
    }
    panic!("{:?}", pmu.processor_resumed());
}

/// `PERF_EVENT_IOC_REFRESH` has ended: only a task's start lets the event be sampled again.
#[test]
fn a_repair_does_not_let_a_silenced_event_be_sampled() {
    on_each(|machine, pmu| {
        let event = pmu.start(&INSTRUCTIONS.every(PERIOD).with_total()).unwrap();
        pmu.stop_reporting(event.id()).unwrap();
        machine.happen(0, Happens::Instructions, PERIOD);
        machine.overflows.take();
        let sampled = pmu.start(&INSTRUCTIONS.every(PERIOD)).unwrap();
        lose(machine);
        if let EventStatus::Active(_) = status(pmu, event) {
            // Only one was lost.
            machine.mocks[0].inject(Fault::From(1));
            let _ = pmu.lend(|_| ());
            machine.mocks[0].inject(Fault::None);
        }
        resume(pmu);
        assert!(matches!(status(pmu, event), EventStatus::Active(_)));
        assert!(matches!(status(pmu, sampled), EventStatus::Active(_)));
        machine.overflows.take();
        machine.happen(0, Happens::Instructions, 3 * PERIOD);
        let overflows = machine.overflows.take();
        let of = |id| overflows.iter().filter(|(_, of)| of.event == id).count();
        assert_eq!([of(sampled.id()), of(event.id())], [3, 0], "{:?}", machine.configuration);
    });
}

/// The register of a throttled event does not answer at the tick that lets it go on.
#[test]
fn a_repair_starts_an_event_that_a_tick_could_not_let_go_on() {
    on_each(|machine, pmu| {
        for at in 1..20 {
            let event = pmu.start(&INSTRUCTIONS.every(PERIOD).with_total()).unwrap();
            pmu.tick().unwrap();
            machine.happen(0, Happens::Instructions, 500 * PERIOD);
            machine.mocks[0].inject(Fault::From(at));
            let ticked = pmu.tick();
            machine.mocks[0].inject(Fault::None);
            resume(pmu);
            let (status, of) = (status(pmu, event), machine.configuration);
            assert!(
                matches!(status, EventStatus::Active(_)),
                "{of:?} {at}: {ticked:?}, {status:?}"
            );
            pmu.tick().unwrap();
            machine.overflows.take();
            machine.happen(0, Happens::Instructions, 3 * PERIOD);
            if at < 3 {
                assert!(ticked.is_err());
                assert_eq!(machine.overflows.take().len(), 3);
            }
            pmu.close(event).unwrap();
        }
    });
}

/// One event of a thread's group leaves the processor, after a fault or not, and comes back.
#[test]
fn all_of_a_group_goes_on_as_its_parts_are_together_again() {
    on_each(|machine, pmu| {
        for (part, loses) in (0..3).flat_map(|part| [(part, false), (part, true)]) {
            let context = format!("{:?} {part} {loses}", machine.configuration);
            let events = [INSTRUCTIONS.every(PERIOD).with_total(), FAULTS, CYCLES];
            let mut group = pmu.thread_group(&events).unwrap();
            pmu.switch(&mut [], &mut group).unwrap();
            if loses {
                lose(machine);
            }
            let _ = pmu.switch(&mut group[part..=part], &mut []);
            resume(pmu);
            machine.now.set(machine.now.get() + 100);
            pmu.switch(&mut [], &mut group[part..=part]).unwrap();
            for _ in 0..2 {
                let counts = || [0, 1, 2].map(|event| pmu.read_thread(&group[event]).unwrap());
                let before = counts();
                pmu.happened(SoftwareEvent::MinorFaults, &frame(0));
                machine.happen(0, Happens::Instructions, 7);
                machine.happen(0, Happens::Cycles, 9);
                machine.now.set(machine.now.get() + 10);
                let after = counts();
                let more = [0, 1, 2].map(|at| {
                    let [before, after] = [before[at], after[at]];
                    let time = after.enabled - before.enabled;
                    [after.value - before.value, time, after.running - before.running]
                });
                assert_eq!(more, [[7, 10, 10], [1, 10, 10], [9, 10, 10]], "{context}");
                pmu.switch(&mut group, &mut []).unwrap();
                pmu.switch(&mut [], &mut group).unwrap();
            }
            pmu.switch(&mut group, &mut []).unwrap();
        }
    });
}

/// As that of a source on a counter: from the next sample on.
#[test]
fn a_source_of_a_software_event_takes_up_its_interval() {
    on_each(|machine, pmu| {
        let source = pmu.source(CLOCK.every(MILLISECOND)).unwrap();
        let set = |units| {
            pmu.with(|session, _| session.interface().set_interval(source, units)).unwrap().unwrap()
        };
        let samples = Cell::new(0);
        let pass = |nanoseconds| {
            let (timer, end) = (&machine.clock_timers[0], machine.now.get() + nanoseconds);
            samples.set(0);
            while let Some(at) = timer.get().filter(|at| *at <= end) {
                timer.set(None);
                machine.now.set(at);
                let note = |_: &PmuSample<'_, World>| samples.set(samples.get() + 1);
                sampling(note, || pmu.clock_interrupt(&frame(0)));
            }
            machine.now.set(end);
            samples.get()
        };
        let buffer: [AtomicU32; 4] = Default::default();
        pmu.profile(source, 0..64, &buffer, || {
            assert_eq!(pass(4 * MILLISECOND), 4);
            set(2 * MILLISECOND);
            assert_eq!(pass(MILLISECOND), 1);
            assert_eq!(pass(8 * MILLISECOND), 4, "{:?}", machine.configuration);
            set(MILLISECOND);
            assert_eq!(pass(2 * MILLISECOND), 1);
            assert_eq!(pass(4 * MILLISECOND), 4);
        })
        .unwrap();
        assert_eq!(hits(&buffer), 14);
    });
}

#[test]
fn a_source_of_a_software_event_accepts_the_periods_of_the_event() {
    on_each(|_, pmu| {
        let source = pmu.source(FAULTS.every(2)).unwrap();
        let buffer: [AtomicU32; 4] = Default::default();
        pmu.profile(source, 0..64, &buffer, || {
            let fault = || pmu.happened(SoftwareEvent::MinorFaults, &frame(0));
            let set = |units| {
                pmu.with(|session, _| session.interface().set_interval(source, units)).unwrap()
            };
            set(3).unwrap();
            (0..2 + 3 + 3).for_each(|_| fault());
        })
        .unwrap();
        assert_eq!(hits(&buffer), 3);
        let clock = pmu.source(CLOCK.every(10_000)).unwrap();
        let set = |units| pmu.with(|session, _| session.interface().set_interval(clock, units));
        assert!(set(9_999).unwrap().is_err());
        set(10_001).unwrap().unwrap();
    });
}

/// Its period follows the samples, so it says nothing of time; and one that waits for its turn does not watch.
#[test]
fn an_event_that_cannot_watch_is_refused() {
    on_each(|_, pmu| {
        assert!(pmu.watch_by(&CYCLES.at_frequency(1_000)).is_err());
        assert!(matches!(pmu.watch_by(&CYCLES.at_frequency(1_000)), Err(PmuError::Counters(_))));
    });
}

/// The scheduler moves the task as soon as it can.
#[test]
fn a_task_that_moves_watches_one_processor() {
    on_each(|machine, pmu| {
        machine.on(1, || pmu.watch(PERIOD, 10)).unwrap();
        let open = |processor| {
            machine.on(processor, || {
                let (events, _) = pmu.events_of(processor).unwrap();
                (0..24)
                    .filter(|place| {
                        events.opened().opening(pmu::core::EventId::of_index(*place)).is_some()
                    })
                    .count()
            })
        };
        let before = [open(0), open(1)];
        machine.moves_to.set(Some(1));
        pmu.watch(PERIOD, 10).unwrap();
        machine.moves_to.set(None);
        let after = [open(0), open(1)];
        machine.on(0, || ());
        assert_eq!((before, after), ([0, 1], [1, 1]), "{:?}", machine.configuration);
    });
}

/// The profile does not start, and leaves nothing on any processor.
#[test]
fn a_clocks_profile_does_not_start_while_a_processor_sleeps() {
    crate::software_profiles::with_and_without_counters(|machine, pmu| {
        let buffer: [AtomicU32; 4] = Default::default();
        for suspended in 0..3 {
            machine.on(suspended, || pmu.processor_suspended()).unwrap();
            for period in [1, 2] {
                let by = CLOCK.every(period * MILLISECOND);
                assert!(pmu.profile(by, 0..64, &buffer, || unreachable!()).is_err());
            }
            machine.on(suspended, || pmu.processor_resumed()).unwrap();
            assert!(machine.clock_timers.iter().all(|timer| timer.get().is_none()));
            for period in [3, 1, 2] {
                let by = CLOCK.every(period * MILLISECOND);
                let at = machine.now.get() + period * MILLISECOND;
                pmu.profile(by, 0..64, &buffer, || {
                    assert!(machine.clock_timers.iter().all(|timer| timer.get() == Some(at)));
                    machine.on(suspended, || pmu.processor_suspended()).unwrap();
                })
                .unwrap_err();
                machine.on(suspended, || pmu.processor_resumed()).unwrap();
                assert!(machine.clock_timers.iter().all(|timer| timer.get().is_none()));
            }
        }
    });
}

/// Two processors came up without their profiles, and one of them sleeps.
#[test]
fn a_processor_is_repaired_while_another_one_sleeps() {
    on_each(|machine, pmu| {
        let buffer: [AtomicU32; 4] = Default::default();
        for at in 1..160 {
            pmu.profile(CYCLES.every(PERIOD), 0..64, &buffer, || {
                let failed = [0, 1].map(|processor| {
                    machine.on(processor, || {
                        pmu.processor_down().unwrap();
                        machine.mocks[processor].inject(Fault::From(at));
                        let up = pmu.processor_up(&machine.snapshot());
                        machine.mocks[processor].inject(Fault::None);
                        if !matches!(up, Ok(_) | Err(PmuError::Profile(_))) {
                            pmu.processor_up(&machine.snapshot()).unwrap();
                        } else if pmu
                            .with(|session, _| session.counters().usable)
                            .unwrap()
                            .is_empty()
                        {
                            // None answered.
                            pmu.processor_down().unwrap();
                            pmu.processor_up(&machine.snapshot()).unwrap();
                            return false;
                        }
                        matches!(up, Err(PmuError::Profile(_)))
                    })
                });
                if failed == [true; 2] {
                    machine.on(1, || pmu.processor_suspended()).unwrap();
                    pmu.processor_resumed()
                        .unwrap_or_else(|error| panic!("{:?} {error:?}", machine.configuration));
                    machine.on(1, || pmu.processor_resumed()).unwrap();
                }
            })
            .unwrap();
        }
    });
}
