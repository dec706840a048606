//! Instructions of a whole performance interrupt where every facility is linked, and none is in use: as
//! `kernel.rs` has it of a kernel with none.

use std::hint::black_box;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu::{BranchRecords, CounterReloads, Pmu, PreciseRecords, SoftwareEvents, TopDownParts, X86};
use pmu_benches::one_processor::{OneProcessor, profile};
use pmu_core::Claim;
use pmu_core::frame::PlainFrame;

type Everything =
    X86<((PreciseRecords<8192>, BranchRecords), ((TopDownParts, CounterReloads), SoftwareEvents))>;

static PMU: Pmu<OneProcessor<Everything>, 4> = Pmu::new();

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 342)])))]
#[bench::version_4(profile(&PMU))]
fn idle(frame: PlainFrame) -> Claim {
    PMU.interrupt(black_box(&frame), |_| ()).claim
}

library_benchmark_group!(name = facilities, benchmarks = [idle]);

main!(library_benchmark_groups = facilities);
