//! Profiles and samples of software events, on processors with counters and without; and a watchdog of the kernel's own
//! event.

use core::cell::RefCell;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use pmu::core::CounterSet;
use pmu::core::error::CounterError;
use pmu::core::frame::InterruptFrame;
use pmu::core::profile::{InterfaceError, KProfileSource};
use pmu::core::registers::EventSelect;
use pmu::frame::PlainFrame;
use pmu::{Event, GenericEvent, Kernel, PmuError, PmuSample, SoftwareEvent};

use crate::software::on_each;
use crate::world::{Happens, Machine, PROCESSORS, TestPmu, World, machines, sampling};

const FAULTS: Event = Event::software(SoftwareEvent::PageFaults);
const CLOCK: Event = Event::software(SoftwareEvent::CpuClock);
const MILLISECOND: u64 = 1_000_000;

/// Machines whose processors have counters, and the same of a kernel that takes none.
pub(crate) fn with_and_without_counters(test: impl Fn(&'static Machine, &'static TestPmu)) {
    on_each(&test);
    for configurations in machines() {
        let (machine, pmu) = Machine::of(configurations);
        machine.takes.set(CounterSet::NONE);
        machine.up();
        test(machine, pmu);
        machine.down();
    }
}

fn frame(pc: u64, user: bool) -> PlainFrame {
    PlainFrame::new(pc, if user { 0x33 } else { 0x8 }, 2, World::this_processor())
}

fn counts(buffer: &[AtomicU32]) -> Vec<u32> {
    buffer.iter().map(|count| count.load(Ordering::Relaxed)).collect()
}

/// Every second page fault of user mode is one hit, on each processor, at the address that faulted.
#[test]
fn page_faults_are_profiled_where_they_happen() {
    with_and_without_counters(|machine, pmu| {
        let buffer: [AtomicU32; 4] = Default::default();
        let by = FAULTS.user_only().every(2);
        pmu.profile(by, 0..64, &buffer, || {
            for processor in 0..PROCESSORS {
                machine.on(processor, || {
                    let fault = |pc, user| {
                        let what = SoftwareEvent::MinorFaults;
                        let check = |sample: &PmuSample<'_, World>| {
                            assert_eq!(sample.period, 2);
                            assert!(sample.source().is_some());
                        };
                        sampling(check, || pmu.happened(what, &frame(pc, user)));
                    };
                    fault(0, true);
                    fault(48, false); // the kernel's
                    fault(16 * processor as u64, true);
                    fault(0, true);
                });
            }
        })
        .unwrap();
        assert_eq!(counts(&buffer), [1, 1, 1, 0], "{:?}", machine.configuration);
        // It has stopped, and a second one begins anew.
        let none = |what| sampling(|_| unreachable!(), || pmu.happened(what, &frame(0, true)));
        none(SoftwareEvent::MinorFaults);
        pmu.profile(by, 0..64, &buffer, || none(SoftwareEvent::MajorFaults)).unwrap();
    });
}

/// The clock of each processor interrupts once per millisecond. Processor 2 is suspended for a while, and 1 goes down.
#[test]
fn the_clock_profiles_what_runs_on_every_processor() {
    with_and_without_counters(|machine, pmu| {
        machine.now.set(77 * MILLISECOND); // Not at the beginning of time.
        let places = RefCell::new(Vec::new());
        let callback = Mutex::new(Vec::new());
        let noted = |frame: &dyn InterruptFrame, source: KProfileSource| {
            callback.lock().unwrap().push((frame.pc(), source));
        };
        let pass = |nanoseconds: u64| {
            let end = machine.now.get() + nanoseconds;
            for (processor, timer) in machine.clock_timers.iter().enumerate() {
                machine.on(processor, || {
                    let begin = machine.now.get();
                    while let Some(at) = timer.get().filter(|at| *at <= end) {
                        timer.set(None);
                        machine.now.set(at);
                        let here = frame(0x100 + processor as u64, true);
                        let place = (processor, at / MILLISECOND);
                        let note = |_: &PmuSample<'_, World>| places.borrow_mut().push(place);
                        sampling(note, || pmu.clock_interrupt(&here));
                    }
                    machine.now.set(begin);
                });
            }
            machine.now.set(end);
        };
        let source = pmu.source(CLOCK.every(MILLISECOND)).unwrap();
        pmu.sample(CLOCK.every(MILLISECOND), &noted, || {
            pass(2 * MILLISECOND);
            machine.on(1, || pmu.processor_down()).unwrap();
            machine.on(2, || pmu.processor_suspended()).unwrap();
            pass(MILLISECOND);
            machine.on(2, || pmu.processor_resumed()).unwrap();
            machine.on(1, || pmu.processor_up(&machine.snapshot())).unwrap();
            pass(MILLISECOND);
        })
        .unwrap();
        assert!(machine.clock_timers.iter().all(|timer| timer.get().is_none()));
        let mut places = places.take();
        places.sort_unstable();
        let of = |processor, times: &[u64]| times.iter().map(|at| (processor, *at)).collect();
        let expected: [Vec<_>; 3] =
            [of(0, &[78, 79, 80, 81]), of(1, &[78, 79, 81]), of(2, &[78, 79, 81])];
        assert_eq!(places, expected.concat(), "{:?}", machine.configuration);
        let mut called = callback.into_inner().unwrap();
        called.sort_unstable();
        let called_at = |(processor, _): &(usize, u64)| (0x100 + *processor as u64, source);
        assert_eq!(called, places.iter().map(called_at).collect::<Vec<_>>());
    });
}

#[test]
fn a_period_that_a_software_event_cannot_have_is_refused() {
    on_each(|_, pmu| {
        let buffer: [AtomicU32; 4] = Default::default();
        let refused = |event: Event| pmu.profile(event, 0..64, &buffer, || unreachable!()).err();
        for (event, period) in [(CLOCK, 9_999), (FAULTS, 1 << 31)] {
            let error = InterfaceError::Counters(CounterError::Period(period));
            assert_eq!(refused(event.every(period)), Some(PmuError::Interface(error)));
        }
        assert_eq!(refused(FAULTS), Some(PmuError::Interface(InterfaceError::NoPeriod)));
    });
}

/// The watchdog's event is any that the processor counts.
#[test]
fn a_processor_is_watched_by_an_event_of_the_kernel() {
    on_each(|machine, pmu| {
        let instructions = Event::generic(GenericEvent::Instructions).every(50_021);
        pmu.watch_by(&instructions).unwrap();
        pmu.touch();
        machine.interrupted.take();
        machine.happen(0, Happens::Instructions, 2 * 50_021);
        let stuck: Vec<_> = machine.interrupted.take().iter().map(|(_, of)| of.is_stuck).collect();
        assert_eq!(stuck, [false, true], "{:?}", machine.configuration);
        for (event, period) in [(FAULTS.every(10), 10), (Event::generic(GenericEvent::Cycles), 0)] {
            let refused = CounterError::Period(period);
            assert_eq!(pmu.watch_by(&event), Err(PmuError::Counters(refused)));
        }
        let absent = Event::raw(EventSelect::from_bits(1 << 40)).every(10_007);
        let illegal = CounterError::IllegalBits(1 << 40);
        assert_eq!(pmu.watch_by(&absent), Err(PmuError::Counters(illegal)));
    });
}
