//! Costs in register accesses: exact, and equal to the tables in docs/costs.md.

mod asked_branches;
mod branch_sampling;
mod branches;
mod events;
mod groups;
mod ibs;
mod perf;
mod precise;
mod reload;
mod sources;
mod topdown;
