//! Assignment of counters to events: planned before any register is accessed, then applied.
//!
//! Plans are made on the kernel's stack, at a context switch for instance. So a plan has two bytes per counter, and the
//! searches change the plan in place.

pub(crate) mod apply;
pub(crate) mod assign;
pub(crate) mod detach;
pub(crate) mod encodings;
pub(crate) mod matching;
pub(crate) mod plan;
pub(crate) mod planner;
pub(crate) mod search;
pub(crate) mod shared_core;
