//! The words of the command line of `profile`: `record` and `report` have options of their own, in any order.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A recording that the fuzzer keeps: 50 samples.
const RECORDING: &[u8] = include_bytes!("../../fuzz/seeds/profile_recording/fifty-samples");

fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, RECORDING).unwrap();
    path
}

fn profile(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_profile")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_recordings_file_comes_before_or_after_the_options() {
    let file = scratch("words-order.data");
    let file = file.to_str().unwrap();
    let json = |arguments: &[&str]| {
        let output = profile(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["samples"], 50, "{arguments:?}");
    };
    json(&["report", file, "--json"]);
    json(&["report", "--json", file]);
    json(&["report", "--call-graph", "none", "--json", file, "--quiet"]);
}

#[test]
fn each_word_has_a_help_of_its_own_with_the_options_that_apply() {
    for (word, has, lacks) in [
        (
            "record",
            &["--output", "--pid", "--source", "COMMAND", "perf.data"][..],
            &["--json", "--svg", "--list"][..],
        ),
        (
            "report",
            &["--json", "--only", "--call-graph", "FILE", "perf.data"],
            &["--pid", "--source", "--output", "--seconds"],
        ),
    ] {
        let output = profile(&[word, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        let help = text(&output.stdout);
        assert!(help.contains(&format!("profile {word}")), "{help}");
        // Of the first column: an option's text may name another one.
        let options: Vec<_> = help.lines().map(str::trim_start).collect();
        let is_there = |option: &str| {
            options.iter().any(|line| {
                line.split([' ', ',']).any(|one| one == option) && line.starts_with('-')
            })
        };
        for option in has.iter().filter(|option| option.starts_with('-')) {
            assert!(is_there(option), "{word} lacks {option}: {help}");
        }
        has.iter().for_each(|part| assert!(help.contains(part), "{word} lacks {part}: {help}"));
        lacks.iter().for_each(|option| assert!(!is_there(option), "{word} has {option}: {help}"));
    }
    let help = text(&profile(&["--help"]).stdout);
    assert!(help.contains("\n  record ") && help.contains("\n  report "), "{help}");
}

#[test]
fn an_option_that_does_not_apply_is_refused_by_its_name() {
    let file = scratch("words-refused.data");
    let file = file.to_str().unwrap();
    for arguments in [
        &["report", file, "--pid", "1"][..],
        &["report", file, "--seconds", "3"],
        &["report", file, "--interval", "10000"],
        &["report", file, "--output", "x"],
        &["record", "--json", "--", "true"],
        &["record", "--svg", "x.svg", "--", "true"],
    ] {
        let output = profile(arguments);
        let complaint = text(&output.stderr);
        let option = arguments.iter().find(|word| word.starts_with("--")).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert!(complaint.contains(option), "{arguments:?}: {complaint}");
        assert!(output.stdout.is_empty());
    }
    let complaint = text(&profile(&["record"]).stderr);
    assert!(complaint.contains("COMMAND, --pid or --all"), "{complaint}");
}

#[test]
fn what_cannot_be_read_is_not_advised_to_be_made_writable() {
    let file = scratch("words-no-recording.data");
    fs::write(&file, "text").unwrap();
    for file in ["/nowhere/perf.data", file.to_str().unwrap(), "/", "/dev/null"] {
        let output = profile(&["report", file]);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(file) && !complaint.contains("writable"), "{complaint}");
    }
    // As another user than the one who may read it.
    fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
    let mut other = Command::new(env!("CARGO_BIN_EXE_profile"));
    other.arg("report").arg(&file).current_dir("/");
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        other.uid(65534).gid(65534);
    }
    let complaint = match other.output() {
        Ok(output) => text(&output.stderr),
        Err(error) => return println!("skipped: not as an ordinary user: {error}"),
    };
    fs::remove_file(&file).unwrap();
    assert!(complaint.contains("denied") && !complaint.contains("writable"), "{complaint}");
}

#[test]
fn a_command_of_the_name_of_a_word_is_one_behind_two_dashes() {
    for word in ["record", "report"] {
        let output = Command::new(env!("CARGO_BIN_EXE_profile"))
            .args(["--", word])
            .env("PATH", "/nowhere")
            .output()
            .unwrap();
        let complaint = text(&output.stderr);
        let is_skipped =
            complaint.contains("forbids sampling") || complaint.contains("perf events:");
        assert!(is_skipped || output.status.code() == Some(127), "{complaint}");
    }
}
