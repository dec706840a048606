//! Instructions to find an event by its name.
//!
//! Usual names of each vendor, the longest name there is (95 bytes), and all events of the largest core type together.
//! `each_event` has the limit of each look-up.

use std::hint::black_box;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu_events::{CASCADELAKEX, CoreType, PmuEvent, SKYLAKE, ZEN4};

fn names(core_type: &CoreType) -> Vec<String> {
    core_type.events().map(|event| event.name().to_string()).collect()
}

fn longest() -> String {
    names(&CASCADELAKEX).into_iter().max_by_key(String::len).unwrap()
}

#[inline(never)]
fn find(core_type: &CoreType, name: &str) -> Option<PmuEvent> {
    core_type.event(name).ok()
}

#[library_benchmark]
#[bench::usual(&SKYLAKE, "mem_load_retired.l3_miss".into())]
#[bench::fixed(&SKYLAKE, "INST_RETIRED.ANY".into())]
#[bench::amd(&ZEN4, "ls_dmnd_fills_from_sys.dram_io_near".into())]
#[bench::longest(&CASCADELAKEX, longest())]
fn hit(core_type: &CoreType, name: String) -> (Option<PmuEvent>, String) {
    (find(black_box(core_type), black_box(&name)), name)
}

#[library_benchmark]
#[bench::unknown(&SKYLAKE, "mem_load_retired.l5_miss".into())]
fn miss(core_type: &CoreType, name: String) -> (Option<PmuEvent>, String) {
    (find(black_box(core_type), black_box(&name)), name)
}

#[library_benchmark]
#[bench::largest(names(&CASCADELAKEX))]
fn every(names: Vec<String>) -> Vec<String> {
    for name in &names {
        black_box(find(black_box(&CASCADELAKEX), black_box(name)));
    }
    names
}

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

library_benchmark_group!(name = hits, config = at_most(400), benchmarks = [hit]);
library_benchmark_group!(name = misses, benchmarks = [miss]);
library_benchmark_group!(name = all, config = at_most(2344 * 400), benchmarks = [every]);

main!(library_benchmark_groups = [hits, misses, all]);
