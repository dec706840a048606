//! Uses of the counters that this kernel shows: profiles, traces, events, threads, a watchdog.

pub mod branches;
pub mod command_line;
pub mod costs;
pub mod events;
pub mod exact;
pub mod failure;
pub mod loops;
pub mod named;
pub mod ops;
pub mod others;
pub mod precise;
pub mod profile;
pub mod programs;
pub mod rate;
pub mod sources;
pub mod threads;
pub mod trace;
pub mod user;
pub mod watchdog;
pub mod workload;
