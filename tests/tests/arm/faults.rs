//! A fault, or an interrupt, at each access of a whole life of the counters.

use pmu::{Event, GenericEvent, PmuError};

use crate::world::{
    Met, World, accesses, execute, is_met, machine, meet, model, on, running, samples, shut_down,
};

const PERIOD: u64 = 5_000;

/// The counters are taken, an event samples, another counts, and the counters are given back. Returns the total of the
/// event that samples, of branches at EL0.
fn life(pmu: &'static World) -> Result<u64, PmuError> {
    pmu.processor_up(&model().identification())?;
    let samples = Event::generic(GenericEvent::Branches).user_only().every(PERIOD).with_total();
    let sampling = pmu.start(&samples)?;
    execute(0, 27_500);
    let counting = pmu.start(&Event::generic(GenericEvent::Instructions))?;
    execute(0, 25_000);
    pmu.read(sampling)?;
    pmu.disable(counting)?;
    pmu.close(counting)?;
    execute(0, 1_250);
    pmu.disable(sampling)?;
    let total = pmu.read(sampling)?.value;
    pmu.close(sampling)?;
    pmu.processor_down()?;
    Ok(total)
}

/// Number of accesses of a life.
fn length() -> u32 {
    let before = accesses();
    let pmu = machine(false, 1);
    assert_eq!(life(pmu).unwrap(), 53_750);
    assert_eq!((samples(), model().left()), (10, 0));
    accesses() - before
}

/// Interrupts come before any access, with branches that fill more than two periods. None is lost, and none counts
/// twice.
#[test]
fn an_interrupt_at_each_access_changes_no_count() {
    for after in 0..length() {
        for branches in [1, 4_999, 11_725] {
            let pmu = machine(after % 2 == 0, 1 + (after / 2 % 2) as u8);
            meet(after, Met::Branches(branches));
            let total = life(pmu).unwrap_or_else(|error| panic!("access {after}: {error}"));
            assert!(is_met(), "access {after}");
            assert!(
                [53_750, 53_750 + branches].contains(&total),
                "access {after}: {total} with {branches}"
            );
            assert_eq!(samples(), total / PERIOD, "access {after}: {total} with {branches}");
            assert_eq!(model().left(), 0, "access {after}");
        }
    }
}

/// A fault that happens once is overcome.
#[test]
fn a_fault_at_each_access_is_tried_again() {
    for after in 0..length() {
        let pmu = machine(false, 1);
        meet(after, Met::Fault { more: 0 });
        let total = life(pmu).unwrap_or_else(|error| panic!("access {after}: {error}"));
        assert!(is_met(), "access {after}");
        assert_eq!((total, samples(), model().left()), (53_750, 10, 0), "access {after}");
    }
}

/// A register that stays faulty for some accesses makes an operation fail. Once the register works again, the counters
/// can be given back, or taken again; nothing goes on counting.
#[test]
fn after_faults_in_a_row_the_counters_can_be_taken_down() {
    let mut failed = 0;
    for after in 0..length() {
        let pmu = machine(false, 1);
        meet(after, Met::Fault { more: 1 });
        let lived = life(pmu);
        assert!(is_met(), "access {after}");
        failed += u32::from(lived.is_err());
        if lived.is_err() {
            match pmu.processor_down() {
                Ok(()) => {}
                Err(PmuError::NotUp) => {
                    pmu.processor_up(&model().identification()).unwrap();
                    pmu.processor_down().unwrap();
                }
                Err(error) => panic!("access {after}: {error}"),
            }
        }
        let before = samples();
        execute(0, 1 << 33);
        assert_eq!(samples(), 0, "access {after}, {before} before");
        assert_eq!(model().left(), 0, "access {after}: {lived:?}");
    }
    assert!(failed > 10, "{failed}");
}

/// Both processors at once, in turns.
#[test]
fn processors_do_not_share_registers() {
    let pmu = running(false, 1);
    let event = Event::generic(GenericEvent::Branches).every(PERIOD).with_total();
    let events = [0, 1].map(|processor| on(processor, || pmu.start(&event).unwrap()));
    for turn in 1..10 {
        on(turn % 2, || execute(0, 5_000 * turn as u64));
    }
    let totals =
        [0, 1].map(|processor| on(processor, || pmu.read(events[processor]).unwrap().value));
    assert_eq!((totals, samples()), ([100_000, 125_000], 45));
    for processor in [0, 1] {
        on(processor, || pmu.close(events[processor]).unwrap());
    }
    shut_down(pmu);
}
