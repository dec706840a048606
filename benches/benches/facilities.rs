//! Instructions of a whole performance interrupt where every facility is linked: while none is in use, as `kernel.rs`
//! has it of a kernel with none, and with what one recorded. What a record costs is the difference of two numbers.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu::facilities::{
    BranchRecords, CounterReloads, PreciseRecords, SoftwareEvents, TopDownParts,
};
use pmu::{Pmu, X86};
use pmu_benches::one_processor::{
    COUNTERS, INTEL, Masked, OneProcessor, Sampled, VERSION_4, at, frame, processor, profile,
    snapshot,
};
use pmu_core::branches::BranchFilter;
use pmu_core::frame::PlainFrame;
use pmu_core::interrupt::EventOverflow;
use pmu_core::precise::Precision;
use pmu_core::x86::Snapshot;
use pmu_core::{Claim, CounterSet, Event, GenericEvent};

type Everything = X86<
    ((PreciseRecords<8192>, BranchRecords), ((TopDownParts, CounterReloads), SoftwareEvents)),
    Masked,
>;

/// Counters whose samples are dropped, as in `kernel.rs`.
static IDLE: Pmu<OneProcessor<Everything>, 4> = Pmu::new();

static PMU: Pmu<OneProcessor<Everything, Seen>, 4> = Pmu::new();

/// The samples that were taken, and their periods.
static SEEN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

struct Seen;

impl Sampled for Seen {
    #[inline]
    fn sampled(overflow: &EventOverflow) {
        let [samples, periods] = &SEEN;
        samples.store(samples.load(Relaxed) + 1, Relaxed);
        periods.store(periods.load(Relaxed) + overflow.period, Relaxed);
    }
}

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

/// A processor comes up, and its only event starts.
fn opened(this: &Snapshot, event: Event) {
    PMU.processor_up(this).unwrap();
    let event = PMU.open(&event.every(10_007)).unwrap();
    PMU.enable(event).unwrap();
}

/// The counter that runs overflows.
fn overflow(others: u64) -> PlainFrame {
    let runs = |counter: &u32| at(0x186 + counter).load(Relaxed) >> 22 & 1 != 0;
    let counter = (0..8).find(runs).unwrap();
    at(0x38E).store(1 << counter | others, Relaxed);
    frame()
}

/// An overflow with nothing recorded.
fn plain() -> PlainFrame {
    opened(&snapshot(), Event::generic(GenericEvent::Instructions).on(CounterSet::GENERAL));
    overflow(0)
}

/// A Skylake has written this number of records to its Debug Store's buffer (SDM vol. 3B, 19.6.2 and 19.9).
fn precise(records: u64) -> PlainFrame {
    at(0x345).store(0x3C0, Relaxed);
    at(0x1A0).store(1 << 7, Relaxed);
    let leaf_1 = (1, [0x0005_0654, 0, 1 << 2 | 1 << 15, 1 << 21]);
    let event = Event::generic(GenericEvent::Instructions).on(CounterSet::GENERAL);
    opened(&processor(&[INTEL, leaf_1, VERSION_4]), event.precise(Precision::ConstantSkid));
    let counter = at(0x3F1).load(Relaxed) & 0xFF;
    assert_eq!(counter.count_ones(), 1);
    let area = at(0x600).load(Relaxed) as *mut u64;
    for number in 0..records {
        // SAFETY: the area and the buffer are the driver's statics, which no other code uses meanwhile.
        unsafe {
            let record = *area.add(5) as *mut u64;
            record.add(1).write(0x1000 + number);
            record.add(0x90 / 8).write(counter);
            record.add(0xB0 / 8).write(0x1000 + number);
            *area.add(5) += 0xC8;
        }
    }
    at(0x38E).store(1 << 62, Relaxed);
    frame()
}

/// A Zen 4 has sampled an op (PPR, Op Sampling).
fn op() -> PlainFrame {
    let amd = (0, [0x10, 0x6874_7541, 0x444D_4163, 0x6974_6E65]);
    let leaves = [
        amd,
        (1, [0x00A1_0F11, 0, 0, 0]),
        (0x8000_0000, [0x8000_0028, 0, 0, 0]),
        (0x8000_0001, [0x00A1_0F11, 0, 1 << 10 | 1 << 23, 1 << 29]),
        (0x8000_001B, [0x0000_0BFF, 0, 0, 0]),
        (0x8000_0022, [1, 6, 0, 0]),
    ];
    at(0xC001_103A).store(1 << 8, Relaxed);
    COUNTERS.iter().zip([0xC001_0201, 2]).for_each(|(of, value)| of.store(value, Relaxed));
    opened(
        &processor(&leaves),
        Event::generic(GenericEvent::Cycles).precise(Precision::ConstantSkid),
    );
    assert_ne!(at(0xC001_1033).load(Relaxed) & 1 << 17, 0);
    at(0xC001_1033).fetch_or(1 << 18, Relaxed);
    at(0xC001_1034).store(0x1000, Relaxed);
    frame()
}

/// An overflow; architectural records have this number of branches.
fn branches(depth: u64) -> PlainFrame {
    let leaves = [
        INTEL,
        (7, [0, 0, 0, 1 << 19]),
        VERSION_4,
        (0x1C, [1 << (depth / 8 - 1), 0b111, 0b111, 0]),
    ];
    let event = Event::generic(GenericEvent::Instructions).on(CounterSet::GENERAL);
    opened(&processor(&leaves), event.with_branches(BranchFilter::KERNEL));
    for number in 0..depth as u32 {
        at(0x1500 + number).store(0xFFFF_8000_0000_1000 + u64::from(number), Relaxed);
        at(0x1600 + number).store(0xFFFF_8000_0000_2000 + u64::from(number), Relaxed);
    }
    overflow(1 << 58)
}

#[library_benchmark(config = at_most(360))]
#[bench::version_4(profile(&IDLE))]
fn idle(frame: PlainFrame) -> Claim {
    IDLE.interrupt(black_box(&frame)).claim
}

/// An interrupt with this number of samples: with none, a benchmark would be a fast one.
#[inline(always)]
fn interrupt(frame: &PlainFrame, samples: u64) -> u64 {
    let interrupted = PMU.interrupt(black_box(frame));
    let [seen, periods] = SEEN.each_ref().map(|value| value.load(Relaxed));
    assert!(interrupted.error.is_none() && seen == samples, "{seen} samples");
    periods
}

#[library_benchmark(config = at_most(492))]
#[bench::no_record(plain())]
fn event(frame: PlainFrame) -> u64 {
    interrupt(&frame, 1)
}

#[library_benchmark(config = at_most(6_820))]
#[bench::one(precise(1), 1)]
#[bench::nine(precise(9), 9)]
fn precise_records(frame: PlainFrame, records: u64) -> u64 {
    interrupt(&frame, records)
}

#[library_benchmark(config = at_most(1_783))]
#[bench::one(op())]
fn sampled_ops(frame: PlainFrame) -> u64 {
    interrupt(&frame, 1)
}

#[library_benchmark(config = at_most(2_900))]
#[bench::eight(branches(8))]
#[bench::thirty_two(branches(32))]
fn branch_records(frame: PlainFrame) -> u64 {
    interrupt(&frame, 1)
}

library_benchmark_group!(
    name = facilities,
    benchmarks = [idle, event, precise_records, sampled_ops, branch_records]
);

main!(library_benchmark_groups = facilities);
