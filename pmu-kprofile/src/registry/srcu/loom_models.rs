//! The model of the guard alone.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use loom::thread;

use super::{GracePeriod, ReaderCounters};
use crate::loom_models::{Seed, explore, finds};
use crate::sync::{AtomicUsize, UnsafeCell, spin_loop};

/// Readers, and two snapshots that they read.
struct Model {
    readers: [ReaderCounters; 1],
    epoch: AtomicUsize,
    current: AtomicUsize,
    snapshots: [UnsafeCell<u32>; 2],
}

// SAFETY: whether accesses to the cells exclude each other is what loom checks.
unsafe impl Sync for Model {}
// SAFETY: as above.
unsafe impl Send for Model {}

/// A snapshot is replaced and written again after a grace period, while a reader reads what is current: as
/// small as can be, so that it is explored without a bound.
fn replace() {
    let model = Arc::new(Model {
        readers: [ReaderCounters::new()],
        epoch: AtomicUsize::new(0),
        current: AtomicUsize::new(0),
        snapshots: [UnsafeCell::new(0), UnsafeCell::new(1)],
    });
    let reader = {
        let model = model.clone();
        thread::spawn(move || {
            let lock = model.readers[0].read_lock(&model.epoch);
            let current = model.current.load(Ordering::Acquire);
            let snapshot = model.snapshots[current].get();
            // SAFETY: loom checks that nothing writes it.
            assert_eq!(*unsafe { snapshot.deref() }, current as u32);
            snapshot.end();
            lock.unlock(true);
        })
    };
    model.current.swap(1, Ordering::AcqRel);
    let mut grace = GracePeriod::BEGUN;
    while !grace.poll(&model.readers, &model.epoch) {
        spin_loop();
    }
    // SAFETY: loom checks that nothing reads it.
    model.snapshots[0].with_mut(|snapshot| unsafe { *snapshot = 2 });
    reader.join().unwrap();
}

#[test]
fn after_a_grace_period_no_reader_reads_what_was_current() {
    explore(replace);
}

#[test]
fn a_guard_with_a_bug_is_found() {
    for seed in [Seed::NoGracePeriod, Seed::LoadForReadModifyWrite, Seed::RelaxedUnlock] {
        finds(seed, replace);
    }
}
