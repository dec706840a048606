//! The last branches at a moment that the kernel chooses, without an event, and call stacks of threads.
//!
//! A [`BranchRecorder`] owns the processor's branch records beside the events [with
//! branches](crate::Event::with_branches). Within the crate, `events` settles the records on what the running events
//! ask for, and `interrupt` collects them in the counters' interrupt; `idle` stops a sampling that delays interrupts.
//! The other modules are the recorder's.

pub(crate) mod area;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod idle;
pub(crate) mod interrupt;
pub(crate) mod lend;
pub(crate) mod recorder;
pub(crate) mod switch;
pub(crate) mod switch_area;

pub use area::{BranchArea, SaveBranches, XsaveFault};
pub use error::BranchError;
pub use recorder::BranchRecorder;
