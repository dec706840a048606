//! A report for machines: JSON and comma-separated values.

use serde::Serialize;

use super::Report;
use super::consumed::Unit;

/// The version of the object: it grows where a field goes or changes its meaning, not where one is added.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Json<'r> {
    version: u32,
    samples: u64,
    functions: Vec<Function<'r>>,
    hottest: Option<Hottest<'r>>,
    callers: Vec<Neighbor<'r>>,
    callees: Vec<Neighbor<'r>>,
    threads: Vec<Thread<'r>>,
    interrupts: Interrupts,
    consumed: Option<Consumed>,
    processor: &'r str,
    interface: &'r str,
    source: &'r str,
    interval: &'r str,
    notes: &'r [String],
}

#[derive(Serialize)]
struct Function<'r> {
    name: &'r str,
    samples: u64,
    total: u64,
    share: f64,
    module: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<f64>,
}

/// A caller or a callee of the hottest function.
#[derive(Serialize)]
struct Neighbor<'r> {
    name: &'r str,
    samples: u64,
}

#[derive(Serialize)]
struct Thread<'r> {
    process: u32,
    process_name: &'r str,
    thread: u32,
    name: &'r str,
    samples: u64,
}

#[derive(Serialize)]
struct Hottest<'r> {
    name: &'r str,
    bucket_bytes: u64,
    buckets: Vec<Bucket<'r>>,
}

#[derive(Serialize)]
struct Bucket<'r> {
    offset: u64,
    samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<&'r str>,
}

#[derive(Serialize)]
struct Interrupts {
    seen: u64,
    hit: u64,
    missed: u64,
}

#[derive(Serialize)]
struct Consumed {
    unit: Unit,
    total: u64,
    sampled: u64,
    not_sampled: u64,
}

/// The report as a JSON object.
pub fn json<'r>(report: &'r Report) -> Result<String, serde_json::Error> {
    let statistics = report.statistics;
    let functions = report.functions.iter().map(|function| Function {
        name: &function.name,
        samples: function.samples,
        total: function.total,
        share: function.share,
        module: &function.module,
        expected: function.expected,
    });
    let buckets = report.buckets.iter().map(|bucket| Bucket {
        offset: bucket.offset,
        samples: bucket.samples,
        line: bucket.line.as_deref(),
    });
    let neighbors = |functions: Vec<(&'r str, u64)>| {
        let neighbor = |(name, samples)| Neighbor { name, samples };
        functions.into_iter().map(neighbor).collect()
    };
    let (callers, callees) = match report.hottest() {
        Some(hottest) => report.graph.neighbors((&*hottest.name, &*hottest.module)),
        None => Default::default(),
    };
    let threads = report.graph.by_thread().into_iter().map(|(thread, samples)| Thread {
        process: thread.process,
        process_name: &thread.process_name,
        thread: thread.thread,
        name: &thread.name,
        samples,
    });
    let json = Json {
        version: VERSION,
        samples: statistics.seen,
        functions: functions.collect(),
        hottest: report.hottest().map(|function| Hottest {
            name: &function.name,
            bucket_bytes: report.bucket_bytes,
            buckets: buckets.collect(),
        }),
        callers: neighbors(callers),
        callees: neighbors(callees),
        threads: threads.collect(),
        interrupts: Interrupts {
            seen: statistics.seen,
            hit: statistics.hit,
            missed: statistics.missed,
        },
        consumed: report.consumed.map(|consumed| Consumed {
            unit: consumed.unit,
            total: consumed.total,
            sampled: consumed.sampled,
            not_sampled: consumed.not_sampled(),
        }),
        processor: &report.run.processor,
        interface: &report.run.interface,
        source: report.run.source,
        interval: &report.run.interval,
        notes: &report.notes,
    };
    serde_json::to_string_pretty(&json).map(|json| json + "\n")
}

/// The report's functions as comma-separated values, under a line of column names.
pub fn csv(report: &Report) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["name", "module", "samples", "total", "share"])?;
    for function in &report.functions {
        let [samples, total] = [function.samples, function.total].map(|count| count.to_string());
        let share = format!("{:.6}", function.share);
        writer.write_record([&function.name, &function.module, &samples, &total, &share])?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
