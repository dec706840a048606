//! [`Pmu`](crate::Pmu): the parts that every kernel would otherwise compose by hand, as one type in a static.
//!
//! - `required`: the kernel's duties, as one trait; `duties`: the platform and the processor number, made of these
//! - `error`: the error of all operations
//! - `sources`: the machine's sources; `of_processor`: the memory of one processor
//! - `pmu`: the type, and the machine that it found; `reach`: the session of a processor, here and from elsewhere
//! - `facilities`: what events can ask for beside counters; `branches`, `precise`, `top_down`: the branch records, the
//!   precise records and the parts of issue slots of all processors
//! - `processors`, `interrupt`, `lend`, `tick`: what a processor goes through; `events`, `threads`: events of
//!   processors and of threads; `count`, `profile`, `watch`: the other operations
//!
//! This module uses only public items of the crates. So a kernel can do by hand everything that `Pmu` does.

pub(crate) mod branches;
mod count;
pub(crate) mod duties;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod facilities;
pub(crate) mod interrupt;
mod lend;
pub(crate) mod of_processor;
pub(crate) mod pmu;
pub(crate) mod precise;
mod processors;
pub(crate) mod profile;
pub(crate) mod reach;
pub(crate) mod required;
pub(crate) mod sources;
mod threads;
mod tick;
pub(crate) mod top_down;
mod watch;
