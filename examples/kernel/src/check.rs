//! Claims of a processor's interrupts, its freezing and its reset, which no program under an operating system can try:
//! the word `check` on the command line. Each is bounded in time. It uses `machine`, `embedding` and the workload.

pub mod bench;
pub mod branches;
pub mod claim;
pub mod counter;
pub mod delivery;
pub mod errata;
pub mod firmware;
pub mod freezing;
pub mod handler;
pub mod list;
pub mod ops;
pub mod page;
pub mod precise;
pub mod processors;
pub mod records;
pub mod report;
pub mod run;
