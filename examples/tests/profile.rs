//! `profile` from the outside: the built-in workload's shares, commands through the real perf events
//! where they are allowed, the forms of output, and what it says when it cannot.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const PROFILE: &str = env!("CARGO_BIN_EXE_profile");

/// The shares of the workload's functions, by construction.
const SHARES: [(&str, f64); 4] = [
    ("forty_percent", 0.4),
    ("thirty_percent", 0.3),
    ("twenty_percent", 0.2),
    ("ten_percent", 0.1),
];

/// The greatest distance of a share from the one by construction.
const TOLERANCE: f64 = 0.05;

fn profile(arguments: &[&str]) -> Output {
    Command::new(PROFILE).args(arguments).output().expect("the program runs")
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)))
}

/// The output of a run of a command; `None`, and a line that says so, where the kernel forbids it.
fn profile_command(arguments: &[&str]) -> Option<Output> {
    let output = profile(arguments);
    let complaint = complaint(&output);
    let forbidden = complaint.contains("forbids sampling") || complaint.contains("perf events:");
    if forbidden {
        println!("skipped: no perf events here: {}", complaint.lines().next().unwrap_or(""));
    }
    (!forbidden).then_some(output)
}

/// Checks that the workload's functions have their shares, of the samples in any of them, and that
/// these are nearly all of `samples`.
fn assert_shares(functions: &[Value], samples: u64) {
    let of = |part: &str| {
        let name = format!("pmu_examples::profiler::workload::{part}");
        let function = functions.iter().find(|function| function["name"] == *name);
        function.map_or(0, |function| function["samples"].as_u64().unwrap())
    };
    let all: u64 = SHARES.iter().map(|(part, _)| of(part)).sum();
    assert!(all * 100 >= samples * 90, "{all} of {samples} samples are the workload's");
    for (part, expected) in SHARES {
        let share = of(part) as f64 / all as f64;
        assert!((share - expected).abs() <= TOLERANCE, "{part}: {share} of {functions:#?}");
    }
}

#[test]
fn the_built_in_workloads_shares_are_those_it_was_built_with() {
    let output = profile(&["--json"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", complaint(&output));
    let report = json(&output);
    let samples = report["samples"].as_u64().unwrap();
    assert!(samples >= 1000, "{samples} samples");
    let functions = report["functions"].as_array().unwrap();
    assert_shares(functions, samples);

    let consumed = |what: &str| report["consumed"][what].as_u64().unwrap();
    assert_eq!(consumed("sampled"), samples * 1_000_000);
    assert_eq!(consumed("not_sampled"), consumed("total").saturating_sub(consumed("sampled")));

    // The parts make the whole, in every way in which it is told.
    let sum: u64 = functions.iter().map(|function| function["samples"].as_u64().unwrap()).sum();
    assert_eq!(sum, samples);
    let interrupts = |what: &str| report["interrupts"][what].as_u64().unwrap();
    assert_eq!(interrupts("seen"), samples);
    assert_eq!(interrupts("hit") + interrupts("missed"), samples);
    for function in functions {
        let share = function["samples"].as_u64().unwrap() as f64 / samples as f64;
        assert!((function["share"].as_f64().unwrap() - share).abs() < 1e-9);
    }
    let hottest = &report["hottest"];
    assert_eq!(hottest["name"], functions[0]["name"]);
    let buckets = hottest["buckets"].as_array().unwrap();
    let sum: u64 = buckets.iter().map(|bucket| bucket["samples"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), functions[0]["samples"].as_u64());
}

#[test]
fn the_text_names_processor_and_interface_and_draws_functions_and_buckets() {
    let svg = scratch("text.svg");
    let output = profile(&["--seconds", "1", "--svg", svg.to_str().unwrap()]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", complaint(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "processor   ",
        "interface   ",
        "source      ProfileTime, an interrupt every 1 ms",
        " seen, ",
        "consumed    ",
        " s of processor time: ",
        " sampled, ",
        " 40.0% ",
        "workload::forty_percent",
        "█",
        "in buckets of 4 bytes",
        "workload.rs:",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert!(svg.contains("workload::forty_percent") && svg.contains("<rect "), "{svg}");
}

#[test]
fn the_csv_has_a_row_per_function() {
    let output = profile(&["--seconds", "1", "--csv", "--interval", "5000"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", complaint(&output));
    let mut reader = csv::Reader::from_reader(&*output.stdout);
    assert_eq!(reader.headers().unwrap(), vec!["name", "module", "samples", "total", "share"]);
    let rows: Vec<(String, String, u64, u64, f64)> =
        reader.deserialize().collect::<Result<_, _>>().unwrap();
    for (part, _) in SHARES {
        assert!(rows.iter().any(|(name, ..)| name.ends_with(part)), "{part} is not in {rows:?}");
    }
    assert!((rows.iter().map(|(.., share)| share).sum::<f64>() - 1.0).abs() < 1e-3, "{rows:?}");
}

/// The profiled command is this program with its built-in workload: an unmodified
/// position-independent executable whose shares are known.
#[test]
fn a_command_that_a_command_starts_is_profiled_through_perf_events() {
    let script = format!("{PROFILE} --seconds 1 --quiet; exit 7");
    let Some(output) = profile_command(&["--json", "--", "sh", "-c", &script]) else { return };
    assert_eq!(output.status.code(), Some(7), "{}", complaint(&output));
    // The command's output is kept apart from the object.
    assert!(complaint(&output).contains("workload::forty_percent"), "{}", complaint(&output));
    let report = json(&output);
    // Start-up and symbol look-up are in the profile too, and take as long as this machine needs.
    let functions = report["functions"].as_array().unwrap();
    let workload: Vec<Value> = functions
        .iter()
        .filter(|function| function["name"].as_str().unwrap().contains("::workload::"))
        .cloned()
        .collect();
    let samples = workload.iter().map(|function| function["samples"].as_u64().unwrap()).sum();
    assert!(samples >= 500, "{samples} samples of the workload in {report:#}");
    assert_shares(&workload, samples);
}

#[test]
fn libraries_and_the_status_of_a_signal_are_told() {
    // A shell that reads and writes: most of its time is the kernel's and the C library's.
    let script = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; kill -9 $$";
    let Some(output) = profile_command(&["--csv", "--", "sh", "-c", script]) else { return };
    assert_eq!(output.status.code(), Some(128 + 9), "{}", complaint(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().count() > 1, "{text}");
    // The rows have no place for it.
    assert!(complaint(&output).contains("profile: consumed "), "{}", complaint(&output));
}

#[test]
fn a_command_that_cannot_be_run_is_an_error_with_a_shells_status() {
    for (command, status) in [("/no/such/command", 127), (env!("CARGO_MANIFEST_DIR"), 126)] {
        let Some(output) = profile_command(&["--", command]) else { return };
        assert_eq!(output.status.code(), Some(status), "{}", complaint(&output));
        assert!(complaint(&output).contains(command), "{}", complaint(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_command_too_short_for_a_sample_says_so() {
    let Some(output) = profile_command(&["--json", "--interval", "1000000", "--", "true"]) else {
        return;
    };
    // A processor's clock may strike within the shortest command.
    if json(&output)["samples"] != 0 {
        println!("skipped: by chance there was a sample");
        return;
    }
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("no samples"), "{}", complaint(&output));
    assert!(complaint(&output).contains("consumed "), "{}", complaint(&output));
    assert_eq!(json(&output)["functions"], Value::Array(Vec::new()));
}

#[test]
fn wrong_sources_and_intervals_are_errors_that_say_what_is_right() {
    for (arguments, part) in [
        (&["--interval", "1220"][..], "outside 1221 to 1000000"),
        (&["--interval", "1000001"], "outside 1221 to 1000000"),
        (&["--source", "0x18"], "no profile source \"0x18\""),
        (&["--source", "Nonsense", "--", "true"], "no profile source \"Nonsense\""),
        (&["--source", "-1"], ""),
        (&["--json", "--csv"], "cannot be used with"),
        (&["--seconds", "0"], "0"),
        (&["--svg", "/no/such/directory/x.svg"], "/no/such/directory/x.svg"),
    ] {
        let output = profile(arguments);
        let complaint = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert!(complaint.contains(part), "{arguments:?}: {complaint}");
        assert!(!complaint.contains("panicked"), "{arguments:?}: {complaint}");
    }
}

/// The vendor's driver, on a software PMU that is fed with the thread's time.
#[test]
fn the_built_in_workload_is_sampled_by_its_cycles() {
    const INTERVAL: u64 = 1_000_000;
    let arguments = ["--json", "--seconds", "2", "--source", "TotalCycles"];
    let output = profile(&[&arguments[..], &["--interval", "1000000"]].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{}", complaint(&output));
    let report = json(&output);
    let samples = report["samples"].as_u64().unwrap();
    // 2 s and at most a round more, at 1 GHz; what the last tick left is not counted.
    let expected = 2_000_000_000 / INTERVAL;
    assert!((expected - 20..expected + 200).contains(&samples), "{samples} of {expected}");
    assert_shares(report["functions"].as_array().unwrap(), samples);
}

#[test]
fn what_cannot_be_told_from_time_is_not_fed() {
    for source in ["LLCMisses", "BranchMispredictions", "0x1A", "0x6A"] {
        let output = profile(&["--source", source]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let told = ["is not fed", "no profile source"]; // 0x6A is AMD's
        let complaint = complaint(&output);
        assert!(told.iter().any(|told| complaint.contains(told)), "{complaint}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(PROFILE).args(["--seconds", "1"]).stdout(writer).output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    assert!(complaint(&output).is_empty(), "{}", complaint(&output));
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}
