//! Files as traces: read to an end, and summed up as a plain count of the samples has it.

use pmu_examples::trace::sum::Summary;
use pmu_examples::trace::{Records, text};
use pmu_kprofile::trace::{Detail, Event};

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let (mut records, mut damages) = (Vec::new(), 0);
    for found in Records::new(bytes) {
        assert_eq!(damages, 0, "the damage is the last item");
        match found {
            Ok(record) => records.push(record),
            Err(damage) => {
                damages += 1;
                assert!(damage.offset < bytes.len());
            }
        }
    }
    let samples = records.iter().map(|record| match &record.event {
        Event::Sample(sample) => count(sample.detail),
        Event::SampleCache(cache) => cache.samples().map(|sample| count(sample.detail)).sum(),
        _ => 0,
    });
    let summary = Summary::of(&records, None);
    let totals = summary.sources.values().map(|of_source| of_source.total.samples);
    assert_eq!(totals.sum::<u64>(), samples.sum::<u64>());
    assert_eq!(summary.records.values().sum::<u64>(), records.len() as u64);
    for of_source in summary.sources.values() {
        let total = of_source.total.amount;
        assert_eq!(of_source.threads.values().map(|sum| sum.amount).sum::<u128>(), total);
        assert_eq!(of_source.functions.values().map(|sum| sum.amount).sum::<u128>(), total);
    }
    assert!(text::csv(&summary).is_ok() && !text::table(&summary, 2).is_empty());
    for record in &records {
        let line = text::line(record, None);
        assert!(line.ends_with('\n') && line.lines().count() == 1, "{line:?}");
    }
}

fn count(detail: Detail) -> u64 {
    match detail {
        Detail::SampledProfile { count, .. } => count.into(),
        Detail::PmcInterrupt { .. } => 1,
    }
}
