//! Event counters in pairs: the second one of each counts the overflows of the first.

use pmu::core::CounterSet;
use pmu::{Event, EventSelect, GenericEvent};
use pmu_arm::chained_counters;
use pmu_tests::arm::identify;
use pmu_virt::mock::MockPmuv3;

use crate::world::{
    BR_RETIRED, INST_RETIRED, Met, PROCESSORS, World, accesses, execute, in_pairs, is_met, meet,
    model, on, samples, shut_down,
};

fn running(level: u8) -> &'static World {
    let pmu = in_pairs(level);
    for processor in 0..PROCESSORS {
        let taken = on(processor, || pmu.processor_up(&identify(model())).unwrap());
        assert_eq!(taken.bits(), 1 << 32 | 0b111);
    }
    pmu
}

fn of(event: u64) -> Event {
    Event::raw(EventSelect::from_bits(event))
}

/// More than 2³² branches at once: no wrap interrupts, by which a counter of 32 bits would be counted on.
#[test]
fn counts_are_exact_across_32_bits_without_an_interrupt() {
    for level in [1, 2] {
        let pmu = running(level);
        let events = [of(BR_RETIRED), of(INST_RETIRED).user_only(), of(BR_RETIRED).kernel_only()];
        let events = events.map(|event| pmu.start(&event.on(CounterSet::GENERAL)).unwrap());
        let values = || events.map(|event| pmu.read(event).unwrap().value);
        let before = accesses();
        execute(0, 5_000_000_000);
        execute(level, 3_000_000_000);
        assert_eq!(accesses(), before, "no interrupt");
        assert_eq!(values(), [8_000_000_000, 20_000_000_000, 3_000_000_000]);
        execute(0, 70);
        assert_eq!(values(), [8_000_000_070, 20_000_000_280, 3_000_000_000]);
        assert!(pmu.start(&of(BR_RETIRED)).is_err(), "there are three pairs");
        for event in events {
            pmu.close(event).unwrap();
        }
        shut_down(pmu);
    }
}

/// Also where the period ends with an overflow of the lower half, and where it is one event longer.
#[test]
fn a_long_period_has_one_interrupt() {
    for level in [1, 2] {
        for period in [5_000, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 5_000_000_000] {
            let pmu = running(level);
            let event = pmu.start(&of(BR_RETIRED).every(period).with_total()).unwrap();
            execute(0, period - 1);
            assert_eq!(samples(), 0, "{period}");
            execute(level, 1);
            assert_eq!(samples(), 1, "{period}");
            execute(0, 3 * period);
            assert_eq!((samples(), pmu.read(event).unwrap().value), (3, 4 * period));
            pmu.close(event).unwrap();
            shut_down(pmu);
        }
    }
}

/// The lower half overflows before any access of a read.
#[test]
fn a_read_is_of_one_moment() {
    for after in 0.. {
        let pmu = running(1);
        let event = pmu.start(&of(BR_RETIRED).user_only()).unwrap();
        execute(0, (1 << 32) - 3);
        meet(after, Met::Branches(7));
        let read = pmu.read(event).unwrap().value;
        let is_over = !is_met();
        let expected = if is_over { [(1 << 32) - 3; 2] } else { [(1 << 32) - 3, (1 << 32) + 4] };
        assert!(expected.contains(&read), "access {after}: {read:#x}");
        pmu.close(event).unwrap();
        shut_down(pmu);
        if is_over {
            assert!(after >= 3, "{after} accesses");
            break;
        }
    }
}

#[test]
fn counters_of_64_bits_and_processors_without_the_event_stay_single() {
    let short = identify(&MockPmuv3::new(false, 1));
    let pairs = chained_counters(&short).unwrap();
    assert_eq!(pairs.counters().len(), 3 + 1);
    assert!(pairs.generic(GenericEvent::Instructions).is_some());
    let without =
        pmu_arm::Identification { pmceid0_el0: short.pmceid0_el0 & !(1 << 0x1E), ..short };
    for processor in [without, identify(&MockPmuv3::new(true, 1))] {
        let single = chained_counters(&processor).unwrap();
        assert_eq!(single.counters().len(), 6 + 1);
        assert_eq!(format!("{single:?}"), format!("{:?}", pmu_arm::counters(&processor).unwrap()));
    }
}
