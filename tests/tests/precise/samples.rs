//! Records that a processor writes come back whole.

use pmu_core::CounterSet;
use pmu_core::error::CounterError;
use pmu_core::precise::{NotPrecise, Precision, SampleParts};
use pmu_intel::precise::{GeneralRegister, PreciseFormat, PreciseThreshold};
use pmu_tests::Reason;
use pmu_tests::opened::raw;
use pmu_virt::Read;
use pmu_virt::mock::PmiFault;

use crate::scene::*;
use crate::support::*;

#[test]
fn each_record_of_each_format_is_reported_once_and_each_interrupt_is_claimed() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mock = scene.mock;
        let mut session = scene.take();
        let control = mock.with_pmu(|pmu| pmu.read(0x38F));
        let event = scene.start(&mut session, &precise(0).tagged(7));
        for number in 1..=20 {
            scene.happen(0, PERIOD - 1);
            assert_eq!(mock.interrupts(), number - 1, "{what}");
            scene.happen(0, 1);
            assert_eq!(mock.interrupts(), number, "{what}");
            assert!(scene.claimed.get() >= number, "{what}");
        }
        scene.all_reported(&what);
        assert_eq!((scene.seen.borrow().len(), scene.samples(7)), (20, 20), "{what}");
        session.disable(event, 0).unwrap();
        scene.happen(0, 10 * PERIOD);
        assert_eq!((mock.written_records(), scene.reported()), (20, 20), "{what}");
        assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38F)), control, "{what}");
        assert_eq!((scene.unclaimed.get(), scene.faulted.get()), (0, 0), "{what}");
        assert_eq!(scene.memory.dropped(), Default::default(), "{what}");
        scene.ends_after(session, 20, &what);
    }
}

#[test]
fn a_nearly_full_buffer_interrupts_once_for_many_records_and_a_task_reports_the_rest() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        let mut until = 0;
        while scene.mock.interrupts() == 0 {
            scene.happen(0, PERIOD);
            until += 1;
            assert!(until < 1000, "{what}");
        }
        // A buffer of 16 KiB; Core 2, whose records have format 0, takes one page: 28 records.
        assert!(until == 27 || until > 50, "{what}: {until}");
        scene.all_reported(&what);
        scene.happen(0, 7 * PERIOD);
        assert_eq!((scene.mock.interrupts(), scene.reported()), (1, until), "{what}");
        scene.drain(&mut session);
        scene.all_reported(&what);
        scene.happen(0, 3 * PERIOD);
        scene.ends_after(session, until + 10, &what);
    }
}

#[test]
fn plain_events_are_served_in_the_same_interrupts() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.start(&mut session, &raw(2).every(10_000).tagged(1));
        for _ in 0..10 {
            scene.happen(0, PERIOD);
            scene.happen(2, 10_000);
        }
        assert_eq!([0, 1].map(|tag| scene.samples(tag)), [10, 10], "{what}");
        assert_eq!((scene.mock.interrupts(), scene.unclaimed.get()), (20, 0), "{what}");
        scene.ends_after(session, 10, &what);
    }
}

#[test]
fn two_events_have_their_own_records() {
    for processor in processors().into_iter().filter(tells_apart) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let [first, second] =
            [precise(0).tagged(7), precise(3)].map(|event| scene.start(&mut session, &event));
        let on = [first, second].map(|event| session.counter_of(event).unwrap().only().bits());
        assert_eq!(scene.enabled(), on[0] | on[1], "{what}");
        for _ in 0..5 {
            scene.happen(0, PERIOD);
            scene.happen(3, PERIOD);
        }
        let tags = || scene.seen.borrow().iter().map(|seen| seen.tag).collect::<Vec<_>>();
        assert_eq!(tags(), [7, 3].repeat(5), "{what}");
        session.disable(first, 0).unwrap();
        scene.happen(0, PERIOD);
        scene.happen(3, PERIOD);
        assert_eq!(tags()[10..], [3], "{what}");
        let mock = scene.mock;
        scene.ends_after(session, 11, &what);
        assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38E)), Read::Value(0), "{what}");
    }
}

/// The period that runs stays; the next one is another.
#[test]
fn a_period_that_a_task_sets_is_the_next_ones() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0));
        scene.happen(0, PERIOD);
        assert_eq!(scene.reported(), 1, "{what}");
        scene.table.set_period(event, 10 * PERIOD).unwrap();
        scene.happen(0, PERIOD);
        assert_eq!(scene.reported(), 2, "{what}");
        scene.happen(0, 10 * PERIOD - 1);
        assert_eq!(scene.reported(), 2, "{what}");
        scene.happen(0, 1);
        assert_eq!(scene.reported(), 3, "{what}");
        assert_eq!(scene.table.set_period(event, 0), Err(CounterError::Period(0)));
        scene.happen(0, 10 * PERIOD);
        scene.ends_after(session, 4, &what);
    }
}

#[test]
fn parts_that_were_asked_for_are_in_the_records() {
    for processor in processors() {
        let fed = |number| {
            let mut fed = instruction(number);
            fed.registers.general[0] = 0xA0 + number; // RAX
            fed.registers.general[5] = 0xB9; // RBP
            (fed.data_address, fed.data_source, fed.latency) = (0x7000 + number, 3, 55);
            fed
        };
        let (scene, what) = (Scene::with(processor, fed, Mock::strict), name(&processor));
        let mut session = scene.take();
        let parts = scene.unit.groups();
        assert!(parts.contains(SampleParts::REGISTERS), "{what}");
        scene.start(&mut session, &precise(0).recording(parts));
        // Not in the interrupt.
        scene.mock.inject_pmi(PmiFault::Lost);
        scene.happen(0, PERIOD);
        scene.drain(&mut session);
        let records = scene.records.borrow();
        assert_eq!(records.len(), 1, "{what}");
        let record = &records[0];
        let registers = record.registers().unwrap();
        assert_eq!(registers.get(GeneralRegister::Rax), Some(0xA0), "{what}");
        assert_eq!(registers.get(GeneralRegister::Rbp), Some(0xB9), "{what}");
        assert_eq!(record.next_address(), Some(address(0) + 4), "{what}");
        if parts.contains(SampleParts::ACCESS) {
            let memory = record.memory().unwrap();
            assert_eq!((memory.address, memory.source), (Some(0x7000), 3), "{what}");
        }
        assert_eq!(record.vectors().is_some(), parts.contains(SampleParts::VECTORS), "{what}");
        let has_counters = parts.contains(SampleParts::COUNTERS);
        assert_eq!(record.counter_values().is_some(), has_counters, "{what}");
        let branches = record.branches().map(|branches| branches.raw().count());
        assert_eq!(branches.is_some(), parts.branch_count() != 0, "{what}");
        if record.time().is_some() {
            assert_eq!(record.time(), Some(1000), "{what}");
        }
    }
}

#[test]
fn what_a_processor_cannot_record_is_refused_with_the_reason() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let mut opened = |event| {
            let before = scene.mock.accesses();
            let outcome = session.open(&scene.counters, &[event]);
            assert_eq!(scene.mock.accesses(), before, "{what}");
            outcome
        };
        let mut refused = |event| match opened(event).reason() {
            Err(CounterError::NotPrecise(error)) => error,
            other => panic!("{what}: {other:?}"),
        };
        let event = |precision| raw(0).every(PERIOD).precise(precision);
        assert_eq!(refused(raw(0).precise(Precision::ConstantSkid)), NotPrecise::NoPeriod);
        let format = scene.unit.format();
        let latency = refused(precise(0).latency_at_least(30));
        let has_none = format == PreciseFormat::Core;
        let of_access = NotPrecise::Parts(SampleParts::ACCESS);
        assert_eq!(latency, if has_none { of_access } else { NotPrecise::NotLatencyEvent });
        let vectors = precise(0).recording(SampleParts::VECTORS);
        match format {
            PreciseFormat::Core => {
                let access = refused(precise(0).recording(SampleParts::ACCESS));
                assert_eq!(access, NotPrecise::Parts(SampleParts::ACCESS));
            }
            PreciseFormat::Skylake => {
                assert_eq!(refused(vectors), NotPrecise::Parts(SampleParts::VECTORS));
            }
            _ => {}
        }
        let exact = event(Precision::ZeroSkidRequired);
        match format {
            PreciseFormat::Core | PreciseFormat::Nehalem => {
                let zero = refused(event(Precision::ZeroSkidRequested));
                assert_eq!(zero, NotPrecise::NextAddressOnly);
                assert_eq!(refused(precise(5)), NotPrecise::Event);
            }
            // The mock is a Haswell or a Skylake, where counter 1 is exact for another event; a Sapphire Rapids; or
            // what leaf 0x23 says: general counter 0 and fixed counter 0.
            PreciseFormat::Haswell | PreciseFormat::Skylake => {
                assert_eq!(refused(exact), NotPrecise::NoExactCounter);
            }
            _ => {
                assert_eq!(scene.unit.exact_counters().bits(), 1 << 32 | 1, "{what}");
                let elsewhere = CounterSet::ALL.without(CounterSet::from_bits(1 << 32 | 1));
                let outcome = opened(exact.on(elsewhere));
                let reason = CounterError::NotPrecise(NotPrecise::NoExactCounter);
                assert_eq!(outcome.reason(), Err(reason), "{what}");
                opened(exact).expect(&what);
            }
        }
        assert_eq!(scene.enabled(), 0, "{what}");
    }
}
