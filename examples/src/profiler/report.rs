//! A run's profile: the samples, function by function, and of the hottest one bucket by
//! bucket.

pub mod consumed;
pub mod machine;
pub mod svg;
pub mod text;

use std::collections::{BTreeMap, HashMap, HashSet};

use pmu_kprofile::Statistics;

use super::call_stacks::{CallStacks, MISSED};
use super::graph::{Graph, label};
use super::histogram::Histogram;
use super::perf_map;
use super::symbols::Symbols;
use crate::elf::Function as Place;
use crate::untrusted::visible;
use consumed::{Consumed, Unit};

/// A run's profile.
#[derive(Debug)]
pub struct Report {
    /// A description of the run.
    pub run: Run,
    /// The interrupts, hit and missed.
    pub statistics: Statistics,
    /// The run's consumption, if it is known.
    pub consumed: Option<Consumed>,
    /// The functions, the hottest first.
    pub functions: Vec<Function>,
    /// The buckets of the hottest function, ascending.
    pub buckets: Vec<BucketHits>,
    /// Their size.
    pub bucket_bytes: u64,
    /// The named call stacks.
    pub graph: Graph,
    /// Set if the stacks have callers.
    pub has_callers: bool,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// The width that the table of functions is to fit, in characters; `None`: it is as wide as it is.
    pub width: Option<usize>,
}

/// A description of a run: subject, sampling and machine.
#[derive(Clone, Debug)]
pub struct Run {
    /// The processor's name.
    pub processor: String,
    /// The profile interface, or why there is none.
    pub interface: String,
    /// The source's name.
    pub source: &'static str,
    /// Its interval, with the unit.
    pub interval: String,
    /// The amount that an interrupt stands for, in the unit.
    pub each: u64,
    /// The unit.
    pub unit: Unit,
    /// The time at which the run began, in nanoseconds since 1970.
    pub start: u64,
    /// The command, or the processes.
    pub subject: String,
}

/// A function that was hit.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The file that it is in.
    pub module: String,
    /// The number of its hits.
    pub samples: u64,
    /// The samples that had it anywhere in their call stacks.
    pub total: u64,
    /// Its part of all samples, from 0 to 1.
    pub share: f64,
    /// The share as it should be, where that is known.
    pub expected: Option<f64>,
}

/// A bucket that was hit.
#[derive(Clone, Debug)]
pub struct BucketHits {
    /// Its distance from the function's start; where the function is not known, from the file's.
    pub offset: u64,
    /// The number of its hits.
    pub samples: u64,
    /// The source line that it begins with, where that is known.
    pub line: Option<String>,
}

impl Report {
    /// Sums the buckets up by function. `expected` knows what a function's share should be.
    pub fn new(
        mut run: Run,
        statistics: Statistics,
        consumed: Option<Consumed>,
        histograms: &[Histogram],
        stacks: CallStacks,
        mut symbols: Symbols,
        expected: impl Fn(&str) -> Option<f64>,
    ) -> Self {
        for text in [&mut run.subject, &mut run.processor] {
            *text = visible(text).into_owned();
        }
        let total = statistics.seen.max(1) as f64;
        let mut tallies: HashMap<(usize, Place), Tally> = HashMap::new();
        // The same file may be mapped in several parts: a module is a path.
        let mut modules: Vec<&Histogram> = Vec::new();
        for histogram in histograms {
            // Code that a JIT compiler made again, or in another process, is a function of the same name.
            let is_compiled = perf_map::is_anonymous(&histogram.path);
            let known = modules.iter().position(|module| {
                module.path == histogram.path || is_compiled && perf_map::is_anonymous(&module.path)
            });
            let module = known.unwrap_or_else(|| {
                modules.push(histogram);
                modules.len() - 1
            });
            for (file_offset, samples) in histogram.hits() {
                let (mut place, offset) = symbols.function(&histogram.path, file_offset);
                if is_compiled {
                    place.start = 0;
                }
                let tally = tallies.entry((module, place)).or_default();
                tally.samples += samples;
                tally.bucket_bytes = histogram.bucket.bytes();
                let bucket = tally.buckets.entry(offset).or_insert((file_offset, 0));
                bucket.1 += samples;
            }
        }
        let mut tallies: Vec<_> = tallies.into_iter().collect();
        tallies.sort_by(|((_, a), at), ((_, b), bt)| {
            (bt.samples, &a.name, a.start).cmp(&(at.samples, &b.name, b.start))
        });
        let (mut buckets, mut bucket_bytes) = (Vec::new(), 0);
        if let Some(((module, _), hottest)) = tallies.first() {
            let path = &modules[*module].path;
            bucket_bytes = hottest.bucket_bytes;
            buckets.extend(hottest.buckets.iter().map(|(offset, (file_offset, samples))| {
                let line = symbols.line(path, *file_offset);
                BucketHits { offset: *offset, samples: *samples, line }
            }));
        }
        let has_callers = stacks.stacks.iter().any(|places| places.len() > 1);
        let graph = Graph::new(stacks, &mut symbols);
        let totals = graph.totals();
        let mut functions: Vec<_> = tallies
            .into_iter()
            .map(|((module, place), tally)| {
                let module = label(&modules[module].path);
                let whole = totals.get(&(&*place.name, &*module)).copied().unwrap_or(0);
                Function {
                    samples: tally.samples,
                    total: whole.max(tally.samples),
                    share: tally.samples as f64 / total,
                    expected: expected(&place.name),
                    name: place.name,
                    module,
                }
            })
            .collect();
        if statistics.missed > 0 {
            functions.push(Function {
                name: MISSED.into(),
                module: String::new(),
                samples: statistics.missed,
                total: statistics.missed,
                share: statistics.missed as f64 / total,
                expected: None,
            });
        }
        // Functions that only called others.
        let hit: HashSet<_> = functions.iter().map(|hit| (&*hit.name, &*hit.module)).collect();
        let mut callers: Vec<_> =
            totals.into_iter().filter(|(key, _)| !hit.contains(key)).collect();
        drop(hit);
        callers.retain(|((name, _), _)| *name != MISSED);
        callers.sort_by(|(a, at), (b, bt)| (bt, a).cmp(&(at, b)));
        functions.extend(callers.into_iter().map(|((name, module), total)| Function {
            name: name.into(),
            module: module.into(),
            samples: 0,
            total,
            share: 0.0,
            expected: None,
        }));
        let notes = symbols.note().into_iter().collect();
        Self {
            run,
            statistics,
            consumed,
            functions,
            buckets,
            bucket_bytes,
            graph,
            has_callers,
            notes,
            width: None,
        }
    }

    /// Describes the consumption.
    pub fn describe_consumed(&self) -> String {
        self.consumed.map_or("not known".into(), |consumed| consumed.to_string())
    }

    /// The hottest function, if any was hit.
    pub fn hottest(&self) -> Option<&Function> {
        self.functions.first().filter(|_| !self.buckets.is_empty())
    }
}

/// The samples of a function so far: in all, and by its buckets' offsets, with where in the file
/// each bucket begins.
#[derive(Default)]
struct Tally {
    samples: u64,
    buckets: BTreeMap<u64, (u64, u64)>,
    bucket_bytes: u64,
}
