//! Attacks on events that the kernel's calls count: each test shows one defect.

use pmu::core::reading::user_view;
use pmu::core::{CounterError, EventStatus};
use pmu::{Event, GenericEvent, Kernel, SoftwareEvent, ThreadEvent};
use pmu_virt::mock::Fault;
use pmu_virt::{Configuration, IntelConfiguration};

use crate::software::frame;
use crate::world::{Happens, Machine, TestPmu, World, machine};

const INSTRUCTIONS: Event = Event::generic(GenericEvent::Instructions);
const FAULTS: Event = Event::software(SoftwareEvent::PageFaults);
const CLOCK: Event = Event::software(SoftwareEvent::TaskClock);
const MILLISECOND: u64 = 1_000_000;

fn up() -> (&'static Machine, &'static TestPmu) {
    let (machine, pmu) = Machine::new(Configuration::Intel(IntelConfiguration::new(4, 4, 3)));
    machine.up();
    (machine, pmu)
}

fn fault(pmu: &'static TestPmu) -> usize {
    let mut samples = 0;
    pmu.happened(SoftwareEvent::MinorFaults, &frame(true), |_| samples += 1);
    samples
}

/// Time passes, and the timer interrupts whenever it is set. Returns the numbers of interrupts and of samples.
fn pass(pmu: &'static TestPmu, nanoseconds: u64) -> (usize, usize) {
    let (machine, end) = (machine(), machine().now.get() + nanoseconds);
    let timer = &machine.clock_timers[World::this_processor()];
    let (mut interrupts, mut samples) = (0, 0);
    while let Some(at) = timer.get().filter(|at| *at <= end) {
        timer.set(None);
        machine.now.set(at.max(machine.now.get()));
        pmu.clock_interrupt(&frame(true), |_| samples += 1);
        interrupts += 1;
    }
    machine.now.set(end);
    (interrupts, samples)
}

/// Takes every counter for events that do not rotate.
fn fill(pmu: &'static TestPmu) -> Vec<pmu::PmuEvent> {
    let cycles = Event::generic(GenericEvent::Cycles);
    let mut others: Vec<_> = (0..).map_while(|_| pmu.start(&cycles).ok()).collect();
    others.extend((0..).map_while(|_| pmu.start(&INSTRUCTIONS).ok()));
    others
}

/// The group waits for a counter, and then needs none any more: the time for which it waited is no time of the clock.
#[test]
fn the_time_for_which_a_group_waited_is_not_counted_by_its_clock() {
    for closes in [true, false] {
        let (machine, pmu) = up();
        fill(pmu);
        let [clock, hardware] =
            pmu.start_group(&[CLOCK.rotating(), INSTRUCTIONS.rotating()]).unwrap();
        machine.now.set(1_000);
        if closes {
            pmu.close_member(hardware).unwrap();
        } else {
            pmu.disable(hardware).unwrap();
        }
        machine.now.set(1_010);
        let count = pmu.read(clock).unwrap();
        assert_eq!((count.value, count.enabled, count.running), (10, 1_010, 10), "{closes}");
    }
}

/// A clock is sampled while the counters are lent: its count does not go back as the window ends.
#[test]
fn a_clock_does_not_go_back_as_a_window_ends() {
    let (machine, pmu) = up();
    let clock = pmu.start(&CLOCK.every(MILLISECOND).with_total()).unwrap();
    assert_eq!(pass(pmu, 3 * MILLISECOND), (3, 3));
    let within = core::cell::Cell::new((0, 0));
    pmu.lend(|_| (), |_| within.set(pass(pmu, 10 * MILLISECOND))).unwrap();
    println!("within {:?}", within.get());
    let value = pmu.read(clock).unwrap().value;
    let sampled = (3 + within.get().1 as u64) * MILLISECOND;
    let after = pass(pmu, 2 * MILLISECOND);
    println!("{value} after {after:?} timer {:?} now {}", machine.clock_timers[0].get(), machine.now.get());
    assert!(value >= sampled, "{sampled} ns were sampled, {value} are counted");
    assert_eq!(after, (2, 2));
}

/// An event that has stopped reporting, or is throttled, causes no interrupts.
#[test]
fn a_clock_that_is_silent_does_not_interrupt() {
    let (_, pmu) = up();
    let clock = pmu.start(&CLOCK.every(10_000).with_total()).unwrap();
    assert_eq!(pass(pmu, MILLISECOND), (100, 100));
    let (events, _) = pmu.events_of(0).unwrap();
    pmu::core::EventSource::opened(&events).stop_reporting(clock.id()).unwrap();
    let (interrupts, samples) = pass(pmu, 10 * MILLISECOND);
    assert_eq!(samples, 0);
    assert!(interrupts <= 1, "{interrupts} interrupts for no sample");
}

/// "If the old period has ended by then, its overflow goes to `overflowed`."
#[test]
fn a_period_that_has_ended_is_reported_as_another_is_set() {
    let (machine, pmu) = up();
    let clock = pmu.start(&CLOCK.every(MILLISECOND).with_total()).unwrap();
    machine.now.set(5 * MILLISECOND / 2); // the timer is late
    let mut samples = 0;
    pmu.set_period(clock, 10 * MILLISECOND, |_| samples += 1).unwrap();
    samples += pass(pmu, 0).1;
    assert_eq!(samples, 1, "2.5 ms have passed");
}

#[test]
fn a_handler_shows_user_mode_a_software_event_as_a_task_does() {
    let (machine, pmu) = up();
    let event = pmu.start(&FAULTS).unwrap();
    machine.now.set(5);
    fault(pmu);
    let by_task =
        pmu.with(|session, _| session.counters_mut().user_view(event.id(), 5)).unwrap().unwrap();
    let (events, memory) = pmu.events_of(0).unwrap();
    let by_handler = user_view(&events, &World::msr(), memory, event.id(), 5);
    assert_eq!(by_handler.as_ref().map(|_| ()), Ok(()));
    assert_eq!(format!("{by_handler:?}"), format!("{:?}", Ok::<_, CounterError>(by_task)));
}
