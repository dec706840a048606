//! A value for each processor, used on that processor only.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use pmu_core::CounterSession;
use pmu_core::profile::Session;

/// Provides the number of the processor that executes the call. The kernel implements this trait. If the number is
/// wrong, [`PerProcessor`] may let two processors access the same value.
///
/// # Safety
/// - [`this_processor`](Self::this_processor) returns the same number throughout a call of [`PerProcessor::with`]. A
///   number always means one and the same processor.
/// - Within `with` the task does not move to another processor, and no other task that calls `with` runs on the same
///   processor. One way to ensure this is to turn preemption off. Another way is to bind the task to the processor, and
///   to let no other task of that processor call `with` during the call.
/// - `this_processor` may be called in any context, also in an NMI.
///
/// ```
/// use pmu::processors::Processors;
/// struct Kernel;
/// // SAFETY: this kernel has one processor, and no preemption.
/// unsafe impl Processors for Kernel {
///     fn this_processor() -> usize {
///         0
///     }
/// }
/// ```
///
/// Wrong: the number was read before the task moved to another processor.
///
/// ```
/// # use pmu::processors::Processors;
/// # fn apic_id() -> usize { 0 }
/// struct Careless;
/// // SAFETY: not given. With preemption on, the task may move between this call and the access.
/// unsafe impl Processors for Careless {
///     fn this_processor() -> usize {
///         apic_id()
///     }
/// }
/// ```
pub unsafe trait Processors {
    /// Returns the number of the processor that executes the call, from 0.
    fn this_processor() -> usize;
}

/// A value that several tasks on the same processor may use, one after another, although the value is not [`Send`].
///
/// # Safety
/// - Memory safety must hold when two tasks use the value, one after the other. So the value must share no data with
///   other values: an `Rc`, for instance, shares data with its clones. The value must not refer to thread-local memory.
///
/// ```
/// use pmu::processors::OnProcessor;
/// /// Samples of this processor that wait for a reader.
/// struct Pending(Vec<u64>);
/// // SAFETY: the vector owns its memory, which any task may use.
/// unsafe impl OnProcessor for Pending {}
/// ```
///
/// Wrong: the value shares data with other values, without a lock.
///
/// ```
/// # use pmu::processors::OnProcessor;
/// struct Shared(std::rc::Rc<Vec<u64>>);
/// // SAFETY: not given. The task that made it may have kept a clone, and count references elsewhere.
/// unsafe impl OnProcessor for Shared {}
/// ```
pub unsafe trait OnProcessor {}

// SAFETY: (1) a session is not `Send` so that it stays on its processor, whose registers it means; used
// elsewhere it would program the wrong ones, which breaks no memory; (2) what it holds is sent (`I`, `H`), or
// shared (the counter memory, which is atomics).
unsafe impl<I: Send, H: Send> OnProcessor for Session<'_, I, H> {}

// SAFETY: as for a session: (1) they are not `Send` so that they stay on their processor; (2) what they hold is
// sent (`S`, `H`), or shared (the counter memory, which is atomics).
unsafe impl<S: Send, H: Send> OnProcessor for CounterSession<'_, S, H> {}

/// Storage for a static, with one slot for each of `N` processors. A slot holds a value that must stay on its
/// processor, such as a [`Session`].
///
/// ```
/// use pmu::processors::{OnProcessor, PerProcessor, Processors};
/// # struct Kernel;
/// # // SAFETY: one thread.
/// # unsafe impl Processors for Kernel { fn this_processor() -> usize { 0 } }
/// struct Count(u32);
/// // SAFETY: a number.
/// unsafe impl OnProcessor for Count {}
/// static COUNTS: PerProcessor<Count, Kernel, 2> = PerProcessor::new();
/// COUNTS.with(|count| *count = Some(Count(7)))?;
/// assert_eq!(COUNTS.with(|count| count.take().map(|count| count.0))?, Some(7));
/// # Ok::<(), pmu::processors::Busy>(())
/// ```
///
/// A slot cannot hold an `Rc`: a clone of the `Rc` might be in use in another task.
///
/// ```compile_fail,E0277
/// # struct Kernel;
/// # // SAFETY: one thread.
/// # unsafe impl pmu::processors::Processors for Kernel { fn this_processor() -> usize { 0 } }
/// static COUNTS: pmu::processors::PerProcessor<std::rc::Rc<u32>, Kernel, 2> = pmu::processors::PerProcessor::new();
/// ```
pub struct PerProcessor<T, K, const N: usize> {
    places: [Place<T>; N],
    kernel: PhantomData<fn() -> K>,
}

struct Place<T> {
    busy: AtomicBool,
    /// The value is written: `None` at first.
    is_written: UnsafeCell<bool>,
    /// Zeros until it is written: they take no room in a kernel's image, as those of `None` may.
    value: UnsafeCell<MaybeUninit<Option<T>>>,
}

impl<T> Place<T> {
    const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            is_written: UnsafeCell::new(false),
            value: UnsafeCell::new(MaybeUninit::zeroed()),
        }
    }

    /// Returns the value, which nothing else reaches until the result is dropped.
    ///
    /// # Safety
    /// - Only the processor whose place it is calls this.
    unsafe fn enter(&self) -> Result<Entered<'_, T>, Busy> {
        // Pairs with the release in `Entered::drop`: the value is as the task or handler before left it.
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(Busy::InUse);
        }
        // SAFETY: (1) only this processor reaches the place, by the caller's promise; (2) `busy` was false and is true
        // until the result is dropped; so these are the only references.
        let (is_written, value) = unsafe { (&mut *self.is_written.get(), &mut *self.value.get()) };
        if !*is_written {
            value.write(None);
            *is_written = true;
        }
        // SAFETY: the value is written.
        let value = unsafe { value.assume_init_mut() };
        Ok(Entered { busy: &self.busy, value })
    }
}

/// The value of a place, in use.
struct Entered<'p, T> {
    busy: &'p AtomicBool,
    value: &'p mut Option<T>,
}

impl<T> Drop for Entered<'_, T> {
    /// Also where the use of the value unwinds.
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Release);
    }
}

// SAFETY: (1) a place is accessed only by `with`, on the processor whose place it is, by the promise of
// `Processors`; (2) `busy` keeps a second access on that processor out, from an interrupt for instance; (3) so
// tasks use a value in turn, which it can take by the promise of `OnProcessor`.
unsafe impl<T: OnProcessor, K: Processors, const N: usize> Sync for PerProcessor<T, K, N> {}

/// Reason why `with` did not call `act`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Busy {
    /// An earlier call of `with` on this processor has not returned yet. The new call came from an interrupt handler,
    /// or from within the `act` of the earlier call.
    #[error("this processor's value is in use")]
    InUse,
    /// The storage has no slot for a processor with this number.
    #[error("there is no slot for processor {processor}")]
    NoSlot {
        /// Number of the processor that executed the call.
        processor: usize,
    },
}

impl<T, K: Processors, const N: usize> PerProcessor<T, K, N> {
    /// Creates storage with one empty slot for each of `N` processors.
    pub const fn new() -> Self {
        Self { places: [const { Place::new() }; N], kernel: PhantomData }
    }

    /// Calls `act` with the slot of this processor. The slot is `None` until `act` stores a value.
    ///
    /// # Context
    /// Any. An interrupt handler may interrupt a call of `with`. If the handler calls `with` on the same slot, this
    /// second call fails with [`Busy::InUse`].
    ///
    /// # Errors
    /// [`Busy`]: `act` was not called.
    ///
    /// ```
    /// # use pmu::processors::{Busy, OnProcessor, PerProcessor, Processors};
    /// # struct Kernel;
    /// # // SAFETY: one thread.
    /// # unsafe impl Processors for Kernel { fn this_processor() -> usize { 0 } }
    /// # struct Session(u32);
    /// # // SAFETY: a number.
    /// # unsafe impl OnProcessor for Session {}
    /// static SESSIONS: PerProcessor<Session, Kernel, 2> = PerProcessor::new();
    /// /// An interrupt that uses the session; it may have interrupted a task that does.
    /// fn interrupt() -> Result<u32, Busy> {
    ///     SESSIONS.with(|session| session.as_ref().map_or(0, |session| session.0))
    /// }
    /// let within = SESSIONS.with(|session| {
    ///     *session = Some(Session(7));
    ///     interrupt()
    /// });
    /// assert_eq!(within, Ok(Err(Busy::InUse)));
    /// assert_eq!(interrupt(), Ok(7));
    /// ```
    pub fn with<R>(&'static self, act: impl FnOnce(&mut Option<T>) -> R) -> Result<R, Busy> {
        Ok(act(self.enter()?.value))
    }

    #[inline(never)] // Linked once: each use has another `act`. 1088 bytes of the Hermit-like glue.
    fn enter(&self) -> Result<Entered<'_, T>, Busy> {
        let processor = K::this_processor();
        let place = self.places.get(processor).ok_or(Busy::NoSlot { processor })?;
        // SAFETY: it is this processor's, by the promise of `Processors`.
        unsafe { place.enter() }
    }
}

impl<T, K: Processors, const N: usize> Default for PerProcessor<T, K, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, K, const N: usize> fmt::Debug for PerProcessor<T, K, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcessor").field("places", &N).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;

    static NEXT: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread is a processor.
    struct Threads;

    // SAFETY: each thread has its own number, for as long as it lives.
    unsafe impl Processors for Threads {
        fn this_processor() -> usize {
            NUMBER.with(|number| *number)
        }
    }

    /// For these tests.
    #[derive(Debug, PartialEq)]
    struct Name(std::string::String);

    // SAFETY: a string is `Send`.
    unsafe impl OnProcessor for Name {}

    #[test]
    fn each_processor_has_its_own_value_and_is_not_let_in_twice() {
        static VALUES: PerProcessor<Name, Threads, 3> = PerProcessor::new();
        let threads: [_; 3] = core::array::from_fn(|_| {
            std::thread::spawn(|| {
                let own = std::format!("{:?}", std::thread::current().id());
                for _ in 0..1000 {
                    VALUES.with(|value| *value = Some(Name(own.clone()))).unwrap();
                    let nested = VALUES.with(|_| VALUES.with(|_| ())).unwrap();
                    assert_eq!(nested, Err(Busy::InUse), "from within");
                    assert_eq!(VALUES.with(Option::take), Ok(Some(Name(own.clone()))));
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let fourth = std::thread::spawn(|| VALUES.with(|_| ())).join().unwrap();
        assert_eq!(fourth, Err(Busy::NoSlot { processor: 3 }));
        assert_eq!(std::format!("{VALUES:?}"), "PerProcessor { places: 3, .. }");
    }

    #[test]
    fn a_value_is_released_where_its_user_unwinds() {
        struct One;
        // SAFETY: one thread uses it.
        unsafe impl Processors for One {
            fn this_processor() -> usize {
                0
            }
        }
        static VALUE: PerProcessor<Name, One, 1> = PerProcessor::new();
        let unwound = std::panic::catch_unwind(|| {
            let _ = VALUE.with(|_| panic!("on purpose"));
        });
        assert!(unwound.is_err());
        assert_eq!(VALUE.with(|_| ()), Ok(()));
    }
}
