//! Branches in the samples of profile sources, which a recorder records, in a session whose source has the records.

use super::support::*;
use core::cell::RefCell;
use pmu::Machine;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{BranchFilter, Branches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventTable};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSet, EventSource, Events, Sample, service};
use pmu_tests::opened::{KINDS, happened};
use pmu_virt::branches::{FedBranch, FedBranchKind};

type Source<'a> = Events<'a, Machine, Branches<'a>>;

struct Scene<'s> {
    mock: &'s Mock<'s>,
    session: Session<'s, Source<'s>, &'s Mock<'s>>,
    /// Opens a session.
    initialize: &'s dyn Fn() -> Session<'s, Source<'s>, &'s Mock<'s>>,
    recorder: Recorder<'s, 's>,
    /// Addresses of the branches of each sample; `None` if the sample has no branch records.
    samples: &'s RefCell<Vec<Option<Vec<u64>>>>,
    kind: usize,
    interval: u64,
}

/// Returns a source of the machine, and the number of its event among those that happen.
fn source(machine: &Machine) -> (KProfileSource, usize) {
    let kind = |select: u64| {
        let found = KINDS.map(|(event, unit_mask)| u64::from(unit_mask) << 8 | u64::from(event));
        found.iter().position(|of| *of == select & 0xFFFF)
    };
    let is_counted = |source: KProfileSource| {
        source != KProfileSource::TIME && machine.query(source).is_supported()
    };
    let mut rows = machine.sources().iter().filter(|row| is_counted(row.source()));
    rows.find_map(|row| Some((row.source(), kind(row.select().select_bits())?))).unwrap()
}

/// Runs `act` on a session of profile sources alone, whose samples the handler notes.
fn with_rows(processor: &Processor, freezing: bool, act: impl FnOnce(&mut Scene<'_>)) {
    let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
    let (snapshot, memory) = (mock.snapshot(), CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new());
    let machine = Machine::detect(&snapshot);
    let of = Events::new(&machine, EventTable::none()).with(Branches::new(&unit, &records));
    let (samples, (source, kind)) = (RefCell::new(vec![]), source(&machine));
    let handler = |mock: &Mock<'_>| {
        let sampled = |sample: Sample<'_, Branches<'_>>| {
            assert_eq!(of.overflow(&sample).map(|of| of.source), Some(source));
            let found = |records: &Branches<'_>| records.iter().map(|branch| branch.from).collect();
            samples.borrow_mut().push(sample.branch_records().map(found));
        };
        let serviced = service(&of, mock, &memory, sampled).unwrap();
        assert_eq!(serviced.others, 0, "{}", processor.name);
    };
    mock.on_interrupt(&handler);
    let initialize = || Session::take(of, &snapshot, CounterSet::GENERAL, &mock, &memory).unwrap();
    let mut session = initialize();
    session.start(source).unwrap();
    let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
    if freezing {
        recorder.freeze_on_interrupt().unwrap();
    }
    let interval = machine.query(source).interval.into();
    let (mock, samples, initialize) = (&mock, &samples, &initialize);
    act(&mut Scene { mock, session, initialize, recorder, samples, kind, interval });
    no_breach(mock, processor.name);
}

impl Scene<'_> {
    /// Takes branches, and lets the source overflow. Returns the branches of its sample.
    fn sample(&self, branches: &[FedBranch]) -> Option<Vec<u64>> {
        branches.iter().for_each(|branch| self.mock.branch(branch));
        self.mock.advance(&mut happened(self.kind, self.interval));
        let mut samples = self.samples.take();
        assert_eq!(samples.len(), 1);
        samples.remove(0)
    }
}

fn each(mut act: impl FnMut(&Processor, bool)) {
    for processor in processors() {
        for freezing in [false, processor.unit().can_freeze()] {
            act(&processor, freezing);
        }
    }
}

#[test]
fn a_sample_of_a_source_has_the_branches_of_a_recorder_while_it_records() {
    each(|processor, freezing| {
        with_rows(processor, freezing, |scene| {
            let name = processor.name;
            assert_eq!(scene.sample(&[user(1)]), Some(vec![]), "{name}: taken");
            scene.recorder.start(BranchFilter::USER).unwrap();
            let [first, second] = [user(2).from, user(3).from];
            assert_eq!(scene.sample(&[user(2)]), Some(vec![first]), "{name}");
            assert_eq!(scene.sample(&[kernel(1), user(3)]), Some(vec![second, first]), "{name}");
            scene.recorder.stop().unwrap();
            assert_eq!(scene.sample(&[user(4)]), Some(vec![]), "{name}: stopped");
            scene.recorder.shut_down().unwrap();
            assert_eq!(scene.sample(&[user(5)]), None, "{name}: shut down");
        });
    });
}

/// Each operation of the session, which alone programs the recorder's registers.
#[test]
fn a_recorder_lives_with_a_session_of_sources() {
    each(|processor, freezing| {
        with_rows(processor, freezing, |scene| {
            let (mock, name) = (scene.mock, processor.name);
            let lent = |recorder: &mut Recorder<'_, '_>| {
                assert!(!is_recording(mock) && !recorder.is_recording(), "{name}");
                assert_eq!(recorder.restart(), Err(BranchError::Lent), "{name}");
            };
            scene.recorder.start(BranchFilter::USER).unwrap();
            mock.branch(&user(1));
            let window = scene.session.lend(0, |_| ()).unwrap();
            lent(&mut scene.recorder);
            mock.branch(&user(2));
            window.end(0).unwrap();
            assert_eq!(scene.sample(&[user(3)]), Some(vec![user(3).from]), "{name}");
            scene.session.suspend(0, |_| ()).unwrap();
            lent(&mut scene.recorder);
            mock.lose_registers();
            mock.set_performance_entry(0x400);
            scene.session.resume(0, |_| ()).unwrap();
            assert_eq!(scene.sample(&[kernel(1), user(4)]), Some(vec![user(4).from]), "{name}");
            mock.lose_registers();
            mock.set_performance_entry(0x400);
            scene.session.reprogram(|_| ()).unwrap();
            assert_eq!(scene.sample(&[kernel(1), user(5)]), Some(vec![user(5).from]), "{name}");
            // A recorder that is stopped returns stopped, without what a borrower left, and with its filter.
            scene.recorder.stop().unwrap();
            let window = scene.session.lend(0, |_| ()).unwrap();
            let (unit, others) = (processor.unit(), Records::new());
            let mut guest = BranchRecorder::take(&unit, mock, &others).unwrap();
            guest.start(BranchFilter::KERNEL).unwrap();
            mock.branch(&kernel(9));
            window.end(0).unwrap();
            assert!(!is_recording(mock), "{name}");
            assert_eq!(addresses(&mut scene.recorder), [], "{name}");
            scene.session.suspend(0, |_| ()).unwrap();
            mock.lose_registers();
            mock.set_performance_entry(0x400);
            scene.session.resume(0, |_| ()).unwrap();
            assert!(!is_recording(mock), "{name}");
            scene.recorder.restart().unwrap();
            assert_eq!(scene.sample(&[kernel(1), user(6)]), Some(vec![user(6).from]), "{name}");
            // A window that does not end, and the end of the session.
            drop(scene.session.lend(0, |_| ()).unwrap());
            lent(&mut scene.recorder);
            scene.session.shut_down().unwrap();
            assert!(!is_recording(mock) && !scene.recorder.is_recording(), "{name}");
            scene.recorder.restart().unwrap();
            mock.branch(&user(8));
            assert_eq!(addresses(&mut scene.recorder), [user(8).from], "{name}");
            scene.recorder.shut_down().unwrap();
        });
    });
}

#[test]
fn the_end_of_a_session_of_sources_ends_the_recording_and_not_the_recorder() {
    each(|processor, freezing| {
        with_rows(processor, freezing, |scene| {
            let (mock, name) = (scene.mock, processor.name);
            scene.recorder.start(BranchFilter::USER).unwrap();
            assert_eq!(scene.sample(&[user(1)]), Some(vec![user(1).from]), "{name}");
            scene.session.lend(0, |_| ()).unwrap().end(0).unwrap();
            scene.session.shut_down().unwrap();
            assert!(!is_recording(mock) && !scene.recorder.is_recording(), "{name}");
            // The next session leaves it at that.
            let mut next = (scene.initialize)();
            next.lend(0, |_| ()).unwrap().end(0).unwrap();
            assert!(!is_recording(mock) && !scene.recorder.is_recording(), "{name}");
            next.shut_down().unwrap();
            // The bit of the freeze may be set that nothing is known of.
            let freeze = processor.unit().registers().freeze.map(|freeze| freeze.bit.bits());
            // SAFETY: the mock's registers are numbers.
            let debug_control = unsafe { RegisterAddress::new(0x1D9) };
            if let Some(bit) = freeze {
                mock.write(debug_control, bit).unwrap();
            }
            scene.recorder.start(BranchFilter::USER).unwrap();
            if let Some(bit) = freeze {
                let set = mock.read(debug_control).unwrap() & bit != 0;
                assert_eq!(set, freezing, "{name}");
            }
            mock.branch(&user(7));
            assert_eq!(addresses(&mut scene.recorder), [user(7).from], "{name}");
            scene.recorder.shut_down().unwrap();
        });
    });
}

/// Its registers are known, although the session found them as they were.
#[test]
fn a_session_that_begins_beside_a_recording_leaves_it_alone() {
    let stack = BranchFilter::USER.call_stack();
    for processor in processors() {
        let has_stack = processor.unit().recorded(stack).is_some();
        with_rows(&processor, false, |scene| {
            let (mock, name) = (scene.mock, processor.name);
            let call = |number| FedBranch { kind: FedBranchKind::RelativeCall, ..user(number) };
            scene.session.shut_down().unwrap();
            scene.recorder.start(if has_stack { stack } else { BranchFilter::USER }).unwrap();
            mock.branch(&call(1));
            let restart = |recorder: &mut Recorder<'_, '_>| {
                let before = mock.accesses();
                recorder.restart().unwrap();
                let after = mock.accesses();
                (after.reads - before.reads, after.writes - before.writes)
            };
            let cost = restart(&mut scene.recorder);
            let mut next = (scene.initialize)();
            assert_eq!(restart(&mut scene.recorder), cost, "{name}");
            mock.branch(&call(2));
            assert!(is_recording(mock) && scene.recorder.is_recording(), "{name}");
            let calls = [2, 1].map(|number| user(number).from);
            if has_stack {
                next.lend(0, |_| ()).unwrap().end(0).unwrap();
            }
            assert_eq!(addresses(&mut scene.recorder), calls, "{name}");
            next.shut_down().unwrap();
        });
    }
}
