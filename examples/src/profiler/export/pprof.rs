//! The format of pprof: a message of protocol buffers (github.com/google/pprof, proto/profile.proto), gzipped.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use crate::profiler::graph::Graph;

/// `perftools.profiles.Profile`, the fields that are written.
#[derive(Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, Copy, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The unit of a profile: its name, its kind in pprof's terms, and the amount per interrupt.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'w> {
    /// Such as `cpu`.
    pub kind: &'w str,
    /// `nanoseconds` or `count`.
    pub unit: &'w str,
    /// The amount that an interrupt stands for.
    pub each: u64,
}

/// Returns the file. `start` is when the profile began, in nanoseconds since 1970.
///
/// # Errors
/// None that memory has.
pub fn write(graph: &Graph, weight: Weight<'_>, start: u64) -> io::Result<Vec<u8>> {
    let mut strings = Strings::default();
    strings.index(""); // The format demands it at index 0.
    let samples = ValueType { kind: strings.index("samples"), unit: strings.index("count") };
    let amount = ValueType { kind: strings.index(weight.kind), unit: strings.index(weight.unit) };
    let (mut mapping, mut mappings) = (Vec::new(), HashMap::new());
    let (mut function, mut functions) = (Vec::new(), HashMap::new());
    let mut location = Vec::new();
    // The first mapping is the program's.
    if let Some(program) = graph.program() {
        mappings.insert(program, 1);
        let filename = strings.index(program);
        mapping.push(Mapping { id: 1, filename, has_functions: true });
    }
    for (id, named) in (1..).zip(&graph.frames) {
        let mapping_id = *mappings.entry(&*named.module).or_insert_with(|| {
            let id = mapping.len() as u64 + 1;
            let filename = strings.index(&named.module);
            mapping.push(Mapping { id, filename, has_functions: true });
            id
        });
        let (file, line) = named.frame.line.as_ref().map_or(("", 0), |(file, line)| (file, *line));
        let key = (&named.frame.name, file, &named.module);
        let function_id = *functions.entry(key).or_insert_with(|| {
            let id = function.len() as u64 + 1;
            let name = strings.index(&named.frame.name);
            function.push(Function { id, name, system_name: name, filename: strings.index(file) });
            id
        });
        let line = vec![Line { function_id, line: line.into() }];
        location.push(Location { id, mapping_id, line });
    }
    let [process, thread, name] =
        ["process", "thread", "thread name"].map(|key| strings.index(key));
    let mut sums: HashMap<(usize, usize), u64> = HashMap::new();
    for sample in &graph.samples {
        *sums.entry((sample.stack, sample.thread)).or_default() += u64::from(sample.interrupts);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable();
    let mut sample = Vec::with_capacity(sums.len());
    for ((stack, of), interrupts) in sums {
        let of = &graph.threads[of];
        let number = |key, number: u32| Label { key, text: 0, number: number.into() };
        sample.push(Sample {
            // The innermost is first.
            location_id: graph.stacks[stack].iter().rev().map(|frame| *frame as u64 + 1).collect(),
            value: vec![interrupts as i64, interrupts.saturating_mul(weight.each) as i64],
            label: vec![
                number(process, of.process),
                number(thread, of.thread),
                Label { key: name, text: strings.index(&of.name), number: 0 },
            ],
        });
    }
    let times = graph.samples.iter().map(|sample| sample.time);
    let duration = times.clone().max().unwrap_or(0) - times.min().unwrap_or(0);
    let profile = Profile {
        sample_type: vec![samples, amount],
        sample,
        mapping,
        location,
        function,
        string_table: strings.table,
        time_nanos: start as i64,
        duration_nanos: duration as i64,
        period_type: Some(amount),
        period: weight.each as i64,
    };
    let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
    compressed.write_all(&profile.encode_to_vec())?;
    compressed.finish()
}

/// The table of strings, each kept once.
#[derive(Default)]
struct Strings {
    table: Vec<String>,
    indices: HashMap<String, i64>,
}

impl Strings {
    fn index(&mut self, text: &str) -> i64 {
        *self.indices.entry(text.into()).or_insert_with(|| {
            self.table.push(text.into());
            self.table.len() as i64 - 1
        })
    }
}
