//! Random sequences of operations, while interrupts are at once, late or lost: every op is counted once, for the event
//! that was on the unit, and every sample is of the event that the unit then had. A register may fail to answer once.

use core::cell::Cell;
use std::collections::BTreeMap;

use pmu_amd::ibs::{IbsKind, IbsSampling};
use pmu_core::EventId;
use pmu_core::thread::ThreadEvent;
use pmu_tests::opened::Random;
use pmu_virt::mock::{Fault, PmiFault};

use crate::support::*;

/// The period, in cycles: exact where the unit's count can be written.
const PERIOD: u64 = 100;

/// The tags of the processor's events, and of the two threads'.
const ROTATING: [u64; 3] = [1, 2, 3];
const THREADS: [u64; 2] = [4, 5];

struct World<'m> {
    kernel: &'m Kernel,
    mock: &'m Mock<'m>,
    /// The unit's count can be written, so that nothing of a period is lost.
    is_exact: bool,
    /// Accesses fail with their retries: a unit that cannot be stopped samples for no event.
    lasting: bool,
    /// Interrupts of another owner's.
    foreign: u32,
    session: Session<'m>,
    events: Vec<(u64, EventId)>,
    threads: [[ThreadEvent; 1]; 2],
    /// Ops that were counted, by the tag of the event on the unit, and the ops that were sampled.
    counted: BTreeMap<u64, u64>,
    sampled: BTreeMap<u64, Vec<u64>>,
    log: Vec<String>,
}

impl World<'_> {
    /// Returns the tag of the event that is on the unit.
    fn on_unit(&self) -> Option<u64> {
        let threads = self.threads.iter().zip(THREADS).filter_map(|(thread, tag)| match thread {
            [ThreadEvent::Opened(id)] => Some((tag, *id)),
            _ => None,
        });
        let mut all = self.events.iter().copied().chain(threads);
        all.find(|(_, id)| is_on(&self.session, *id)).map(|(tag, _)| tag)
    }

    fn operate(&mut self, operation: u64, which: usize) {
        let (kernel, session) = (self.kernel, &mut self.session);
        let (_, event) = self.events[which % 3];
        let note = |sample: pmu_core::Sample<'_, _>| kernel.note(&sample);
        let thread = &mut self.threads[which % 2];
        let done = match operation {
            0 | 1 => format!("{:?}", session.enable(event, 0)),
            2 => format!("{:?}", session.disable(event, 0)),
            3..=5 => format!("{:?}", session.rotate(0)),
            6 | 7 => match thread[0] {
                ThreadEvent::Opened(_) => format!("{:?}", session.switch_out(thread, 0, note)),
                _ => format!("{:?}", session.switch_in(&kernel.counters, thread, 0)),
            },
            8 => {
                format!("{:?}", session.lend(0, note).and_then(|window| Ok(window.end(0)?)))
            }
            9 => {
                let suspended = session.suspend(0, note);
                self.mock.deliver_sample();
                self.mock.lose_registers();
                format!("{:?}", suspended.and(session.resume(0, note).map(drop)))
            }
            10 => format!("{:?}", session.reprogram(note).map(drop)),
            11 => format!("{:?}", session.report_samples(note)),
            12 => {
                // An interrupt of another owner's.
                self.foreign += 1;
                self.mock.interrupt_from_elsewhere();
                String::new()
            }
            _ => {
                self.mock.deliver_sample();
                String::new()
            }
        };
        self.log.push(format!("{operation}, {which}: {done}"));
    }

    /// Executes ops, and notes for which event they are.
    fn execute(&mut self, ops: u64) {
        let owner = self.on_unit();
        for _ in 0..ops {
            let next = self.mock.with_sampling_unit(|unit| unit.next_sample()).unwrap();
            let counts = next.cycles.or(next.fetches).is_some();
            assert!(owner.is_some() || !counts || self.lasting, "{:#?}", self.log);
            let before = self.kernel.sampled().len();
            self.kernel.run(self.mock, 1);
            if let Some(owner) = owner.filter(|_| counts) {
                *self.counted.entry(owner).or_default() += 1;
                let new = self.kernel.sampled()[before..].to_vec();
                self.sampled.entry(owner).or_default().extend(new);
            }
        }
    }

    fn total(&self, tag: u64) -> u64 {
        let thread = THREADS.iter().position(|of| *of == tag).map(|place| self.threads[place][0]);
        let event = match thread {
            Some(ThreadEvent::SwitchedOut(saved)) => return saved.count().value,
            Some(ThreadEvent::Opened(id)) => id,
            Some(other) => panic!("{other:?}"),
            None => self.events.iter().find(|(of, _)| *of == tag).unwrap().1,
        };
        self.session.read(event, 0).unwrap().value
    }

    /// Checks every event's count and samples.
    fn check(&self, what: &str) {
        for tag in ROTATING.into_iter().chain(THREADS) {
            let what = || format!("{what}, {tag}: {:#?}", self.log);
            let counted = self.counted.get(&tag).copied().unwrap_or(0);
            assert!(!self.is_exact || self.total(tag) == counted, "{}", what());
            let (reported, none) = (self.kernel.of_tag(tag), vec![]);
            let mut left = self.sampled.get(&tag).unwrap_or(&none).iter();
            let in_order = reported.iter().all(|address| left.any(|other| other == address));
            assert!(in_order, "{}", what());
        }
    }
}

/// Runs one sequence. Returns the numbers of samples that were reported, and of those that were due.
fn run(processor: Processor, kind: IbsKind, seed: u64, faults: &[PmiFault]) -> (u64, u64) {
    // Every second sequence.
    let retries = seed % 2 == 1;
    let lasting = faults.is_empty();
    let faults =
        if lasting { &[PmiFault::None, PmiFault::Late(3), PmiFault::Lost] } else { faults };
    let what = format!("{}, {kind:?}, seed {seed}, {faults:?}", processor.name);
    let mock = processor.mock();
    let kernel = Kernel::new(processor, kind, &mock);
    kernel.period.set(PERIOD);
    let handler = |mock: &Mock<'_>| kernel.handle(mock);
    mock.on_interrupt(&handler);
    let mut session = kernel.take(&mock);
    let request = match kind {
        IbsKind::Op => IbsSampling::cycles(),
        IbsKind::Fetch => IbsSampling::fetches(),
    };
    let event = |tag| request.event().every(PERIOD).with_total().rotating().tagged(tag);
    let mut open = |tag| session.open(&kernel.counters, &[event(tag)]).unwrap();
    let events = ROTATING.map(|tag| (tag, open(tag))).to_vec();
    let threads = THREADS.map(|tag| {
        let id = session.open(&kernel.counters, &[event(tag)]).unwrap();
        session.enable(id, 0).unwrap();
        let mut thread = [ThreadEvent::Opened(id)];
        session.switch_out(&mut thread, 0, |_| ()).unwrap();
        thread
    });
    let (counted, sampled, log) = (BTreeMap::new(), BTreeMap::new(), vec![]);
    let (kernel, mock) = (&kernel, &mock);
    let is_exact = processor.is_exact(kind) && !lasting;
    // Accesses until two fail in a row.
    let left = Cell::new(0_u32);
    let before = |mock: &Mock<'_>| {
        match left.get() {
            3 => mock.inject(Fault::From(1)),
            1 => mock.inject(Fault::None),
            _ => {}
        }
        left.set(left.get().saturating_sub(1));
    };
    if lasting {
        mock.on_access(&before);
    }
    let mut world = World {
        kernel,
        mock,
        is_exact,
        lasting,
        foreign: 0,
        session,
        events,
        threads,
        counted,
        sampled,
        log,
    };
    let mut random = Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for _ in 0..200 {
        let fault = faults[random.below(faults.len() as u64) as usize];
        mock.inject_pmi(fault);
        world.log.push(format!("{fault:?}"));
        if lasting {
            left.set(3 + random.below(24) as u32);
        } else if retries {
            // One access fails, in the interrupt's handler or in the operation, and its retry succeeds.
            mock.inject(Fault::At(1 + random.below(24) as u32));
        }
        world.execute(random.below(160));
        mock.inject_pmi(PmiFault::None);
        world.operate(random.below(14), random.below(6) as usize);
        if lasting {
            left.set(0);
            mock.inject(Fault::None);
            if kernel.faulted.take() != 0 || world.log.last().is_some_and(|log| log.contains("Err"))
            {
                world.session.reprogram(|sample| kernel.note(&sample)).unwrap();
            }
        }
        world.check(&what);
    }
    mock.deliver_sample();
    world.session.report_samples(|sample| kernel.note(&sample)).unwrap();
    world.check(&what);
    // No interrupt of the unit's is unclaimed.
    assert!(lasting || kernel.unknown.get() <= world.foreign, "{what}: {}", kernel.unknown.get());
    let due = world.counted.values().map(|counted| counted / PERIOD).sum();
    assert_eq!((kernel.faulted.get(), kernel.overflows.get()), (0, 0), "{what}");
    world.session.shut_down().unwrap();
    assert!(!is_enabled(mock), "{what}");
    mock.on_interrupt(&|_| ());
    mock.on_access(&|_| ());
    (kernel.seen.borrow().len() as u64, due)
}

#[test]
fn any_sequence_counts_each_op_once_and_shows_each_sample_to_its_own_event() {
    let late = [PmiFault::None, PmiFault::Late(0), PmiFault::Late(3), PmiFault::Late(9)];
    let lost = [PmiFault::None, PmiFault::Lost, PmiFault::Late(2), PmiFault::Late(1_000)];
    for processor in processors().into_iter().filter(|of| of.is_exact(IbsKind::Op)) {
        for seed in 0..5 {
            let (reported, due) = run(processor, IbsKind::Op, seed, &[PmiFault::None]);
            assert_eq!(reported, due, "{}, {seed}", processor.name);
            for faults in [late, lost] {
                let (reported, due) = run(processor, IbsKind::Op, seed, &faults);
                // A sample that was taken back, or waits for the next occurrence, comes after one op more.
                let range = due.saturating_sub(5)..=due;
                assert!(
                    range.contains(&reported),
                    "{}, {seed}: {reported} of {due}",
                    processor.name
                );
            }
        }
    }
}

/// Units whose count cannot be written lose parts of sixteen fetches, but show no sample to another event.
#[test]
fn any_sequence_shows_each_sample_of_any_unit_to_its_own_event() {
    let faults = [PmiFault::None, PmiFault::Lost, PmiFault::Late(3), PmiFault::Late(1_000)];
    for (processor, kind) in units().filter(|(processor, kind)| !processor.is_exact(*kind)) {
        for seed in 0..3 {
            let (reported, _) = run(processor, kind, seed, &faults);
            assert!(reported > 10, "{}, {kind:?}, {seed}: {reported}", processor.name);
        }
    }
}

/// Accesses that fail for good may cost samples and counts. No sample is shown to another event, or twice.
#[test]
fn any_sequence_with_registers_that_do_not_answer_shows_no_sample_to_another_event() {
    for (processor, kind) in units() {
        for seed in 0..3 {
            let (reported, _) = run(processor, kind, seed, &[]);
            assert!(reported > 10, "{}, {kind:?}, {seed}: {reported}", processor.name);
        }
    }
}
