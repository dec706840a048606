//! What control path and interrupt path meet on: `core`'s atomics and cells, or loom's, for the models.
//!
//! The small models are exhaustive; the larger ones bound how often a processor stops before it must, and
//! say where. For each there is a bug that it finds:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p pmu-kprofile --release --lib loom
//! ```
//!
//! Everywhere else this file adds nothing: what it names is `core`'s, and all constructors are `const`.
#![allow(unexpected_cfgs)] // `loom` comes by RUSTFLAGS.

#[cfg(not(all(test, loom)))]
mod real {
    pub(crate) use core::hint::spin_loop;
    pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

    pub(crate) use critical_section::with as exclusively;

    /// A cell that is accessed within a call, so that a model sees where the access ends.
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        #[inline]
        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }

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

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, loom))]
mod modelled;
#[cfg(all(test, loom))]
use modelled as real;

pub(crate) use real::{
    AtomicBool, AtomicU64, AtomicUsize, UnsafeCell, array_of, const_fn, exclusively, spin_loop,
};
