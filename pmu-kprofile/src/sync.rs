//! The floor of atomics and cells, on which tasks and interrupts meet.
//!
//! - `real`: `core`'s, which every build but a model has
//! - `modeled`: loom's, for the models in `loom_models`
//! - `flag`: a flag that one task at a time has taken
//!
//! Names that `real` and `modeled` both define are imported from here: the build decides which file is used.
//! This floor uses no other.

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
