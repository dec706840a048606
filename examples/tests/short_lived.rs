//! Threads and processes that end before an interval has passed: their shares, and what was not sampled.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::process::Command;

use serde_json::Value;

/// What `short-lived` is asked for: as much work in its main thread as in these, 2.4 s each.
const NUMBER: &str = "4000";
const MICROSECONDS: &str = "600";

/// How far the shares may be from halves.
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
    // What the command prints is kept apart from the object.
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
    assert!(told("total") as f64 <= used as f64 * 1.5, "{used} of {consumed}");
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
