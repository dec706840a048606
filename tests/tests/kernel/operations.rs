//! Each operation, on every kind of PMU.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmu::core::frame::{InterruptFrame, PlainFrame};
use pmu::core::profile::KProfileSource;
use pmu::core::registers::{CounterId, EventSelect};
use pmu::core::thread::{SavedEvent, ThreadEvent};
use pmu::core::{Claim, CounterSet, Event, GenericEvent};
use pmu::{Kernel, PmuError, Profiled};
use pmu_kprofile::{BasicProfile, ProfileObject, Rules};
use pmu_tests::opened::{processors, running};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::Deviations;

use crate::world::{Happens, Machine, PROCESSORS, TestPmu, World, machines};

const PERIOD: u64 = 10_007;
const BASE: u64 = 0xFFFF_FFFF_8000_0000;

/// Runs a test on a machine of each configuration, whose processors are up.
fn on_each(test: impl Fn(&'static Machine, &'static TestPmu)) {
    for processors in machines() {
        let (machine, pmu) = Machine::of(processors);
        machine.up();
        test(machine, pmu);
        machine.down();
    }
}

fn cycles() -> Event {
    Event::generic(GenericEvent::Cycles).every(PERIOD)
}

fn buckets() -> [AtomicU32; 64] {
    core::array::from_fn(|_| AtomicU32::new(0))
}

fn hits(object: &ProfileObject<'_>) -> Vec<(u64, u32)> {
    object.hits().map(|(addresses, count)| (addresses.start, count)).collect()
}

#[test]
fn a_function_is_counted_on_its_processor_as_a_group() {
    on_each(|machine, pmu| {
        let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
        for processor in [0, 2] {
            machine.happen(processor, Happens::Instructions, 5); // before
            let counts = machine.on(processor, || {
                pmu.count(&events, || {
                    machine.happen(processor, Happens::Instructions, 1_000);
                    machine.happen(processor, Happens::Cycles, 2_500);
                    machine.happen(1, Happens::Cycles, 77); // elsewhere
                })
            });
            let counts = counts.unwrap();
            assert_eq!(
                counts.map(|count| count.value),
                [1_000, 2_500],
                "{:?}",
                machine.configuration
            );
            machine.happen(processor, Happens::Cycles, 5); // after
        }
        assert_eq!(machine.interrupted.take(), []);
    });
}

/// The README's fourth step. The task moves to another processor after each call.
#[test]
fn an_event_of_a_thread_begins_in_one_call_whatever_the_scheduler_does_after_it() {
    on_each(|machine, pmu| {
        let instructions = Event::generic(GenericEvent::Instructions);
        // On each processor another event, which is stopped, has the place of the thread's.
        let others = [0, 1].map(|processor| machine.on(processor, || pmu.open(&instructions)));
        let mut thread = [ThreadEvent::default(); 2];
        machine.on(0, || {
            machine.moves_to.set(Some(1));
            let event = pmu.thread_event(&instructions).unwrap();
            machine.moves_to.set(Some(0));
            let switched_in = World::pinned(|| {
                thread[0] = event;
                pmu.switch(&mut [], &mut thread)
            });
            switched_in.unwrap();
            // The move: out on processor 1, in on processor 0.
            machine.happen(1, Happens::Instructions, 10);
            machine.on(1, || pmu.switch(&mut thread, &mut [])).unwrap();
            machine.happen(1, Happens::Instructions, 100); // another thread's
            machine.happen(0, Happens::Instructions, 1_000);
            pmu.switch(&mut [], &mut thread).unwrap();
            machine.happen(0, Happens::Instructions, 5);
            assert_eq!(
                pmu.read_thread(&thread[0]).unwrap().value,
                15,
                "{:?}",
                machine.configuration
            );
            pmu.switch(&mut thread, &mut []).unwrap();
        });
        for (processor, event) in others.into_iter().enumerate() {
            let event = event.unwrap();
            assert_eq!(machine.on(processor, || pmu.read(event)).unwrap().value, 0);
            machine.on(processor, || pmu.close(event)).unwrap();
        }
    });
}

#[test]
fn a_function_that_unwinds_is_not_counted_any_more() {
    let (machine, pmu) = Machine::new(processors(Deviations::NONE)[0].configuration);
    machine.up();
    let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
    // More often than the table has places for the group.
    for _ in 0..4 {
        let work = || std::panic::resume_unwind(Box::new(()));
        let unwound = std::panic::catch_unwind(AssertUnwindSafe(|| {
            machine.on(0, || pmu.count(&events, work)).map(drop)
        }));
        assert!(unwound.is_err());
        machine.on(0, || {
            assert_eq!(running(&machine.mocks[0]), CounterSet::NONE);
            let counts = pmu.count(&events, || machine.happen(0, Happens::Cycles, 7)).unwrap();
            assert_eq!(counts.map(|count| count.value), [0, 7]);
        });
    }
    machine.down();
}

#[test]
fn cycles_are_profiled_on_every_processor_that_is_up_then_or_later() {
    on_each(|machine, pmu| {
        machine.on(2, || pmu.processor_down()).unwrap();
        let buffer = buckets();
        let range = BASE..BASE + 0x1000;
        let object = pmu
            .profile(cycles(), range, &buffer, || {
                for processor in 0..PROCESSORS {
                    machine.pc[processor].set(BASE + 0x100 * processor as u64);
                    machine.happen(processor, Happens::Cycles, 2 * PERIOD + 1);
                }
                // Processor 2 comes up meanwhile, and processor 1 goes down.
                machine.on(2, || pmu.processor_up(&machine.snapshot())).unwrap();
                machine.on(1, || pmu.processor_down()).unwrap();
                for processor in 0..PROCESSORS {
                    machine.happen(processor, Happens::Cycles, 3 * PERIOD);
                }
                machine.pc[0].set(0x1000); // outside
                machine.happen(0, Happens::Cycles, PERIOD);
            })
            .unwrap();
        // 64 counters of 4 KiB: 64 bytes each.
        assert_eq!(object.bucket().unwrap().bytes(), 64);
        let expected = [(BASE, 5), (BASE + 0x100, 2), (BASE + 0x200, 3)];
        assert_eq!(hits(&object), expected, "{:?}", machine.configuration);
        machine.happen(0, Happens::Cycles, 3 * PERIOD);
        assert_eq!(hits(&object), expected, "a profile that ended counts no more");
        let all_ours = |(_, interrupted): &(_, pmu::Interrupted)| {
            interrupted.claim != Claim::NotOurs && interrupted.error.is_none()
        };
        assert!(machine.interrupted.take().iter().all(all_ours));
        machine.on(1, || pmu.processor_up(&machine.snapshot())).unwrap();
    });
}

#[test]
fn a_source_and_a_raw_event_are_profiled_like_a_named_one() {
    on_each(|machine, pmu| {
        let raw = Event::raw(EventSelect::from_bits(0x412E)).every(PERIOD);
        let by: [(Profiled, _, _); 2] = [
            (KProfileSource::TOTAL_ISSUES.into(), Happens::Instructions, 0x1_0000),
            (raw.into(), Happens::LastCacheMisses, PERIOD),
        ];
        for (by, event, period) in by {
            let buffer = buckets();
            let object = pmu.profile(by, BASE..BASE + 256, &buffer, || {
                for processor in 0..PROCESSORS {
                    machine.pc[processor].set(BASE + 17);
                    machine.happen(processor, event, period + 1);
                }
            });
            let object = object.unwrap();
            assert_eq!(hits(&object), [(BASE + 16, 3)], "{:?} {by:?}", machine.configuration);
        }
    });
}

#[test]
fn each_interrupt_of_a_sample_gives_its_frame() {
    on_each(|machine, pmu| {
        let (calls, sum) = (AtomicU64::new(0), AtomicU64::new(0));
        let callback = |frame: &dyn InterruptFrame, _: KProfileSource| {
            calls.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(frame.pc() << (16 * frame.processor().number), Ordering::Relaxed);
        };
        let work = || {
            for (processor, pc) in [(0, 3), (1, 5), (2, 7)] {
                machine.pc[processor].set(pc);
                machine.happen(processor, Happens::Cycles, PERIOD);
            }
        };
        pmu.sample(cycles(), &callback, work).unwrap();
        work();
        assert_eq!((calls.into_inner(), sum.into_inner()), (3, 7 << 32 | 5 << 16 | 3));
    });
}

#[test]
fn a_processor_that_was_suspended_counts_on() {
    on_each(|machine, pmu| {
        let buffer = buckets();
        let range = BASE..BASE + 0x1000;
        let object = pmu.profile(cycles(), range, &buffer, || {
            machine.pc[1].set(BASE);
            machine.happen(1, Happens::Cycles, PERIOD);
            machine.mocks[1].lose_registers();
            machine.on(1, || pmu.processor_resumed()).unwrap();
            machine.happen(1, Happens::Cycles, 4 * PERIOD);
        });
        assert_eq!(hits(&object.unwrap()), [(BASE, 5)], "{:?}", machine.configuration);
    });
}

/// The documents of `processor_resumed`: an event that is switched out, or stopped, before the suspend keeps its count.
#[test]
fn an_event_that_is_out_or_stopped_during_a_suspend_keeps_its_count() {
    on_each(|machine, pmu| {
        let instructions = Event::generic(GenericEvent::Instructions);
        let happen = |count| machine.happen(0, Happens::Instructions, count);
        let (mut thread, stopped) = pmu
            .with(|session, unit| {
                let counters = session.counters_mut();
                let event = SavedEvent::new(unit, &instructions)?.to_be_enabled(true);
                let mut thread = [ThreadEvent::SwitchedOut(event)];
                counters.switch_in(unit, &mut thread, 0)?;
                let stopped = counters.open(unit, &[instructions])?;
                counters.enable(stopped, 0)?;
                Ok::<_, PmuError>((thread, stopped))
            })
            .unwrap()
            .unwrap();
        happen(1_000);
        pmu.with(|session, _| {
            let counters = session.counters_mut();
            counters.switch_out(&mut thread, 0, |_| ())?;
            counters.disable(stopped, 0).map(drop).map_err(PmuError::from)
        })
        .unwrap()
        .unwrap();
        machine.mocks[0].lose_registers();
        pmu.processor_resumed().unwrap();
        happen(70);
        pmu.with(|session, unit| {
            let counters = session.counters_mut();
            counters.enable(stopped, 0)?;
            counters.switch_in(unit, &mut thread, 0).map_err(PmuError::from)
        })
        .unwrap()
        .unwrap();
        happen(5);
        let ThreadEvent::Opened(switched) = thread[0] else { panic!("{thread:?}") };
        for event in [switched, stopped] {
            let count = pmu.with(|session, _| session.counters_mut().close(event, 0));
            assert_eq!(count.unwrap().unwrap().value, 1_005, "{:?}", machine.configuration);
        }
    });
}

#[test]
fn a_processor_without_a_tick_is_stuck_and_only_the_watchdog_s_event_says_so() {
    on_each(|machine, pmu| {
        let stuck = || {
            let interrupted = machine.interrupted.take();
            interrupted.iter().map(|(processor, of)| (*processor, of.is_stuck)).collect::<Vec<_>>()
        };
        machine.on(1, || pmu.watch(PERIOD, 10)).unwrap();
        machine.on(1, || pmu.touch());
        machine.happen(1, Happens::Cycles, 10 * PERIOD);
        assert_eq!(stuck(), [(1, false)], "{:?}", machine.configuration);
        machine.happen(1, Happens::Cycles, 10 * PERIOD);
        assert_eq!(stuck(), [(1, true)]);
        // Watched anew, the first period is given.
        machine.on(1, || pmu.watch(PERIOD, 10)).unwrap();
        machine.happen(1, Happens::Cycles, 10 * PERIOD);
        assert_eq!(stuck(), [(1, false)]);
        // Beside it, an event that the kernel opened itself.
        let own = Event::generic(GenericEvent::Instructions).every(PERIOD).tagged(7);
        let opened = machine.on(1, || {
            pmu.with(|session, unit| {
                let counters = session.counters_mut();
                let id = counters.open(unit, &[own])?;
                counters.enable(id, 0).map(|()| id)
            })
        });
        let opened = opened.unwrap().unwrap();
        machine.happen(1, Happens::Instructions, PERIOD);
        assert_eq!(stuck(), [(1, false)]);
        let overflows = machine.overflows.take();
        assert_eq!(overflows.len(), 1, "and not the watchdog's");
        assert_eq!((overflows[0].0, overflows[0].1.event, overflows[0].1.tag), (1, opened, 7));
        machine.on(1, || pmu.unwatch()).unwrap();
        machine.on(1, || pmu.unwatch()).unwrap();
        machine.happen(1, Happens::Cycles, 30 * PERIOD);
        assert_eq!(stuck(), []);
    });
}

/// Sandy Bridge to Haswell with hyper-threading: the session of a sibling does not use the counter of a memory event.
#[test]
fn memory_events_of_a_shared_core_are_scheduled_exclusively() {
    let memory = Event::raw(EventSelect::from_bits(0x81D0));
    let start = |pmu: &'static TestPmu, event: Event| {
        let started = pmu.with(|session, unit| {
            let counters = session.counters_mut();
            let id = counters.open(unit, &[event])?;
            let started = counters.enable(id, 0).map(|()| counters.counter_of(id));
            if started.is_err() {
                counters.close(id, 0)?;
            }
            started
        });
        started.unwrap()
    };
    for has_erratum in [true, false] {
        let (machine, pmu) = Machine::new(Configuration::Intel(IntelConfiguration::new(3, 4, 3)));
        machine.has_erratum.set(has_erratum);
        machine.up();
        let first = machine.on(0, || start(pmu, memory)).unwrap().unwrap().only();
        let there = machine.on(1, || start(pmu, memory.on(first)));
        let elsewhere = machine.on(2, || start(pmu, memory.on(first)));
        assert_eq!(there.is_err(), has_erratum, "{there:?}");
        assert_eq!(elsewhere.map(|on| on.map(CounterId::only)), Ok(Some(first)));
        // Sources, too, have counters of the other numbers.
        machine.on(1, || {
            pmu.with(|session, _| {
                session.start(KProfileSource::BRANCH_MISPREDICTIONS).unwrap();
                let used = running(&machine.mocks[1]);
                assert_eq!((used & first).is_empty(), has_erratum, "{used:?}");
            })
            .unwrap();
        });
        machine.down();
    }
}

/// The parts, for an object that outlives the call, and for what `Pmu` has no operation for.
#[test]
fn the_parts_are_there() {
    on_each(|machine, pmu| {
        let source = pmu.source(cycles()).unwrap();
        assert_eq!(pmu.source(cycles()), Ok(source));
        let buffer: &'static [AtomicU32; 64] = Box::leak(Box::new(buckets()));
        let request = BasicProfile {
            process: None,
            base: BASE,
            size: 0x400,
            bucket_log2: 4,
            buffer,
            source,
            affinity: None,
        };
        let object = ProfileObject::basic(Rules::LATEST, request, &pmu.hardware()).unwrap();
        let object: &'static ProfileObject<'static> = Box::leak(Box::new(object));
        pmu.profiles().try_start(object, &mut pmu.hardware()).unwrap();
        machine.pc[2].set(BASE);
        machine.happen(2, Happens::Cycles, PERIOD);
        assert!(pmu.profiles().try_stop(object, &mut pmu.hardware()).unwrap().is_over());
        assert_eq!(hits(object), [(BASE, 1)]);
        assert!(pmu.machine().is_some());
    });
}

#[test]
fn before_and_after_it_is_up_a_processor_refuses_and_its_interrupt_is_anothers() {
    for processor in processors(Deviations::NONE) {
        let (machine, pmu) = Machine::new(processor.configuration);
        let refused = || {
            assert_eq!(pmu.count(&[cycles()], || unreachable!()), Err(PmuError::NotUp));
            assert_eq!(pmu.processor_down(), Err(PmuError::NotUp));
            assert_eq!(pmu.processor_resumed(), Err(PmuError::NotUp));
            assert_eq!(pmu.watch(PERIOD, 10), Err(PmuError::NotUp));
            assert_eq!(pmu.interrupt(&PlainFrame::default()).overflows, 0);
        };
        assert!(pmu.machine().is_none());
        let nothing = pmu.interrupt(&PlainFrame::default());
        assert_eq!((nothing.claim, nothing.error), (Claim::NotOurs, None));
        refused();
        machine.up();
        assert_eq!(pmu.processor_up(&machine.snapshot()), Err(PmuError::IsUp));
        machine.down();
        refused();
    }
}
