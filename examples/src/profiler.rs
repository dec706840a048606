//! A sampling profiler for Linux: whatever interrupts, a timer's signal or a record of a perf event,
//! goes through the interrupt dispatch of `pmu-kprofile` into buckets.

pub mod ahead;
mod arguments;
pub mod attach;
pub mod builtin;
pub mod call_graph;
pub mod call_stacks;
pub mod call_walk;
pub mod cli;
pub mod command;
pub mod counters;
pub mod drawing;
pub mod error;
pub mod export;
pub mod files;
pub mod graph;
pub mod histogram;
pub mod kallsyms;
pub mod kept;
pub mod maps;
pub mod no_samples;
mod owner;
pub mod perf;
pub mod perf_data;
pub mod perf_map;
pub mod process_tree;
pub mod processor;
pub mod replay;
pub mod report;
mod return_address;
pub mod sampling;
pub mod signals;
pub mod symbols;
pub mod timer;
pub mod unwind;
mod vdso;
pub mod workload;
