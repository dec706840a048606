//! Attacks on events that the kernel's calls count: each test shows one defect.

use pmu::core::EventStatus;
use pmu::core::error::CounterError;
use pmu::core::reading::user_view;
use pmu::{Event, GenericEvent, Kernel, SoftwareEvent, ThreadEvent};
use pmu_tests::opened::id_of;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::Fault;

use crate::software::frame;
use crate::world::{Happens, Machine, TestPmu, World, machine, sampling};

pub(crate) const INSTRUCTIONS: Event = Event::generic(GenericEvent::Instructions);
pub(crate) const FAULTS: Event = Event::software(SoftwareEvent::PageFaults);
pub(crate) const CLOCK: Event = Event::software(SoftwareEvent::TaskClock);
const MILLISECOND: u64 = 1_000_000;

fn up() -> (&'static Machine, &'static TestPmu) {
    let (machine, pmu) = Machine::new(Configuration::Intel(IntelConfiguration::new(4, 4, 3)));
    machine.up();
    (machine, pmu)
}

pub(crate) fn fault(pmu: &'static TestPmu) -> usize {
    let mut samples = 0;
    sampling(|_| samples += 1, || pmu.happened(SoftwareEvent::MinorFaults, &frame(true)));
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
        sampling(|_| samples += 1, || pmu.clock_interrupt(&frame(true)));
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

/// A clock that is sampled while the counters are lent, or the processor is suspended, does not go back afterwards.
fn sampled_meanwhile(meanwhile: impl Fn(&'static TestPmu, &dyn Fn())) {
    let (_, pmu) = up();
    let clock = pmu.start(&CLOCK.every(MILLISECOND).with_total()).unwrap();
    assert_eq!(pass(pmu, 3 * MILLISECOND), (3, 3));
    let within = core::cell::Cell::new((0, 0));
    meanwhile(pmu, &|| within.set(pass(pmu, 10 * MILLISECOND)));
    let value = pmu.read(clock).unwrap().value;
    let sampled = (3 + within.get().1 as u64) * MILLISECOND;
    let after = pass(pmu, 2 * MILLISECOND);
    assert!(value >= sampled, "{sampled} ns were sampled, {value} are counted; then {after:?}");
    assert_eq!(after, (2, 2));
}

#[test]
fn a_clock_does_not_go_back_as_a_window_ends() {
    sampled_meanwhile(|pmu, run| pmu.lend(|_| run()).unwrap());
}

#[test]
fn a_clock_does_not_go_back_as_a_processor_resumes() {
    sampled_meanwhile(|pmu, run| {
        pmu.processor_suspended().unwrap();
        run();
        pmu.processor_resumed().unwrap();
    });
}

/// An event that has stopped reporting, or is throttled, causes no interrupts.
#[test]
fn a_clock_that_is_silent_does_not_interrupt() {
    let (_, pmu) = up();
    let clock = pmu.start(&CLOCK.every(10_000).with_total()).unwrap();
    assert_eq!(pass(pmu, MILLISECOND), (100, 100));
    pmu.stop_reporting(clock.id()).unwrap();
    let (interrupts, samples) = pass(pmu, 10 * MILLISECOND);
    assert_eq!(samples, 0);
    assert!(interrupts <= 1, "{interrupts} interrupts for no sample");
}

/// "If the old period has ended by then, [`Kernel::sampled`] takes its overflow."
#[test]
fn a_period_that_has_ended_is_reported_as_another_is_set() {
    let (machine, pmu) = up();
    let clock = pmu.start(&CLOCK.every(MILLISECOND).with_total()).unwrap();
    machine.now.set(5 * MILLISECOND / 2); // the timer is late
    let mut samples = 0;
    sampling(|_| samples += 1, || pmu.set_period(clock, 10 * MILLISECOND)).unwrap();
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
    let by_handler = user_view(&events, &World::registers(), memory, event.id(), 5);
    assert_eq!(by_handler.as_ref().map(|_| ()), Ok(()));
    assert_eq!(format!("{by_handler:?}"), format!("{:?}", Ok::<_, CounterError>(by_task)));
}

fn status(pmu: &'static TestPmu, event: pmu::core::EventId) -> EventStatus {
    pmu.with(|session, _| session.counters_mut().event_status(event)).unwrap().unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Interrupt,
    Tick,
    Start,
    StartOther,
    SetPeriod,
    DisableMember,
    EnableMember,
    Switch,
    Lend,
    Suspend,
}

const OPERATIONS: [Operation; 10] = [
    Operation::Interrupt,
    Operation::Tick,
    Operation::Start,
    Operation::StartOther,
    Operation::SetPeriod,
    Operation::DisableMember,
    Operation::EnableMember,
    Operation::Switch,
    Operation::Lend,
    Operation::Suspend,
];

/// Does an operation in which accesses fault. Returns what is wrong afterwards with the software events of the group,
/// and whether the operation had so many accesses.
fn faulted(
    operation: Operation,
    (rotates, software_first): (bool, bool),
    fault_at: Fault,
    access: u32,
) -> (Option<String>, bool) {
    let (machine, pmu) = up();
    let turning = |event: Event| if rotates { event.rotating() } else { event };
    let hardware = turning(INSTRUCTIONS.every(10_000).with_total());
    let second = turning(Event::generic(GenericEvent::Cycles));
    let events = if software_first {
        [turning(CLOCK), hardware, turning(FAULTS), second]
    } else {
        [hardware, turning(CLOCK), turning(FAULTS), second]
    };
    let group = pmu.open_group(&events).unwrap();
    let at = |place: usize| group[place];
    let (of_hardware, of_clock) = if software_first { (at(1), at(0)) } else { (at(0), at(1)) };
    if operation != Operation::Start {
        pmu.enable(at(0)).unwrap();
    }
    if operation == Operation::EnableMember {
        pmu.disable(at(3)).unwrap();
    }
    let llc = Event::generic(GenericEvent::CacheMisses);
    if operation == Operation::Tick {
        for _ in 0..5 {
            pmu.start(&llc.rotating()).unwrap();
        }
    }
    let mut thread = [ThreadEvent::Unused; 2];
    if operation == Operation::Switch {
        thread.copy_from_slice(&pmu.thread_group(&[llc, llc]).unwrap());
    }
    machine.now.set(100);
    machine.happen(0, Happens::Instructions, 9_999);
    let mock = &machine.mocks[0];
    mock.clear();
    mock.inject(fault_at);
    match operation {
        Operation::Interrupt => machine.happen(0, Happens::Instructions, 1),
        Operation::Tick => drop(pmu.tick()),
        Operation::Start => drop(pmu.enable(at(0))),
        Operation::StartOther => drop((0..3).map(|_| pmu.start(&llc)).collect::<Vec<_>>()),
        Operation::SetPeriod => drop(pmu.set_period(of_hardware, 5_000)),
        Operation::DisableMember => drop(pmu.disable(at(3))),
        Operation::EnableMember => drop(pmu.enable(at(3))),
        Operation::Switch => drop(pmu.switch(&mut [], &mut thread)),
        Operation::Lend => drop(pmu.lend(|_| ())),
        Operation::Suspend => {
            let _ = pmu.processor_suspended();
            let _ = pmu.processor_resumed();
        }
    }
    let reached = mock.accesses().total() >= access;
    mock.inject(Fault::None);
    let [hard, soft] = [of_hardware, of_clock].map(|event| status(pmu, event.id()));
    let active = |status| matches!(status, EventStatus::Active(_));
    if active(hard) != active(soft) {
        return (Some(format!("{hard:?} but {soft:?}")), reached);
    }
    (None, reached)
}

/// "In a group with events of counters, it counts while they do": also after a fault.
#[test]
fn after_a_fault_software_events_count_only_while_their_group_does() {
    let mut wrong = std::collections::BTreeMap::<String, (u32, String)>::new();
    for operation in OPERATIONS {
        for of_group in [(false, false), (false, true), (true, false), (true, true)] {
            for kind in [Fault::At as fn(u32) -> Fault, Fault::Twice, Fault::From] {
                for access in 1.. {
                    let (found, reached) = faulted(operation, of_group, kind(access), access);
                    if let Some(found) = found {
                        let kind = format!("{:?}", kind(0));
                        let of = format!("{operation:?} {of_group:?} {kind}");
                        wrong.entry(of).or_insert((0, format!("access {access}: {found}"))).0 += 1;
                    }
                    if !reached {
                        break;
                    }
                }
            }
        }
    }
    let list: Vec<_> =
        wrong.iter().map(|(of, (times, first))| format!("{of}: {times} times, {first}")).collect();
    assert!(list.is_empty(), "{}", list.join("\n"));
}

/// The counter of a group that rotates has faulted, and no other is free: all of the group waits.
#[test]
fn software_events_wait_with_a_group_whose_counter_faulted() {
    let (machine, pmu) = up();
    let misses = Event::generic(GenericEvent::CacheMisses);
    let hardware = misses.every(10_000).with_total().rotating();
    let others = fill(pmu);
    let is_general = |event: &&pmu::PmuEvent| matches!(status(pmu, event.id()), EventStatus::Active(counter) if !counter.is_fixed());
    pmu.close(*others.iter().find(is_general).unwrap()).unwrap();
    let [hardware, clock] = pmu.start_group(&[hardware, CLOCK.rotating()]).unwrap();
    let mock = &machine.mocks[0];
    // The counter cannot be loaded again.
    let counter = match status(pmu, hardware.id()) {
        EventStatus::Active(counter) => counter,
        other => panic!("{other:?}"),
    };
    mock.inject(Fault::Register(0xC1 + u32::from(counter.number())));
    machine.happen(0, Happens::LastCacheMisses, 10_000);
    machine.now.set(100);
    let _ = pmu.tick();
    mock.inject(Fault::None);
    assert_eq!(status(pmu, hardware.id()), EventStatus::Inactive);
    assert_eq!(status(pmu, clock.id()), EventStatus::Inactive);
}

/// A thread is switched out while interrupts are off, three periods of its clock late.
#[test]
fn periods_that_end_before_a_switch_are_in_the_next_sample() {
    let (machine, pmu) = up();
    let mut thread = [pmu.thread_event(&CLOCK.every(10_000).with_total()).unwrap()];
    pmu.switch(&mut [], &mut thread).unwrap();
    machine.now.set(35_000);
    let mut sampled = 0;
    sampling(|sample| sampled += sample.period, || pmu.switch(&mut thread, &mut [])).unwrap();
    machine.now.set(50_000);
    pmu.switch(&mut [], &mut thread).unwrap();
    machine.now.set(56_000);
    sampling(|sample| sampled += sample.period, || pmu.clock_interrupt(&frame(true)));
    assert_eq!(pmu.read_thread(&thread[0]).unwrap().value, 41_000);
    assert_eq!(sampled, 40_000);
}

#[test]
fn a_group_that_excludes_others_does_so_behind_a_software_event() {
    for rotates in [false, true] {
        let (_, pmu) = up();
        let turning = |event: Event| if rotates { event.rotating() } else { event };
        let group = pmu.start_group(&[turning(FAULTS.exclusive()), turning(INSTRUCTIONS)]).unwrap();
        let cycles = pmu.open(&Event::generic(GenericEvent::Cycles).rotating()).unwrap();
        pmu.enable(cycles).unwrap();
        assert!(matches!(status(pmu, group[1].id()), EventStatus::Active(_)));
        assert_eq!(status(pmu, cycles.id()), EventStatus::Inactive);
    }
}

/// The greatest number of occurrences ends every period.
#[test]
fn any_number_of_occurrences_ends_a_period() {
    let (_, pmu) = up();
    let event = pmu.start(&FAULTS.every(1).with_total()).unwrap();
    let (events, _) = pmu.events_of(0).unwrap();
    let table = pmu::core::EventSource::opened(&events);
    for occurrences in [1, 1 << 30, 1 << 31, u32::MAX] {
        let mut samples = 0;
        table.happened(SoftwareEvent::PageFaults, occurrences, true, |_| samples += 1);
        assert_eq!(samples, 1, "{occurrences:#x}");
    }
    let _ = event;
}

#[test]
fn a_software_event_needs_no_free_counter() {
    let (_, pmu) = up();
    pmu.start(&INSTRUCTIONS.exclusive()).unwrap();
    let event = pmu.open(&FAULTS).unwrap();
    let started = pmu.with(|session, _| session.counters_mut().enable_if_free(event.id(), 0));
    assert_eq!(started, Ok(Ok(())));
}

/// A handler sets a period, and then faults itself: the periods of the samples are no more than what happened.
#[test]
fn what_happens_in_a_handler_after_it_set_the_period_is_reported_once() {
    let (_, pmu) = up();
    let event = pmu.start(&FAULTS.every(10).with_total()).unwrap();
    let (events, _) = pmu.events_of(0).unwrap();
    let table = pmu::core::EventSource::opened(&events);
    let sampled = core::cell::Cell::new(0);
    table.happened(SoftwareEvent::PageFaults, 10, true, |sample| {
        sampled.set(sampled.get() + sample.period);
        table.set_period(event.id(), 3).unwrap();
        table.happened(SoftwareEvent::PageFaults, 10, true, |sample| {
            sampled.set(sampled.get() + sample.period);
        });
    });
    table.happened(SoftwareEvent::PageFaults, 1, true, |sample| {
        sampled.set(sampled.get() + sample.period);
    });
    let value = pmu.read(event).unwrap().value;
    assert!(sampled.get() <= value, "{} of {value}", sampled.get());
}

#[test]
fn a_processor_that_goes_down_leaves_no_timer() {
    let (machine, pmu) = up();
    pmu.start(&CLOCK.every(MILLISECOND)).unwrap();
    assert_eq!(machine.clock_timers[0].get(), Some(MILLISECOND));
    pmu.processor_down().unwrap();
    assert_eq!(machine.clock_timers[0].get(), None);
}

/// A thread of which an event cannot be counted here, and one waits.
#[test]
fn the_times_of_a_threads_group_are_the_same_for_all_members() {
    let (machine, pmu) = up();
    let others = fill(pmu);
    let group = [INSTRUCTIONS.rotating(), FAULTS.rotating(), CLOCK.rotating()];
    let mut thread = [ThreadEvent::Unused; 3];
    thread.copy_from_slice(&pmu.thread_group(&group).unwrap());
    let mut others = others.into_iter();
    for turn in 0..8 {
        pmu.switch(&mut [], &mut thread).unwrap();
        machine.now.set(machine.now.get() + 10);
        fault(pmu);
        machine.happen(0, Happens::Instructions, 1);
        if turn == 3 {
            others.by_ref().for_each(|event| pmu.close(event).unwrap());
        }
        machine.now.set(machine.now.get() + 10);
        pmu.tick().unwrap();
        machine.now.set(machine.now.get() + 10);
        pmu.switch(&mut thread, &mut []).unwrap();
        machine.now.set(machine.now.get() + 10);
        let counts = thread.map(|event| pmu.read_thread(&event).unwrap());
        let times = counts.map(|count| (count.enabled, count.running));
        assert_eq!(times[1..], [times[0]; 2], "{turn}");
        assert_eq!(counts[2].value, counts[2].running);
    }
}

/// A profile of an event that only calls count has samples, or is refused.
#[test]
fn a_profile_of_a_software_event_is_refused_or_has_samples() {
    use core::sync::atomic::{AtomicU32, Ordering};
    static BUCKETS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
    let (_, pmu) = up();
    let mut reported = 0;
    let outcome = pmu.profile(FAULTS.every(1), 0..0x1_0000, &BUCKETS, || {
        for _ in 0..5 {
            let what = SoftwareEvent::MinorFaults;
            sampling(|_| reported += 1, || pmu.happened(what, &frame(true)));
        }
    });
    let sampled: u32 = BUCKETS.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum();
    println!("{reported}");
    assert!(outcome.is_err() || sampled == 5, "{sampled} samples");
}

/// "`OtherProcessor`: the call is on another processor than the event, and the event is on a counter."
#[test]
fn a_software_event_that_does_not_count_is_read_on_any_processor() {
    let (machine, pmu) = up();
    let event = pmu.start(&FAULTS).unwrap();
    fault(pmu);
    pmu.disable(event).unwrap();
    assert_eq!(machine.on(1, || pmu.read(event)).map(|count| count.value), Ok(1));
}

/// Returns the periods of the samples in interrupts at any instruction of `act`, for which another thread stands.
fn beside(table: &pmu::core::memory::EventTable, act: impl Fn()) -> Vec<u64> {
    use core::sync::atomic::{AtomicBool, Ordering};
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let interrupts = scope.spawn(|| {
            let mut samples = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let sample =
                    |sample: pmu::core::interrupt::EventOverflow| samples.push(sample.period);
                table.happened(SoftwareEvent::PageFaults, 1, true, sample);
            }
            samples
        });
        let begun = std::time::Instant::now();
        while begun.elapsed().as_millis() < 1_000 {
            act();
        }
        ends.store(true, Ordering::Relaxed);
        interrupts.join().unwrap()
    })
}

/// A child's count is added while interrupts come: it ends no period.
#[test]
fn the_count_of_a_child_ends_no_period() {
    let (_, pmu) = up();
    let event = pmu.start(&FAULTS.every(1 << 40).with_total()).unwrap();
    let (events, _) = pmu.events_of(0).unwrap();
    let table = pmu::core::EventSource::opened(&events);
    let child = pmu::core::EventCount { value: 1 << 41, enabled: 1, running: 1 };
    let samples = pmu
        .with(|session, _| {
            let counters = core::cell::RefCell::new(session.counters_mut());
            beside(table, || counters.borrow_mut().add_count(event.id(), child).unwrap())
        })
        .unwrap();
    assert_eq!(samples.len(), 0, "of {:#x}", samples[0]);
}

/// A period is set while interrupts come: no sample is of no period.
#[test]
fn no_sample_is_of_no_period_while_one_is_set() {
    let (_, pmu) = up();
    let event = pmu.start(&FAULTS.every(3).with_total()).unwrap();
    let (events, _) = pmu.events_of(0).unwrap();
    let table = pmu::core::EventSource::opened(&events);
    let samples = pmu
        .with(|session, _| {
            let counters = core::cell::RefCell::new(session.counters_mut());
            beside(table, || {
                counters.borrow_mut().apply_period(event.id(), 3, 0, |_| ()).unwrap();
            })
        })
        .unwrap();
    let none = samples.iter().filter(|period| **period == 0).count();
    assert_eq!(none, 0, "of {}", samples.len());
}

/// "The events of a group start together, and only if all of them are in `events`."
#[test]
fn a_group_of_which_an_event_is_missing_does_not_start() {
    let (_, pmu) = up();
    for events in [[FAULTS, INSTRUCTIONS], [FAULTS, CLOCK]] {
        let mut thread = pmu.thread_group(&events).unwrap();
        let (there, missing) = thread.split_at_mut(1);
        let outcome = pmu.switch(&mut [], there);
        let ThreadEvent::Opened(event) = there[0] else { panic!("{there:?}") };
        let found = status(pmu, event);
        assert!(!matches!(found, EventStatus::Active(_)), "{found:?}, {outcome:?}, {missing:?}");
        let _ = pmu.switch(there, &mut []);
    }
}

/// A group that does not rotate finds no counter, and loses the event that needs one.
#[test]
fn the_time_for_which_a_group_was_refused_is_not_counted_by_its_clock() {
    let (machine, pmu) = up();
    fill(pmu);
    let mut thread = pmu.thread_group(&[CLOCK, INSTRUCTIONS]).unwrap();
    assert!(pmu.switch(&mut [], &mut thread).is_err());
    let ids = thread.map(|event| match event {
        ThreadEvent::Opened(id) => id,
        _ => panic!("{event:?}"),
    });
    assert_eq!(ids.map(|id| status(pmu, id)), [EventStatus::Error; 2]);
    machine.now.set(1_000);
    pmu.with(|session, _| session.counters_mut().close_member(ids[1], 1_000)).unwrap().unwrap();
    let found = status(pmu, ids[0]);
    machine.now.set(1_010);
    let count = pmu.read_thread(&thread[0]).unwrap();
    let more = if matches!(found, EventStatus::Active(_)) { 10 } else { 0 };
    assert_eq!((count.value, count.running), (more, more), "{found:?}");
}

#[test]
fn a_member_that_finds_no_counter_leaves_the_software_event_as_it_was() {
    for rotates in [false, true] {
        let (machine, pmu) = up();
        let turning = |event: Event| if rotates { event.rotating() } else { event };
        let [clock, member] = pmu.open_group(&[CLOCK, INSTRUCTIONS].map(turning)).unwrap();
        pmu.disable(member).unwrap();
        pmu.enable(clock).unwrap();
        let others = fill(pmu);
        machine.now.set(10);
        let enabled = pmu.enable(member);
        assert_eq!(enabled.is_ok(), rotates);
        machine.now.set(20);
        let count = pmu.read(clock).unwrap();
        let expected = if rotates { 10 } else { 20 };
        assert_eq!((count.value, count.enabled, count.running), (expected, 20, expected));
        others.into_iter().for_each(|event| pmu.close(event).unwrap());
        pmu.tick().unwrap();
        machine.now.set(30);
        let count = pmu.read(clock).unwrap();
        assert_eq!(count.value, expected + 10);
    }
}

/// The child of a thread's clock counts for itself, and its count joins that of its parent in the middle of a period.
#[test]
fn a_childs_count_joins_in_the_middle_of_a_period() {
    let (machine, pmu) = up();
    let mut thread = [pmu.thread_event(&CLOCK.every(10_000).with_total()).unwrap()];
    pmu.switch(&mut [], &mut thread).unwrap();
    assert_eq!(pass(pmu, 15_000), (1, 1));
    let ThreadEvent::Opened(id) = thread[0] else { panic!("{thread:?}") };
    let child = pmu.with(|session, _| session.counters_mut().child_event(id, 1)).unwrap().unwrap();
    let mut child = [ThreadEvent::SwitchedOut(child)];
    pmu.switch(&mut thread, &mut child).unwrap();
    assert_eq!(pass(pmu, 25_000), (2, 2));
    pmu.switch(&mut child, &mut thread).unwrap();
    let count = pmu.read_thread(&child[0]).unwrap();
    assert_eq!((count.value, count.running), (25_000, 25_000));
    let id = id_of(&thread[0]);
    pmu.with(|session, _| session.counters_mut().add_count(id, count)).unwrap().unwrap();
    assert_eq!(pass(pmu, 4_999), (0, 0));
    assert_eq!(pass(pmu, 1), (1, 1));
    assert_eq!(pmu.read_thread(&thread[0]).unwrap().value, 45_000);
    pmu.switch(&mut thread, &mut []).unwrap();
    assert_eq!(machine.clock_timers[0].get(), None);
}

/// A clock that goes back adds nothing until it has passed.
#[test]
fn a_kernels_clock_that_goes_back_is_waited_for() {
    let (machine, pmu) = up();
    machine.now.set(1_000_000);
    let clock = pmu.start(&CLOCK.every(10_000).with_total()).unwrap();
    assert_eq!(pass(pmu, 15_000), (1, 1));
    assert_eq!(pmu.read(clock).unwrap().value, 15_000);
    machine.now.set(1_000_001);
    assert_eq!(pmu.read(clock).unwrap().value, 15_000);
    machine.now.set(1_000_000 - 1);
    pmu.disable(clock).unwrap();
    pmu.enable(clock).unwrap();
    assert_eq!(pmu.read(clock).unwrap().value, 15_000);
    machine.now.set(1_015_000);
    sampling(|_| panic!("too early"), || pmu.clock_interrupt(&frame(true)));
    assert_eq!(pass(pmu, 5_000), (1, 1));
    assert_eq!(pmu.read(clock).unwrap().value, 20_000);
}
