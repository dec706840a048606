//! Failures of `Pmu`: each is told, and leaves nothing half done.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, Ordering};
use std::panic;

use pmu::core::error::{CounterError, EventsError, NoInterface};
use pmu::core::frame::{InterruptFrame, ProcessorNumber};
use pmu::core::profile::{InterfaceError, KProfileSource};
use pmu::core::registers::EventSelect;
use pmu::core::x86::Snapshot;
use pmu::core::x86::raw_cpuid::CpuIdResult;
use pmu::core::{CounterSet, Event, EventId, GenericEvent};
use pmu::processors::Busy;
use pmu::{Interrupted, PmuError};
use pmu_kprofile::{CreateError, ProfileError};
use pmu_tests::opened::running;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::Fault;

use crate::world::{Happens, Machine, PROCESSORS, TestPmu};

const PERIOD: u64 = 10_007;

fn machine() -> (&'static Machine, &'static TestPmu) {
    Machine::new(Configuration::Intel(IntelConfiguration::new(4, 4, 3)))
}

fn cycles() -> Event {
    Event::generic(GenericEvent::Cycles).every(PERIOD)
}

/// No test here looks at the counts.
static BUCKETS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];

#[test]
fn a_processor_that_does_not_answer_is_named_and_nothing_runs() {
    let (machine, pmu) = machine();
    machine.up();
    machine.is_deaf.set(true);
    let outcome = pmu.profile(cycles(), 0..64, &BUCKETS, || unreachable!("it did not start"));
    let processor = ProcessorNumber::from_index(1);
    let error = ProfileError::Hardware { processor, error: InterfaceError::NoAnswer(processor) };
    assert_eq!(outcome.map(drop), Err(PmuError::Profile(error)));
    machine.is_deaf.set(false);
    assert!(machine.mocks.iter().all(|mock| running(mock).is_empty()));
    // A stop that is not answered is told, and done by the next call.
    let outcome = pmu.profile(cycles(), 0..64, &BUCKETS, || machine.is_deaf.set(true));
    assert_eq!(outcome.map(drop), Err(PmuError::Profile(error)));
    machine.on(1, || pmu.serve_call());
    assert!(running(&machine.mocks[1]).is_empty());
    machine.on(2, || pmu.serve_call());
    machine.is_deaf.set(false);
    machine.down();
}

/// A request that comes while its processor's session is in use waits for the end of that use.
#[test]
fn a_request_that_meets_a_session_in_use_is_served_by_whoever_used_it() {
    let (machine, pmu) = machine();
    machine.up();
    machine
        .on(1, || {
            pmu.with(|_, _| {
                let outcome = machine.on(0, || pmu.profile(cycles(), 0..64, &BUCKETS, || ()));
                // This processor could not answer in time, because the test has one thread.
                let processor = ProcessorNumber::from_index(1);
                let error = ProfileError::Hardware {
                    processor,
                    error: InterfaceError::NoAnswer(processor),
                };
                assert_eq!(outcome.map(drop), Err(PmuError::Profile(error)));
            })
        })
        .unwrap();
    pmu.profile(cycles(), 0..64, &BUCKETS, || {
        // The profile's stop meets the session of processor 1 in use.
        machine.on(1, || pmu.with(|_, _| pmu.serve_call())).unwrap();
    })
    .unwrap();
    machine.down();
}

#[test]
fn a_processor_beyond_those_of_the_door_is_refused() {
    let (machine, pmu) = machine();
    machine.on(PROCESSORS, || {
        let refused = PmuError::Session(Busy::NoSlot { processor: PROCESSORS });
        assert_eq!(pmu.processor_up(&machine.snapshot()), Err(refused));
        assert_eq!(pmu.count(&[cycles()], || ()), Err(refused));
        pmu.touch();
        pmu.serve_call();
    });
    assert!(pmu.machine().is_none());
}

#[test]
fn a_session_in_use_is_not_lent_twice() {
    let (machine, pmu) = machine();
    machine.up();
    let within = pmu.with(|_, _| (pmu.with(|_, _| ()), pmu.count(&[cycles()], || ())));
    let in_use = PmuError::Session(Busy::InUse);
    assert_eq!(within, Ok((Err(in_use), Err(in_use))));
    machine.down();
}

#[test]
fn what_cannot_be_profiled_or_counted_is_refused_with_the_reason() {
    let (machine, pmu) = machine();
    let none = Event::generic(GenericEvent::Cycles);
    let outcome = pmu.profile(none, 0..64, &BUCKETS, || unreachable!());
    assert_eq!(outcome.map(drop), Err(PmuError::Interface(InterfaceError::NoPeriod)));
    // A source's interval stays as it is.
    let outcome = pmu.profile(none.at_frequency(100), 0..64, &BUCKETS, || unreachable!());
    assert_eq!(outcome.map(drop), Err(PmuError::Interface(InterfaceError::NoPeriod)));
    // Before a processor is up, no machine is known.
    let by_source = KProfileSource::TOTAL_CYCLES;
    let outcome = pmu.profile(by_source, 0..64, &BUCKETS, || unreachable!());
    assert_eq!(outcome.map(drop), Err(PmuError::NotUp));
    machine.up();
    let absent = KProfileSource::new(0x99).unwrap();
    let outcome = pmu.profile(absent, 0..64, &BUCKETS, || unreachable!());
    assert_eq!(outcome.map(drop), Err(PmuError::Create(CreateError::UnsupportedSource(absent))));
    let outcome = pmu.profile(cycles(), 0..64, &[], || unreachable!());
    assert_eq!(outcome.map(drop), Err(PmuError::Create(CreateError::EmptyBuffer)));
    let illegal = Event::raw(EventSelect::from_bits(1 << 40)).every(PERIOD);
    let outcome = pmu.profile(illegal, 0..64, &BUCKETS, || unreachable!());
    let reason = InterfaceError::Counters(CounterError::IllegalBits(1 << 40));
    assert_eq!(outcome.map(drop), Err(PmuError::Interface(reason)));
    let too_many = [Event::generic(GenericEvent::Branches); 5]; // on four general counters
    let error = pmu.count(&too_many, || unreachable!()).unwrap_err();
    assert!(matches!(error, PmuError::Events(_)), "{error:?}");
    assert!(!error.to_string().is_empty());
    // Nothing of it is left: all events of the table can be opened.
    let six = [Event::generic(GenericEvent::Instructions); 4];
    assert!(pmu.count(&six, || ()).is_ok());
    machine.down();
}

#[test]
fn events_that_the_machine_lacks_occupy_no_slot_of_a_source() {
    let (machine, pmu) = machine();
    machine.up();
    // More events than the `Pmu` has slots, each with a bit that no select of this version has.
    for umask in 0..6 {
        let illegal = Event::raw(EventSelect::from_bits(1 << 40 | umask << 8 | 0x2E));
        let outcome = pmu.source(illegal.every(PERIOD));
        let reason = InterfaceError::Counters(CounterError::IllegalBits(1 << 40));
        assert_eq!(outcome, Err(PmuError::Interface(reason)));
    }
    assert_eq!(pmu.profile(cycles(), 0..64, &BUCKETS, || ()).map(drop), Ok(()));
    machine.down();
}

/// A fault at each access of a resume: what the documents of `processor_resumed` say brings everything back.
#[test]
fn a_resume_that_failed_is_repaired_by_down_and_up() {
    let mut failed = 0;
    for at in 1..60 {
        let (machine, pmu) = machine();
        machine.up();
        pmu.watch(PERIOD, 100).unwrap();
        let buffer: [AtomicU32; 16] = Default::default();
        let hits = || buffer.iter().map(|hits| hits.load(Ordering::Relaxed)).sum::<u32>();
        pmu.profile(cycles(), 0..64, &buffer, || {
            machine.mocks[0].lose_registers();
            machine.mocks[0].inject(Fault::From(at));
            let resumed = pmu.processor_resumed();
            machine.mocks[0].inject(Fault::None);
            if let Err(error) = resumed {
                assert!(matches!(error, PmuError::Interface(_)), "{at}: {error:?}");
                failed += 1;
                pmu.processor_down().unwrap();
                pmu.processor_up(&machine.snapshot()).unwrap();
                pmu.watch(PERIOD, 100).unwrap();
            }
            machine.interrupted.take();
            let before = hits();
            machine.happen(0, Happens::Cycles, 200 * PERIOD);
            assert_eq!(hits() - before, 200, "{at}");
            let stuck = machine.interrupted.take().iter().filter(|(_, of)| of.is_stuck).count();
            assert_eq!(stuck, 1, "{at}: the first period is given");
        })
        .unwrap();
        machine.down();
    }
    assert!((1..59).contains(&failed), "{failed}");
}

/// The documents of `profile`: each of two profiles of an event has its own period.
#[test]
fn a_second_profile_of_an_event_has_a_period_of_its_own() {
    let (machine, pmu) = machine();
    machine.up();
    let buffers: [[AtomicU32; 16]; 3] = Default::default();
    let hits = || {
        buffers.each_ref().map(|of| of.iter().map(|hits| hits.load(Ordering::Relaxed)).sum::<u32>())
    };
    let happen = || machine.happen(0, Happens::Cycles, 20 * PERIOD);
    let unwound = || std::panic::resume_unwind(Box::new(()));
    pmu.profile(cycles().every(10 * PERIOD), 0..64, &buffers[0], || {
        happen();
        assert_eq!(hits(), [2, 0, 0]);
        pmu.profile(cycles(), 0..64, &buffers[1], || {
            happen();
            // A third profile shares the source of its period.
            pmu.profile(cycles(), 0..64, &buffers[2], happen).unwrap();
        })
        .unwrap();
        assert_eq!(hits(), [6, 40, 20]);
        // More periods than there are slots, one after the other.
        for period in 1..9 {
            let event = cycles().every(PERIOD + period);
            pmu.profile(event, 0..64, &BUCKETS, || ()).unwrap();
            pmu.profile(event, 0..64, &[], || ()).unwrap_err();
            let work = core::panic::AssertUnwindSafe(|| {
                pmu.profile(event, 0..64, &BUCKETS, unwound).map(drop)
            });
            std::panic::catch_unwind(work).unwrap_err();
        }
        happen();
    })
    .unwrap();
    assert_eq!(hits(), [8, 40, 20]);
    machine.down();
}

/// As many events as there are slots are in use: a further one is refused, and leaves nothing.
#[test]
fn periods_in_use_at_once_are_as_many_as_there_are_slots() {
    let (machine, pmu) = machine();
    machine.up();
    let in_use = [1, 2, 3, 4].map(|periods| pmu.source(cycles().every(periods * PERIOD)).unwrap());
    assert!((0..4).all(|place| !in_use[..place].contains(&in_use[place])));
    let full = Err(PmuError::Interface(InterfaceError::Full { room: 4 }));
    for _ in 0..2 {
        assert_eq!(pmu.source(cycles().every(5 * PERIOD)), full);
        let other = Event::generic(GenericEvent::Instructions).every(PERIOD);
        assert_eq!(pmu.source(other), full.map(|_: KProfileSource| unreachable!()));
        assert_eq!(pmu.source(cycles()), Ok(in_use[0]));
    }
    machine.down();
}

/// A loop over all events, an identity that outlived its event, and a place that gets another one: none makes the
/// watchdog find what is not so.
#[test]
fn the_kernel_s_events_are_not_those_of_the_watchdog_and_of_profiles() {
    let (machine, pmu) = machine();
    machine.up();
    let stuck = || {
        let interrupted = machine.interrupted.take();
        interrupted.iter().map(|(_, of)| of.is_stuck).collect::<Vec<_>>()
    };
    let buffer: [AtomicU32; 16] = Default::default();
    let sampled = Event::generic(GenericEvent::Instructions).every(PERIOD).tagged(7);
    let open = || {
        let opened = pmu.with(|session, unit| {
            let counters = session.counters_mut();
            let id = counters.open(unit, &[sampled])?;
            counters.enable(id, 0).map(|()| id)
        });
        opened.unwrap().unwrap()
    };
    let stale = open();
    pmu.profile(cycles(), 0..64, &buffer, || {
        pmu.with(|session, _| {
            let counters = session.counters_mut();
            assert_eq!(counters.events().collect::<Vec<_>>(), [stale]);
            counters.close(stale, 0).unwrap();
        })
        .unwrap();
        pmu.watch(PERIOD, 20).unwrap();
        pmu.with(|session, _| assert_eq!(session.counters_mut().events().count(), 0)).unwrap();
        machine.happen(0, Happens::Cycles, 20 * PERIOD);
        assert_eq!(buffer[0].load(Ordering::Relaxed), 20);
        machine.happen(0, Happens::Cycles, 20 * PERIOD);
        assert_eq!(stuck().into_iter().filter(|is_stuck| *is_stuck).count(), 1);
        // The identity's place is the watchdog's now, and then that of an event of the kernel.
        let close = |event| pmu.with(|session, _| session.counters_mut().close(event, 0)).unwrap();
        assert_eq!(close(stale).unwrap_err().reason, CounterError::NoSuchEvent(stale));
        close(EventId::of_index(stale.index().unwrap())).unwrap(); // whatever is there: the kernel's error
        assert_eq!(open(), stale);
        for _ in 0..3 {
            machine.happen(0, Happens::Instructions, PERIOD);
            assert_eq!(stuck(), [false]);
            let [(0, overflow)] = machine.overflows.take()[..] else { panic!("no overflow") };
            assert_eq!(overflow.tag, 7);
        }
        pmu.unwatch().unwrap();
        machine.happen(0, Happens::Instructions, PERIOD);
        assert_eq!(machine.overflows.take().len(), 1, "the kernel's event is still open");
    })
    .unwrap();
    machine.down();
}

/// A fault at each access of each operation: the error is told, or nothing failed; and afterwards everything works.
#[test]
fn a_fault_at_each_access_is_told_and_the_next_try_succeeds() {
    for at in 1..60 {
        let (machine, pmu) = machine();
        let fault = || machine.mocks[0].inject(Fault::From(at));
        let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
        fault();
        let up = pmu.processor_up(&machine.snapshot());
        machine.mocks[0].inject(Fault::None);
        match up {
            Err(error) => {
                assert!(matches!(error, PmuError::Interface(_)), "{at}: {error:?}");
                assert_eq!(pmu.count(&events, || ()), Err(PmuError::NotUp));
                assert!(running(&machine.mocks[0]).is_empty());
                pmu.processor_up(&machine.snapshot()).unwrap();
            }
            // No counter answered.
            Ok(CounterSet::NONE) => {
                let reason = CounterError::NoCounters(NoInterface::Unresponsive);
                let error = EventsError { events: 1, reason };
                assert_eq!(pmu.count(&events, || unreachable!()), Err(PmuError::Events(error)));
                assert!(running(&machine.mocks[0]).is_empty());
                pmu.processor_down().unwrap();
                pmu.processor_up(&machine.snapshot()).unwrap();
            }
            Ok(_) => {}
        }
        fault();
        let counted = pmu.count(&events, || machine.happen(0, Happens::Cycles, 9));
        machine.mocks[0].inject(Fault::None);
        match counted {
            Ok(counts) => assert_eq!(counts.map(|count| count.value), [0, 9], "{at}"),
            Err(error) => assert!(matches!(error, PmuError::Events(_)), "{at}: {error:?}"),
        }
        let counted = pmu.count(&events, || machine.happen(0, Happens::Cycles, 9)).unwrap();
        assert_eq!(counted.map(|count| count.value), [0, 9], "{at}");
        pmu.processor_down().unwrap();
        assert_eq!(running(&machine.mocks[0]), CounterSet::NONE);
    }
}

#[test]
fn an_interrupt_whose_register_does_not_answer_is_told_and_the_watchdog_is_blind() {
    let (machine, pmu) = machine();
    machine.up();
    pmu.watch(PERIOD, 10).unwrap();
    let counter = running(&machine.mocks[0]).iter().next().unwrap();
    // IA32_FIXED_CTR0 is 0x309 (SDM vol. 4).
    let register = 0x309 + u32::from(counter.number());
    machine.mocks[0].inject(Fault::Register(register));
    machine.happen(0, Happens::Cycles, 10 * PERIOD);
    let interrupted: Vec<(usize, Interrupted)> = machine.interrupted.take();
    assert_eq!(interrupted.len(), 1);
    assert!(interrupted[0].1.error.is_some() && interrupted[0].1.is_blind, "{interrupted:?}");
    // Watched again, on another counter.
    pmu.watch(PERIOD, 10).unwrap();
    machine.mocks[0].inject(Fault::None);
    for is_stuck in [false, true] {
        machine.happen(0, Happens::Cycles, 10 * PERIOD);
        let interrupted = machine.interrupted.take();
        assert!(interrupted.iter().all(|(_, of)| of.is_stuck == is_stuck && !of.is_blind));
        assert_eq!(interrupted.len(), 1);
    }
    machine.down();
}

/// On processor 0, CPUID declares counters that do not answer.
#[test]
fn after_a_processor_up_that_failed_a_profile_is_refused_as_a_count_is() {
    let (machine, pmu) = machine();
    let refused = |work| pmu.profile(cycles(), 0..64, &BUCKETS, work).map(drop);
    machine.mocks[0].inject(Fault::From(1));
    let up = pmu.processor_up(&machine.snapshot());
    machine.mocks[0].inject(Fault::None);
    assert!(matches!(up, Err(PmuError::Interface(_))), "{up:?}");
    assert_eq!(pmu.count(&[cycles()], || unreachable!()), Err(PmuError::NotUp));
    assert_eq!(refused(|| unreachable!()), Err(PmuError::NotUp));
    let callback = |_: &dyn InterruptFrame, _: KProfileSource| unreachable!();
    let sampled = pmu.sample(KProfileSource::TOTAL_CYCLES, &callback, || unreachable!());
    assert_eq!(sampled, Err(PmuError::NotUp));
    machine.up();
    assert_eq!(pmu.profile(cycles(), 0..64, &BUCKETS, || ()).map(drop), Ok(()));
    machine.down();
}

/// Leaf 0x0A of a machine without PMU is 0.
#[test]
fn on_a_machine_without_counters_each_operation_tells_why_there_are_none() {
    let (machine, pmu) = machine();
    let without = Snapshot::capture(|leaf: u32, subleaf: u32| match leaf {
        0x0A => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        _ => machine.snapshot().leaf(leaf, subleaf),
    });
    let counters = pmu.processor_up(&without).unwrap();
    assert_eq!(counters, CounterSet::NONE);
    let event = cycles();
    let reason = NoInterface::NoPerformanceMonitoring;
    assert_eq!(pmu.machine().unwrap().why_time_only(), Some(reason));
    let why = CounterError::NoCounters(reason);
    let of_several = PmuError::Events(EventsError { events: 1, reason: why });
    assert_eq!(pmu.count(&[event], || unreachable!()), Err(of_several));
    assert_eq!(pmu.open_group(&[event]), Err(of_several));
    assert_eq!(pmu.open(&event), Err(PmuError::Counters(why)));
    let raw = Event::raw(EventSelect::from_bits(0x412E));
    assert_eq!(pmu.open(&raw), Err(PmuError::Counters(why)));
    assert_eq!(pmu.thread_event(&event).map(drop), Err(PmuError::Counters(why)));
    assert_eq!(pmu.watch(PERIOD, 10), Err(PmuError::Counters(why)));
    let profiled = pmu.profile(event, 0..64, &BUCKETS, || unreachable!());
    assert_eq!(profiled.map(drop), Err(PmuError::Interface(InterfaceError::Counters(why))));
    assert!(why.to_string().contains("no performance monitoring"), "{why}");
    pmu.processor_down().unwrap();
}

/// `work` takes the processor down, so the events of the count are closed. An event that is opened then may have the
/// place of one of them, and is another's.
#[test]
fn a_count_neither_returns_nor_closes_an_event_that_got_its_place() {
    let [cycles, instructions] =
        [GenericEvent::Cycles, GenericEvent::Instructions].map(Event::generic);
    for events in [vec![cycles], vec![cycles, instructions]] {
        let (machine, pmu) = machine();
        machine.up();
        machine.on(1, || {
            let mut opened = None;
            let mut work = || {
                pmu.processor_down().unwrap();
                pmu.processor_up(&machine.snapshot()).unwrap();
                opened = Some(pmu.start(&cycles).unwrap());
                machine.happen(1, Happens::Cycles, 1_000);
            };
            let counted = match events[..] {
                [one] => pmu.count(&[one], &mut work).map(|_| ()),
                [first, second] => pmu.count(&[first, second], &mut work).map(|_| ()),
                _ => unreachable!(),
            };
            assert!(
                matches!(counted, Err(PmuError::Counters(CounterError::NoSuchEvent(_)))),
                "{counted:?}"
            );
            assert!(pmu.read(opened.unwrap()).is_ok(), "another's event was closed");
            // The same where the work unwinds.
            let unwound = panic::catch_unwind(AssertUnwindSafe(|| {
                pmu.count(&[instructions], || {
                    pmu.processor_down().unwrap();
                    pmu.processor_up(&machine.snapshot()).unwrap();
                    opened = Some(pmu.start(&cycles).unwrap());
                    panic!("unwinds");
                })
            }));
            assert!(unwound.is_err());
            assert!(pmu.read(opened.unwrap()).is_ok(), "another's event was closed");
        });
        machine.down();
    }
}

#[test]
fn the_close_of_an_event_tells_of_its_counter_as_enable_does() {
    let (machine, pmu) = machine();
    machine.up();
    machine.on(1, || {
        for of_one in [true, false] {
            let event = pmu.start(&cycles()).unwrap();
            machine.mocks[1].inject(Fault::From(1));
            let closed = if of_one { pmu.close_member(event) } else { pmu.close(event) };
            machine.mocks[1].inject(Fault::None);
            let lost = matches!(closed, Err(PmuError::Counters(CounterError::StateUnknown(_))));
            assert!(lost, "{closed:?}");
            assert!(pmu.read(event).is_err(), "it is closed nevertheless");
            pmu.processor_down().unwrap();
            pmu.processor_up(&machine.snapshot()).unwrap();
        }
    });
    machine.down();
}
