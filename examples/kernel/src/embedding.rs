//! All that the crates ask of a kernel, and what a kernel of your own copies: `memory`, `msr`, `cpuid`, `frame`,
//! `platform`, `extended_entries`, `critical_section`, and `interrupt`, whose functions the interrupts call; then
//! `sessions` and `opened_events`, by which tasks use the counters. It uses `machine`, and nothing of `demos`.

pub mod cpuid;
pub mod critical_section;
pub mod extended_entries;
pub mod frame;
pub mod interrupt;
pub mod memory;
pub mod msr;
pub mod opened_events;
pub mod platform;
pub mod sessions;
