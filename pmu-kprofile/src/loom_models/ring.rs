//! The trace ring, with a nested producer.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::{Seed, explore, explore_up_to, finds, interrupt_before, no_interrupt};
use crate::PointerWidth;
use crate::trace::{Detail, Event, RecordBytes, Sample, TraceRing};

/// Pushes a record that is known by its number.
fn push<const N: usize>(ring: &TraceRing<N>, number: u64) -> bool {
    ring.push_sample(PointerWidth::Bits64, number, &sample(number))
}

fn sample(number: u64) -> Sample {
    let detail = Detail::PmcInterrupt { source: number as u16, reserved: 0 };
    Sample { pc: !number, thread: number as u32, detail }
}

/// A processor's interrupts push `count` records, numbered from 1; before the `at`th atomic access of
/// the last push an interrupt comes and pushes number 100; another thread drains meanwhile. Whether the
/// interrupt came in any execution is told to `came`.
fn nested_push<const N: usize>(count: u64, at: usize, came: &Arc<AtomicBool>) {
    let ring: Arc<TraceRing<N>> = Arc::new(TraceRing::new());
    for number in 1..count {
        assert!(push(&ring, number));
    }
    let producer = {
        let ring = ring.clone();
        thread::spawn(move || {
            let (nested, pushed) = (ring.clone(), Arc::new(AtomicBool::new(false)));
            let told = pushed.clone();
            interrupt_before(at, move || {
                told.store(true, Ordering::Relaxed);
                push(&nested, 100);
            });
            push(&ring, count);
            no_interrupt();
            pushed.load(Ordering::Relaxed)
        })
    };
    let mut read = drain(&ring);
    let interrupted = producer.join().unwrap();
    came.fetch_or(interrupted, Ordering::Relaxed);
    read.extend(drain(&ring));
    let pushed = count + u64::from(interrupted);
    assert_eq!(read.len() as u64 + ring.dropped(), pushed, "{read:?}");
    // Records that were not nested come once and in order; a nested record comes once.
    let (nested, others): (Vec<u64>, Vec<u64>) = read.iter().partition(|number| **number == 100);
    assert!(nested.len() <= usize::from(interrupted), "{read:?}");
    assert!(others.is_sorted_by(|a, b| a < b), "{read:?}");
}

/// The records of a ring by number, each of them whole.
fn drain<const N: usize>(ring: &TraceRing<N>) -> Vec<u64> {
    let whole = |bytes: RecordBytes| {
        let found = bytes.decode().unwrap();
        assert_eq!(found.event, Event::Sample(sample(found.timestamp)), "a torn record");
        found.timestamp
    };
    ring.drain().map(whole).collect()
}

/// With the interrupt at every step of the push.
fn nested_pushes<const N: usize>(count: u64) {
    for at in 1.. {
        let came = Arc::new(AtomicBool::new(false));
        let told = came.clone();
        explore(move || nested_push::<N>(count, at, &told));
        if !came.load(Ordering::Relaxed) {
            assert!(at > 8, "only {at} steps");
            return;
        }
    }
}

/// Two tasks read two records, while the processor pushes a third.
fn two_readers() {
    let ring: Arc<TraceRing<2>> = Arc::new(TraceRing::new());
    assert!(push(&ring, 1) && push(&ring, 2));
    let other = {
        let ring = ring.clone();
        thread::spawn(move || drain(&ring))
    };
    let mut read: Vec<u64> =
        ring.drain().next().map(|bytes| bytes.decode().unwrap().timestamp).into_iter().collect();
    let pushed = push(&ring, 3);
    read.extend(other.join().unwrap());
    read.extend(drain(&ring));
    read.sort_unstable();
    assert_eq!(read, [1, 2, 3][..2 + usize::from(pushed)]);
}

#[test]
fn readers_at_a_time_get_each_record_once() {
    explore_up_to(Some(3), two_readers);
}

#[test]
fn a_record_that_is_claimed_in_two_steps_by_two_readers_is_found() {
    finds(Seed::ClaimInTwoSteps, two_readers);
}

#[test]
fn a_ring_loses_nothing_of_a_nested_producer() {
    nested_pushes::<2>(1);
}

/// One slot is left, which the nested producer may take; or the reader makes room in time.
#[test]
fn a_ring_that_is_nearly_full_counts_what_it_drops() {
    nested_pushes::<2>(2);
}

#[test]
fn a_slot_that_is_claimed_in_two_steps_is_found() {
    // Between the load and the store, after those of head and turn.
    finds(Seed::ClaimInTwoSteps, || nested_push::<2>(1, 4, &Arc::default()));
    finds(Seed::ClaimInTwoSteps, || nested_push::<2>(2, 4, &Arc::default()));
}

#[test]
fn a_record_that_is_published_relaxed_is_found() {
    finds(Seed::RelaxedPublication, || nested_push::<2>(1, 1, &Arc::default()));
}
