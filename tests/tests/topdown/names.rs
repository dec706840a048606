//! The names of the parts, and their events on E-cores, are those of `pmu-events`.

use pmu_events::CoreType;
use pmu_events::metric::Metric;
use pmu_intel::topdown::TopDownPart;

use crate::support::parts;

#[test]
fn parts_that_registers_count_have_the_names_of_the_metrics_that_events_count() {
    let metric = |name: &str| Metric::ALL.into_iter().any(|metric| format!("{metric:?}") == name);
    for (part, metric) in TopDownPart::LEVEL_1.into_iter().zip(&Metric::ALL[2..]) {
        assert_eq!(metric.to_string(), format!("top-down: {part}"));
        assert_eq!(format!("{metric:?}"), format!("{part:?}"));
    }
    parts().for_each(|part| assert!(metric(&format!("{part:?}")), "{part:?}"));
}

/// The shares of a register, and those of events, of the same slots.
#[test]
fn the_shares_of_registers_are_those_of_events() {
    // 51/255 are a fifth.
    let counts = pmu_intel::topdown::TopDownCounts::of_registers(4_000, 0x3333_1A7F, false);
    let counted = [
        ("TOPDOWN.SLOTS", 4_000),
        ("UOPS_RETIRED.SLOTS", 1_992),
        ("IDQ_UOPS_NOT_DELIVERED.CORE", 800),
        ("TOPDOWN.BACKEND_BOUND_SLOTS", 800),
    ];
    let of = |name: &str| counted.iter().find(|one| one.0 == name).map(|one| one.1);
    let icelake = CoreType::named("icelake").unwrap();
    for (part, metric) in TopDownPart::LEVEL_1.into_iter().zip(&Metric::ALL[2..]) {
        let events = icelake.metric(*metric).unwrap().ratio(of).unwrap().times(1_000).unwrap();
        let registers = counts.per_mille(part).unwrap();
        assert!(events.abs_diff(registers.into()) <= 1, "{part}: {events} {registers}");
    }
}
