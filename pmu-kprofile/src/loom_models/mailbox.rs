//! Requests to other processors.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use loom::thread;
use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};

use super::{Seed, TIME, explore, explore_up_to, finds, interrupt_before, no_interrupt};
use crate::hardware::{Mailbox, Remote, RemoteProcessors, SourceRequest};
use crate::{Affinity, ProfileHardware};

/// A processor, as the mailbox sees it.
struct Asker {
    number: u16,
    running: Arc<AtomicUsize>,
    turns: u64,
}

impl RemoteProcessors for Asker {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(self.number)
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        Affinity::first(2)
    }
    fn supports(&self, _: KProfileSource) -> bool {
        true
    }
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
        match request {
            SourceRequest::Start(_) => assert_eq!(self.running.fetch_add(1, Ordering::Relaxed), 0),
            SourceRequest::Stop(_) => assert_eq!(self.running.fetch_sub(1, Ordering::Relaxed), 1),
        }
        Ok(())
    }
    fn interrupt(&self, _: ProcessorNumber) {}
    fn keep_waiting(&self, turns: u64) -> bool {
        turns < self.turns
    }
}

/// A processor is asked to start a source, and who asks gives up at some time; the processor drains meanwhile.
fn ask() {
    let mailbox = Arc::new(Mailbox::<2>::new());
    let running = Arc::new(AtomicUsize::new(0));
    let asked = {
        let (mailbox, running) = (mailbox.clone(), running.clone());
        thread::spawn(move || mailbox.drain(&Asker { number: 1, running, turns: 0 }))
    };
    let asker = Asker { number: 0, running: running.clone(), turns: 2 };
    let started = Remote::new(&mailbox, asker).start(ProcessorNumber::from_index(1), TIME);
    asked.join().unwrap();
    assert_eq!(running.load(Ordering::Relaxed), usize::from(started.is_ok()), "{started:?}");
}

/// A processor on which a source runs is asked to stop it, and who asks gives up at some time; what was not done by
/// then is done the next time that the processor drains, before the source is started again.
fn ask_to_stop() {
    let mailbox = Arc::new(Mailbox::<2>::new());
    let running = Arc::new(AtomicUsize::new(1));
    let asked = {
        let (mailbox, running) = (mailbox.clone(), running.clone());
        thread::spawn(move || mailbox.drain(&Asker { number: 1, running, turns: 0 }))
    };
    let asker = Asker { number: 0, running: running.clone(), turns: 2 };
    let stopped = Remote::new(&mailbox, asker).stop(ProcessorNumber::from_index(1), TIME);
    asked.join().unwrap();
    assert!(stopped.is_err() || running.load(Ordering::Relaxed) == 0);
    let there = Asker { number: 1, running: running.clone(), turns: 0 };
    let mut own = Remote::new(&mailbox, there);
    assert_eq!(own.start(ProcessorNumber::from_index(1), TIME), Ok(()));
    assert_eq!(running.load(Ordering::Relaxed), 1, "{stopped:?}");
}

/// A stop was left to a processor that drains; before the `at`th atomic access of that an interrupt comes and drains
/// too; meanwhile it is asked to start the source. Whether the interrupt came in any execution is told to `came`.
fn nested_drain(at: usize, came: &Arc<AtomicBool>) {
    let mailbox = Arc::new(Mailbox::<2>::new());
    let running = Arc::new(AtomicUsize::new(1));
    let asker = |turns| Asker { number: 0, running: running.clone(), turns };
    let there = || Asker { number: 1, running: running.clone(), turns: 0 };
    let left = Remote::new(&mailbox, asker(0)).stop(ProcessorNumber::from_index(1), TIME);
    assert!(left.is_err());
    let asked = {
        let (mailbox, nested, interrupted) = (mailbox.clone(), mailbox.clone(), there());
        let (there, came) = (there(), came.clone());
        thread::spawn(move || {
            interrupt_before(at, move || {
                came.store(true, Ordering::Relaxed);
                nested.drain(&interrupted);
            });
            mailbox.drain(&there);
            no_interrupt();
        })
    };
    let started = Remote::new(&mailbox, asker(1)).start(ProcessorNumber::from_index(1), TIME);
    asked.join().unwrap();
    assert_eq!(running.load(Ordering::Relaxed), usize::from(started.is_ok()), "{started:?}");
}

#[test]
fn a_request_is_answered_or_undone() {
    explore(ask);
}

#[test]
fn a_stop_is_answered_or_done_later() {
    explore(ask_to_stop);
}

#[test]
fn a_start_comes_after_a_stop_that_was_left_whenever_an_interrupt_comes() {
    for at in 1.. {
        let came = Arc::new(AtomicBool::new(false));
        let told = came.clone();
        // With up to three preemptions; without a bound it takes minutes.
        explore_up_to(Some(3), move || nested_drain(at, &told));
        if !came.load(Ordering::Relaxed) {
            assert!(at > 8, "only {at} steps");
            return;
        }
    }
}

#[test]
fn an_answer_that_is_published_relaxed_is_found() {
    finds(Seed::RelaxedChange, ask);
}
