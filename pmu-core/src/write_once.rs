//! A value that is written once, and then read in any context.

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Storage for a value that is written once, such as the profile interface that the boot processor selects. The storage
/// is commonly a static.
///
/// Interrupt handlers, including NMI handlers, read the value without waiting. The value is never dropped.
///
/// ```
/// use pmu_core::WriteOnce;
/// static HERTZ: WriteOnce<u64> = WriteOnce::new();
/// assert_eq!(HERTZ.get(), None);
/// assert_eq!(HERTZ.set(3_000_000_000), Ok(&3_000_000_000));
/// assert_eq!(HERTZ.set(1), Err(1)); // It is set already.
/// ```
pub struct WriteOnce<T> {
    /// [`EMPTY`], [`WRITING`] or [`WRITTEN`].
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const WRITTEN: u8 = 2;

// SAFETY: (1) the value is written only by the caller that changed the state from empty, before the state is written;
// (2) it is read only after that; so no write meets a read, and a shared value may be read, and was sent, anywhere.
unsafe impl<T: Send + Sync> Sync for WriteOnce<T> {}

impl<T> WriteOnce<T> {
    /// Creates storage without a value. The storage is all zeros, so it takes no room in a kernel's image.
    pub const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::zeroed()) }
    }

    /// Returns the value, or `None` if no value has been written yet.
    ///
    /// # Context
    /// Any.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: the state is written, so the value is, and nothing changes it any more.
        (self.state.load(Acquire) == WRITTEN)
            .then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Writes the value, and returns a reference to the stored value.
    ///
    /// # Context
    /// Any. Never waits.
    ///
    /// # Errors
    /// Returns `value` if another call has written a value, or is writing one.
    pub fn set(&self, value: T) -> Result<&T, T> {
        // Relaxed: a caller that comes too late gets its value back, and reads nothing.
        if self.state.compare_exchange(EMPTY, WRITING, Relaxed, Relaxed).is_err() {
            return Err(value);
        }
        // SAFETY: this caller alone changed the state from empty.
        let written: &T = unsafe { (*self.value.get()).write(value) };
        self.state.store(WRITTEN, Release);
        Ok(written)
    }
}

impl<T> Default for WriteOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for WriteOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteOnce").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn one_of_many_writers_succeeds_and_all_read_its_value() {
        let (once, barrier) = (WriteOnce::new(), Barrier::new(4));
        let wrote = thread::scope(|scope| {
            let threads = [1_u64, 2, 3, 4].map(|number| {
                let (once, barrier) = (&once, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    once.set([number; 8]).is_ok().then_some(number)
                })
            });
            threads
                .map(|thread| thread.join().unwrap())
                .into_iter()
                .flatten()
                .collect::<std::vec::Vec<_>>()
        });
        assert_eq!(wrote.len(), 1);
        assert_eq!(once.get(), Some(&[wrote[0]; 8]));
        assert_eq!(once.set([0; 8]), Err([0; 8]));
    }
}
