//! The control path: a task's operations on the counters of the processor where it runs.

pub(crate) mod access;
pub(crate) mod assignment;
pub(crate) mod facility;
pub(crate) mod gate;
pub(crate) mod handle;
pub(crate) mod opened;
pub(crate) mod ownership;
pub(crate) mod parts;
pub(crate) mod reprogram;
pub(crate) mod run;
pub(crate) mod software;
pub(crate) mod switch;
pub(crate) mod window;
