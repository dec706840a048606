//! Requests to other processors.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use loom::thread;
use pmu_core::{InterfaceError, KProfileSource, ProcessorNumber};

use super::{Seed, TIME, explore, finds};
use crate::{Affinity, Mailbox, Processors, ProfileHardware, Remote, SourceRequest};

/// A processor, as the mailbox sees it.
struct Asker {
    number: u16,
    running: Arc<AtomicUsize>,
    turns: u64,
}

impl Processors for Asker {
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

#[test]
fn a_request_is_answered_or_undone() {
    explore(ask);
}

#[test]
fn an_answer_that_is_published_relaxed_is_found() {
    finds(Seed::RelaxedChange, ask);
}
