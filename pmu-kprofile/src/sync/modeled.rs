//! Loom's atomics and cells. An interrupt may come between any two steps, and a bug may be seeded that the models must
//! find.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering;
use std::boxed::Box;

pub(crate) use loom::hint::spin_loop;

/// A cell of loom's.
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

/// An access that reads, until it is dropped.
pub(crate) struct ConstPtr<T>(loom::cell::ConstPtr<T>);

impl<T> ConstPtr<T> {
    /// # Safety
    /// Nothing writes the cell, and it lives, for as long as the reference does; loom sees whether anything does
    /// until this is dropped.
    pub(crate) unsafe fn deref<'c>(&self) -> &'c T {
        // SAFETY: the caller's promise.
        unsafe { &*core::ptr::from_ref(self.0.deref()) }
    }

    /// Ends the access.
    pub(crate) fn end(self) {}
}

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    #[track_caller]
    pub(crate) fn get(&self) -> ConstPtr<T> {
        ConstPtr(self.0.get())
    }

    #[track_caller]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(write)
    }
}

/// A bug: the code as if it were written otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seed {
    None,
    /// A grace period waits for no readers.
    NoGracePeriod,
    /// A grace period reads a reader counter by a plain load.
    LoadForReadModifyWrite,
    /// A read guard is released by a relaxed step.
    RelaxedUnlock,
    /// A reader that interrupted another releases both guards.
    NestingForgotten,
    /// A grace period does not wait for the readers that entered in the epoch before.
    OneEpoch,
    /// A snapshot, or a slot of a ring, is published by a relaxed store.
    RelaxedPublication,
    /// The phase of a mailbox's slot changes by a relaxed step.
    RelaxedChange,
    /// A slot of a ring is claimed by a load, and then a store.
    ClaimInTwoSteps,
    /// The write lock does not acquire what its last holder wrote.
    RelaxedTake,
    /// The write lock's holder does not release what it wrote.
    RelaxedRelease,
    /// Starting and stopping by a callback is not refused.
    NotRefused,
    /// An interrupt's miss is counted by a relaxed addition.
    RelaxedMiss,
}

std::thread_local! {
    /// The test's seed; all threads of a model are its thread's.
    static SEED: Cell<Seed> = const { Cell::new(Seed::None) };
}

loom::thread_local! {
    /// Set while a grace period waits for the readers that entered in the epoch before.
    static WAITS_FOR_LAST_EPOCH: Cell<bool> = Cell::new(false);
    static INTERRUPT: RefCell<Option<(usize, Box<dyn FnOnce()>)>> = RefCell::new(None);
}

/// Runs models of code with a bug.
pub(crate) fn seeded(seed: Seed, run: impl FnOnce()) {
    SEED.set(seed);
    run();
    SEED.set(Seed::None);
}

fn has(seed: Seed) -> bool {
    SEED.get() == seed
}

/// Interrupts the thread just before its `step`th atomic access from now, from 1.
pub(crate) fn interrupt_before(step: usize, interrupt: impl FnOnce() + 'static) {
    INTERRUPT.with(|pending| *pending.borrow_mut() = Some((step, Box::new(interrupt))));
}

/// No interrupt is to come any more.
pub(crate) fn no_interrupt() {
    INTERRUPT.with(|pending| pending.borrow_mut().take());
}

/// Between two steps.
fn step() {
    let due = INTERRUPT.with(|pending| {
        let mut pending = pending.borrow_mut();
        let (left, _) = pending.as_mut()?;
        *left -= 1;
        if *left == 0 { pending.take() } else { None }
    });
    if let Some((_, interrupt)) = due {
        interrupt();
    }
}

/// Loom's scheduler is not to switch inside a lock of which it does not know.
pub(crate) fn exclusively<R>(attempt: impl FnOnce() -> R) -> R {
    attempt()
}

/// Tells whether a wait for the readers of the previous epoch begins or is over.
pub(crate) fn seed_earlier_epoch(waits: bool) {
    WAITS_FOR_LAST_EPOCH.with(|it| it.set(waits));
}

fn publication(order: Ordering) -> Ordering {
    if has(Seed::RelaxedPublication) { Ordering::Relaxed } else { order }
}

/// Loom's flag. A store is a swap of the same order: loom lets swaps that spin pass over a plain store for ever.
#[derive(Debug)]
pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    #[track_caller]
    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        step();
        self.0.swap(value, if has(Seed::RelaxedTake) { Ordering::Relaxed } else { order })
    }

    #[track_caller]
    pub(crate) fn store(&self, value: bool, order: Ordering) {
        step();
        self.0.swap(value, if has(Seed::RelaxedRelease) { Ordering::Relaxed } else { order });
    }
}

/// An access by which loom tries every order of the accesses to an atomic. By itself loom 0.7.2 remembers the last
/// access alone: with a load, then another thread's load and store, it misses that the first load could have come after
/// the store. It always reorders two relaxed read-modify-writes, and they order nothing else.
#[derive(Debug, Default)]
struct Reordered(loom::sync::atomic::AtomicUsize);

impl Reordered {
    #[track_caller]
    fn step(&self) {
        step();
        self.0.fetch_add(0, Ordering::Relaxed);
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name, Reordered);

        #[allow(dead_code, reason = "no atomic needs all of them")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value), Reordered::default())
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.1.step();
                if has(Seed::NotRefused) && stringify!($name) == "AtomicU64" {
                    return <$value>::default();
                }
                self.0.load(order)
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.1.step();
                self.0.store(value, publication(order));
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.1.step();
                self.0.swap(value, publication(order))
            }
        }
    };
}

atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

impl AtomicU64 {
    #[track_caller]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.1.step();
        match (SEED.get(), value, order) {
            (Seed::NoGracePeriod, 0, _) => 0,
            (Seed::OneEpoch, 0, _) if WAITS_FOR_LAST_EPOCH.with(Cell::get) => 0,
            (Seed::LoadForReadModifyWrite, 0, _) => self.0.load(Ordering::Acquire),
            (Seed::RelaxedMiss, 1, Ordering::Release) => self.0.fetch_add(1, Ordering::Relaxed),
            _ => self.0.fetch_add(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.1.step();
        match SEED.get() {
            Seed::NestingForgotten => self.0.swap(0, order),
            Seed::RelaxedUnlock => self.0.fetch_sub(value, Ordering::Relaxed),
            _ => self.0.fetch_sub(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.1.step();
        if has(Seed::ClaimInTwoSteps) {
            let found = self.0.load(success);
            if found != current {
                return Err(found);
            }
            self.1.step();
            self.0.store(new, success);
            return Ok(found);
        }
        let success = if has(Seed::RelaxedChange) { Ordering::Relaxed } else { success };
        self.0.compare_exchange(current, new, success, failure)
    }
}

macro_rules! const_fn {
    ($(#[$attribute:meta])* $visibility:vis const fn $($rest:tt)*) => {
        $(#[$attribute])* $visibility fn $($rest)*
    };
}
macro_rules! array_of {
    ($element:expr) => {
        core::array::from_fn(|_| $element)
    };
}
pub(crate) use {array_of, const_fn};
