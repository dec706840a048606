//! Events of processors and of threads by `Pmu` alone: handles, the switch, the tick, and counters that a guest has.

use pmu::core::error::{CounterError, EventsError};
use pmu::core::lending::LentCounters;
use pmu::core::registers::EventSelect;
use pmu::core::thread::ThreadEvent;
use pmu::core::{CounterSet, Event, EventCount, EventId, GenericEvent};
use pmu::perf::PerfEvent;
use pmu::processors::PmuSession;
use pmu::{PmuError, PmuEvent};
use pmu_events::SAPPHIRERAPIDS;
use pmu_tests::recorded;
use pmu_virt::mock::Fault;

use crate::world::{Happens, Machine, PROCESSORS, TestPmu, machines, sampling};

const INSTRUCTIONS: Event = Event::generic(GenericEvent::Instructions);
pub(crate) const CYCLES: Event = Event::generic(GenericEvent::Cycles);
pub(crate) const PERIOD: u64 = 5_003;

/// Calls a test with a machine of each kind, whose processors are up.
pub(crate) fn on_each(test: impl Fn(&'static Machine, &'static TestPmu)) {
    for configurations in machines() {
        let (machine, pmu) = Machine::of(configurations);
        machine.up();
        test(machine, pmu);
        machine.down();
    }
}

fn value(count: Result<EventCount, PmuError>) -> Result<u64, PmuError> {
    count.map(|count| count.value)
}

fn gone(event: PmuEvent) -> PmuError {
    PmuError::Counters(CounterError::NoSuchEvent(event.id()))
}

#[test]
fn an_event_of_a_processor_lives_by_its_handle() {
    on_each(|machine, pmu| {
        let event = machine.on(1, || pmu.open(&INSTRUCTIONS)).unwrap();
        assert_eq!(event.processor(), 1);
        machine.happen(1, Happens::Instructions, 7);
        machine.on(1, || {
            assert_eq!(value(pmu.read(event)), Ok(0), "it is not enabled");
            pmu.enable(event).unwrap();
            pmu.enable(event).unwrap();
        });
        machine.happen(1, Happens::Instructions, 1_000);
        machine.happen(0, Happens::Instructions, 500);
        assert_eq!(machine.on(1, || value(pmu.read(event))), Ok(1_000));
        assert_eq!(value(pmu.read(event)), Err(PmuError::OtherProcessor(1)), "while it counts");
        machine.on(1, || pmu.disable(event)).unwrap();
        machine.happen(1, Happens::Instructions, 30);
        assert_eq!(value(pmu.read(event)), Ok(1_000), "from another processor");
        machine.on(1, || {
            pmu.reset(event).unwrap();
            pmu.enable(event).unwrap();
        });
        machine.happen(1, Happens::Instructions, 40);
        assert_eq!(machine.on(1, || value(pmu.read(event))), Ok(40));
        machine.on(1, || pmu.reset(event)).unwrap();
        machine.happen(1, Happens::Instructions, 2);
        assert_eq!(machine.on(1, || value(pmu.read(event))), Ok(2), "reset while it counts");
        machine.on(1, || pmu.close(event)).unwrap();
    });
}

/// Each operation on another processor than the event's, by a handle of a closed event, and after the processor went
/// down: an error, also if another event is at the same place of the table.
#[test]
fn a_handle_means_no_other_event_and_no_other_processor() {
    on_each(|machine, pmu| {
        let operations: [&dyn Fn(PmuEvent) -> Result<(), PmuError>; 5] = [
            &|event| pmu.enable(event),
            &|event| pmu.disable(event),
            &|event| pmu.reset(event),
            &|event| pmu.set_period(event, PERIOD),
            &|event| pmu.close(event),
        ];
        let first = pmu.open(&INSTRUCTIONS.every(PERIOD).with_total()).unwrap();
        for operation in operations {
            let elsewhere = machine.on(2, || operation(first));
            assert_eq!(elsewhere, Err(PmuError::OtherProcessor(0)));
        }
        pmu.close(first).unwrap();
        let mut of_thread = [pmu.thread_event(&INSTRUCTIONS).unwrap()];
        pmu.switch(&mut [], &mut of_thread).unwrap();
        assert_eq!(of_thread, [ThreadEvent::Opened(first.id())], "it has the closed one's place");
        for operation in operations {
            assert_eq!(operation(first), Err(gone(first)));
        }
        pmu.switch(&mut of_thread, &mut []).unwrap();
        let second = pmu.open(&CYCLES.every(PERIOD).with_total()).unwrap();
        assert_eq!(second.id(), first.id(), "it has the closed one's place");
        assert_ne!(second, first);
        pmu.enable(second).unwrap();
        for operation in operations {
            assert_eq!(operation(first), Err(gone(first)));
        }
        for processor in 0..PROCESSORS {
            assert_eq!(machine.on(processor, || value(pmu.read(first))), Err(gone(first)));
        }
        machine.happen(0, Happens::Cycles, 100);
        assert_eq!(value(pmu.read(second)), Ok(100));
        pmu.processor_down().unwrap();
        assert_eq!(pmu.enable(second), Err(gone(second)));
        pmu.processor_up(&machine.snapshot()).unwrap();
        let open = |session: &mut PmuSession<_>, unit: &_| {
            session.counters_mut().open(unit, &[INSTRUCTIONS])
        };
        let third = pmu.with(open).unwrap().unwrap();
        assert_eq!((third, pmu.enable(second)), (second.id(), Err(gone(second))));
    });
}

#[test]
fn the_first_event_of_a_group_is_its_leader_and_the_group_closes_as_a_whole() {
    on_each(|machine, pmu| {
        let [instructions, cycles] = pmu.open_group(&[INSTRUCTIONS, CYCLES]).unwrap();
        pmu.enable(instructions).unwrap();
        machine.happen(0, Happens::Instructions, 10);
        machine.happen(0, Happens::Cycles, 20);
        pmu.disable(cycles).unwrap();
        machine.happen(0, Happens::Instructions, 1);
        machine.happen(0, Happens::Cycles, 2);
        let counts = || [instructions, cycles].map(|event| value(pmu.read(event)));
        assert_eq!(counts(), [Ok(11), Ok(20)]);
        pmu.enable(cycles).unwrap();
        pmu.disable(instructions).unwrap();
        machine.happen(0, Happens::Cycles, 4);
        assert_eq!(counts(), [Ok(11), Ok(20)]);
        pmu.close(cycles).unwrap();
        assert_eq!(counts(), [Err(gone(instructions)), Err(gone(cycles))]);
        assert_eq!(pmu.open_group(&[]), Err(PmuError::Events(CounterError::NoEvents.into())));
    });
}

/// As Linux' groups are after `close`: what counts goes on without a gap, also where the first one goes.
#[test]
fn one_event_of_a_group_is_closed_and_the_others_go_on() {
    on_each(|machine, pmu| {
        let happen = |instructions, cycles| {
            machine.happen(0, Happens::Instructions, instructions);
            machine.happen(0, Happens::Cycles, cycles);
        };
        let sampled = INSTRUCTIONS.every(PERIOD).with_total().tagged(5);
        let group = [INSTRUCTIONS.tagged(3), CYCLES.tagged(4), sampled, CYCLES.tagged(6)];
        let [instructions, cycles, sampled, disabled] = pmu.start_group(&group).unwrap();
        happen(100, 1_000);
        pmu.disable(disabled).unwrap();
        pmu.close_member(cycles).unwrap();
        assert_eq!(value(pmu.read(cycles)), Err(gone(cycles)));
        assert_eq!(pmu.close_member(cycles), Err(gone(cycles)));
        happen(20, 300);
        let mut counts = [(0, EventCount::default()); 4];
        assert_eq!(pmu.read_group(instructions, &mut counts), Ok(3));
        let read = counts.map(|(tag, count)| (tag, count.value));
        assert_eq!(read, [(3, 120), (5, 120), (6, 1_000), (0, 0)]);
        assert_eq!(pmu.read_group(instructions, &mut counts[..1]), Ok(1));
        // The place of the closed event is another's, which is not of the group.
        let other = pmu.start(&CYCLES).unwrap();
        happen(3, 7);
        assert_eq!(value(pmu.read(other)), Ok(7));
        assert_eq!(value(pmu.read(instructions)), Ok(123));
        pmu.close_member(instructions).unwrap();
        // Those that are left are alone: the one samples, the other was disabled and can be enabled.
        happen(PERIOD - 123, 0);
        let overflows = machine.overflows.take();
        assert_eq!(overflows.iter().map(|(_, of)| of.event).collect::<Vec<_>>(), [sampled.id()]);
        pmu.enable(disabled).unwrap();
        pmu.disable(sampled).unwrap();
        happen(PERIOD, 1);
        assert_eq!(machine.overflows.take(), []);
        assert_eq!(value(pmu.read(disabled)), Ok(1_001));
        assert_eq!(value(pmu.read(sampled)), Ok(PERIOD));
        for event in [sampled, disabled, other] {
            pmu.close_member(event).unwrap();
        }
    });
}

/// The period that is under way ends at once, and the new one has as many occurrences as it says.
#[test]
fn a_period_changes_at_once() {
    on_each(|machine, pmu| {
        let event = pmu.open(&INSTRUCTIONS.every(50_000)).unwrap();
        pmu.enable(event).unwrap();
        machine.happen(0, Happens::Instructions, 40_000);
        sampling(|_| panic!("no period ended"), || pmu.set_period(event, PERIOD)).unwrap();
        machine.happen(0, Happens::Instructions, PERIOD - 1);
        assert_eq!(machine.overflows.take(), []);
        machine.happen(0, Happens::Instructions, 1 + 2 * PERIOD);
        let overflows = machine.overflows.take();
        let expected = vec![(0, event.id(), PERIOD); 3];
        let found: Vec<_> = overflows.iter().map(|(at, of)| (*at, of.event, of.period)).collect();
        assert_eq!(found, expected);
        pmu.close(event).unwrap();
    });
}

/// Two threads on two processors, one of them with a group: each count is its thread's own, also after it moved.
#[test]
fn threads_keep_their_events_by_the_switch_alone() {
    on_each(|machine, pmu| {
        let mut alone = [pmu.thread_event(&INSTRUCTIONS).unwrap(), ThreadEvent::Unused];
        let mut grouped = pmu.thread_group(&[CYCLES, INSTRUCTIONS]).unwrap();
        let values = |events: &[ThreadEvent; 2]| {
            events.each_ref().map(|event| value(pmu.read_thread(event)).unwrap())
        };
        let happen = |processor, instructions, cycles| {
            machine.happen(processor, Happens::Instructions, instructions);
            machine.happen(processor, Happens::Cycles, cycles);
        };
        pmu.switch(&mut [], &mut alone).unwrap();
        happen(0, 100, 1);
        assert_eq!(values(&alone), [100, 0], "the running thread's");
        pmu.switch(&mut alone, &mut grouped).unwrap();
        happen(0, 20, 50);
        pmu.switch(&mut grouped, &mut []).unwrap();
        happen(0, 1_000, 1_000);
        machine.on(2, || pmu.switch(&mut [], &mut grouped)).unwrap();
        happen(2, 3, 5);
        let [cycles, instructions] = machine.on(2, || values(&grouped));
        assert_eq!((cycles, instructions), (55, 23));
        machine.on(2, || pmu.switch(&mut grouped, &mut alone)).unwrap();
        happen(2, 7, 7);
        machine.on(2, || pmu.switch(&mut alone, &mut [])).unwrap();
        assert_eq!((values(&alone), values(&grouped)), ([107, 0], [55, 23]));
        assert_eq!(value(pmu.read_thread(&ThreadEvent::Unused)), Ok(0));
    });
}

/// Behind an event that counted alone, and behind a group: the counts go on, and what joined counts with them alone.
#[test]
fn an_event_joins_the_group_of_a_threads_event() {
    on_each(|machine, pmu| {
        let happen = |processor, instructions, cycles| {
            machine.happen(processor, Happens::Instructions, instructions);
            machine.happen(processor, Happens::Cycles, cycles);
        };
        let mut thread = [ThreadEvent::Unused; 4];
        let join = |thread: &mut [ThreadEvent], other, event: &Event| {
            pmu.thread_member(thread, other, event).map_err(|error| match error {
                PmuError::Events(error) => error.reason,
                error => panic!("{error:?}"),
            })
        };
        assert_eq!(join(&mut thread, 0, &CYCLES), Err(CounterError::NoEvents));
        thread[1] = pmu.thread_event(&INSTRUCTIONS).unwrap();
        thread[2] = pmu.thread_event(&CYCLES).unwrap();
        pmu.switch(&mut [], &mut thread).unwrap();
        happen(0, 100, 10);
        assert!(matches!(join(&mut thread, 1, &CYCLES), Err(CounterError::IsEnabled(_))));
        pmu.switch(&mut thread, &mut []).unwrap();
        assert_eq!(join(&mut thread, 0, &CYCLES), Err(CounterError::NoEvents));
        assert_eq!(join(&mut thread, 1, &CYCLES), Ok(3), "behind the first, in the unused place");
        let ThreadEvent::SwitchedOut(first) = thread[1] else { panic!() };
        assert_eq!(first.disabled().to_be_enabled(true), first, "not disabled alone");
        let full = CounterError::InsufficientMemory { needed: 5, lent: 4 };
        assert_eq!(join(&mut thread, 3, &CYCLES), Err(full), "place 0 is before the group");
        machine.on(2, || pmu.switch(&mut [], &mut thread)).unwrap();
        happen(2, 20, 3);
        let group = |event: &ThreadEvent| {
            let ThreadEvent::Opened(event) = *event else { panic!("{event:?}") };
            let with = || {
                pmu.with(|session, _| {
                    session.counters_mut().group_events(event).collect::<Vec<_>>()
                })
            };
            machine.on(2, with).unwrap()
        };
        assert_eq!(group(&thread[2]).len(), 1);
        assert_eq!(group(&thread[1]).len(), 2);
        assert_eq!(group(&thread[1]), group(&thread[3]));
        machine.on(2, || pmu.switch(&mut thread, &mut [])).unwrap();
        happen(2, 1_000, 1_000);
        let values = [1, 2, 3].map(|place| value(pmu.read_thread(&thread[place])).unwrap());
        assert_eq!(values, [120, 13, 3]);
        // A third one; what is disabled stays stopped.
        thread[2] = ThreadEvent::Unused;
        thread.swap(2, 3);
        assert_eq!(join(&mut thread, 2, &CYCLES), Ok(3));
        let ThreadEvent::SwitchedOut(third) = &mut thread[3] else { panic!() };
        assert!(third.is_enabled());
        *third = third.disabled();
        pmu.switch(&mut [], &mut thread).unwrap();
        happen(0, 5, 7);
        pmu.switch(&mut thread, &mut []).unwrap();
        let values = [1, 2, 3].map(|place| value(pmu.read_thread(&thread[place])).unwrap());
        assert_eq!(values, [125, 10, 0]);
    });
}

/// An event that cannot count leaves no place taken, alone or in a group.
#[test]
fn an_event_that_cannot_be_started_is_not_opened() {
    on_each(|machine, pmu| {
        // Each on any counter, and none gives way, so the last one is refused.
        let mut started = vec![];
        let refused = loop {
            match pmu.start(&INSTRUCTIONS) {
                Ok(event) => started.push(event),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, PmuError::Counters(CounterError::NoFreeCounter)), "{refused:?}");
        let group = pmu.start_group(&[INSTRUCTIONS; 2]).unwrap_err();
        // By the index of the first one for which there is no room.
        assert_eq!(group, EventsError { events: 1, reason: CounterError::NoFreeCounter }.into());
        let open = pmu.with(|session, _| session.counters_mut().events().count());
        assert_eq!(open, Ok(started.len()));
        machine.happen(0, Happens::Instructions, 10);
        for event in started {
            assert_eq!(value(pmu.read(event)), Ok(10));
            pmu.close(event).unwrap();
        }
        let [cycles, instructions] = pmu.start_group(&[CYCLES, INSTRUCTIONS]).unwrap();
        machine.happen(0, Happens::Instructions, 3);
        machine.happen(0, Happens::Cycles, 4);
        assert_eq!((value(pmu.read(cycles)), value(pmu.read(instructions))), (Ok(4), Ok(3)));
        pmu.close(cycles).unwrap();
    });
}

/// There are more events than counters. Each tick changes which events count, and each event has its share.
#[test]
fn the_tick_gives_each_event_its_turn() {
    on_each(|machine, pmu| {
        let events: Vec<_> = (0..20).map(|_| pmu.open(&INSTRUCTIONS.rotating()).unwrap()).collect();
        for event in &events {
            pmu.enable(*event).unwrap();
        }
        for _ in 0..40 {
            machine.happen(0, Happens::Instructions, 10);
            pmu.tick().unwrap();
        }
        let counts: Vec<_> = events.iter().map(|event| value(pmu.read(*event)).unwrap()).collect();
        assert!(counts.iter().all(|count| *count > 0 && *count < 400), "{counts:?}");
        for event in events {
            pmu.close(event).unwrap();
        }
        // In a task's session, on a processor that is suspended, and on one that is not up, a tick waits.
        assert_eq!(pmu.with(|_, _| pmu.tick()), Ok(Ok(())));
        pmu.processor_suspended().unwrap();
        assert_eq!(pmu.tick(), Ok(()));
        pmu.processor_resumed().unwrap();
        pmu.processor_down().unwrap();
        assert_eq!(pmu.tick(), Ok(()));
        pmu.processor_up(&machine.snapshot()).unwrap();
    });
}

/// Occurrences while a guest has the counters are no event's, and nothing that the guest leaves there is seen.
#[test]
fn a_guest_has_the_counters_and_events_go_on_afterwards() {
    on_each(|machine, pmu| {
        let counted = pmu.open(&INSTRUCTIONS).unwrap();
        let sampled = pmu.open(&CYCLES.every(PERIOD)).unwrap();
        pmu.enable(counted).unwrap();
        pmu.enable(sampled).unwrap();
        machine.happen(0, Happens::Instructions, 100);
        machine.happen(0, Happens::Cycles, PERIOD - 3);
        let mut ran = false;
        let guest = |lent: &mut LentCounters| {
            assert!(!lent.counters().is_empty());
            machine.happen(0, Happens::Instructions, 1_000);
            machine.happen(0, Happens::Cycles, 1_000);
            assert_eq!(pmu.enable(counted), Err(PmuError::Session(pmu::processors::Busy::InUse)));
            lent.set_programmed(true);
            ran = true;
        };
        sampling(|_| panic!("no sample waits"), || pmu.lend(guest)).unwrap();
        assert!(ran);
        machine.happen(0, Happens::Instructions, 5);
        machine.happen(0, Happens::Cycles, 2);
        assert_eq!((value(pmu.read(counted)), machine.overflows.take()), (Ok(105), vec![]));
        machine.happen(0, Happens::Cycles, 1);
        let overflows = machine.overflows.take();
        assert!(matches!(&overflows[..], [(0, of)] if of.event == sampled.id()), "{overflows:?}");
        pmu.close(counted).unwrap();
        pmu.close(sampled).unwrap();
    });
}

/// Whatever closes an event, its handle stands for none then, also if the watchdog has its place.
#[test]
fn a_handle_does_not_reach_what_has_the_place_of_an_event_that_was_closed_elsewhere() {
    on_each(|machine, pmu| {
        let event = pmu.open(&INSTRUCTIONS).unwrap();
        let close = |session: &mut PmuSession<_>, _: &_| {
            session.counters_mut().close(event.id(), 0).map(drop)
        };
        pmu.with(close).unwrap().unwrap();
        assert_eq!(pmu.close(event), Err(gone(event)));
        pmu.watch(PERIOD, 10).unwrap();
        let place = |session: &mut PmuSession<_>, _: &_| {
            let place = EventId::of_index(event.id().index().unwrap());
            session.counters_mut().event_tag(place).is_ok()
        };
        assert_eq!(pmu.with(place), Ok(true), "the watchdog's");
        for refused in [pmu.close(event), pmu.disable(event), pmu.reset(event)] {
            assert_eq!(refused, Err(gone(event)));
        }
        assert_eq!(machine.on(1, || value(pmu.read(event))), Err(gone(event)));
        machine.happen(0, Happens::Cycles, 10 * PERIOD);
        machine.happen(0, Happens::Cycles, 10 * PERIOD);
        assert!(machine.interrupted.take().iter().any(|(_, of)| of.is_stuck));
        pmu.unwatch().unwrap();
    });
}

/// The processor went down under the threads: nothing of theirs is on it, whoever has their places afterwards.
#[test]
fn a_switch_on_a_processor_that_is_down_takes_no_others_events() {
    on_each(|machine, pmu| {
        let mut thread = [pmu.thread_event(&INSTRUCTIONS).unwrap()];
        let mut other = [pmu.thread_event(&INSTRUCTIONS).unwrap()];
        pmu.switch(&mut [], &mut thread).unwrap();
        pmu.processor_down().unwrap();
        assert_eq!(pmu.switch(&mut thread, &mut other), Err(PmuError::NotUp));
        // A kernel that calls this at each switch is not told of threads without events.
        let mut unused = [ThreadEvent::Unused];
        assert_eq!(pmu.switch(&mut unused, &mut []), Ok(()));
        assert_eq!(thread, [ThreadEvent::Unused]);
        assert!(matches!(other, [ThreadEvent::SwitchedOut(_)]), "it was not on the processor");
        pmu.processor_up(&machine.snapshot()).unwrap();
        let event = pmu.open(&INSTRUCTIONS).unwrap();
        pmu.enable(event).unwrap();
        pmu.switch(&mut thread, &mut []).unwrap();
        machine.happen(0, Happens::Instructions, 9);
        assert_eq!(value(pmu.read(event)), Ok(9));
        pmu.close(event).unwrap();
    });
}

/// A fault at each access of a window's end: if it is not told, everything runs on.
#[test]
fn a_window_whose_end_failed_says_so_and_a_resume_brings_everything_back() {
    for configurations in machines() {
        let mut told = [0; 2];
        for (at, lasts) in (1..40).flat_map(|at| [(at, false), (at, true)]) {
            let fault = if lasts { Fault::From(at) } else { Fault::Twice(at) };
            let (machine, pmu) = Machine::of(configurations);
            machine.up();
            pmu.watch(PERIOD, 10).unwrap();
            let event = pmu.open(&INSTRUCTIONS.rotating()).unwrap();
            pmu.enable(event).unwrap();
            let guest = |lent: &mut LentCounters| {
                lent.set_programmed(true);
                machine.mocks[0].inject(fault);
            };
            let lent = sampling(|_| panic!("no sample waits"), || pmu.lend(guest));
            machine.mocks[0].inject(Fault::None);
            if let Err(error) = lent {
                assert!(matches!(error, PmuError::Interface(_)), "{fault:?}: {error:?}");
                told[usize::from(lasts)] += 1;
                pmu.processor_resumed().unwrap();
                pmu.tick().unwrap();
            }
            let before = value(pmu.read(event)).unwrap();
            machine.happen(0, Happens::Instructions, 7);
            assert_eq!(value(pmu.read(event)), Ok(before + 7), "{fault:?}: {lent:?}");
            machine.interrupted.take();
            machine.happen(0, Happens::Cycles, 20 * PERIOD);
            let interrupted = machine.interrupted.take();
            assert!(interrupted.iter().any(|(_, of)| of.is_stuck), "{fault:?}: {lent:?}");
            pmu.unwatch().unwrap();
            pmu.close(event).unwrap();
            machine.down();
        }
        assert!(told.iter().all(|told| (3..39).contains(told)), "{told:?}");
    }
}

/// Of Sapphire Rapids, `MEM_LOAD_RETIRED.L3_MISS` is confined to counters 0 to 3, by name and by number.
#[test]
fn an_event_of_perf_has_the_encoding_and_the_counters_of_the_kernels_list() {
    let confined = |event: Event| event.on(CounterSet::from_bits(0b1111) | CounterSet::FIXED);
    let misses = Event::raw(EventSelect::from_bits(0x20D1));
    on_each(|_, pmu| {
        for (text, of_list, without) in [
            ("mem_load_retired.l3_miss:D", confined(misses), None),
            ("cpu/event=0xd1,umask=0x20/D", confined(misses), Some(misses)),
            // L1D.REPLACEMENT, on the same counters.
            ("L1-dcache-load-misses:D", confined(Event::raw(EventSelect::from_bits(0x151))), None),
        ] {
            let attr = PerfEvent::parse(text, &SAPPHIRERAPIDS).unwrap().attr;
            assert_eq!(pmu.perf_event(&attr, &SAPPHIRERAPIDS), Ok(of_list), "{text}");
            let event = PerfEvent::parse(text, &()).and_then(|event| event.attr.event(&()));
            assert_eq!(event.ok(), without, "{text}");
        }
    });
}

/// Each operation of the lifecycle succeeds on a processor of a vendor whose counters are unknown.
#[test]
fn a_processor_without_counters_lives_through_everything() {
    let (machine, pmu) = Machine::of(machines()[0]);
    pmu.processor_up(&recorded("via-nano.txt")).unwrap();
    let refused = pmu.open(&INSTRUCTIONS).unwrap_err();
    assert!(matches!(refused, PmuError::Counters(_)), "{refused:?}");
    let mut thread = [ThreadEvent::Unused; 2];
    assert_eq!(pmu.switch(&mut [], &mut thread), Ok(()));
    assert_eq!(pmu.tick(), Ok(()));
    let mut ran = false;
    let guest = |lent: &mut LentCounters| {
        assert!(lent.counters().is_empty());
        ran = true;
    };
    assert_eq!(pmu.lend(guest), Ok(()));
    assert!(ran);
    pmu.processor_suspended().unwrap();
    pmu.processor_resumed().unwrap();
    assert_eq!(machine.mocks[0].accesses().total(), 0);
    pmu.processor_down().unwrap();
}

/// The scheduler knows nothing of a processor that goes down and comes up under a thread: its events are gone, and
/// those that have their places since are others'.
#[test]
fn a_thread_whose_processor_went_down_and_up_takes_no_other_event_with_it() {
    on_each(|machine, pmu| {
        let mut thread = [pmu.thread_event(&INSTRUCTIONS).unwrap(), ThreadEvent::Unused];
        pmu.switch(&mut [], &mut thread).unwrap();
        pmu.processor_down().unwrap();
        pmu.processor_up(&machine.snapshot()).unwrap();
        let other = pmu.start(&CYCLES).unwrap();
        assert_eq!(thread[0], ThreadEvent::Opened(other.id()), "it has the lost one's place");
        let ThreadEvent::Opened(lost) = thread[0] else { panic!("{thread:?}") };
        assert_eq!(pmu.read_thread(&thread[0]), Err(CounterError::NoSuchEvent(lost).into()));
        let switched = pmu.switch(&mut thread, &mut []);
        let reason = CounterError::NoSuchEvent(lost);
        assert_eq!(switched, Err(PmuError::Events(EventsError { events: 1, reason })));
        assert_eq!(thread, [ThreadEvent::Unused; 2]);
        machine.happen(0, Happens::Cycles, 100);
        assert_eq!(value(pmu.read(other)), Ok(100));
        pmu.close(other).unwrap();
    });
}
