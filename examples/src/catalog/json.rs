//! Events of a core type as JSON.

use pmu_events::metric::{Expression, Metric, MetricEvent};
use pmu_events::{CoreType, Encoding, PmuEvent, Precise};
use serde_json::{Value, json};

use super::meaning;
use super::words::{counters, perf};

/// The version of the object: fields are added with a new number, never changed.
const VERSION: u32 = 1;

/// The version of the object of metrics, by the same rule. Version 2 added `level`.
const METRICS_VERSION: u32 = 2;

/// Returns the events with their core type and its source.
pub(super) fn events(core_type: &CoreType, events: impl Iterator<Item = PmuEvent>) -> String {
    let events: Vec<_> = events.map(|one| event(core_type, &one)).collect();
    let object = json!({
        "version": VERSION,
        "core_type": core_type.name(),
        "source": core_type.source(),
        "source_version": core_type.version(),
        "published": core_type.published(),
        "events": events,
    });
    format!("{object:#}\n")
}

/// Returns the metrics with their formulas and events.
pub(super) fn metrics(
    core_type: &CoreType,
    metrics: impl Iterator<Item = (Metric, Expression)>,
    smt: Option<&str>,
) -> String {
    let one = |(metric, expression): (Metric, Expression)| {
        let events = expression.events();
        let event = |event: MetricEvent| json!({ "name": event.name(), "perf": perf(core_type, &event.event()) });
        json!({
            "name": metric.name(),
            "words": metric.to_string(),
            "level": level(metric),
            "parent": metric.parent().map(Metric::name),
            "formula": expression.to_string(),
            "events": events.map(event).collect::<Vec<_>>(),
        })
    };
    let object = json!({
        "version": METRICS_VERSION,
        "core_type": core_type.name(),
        "metrics": metrics.map(one).collect::<Vec<_>>(),
        "smt": smt,
    });
    format!("{object:#}\n")
}

/// Returns the level of a metric of top-down.
fn level(metric: Metric) -> Option<u32> {
    match metric {
        Metric::InstructionsPerCycle | Metric::BranchMissesPerThousand => None,
        _ => Some(1 + metric.parent().and_then(level).unwrap_or(0)),
    }
}

fn event(core_type: &CoreType, event: &PmuEvent) -> Value {
    let encoding = |way: Encoding| {
        let extra = way.extra.map(|extra| format!("{extra:?}"));
        json!({ "select": format!("{:#010X}", way.select.select_bits()), "extra": extra })
    };
    let meaning = meaning::of(core_type, event);
    json!({
        "name": event.name().to_string(),
        "meaning": meaning.text,
        "described": meaning.described,
        "encodings": event.encodings().map(encoding).collect::<Vec<_>>(),
        "counters": counters(event.counters()),
        "precise": match event.precise() {
            Precise::No => "no",
            Precise::Possible => "possible",
            Precise::Only => "only",
        },
        "errata": event.errata().map(|errata| errata.split(';').collect::<Vec<_>>()),
        "perf": perf(core_type, event),
    })
}
