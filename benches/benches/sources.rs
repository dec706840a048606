//! Instructions to find a source by its value, and by either of its names.
//!
//! The limits are the crates' aims. `every` looks up all of a table, and fails where they take more than
//! the limit on average; the other benchmarks are single look-ups, the longest name's among them.
//! `linear` is the baseline: the table from its beginning.

use std::hint::black_box;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu_amd::Amd64;
use pmu_core::EventSource;
use pmu_core::profile::KProfileSource;
use pmu_intel::Emon;

/// Returns both names of each source.
fn names<I: EventSource>(interface: &I) -> Vec<&'static str> {
    let rows = interface.sources().iter();
    rows.flat_map(|row| [row.name(), row.windows_name()]).collect()
}

fn longest_name() -> &'static str {
    names(&Amd64::declared()).into_iter().max_by_key(|name| name.len()).unwrap()
}

fn value(value: u32) -> KProfileSource {
    KProfileSource::new(value).unwrap()
}

#[library_benchmark]
#[bench::general(Amd64::declared(), value(0x14))]
#[bench::specific(Amd64::declared(), value(0xC0))]
#[bench::miss(Amd64::declared(), value(0x1000))]
fn amd64_by_value(interface: Amd64, source: KProfileSource) -> Option<usize> {
    Amd64::row(black_box(&interface), black_box(source))
}

#[library_benchmark]
#[bench::general(Emon::declared(), value(0x13))]
#[bench::specific(Emon::declared(), value(0x1F))]
#[bench::miss(Emon::declared(), value(0x1000))]
fn emon_by_value(interface: Emon, source: KProfileSource) -> Option<usize> {
    Emon::row(black_box(&interface), black_box(source))
}

#[library_benchmark]
#[bench::longest(Amd64::declared(), longest_name())]
#[bench::windows_spelling(Amd64::declared(), "Timer")]
#[bench::miss(Amd64::declared(), "ProfileNoSuchSourceAtAll")]
#[bench::empty(Amd64::declared(), "")]
fn amd64_by_name(interface: Amd64, name: &str) -> Option<usize> {
    Amd64::row_named(black_box(&interface), black_box(name))
}

#[library_benchmark]
#[bench::longest(Emon::declared(), "ProfileBranchInstructionRetired")]
#[bench::windows(Emon::declared(), "BranchInstructionRetired")]
#[bench::miss(Emon::declared(), "ProfileNoSuchSourceAtAll")]
fn emon_by_name(interface: Emon, name: &str) -> Option<usize> {
    Emon::row_named(black_box(&interface), black_box(name))
}

#[library_benchmark]
#[bench::names(Amd64::declared(), names(&Amd64::declared()))]
fn every_amd64_name(interface: Amd64, names: Vec<&'static str>) -> Vec<&'static str> {
    for name in &names {
        black_box(Amd64::row_named(black_box(&interface), black_box(name)));
    }
    names
}

#[library_benchmark]
#[bench::names(Emon::declared(), names(&Emon::declared()))]
fn every_emon_name(interface: Emon, names: Vec<&'static str>) -> Vec<&'static str> {
    for name in &names {
        black_box(Emon::row_named(black_box(&interface), black_box(name)));
    }
    names
}

#[library_benchmark]
#[bench::amd64_longest(Amd64::declared(), longest_name())]
#[bench::amd64_miss(Amd64::declared(), "ProfileNoSuchSourceAtAll")]
fn linear(interface: Amd64, name: &str) -> Option<usize> {
    black_box(&interface).sources().iter().position(|row| row.is_named(black_box(name)))
}

#[library_benchmark]
#[bench::frame(Amd64::declared(), value(0x14))]
fn nothing(interface: Amd64, source: KProfileSource) -> Option<usize> {
    let found: fn(&Amd64, KProfileSource) -> Option<usize> = black_box(|_, _| None);
    found(black_box(&interface), black_box(source))
}

/// Instructions of `nothing`.
const FRAME: u64 = 18;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions + FRAME)]);
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

library_benchmark_group!(
    name = by_value,
    config = at_most(15),
    benchmarks = [amd64_by_value, emon_by_value]
);
library_benchmark_group!(
    name = by_name,
    config = at_most(250),
    benchmarks = [amd64_by_name, emon_by_name]
);
library_benchmark_group!(
    name = all_amd64_names,
    config = at_most(2 * 176 * 250),
    benchmarks = [every_amd64_name]
);
library_benchmark_group!(
    name = all_emon_names,
    config = at_most(2 * 13 * 250),
    benchmarks = [every_emon_name]
);
library_benchmark_group!(name = baseline, benchmarks = [nothing, linear]);

main!(library_benchmark_groups = [by_value, by_name, all_amd64_names, all_emon_names, baseline]);
