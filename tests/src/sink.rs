//! The samples of a test's kernel, for the closure of a test.

use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;

use pmu::{Kernel, PmuSample};

/// A function that takes samples.
type Taker<'t, K> = dyn for<'s, 'e> FnMut(&'s PmuSample<'e, K>) + 't;

/// Passes the samples of a kernel to the closure of the operation under test. [`sampling!`](crate::sampling) makes one
/// for a kernel.
pub struct Sink<K: Kernel>(Cell<Option<NonNull<Taker<'static, K>>>>);

impl<K: Kernel> Sink<K> {
    /// Creates one that drops samples.
    pub const fn new() -> Self {
        Self(Cell::new(None))
    }

    /// Passes the samples to `sampled` during `act`. A sample that is reported while `sampled` runs is dropped, unless
    /// a call within `sampled` takes it.
    pub fn during<R>(
        &self,
        mut sampled: impl FnMut(&PmuSample<'_, K>),
        act: impl FnOnce() -> R,
    ) -> R {
        let taker: &mut Taker<'_, K> = &mut sampled;
        // SAFETY: only the lifetime is another. The pointer is gone before `sampled` is: `Former` takes it back.
        let taker =
            unsafe { core::mem::transmute::<&mut Taker<'_, K>, &mut Taker<'static, K>>(taker) };
        let _former = Former(&self.0, self.0.replace(Some(NonNull::from(taker))));
        act()
    }

    /// Takes a sample, as [`Kernel::sampled`].
    pub fn take(&self, sample: &PmuSample<'_, K>) {
        if let Some(mut taker) = self.0.take() {
            let _taker = Former(&self.0, Some(taker));
            // SAFETY: it lives, as `during` runs, and is not running, as it is not in the cell.
            let taker = unsafe { taker.as_mut() };
            taker(sample);
        }
    }
}

impl<K: Kernel> Default for Sink<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kernel> fmt::Debug for Sink<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

/// Puts the former value into the cell again, also after a panic.
struct Former<'c, T: Copy>(&'c Cell<Option<T>>, Option<T>);

impl<T: Copy> Drop for Former<'_, T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Defines `sampling` and `sampled` for a kernel: `sampling(closure, operation)` passes the samples of the operation to
/// the closure, and `sampled` is for the function of that name in `impl Kernel`.
#[macro_export]
macro_rules! sampling {
    ($kernel:ty) => {
        ::std::thread_local! {
            static SINK: $crate::sink::Sink<$kernel> = const { $crate::sink::Sink::new() };
        }

        /// Passes the samples of an operation to `sampled`.
        pub(crate) fn sampling<R>(
            sampled: impl FnMut(&::pmu::PmuSample<'_, $kernel>),
            operation: impl FnOnce() -> R,
        ) -> R {
            SINK.with(|sink| sink.during(sampled, operation))
        }

        /// Takes a sample of the kernel.
        pub(crate) fn sampled(sample: &::pmu::PmuSample<'_, $kernel>) {
            SINK.with(|sink| sink.take(sample));
        }
    };
}
