//! Costs in register accesses: exact, and equal to the tables in COSTS.md.

mod events;
mod groups;
mod perf;
mod sources;
