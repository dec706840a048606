//! Top-down counts beside a `Pmu`: of a function and of threads, on every type of core.

use core::cell::Cell;
use core::error::Error;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::rc::Rc;

use pmu::PmuError;
use pmu::core::error::{CounterError, EventsError, NoFacility};
use pmu::core::registers::EventSelect;
use pmu::core::thread::{SavedEvent, ThreadEvent};
use pmu::core::{Claim, Event, GenericEvent};
use pmu::intel::topdown::{TopDownCounts, TopDownPart, TopDownUnit};
use pmu::processors::Busy;
use pmu_tests::opened::{Mock, running};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::Fault;
use pmu_virt::topdown::TopDownMix;
use pmu_virt::{EventKey, Feed, Privilege};

use crate::world::{Happens, Machine, PROCESSORS, TestPmu};

/// Slots of a P-core; and an E-core's parts of level 1 on fixed counters, and on general ones.
const SLOTS: EventKey = EventKey::fixed(3).unwrap();
const FIXED: [EventKey; 4] = [
    EventKey::fixed(6).unwrap(),
    EventKey::fixed(4).unwrap(),
    EventKey::fixed(5).unwrap(),
    EventKey::general(0xA4, 0x02),
];
const GENERAL: [EventKey; 3] =
    [EventKey::general(0xC2, 0x02), EventKey::general(0x73, 0x00), EventKey::general(0x9C, 0x01)];

/// Shares of 1,020 slots: 400 retire, 80 are of bad speculation, 240 of the front end, 300 of the back end.
pub(crate) const MIX: TopDownMix = TopDownMix { shares: [100, 20, 60, 75, 50, 15, 30, 70] };

fn p_core() -> Configuration {
    Configuration::Intel(IntelConfiguration::new(6, 8, 4))
}

fn e_core() -> Configuration {
    Configuration::Intel(IntelConfiguration::new(6, 8, 4).with(|intel| intel.fixed = 0b111_0111))
}

pub(crate) fn machine(
    processors: [Configuration; PROCESSORS],
    level_2: bool,
) -> (&'static Machine, &'static TestPmu) {
    let others: Vec<_> = [SLOTS].into_iter().chain(FIXED).chain(GENERAL).collect();
    Machine::with_top_down(processors, level_2, &others)
}

/// Each machine: of P-cores with level 1 and with level 2, of E-cores, and hybrid ones, booted by each type of core.
pub(crate) fn machines() -> Vec<([Configuration; PROCESSORS], bool)> {
    let fifth = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    let (large, small) = (p_core(), e_core());
    vec![
        ([fifth; PROCESSORS], false),
        ([large; PROCESSORS], true),
        ([small; PROCESSORS], true),
        ([large, small, large], true),
        ([small, large, small], true),
    ]
}

pub(crate) fn is_e_core(machine: &Machine, processor: usize) -> bool {
    machine.mocks[processor].with_metrics(|_| ()).is_none()
}

/// Lets this many times 255 slots of [`MIX`] pass on a processor, in the kernel.
pub(crate) fn pass(machine: &Machine, processor: usize, times: u64) {
    let mut feed = Feed::new(&machine.events);
    let mut add = |key, count| {
        feed.add(machine.events.find(key).unwrap(), Privilege::Kernel, count).unwrap();
    };
    let [retiring, bad, front, back, ..] = MIX.shares.map(|share| u64::from(share) * times);
    if is_e_core(machine, processor) {
        let counts = [retiring, bad, front, back];
        FIXED.into_iter().zip(counts).for_each(|(key, count)| add(key, count));
        GENERAL.into_iter().zip(counts).for_each(|(key, count)| add(key, count));
    } else {
        add(SLOTS, 255 * times);
    }
    machine.mocks[processor].set_mix(MIX);
    machine.on(processor, || machine.mocks[processor].advance(&mut feed));
}

/// Checks the counts of this many times 255 slots of [`MIX`], to a slot for each reading.
#[track_caller]
pub(crate) fn check(counts: &TopDownCounts, times: u64, level_2: bool, readings: u64) {
    assert_eq!(counts.slots, 255 * times);
    let parts = TopDownPart::LEVEL_1.into_iter().chain(TopDownPart::LEVEL_2);
    for (part, share) in parts.zip(MIX.shares) {
        match counts.of(part) {
            Some(count) => assert!(count.abs_diff(u64::from(share) * times) <= readings, "{part}"),
            None => assert!(part.parent().is_some() && !level_2, "{part}"),
        }
    }
}

pub(crate) fn has_level_2(machine: &Machine, processor: usize, level_2: bool) -> bool {
    level_2 && !is_e_core(machine, processor)
}

/// The error of an event of the slots that finds no counter.
pub(crate) fn no_counter(reason: CounterError) -> PmuError {
    PmuError::Events(EventsError { events: 1 << 0, reason })
}

#[test]
fn a_kernel_asks_where_the_slots_of_a_function_go_on_every_type_of_core() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        for (processor, times) in [(0, 4), (1, 1_000), (2, 1 << 30), (0, 7)] {
            pass(machine, processor, 50); // before
            let counts = machine.on(processor, || {
                pmu.count_slots(
                    |event| event,
                    || {
                        pass(machine, processor, times);
                        pass(machine, (processor + 1) % PROCESSORS, 77); // elsewhere
                    },
                )
            });
            pass(machine, processor, 50); // after
            assert!(running(&machine.mocks[processor]).is_empty());
            check(&counts.unwrap(), times, has_level_2(machine, processor, level_2), 1);
            assert_eq!(counts.unwrap().per_mille(TopDownPart::Retiring), Some(392));
        }
        assert_eq!(machine.interrupted.take(), []);
        // An event on the counter of the slots.
        if machine.mocks[0].with_metrics(|_| ()).is_some() {
            let slots = Event::raw(EventSelect::from_bits(0x0400));
            assert_eq!(pmu.count(&[slots], || pass(machine, 0, 4)).unwrap()[0].value, 1_020);
        }
        machine.down();
        assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
    }
}

/// The vendor's tables of E-cores have the events that these tests feed to general counters.
#[test]
fn the_events_of_an_e_cores_parts_are_those_of_its_table() {
    let names = ["RETIRING", "BAD_SPECULATION", "FE_BOUND", "BE_BOUND"];
    for core in ["lunarlake_skymont", "arrowlake_skymont", "clearwaterforest"] {
        let core_type = pmu_events::CoreType::named(core).unwrap();
        for (name, key) in names.into_iter().zip(GENERAL.into_iter().chain([FIXED[3]])) {
            let event = core_type.event(&format!("TOPDOWN_{name}.ALL_P")).unwrap();
            let select = event.perf_config().0;
            assert_eq!(
                key,
                EventKey::general(select as u16 & 0xFF, (select >> 8) as u8),
                "{core}: {name}"
            );
        }
    }
}

#[test]
fn a_processor_without_top_down_counts_says_so_and_does_not_run_the_function() {
    let intel = |fixed| Configuration::Intel(IntelConfiguration::new(4, 4, fixed));
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    for configuration in [intel(3), amd] {
        let (machine, pmu) = Machine::with_top_down([configuration; PROCESSORS], true, &[]);
        let count = || {
            let never = || unreachable!("there is nothing to count");
            pmu.count_slots(|event| event, never).map(|_| ())
        };
        assert_eq!(count(), Err(PmuError::NotUp));
        assert_eq!(pmu.top_down(0), Err(PmuError::Facility(NoFacility::NotDeclared)));
        machine.up();
        let error = count().unwrap_err();
        match (configuration, error) {
            (Configuration::Intel(_), PmuError::Facility(why)) => {
                assert_eq!(why, NoFacility::NotDeclared);
                let cause = error.source().unwrap();
                assert_eq!(cause.downcast_ref(), Some(&why));
                assert_eq!(error.to_string(), why.to_string());
            }
            (_, PmuError::Facility(NoFacility::NoCounters(_))) => {}
            _ => panic!("{error:?}"),
        }
        assert_eq!(pmu.top_down(0), Err(error));
        machine.down();
    }
}

/// The slots' counter wraps three times while a function runs for hours, also where the first processor lacks it.
#[test]
fn a_function_of_hours_is_counted_over_the_wraps_of_the_slots() {
    const HOURS: u64 = (3 << 48) / 255 + 9;
    let (large, small) = (p_core(), e_core());
    for (processors, processor) in [([large; PROCESSORS], 0), ([small, large, small], 1)] {
        for level_2 in [false, true] {
            let (machine, pmu) = machine(processors, level_2);
            machine.up();
            let counts = machine.on(processor, || {
                pmu.count_slots(Event::kernel_only, || pass(machine, processor, HOURS))
            });
            let counts = counts.unwrap();
            assert_eq!(counts.slots, 255 * HOURS);
            for (part, share) in TopDownPart::LEVEL_1.into_iter().zip(MIX.shares) {
                let off = counts.of(part).unwrap().abs_diff(u64::from(share) * HOURS);
                assert!(off <= HOURS, "{part}: {off}");
            }
            let claims: Vec<_> =
                machine.interrupted.take().into_iter().map(|(_, of)| of.claim).collect();
            assert_eq!(claims, [Claim::Ours; 3]);
            machine.down();
        }
    }
}

/// A count within a count: fixed counters count for one of them.
#[test]
fn a_function_is_counted_once_and_the_counters_are_given_back_where_it_unwinds() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        let count = |work: &dyn Fn()| pmu.count_slots(|event| event, work);
        let counted = count(&|| {
            if is_e_core(machine, 0) == is_e_core(machine, PROCESSORS - 1) {
                let nested = count(&|| unreachable!("the counters are in use"));
                assert_eq!(nested, Err(no_counter(CounterError::NoFreeCounter)));
            }
            pass(machine, 0, 4);
        });
        check(&counted.unwrap(), 4, has_level_2(machine, 0, level_2), 1);
        let unwound = catch_unwind(AssertUnwindSafe(|| count(&|| panic!("the work unwinds"))));
        assert!(unwound.is_err() && running(&machine.mocks[0]).is_empty());
        check(&count(&|| pass(machine, 0, 4)).unwrap(), 4, has_level_2(machine, 0, level_2), 1);
        let in_use = Err(PmuError::Session(Busy::InUse));
        assert_eq!(pmu.with(|_, _| count(&|| ())), Ok(in_use));
        machine.on(PROCESSORS, || {
            let nowhere = PmuError::Session(Busy::NoSlot { processor: PROCESSORS });
            assert_eq!(count(&|| ()), Err(nowhere));
            assert_eq!(pmu.top_down(PROCESSORS), Err(nowhere));
        });
        machine.down();
    }
}

/// The counter of the slots runs an event of the kernel.
#[test]
fn counters_that_are_in_use_are_not_taken() {
    let (machine, pmu) = machine([p_core(); PROCESSORS], true);
    machine.up();
    let slots = Event::raw(EventSelect::from_bits(0x0400));
    let [counted] = pmu
        .count(&[slots], || {
            let refused = pmu.count_slots(|event| event, || unreachable!());
            assert_eq!(refused, Err(no_counter(CounterError::NoFreeCounter)));
            pass(machine, 0, 2);
        })
        .unwrap();
    assert_eq!(counted.value, 510);
    machine.down();
}

/// A thread of a kernel that counts its instructions and its slots, in a group for each type of core.
pub(crate) struct Thread {
    pub(crate) events: Vec<ThreadEvent>,
    /// The types of core, and the places of their groups.
    groups: Vec<(&'static TopDownUnit, core::ops::Range<usize>)>,
}

impl Thread {
    /// Makes a thread that is switched out. `change` changes each of the thread's events of slots.
    pub(crate) fn new(
        machine: &Machine,
        pmu: &'static TestPmu,
        change: impl Fn(Event) -> Event,
    ) -> Self {
        let instructions = Event::generic(GenericEvent::Instructions);
        let event = pmu.with(|_, unit| SavedEvent::new(unit, &instructions)).unwrap().unwrap();
        let mut events = vec![ThreadEvent::SwitchedOut(event.to_be_enabled(true))];
        let mut groups: Vec<(&'static TopDownUnit, _)> = vec![];
        for processor in 0..PROCESSORS {
            let unit = pmu.top_down(processor).unwrap();
            if groups.iter().any(|(other, _)| other.has_metrics() == unit.has_metrics()) {
                continue;
            }
            let usable = machine.on(processor, || {
                pmu.with(|session, _| session.counters_mut().counters().usable).unwrap()
            });
            let saved: Vec<_> = unit.events(usable).each(&change).to_vec();
            let saved = saved.iter().map(|event| SavedEvent::new(unit.counters(), event).unwrap());
            let mut saved: Vec<_> = saved.map(|event| event.to_be_enabled(true)).collect();
            SavedEvent::make_group(&mut saved).unwrap();
            groups.push((unit, events.len()..events.len() + saved.len()));
            events.extend(saved.into_iter().map(ThreadEvent::SwitchedOut));
        }
        Self { events, groups }
    }

    fn saved(&self, place: usize) -> &SavedEvent {
        match &self.events[place] {
            ThreadEvent::SwitchedOut(event) => event,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn instructions(&self) -> u64 {
        self.saved(0).count().value
    }

    /// Returns the counts of the thread, which runs nowhere, on all types of core.
    pub(crate) fn counts(&self) -> TopDownCounts {
        let sum = TopDownCounts::NONE;
        self.groups.iter().fold(sum, |sum, (unit, places)| {
            let counts: Vec<_> = places.clone().map(|place| self.saved(place).count()).collect();
            sum.plus(&unit.counts(&counts))
        })
    }

    /// Reads the counts of the thread, which runs on this processor. Returns also whether its slots are on counters.
    pub(crate) fn read(&self, pmu: &'static TestPmu, processor: usize) -> (TopDownCounts, bool) {
        let read = pmu.with(|session, _| {
            let counters = session.counters_mut();
            let (mut sum, mut is_on) = (TopDownCounts::NONE, false);
            for (unit, places) in &self.groups {
                let ThreadEvent::Opened(first) = self.events[places.start] else { panic!() };
                let is_here = unit.has_metrics() == pmu.top_down(processor)?.has_metrics();
                is_on |= is_here && counters.counter_of(first).is_some();
                let mut counts = [Default::default(); 9];
                let read = counters.read_group(first, 0, &mut counts)?;
                sum = sum.plus(&unit.counts(&counts[..read]));
            }
            Ok::<_, PmuError>((sum, is_on))
        });
        read.unwrap().unwrap()
    }
}

pub(crate) fn switch(
    pmu: &'static TestPmu,
    from: Option<&mut Thread>,
    to: Option<&mut Thread>,
) -> Result<(), PmuError> {
    pmu.with(|session, unit| {
        let counters = session.counters_mut();
        if let Some(from) = from {
            counters.switch_out(&mut from.events, 0, |_| ())?;
        }
        if let Some(to) = to {
            counters.switch_in(unit, &mut to.events, 0)?;
        }
        Ok(())
    })?
}

#[test]
fn the_slots_of_threads_follow_them_beside_their_events() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        let mut threads = [(); 2].map(|()| Thread::new(machine, pmu, |event| event));
        // Each thread on each processor, in turn.
        let mut expected = [[0, 0]; 2];
        let mut of_p_cores = [0; 2];
        for round in 0..12 {
            let (processor, [one, other]) = (round % PROCESSORS, &mut threads);
            let (thread, times) = (round / PROCESSORS % 2, 3 + round as u64);
            let thread_of = if thread == 0 { one } else { other };
            machine.on(processor, || {
                switch(pmu, None, Some(thread_of)).unwrap();
                pass(machine, processor, times);
                machine.happen(processor, Happens::Instructions, 10 * times);
                let (running, _) = thread_of.read(pmu, processor);
                assert_eq!(running.slots, 255 * (expected[thread][0] + times));
                switch(pmu, Some(thread_of), None).unwrap();
            });
            pass(machine, processor, 99); // a thread that is not counted
            expected[thread][0] += times;
            expected[thread][1] += 10 * times;
            let is_large = !is_e_core(machine, processor);
            of_p_cores[thread] += if is_large { times } else { 0 };
        }
        for (number, thread) in threads.iter().enumerate() {
            let [times, instructions] = expected[number];
            let counts = thread.counts();
            assert_eq!(counts.slots, 255 * times);
            for (part, share) in TopDownPart::LEVEL_1.into_iter().zip(MIX.shares) {
                let off = counts.of(part).unwrap().abs_diff(u64::from(share) * times);
                assert!(off <= 24, "{part}");
            }
            let with_level_2 = if level_2 { of_p_cores[number] } else { 0 };
            assert_eq!(counts.level_2_slots, 255 * with_level_2);
            assert_eq!(thread.instructions(), instructions);
        }
        assert_eq!(machine.interrupted.take(), []);
        machine.down();
        assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
    }
}

/// A function of a thread whose slots are counted, too, and take turns: where both need one counter, the function has
/// it.
#[test]
fn a_function_is_counted_beside_its_thread() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        let mut thread = Thread::new(machine, pmu, Event::rotating);
        switch(pmu, None, Some(&mut thread)).unwrap();
        pass(machine, 0, 10);
        let mut of_thread = 20;
        for _ in 0..2 {
            let mut is_on = true;
            let counts = pmu.count_slots(
                |event| event,
                || {
                    is_on = thread.read(pmu, 0).1;
                    pass(machine, 0, 20);
                },
            );
            check(&counts.unwrap(), 20, has_level_2(machine, 0, level_2), 2);
            of_thread += if is_on { 20 } else { 0 };
            assert!(!is_on, "they have the same counters");
            // The timer's tick gives the thread its counter again.
            pmu.with(|session, _| session.counters_mut().rotate(0)).unwrap().unwrap();
        }
        pass(machine, 0, 10);
        switch(pmu, Some(&mut thread), None).unwrap();
        check(&thread.counts(), of_thread, has_level_2(machine, 0, level_2), 4);
        machine.down();
    }
}

/// Nothing is called but what a suspend calls for every event.
#[test]
fn a_suspended_processor_counts_its_slots_on() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        let counts = pmu.count_slots(
            |event| event,
            || {
                pass(machine, 0, 10);
                pmu.processor_suspended().unwrap();
                machine.mocks[0].lose_registers();
                pmu.processor_resumed().unwrap();
                pass(machine, 0, 20);
            },
        );
        check(&counts.unwrap(), 30, has_level_2(machine, 0, level_2), 2);
        machine.down();
    }
}

/// One access fails, and from each access on all do: the error is told, and everything works after a repair.
#[test]
fn a_count_with_a_fault_at_each_access_is_told_and_leaves_nothing() {
    for (processors, level_2) in machines() {
        for fault in [Fault::At, Fault::From] {
            for access in 1.. {
                let (machine, pmu) = machine(processors, level_2);
                machine.up();
                let count = |work: &dyn Fn()| pmu.count_slots(|event| event, work);
                let mock = &machine.mocks[0];
                let before = mock.accesses().total();
                mock.inject(fault(access));
                let counted = count(&|| pass(machine, 0, 4));
                let made = mock.accesses().total() - before;
                mock.inject(Fault::None);
                let what = format!("{processors:?}, {:?}: {counted:?}", fault(access));
                if let Ok(counts) = &counted {
                    check(counts, 4, has_level_2(machine, 0, level_2), 1);
                } else {
                    // The session uses counters that failed after a resume only.
                    pmu.processor_resumed().expect(&what);
                }
                assert!(running(mock).is_empty(), "{what}");
                let left = pmu.with(|session, _| session.counters_mut().events().count());
                assert_eq!(left, Ok(0), "{what}");
                let again = count(&|| pass(machine, 0, 4)).expect(&what);
                check(&again, 4, has_level_2(machine, 0, level_2), 1);
                machine.down();
                if u64::from(made) < u64::from(access) {
                    assert!(counted.is_ok() && access > 5, "{what}");
                    break;
                }
            }
        }
    }
}

/// Another source's NMI before each access of a count, beside a running profile.
#[test]
fn a_count_with_an_interrupt_before_each_access_counts_every_slot() {
    for (processors, level_2) in machines() {
        for access in 1.. {
            let (machine, pmu) = machine(processors, level_2);
            machine.up();
            let cycles = Event::generic(GenericEvent::Cycles).every(10_007);
            let buckets: [core::sync::atomic::AtomicU32; 16] = Default::default();
            let (mut counted, made) = (None, Rc::new(Cell::new(0)));
            let profile = pmu.profile(cycles, 0..64, &buckets, || {
                let number = Rc::clone(&made);
                machine.mocks[0].on_access(Box::leak(Box::new(move |mock: &Mock<'static>| {
                    number.set(number.get() + 1);
                    if number.get() == access {
                        mock.interrupt_from_elsewhere();
                    }
                })));
                let work = || {
                    pass(machine, 0, 4);
                    machine.happen(0, Happens::Cycles, 10_007);
                };
                counted = Some(pmu.count_slots(|event| event, work));
                machine.mocks[0].on_access(&|_| ());
            });
            assert_eq!(profile.unwrap().hits().map(|(_, count)| count).sum::<u32>(), 1);
            check(&counted.unwrap().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
            assert!(machine.interrupted.take().iter().all(|(_, of)| of.error.is_none()));
            machine.down();
            assert!(machine.mocks[0].breach().is_none());
            if made.get() < access {
                assert!(access > 10);
                break;
            }
        }
    }
}

/// Numbers of RDMSRs, WRMSRs and RDPMCs of a function's count are those of the table in tests/data/accesses.md.
#[test]
fn the_rows_of_a_functions_slots_are_what_is_measured() {
    let mut lines = vec![];
    for (name, core) in [("P-core", p_core()), ("E-core", e_core())] {
        let (machine, pmu) = machine([core; PROCESSORS], true);
        machine.up();
        let cost = || {
            let before = machine.mocks[0].accesses();
            pmu.count_slots(|event| event, || pass(machine, 0, 4)).unwrap();
            let after = machine.mocks[0].accesses();
            let counts = [
                (after.reads - before.reads, "R"),
                (after.writes - before.writes, "W"),
                (after.pmc_reads - before.pmc_reads, "P"),
            ];
            let parts = counts.into_iter().filter(|(count, _)| *count != 0);
            parts.map(|(count, kind)| format!("{count}{kind}")).collect::<Vec<_>>().join(" ")
        };
        let [first, further] = [cost(), cost()];
        lines.push(format!("| {name} | {first} | {further} |"));
        machine.down();
    }
    let costs = include_str!("../../data/accesses.md");
    let missing: Vec<_> = lines.iter().filter(|line| !costs.contains(*line)).collect();
    assert!(missing.is_empty(), "tests/data/accesses.md lacks:\n{missing:#?}");
}
