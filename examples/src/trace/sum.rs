//! Sums of a trace, by source, thread and function.

use std::collections::BTreeMap;

use pmu_kprofile::trace::{Detail, Event, IntervalHook, Record, Sample, SourceInterval};

use crate::elf::File;

/// The sums of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of records of each kind.
    pub records: BTreeMap<String, u64>,
    /// The sums of each source, by its number.
    pub sources: BTreeMap<u32, OfSource>,
}

/// The sums of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfSource {
    /// The name that the trace gives it.
    pub name: Option<String>,
    /// Set if the trace tells the source's interval; otherwise each sample weighs 1.
    pub is_weighed: bool,
    /// All of its samples.
    pub total: Sum,
    /// Those of each thread.
    pub threads: BTreeMap<u32, Sum>,
    /// Those of each function, by name; where none is known, those of each address.
    pub functions: BTreeMap<String, Sum>,
}

/// Samples, and what they stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Interrupts.
    pub samples: u64,
    /// Interrupts times the interval that was in force, in the source's unit.
    pub amount: u128,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.amount = self.amount.saturating_add(other.amount);
    }
}

/// A source's interval as a trace tells it.
#[derive(Clone, Debug, Default)]
struct Intervals {
    /// From when on, and how long; ascending.
    since: Vec<(u64, u32)>,
    /// The interval before.
    first: u32,
}

impl Intervals {
    fn at(&self, timestamp: u64) -> Option<u32> {
        let next = self.since.partition_point(|(since, _)| *since <= timestamp);
        match next.checked_sub(1) {
            Some(last) => self.since.get(last).map(|(_, interval)| *interval),
            None => (!self.since.is_empty()).then_some(self.first),
        }
    }
}

impl Summary {
    /// Sums up records in any order: a sample's interval is that of its time. Functions are named by `symbols`.
    pub fn of(records: &[Record<'_>], symbols: Option<&File>) -> Self {
        let mut summary = Self::default();
        let intervals = summary.intervals(records);
        for record in records {
            *summary.records.entry(kind(&record.event)).or_default() += 1;
            let mut add = |sample: &Sample| {
                let (source, samples) = match sample.detail {
                    Detail::SampledProfile { count, .. } => (0, count.into()),
                    Detail::PmcInterrupt { source, .. } => (source.into(), 1),
                };
                let interval = intervals.get(&source).and_then(|of| of.at(record.timestamp));
                let amount = u128::from(samples) * u128::from(interval.unwrap_or(1));
                let sum = Sum { samples, amount };
                let of_source = summary.sources.entry(source).or_default();
                of_source.is_weighed = interval.is_some();
                of_source.total.add(sum);
                of_source.threads.entry(sample.thread).or_default().add(sum);
                let function = symbols.and_then(|file| file.function(sample.pc));
                let name = function.map_or_else(|| format!("{:#x}", sample.pc), |found| found.name);
                of_source.functions.entry(name).or_default().add(sum);
            };
            match &record.event {
                Event::Sample(sample) => add(sample),
                Event::SampleCache(cache) => cache.samples().for_each(|sample| add(&sample)),
                _ => {}
            }
        }
        summary
    }

    /// The intervals of each source. Sources whose intervals are told are in the summary, with their names.
    fn intervals(&mut self, records: &[Record<'_>]) -> BTreeMap<u32, Intervals> {
        let mut told: Vec<(u64, SourceInterval<'_>)> = Vec::new();
        for record in records {
            if let Event::SourceInterval(interval) = record.event {
                told.push((record.timestamp, interval));
            }
        }
        told.sort_by_key(|(timestamp, _)| *timestamp);
        let mut intervals: BTreeMap<u32, Intervals> = BTreeMap::new();
        for (timestamp, interval) in told {
            let of_source = self.sources.entry(interval.source).or_default();
            of_source.is_weighed = true;
            if let Some(name) = interval.name {
                of_source.name = Some(name.to_string());
            }
            let known = intervals.entry(interval.source).or_default();
            if known.since.is_empty() {
                known.first = match interval {
                    SourceInterval { hook: IntervalHook::Set, old: 1.., .. } => interval.old,
                    _ => interval.new,
                };
            }
            known.since.push((timestamp, interval.new));
        }
        intervals
    }
}

/// The name of an event.
pub fn kind(event: &Event<'_>) -> String {
    let name = match event {
        Event::Sample(Sample { detail: Detail::SampledProfile { .. }, .. }) => "SampledProfile",
        Event::Sample(_) => "PmcInterrupt",
        Event::SampleCache(_) => "SampledProfileCache",
        Event::StackWalk(_) => "StackWalk",
        Event::ContextSwitch(_) => "CSwitch",
        Event::SourceInterval(interval) => match interval.hook {
            IntervalHook::Set => "SetInterval",
            IntervalHook::CollectionStart => "CollectionStart",
            IntervalHook::CollectionEnd => "CollectionEnd",
        },
        Event::CounterNames(_) => "PmcConfig",
        other => match other.name() {
            Some(name) => name,
            None => return format!("hook {:#06x}", other.hook()),
        },
    };
    name.into()
}
