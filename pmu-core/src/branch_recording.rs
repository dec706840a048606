//! The last branches at a moment that the kernel chooses, without an event, and call stacks of threads.
//!
//! A [`BranchRecorder`] owns the processor's branch records beside the events [with
//! branches](crate::Event::with_branches). Within the crate, `events` settles the records on what the running events
//! ask for, and collects them in the counters' interrupt; `threads` has the call stacks of threads' events.
//! The other modules are the recorder's.

pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod recorder;
pub(crate) mod switch;
pub(crate) mod threads;

pub use error::BranchError;
pub use recorder::BranchRecorder;
pub use switch::{BranchArea, SaveBranches, XsaveFault};
