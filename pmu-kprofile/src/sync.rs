//! Atomics and cells, on which tasks and interrupts meet.
//!
//! - `real`: the atomics and cells of `core`, for every build but a model
//! - `modeled`: those of loom, for the models in `loom_models`
//!
//! Names that `real` and `modeled` both define are imported from here: the build decides which file is used.
//! This module uses no other module.

#[cfg(all(test, loom))]
pub(crate) mod modeled;

use core::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use modeled as real;

#[cfg(feature = "critical-section")]
pub(crate) use crate::sync::real::exclusively;
pub(crate) use crate::sync::real::{
    AtomicBool, AtomicU64, AtomicUsize, ConstPtr, UnsafeCell, array_of, const_fn,
    seed_earlier_epoch, spin_loop,
};

/// A flag that one task at a time has taken.
#[derive(Debug)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self(AtomicBool::new(false))
        }
    }

    /// Takes the flag, if it is free: what its last holder wrote is visible.
    pub(crate) fn try_take(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }

    pub(crate) fn release(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// `core`'s atomics and cells, as every build but a model has them.
#[cfg(not(all(test, loom)))]
mod real {
    pub(crate) use core::hint::spin_loop;
    pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

    /// A cell whose accesses have a beginning and an end, so that a model sees them.
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    /// An access that reads, until it is dropped.
    #[derive(Clone, Copy)]
    pub(crate) struct ConstPtr<T>(*const T);

    impl<T> ConstPtr<T> {
        /// # Safety
        /// Nothing writes the cell, and it lives, for as long as the reference does.
        #[inline]
        #[allow(clippy::should_implement_trait, reason = "loom's name")]
        pub(crate) unsafe fn deref<'c>(&self) -> &'c T {
            // SAFETY: the caller's promise.
            unsafe { &*self.0 }
        }

        /// Ends the access.
        #[inline]
        pub(crate) fn end(self) {}
    }

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(crate) fn get(&self) -> ConstPtr<T> {
            ConstPtr(self.0.get())
        }

        #[inline]
        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }

    #[cfg(feature = "critical-section")]
    #[inline]
    pub(crate) fn exclusively<R>(attempt: impl FnOnce() -> R) -> R {
        critical_section::with(|_| attempt())
    }

    /// Hook at which the models seed a bug.
    #[inline]
    pub(crate) fn seed_earlier_epoch(_: bool) {}

    /// A function that is `const` everywhere but in a model.
    macro_rules! const_fn {
        ($($function:tt)*) => { $($function)* };
    }
    /// An array of equal elements, none of which is `Copy`.
    macro_rules! array_of {
        ($element:expr) => {
            [const { $element }; _]
        };
    }
    pub(crate) use {array_of, const_fn};
}
