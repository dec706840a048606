//! Atomics and cells, on which tasks and interrupts meet.
//!
//! - `real`: the atomics and cells of `core`, for every build but a model
//! - `modeled`: those of loom, for the models in `loom_models`
//! - `flag`: a flag that one task at a time can take
//!
//! Names that `real` and `modeled` both define are imported from here: the build decides which file is used.
//! This module uses no other module.

pub(crate) mod flag;
#[cfg(all(test, loom))]
pub(crate) mod modeled;
#[cfg(not(all(test, loom)))]
mod real;

#[cfg(all(test, loom))]
use modeled as real;

#[cfg(feature = "critical-section")]
pub(crate) use real::exclusively;
pub(crate) use real::{
    AtomicBool, AtomicU64, AtomicUsize, ConstPtr, UnsafeCell, array_of, const_fn,
    seed_earlier_epoch, spin_loop,
};
