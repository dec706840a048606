//! Precise events beside other users of the counters and of the interrupt.

use pmu_core::error::CounterError;
use pmu_core::precise::Precision;
use pmu_core::registers::EventSelect;
use pmu_core::{CounterSet, Event};
use pmu_intel::precise::PreciseThreshold;
use pmu_tests::Reason;
use pmu_tests::opened::raw;
use pmu_virt::mock::{Fault, PmiFault};

use crate::scene::*;
use crate::support::*;

/// `IA32_PERF_GLOBAL_STATUS`.
// SAFETY: the mock's registers are numbers.
const STATUS: pmu_core::access::RegisterAddress =
    unsafe { pmu_core::access::RegisterAddress::new(0x38E) };

/// The tag of a plain event.
const PLAIN: u64 = 2;

fn plain() -> Event {
    raw(2).every(10_000).tagged(PLAIN)
}

/// The handler of a kernel asks each source of NMIs.
#[test]
fn another_owners_interrupt_is_not_claimed_although_records_wait_in_the_buffer() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.happen(0, 3 * PERIOD);
        assert!(scene.mock.interrupt_from_elsewhere());
        assert_eq!((scene.claimed.get(), scene.unknown.get()), (0, 1), "{what}");
        scene.drain(&mut session);
        scene.all_reported_but(1, &what);
        assert_eq!(scene.reported(), 3, "{what}");
        scene.ends(session, &what);
    }
}

/// The area names no buffer yet.
#[test]
fn an_interrupt_while_the_memory_is_taken_loses_no_buffer() {
    for processor in processors() {
        for access in 1..12 {
            let what = format!("{}, {access}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            let event = session.open(&scene.counters, &[precise(0)]).unwrap();
            scene.mock.interrupt_at(access);
            session.enable(event, 0).unwrap();
            scene.mock.interrupt_at(0);
            assert_eq!(scene.memory.dropped(), Default::default(), "{what}");
            scene.happen(0, 2 * PERIOD);
            scene.drain(&mut session);
            let addresses = scene.addresses(0);
            let expected: Vec<_> =
                (0..scene.mock.written_records()).map(|number| Some(address(number))).collect();
            assert!(addresses == expected && addresses.len() >= 2, "{what}: {addresses:x?}");
            scene.ends(session, &what);
        }
    }
}

/// Memory keeps what registers lose, and registers that lost nothing keep the index.
#[test]
fn a_reprogramming_of_registers_that_lost_nothing_reports_the_records_that_wait() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.happen(0, 3 * PERIOD);
        session.reprogram(|sample| scene.note(&sample)).unwrap();
        scene.all_reported(&what);
        assert_eq!(scene.reported(), 3, "{what}");
        scene.happen(0, 2 * PERIOD);
        scene.ends_after(session, 5, &what);
    }
}

#[test]
fn a_suspended_session_is_resumed_with_its_records() {
    for processor in processors() {
        for loses in [false, true] {
            let what = format!("{}, {loses}", name(&processor));
            let scene = Scene::new(processor);
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            scene.start(&mut session, &precise(0));
            scene.start(&mut session, &plain());
            scene.happen(0, 3 * PERIOD);
            session.suspend(0, |sample| scene.note(&sample)).unwrap();
            assert_eq!(scene.reported(), 3, "{what}");
            scene.happen(0, 3 * PERIOD);
            if loses {
                scene.lose_registers();
            }
            session.resume(0, |_| ()).unwrap();
            scene.happen(0, 2 * PERIOD);
            scene.happen(2, 10_000);
            assert_eq!(scene.samples(PLAIN), 1, "{what}");
            scene.ends_after(session, 5, &what);
        }
    }
}

/// Another event on the counter of a precise event, whose registers were lost meanwhile.
#[test]
fn a_plain_event_that_got_a_precise_events_counter_loses_no_overflow() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        // On general counter 0.
        let on_first = CounterSet::from_bits(1);
        let event = scene.start(&mut session, &precise(0).on(on_first));
        scene.lose_registers();
        session.reprogram(|_| ()).unwrap();
        let other = session.open(&scene.counters, &[plain().on(on_first)]).unwrap();
        assert_eq!(session.enable(other, 0).reason(), Err(CounterError::NoFreeCounter), "{what}");
        session.disable(event, 0).unwrap();
        session.enable(other, 0).unwrap();
        for number in 1..=3 {
            scene.happen(2, 10_000);
            assert_eq!(scene.samples(PLAIN), number, "{what}");
        }
        assert_eq!(session.enable(event, 0).reason(), Err(CounterError::NoFreeCounter), "{what}");
        session.disable(other, 0).unwrap();
        session.enable(event, 0).unwrap();
        scene.happen(0, PERIOD);
        scene.ends_after(session, 1, &what);
    }
}

/// Records that wait when a session ends are lost with it, and are none of the next session's.
#[test]
fn a_session_reports_no_records_of_the_session_before() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0).tagged(1));
        scene.happen(0, 2 * PERIOD);
        session.shut_down().unwrap();
        nothing_is_enabled(scene.mock, &what);
        scene.happen(0, 2 * PERIOD);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0).tagged(2));
        scene.happen(0, 2 * PERIOD);
        scene.drain(&mut session);
        let numbers = scene.addresses(2);
        assert_eq!(numbers, [2, 3].map(|number| Some(address(number))), "{what}");
        assert_eq!((scene.samples(1), scene.memory.dropped()), (0, Default::default()), "{what}");
        scene.ends(session, &what);
    }
}

#[test]
fn events_that_rotate_leave_a_precise_events_counter_alone() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        let on = CounterSet::from_bits(0b10);
        for kind in [2, 3, 4] {
            let event = raw(kind).on(on).every(10_000).rotating().tagged(kind as u64);
            scene.start(&mut session, &event);
        }
        for now in 1..=12 {
            scene.happen(0, PERIOD);
            for kind in [2, 3, 4] {
                scene.happen(kind, 10_000);
            }
            session.rotate(now).unwrap();
        }
        assert_eq!(scene.seen.borrow().len() - scene.reported(), 12, "{what}");
        scene.ends_after(session, 12, &what);
    }
}

#[test]
fn no_precise_event_starts_beside_an_exclusive_event() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let exclusive = scene.start(&mut session, &raw(2).exclusive());
        let event = session.open(&scene.counters, &[precise(0)]).unwrap();
        assert_eq!(session.enable(event, 0).reason(), Err(CounterError::NoFreeCounter), "{what}");
        session.disable(exclusive, 0).unwrap();
        session.enable(event, 0).unwrap();
        scene.happen(0, PERIOD);
        scene.ends_after(session, 1, &what);
    }
}

/// The handler may choose another period, and a switch of threads keeps it.
#[test]
fn a_thread_keeps_the_period_that_the_handler_chose() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let mut thread = thread(scene, &precise(0));
        *scene.react.borrow_mut() = Some(Box::new(|scene, seen| {
            scene.table.set_period(seen.event, 10 * PERIOD).unwrap();
        }));
        session.switch_in(&scene.counters, &mut thread, 0).unwrap();
        scene.happen(0, PERIOD);
        scene.happen(0, 4 * PERIOD);
        session.switch_out(&mut thread, 0, |sample| scene.note(&sample)).unwrap();
        session.switch_in(&scene.counters, &mut thread, 0).unwrap();
        scene.happen(0, 6 * PERIOD - 1);
        assert_eq!(scene.reported(), 1, "{what}");
        scene.happen(0, 1);
        assert_eq!(scene.reported(), 2, "{what}");
        scene.happen(0, 10 * PERIOD - 1);
        assert_eq!(scene.reported(), 2, "{what}");
        scene.happen(0, 1);
        scene.ends_after(session, 3, &what);
    }
}

/// The status is unreadable, and no record of the buffer may be shown: the interrupt is the buffer's nevertheless.
#[test]
fn an_interrupt_whose_status_cannot_be_read_is_claimed_although_its_records_are_hidden() {
    for processor in processors() {
        let of_kernel = |number| pmu_virt::precise::FedRecord {
            registers: pmu_virt::precise::FedRegisters {
                ip: u64::MAX - 15,
                ..pmu_virt::precise::FedRegisters::ZERO
            },
            ..pmu_virt::precise::FedRecord::new((1 << 63) + number)
        };
        let (scene, what) = (Scene::with(processor, of_kernel, Mock::strict), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.mock.inject(Fault::Ignored(0x38E));
        scene.happen(0, PERIOD);
        scene.mock.inject(Fault::None);
        assert_eq!(scene.memory.dropped().hidden, 1, "{what}");
        assert_eq!((scene.unknown.get(), scene.seen.borrow().len()), (0, 0), "{what}");
    }
}

#[test]
fn a_lost_interrupt_of_a_buffer_is_made_up_for_by_the_next_one() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.mock.inject_pmi(PmiFault::Lost);
        scene.happen(0, PERIOD);
        scene.mock.inject_pmi(PmiFault::None);
        assert!(scene.mock.interrupt_from_elsewhere());
        scene.ends_after(session, 1, &what);
    }
}

/// The last interrupt comes when the session is gone.
#[test]
fn a_late_interrupt_is_claimed_whatever_was_stopped_meanwhile() {
    for processor in processors() {
        for late in 1..60 {
            let what = format!("{}, {late}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            scene.start(&mut session, &precise(0));
            scene.mock.inject_pmi(PmiFault::Late(late));
            scene.happen(0, PERIOD);
            scene.drain(&mut session);
            session.shut_down().unwrap();
            while scene.mock.interrupts() == 0 {
                let _ = pmu_core::access::RegisterBackend::read(scene.mock, STATUS);
            }
            assert_eq!((scene.unknown.get(), scene.faulted.get()), (0, 0), "{what}");
            scene.all_reported(&what);
            nothing_is_enabled(scene.mock, &what);
        }
    }
}

/// A predecessor's bit of the status: no interrupt was ever served for it.
#[test]
fn a_bit_that_a_predecessor_left_in_the_status_stalls_no_record() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        // IA32_PERF_GLOBAL_STATUS_SET, of versions that have it.
        let bit = if scene.unit.needs_physical_address() { 54 } else { 62 };
        let _ = scene.mock.with_precise_records(|records| {
            scene.mock.with_pmu(|pmu| pmu.write_beside(records, 0x391, 1 << bit))
        });
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        for number in 1..=3 {
            scene.happen(0, PERIOD);
            assert_eq!(scene.reported(), number, "{what}");
        }
        scene.ends(session, &what);
    }
}

#[test]
fn a_precise_events_counter_is_not_given_to_another_owner() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0));
        let counter = session.counter_of(event).unwrap();
        assert!(session.give_back(counter.only()).is_err(), "{what}");
        scene.happen(0, PERIOD);
        scene.all_reported(&what);
        assert_eq!(scene.reported(), 1, "{what}");
        session.disable(event, 0).unwrap();
        session.give_back(counter.only()).unwrap();
        assert_eq!(scene.enabled() & counter.only().bits(), 0, "{what}");
        scene.ends(session, &what);
    }
}

/// INST_RETIRED.PREC_DIST (0x01C0) of Haswell and Skylake is exact on counter 1; from Ice Lake on each event is, on
/// counters that the model, or CPUID leaf 0x23, names.
#[test]
fn an_exact_event_is_started_on_an_exact_counter_and_on_no_other() {
    for processor in processors() {
        let (select, exact) = match processor.name {
            "format 0" | "format 1" => continue,
            "format 2" | "format 3" => (0x01C0, CounterSet::from_bits(0b10)),
            _ => (0xC0, CounterSet::from_bits(1 << 32 | 1)),
        };
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let event = Event::raw(EventSelect::from_bits(select)).user_only().every(PERIOD);
        let event = event.precise(Precision::ZeroSkidRequired);
        for _ in exact.iter() {
            let event = scene.start(&mut session, &event);
            let counter = session.counter_of(event).unwrap();
            assert!(exact.contains(counter), "{what}: {counter:?}");
        }
        assert_eq!(scene.enabled(), exact.bits(), "{what}");
        let another = session.open(&scene.counters, &[event]).unwrap();
        assert_eq!(session.enable(another, 0).reason(), Err(CounterError::NoFreeCounter), "{what}");
        scene.ends(session, &what);
    }
}
