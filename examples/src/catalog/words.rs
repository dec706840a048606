//! Constraints of events and perf's form of them, in words.

use pmu::perf::RawConfig;
use pmu_core::CounterSet;
use pmu_events::{CoreType, PmuEvent};

/// `general 0-3`, or `fixed 1 only`.
pub(super) fn counters(set: CounterSet) -> String {
    if set == CounterSet::GENERAL {
        return "any general".into();
    }
    let numbers: Vec<_> = set.iter().map(|counter| counter.number()).collect();
    // Neighbors become ranges.
    let mut ranges: Vec<[u8; 2]> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == number => *last = number,
            _ => ranges.push([number, number]),
        }
    }
    let texts = ranges.iter().map(|[first, last]| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let text = texts.collect::<Vec<_>>().join(",");
    let fixed = set.iter().all(|counter| counter.is_fixed());
    if fixed { format!("fixed {text} only") } else { format!("general {text}") }
}

/// The event's form for `perf stat -e`.
pub(super) fn perf(core_type: &CoreType, event: &PmuEvent) -> String {
    let (config, config1) = event.perf_config();
    match RawConfig::new(config) {
        Ok(raw) => {
            let terms = raw.terms().to_string().replacen("cpu", core_type.perf_pmu(), 1);
            match config1 {
                0 => terms,
                value => format!("{},config1={value:#x}/", terms.trim_end_matches('/')),
            }
        }
        Err(error) => format!("none: {error}"),
    }
}
