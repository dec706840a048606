//! A perf-like subsystem in small: processors with events of their own, and tasks that wander between them with
//! theirs, alone and in groups. After each operation every count, time and report is the naive model's.

mod check;
pub(crate) mod expected;
pub(crate) mod lent;
pub(crate) mod operations;
mod run;
pub(crate) mod state;
