//! Events that the kernel's calls count: of processors and threads, in groups with events of counters, and the clocks.

use core::cell::RefCell;

use pmu::core::EventCount;
use pmu::core::EventStatus;
use pmu::core::error::CounterError;
use pmu::core::reading::sample_read;
use pmu::core::registers::{CounterId, EventSelect};
use pmu::core::x86::raw_cpuid::CpuIdResult;
use pmu::frame::PlainFrame;
use pmu::{
    BranchFilter, Event, GenericEvent, Kernel, PmuError, PmuEvent, PmuSample, Precision, Snapshot,
    SoftwareEvent, ThreadEvent,
};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use crate::world::{Happens, Machine, TestPmu, World, machine, machines, sampling};

const INSTRUCTIONS: Event = Event::generic(GenericEvent::Instructions);
const FAULTS: Event = Event::software(SoftwareEvent::PageFaults);
const MILLISECOND: u64 = 1_000_000;

pub(crate) fn on_each(test: impl Fn(&'static Machine, &'static TestPmu)) {
    for configurations in machines() {
        let (machine, pmu) = Machine::of(configurations);
        machine.up();
        test(machine, pmu);
        machine.down();
    }
}

/// The frame of user mode, or of the kernel.
pub(crate) fn frame(user: bool) -> PlainFrame {
    PlainFrame::new(0x1000, if user { 0x33 } else { 0x8 }, 2, World::this_processor())
}

/// Something happens, and is sampled: the places and periods of the events.
fn happen(pmu: &'static TestPmu, what: SoftwareEvent, user: bool) -> Vec<(u16, u64)> {
    let mut samples = Vec::new();
    let note = |sample: &PmuSample<'_, World>| {
        assert_eq!((sample.counter, sample.instruction()), (CounterId::SOFTWARE, None));
        assert_eq!((sample.branches().count(), sample.address()), (0, Some(0x1000)));
        samples.push((sample.event.index().unwrap() as u16, sample.period));
    };
    sampling(note, || pmu.happened(what, &frame(user)));
    samples
}

fn value(pmu: &'static TestPmu, event: PmuEvent) -> u64 {
    pmu.read(event).unwrap().value
}

/// Lets time pass. The clock timer interrupts whenever it expires. Returns each sample's time and period.
fn pass(pmu: &'static TestPmu, nanoseconds: u64, user: bool) -> Vec<(u64, u64)> {
    let (machine, end) = (machine(), machine().now.get() + nanoseconds);
    let timer = &machine.clock_timers[World::this_processor()];
    let mut samples = Vec::new();
    while let Some(at) = timer.get().filter(|at| *at <= end) {
        timer.set(None);
        machine.now.set(at.max(machine.now.get()));
        let note = |sample: &PmuSample<'_, World>| {
            samples.push((machine.now.get(), sample.period));
        };
        sampling(note, || pmu.clock_interrupt(&frame(user)));
    }
    machine.now.set(end);
    samples
}

#[test]
fn what_happens_is_counted_in_its_mode_while_the_event_is_enabled() {
    on_each(|_, pmu| {
        use SoftwareEvent::*;
        let faults = pmu.start(&FAULTS).unwrap();
        let of_user = pmu.start(&Event::software(MinorFaults).user_only()).unwrap();
        let of_kernel = pmu.start(&Event::software(MajorFaults).kernel_only()).unwrap();
        let switches = pmu.open(&Event::software(ContextSwitches)).unwrap();
        for (what, user) in [
            (MinorFaults, true),
            (MinorFaults, true),
            (MinorFaults, false),
            (MajorFaults, false),
            (MajorFaults, true),
            (PageFaults, true),
            (ContextSwitches, false),
            (Dummy, false),
        ] {
            assert_eq!(happen(pmu, what, user), [], "nothing is sampled");
        }
        let values = [faults, of_user, of_kernel, switches].map(|event| value(pmu, event));
        assert_eq!(values, [6, 2, 1, 0]);
        pmu.enable(switches).unwrap();
        happen(pmu, ContextSwitches, false);
        pmu.disable(switches).unwrap();
        happen(pmu, ContextSwitches, false);
        assert_eq!(value(pmu, switches), 1);
        pmu.reset(faults).unwrap();
        happen(pmu, MinorFaults, false);
        assert_eq!(value(pmu, faults), 1);
        pmu.close(faults).unwrap();
        happen(pmu, MinorFaults, false);
        let gone = CounterError::NoSuchEvent(faults.id());
        assert_eq!(pmu.read(faults), Err(PmuError::Counters(gone)));
    });
}

#[test]
fn each_period_is_sampled_once_and_a_reset_leaves_it() {
    on_each(|_, pmu| {
        let event = pmu.start(&FAULTS.every(3).with_total()).unwrap();
        let place = event.id().index().unwrap() as u16;
        let fault = || happen(pmu, SoftwareEvent::MinorFaults, true);
        let sampled: Vec<_> = (1..=10).filter(|_| fault() == [(place, 3)]).collect();
        assert_eq!(sampled, [3, 6, 9]);
        pmu.reset(event).unwrap();
        assert_eq!((fault(), fault()), (vec![], vec![(place, 3)]), "one of this period was before");
        pmu.disable(event).unwrap();
        assert_eq!(fault(), []);
        pmu.enable(event).unwrap();
        sampling(|_| panic!("no period had ended"), || pmu.set_period(event, 2)).unwrap();
        assert_eq!((fault(), fault(), fault()), (vec![], vec![(place, 2)], vec![]));
        assert_eq!(value(pmu, event), 5);
    });
}

/// A sample of what happens so often is throttled until the next tick, and an adapted period follows.
#[test]
fn samples_are_limited_between_ticks() {
    on_each(|machine, pmu| {
        let event = pmu.start(&FAULTS.every(1).with_total()).unwrap();
        let fault = || happen(pmu, SoftwareEvent::MinorFaults, true).len();
        assert_eq!((0..1_000).map(|_| fault()).sum::<usize>(), 1_000, "no tick has come");
        machine.now.set(4 * MILLISECOND);
        pmu.tick().unwrap();
        assert_eq!((0..1_000).map(|_| fault()).sum::<usize>(), 400, "of 100,000 per second");
        machine.now.set(8 * MILLISECOND);
        pmu.tick().unwrap();
        assert_eq!((fault(), value(pmu, event)), (1, 2_001));
        pmu.close(event).unwrap();
        let event = pmu.start(&FAULTS.at_frequency(1_000)).unwrap();
        let mut samples = 0;
        for _ in 0..100 {
            // 10,000 per second.
            for _ in 0..40 {
                machine.now.set(machine.now.get() + MILLISECOND / 10);
                samples += fault();
            }
            pmu.tick().unwrap();
        }
        assert!((350..=550).contains(&samples), "{samples} in 0.4 s, with the begin");
        pmu.close(event).unwrap();
    });
}

#[test]
fn a_group_of_both_kinds_counts_and_waits_as_one() {
    on_each(|machine, pmu| {
        let faults = FAULTS.rotating();
        for first in [INSTRUCTIONS.rotating(), faults] {
            let second = if first == faults { INSTRUCTIONS.rotating() } else { faults };
            let clock = Event::software(SoftwareEvent::TaskClock).rotating();
            let group = pmu.start_group(&[first, second, clock]).unwrap();
            let [a, b, c] = group;
            let step = |times| {
                for _ in 0..times {
                    machine.happen(0, Happens::Instructions, 10);
                    happen(pmu, SoftwareEvent::MinorFaults, true);
                    machine.now.set(machine.now.get() + 7);
                }
            };
            step(5);
            let mut counts = [(0, EventCount::default()); 3];
            assert_eq!(pmu.read_group(a, &mut counts), Ok(3));
            let (of_a, of_b) = if first == faults { (5, 50) } else { (50, 5) };
            assert_eq!(counts.map(|(_, count)| count.value), [of_a, of_b, 35]);
            assert_eq!(counts.map(|(_, count)| (count.enabled, count.running)), [(35, 35); 3]);

            // The counters go to others, which do not rotate.
            let cycles = Event::generic(GenericEvent::Cycles);
            let mut others: Vec<_> = (0..).map_while(|_| pmu.start(&cycles).ok()).collect();
            others.extend((0..).map_while(|_| pmu.start(&INSTRUCTIONS).ok()));
            step(3);
            pmu.read_group(a, &mut counts).unwrap();
            assert_eq!(counts.map(|(_, count)| count.value), [of_a, of_b, 35]);
            assert_eq!(counts.map(|(_, count)| (count.enabled, count.running)), [(56, 35); 3]);

            // It stops while it waits.
            machine.now.set(machine.now.get() + 50);
            pmu.disable(a).unwrap();
            pmu.read_group(a, &mut counts).unwrap();
            assert_eq!(counts.map(|(_, count)| (count.enabled, count.running)), [(106, 35); 3]);
            pmu.enable(a).unwrap();

            // Without its event of a counter, the group needs none.
            let on_counter = if first == faults { b } else { a };
            if on_counter == b {
                pmu.disable(b).unwrap();
                step(2);
                assert_eq!([a, c].map(|event| value(pmu, event)), [7, 49]);
                pmu.enable(b).unwrap();
                step(2);
                assert_eq!([a, c].map(|event| value(pmu, event)), [7, 49], "it waits again");
            }
            let [left, _, closed] =
                pmu.start_group(&[faults, clock, INSTRUCTIONS.rotating()]).unwrap();
            step(1);
            pmu.close_member(closed).unwrap();
            step(2);
            assert_eq!(value(pmu, left), 2, "from when it needed no counter");
            pmu.close(left).unwrap();
            others.into_iter().for_each(|event| pmu.close(event).unwrap());
            pmu.tick().unwrap();
            let before = group.map(|event| value(pmu, event));
            step(1);
            let now = group.map(|event| value(pmu, event));
            let more = now.iter().zip(before).map(|(now, before)| now - before);
            let expected = if first == faults { [1, 10, 7] } else { [10, 1, 7] };
            assert_eq!(more.collect::<Vec<_>>(), expected);
            pmu.close(a).unwrap();
        }
    });
}

/// As a perf subsystem writes a group with `PERF_SAMPLE_READ`.
#[test]
fn a_sample_reads_its_group() {
    on_each(|machine, pmu| {
        let group = [FAULTS.every(2).with_total(), INSTRUCTIONS];
        let clock = Event::software(SoftwareEvent::CpuClock);
        let [faults, instructions, clock] = pmu.start_group(&[group[0], group[1], clock]).unwrap();
        machine.happen(0, Happens::Instructions, 30);
        machine.now.set(machine.now.get() + 12);
        let read = RefCell::new(Vec::new());
        for _ in 0..2 {
            let note = |sample: &PmuSample<'_, World>| {
                let (events, memory) = pmu.events_of(0).unwrap();
                let msr = World::registers();
                let counts = sample_read(&events, &msr, memory, sample.event, World::now());
                read.borrow_mut().extend(counts.unwrap().map(|read| (read.event, read.count)));
            };
            sampling(note, || pmu.happened(SoftwareEvent::MajorFaults, &frame(false)));
        }
        let read: Vec<_> = read.take().iter().map(|(of, count)| (*of, count.unwrap())).collect();
        let values: Vec<_> = read.iter().map(|(event, count)| (*event, count.value)).collect();
        assert_eq!(values, [(faults.id(), 2), (instructions.id(), 30), (clock.id(), 12)]);
        assert!(read.iter().all(|(_, count)| (count.enabled, count.running) == (12, 12)));
    });
}

#[test]
fn a_threads_events_count_on_each_processor_what_happens_to_it() {
    on_each(|machine, pmu| {
        use SoftwareEvent::*;
        let clock = Event::software(TaskClock).every(10 * MILLISECOND).with_total();
        let mut thread = [ThreadEvent::Unused; 4];
        thread[0] = pmu.thread_event(&clock).unwrap();
        let group = [FAULTS, INSTRUCTIONS, Event::software(ContextSwitches)];
        thread[1..].copy_from_slice(&pmu.thread_group(&group).unwrap());
        let processor_wide = pmu.start(&Event::software(ContextSwitches)).unwrap();
        let mut samples = Vec::new();
        for turn in 0..7 {
            let here = turn % 2;
            machine.on(here, || {
                pmu.switch(&mut [], &mut thread).unwrap();
                happen(pmu, MinorFaults, true);
                machine.happen(here, Happens::Instructions, 100);
                samples.extend(pass(pmu, 4 * MILLISECOND, true));
                happen(pmu, ContextSwitches, false);
                pmu.switch(&mut thread, &mut []).unwrap();
                assert_eq!(machine.clock_timers[here].get(), None, "no clock counts here");
                // Another thread.
                happen(pmu, MinorFaults, true);
                samples.extend(pass(pmu, 3 * MILLISECOND, true));
            });
        }
        let values = thread.map(|event| pmu.read_thread(&event).unwrap().value);
        assert_eq!(values, [28 * MILLISECOND, 7, 700, 7]);
        // The thread runs in the first 4 of each 7 ms: it has run for 10 in the third of these times, and for 20 as the
        // fifth ends.
        let at = [2 * 7 + 2, 4 * 7 + 4].map(|at| (at * MILLISECOND, 10 * MILLISECOND));
        assert_eq!(samples, at);
        assert_eq!(value(pmu, processor_wide), 4, "of those on processor 0");
    });
}

#[test]
fn a_clock_is_sampled_by_its_own_period_and_counts_each_nanosecond() {
    on_each(|machine, pmu| {
        let clock = Event::software(SoftwareEvent::CpuClock);
        let fast = pmu.start(&clock.every(100_000).with_total()).unwrap();
        let slow = pmu.start(&clock.at_frequency(1_000)).unwrap();
        let samples = pass(pmu, 10 * MILLISECOND, false);
        let of = |period| samples.iter().filter(move |(_, of)| *of == period).map(|(at, _)| *at);
        assert!(of(100_000).eq((1..=100).map(|n| n * 100_000)));
        assert!(of(MILLISECOND).eq((1..=10).map(|n| n * MILLISECOND)));
        assert_eq!([fast, slow].map(|event| value(pmu, event)), [10 * MILLISECOND; 2]);

        // The timer comes late: one sample stands for all periods that are over, and the next one is in step.
        pmu.close(slow).unwrap();
        machine.now.set(machine.now.get() + 350_000);
        let late = pass(pmu, 0, false);
        assert_eq!(late, [(10 * MILLISECOND + 350_000, 300_000)]);
        assert_eq!(pass(pmu, 50_000, false), [(10 * MILLISECOND + 400_000, 100_000)]);

        // A reset changes no period; a new period begins at once.
        assert_eq!(pass(pmu, 30_000, false), []);
        pmu.reset(fast).unwrap();
        assert_eq!(pass(pmu, 70_000, false), [(10 * MILLISECOND + 500_000, 100_000)]);
        assert_eq!(value(pmu, fast), 70_000);
        sampling(|_| panic!("none had ended"), || pmu.set_period(fast, 20_000)).unwrap();
        assert_eq!(pass(pmu, 20_000, false).len(), 1);
        pmu.disable(fast).unwrap();
        assert_eq!(machine.clock_timers[0].get(), None);
        assert_eq!(pass(pmu, 70_000, false), []);
        pmu.enable(fast).unwrap();
        assert_eq!(pass(pmu, 19_999, false), []);
        assert_eq!(pass(pmu, 1, false).len(), 1);
        pmu.close(fast).unwrap();
        assert_eq!(machine.clock_timers[0].get(), None);
    });
}

#[test]
fn a_clock_of_one_mode_is_sampled_there_and_counts_everywhere() {
    on_each(|_, pmu| {
        let clock = Event::software(SoftwareEvent::TaskClock).user_only();
        let event = pmu.start(&clock.every(MILLISECOND).with_total()).unwrap();
        assert_eq!(pass(pmu, 3 * MILLISECOND, false), []);
        assert_eq!(pass(pmu, 2 * MILLISECOND, true).len(), 2);
        assert_eq!(value(pmu, event), 5 * MILLISECOND);
    });
}

/// As the events of counters do.
#[test]
fn a_guest_and_a_suspend_are_not_counted() {
    on_each(|machine, pmu| {
        let clock = Event::software(SoftwareEvent::CpuClock).every(MILLISECOND).with_total();
        let alone = pmu.start(&FAULTS).unwrap();
        let [clock, faults, instructions] =
            pmu.start_group(&[clock, FAULTS, INSTRUCTIONS]).unwrap();
        let values = || [alone, faults, clock, instructions].map(|event| value(pmu, event));
        let step = || {
            happen(pmu, SoftwareEvent::MinorFaults, true);
            machine.happen(0, Happens::Instructions, 10);
            pass(pmu, MILLISECOND / 2, false)
        };
        assert_eq!(step(), []);
        pmu.lend(|_| assert_eq!(step(), [])).unwrap();
        assert_eq!(values(), [1, 1, MILLISECOND / 2, 10]);
        let before = machine.now.get();
        assert_eq!(step(), [(before + MILLISECOND / 2, MILLISECOND)], "the rest of the period");
        pmu.processor_suspended().unwrap();
        happen(pmu, SoftwareEvent::MinorFaults, true);
        assert_eq!(pass(pmu, 5 * MILLISECOND, false), []);
        pmu.processor_resumed().unwrap();
        assert_eq!(step(), []);
        assert_eq!(values(), [3, 3, 3 * MILLISECOND / 2, 30]);
        assert_eq!(step().len(), 1);
        let counts = [alone, faults, clock].map(|event| pmu.read(event).unwrap());
        assert!(
            counts.iter().all(|of| (of.enabled, of.running) == (2 * MILLISECOND, 2 * MILLISECOND))
        );
    });
}

#[test]
fn the_state_of_an_event_without_a_counter_is_told() {
    on_each(|_, pmu| {
        let event = pmu.open(&FAULTS).unwrap();
        let status = || pmu.status(event).unwrap();
        assert_eq!(status(), EventStatus::Off);
        pmu.enable(event).unwrap();
        assert_eq!(status(), EventStatus::Active(CounterId::SOFTWARE));
        pmu.processor_suspended().unwrap();
        pmu.processor_resumed().unwrap();
        happen(pmu, SoftwareEvent::MinorFaults, true);
        assert_eq!((status(), value(pmu, event)), (EventStatus::Active(CounterId::SOFTWARE), 1));
        let [_, cycles] = [FAULTS, Event::generic(GenericEvent::Cycles)];
        let member = pmu.open(&cycles).unwrap();
        pmu.close(member).unwrap();
    });
}

#[test]
fn what_no_software_event_can_do_is_refused() {
    on_each(|_, pmu| {
        let clock = Event::software(SoftwareEvent::CpuClock);
        for (event, reason) in [
            (FAULTS.every(1 << 63), CounterError::Period(1 << 63)),
            (clock.every(9_999), CounterError::Period(9_999)),
            (FAULTS.every(5).with_branches(BranchFilter::USER), CounterError::BranchesUnsupported),
            (FAULTS.in_guests(), CounterError::GuestModeUnsupported),
            (FAULTS.reloaded_by(0b1), CounterError::NotReloadable),
        ] {
            assert_eq!(pmu.open(&event), Err(PmuError::Counters(reason)));
            assert_eq!(pmu.thread_event(&event), Err(PmuError::Counters(reason)));
        }
        let precise = FAULTS.every(5).precise(Precision::ConstantSkid);
        assert!(matches!(pmu.open(&precise), Err(PmuError::Counters(CounterError::NotPrecise(_)))));
        let event = pmu.open(&FAULTS.every(5)).unwrap();
        let refused = pmu.set_period(event, 0);
        assert_eq!(refused, Err(PmuError::Counters(CounterError::Period(0))));
        assert!(pmu.open(&FAULTS.outside_guests()).is_ok());
    });
}

/// A guest often has no PMU. perf samples its clock instead of the cycles.
#[test]
fn a_processor_without_counters_has_software_events() {
    let (machine, pmu) = Machine::new(crate::world::machines()[0][0]);
    let without = Snapshot::capture(|leaf: u32, subleaf: u32| match leaf {
        0x0A => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        _ => machine.snapshot().leaf(leaf, subleaf),
    });
    for _ in 0..2 {
        assert!(pmu.processor_up(&without).unwrap().is_empty());
        assert!(pmu.open(&INSTRUCTIONS).is_err());
        let clock = Event::software(SoftwareEvent::CpuClock).every(MILLISECOND).with_total();
        let [clock, faults] = pmu.start_group(&[clock, FAULTS]).unwrap();
        let mut thread = [pmu.thread_event(&FAULTS).unwrap()];
        pmu.switch(&mut [], &mut thread).unwrap();
        happen(pmu, SoftwareEvent::MinorFaults, true);
        assert_eq!(pass(pmu, 3 * MILLISECOND, true).len(), 3);
        pmu.tick().unwrap();
        pmu.switch(&mut thread, &mut []).unwrap();
        pmu.processor_suspended().unwrap();
        pmu.processor_resumed().unwrap();
        pmu.lend(|_| ()).unwrap();
        happen(pmu, SoftwareEvent::MinorFaults, true);
        assert_eq!(pmu.read_thread(&thread[0]).unwrap().value, 1);
        assert_eq!([clock, faults].map(|event| value(pmu, event)), [3 * MILLISECOND, 2]);
        pmu.processor_down().unwrap();
        assert!(pmu.read(clock).is_err());
    }
}

/// No register has the bit that stands for software events.
#[test]
fn a_raw_event_with_the_bit_of_software_events_is_refused() {
    let (machine, pmu) = Machine::new(Configuration::Intel(IntelConfiguration::new(4, 4, 3)));
    machine.up();
    let mut taken = Vec::new();
    for number in [0_u64, 2, 9, 10, 0xC0, 0xFF] {
        for bits in [0, 1 << 8, 1 << 22, 1 << 63] {
            let event = Event::raw(EventSelect::from_bits(1 << 62 | bits | number));
            let outcomes = (pmu.open(&event).is_ok(), pmu.thread_event(&event).is_ok());
            if outcomes != (false, false) {
                taken.push((number, bits, outcomes));
            }
        }
    }
    assert!(taken.is_empty(), "{taken:x?}");
}

/// The frame is that of the performance interrupt, of what happened, or of the clock timer. A sample that a task
/// reports has no frame.
#[test]
fn a_sample_has_the_frame_of_its_handler() {
    on_each(|machine, pmu| {
        let seen = RefCell::new(vec![]);
        let note = |sample: &PmuSample<'_, World>| {
            let frame = sample.frame().map(|frame| (frame.pc(), frame.in_user()));
            seen.borrow_mut().push((sample.tag, frame));
        };
        let faults = pmu.start(&FAULTS.every(1).tagged(1)).unwrap();
        let clock = Event::software(SoftwareEvent::CpuClock).every(MILLISECOND).tagged(2);
        let clock = pmu.start(&clock).unwrap();
        let cycles = Event::generic(GenericEvent::Cycles).every(5_003).tagged(3);
        let cycles = pmu.start(&cycles).unwrap();
        for user in [false, true] {
            sampling(note, || pmu.happened(SoftwareEvent::MinorFaults, &frame(user)));
            machine.now.set(machine.now.get() + MILLISECOND);
            sampling(note, || pmu.clock_interrupt(&frame(user)));
            machine.pass(0, Happens::Cycles, 5_003);
            sampling(note, || {
                pmu.interrupt(&frame(user)).error.map_or((), |error| panic!("{error}"))
            });
            let of_frame = Some((0x1000, user));
            assert_eq!(seen.take(), [(1, of_frame), (2, of_frame), (3, of_frame)]);
        }
        machine.pass(0, Happens::Cycles, 5_003);
        sampling(note, || pmu.set_period(cycles, 5_003)).unwrap();
        assert_eq!(seen.take(), [(3, None)]);
        for event in [faults, clock, cycles] {
            pmu.close(event).unwrap();
        }
        machine.overflows.take();
        machine.interrupted.take();
    });
}
