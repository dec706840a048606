//! A machine of three processors that ask each other: each is a thread, and its interrupt a flag that it polls.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_kprofile::Affinity;
use pmu_kprofile::hardware::{Mailbox, RemoteProcessors, SourceRequest};

pub(crate) const SOURCE: KProfileSource = KProfileSource::TOTAL_CYCLES;

pub(crate) const OTHER: KProfileSource = KProfileSource::BRANCH_MISPREDICTIONS;

/// The state that the processors of a machine share.
#[derive(Default)]
pub(crate) struct Machine {
    pub(crate) interrupts: [AtomicU64; 3],
    /// Processors and sources that run on them.
    pub(crate) running: Mutex<BTreeSet<(usize, u32)>>,
    /// Holds a request that is being served until it is cleared.
    pub(crate) held: AtomicBool,
    pub(crate) inside: AtomicBool,
    /// Number of turns that each processor has waited.
    pub(crate) waited: [AtomicU64; 3],
}

/// One processor's view of the machine.
pub(crate) struct Processor<'m> {
    pub(crate) machine: &'m Machine,
    pub(crate) number: u16,
    /// Bound of its waiting loop.
    pub(crate) turns: u64,
}

impl RemoteProcessors for Processor<'_> {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(self.number)
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        Affinity::first(3)
    }
    fn supports(&self, source: KProfileSource) -> bool {
        source != OTHER
    }
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
        self.machine.inside.store(true, Ordering::SeqCst);
        while self.machine.held.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let mut running = self.machine.running.lock().unwrap();
        match request {
            SourceRequest::Start(OTHER) => Err(InterfaceError::NoFreeCounter(OTHER)),
            SourceRequest::Start(source) => {
                assert!(running.insert((self.number.into(), source.value())), "it runs");
                Ok(())
            }
            SourceRequest::Stop(source) => {
                assert!(running.remove(&(self.number.into(), source.value())), "it does not run");
                Ok(())
            }
        }
    }
    fn interrupt(&self, processor: ProcessorNumber) {
        self.machine.interrupts[processor.index()].fetch_add(1, Ordering::SeqCst);
    }
    fn keep_waiting(&self, turns: u64) -> bool {
        self.machine.waited[usize::from(self.number)].store(turns, Ordering::SeqCst);
        thread::yield_now();
        turns < self.turns
    }
}

impl<'m> Processor<'m> {
    pub(crate) fn new(machine: &'m Machine, number: u16) -> Self {
        Self { machine, number, turns: u64::MAX }
    }
}

pub(crate) fn on(number: u16) -> ProcessorNumber {
    ProcessorNumber::from_index(number)
}

/// Runs an operation on processor 0 while processor 1 drains.
pub(crate) fn while_1_drains<R>(
    machine: &Machine,
    mailbox: &Mailbox<3>,
    act: impl FnOnce() -> R,
) -> R {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                mailbox.drain(&Processor::new(machine, 1));
                thread::yield_now();
            }
        });
        let result = act();
        over.store(true, Ordering::SeqCst);
        result
    })
}

/// The processor and the number of each source that runs.
pub(crate) fn running(machine: &Machine) -> Vec<(usize, u32)> {
    machine.running.lock().unwrap().iter().copied().collect()
}

/// As many sources as can run on a processor: one for each counter, and time.
pub(crate) fn sources() -> impl Iterator<Item = KProfileSource> {
    (0x19..).filter_map(KProfileSource::new).take(pmu_core::registers::MAX_COUNTERS).chain([SOURCE])
}

/// A processor that serves and waits in its own way.
pub(crate) struct Hooked<'m, S, W> {
    processor: Processor<'m>,
    serve: S,
    keep_waiting: W,
}

/// Returns a processor that serves by `serve`.
pub(crate) fn serving<'m, S>(
    processor: Processor<'m>,
    serve: S,
) -> Hooked<'m, S, impl Fn(&Processor<'m>, u64) -> bool>
where
    S: Fn(&Processor<'m>, SourceRequest) -> Result<(), InterfaceError>,
{
    Hooked { processor, serve, keep_waiting: Processor::keep_waiting }
}

/// Returns a requester that waits until its request is being served, or for an answer, which comes within a minute.
pub(crate) fn patient<'m>(
    processor: Processor<'m>,
    for_answer: bool,
) -> impl RemoteProcessors + use<'m> {
    let begin = Instant::now();
    let keep_waiting = move |processor: &Processor<'m>, _| {
        thread::yield_now();
        let is_late = begin.elapsed() > Duration::from_secs(60);
        !is_late && (for_answer || !processor.machine.inside.load(Ordering::SeqCst))
    };
    Hooked { processor, serve: Processor::serve, keep_waiting }
}

impl<'m, S, W> RemoteProcessors for Hooked<'m, S, W>
where
    S: Fn(&Processor<'m>, SourceRequest) -> Result<(), InterfaceError>,
    W: Fn(&Processor<'m>, u64) -> bool,
{
    fn this_processor(&self) -> ProcessorNumber {
        self.processor.this_processor()
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        self.processor.active_processors()
    }
    fn supports(&self, source: KProfileSource) -> bool {
        self.processor.supports(source)
    }
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
        (self.serve)(&self.processor, request)
    }
    fn interrupt(&self, processor: ProcessorNumber) {
        self.processor.interrupt(processor);
    }
    fn keep_waiting(&self, turns: u64) -> bool {
        (self.keep_waiting)(&self.processor, turns)
    }
}
