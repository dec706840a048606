//! Requests to other processors: each processor is a thread, and its interrupt a flag that it polls.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use pmu_core::{InterfaceError, KProfileSource, ProcessorNumber};
use pmu_kprofile::{Affinity, Mailbox, Processors, ProfileHardware, Remote, SourceRequest};

const SOURCE: KProfileSource = KProfileSource::TOTAL_CYCLES;
const OTHER: KProfileSource = KProfileSource::BRANCH_MISPREDICTIONS;

/// The state that the processors of a machine share.
#[derive(Default)]
struct Machine {
    interrupts: [AtomicU64; 3],
    /// Processors and sources that run on them.
    running: Mutex<BTreeSet<(usize, u32)>>,
    /// Holds a request that is being served until it is cleared.
    held: AtomicBool,
    inside: AtomicBool,
    /// Number of turns that each processor has waited.
    waited: [AtomicU64; 3],
}

/// One processor's view of the machine.
struct Processor<'m> {
    machine: &'m Machine,
    number: u16,
    /// Bound of its waiting loop.
    turns: u64,
}

impl Processors for Processor<'_> {
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
    fn new(machine: &'m Machine, number: u16) -> Self {
        Self { machine, number, turns: u64::MAX }
    }
}

fn on(number: u16) -> ProcessorNumber {
    ProcessorNumber::from_index(number)
}

#[test]
fn a_request_is_served_on_its_processor_and_answered() {
    let (machine, mailbox, done) =
        (Machine::default(), Mailbox::<3>::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let here = Processor::new(&machine, 1);
            while !done.load(Ordering::SeqCst) {
                mailbox.drain(&here);
                thread::yield_now();
            }
        });
        let mut hardware = Remote::new(&mailbox, Processor::new(&machine, 0));
        for _ in 0..100 {
            assert_eq!(hardware.start(on(1), SOURCE), Ok(()));
            assert_eq!(*machine.running.lock().unwrap(), BTreeSet::from([(1, SOURCE.value())]));
            assert_eq!(hardware.stop(on(1), SOURCE), Ok(()));
            let refused = Err(InterfaceError::NoFreeCounter(OTHER));
            assert_eq!(hardware.start(on(1), OTHER), refused);
            // A request to the own processor needs no interrupt.
            assert_eq!(hardware.start(on(0), SOURCE), Ok(()));
            assert_eq!(hardware.stop(on(0), SOURCE), Ok(()));
        }
        assert!(hardware.supports(SOURCE) && !hardware.supports(OTHER));
        assert!(!hardware.in_interrupt());
        assert_eq!(
            (hardware.this_processor(), hardware.active_processors()),
            (on(0), Affinity::first(3))
        );
        done.store(true, Ordering::SeqCst);
    });
    let interrupts = machine.interrupts.map(AtomicU64::into_inner);
    assert_eq!(interrupts, [0, 300, 0]);
    assert!(machine.running.into_inner().unwrap().is_empty());
}

/// Posts requests to another processor repeatedly, and drains until all processors have finished.
fn ask_and_drain(machine: &Machine, mailbox: &Mailbox<3>, here: u16, there: u16) {
    let processor = Processor::new(machine, here);
    let mut hardware = Remote::new(mailbox, Processor::new(machine, here));
    for _ in 0..200 {
        assert_eq!(hardware.start(on(there), SOURCE), Ok(()));
        assert_eq!(hardware.stop(on(there), SOURCE), Ok(()));
    }
    machine.interrupts[usize::from(here)].fetch_add(1 << 32, Ordering::SeqCst);
    let is_done = |n: &AtomicU64| n.load(Ordering::SeqCst) >> 32 != 0;
    while !machine.interrupts.iter().all(is_done) {
        mailbox.drain(&processor);
        thread::yield_now();
    }
}

#[test]
fn requests_that_cross_do_not_wait_for_each_other() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    thread::scope(|scope| {
        for (here, there) in [(0, 1), (1, 2), (2, 0)] {
            let (machine, mailbox) = (&machine, &mailbox);
            scope.spawn(move || ask_and_drain(machine, mailbox, here, there));
        }
    });
    assert!(machine.running.into_inner().unwrap().is_empty());
}

#[test]
fn a_request_to_a_processor_that_has_another_waits_until_that_one_is_answered() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    let remote = |number| Remote::new(&mailbox, Processor::new(&machine, number));
    let waits = |number: usize| machine.waited[number].load(Ordering::SeqCst) > 0;
    thread::scope(|scope| {
        let first = scope.spawn(|| remote(2).start(on(1), SOURCE));
        while !waits(2) {
            thread::yield_now();
        }
        let second = scope.spawn(|| remote(0).stop(on(1), SOURCE));
        while !waits(0) {
            thread::yield_now();
        }
        while !(first.is_finished() && second.is_finished()) {
            mailbox.drain(&Processor::new(&machine, 1));
            thread::yield_now();
        }
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(()), Ok(())));
    });
    assert_eq!(machine.interrupts.map(AtomicU64::into_inner), [0, 2, 0]);
}

#[test]
fn a_processor_that_does_not_answer_is_an_error_and_serves_nothing_later() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    let mut hardware =
        Remote::new(&mailbox, Processor { turns: 50, ..Processor::new(&machine, 0) });
    for _ in 0..3 {
        assert_eq!(hardware.start(on(1), SOURCE), Err(InterfaceError::NoAnswer(on(1))));
    }
    // The processor wakes up: the requests were withdrawn.
    mailbox.drain(&Processor::new(&machine, 1));
    assert!(machine.running.lock().unwrap().is_empty());
    // This processor is beyond the mailbox.
    assert_eq!(hardware.start(on(3), SOURCE), Err(InterfaceError::NoAnswer(on(3))));
    assert!(hardware.start(ProcessorNumber { group: 9, number: 0 }, SOURCE).is_err());
}

#[test]
fn a_start_that_is_answered_too_late_is_undone() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    machine.held.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            // The requester gives up only after the other processor has begun.
            let machine = &machine;
            struct Patient<'m>(Processor<'m>);
            impl Processors for Patient<'_> {
                fn this_processor(&self) -> ProcessorNumber {
                    self.0.this_processor()
                }
                fn in_interrupt(&self) -> bool {
                    false
                }
                fn active_processors(&self) -> Affinity {
                    self.0.active_processors()
                }
                fn supports(&self, source: KProfileSource) -> bool {
                    self.0.supports(source)
                }
                fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
                    self.0.serve(request)
                }
                fn interrupt(&self, processor: ProcessorNumber) {
                    self.0.interrupt(processor);
                }
                fn keep_waiting(&self, _: u64) -> bool {
                    thread::yield_now();
                    !self.0.machine.inside.load(Ordering::SeqCst)
                }
            }
            let outcome =
                Remote::new(&mailbox, Patient(Processor::new(machine, 0))).start(on(1), SOURCE);
            machine.held.store(false, Ordering::SeqCst);
            outcome
        });
        let here = Processor::new(&machine, 1);
        while !asking.is_finished() {
            mailbox.drain(&here);
            thread::yield_now();
        }
        assert_eq!(asking.join().unwrap(), Err(InterfaceError::NoAnswer(on(1))));
    });
    assert!(machine.inside.load(Ordering::SeqCst));
    assert!(machine.running.lock().unwrap().is_empty(), "the source still runs");
    // The slot is free again.
    let mut hardware =
        Remote::new(&mailbox, Processor { turns: 50, ..Processor::new(&machine, 0) });
    assert_eq!(hardware.start(on(1), SOURCE), Err(InterfaceError::NoAnswer(on(1))));
}
