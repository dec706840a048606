//! The Firefox Profiler's processed format, with the files, addresses and lines by which it shows sources and assembly.
//!
//! Source: github.com/firefox-devtools/profiler, `docs-developer/processed-profile-format.md`, and
//! `CHANGELOG-formats.md` beside it.

mod tables;

use serde::Serialize;
use serde_json::{Value, json};

use crate::profiler::call_stacks::Thread;
use crate::profiler::graph::{Graph, Module};
use crate::profiler::kallsyms::KERNEL;
use tables::{Tables, USER};

/// The version of the format, which newer profilers convert.
const VERSION: u32 = 55;

#[derive(Serialize)]
struct Profile<'g> {
    meta: Value,
    libs: Vec<Value>,
    threads: Vec<Members<'g>>,
    pages: [(); 0],
    counters: [(); 0],
}

/// A thread: its tables and its other members.
#[derive(Serialize)]
struct Members<'g> {
    #[serde(flatten)]
    tables: Tables<'g>,
    #[serde(flatten)]
    others: Value,
}

/// Returns the profile as JSON. `start` is when it began, in nanoseconds since 1970; an interrupt stands for
/// `nanoseconds` of processor time, where it does for time.
///
/// # Errors
/// A name cannot be written as JSON.
pub fn write(
    graph: &Graph,
    product: &str,
    start: u64,
    nanoseconds: Option<u64>,
) -> serde_json::Result<String> {
    let origin = graph.samples.iter().map(|sample| sample.time).min().unwrap_or(0);
    let mut tables: Vec<_> = graph.threads.iter().map(|_| Tables::new(graph)).collect();
    let mut samples: Vec<_> = graph.samples.iter().collect();
    samples.sort_by_key(|sample| sample.time);
    for sample in samples {
        let consumed = nanoseconds.unwrap_or(0).saturating_mul(sample.interrupts.into());
        tables[sample.thread].add(sample, origin, consumed);
    }
    let mut threads: Vec<_> = graph.threads.iter().zip(tables).collect();
    // A process's main thread stands for the process, and is its first one.
    threads.sort_by_key(|(of, _)| (of.process, of.thread != of.process, of.thread));
    let first =
        |place: usize| place == 0 || threads[place - 1].0.process != threads[place].0.process;
    let is_first: Vec<_> = (0..threads.len()).map(first).collect();
    let threads = threads.into_iter().zip(is_first);
    let members = |((of, tables), is_first)| Members { tables, others: others(of, is_first) };
    let profile = Profile {
        meta: json!({
            "categories": categories(),
            "debug": false,
            "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
            "interval": nanoseconds.unwrap_or(1_000_000) as f64 / 1e6,
            "preprocessedProfileVersion": VERSION,
            "processType": 0,
            "product": product,
            "oscpu": "Linux x86_64",
            "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns" },
            "startTime": start as f64 / 1e6,
            // All that is named here is named already.
            "symbolicated": true,
            "pausedRanges": [],
            "version": 24,
            "usesOnlyOneStackType": true,
            "sourceCodeIsNotOnSearchfox": true,
            "markerSchema": [],
        }),
        libs: graph.modules.iter().map(library).collect(),
        threads: threads.map(members).collect(),
        pages: [],
        counters: [],
    };
    serde_json::to_string(&profile)
}

/// The categories, of which [`USER`] and its successor are indices.
fn categories() -> Value {
    let category =
        |name, color| json!({ "name": name, "color": color, "subcategories": ["Other"] });
    let mut categories = vec![category("Other", "grey"); USER];
    categories.extend([category("User", "yellow"), category("Kernel", "orange")]);
    Value::Array(categories)
}

/// A file, as its symbols are asked for.
fn library(module: &Module) -> Value {
    let identity = module.identity.clone().unwrap_or_default();
    let path = module.path.to_string_lossy();
    json!({
        "name": module.label,
        "path": path,
        "debugName": module.label,
        "debugPath": path,
        "breakpadId": identity.debug_id(),
        "codeId": identity.code_id(),
        "arch": if module.path.starts_with(KERNEL) { Value::Null } else { json!("x86_64") },
    })
}

/// Returns what is told of a thread beside its samples.
fn others(of: &Thread, is_first: bool) -> Value {
    json!({
        "name": if is_first { &of.process_name } else { &of.name },
        "isMainThread": is_first,
        "processName": of.process_name,
        "processType": "default",
        "processStartupTime": 0,
        "processShutdownTime": null,
        "registerTime": 0,
        "unregisterTime": null,
        "pausedRanges": [],
        "pid": of.process.to_string(),
        "tid": of.thread.to_string(),
        "showMarkersInTimeline": false,
        "markers": {
            "length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": [],
        },
    })
}
