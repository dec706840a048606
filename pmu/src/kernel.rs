//! [`Pmu`](crate::Pmu): the parts that every kernel would otherwise compose by hand, as one type in a static.
//!
//! - `required`: the kernel's duties, as one trait; `architecture`: what its processors are
//! - `pmu`: the type, the memory of one processor, and the error of all operations
//! - `cross_calls`: the session of a processor, here and from elsewhere
//! - `facilities`: what events can ask for beside counters; `branches`, `precise`, `top_down`: the branch records, the
//!   precise records and the parts of issue slots of all processors; `branch_traces`: their traces of every branch
//! - `processors`, `interrupt`: what a processor goes through
//! - `events`, `thread_events`: events of processors and of threads, and the pages by which threads read theirs;
//!   `software`: the kernel's own events; `profile`: counts and profiles of a function
//!
//! This module uses only public items of the crates. So a kernel can do by hand everything that `Pmu` does.

pub(crate) mod architecture;
pub(crate) mod branch_traces;
pub(crate) mod branches;
pub(crate) mod cross_calls;
pub(crate) mod events;
pub(crate) mod facilities;
pub(crate) mod interrupt;
pub(crate) mod pmu;
pub(crate) mod precise;
mod processors;
pub(crate) mod profile;
pub(crate) mod required;
pub(crate) mod sample;
pub(crate) mod software;
mod thread_events;
pub(crate) mod top_down;
