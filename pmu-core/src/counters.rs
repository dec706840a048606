//! The lower layer: any event on any counter of a processor.
//!
//! Its floors, each of which uses only those after it: [`control`], the control path; [`interrupt`], the interrupt
//! path; [`hooks`], what both call; [`shared`], the memory that both share; [`events`]; [`registers`]; [`error`] and
//! [`names`].

pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod hooks;
pub(crate) mod interrupt;
pub(crate) mod names;
pub(crate) mod registers;
pub(crate) mod shared;
