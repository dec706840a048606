//! Call stacks of `profile` in the formats of other tools, each read by a reader that this project did not
//! write; processes that run already; names of stripped and deleted files.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::time::Duration;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread;

use object::{Object, ObjectSegment, ObjectSymbol};
use pprof::protos::Message;
use serde_json::Value;

const SHORT_LIVED: &str = env!("CARGO_BIN_EXE_short-lived");

/// Copies the program that is profiled. A copy that this process wrote could be busy: a child that another test forks
/// has the file open until the child executes its own program.
fn copy_of_program(to: &Path) {
    assert!(Command::new("cp").arg(SHORT_LIVED).arg(to).status().unwrap().success());
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs `profile`; `None`, and a line that says so, where the kernel forbids it.
fn profile(arguments: &[&str]) -> Option<Output> {
    let output = Command::new(env!("CARGO_BIN_EXE_profile")).args(arguments).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("forbids sampling") || complaint.contains("perf events:") {
        println!("skipped: no perf events here: {complaint}");
        return None;
    }
    Some(output)
}

fn report(output: &Output) -> Value {
    let complaint = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {complaint}"))
}

fn samples(report: &Value) -> u64 {
    report["samples"].as_u64().unwrap()
}

fn samples_of(report: &Value, function: &str) -> u64 {
    number_of(report, function, "samples")
}

fn number_of(report: &Value, function: &str, field: &str) -> u64 {
    let functions = report["functions"].as_array().unwrap();
    let named = functions.iter().filter(|f| f["name"].as_str().unwrap().ends_with(function));
    named.map(|function| function[field].as_u64().unwrap()).sum()
}

/// The number of samples that a flame graph tells of its lowest frame.
fn flame_graph_samples(svg: &str) -> u64 {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(svg, options).unwrap();
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "svg");
    let titles = root.descendants().filter(|node| node.has_tag_name("title"));
    let all = titles.filter_map(|title| title.text()).find(|title| title.starts_with("all ("));
    let digits =
        all.unwrap().chars().skip(5).take_while(|c| *c != ' ').filter(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

#[test]
fn every_file_has_all_samples_for_a_reader_that_is_not_this_projects() {
    let files = ["svg", "folded", "pprof", "json"].map(|kind| scratch(&format!("stacks.{kind}")));
    let [svg, folded, pprof, firefox] = files.each_ref().map(|file| file.to_str().unwrap());
    let arguments =
        ["--json", "--flamegraph", svg, "--folded", folded, "--pprof", pprof, "--firefox", firefox];
    let command = ["--", SHORT_LIVED, "threads", "20", "5000"];
    let Some(output) = profile(&[&arguments[..], &command].concat()) else { return };
    let report = report(&output);
    let samples = samples(&report);
    assert!(samples >= 50 && samples_of(&report, "::in_main") >= 20, "{report:#}");

    // inferno's flame graph of the folded stacks, read as XML, beside the one that was drawn.
    let text = fs::read_to_string(folded).unwrap();
    let mut redrawn = Vec::new();
    let mut options = inferno::flamegraph::Options::default();
    inferno::flamegraph::from_lines(&mut options, text.lines(), &mut redrawn).unwrap();
    assert_eq!(flame_graph_samples(&String::from_utf8(redrawn).unwrap()), samples);
    let svg = fs::read_to_string(svg).unwrap();
    assert_eq!(flame_graph_samples(&svg), samples);
    assert!(svg.contains("in_main") && text.contains("::in_main"), "{text}");
    assert!(svg.contains("prefers-color-scheme: dark"));
    // Version 1 of the JSON object has these fields.
    let fields: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    let known = [
        "callees",
        "callers",
        "consumed",
        "functions",
        "hottest",
        "interface",
        "interrupts",
        "interval",
        "notes",
        "processor",
        "samples",
        "source",
        "threads",
        "version",
    ];
    assert_eq!((fields, &report["version"]), (known.to_vec(), &Value::from(1)));

    // The decoder that prost-build generated from pprof's profile.proto.
    let mut message = Vec::new();
    flate2::read::GzDecoder::new(&*fs::read(pprof).unwrap()).read_to_end(&mut message).unwrap();
    let profile = pprof::protos::Profile::decode(&*message).unwrap();
    let string = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
    let types: Vec<_> =
        profile.sample_type.iter().map(|t| (string(t.ty), string(t.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!((profile.period, string(0)), (1_000_000, ""));
    assert_eq!(string(profile.mapping[0].filename), "short-lived");
    let values =
        |index: usize| profile.sample.iter().map(|sample| sample.value[index]).sum::<i64>();
    assert_eq!((values(0) as u64, values(1) as u64), (samples, samples * 1_000_000));
    let mut in_main = 0;
    for sample in &profile.sample {
        let innermost = sample.location_id[0];
        let location = profile.location.iter().find(|l| l.id == innermost).unwrap();
        assert!(profile.mapping.iter().any(|mapping| mapping.id == location.mapping_id));
        // Inlined code has a frame of its own.
        let mut functions = sample.location_id.iter().flat_map(|id| {
            let location = profile.location.iter().find(|l| l.id == *id).unwrap();
            location.line.iter().map(|line| line.function_id)
        });
        let in_main_frame = functions.any(|id| {
            let function = profile.function.iter().find(|f| f.id == id).unwrap();
            string(function.name).ends_with("::in_main")
        });
        if in_main_frame {
            in_main += sample.value[0];
        }
        let labels: Vec<_> = sample.label.iter().map(|label| string(label.key)).collect();
        assert_eq!(labels, ["process", "thread", "thread name"]);
    }
    assert_eq!(in_main as u64, number_of(&report, "::in_main", "total"));

    // The tables of the processed format, as its document has them.
    let firefox: Value = serde_json::from_str(&fs::read_to_string(firefox).unwrap()).unwrap();
    assert_eq!(firefox["meta"]["interval"], 1.0);
    assert!(firefox["meta"]["preprocessedProfileVersion"].is_u64(), "{}", firefox["meta"]);
    let mut weights = 0;
    for thread in firefox["threads"].as_array().unwrap() {
        let table = &thread["samples"];
        let length = table["length"].as_u64().unwrap() as usize;
        let stacks = table["stack"].as_array().unwrap();
        assert_eq!(stacks.len(), length);
        let known = thread["stackTable"]["length"].as_u64().unwrap();
        assert!(stacks.iter().all(|stack| stack.as_u64().unwrap() < known));
        weights += match table["weight"].as_array() {
            Some(weight) => weight.iter().map(|weight| weight.as_u64().unwrap()).sum(),
            None => length as u64,
        };
    }
    assert_eq!(weights, samples);
    firefox_finds_sources_and_code(&firefox);
}

/// The file, the address, the symbol, the source file and the line of the hottest function are those that the program
/// has, read by `object` alone.
fn firefox_finds_sources_and_code(profile: &Value) {
    let bytes = fs::read(SHORT_LIVED).unwrap();
    let program = object::File::parse(&*bytes).unwrap();
    let base = program.segments().next().unwrap().address();
    let symbol =
        program.symbols().find(|one| one.name().is_ok_and(|name| name.contains("in_main")));
    let symbol = symbol.unwrap();
    let thread =
        profile["threads"].as_array().unwrap().iter().find(|one| one["isMainThread"] == true);
    let thread = thread.unwrap();
    let cell = |table: &str, column: &str, row: usize| thread[table][column][row].clone();
    let index = |value: Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let string = |value: Value| thread["stringArray"][index(value)].as_str().unwrap().to_string();
    let rows = index(thread["frameTable"]["length"].clone());
    let name = |row| string(cell("funcTable", "name", index(cell("frameTable", "func", row))));
    let mut lines = Vec::new();
    for row in (0..rows).filter(|row| name(*row).ends_with("::in_main")) {
        let function = index(cell("frameTable", "func", row));
        let library = cell("resourceTable", "lib", index(cell("funcTable", "resource", function)));
        let library = &profile["libs"][index(library)];
        assert_eq!(
            (library["path"].as_str(), &library["arch"]),
            (Some(SHORT_LIVED), &"x86_64".into())
        );
        let build_id = program.build_id().unwrap().unwrap_or_default();
        let hexadecimal: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(library["codeId"].as_str().unwrap_or_default(), hexadecimal);
        let debug_id = library["breakpadId"].as_str().unwrap();
        assert_eq!(debug_id.len(), 33);
        if let [a, b, c, d, ..] = *build_id {
            assert!(debug_id.starts_with(&format!("{d:02X}{c:02X}{b:02X}{a:02X}")), "{library}");
        }
        let address = cell("frameTable", "address", row).as_u64().unwrap() + base;
        assert!((symbol.address()..symbol.address() + symbol.size()).contains(&address));
        let native = index(cell("frameTable", "nativeSymbol", row));
        let [start, size] = ["address", "functionSize"]
            .map(|column| cell("nativeSymbols", column, native).as_u64().unwrap());
        assert_eq!((start + base, size), (symbol.address(), symbol.size()));
        // The compiler gives no line to some of the loop's instructions: those have no file either.
        let file = cell("funcTable", "fileName", function);
        match cell("frameTable", "line", row).as_u64() {
            Some(line) => {
                assert!(string(file).ends_with("short_lived.rs"));
                lines.push(line);
            }
            None => assert!(file.is_null(), "{file}"),
        }
    }
    // The lines of the loop, in the macro that makes the function.
    assert!(!lines.is_empty() && lines.iter().all(|line| (20..60).contains(line)), "{lines:?}");
}

/// A program under way; ends with the test.
struct Running(Child);

impl Running {
    fn start() -> Self {
        let child = Command::new(SHORT_LIVED)
            .args(["threads", "100", "100000"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(200));
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn a_running_process_is_sampled_its_threads_are_told_apart_and_it_goes_on() {
    let mut running = Running::start();
    let process = running.0.id().to_string();
    let Some(output) = profile(&["--json", "--seconds", "1", "--pid", &process]) else { return };
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(running.0.try_wait().unwrap().is_none());
    let report = report(&output);
    // The loops ask for the time, which takes the kernel longer on a busy machine.
    assert!(samples_of(&report, "::in_short_ones") * 2 >= samples(&report), "{report:#}");
    let threads = report["threads"].as_array().unwrap();
    assert!(threads.len() >= 2, "{threads:#?}");
    for thread in threads {
        assert_eq!(thread["process"].to_string(), process);
        assert_eq!(thread["process_name"], "short-lived");
    }
    // The first thread, which starts the others, may have samples too.
    assert!(threads.iter().any(|thread| thread["thread"] != thread["process"]), "{threads:#?}");
    let sum: u64 = threads.iter().map(|thread| thread["samples"].as_u64().unwrap()).sum();
    assert_eq!(sum, samples(&report));
}

#[test]
fn of_two_processes_the_selected_one_is_in_the_profile() {
    let (first, second) = (Running::start(), Running::start());
    let (first, second) = (first.0.id(), second.0.id());
    let (both, only) = (format!("{first},{second}"), second.to_string());
    let arguments = ["--json", "--seconds", "1", "--pid", &both, "--only", &only];
    let Some(output) = profile(&arguments) else { return };
    let report = report(&output);
    let threads = report["threads"].as_array().unwrap();
    assert!(!threads.is_empty());
    assert!(threads.iter().all(|thread| thread["process"] == second), "{threads:#?}");
}

#[test]
fn a_file_that_is_deleted_while_it_runs_has_its_names() {
    let copy = scratch("deleted");
    copy_of_program(&copy);
    let copy = copy.to_str().unwrap();
    let script = format!("{copy} threads 20 20000 & sleep 0.2; rm {copy}; wait");
    let Some(output) = profile(&["--json", "--", "sh", "-c", &script]) else { return };
    let report = report(&output);
    assert!(samples_of(&report, "::in_main") >= 100, "{report:#}");
}

#[test]
fn a_stripped_file_has_the_names_of_the_file_that_it_links_to() {
    let [stripped, debug] = ["stripped", "stripped.debug"].map(scratch);
    let [stripped, debug] = [&stripped, &debug].map(|path| path.to_str().unwrap());
    let objcopy = |arguments: &[&str]| {
        let done = Command::new("objcopy").args(arguments).status();
        done.is_ok_and(|status| status.success())
    };
    _ = fs::remove_file(debug);
    let link = format!("--add-gnu-debuglink={debug}");
    if !objcopy(&["--only-keep-debug", SHORT_LIVED, debug])
        || !objcopy(&["--strip-all", &link, SHORT_LIVED, stripped])
    {
        println!("skipped: no objcopy here");
        return;
    }
    let arguments = ["--json", "--", stripped, "threads", "5", "20000"];
    let Some(output) = profile(&arguments) else { return };
    let report = report(&output);
    assert!(samples_of(&report, "::in_main") >= 50, "{report:#}");
}

#[test]
fn without_call_graphs_no_function_has_more_than_its_own_samples() {
    let arguments = ["--json", "--call-graph", "none", "--", SHORT_LIVED, "threads", "5", "20000"];
    let Some(output) = profile(&arguments) else { return };
    let report = report(&output);
    assert!(samples(&report) >= 50);
    for function in report["functions"].as_array().unwrap() {
        assert_eq!(function["samples"], function["total"], "{function}");
    }
}

#[test]
fn errors_and_options_tell_what_is_next() {
    for (arguments, status, part) in [
        (&["--pid", "4194305"][..], 2, "`ps -e` lists"),
        (&["--pid", "1", "--", "true"], 2, "cannot be used with"),
        (&["--source", "no_such_event", "--", "true"], 2, "no profile source"),
        (&["--list"], 0, "Timer"),
        (&["-F", "500", "--seconds", "1"], 0, "an interrupt every 2 ms"),
        (&["-F", "100000", "--", "true"], 2, "interval"),
        (&["-F", "500", "--interval", "10000", "--", "true"], 2, "cannot be used with"),
        (&["--version"], 0, "profile "),
    ] {
        let Some(output) = profile(arguments) else { return };
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
}
