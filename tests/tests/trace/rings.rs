//! Records in rings: losses for lack of space, the path from the registers up, several processors at a time; and the
//! bookkeeping of cache errata.

use core::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pmu_core::CounterSet;
use pmu_core::frame::{InterruptFrame, ProcessorNumber};
use pmu_core::interval::IntervalLimits;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Session};
use pmu_intel::Emon;
use pmu_kprofile::PointerWidth::Bits64;
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::trace::{
    CacheErrata, ContextSwitch, Extended, GroupMask, PERF_PMC_PROFILE, PERF_PROFILE, Record,
    Sample, TraceError, TraceRing,
};
use pmu_kprofile::{Affinity, ProfileCallback, ProfileObject, Rules};
use pmu_tests::kprofile::tracing::{Lists, SAMPLE, Tracing, frame, pmc, record_of, samples};
use pmu_tests::kprofile::{Frame, Machine, leak, processor, source};
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, RegisterFile, intel_processor};

const TIME: KProfileSource = KProfileSource::TIME;

/// Another thread reads the ring while interrupts write it: records come in order, and each missing one is counted as
/// dropped.
#[test]
fn a_ring_read_while_it_is_written_loses_nothing_but_what_it_counts() {
    const PUSHES: u64 = 200_000;
    let ring: TraceRing<2> = TraceRing::new();
    let sample = |n: u64| Sample { pc: n ^ 0x5555, thread: n as u32, detail: pmc(n as u32) };
    let (read, pushed) = thread::scope(|scope| {
        let push = |n: &u64| ring.push_sample(Bits64, *n, &sample(*n));
        let writer = scope.spawn(move || (0..PUSHES).filter(push).count());
        let (mut read, mut last) = (0, None);
        let mut over = false;
        loop {
            for (width, stamp, found) in samples(&ring) {
                assert_eq!((width, found), (Bits64, sample(stamp)));
                assert!(last < Some(stamp), "in order");
                last = Some(stamp);
                read += 1;
            }
            if over {
                break;
            }
            over = writer.is_finished();
        }
        (read, writer.join().unwrap())
    });
    assert_eq!((read, ring.dropped()), (pushed, PUSHES - pushed as u64));
}

#[test]
fn a_drain_that_is_forgotten_after_a_record_takes_no_room_away() {
    let ring: TraceRing<2> = TraceRing::new();
    let push = |n: u64| ring.push_sample(Bits64, n, &Sample { pc: n, thread: 1, detail: SAMPLE });
    let room = (0..).take_while(|n| push(*n)).count() as u64;
    for n in 0..3 * room {
        let forgotten = Box::leak(Box::new(ring.drain()));
        assert!(forgotten.next().is_some());
        assert!(push(room + n), "{n}");
    }
    assert_eq!(samples(&ring).len() as u64, room);
}

/// A context switch takes 40 bytes, 8 more with the index.
#[test]
fn a_ring_stores_any_record_that_a_slot_has_room_for() {
    let ring: TraceRing<2, 5> = TraceRing::new();
    let plain = Record::new(Bits64, 7, ContextSwitch { new_thread: 3, ..ContextSwitch::default() });
    let extended = Extended { pebs_index: Some(9), ..Extended::default() };
    let longer = Record { extended, ..plain.clone() };
    assert_eq!((ring.push(&plain), ring.push(&longer), ring.dropped()), (true, false, 1));
    let found: Vec<_> = ring.drain().collect();
    assert_eq!((found.len(), found[0].as_slice().len()), (1, 40));
    assert_eq!(found[0].decode(), Ok(plain.clone()));
    assert_eq!([ring.push(&plain), ring.push(&plain), ring.push(&plain)], [true, true, false]);
    assert_eq!(ring.dropped(), 2);
}

#[test]
fn records_without_room_and_those_of_processors_without_a_ring_are_counted_as_dropped() {
    let mut tracing = Tracing::latest();
    tracing.sources(&[0x19]).unwrap();
    tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]).unwrap();
    let dropped = |tracing: &Tracing| (tracing.sampled.dropped(), tracing.pmc.dropped());
    for pc in 0..5 {
        assert_eq!(tracing.lists.timer_interrupt(&frame(0, pc)).hits, 1);
        let full = u64::saturating_sub(pc, 2);
        assert_eq!(dropped(&tracing), (full, full), "a shared ring's losses are either's");
    }
    // Processor 1's ring has room; processor 2 has none, and each callback counts the loss itself.
    tracing.lists.interrupt(&frame(1, 9), source(0x19));
    assert_eq!(dropped(&tracing), (2, 2));
    tracing.lists.interrupt(&frame(2, 9), source(0x19));
    tracing.lists.interrupt(&frame(2, 9), source(0x19));
    tracing.lists.timer_interrupt(&frame(2, 9));
    assert_eq!(dropped(&tracing), (3, 4));
    let kept = tracing.drain(0).into_iter().map(|(.., sample)| sample.pc);
    assert_eq!(kept.collect::<Vec<_>>(), [0, 1, 2], "the oldest stay");
    tracing.lists.timer_interrupt(&frame(0, 5));
    assert_eq!(tracing.drain(0).len(), 1);
    assert_eq!(tracing.rings[0].dropped(), 2);
}

/// From the counters' registers to records, through a real session of the Emon interface.
#[test]
fn four_counters_and_the_timer_are_traced_from_the_registers_up() {
    let emon = Emon::declared();
    let registers = RegisterFile::intel(4, false);
    let platform = FakePlatform::default();
    let memory: CounterMemory<[CounterSlot; 4]> = CounterMemory::new();
    let mut session = Session::take(
        &emon,
        &intel_processor(1, 4),
        CounterSet::GENERAL,
        (&registers, &platform),
        &memory,
    )
    .unwrap();
    let mut hardware = ThisProcessor::new(&mut session, processor(0, 1));
    let Tracing { lists, rings, mut control, .. } = Tracing::latest();
    let sources = [0x19, 0x1A, 0x1F, 0x1D].map(source);
    control.set_pmc_sources(&sources, &hardware).unwrap();
    let no_such = control.set_pmc_sources(&[source(0x20)], &hardware);
    assert_eq!(no_such, Err(TraceError::UnsupportedSource(source(0x20))));
    let both = GroupMask::EMPTY.with(PERF_PROFILE).with(PERF_PMC_PROFILE);
    control.set_group_mask(both, &mut hardware).unwrap();
    assert_eq!(platform.timer.get().map(|interval| interval.get()), Some(10_000));

    // Counters 0 and 2 pass zero; the others are still on their way.
    registers.set(0xC1, 3);
    registers.set(0xC3, 0);
    let frame = frame(1, 0x7_0000);
    let dispatch = |overflow: pmu_core::profile::Overflow| {
        assert_eq!(lists.interrupt(&frame, overflow.source).hits, 1);
    };
    assert_eq!(
        service_sources(&emon, &(&registers, &platform), &memory, dispatch).unwrap().overflows,
        2
    );
    assert_eq!(lists.timer_interrupt(&frame).hits, 1);
    let expected = [pmc(0x19), pmc(0x1F), SAMPLE].map(|detail| record_of(frame, Bits64, detail));
    assert_eq!(samples(&rings[1]), expected);

    control.set_group_mask(GroupMask::EMPTY, &mut hardware).unwrap();
    assert!(platform.timer.get().is_none());
    assert!((0x186..0x18A).all(|select| registers.get(select) == 0), "every counter is stopped");
}

#[test]
fn cache_errata_bookkeeping_counts_time_interrupts_and_keeps_the_interval_short_enough() {
    let errata: &CacheErrata = leak(CacheErrata::new());
    let lists = leak(Lists::new());
    let mut machine = Machine::new(Affinity::first(2));
    let object = leak(ProfileObject::callback(Rules::LATEST, TIME, errata).unwrap());
    lists.start(object, &mut machine).unwrap();
    for number in 0..5 {
        lists.timer_interrupt(&frame(number % 2, 9));
        lists.interrupt(&frame(0, 9), source(0x19));
    }
    assert_eq!(errata.interrupts(), 5);
    let limits = IntervalLimits::TIME;
    for units in [limits.min, limits.default, limits.max].map(u64::from) {
        assert_eq!(errata.limit(units), units, "nothing is needed");
    }
    errata.require(limits.check(20_000).unwrap());
    for (asked, set) in [(1_221, 1_221), (20_000, 20_000), (20_001, 20_000), (1_000_000, 20_000)] {
        assert_eq!(errata.limit(asked), set);
    }
}

/// The counts of interrupts on several processors at a time all appear in the statistics of the callbacks.
#[test]
fn callbacks_of_several_processors_at_a_time_lose_no_call() {
    struct Sum(AtomicU64);
    impl ProfileCallback for Sum {
        fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
            self.0.fetch_add(frame.pc(), Ordering::Relaxed);
        }
    }
    let lists = leak(Lists::new());
    let sum: &Sum = leak(Sum(AtomicU64::new(0)));
    let object = leak(ProfileObject::callback(Rules::LATEST, TIME, sum).unwrap());
    lists.start(object, &mut Machine::new(Affinity::first(3))).unwrap();
    thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || {
                for pc in 0..5_000 {
                    let on = ProcessorNumber::from_index(number);
                    lists.timer_interrupt(&Frame { processor: on, ..Frame::at(pc) });
                }
            });
        }
    });
    assert_eq!(sum.0.load(Ordering::Relaxed), 3 * (0..5_000).sum::<u64>());
    assert_eq!(lists.statistics().hit, 15_000);
}
