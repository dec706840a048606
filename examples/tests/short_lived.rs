//! Threads and processes that end before an interval has passed: they have their share of the profile, and
//! the time that was not sampled is told.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::time::Duration;
use std::io;
use std::process::{Command, Stdio};
use std::thread;

use pmu_examples::machine::Machine;
use pmu_examples::profiler::call_graph::CallGraph;
use pmu_examples::profiler::call_stacks::CallStacks;
use pmu_examples::profiler::error::Error;
use pmu_examples::profiler::maps::Mapping;
use pmu_examples::profiler::perf::kernel::Kernel;
use pmu_examples::profiler::perf::setting::Setting;
use pmu_examples::profiler::perf::{OpenError, PerfEvents, Record, Request, Scope};
use pmu_examples::profiler::report::consumed::Unit;
use pmu_examples::profiler::report::{Report, Run, machine};
use pmu_examples::profiler::sampling::Sampling;
use pmu_examples::profiler::symbols::Symbols;
use serde_json::Value;

/// The threads or processes of `short-lived`, 2.4 s in all; its main thread works as long.
const NUMBER: &str = "4000";
const MICROSECONDS: &str = "600";

/// The greatest distance of the shares from halves.
const TOLERANCE: f64 = 0.05;

/// Profiles `short-lived`, and returns the report and the processor time that the kernel said was used, in
/// nanoseconds; `None`, and a line that says so, where perf events are not to be had.
fn profile(what: &str) -> Option<(Value, u64)> {
    let short_lived = env!("CARGO_BIN_EXE_short-lived");
    let output = Command::new(env!("CARGO_BIN_EXE_profile"))
        .args(["--json", "--", short_lived, what, NUMBER, MICROSECONDS])
        .output()
        .expect("the program runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("forbids sampling") || complaint.contains("perf events:") {
        println!("skipped: no perf events here: {}", complaint.lines().next().unwrap_or(""));
        return None;
    }
    assert!(output.status.success(), "{complaint}");
    let report = serde_json::from_slice(&output.stdout).expect("the report is JSON");
    // The command's output is kept apart from the object.
    Some((report, complaint.trim().parse().expect("it tells the time")))
}

fn samples(report: &Value, function: &str) -> u64 {
    let named = |entry: &&Value| entry["name"].as_str().unwrap().ends_with(function);
    let functions = report["functions"].as_array().unwrap();
    functions.iter().find(named).map_or(0, |entry| entry["samples"].as_u64().unwrap())
}

fn assert_halves(report: &Value) {
    let (short, long) = (samples(report, "::in_short_ones"), samples(report, "::in_main"));
    let share = short as f64 / (short + long) as f64;
    assert!((share - 0.5).abs() <= TOLERANCE, "{short} and {long}: {:#}", report["consumed"]);
}

/// Checks that the whole time is told, and that it is the sum of what was sampled and what was not.
fn assert_all_is_told(report: &Value, used: u64) {
    let consumed = &report["consumed"];
    let told = |what: &str| consumed[what].as_u64().unwrap();
    assert_eq!(consumed["unit"], "nanoseconds");
    // Between fork and exec nothing is profiled; the two clocks may differ in what a hypervisor stole.
    assert!(told("total") as f64 >= used as f64 * 0.9, "{used} of {consumed}");
    assert!(told("total") as f64 <= used as f64 * 3.0, "{used} of {consumed}");
    assert_eq!(told("sampled"), report["samples"].as_u64().unwrap() * 1_000_000);
    assert_eq!(told("not_sampled"), told("total").saturating_sub(told("sampled")));
}

#[test]
fn threads_shorter_than_the_interval_have_their_share() {
    let Some((report, used)) = profile("threads") else { return };
    assert_halves(&report);
    assert_all_is_told(&report, used);
}

#[test]
fn processes_shorter_than_the_interval_have_their_share() {
    let Some((report, used)) = profile("processes") else { return };
    assert_halves(&report);
    assert_all_is_told(&report, used);
}

/// The running kernel as it is to an ordinary user, who may not sample what a processor executes.
#[derive(Default)]
struct Restricted(Kernel);

impl PerfEvents for Restricted {
    fn processors(&self) -> io::Result<Vec<u16>> {
        self.0.processors()
    }

    fn open(&mut self, processor: u16, request: &Request) -> Result<(), OpenError> {
        match request.scope {
            Scope::SystemWide => Err(OpenError::Event(io::Error::from_raw_os_error(libc::EACCES))),
            Scope::PerThread => self.0.open(processor, request),
        }
    }

    fn close(&mut self, processor: u16) {
        self.0.close(processor);
    }

    fn read(&mut self, records: &mut Vec<Record>) {
        self.0.read(records);
    }

    fn consumed(&mut self) -> Option<u64> {
        self.0.consumed()
    }

    fn setting(&self) -> Setting {
        self.0.setting()
    }

    fn kernel_texts(&self) -> Vec<Mapping> {
        self.0.kernel_texts()
    }
}

#[test]
fn an_ordinary_user_sees_threads_shorter_than_the_interval_too() {
    let source = Machine::with_interface(pmu_intel::Emon::declared()).find("ProfileTime").unwrap();
    let mut sampling: Sampling<Restricted> =
        match Sampling::start(Restricted::default(), &source, 10_000, CallGraph::None) {
            Ok(sampling) => sampling,
            Err(error @ (Error::Forbidden { .. } | Error::Perf(_) | Error::Ring(_))) => {
                let error = error.to_string();
                println!("skipped: no perf events here: {}", error.lines().next().unwrap_or(""));
                return;
            }
            Err(error) => panic!("{error}"),
        };
    let mut command = Command::new(env!("CARGO_BIN_EXE_short-lived"));
    command.args(["threads", NUMBER, MICROSECONDS]).stdout(Stdio::piped());
    let mut command = command.spawn().unwrap();
    while command.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(10));
        sampling.read().unwrap();
    }
    let output = command.wait_with_output().unwrap();
    let used = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let outcome = sampling.finish().unwrap();

    let run = Run {
        processor: String::new(),
        interface: String::new(),
        source: source.name,
        interval: String::new(),
        each: 1_000_000,
        unit: Unit::Nanoseconds,
        start: 0,
        subject: String::new(),
    };
    let (statistics, consumed) = (outcome.statistics, outcome.consumed);
    let report = Report::new(
        run,
        statistics,
        consumed,
        &outcome.histograms,
        CallStacks::default(),
        Symbols::default(),
        |_| None,
    );
    let report = serde_json::from_str(&machine::json(&report).unwrap()).unwrap();
    assert_halves(&report);
    assert_all_is_told(&report, used);
    assert!(outcome.notes().iter().any(|note| note.contains("62.5 µs")), "{:?}", outcome.notes());
}
