//! A sampling profiler for Linux: whatever interrupts, a timer's signal or a record of a perf event,
//! goes through the interrupt dispatch of `pmu-kprofile` into buckets.

pub mod builtin;
pub mod cli;
pub mod command;
pub mod counters;
pub mod drawing;
pub mod error;
pub mod histogram;
pub mod kallsyms;
pub mod maps;
pub mod perf;
pub mod process_tree;
pub mod report;
pub mod sampling;
pub mod signals;
pub mod symbols;
pub mod timer;
pub mod workload;
