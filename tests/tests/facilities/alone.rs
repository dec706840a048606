//! A facility whose interrupt comes without any counter.

use core::cell::Cell;

use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation, RegisterBackend};
use pmu_core::facility::{EventFacility, Facility, Running, Unsettled};
use pmu_core::{Claim, CounterSession, CounterSet, Events, service};
use pmu_tests::opened::Mock;
use pmu_virt::mock::{Deviation, Deviations};

use super::hardware::*;
use super::scene::*;

#[test]
fn an_op_is_served_where_no_session_has_taken_the_counters() {
    each(platforms(), |processor, freezes| {
        let scene = Scene::new(processor, freezes);
        let handler = |mock: &Mock<'_>| scene.interrupt(mock);
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        for op in 1..=3 {
            scene.hardware.accesses.set(0);
            scene.hardware.sample_op(&mock);
            let serviced = scene.last.get().unwrap().unwrap();
            assert_eq!((serviced.claim, serviced.lent), (Claim::Ours, false), "{}", scene.context);
            assert_eq!(scene.hardware.op_samples.borrow().len(), op, "{}", scene.context);
            // Is there an op, its data, and the sampler armed again: no register of counters.
            assert_eq!(scene.hardware.accesses.get(), 3, "{}", scene.context);
        }
        // Nothing is claimed that the facility does not account for.
        scene.expect_foreign();
        mock.interrupt_from_elsewhere();
        assert_eq!(scene.last.get().unwrap().unwrap().claim, Claim::NotOurs, "{}", scene.context);
    });
}

/// Facilities that need counters are not asked.
#[test]
fn without_counters_no_register_is_accessed_for_facilities_that_need_them() {
    each([Deviations::NONE], |processor, freezes| {
        let scene = Scene::new(processor, freezes);
        scene.hardware.wanted.set(true);
        let mock = processor.mock();
        let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
        let hardware = &scene.hardware;
        let facilities = (LastBranch::new(hardware), Buffer { hardware, counter: None });
        let source = Events::new(&processor.unit, &scene.table).with(facilities);
        let serviced = service(&source, &registers, &scene.memory, |_| ());
        assert_eq!(serviced.unwrap().claim, Claim::NotOurs);
        assert_eq!((hardware.accesses.get(), mock.accesses().total()), (0, 0));
    });
}

/// An op is sampled at each access of the service of another one.
#[test]
fn an_op_within_the_service_of_an_op_is_not_lost() {
    for deviations in [Deviations::NONE, Deviations::of(&[Deviation::NestsInterrupts])] {
        each([deviations], |processor, freezes| {
            for at in 1..8 {
                let scene = Scene::new(processor, freezes);
                // The recorder has an access after the op's last one.
                scene.hardware.wanted.set(true);
                let handler = |mock: &Mock<'_>| scene.interrupt(mock);
                let mock = processor.mock();
                mock.on_interrupt(&handler);
                scene.at.set(Some(at));
                scene.hardware.sample_op(&mock);
                scene.hardware.sample_op(&mock);
                let ops: Vec<_> = (1..=scene.hardware.ops.get()).collect();
                assert_eq!(*scene.hardware.op_samples.borrow(), ops, "{}: {at}", scene.context);
            }
        });
    }
}

/// The session services overflows itself as it programs its counters again.
#[test]
fn an_op_and_an_overflow_within_a_tasks_own_service_are_not_lost() {
    each(platforms(), |processor, freezes| {
        (1..).find(|at| {
            let scene = Scene::of_samples(processor, freezes);
            let handler = |mock: &Mock<'_>| scene.interrupt(mock);
            let mock = processor.mock();
            mock.on_interrupt(&handler);
            let sample = |mock: &Mock<'_>| {
                if scene.hardware.accesses.get() + 1 == *at {
                    scene.happen(mock, SAMPLED, PERIOD);
                    scene.hardware.sample_op(mock);
                }
            };
            let registers = Registers(&mock, &scene.hardware, sample);
            let mut counters = scene.take(&registers);
            scene.hardware.accesses.set(0);
            counters.reprogram(|sample| scene.note(&sample)).unwrap();
            let ops: Vec<_> = (1..=scene.hardware.ops.get()).collect();
            assert_eq!(*scene.hardware.op_samples.borrow(), ops, "{}: {at}", scene.context);
            let told = scene.told.borrow().len() as u64;
            assert_eq!(told, scene.overflows[0].get(), "{}: {at}", scene.context);
            scene.hardware.accesses.get() < *at
        });
    });
}

/// The LVT entry of the counters is masked; the op's interrupt has another one.
#[test]
fn an_op_is_served_while_the_counters_interrupt_is_masked() {
    each([Deviations::NONE], |processor, freezes| {
        if processor.unit.global().is_none() {
            return;
        }
        on(processor, freezes, |scene, mock| {
            scene.hardware.faults.set(Some((1, u32::MAX)));
            scene.happen(mock, SAMPLED, PERIOD);
            scene.hardware.faults.set(None);
            let error = scene.last.get().unwrap().unwrap_err();
            assert!(error.masked, "{}", scene.context);
            for _ in 0..2 {
                scene.hardware.sample_op(mock);
                let serviced = scene.last.get().unwrap().unwrap();
                assert_eq!(serviced.claim, Claim::Ours, "{}", scene.context);
            }
            assert_eq!(*scene.hardware.op_samples.borrow(), [1, 2], "{}", scene.context);
        });
    });
}

/// The counters' interrupt finds the op, whose own interrupt would not come again.
#[test]
fn an_op_is_served_although_the_status_cannot_be_read() {
    each([Deviations::NONE], |processor, freezes| {
        let Some(global) = processor.unit.global() else { return };
        on(processor, freezes, |scene, mock| {
            scene.hardware.broken.set(Some(global.status.get()));
            scene.hardware.sample_op_before_its_interrupt();
            scene.happen(mock, SAMPLED, PERIOD);
            let error = scene.last.get().unwrap().unwrap_err();
            assert!(error.masked, "{}", scene.context);
            assert_eq!(*scene.hardware.op_samples.borrow(), [1], "{}", scene.context);
        });
    });
}

/// A borrower may use the sampler: the interrupt may be the borrower's.
#[test]
fn while_the_counters_are_lent_no_facility_is_served() {
    each(platforms(), |processor, freezes| {
        let scene = Scene::new(processor, freezes);
        let handler = |mock: &Mock<'_>| scene.interrupt(mock);
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let registers = Registers(&mock, &scene.hardware, |mock: &Mock<'_>| scene.step(mock));
        let mut counters = scene.take(&registers);
        let window = counters.lend(0, |_| ()).unwrap();
        scene.hardware.accesses.set(0);
        scene.expect_foreign();
        scene.hardware.sample_op(&mock);
        assert!(scene.last.get().unwrap().unwrap().lent, "{}", scene.context);
        assert_eq!(scene.hardware.accesses.get(), 0, "{}", scene.context);
        window.end(0).unwrap();
        scene.overflow_all(&mock);
        scene.assert_complete();
    });
}

#[test]
fn a_pair_is_served_alone_if_one_of_the_two_is() {
    const { assert!(!<LastBranch<'_> as Facility>::ALONE) };
    const { assert!(<(LastBranch<'_>, Ops<'_>) as Facility>::ALONE) };
    const { assert!(<((Ops<'_>, Buffer<'_>), ()) as Facility>::ALONE) };
    const { assert!(!<(LastBranch<'_>, Buffer<'_>) as Facility>::ALONE) };
}

/// A facility that another owner's interrupt stopped.
#[derive(Clone, Copy)]
struct Stopped<'a>(&'a Cell<u32>);

unconcerned!(Stopped<'_>, Late<'_>);

impl Facility for Stopped<'_> {
    fn without_counters<M: RegisterBackend>(&mut self, _: &M) -> Result<(), AccessFault> {
        self.0.set(self.0.get() + 1);
        let (operation, kind) = (AccessOperation::Write, AccessErrorKind::Fault);
        Err(AccessFault { operation, register: 0x390, kind })
    }
}

/// Of a pair, and beside one that interrupts alone; and the failure is told.
#[test]
fn each_facility_learns_of_an_interrupt_without_counters_and_of_none_in_a_window() {
    let processor = pmu_tests::opened::plain(4);
    let scene = Scene::new(&processor, false);
    let mock = processor.mock();
    let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
    let (unit, memory) = (&processor.unit, &scene.memory);
    let source = Events::new(unit, &scene.table);
    let calls = Cell::new(0);
    let stopped = || Stopped(&calls);
    let refused = |error: pmu_core::error::ServiceError| (error.fault.register, error.masked);
    let both = source.with((Some(stopped()), (stopped(), None::<Stopped<'_>>)));
    let serve = || service(&both, &registers, memory, |_| ()).map_err(refused);
    assert_eq!(serve().map(|_| ()), Err((0x390, false)));
    assert_eq!(calls.replace(0), 2);
    let ops = source.with((Ops(&scene.hardware), stopped()));
    let served = service(&ops, &registers, memory, |_| ());
    assert_eq!(served.map(|_| ()).map_err(refused), Err((0x390, false)));
    assert_eq!(calls.replace(0), 1);
    // It is called neither while counters are served nor while they are lent.
    let mut counters =
        CounterSession::take(both, unit, CounterSet::ALL, &registers, memory).unwrap();
    serve().unwrap();
    let window = counters.lend(0, |_| ()).unwrap();
    assert!(serve().unwrap().lent);
    window.end(0).unwrap();
    assert_eq!(calls.get(), 0);
}

/// A facility that was suspended with interrupts under way.
#[derive(Clone, Copy)]
struct Late<'a>(&'a Cell<u32>);

impl Facility for Late<'_> {
    fn while_lent(&mut self) -> u32 {
        self.0.take()
    }
}

/// Of a pair, and beside one that interrupts alone.
#[test]
fn late_interrupts_of_each_facility_are_claimed_in_a_window() {
    let processor = pmu_tests::opened::plain(4);
    let scene = Scene::new(&processor, false);
    let mock = processor.mock();
    let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
    let late: [Cell<u32>; 3] = Default::default();
    let [first, second, third] = late.each_ref().map(Late);
    let all = ((Ops(&scene.hardware), Some(first)), (second, third));
    let (unit, memory) = (&processor.unit, &scene.memory);
    let source = Events::new(unit, &scene.table).with(all);
    let mut counters =
        CounterSession::take(source, unit, CounterSet::ALL, &registers, memory).unwrap();
    let serve = |interrupts: [u32; 3]| {
        late.iter().zip(interrupts).for_each(|(late, interrupts)| late.set(interrupts));
        let served = service(&source, &registers, memory, |_| ()).unwrap();
        (served.claim, served.lent)
    };
    assert_eq!(serve([1, 1, 1]), (Claim::NotOurs, false));
    let window = counters.lend(0, |_| ()).unwrap();
    assert_eq!(serve([0, 0, 0]), (Claim::NotOurs, true));
    for one in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
        assert_eq!(serve(one), (Claim::Ours, true));
    }
    assert_eq!(serve([1, 0, 1]), (Claim::OursAndMore, true));
    assert_eq!(serve([0, 2, 0]), (Claim::OursAndMore, true));
    window.end(0).unwrap();
}
