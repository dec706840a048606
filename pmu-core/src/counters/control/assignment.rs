//! Counters for events: planned before any register is accessed, then applied.
//!
//! A context switch and an interrupt handler plan on the kernel's stack. So a plan has two bytes per counter, and the
//! searches change it in place.

pub(crate) mod apply;
pub(crate) mod assign;
pub(crate) mod detach;
pub(crate) mod encodings;
pub(crate) mod matching;
pub(crate) mod plan;
pub(crate) mod planner;
pub(crate) mod search;
