//! The models of what happens on several processors at once, and of interrupts between any two steps.
//!
//! Every interleaving of a model is executed, with every value that a load may return. The small models are exhaustive,
//! including the model of the read guard (`registry/srcu`). The larger models bound the number of preemptions, and say
//! where. Each model has a seeded bug that it finds:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p pmu-kprofile --release --lib loom
//! ```
//!
//! A loom cell stands for an object's buffer. A reader, the dispatch of an interrupt, reads the cell in the object's
//! callback; the cell's owner writes it once the object is stopped. If the read can still be under way during the
//! write, loom reports it.

mod mailbox;
mod ring;

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::panic::catch_unwind;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use pmu_core::frame::{InterruptFrame, PlainFrame};
use pmu_core::profile::KProfileSource;

pub(crate) use crate::sync::modeled::Seed;
use crate::sync::modeled::{interrupt_before, no_interrupt, seeded};
use crate::testing::AnySource;
use crate::{ProfileCallback, ProfileError, ProfileObject, Profiles, Rules};

const TIME: KProfileSource = KProfileSource::TIME;

/// All executions of a model.
pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_up_to(None, model);
}

/// The executions in which so many times at most a processor stops before it must: of what is too
/// large to be explored without a bound.
fn explore_up_to(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(model);
}

/// That a model finds a bug.
#[track_caller]
pub(crate) fn finds(seed: Seed, model: impl Fn() + Sync + Send + 'static) {
    let mut outcome = Ok(());
    seeded(seed, || outcome = catch_unwind(AssertUnwindSafe(|| explore(model))));
    let Err(cause) = outcome else { panic!("{seed:?} was not found") };
    let cause = cause.downcast_ref::<&str>().copied().unwrap_or_default();
    // A callback that is not refused waits for itself. No other bug is that the model does not end.
    let is_endless = cause.contains("maximum number of branches");
    assert!(!is_endless || seed == Seed::NotRefused, "{seed:?}: the model does not end");
}

fn frame_of(processor: u16) -> PlainFrame {
    PlainFrame::new(0x1000, 0, 0, processor.into())
}

fn hardware(this: u16) -> AnySource {
    AnySource { this, active: 1 }
}

/// The tasks that write the lists are on processors without reader counters, unless it matters: fewer
/// counters are many executions less.
type Lists<const P: usize = 1> = Profiles<2, P>;
/// Such a processor.
const WITHOUT_COUNTERS: u16 = 8;

/// Stand-in for an object's buffer. If the lists are given, another reader interrupts the callback on the same
/// processor before the callback reads the buffer.
struct Buffer {
    counts: UnsafeCell<u32>,
    interrupted: Option<Arc<Lists>>,
    depth: AtomicUsize,
}

// SAFETY: whether accesses to the cell exclude each other is what loom checks.
unsafe impl Sync for Buffer {}
// SAFETY: as above.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(crate) fn new(interrupted: Option<Arc<Lists>>) -> Self {
        Self { counts: UnsafeCell::new(0), interrupted, depth: AtomicUsize::new(0) }
    }

    /// Its owner writes it.
    fn reuse(&self) {
        // SAFETY: loom checks that nothing else accesses it.
        self.counts.with_mut(|counts| unsafe { *counts += 1 });
    }
}

impl ProfileCallback for Buffer {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource) {
        if let Some(lists) = &self.interrupted
            && self.depth.fetch_add(1, Ordering::Relaxed) == 0
        {
            lists.interrupt(&frame_of(frame.processor().index() as u16), source);
        }
        // SAFETY: loom checks that nothing writes it.
        self.counts.with(|counts| unsafe { *counts });
    }
}

fn object(buffer: &Buffer) -> ProfileObject<'_> {
    ProfileObject::callback(Rules::LATEST, TIME, buffer).unwrap()
}

/// Starts an object, lets another processor be interrupted, and stops it meanwhile.
fn remove(nested: bool) {
    let lists = Arc::new(Lists::<1>::new());
    let buffer = Arc::new(Buffer::new(nested.then(|| lists.clone())));
    let object = object(&buffer);
    // SAFETY: the object lives until it is stopped, below.
    unsafe { lists.start_borrowed(&object, &mut hardware(WITHOUT_COUNTERS)) }.unwrap();
    let reader = {
        let lists = lists.clone();
        thread::spawn(move || lists.interrupt(&frame_of(0), TIME).hits)
    };
    lists.stop(&object, &mut hardware(WITHOUT_COUNTERS)).unwrap();
    buffer.reuse();
    let hits = reader.join().unwrap();
    let statistics = lists.statistics();
    assert!(statistics.hit >= hits.into());
    assert_eq!(statistics.hit + statistics.missed, statistics.seen);
}

#[test]
fn after_stop_no_other_processor_touches_the_object() {
    explore_up_to(Some(5), || remove(false));
}

#[test]
fn a_stop_without_a_grace_period_is_found() {
    finds(Seed::NoGracePeriod, || remove(false));
}

#[test]
fn a_grace_period_by_plain_loads_is_found() {
    finds(Seed::LoadForReadModifyWrite, || remove(false));
}

#[test]
fn a_relaxed_unlock_is_found() {
    finds(Seed::RelaxedUnlock, || remove(false));
}

#[test]
fn after_stop_no_interrupted_reader_touches_the_object() {
    explore_up_to(Some(5), || remove(true));
}

/// A reader is interrupted before its `at`th atomic access by another one.
fn interrupted_reader(at: usize, came: &Arc<AtomicUsize>) {
    let lists = Arc::new(Lists::<1>::new());
    let buffer = Arc::new(Buffer::new(None));
    let object = object(&buffer);
    // SAFETY: the object lives until it is stopped, below.
    unsafe { lists.start_borrowed(&object, &mut hardware(WITHOUT_COUNTERS)) }.unwrap();
    let reader = {
        let (lists, came) = (lists.clone(), came.clone());
        thread::spawn(move || {
            let here = lists.clone();
            interrupt_before(at, move || {
                came.store(at, Ordering::Relaxed);
                here.interrupt(&frame_of(0), TIME);
            });
            lists.interrupt(&frame_of(0), TIME);
            no_interrupt();
        })
    };
    lists.stop(&object, &mut hardware(WITHOUT_COUNTERS)).unwrap();
    buffer.reuse();
    reader.join().unwrap();
}

#[test]
fn an_interrupt_at_any_step_of_a_reader_does_not_unlock_it() {
    for at in 1.. {
        let came = Arc::new(AtomicUsize::new(0));
        let seen = came.clone();
        explore_up_to(Some(3), move || interrupted_reader(at, &came));
        if seen.load(Ordering::Relaxed) != at {
            assert!(at > 4, "only {at} steps");
            break;
        }
    }
}

#[test]
fn a_nested_reader_that_unlocks_the_outer_one_is_found() {
    finds(Seed::NestingForgotten, || remove(true));
    // Between taking the guard and loading the current snapshot.
    finds(Seed::NestingForgotten, || interrupted_reader(3, &Arc::default()));
}

/// An object is prepared and started while another processor is interrupted.
fn insert() {
    let lists = Arc::new(Lists::<1>::new());
    let buffer = Arc::new(Buffer::new(None));
    buffer.reuse();
    let object = object(&buffer);
    let reader = {
        let lists = lists.clone();
        thread::spawn(move || {
            lists.interrupt(&frame_of(0), TIME);
        })
    };
    // SAFETY: the object lives until it is stopped, below.
    unsafe { lists.start_borrowed(&object, &mut hardware(WITHOUT_COUNTERS)) }.unwrap();
    reader.join().unwrap();
    lists.stop(&object, &mut hardware(WITHOUT_COUNTERS)).unwrap();
}

#[test]
fn a_reader_finds_a_started_object_complete() {
    explore(insert);
}

/// The same, and the object is stopped meanwhile. The reader may have loaded the epoch before both.
fn insert_and_remove() {
    let lists = Arc::new(Lists::<1>::new());
    let buffer = Arc::new(Buffer::new(None));
    let object = object(&buffer);
    let reader = {
        let lists = lists.clone();
        thread::spawn(move || {
            lists.interrupt(&frame_of(0), TIME);
        })
    };
    // SAFETY: the object lives until it is stopped, below.
    unsafe { lists.start_borrowed(&object, &mut hardware(WITHOUT_COUNTERS)) }.unwrap();
    lists.stop(&object, &mut hardware(WITHOUT_COUNTERS)).unwrap();
    buffer.reuse();
    reader.join().unwrap();
}

#[test]
fn a_reader_that_began_before_is_waited_for() {
    explore_up_to(Some(5), insert_and_remove);
}

#[test]
fn a_snapshot_that_is_published_relaxed_is_found() {
    finds(Seed::RelaxedPublication, insert);
}

#[test]
fn a_reader_with_a_stale_epoch_is_found() {
    finds(Seed::OneEpoch, insert_and_remove);
}

/// Two tasks start and stop an object each, while a third processor is interrupted.
fn two_writers() {
    let lists = Arc::new(Lists::<1>::new());
    let write = |lists: Arc<Lists>, processor| {
        let buffer = Buffer::new(None);
        let object = object(&buffer);
        // SAFETY: the object lives until it is stopped, below.
        unsafe { lists.start_borrowed(&object, &mut hardware(processor)) }.unwrap();
        lists.stop(&object, &mut hardware(processor)).unwrap();
        buffer.reuse();
    };
    let writer = {
        let lists = lists.clone();
        thread::spawn(move || write(lists, 1))
    };
    write(lists.clone(), 2);
    writer.join().unwrap();
    assert_eq!(lists.started(), 0);
}

#[test]
fn write_guards_exclude_each_other() {
    explore_up_to(Some(4), two_writers);
}

#[test]
fn write_guards_that_are_not_ordered_are_found() {
    finds(Seed::RelaxedTake, two_writers);
    finds(Seed::RelaxedRelease, two_writers);
}

/// The interrupt comes before the `at`th atomic access of the writer, on its own processor, while another
/// processor is interrupted.
fn interrupted_writer(at: usize, came: &Arc<AtomicUsize>) {
    let lists = Arc::new(Lists::<2>::new());
    let buffer = Arc::new(Buffer::new(None));
    let object = object(&buffer);
    let reader = {
        let lists = lists.clone();
        thread::spawn(move || {
            lists.interrupt(&frame_of(0), TIME);
        })
    };
    let (here, came) = (lists.clone(), came.clone());
    interrupt_before(at, move || {
        came.store(at, Ordering::Relaxed);
        here.interrupt(&frame_of(1), TIME);
    });
    // SAFETY: the object lives until it is stopped, below.
    unsafe { lists.start_borrowed(&object, &mut hardware(1)) }.unwrap();
    lists.stop(&object, &mut hardware(1)).unwrap();
    buffer.reuse();
    no_interrupt();
    reader.join().unwrap();
}

#[test]
fn an_interrupt_at_any_step_of_a_write_finds_the_lists_whole() {
    for at in 1.. {
        let came = Arc::new(AtomicUsize::new(0));
        let seen = came.clone();
        explore_up_to(Some(2), move || interrupted_writer(at, &came));
        if seen.load(Ordering::Relaxed) != at {
            assert!(at > 10, "only {at} steps");
            break;
        }
    }
}

#[test]
fn an_interrupted_stop_without_a_grace_period_is_found() {
    finds(Seed::NoGracePeriod, || interrupted_writer(1, &Arc::default()));
}

/// A callback that asks for what an interrupt may not do.
struct Meddler(Arc<Lists>);

impl ProfileCallback for Meddler {
    fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {
        let buffer = Buffer::new(None);
        let object = object(&buffer);
        let outcome = self.0.stop(&object, &mut hardware(0));
        assert_eq!(outcome, Err(ProfileError::WrongContext));
    }
}

fn write_by_callback() {
    let lists = Arc::new(Lists::<1>::new());
    let meddler = Meddler(lists.clone());
    let object = ProfileObject::callback(Rules::LATEST, TIME, &meddler).unwrap();
    // SAFETY: the object lives until it is stopped, below.
    unsafe { lists.start_borrowed(&object, &mut hardware(WITHOUT_COUNTERS)) }.unwrap();
    let reader = {
        let lists = lists.clone();
        thread::spawn(move || {
            lists.interrupt(&frame_of(0), TIME);
        })
    };
    lists.stop(&object, &mut hardware(WITHOUT_COUNTERS)).unwrap();
    reader.join().unwrap();
}

#[test]
fn a_callback_that_writes_the_lists_is_refused_and_does_not_wait() {
    explore_up_to(Some(4), write_by_callback);
}

#[test]
fn a_callback_that_is_not_refused_is_found() {
    finds(Seed::NotRefused, write_by_callback);
}

/// The statistics are read while a processor is interrupted, by what no object waits for.
fn statistics() {
    let lists = Arc::new(Lists::<1>::new());
    let reader = {
        let lists = lists.clone();
        thread::spawn(move || {
            lists.interrupt(&frame_of(0), TIME);
        })
    };
    let statistics = lists.statistics();
    assert_eq!(statistics.hit + statistics.missed, statistics.seen);
    reader.join().unwrap();
}

#[test]
fn no_more_misses_than_interrupts_are_ever_read() {
    explore(statistics);
}

#[test]
fn a_miss_that_is_counted_relaxed_is_found() {
    finds(Seed::RelaxedMiss, statistics);
}

/// As [`remove`], by a stop that does not wait and a token that is asked until the object is free.
fn remove_by_token() {
    let lists = Arc::new(Lists::<1>::new());
    let buffer = Arc::new(Buffer::new(None));
    let object = object(&buffer);
    let mut hardware = hardware(WITHOUT_COUNTERS);
    // SAFETY: the object lives until it is stopped, below.
    unsafe { lists.try_start_borrowed(&object, &mut hardware) }.unwrap();
    let reader = {
        let lists = lists.clone();
        thread::spawn(move || {
            lists.interrupt(&frame_of(0), TIME);
        })
    };
    let stopping = loop {
        match lists.try_stop(&object, &mut hardware) {
            Ok(stopping) => break stopping,
            // The start's grace period waits for the reader.
            Err(error) => assert_eq!(error, ProfileError::Busy),
        }
        loom::hint::spin_loop();
    };
    while !stopping.is_over() {
        loom::hint::spin_loop();
    }
    buffer.reuse();
    reader.join().unwrap();
}

#[test]
fn when_the_token_says_so_no_other_processor_touches_the_object() {
    explore_up_to(Some(3), remove_by_token);
}

#[test]
fn a_token_without_a_grace_period_is_found() {
    finds(Seed::NoGracePeriod, remove_by_token);
}
