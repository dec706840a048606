//! `pmu-kprofile`: instructions of an interrupt, of starting and stopping, and of a trace record.
//!
//! The limits are two more than was measured of each group's dearest; a benchmark that passes its limit fails.
//! `nothing` is the cost of the benchmarks' own frame, and is added to each limit; `linear` is the baseline: the same
//! thousand objects, one after the other.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::profile::KProfileSource;
use pmu_kprofile::testing::AnySource;
use pmu_kprofile::trace::{Detail, Sample, TraceRing};
use pmu_kprofile::{BasicProfile, PointerWidth, ProfileCallback, ProfileObject, Profiles, Rules};

type Lists = Profiles<1024, 64>;
/// An object and its counters.
type Object = (&'static ProfileObject<'static>, &'static [AtomicU32]);

/// Address of the first object, and size of the smallest.
const BASE: u64 = 0xFFFF_F800_0000_0000;
const SIZE: u64 = 0x100;

/// The interrupted process.
const PROCESS: u64 = 0x4000;

const SOURCE: KProfileSource = KProfileSource::BRANCH_MISPREDICTIONS;
const OTHER: KProfileSource = KProfileSource::TOTAL_CYCLES;

struct Frame {
    pc: u64,
    processor: u16,
    process: Option<ProcessId>,
}

impl InterruptFrame for Frame {
    #[inline]
    fn pc(&self) -> u64 {
        self.pc
    }
    fn cs(&self) -> u16 {
        0x10
    }
    fn flags(&self) -> u64 {
        0x2
    }
    #[inline]
    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(self.processor)
    }
    #[inline]
    fn process(&self) -> Option<ProcessId> {
        self.process
    }
}

const HARDWARE: AnySource = AnySource { this: 0, active: 8 };

struct Callback;

impl ProfileCallback for Callback {
    fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {}
}

/// Creates an object of a range in units of `SIZE`.
fn object(begin: u64, length: u64, process: Option<ProcessId>, source: KProfileSource) -> Object {
    let counters = (length * SIZE / 16) as usize;
    let buffer = Box::leak((0..counters).map(|_| AtomicU32::new(0)).collect::<Box<[_]>>());
    let request = BasicProfile {
        process,
        base: BASE + begin * SIZE,
        size: length * SIZE,
        bucket_log2: 4,
        buffer,
        source,
        affinity: None,
    };
    let object = ProfileObject::basic(Rules::LATEST, request, &HARDWARE).unwrap();
    (Box::leak(Box::new(object)), buffer)
}

/// Lists with objects, and an interrupt.
struct Case {
    lists: Box<Lists>,
    frame: Frame,
}

impl Case {
    /// Creates a case in which `hits` of the objects count.
    fn new(objects: Vec<Object>, at: u64, hits: u32) -> Self {
        let lists = Box::new(Lists::new());
        objects.iter().for_each(|(object, _)| lists.start(object, &mut { HARDWARE }).unwrap());
        let frame =
            Frame { pc: BASE + at * SIZE + 0x21, processor: 3, process: ProcessId::new(PROCESS) };
        let case = Self { lists, frame };
        handler(&case.lists, &case.frame, SOURCE);
        let counters = objects.iter().flat_map(|(_, counters)| *counters);
        let counted: u32 = counters.map(|counter| counter.load(Ordering::Relaxed)).sum();
        assert_eq!(counted, hits, "the benchmark is not what it says");
        case
    }

    fn one(at: u64, hits: u32) -> Self {
        Self::new(vec![object(0, 1, None, SOURCE)], at, hits)
    }

    fn disjoint() -> Self {
        Self::new((0..1000).map(|n| object(n, 1, None, SOURCE)).collect(), 617, 1)
    }

    /// Each range begins one unit after the one before, and has `k` units: every address hits `k`.
    fn stairs(k: u64) -> Self {
        Self::new((0..1000).map(|n| object(n, k, None, SOURCE)).collect(), 617, k as u32)
    }

    /// Each range is within the one before; the address is in the outer `k`.
    fn nested(k: u64) -> Self {
        let objects = (0..1000).map(|n| object(n, 2000 - 2 * n, None, SOURCE)).collect();
        Self::new(objects, 2000 - k, k as u32)
    }

    /// A range that begins last and is hit, behind `1000 - k` that end before the address, each later than
    /// the one before; the other `k - 1` are hit too.
    fn outlived(k: u64) -> Self {
        let short = |n| object(n, 5_000 + n, None, SOURCE);
        let long = |n| object(n, 20_000, None, SOURCE);
        let objects = (0..1000).map(|n| if n < 1000 - k { short(n) } else { long(n) }).collect();
        Self::new(objects, 10_000, k as u32)
    }

    /// All others have another source, and the same range.
    fn beside_others(k: u64) -> Self {
        let source = |n| if n % (1000 / k) == 1 { SOURCE } else { OTHER };
        Self::new((0..1000).map(|n| object(0, 1, None, source(n))).collect(), 0, k as u32)
    }

    /// One object of each of `count` processes, the interrupted one among them.
    fn processes(count: u64) -> Self {
        let process = |n| ProcessId::new(PROCESS + n);
        Self::new((0..count).map(|n| object(0, 1, process(n), SOURCE)).collect(), 0, 1)
    }

    fn callback() -> Self {
        static CALLBACK: Callback = Callback;
        let object = ProfileObject::callback(Rules::LATEST, SOURCE, &CALLBACK).unwrap();
        Self::new(vec![(Box::leak(Box::new(object)), &[])], 0, 0)
    }
}

#[library_benchmark]
#[bench::one_hit(Case::one(0, 1))]
#[bench::one_missed(Case::one(1, 0))]
fn one(case: Case) -> Case {
    dispatch(case)
}

#[library_benchmark]
#[bench::one_hit(Case::disjoint())]
fn thousand_disjoint(case: Case) -> Case {
    dispatch(case)
}

#[library_benchmark]
#[bench::stairs(Case::stairs(1))]
#[bench::nested(Case::nested(1))]
#[bench::outlived(Case::outlived(1))]
#[bench::beside_others(Case::beside_others(1))]
fn one_of_thousand(case: Case) -> Case {
    dispatch(case)
}

#[library_benchmark]
#[bench::stairs(Case::stairs(10))]
#[bench::nested(Case::nested(10))]
#[bench::outlived(Case::outlived(10))]
#[bench::beside_others(Case::beside_others(10))]
fn ten_of_thousand(case: Case) -> Case {
    dispatch(case)
}

#[library_benchmark]
#[bench::nested(Case::nested(1000))]
fn all_of_thousand(case: Case) -> Case {
    dispatch(case)
}

// Beyond the aims: an interrupt that looks for more than the ranges of all processes.
#[library_benchmark]
#[bench::one_process(Case::processes(1))]
#[bench::thousand_processes(Case::processes(1000))]
#[bench::callback(Case::callback())]
fn others(case: Case) -> Case {
    dispatch(case)
}

#[inline(always)]
fn dispatch(case: Case) -> Case {
    let handler: Handler = black_box(handler);
    handler(&case.lists, &case.frame, SOURCE);
    case
}

type Handler = fn(&Lists, &Frame, KProfileSource);

/// An interrupt's handler.
fn handler(lists: &Lists, frame: &Frame, source: KProfileSource) {
    lists.interrupt(frame, source);
}

#[library_benchmark]
#[bench::frame(Case::one(0, 1))]
fn nothing(case: Case) -> Case {
    let handler: Handler = black_box(empty_handler);
    handler(&case.lists, &case.frame, SOURCE);
    case
}

fn empty_handler(_: &Lists, frame: &Frame, _: KProfileSource) {
    // The embedder's own work is not the crate's.
    black_box(frame.pc() ^ u64::from(frame.processor));
}

// One object after the other, as in a linked list.
#[library_benchmark]
#[bench::thousand_disjoint(Case::disjoint(), Plain::disjoint())]
fn linear(case: Case, plain: Vec<Plain>) -> (Case, Vec<Plain>) {
    let (pc, source) = (black_box(case.frame.pc), black_box(SOURCE));
    for object in black_box(&plain) {
        if object.source == source && object.base <= pc && pc < object.limit {
            let counter = ((pc - object.base) >> object.bucket_log2) as usize;
            object.buffer[counter].fetch_add(1, Ordering::Relaxed);
        }
    }
    (case, plain)
}

/// The fields of an object that a linear walk reads.
struct Plain {
    source: KProfileSource,
    base: u64,
    limit: u64,
    bucket_log2: u32,
    buffer: Vec<AtomicU32>,
}

impl Plain {
    fn disjoint() -> Vec<Self> {
        let plain = |n| Self {
            source: SOURCE,
            base: BASE + n * SIZE,
            limit: BASE + (n + 1) * SIZE,
            bucket_log2: 4,
            buffer: (0..16).map(|_| AtomicU32::new(0)).collect(),
        };
        (0..1000).map(plain).collect()
    }
}

/// Creates a case in which `others` other objects are started.
fn among(others: u64) -> (Case, Object) {
    let objects = (0..others).map(|n| object(2 * n, 1, None, SOURCE)).collect();
    (Case::new(objects, 0, 1), object(others, 1, None, SOURCE))
}

fn started_among(others: u64) -> (Case, Object) {
    let (case, object) = among(others);
    case.lists.start(object.0, &mut { HARDWARE }).unwrap();
    (case, object)
}

#[library_benchmark]
#[bench::among_10(among(9))]
#[bench::among_100(among(99))]
#[bench::among_1000(among(999))]
fn start((case, object): (Case, Object)) -> Case {
    black_box(&*case.lists).start(black_box(object.0), &mut { HARDWARE }).unwrap();
    case
}

#[library_benchmark]
#[bench::among_10(started_among(9))]
#[bench::among_100(started_among(99))]
#[bench::among_1000(started_among(999))]
fn stop((case, object): (Case, Object)) -> Case {
    black_box(&*case.lists).stop(black_box(object.0), &mut { HARDWARE }).unwrap();
    case
}

fn ring() -> Box<TraceRing<64>> {
    Box::new(TraceRing::new())
}

fn sampled() -> Sample {
    let detail = Detail::SampledProfile { count: 1, flags: 0, rank: 0 };
    Sample { pc: BASE, thread: 3, detail }
}

fn interrupt() -> Sample {
    Sample { detail: Detail::PmcInterrupt { source: 0x19, reserved: 0 }, ..sampled() }
}

#[library_benchmark]
#[bench::sampled_profile(ring(), sampled())]
#[bench::pmc_interrupt(ring(), interrupt())]
fn push(ring: Box<TraceRing<64>>, sample: Sample) -> Box<TraceRing<64>> {
    let push: Push = black_box(TraceRing::push_sample);
    black_box(push(&ring, PointerWidth::Bits64, 1, &sample));
    ring
}

type Push = fn(&TraceRing<64>, PointerWidth, u64, &Sample) -> bool;

#[library_benchmark]
#[bench::frame(ring(), sampled())]
fn nothing_pushed(ring: Box<TraceRing<64>>, sample: Sample) -> Box<TraceRing<64>> {
    let push: Push = black_box(|_, _, _, _| true);
    black_box(push(&ring, PointerWidth::Bits64, 1, &sample));
    ring
}

/// Instructions of `nothing`, and of `nothing_pushed`.
const FRAME: u64 = 28;
const PUSH_FRAME: u64 = 20;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

library_benchmark_group!(name = object, config = at_most(49 + FRAME), benchmarks = [one]);
library_benchmark_group!(
    name = disjoint,
    config = at_most(113 + FRAME),
    benchmarks = [thousand_disjoint]
);
library_benchmark_group!(
    name = hit_1,
    config = at_most(124 + FRAME),
    benchmarks = [one_of_thousand]
);
library_benchmark_group!(
    name = hit_10,
    config = at_most(322 + FRAME),
    benchmarks = [ten_of_thousand]
);
library_benchmark_group!(
    name = hit_1000,
    config = at_most(22_102 + FRAME),
    benchmarks = [all_of_thousand]
);
library_benchmark_group!(name = trace, config = at_most(47 + PUSH_FRAME), benchmarks = [push]);
// The frame that the other limits include.
library_benchmark_group!(name = frame, config = at_most(FRAME), benchmarks = [nothing]);
library_benchmark_group!(
    name = push_frame,
    config = at_most(PUSH_FRAME),
    benchmarks = [nothing_pushed]
);
// Interrupts that look for more than the ranges of all processes.
library_benchmark_group!(name = every_way, config = at_most(274 + FRAME), benchmarks = [others]);
// Linear in the number of started objects.
library_benchmark_group!(name = control, config = at_most(360_000), benchmarks = [start, stop]);
library_benchmark_group!(name = baseline, benchmarks = [linear]);

main!(
    library_benchmark_groups = [
        object, disjoint, hit_1, hit_10, hit_1000, trace, every_way, control, frame, push_frame,
        baseline
    ]
);
