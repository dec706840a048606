//! The lower layer: any event on any counter of a processor.
//!
//! Each of its modules uses only the modules after it in this list: [`control`], the control path; [`interrupt`], the
//! interrupt path; [`hooks`], the traits that both paths call; [`shared`], the memory that both paths share;
//! [`events`]; [`registers`]; [`error`] and [`names`].

pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod hooks;
pub(crate) mod interrupt;
pub(crate) mod names;
pub(crate) mod registers;
pub(crate) mod shared;
