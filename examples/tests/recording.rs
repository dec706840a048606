//! Recordings: written, read again, and by perf; perf's own; damaged ones; large ones.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::mem::zeroed;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use perf_event_open_sys::bindings::perf_event_attr;
use pmu_examples::profiler::maps::Mapping;
use pmu_examples::profiler::perf::{Record, Sample, What};
use pmu_examples::profiler::perf_data::writer::{Facts, Writer};
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

fn profile(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_profile")).args(arguments).output().unwrap()
}

fn is_skipped(output: &Output) -> bool {
    let complaint = String::from_utf8_lossy(&output.stderr);
    let skipped = complaint.contains("forbids sampling") || complaint.contains("perf events:");
    if skipped {
        println!("skipped: no perf events here: {complaint}");
    }
    skipped
}

/// Records, and returns the number of samples that is told; `None` where the kernel forbids it.
fn record(file: &Path, options: &[&str]) -> Option<u64> {
    let file = file.to_str().unwrap();
    let command = ["--", SHORT_LIVED, "threads", "5", "50000"];
    let output = profile(&[&["record", "-o", file], options, &command].concat());
    if is_skipped(&output) {
        return None;
    }
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let samples = told.split(" samples, ").next().unwrap().rsplit(' ').next().unwrap();
    Some(samples.parse().unwrap_or_else(|_| panic!("{told}")))
}

fn report(file: &Path, options: &[&str]) -> Value {
    let output = profile(&[&["report", file.to_str().unwrap(), "--json"], options].concat());
    let complaint = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {complaint}"))
}

fn samples_of(report: &Value, function: &str, field: &str) -> u64 {
    let functions = report["functions"].as_array().unwrap();
    let named = functions.iter().filter(|f| f["name"].as_str().unwrap().ends_with(function));
    named.map(|function| function[field].as_u64().unwrap()).sum()
}

#[test]
fn a_recording_has_all_samples_functions_and_threads_when_it_is_read_again() {
    for way in ["auto", "fp", "none"] {
        let file = scratch(&format!("recording-{way}.data"));
        let Some(recorded) = record(&file, &["--call-graph", way]) else { return };
        let report = report(&file, &[]);
        assert_eq!(report["samples"], recorded);
        assert_eq!(report["interrupts"]["missed"], 0, "{report:#}");
        let [main, short] =
            ["::in_main", "::in_short_ones"].map(|f| samples_of(&report, f, "samples"));
        assert!((main + short) * 10 >= recorded * 8, "{way}: {report:#}");
        let [all, alone] = ["total", "samples"].map(|field| samples_of(&report, "::main", field));
        assert_eq!(way == "auto", all > alone, "{way}: {report:#}");
        let threads = report["threads"].as_array().unwrap();
        assert!(threads.iter().any(|one| one["process_name"] == "short-lived"), "{threads:#?}");
        // Each time the same.
        assert_eq!(report["functions"], self::report(&file, &[])["functions"]);
    }
}

#[test]
fn perf_reads_a_recording_and_finds_as_many_samples() {
    let file = scratch("recording-perf.data");
    let Some(recorded) = record(&file, &["--call-graph", "fp"]) else { return };
    let perf = Command::new("perf")
        .args(["script", "-F", "comm,ip", "-i"])
        .arg(&file)
        .stderr(Stdio::null())
        .output();
    match perf {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            // A line of its own for each, with the name that its thread had then: before `exec` it is the profiler's.
            let is_head = |line: &&str| !line.trim().is_empty() && !line.starts_with('\t');
            let samples = text.lines().filter(is_head).count() as u64;
            assert_eq!(samples, recorded, "{text}");
        }
        _ if Command::new("perf").arg("--version").output().is_err() => {
            println!("skipped: no perf here")
        }
        other => panic!("perf does not read it: {other:?}"),
    }
}

#[test]
fn a_file_that_changed_since_the_recording_has_no_names_of_the_other_and_a_note_tells_it() {
    let (file, program) = (scratch("recording-changed.data"), scratch("changed-program"));
    copy_of_program(&program);
    let words = ["threads", "3", "50000"];
    let output = profile(
        &[&["record", "-o", file.to_str().unwrap(), "--", program.to_str().unwrap()][..], &words]
            .concat(),
    );
    if is_skipped(&output) {
        return;
    }
    let has_names = |report: &Value| samples_of(report, "::in_main", "samples") > 0;
    let whole = report(&file, &[]);
    assert!(has_names(&whole), "{whole:#}");
    let perf = Command::new("perf").args(["buildid-list", "-i"]).arg(&file).output();
    if let Ok(list) = perf.as_ref().map(|output| String::from_utf8_lossy(&output.stdout)) {
        assert!(list.contains("changed-program"), "{list}");
    }
    // Another program of the same name, with another build ID.
    fs::remove_file(&program).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_profile"), &program).unwrap();
    let changed = report(&file, &[]);
    let notes = changed["notes"].to_string();
    assert!(!has_names(&changed) && notes.contains("changed since the recording"), "{changed:#}");
    assert_eq!(whole["samples"], changed["samples"]);
}

#[test]
fn a_recording_of_perfs_is_read_with_its_callers() {
    let file = scratch("recording-of-perf.data");
    let perf = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock", "-F", "1000", "--call-graph", "dwarf", "-o"])
        .arg(&file)
        .args(["--", SHORT_LIVED, "threads", "5", "50000"])
        .output();
    if !perf.is_ok_and(|output| output.status.success()) {
        println!("skipped: no perf here, or it may not sample");
        return;
    }
    let report = report(&file, &[]);
    let samples = report["samples"].as_u64().unwrap();
    let [main, short] = ["::in_main", "::in_short_ones"].map(|f| samples_of(&report, f, "samples"));
    assert!(samples >= 100 && (main + short) * 10 >= samples * 8, "{report:#}");
    assert!(samples_of(&report, "::main", "total") * 10 >= main * 9, "{report:#}");
}

/// A recording of so many samples in a program that is not there, on so many stacks.
fn made(file: &Path, samples: u64, stacks: u64) {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut attributes: perf_event_attr = unsafe { zeroed() };
    attributes.type_ = 1;
    attributes.sample_type = 1 | 2 | 4 | 1 << 5 | 1 << 7;
    attributes.__bindgen_anon_1.sample_period = 1_000_000;
    attributes.set_sample_id_all(1);
    let mut writer = Writer::create(file, &attributes, Facts::default()).unwrap();
    let mapping =
        Mapping { start: 0x40_0000, size: 0x10_0000, file_offset: 0, path: "/nowhere/tool".into() };
    for what in [What::Exec { process: 7, name: "tool".into() }, What::Map { process: 7, mapping }]
    {
        writer.write(&Record::new(0, what)).unwrap();
    }
    for number in 0..samples {
        let pc = 0x40_0000 + number % stacks * 4;
        let words = [pc, 7 | 7 << 32, number, 0, 3, -512_i64 as u64, pc, 0x48_0001 + number % 7];
        let mut raw = [9_u32.to_ne_bytes(), 2_u32.to_ne_bytes()].concat();
        raw[6..8].copy_from_slice(&72_u16.to_ne_bytes());
        words.iter().for_each(|word| raw.extend(word.to_ne_bytes()));
        let sample = Sample {
            process: 7,
            thread: 7,
            processor: 0,
            pc,
            kernel: false,
            callers: Vec::new(),
            user: None,
        };
        writer.write(&Record { raw, ..Record::new(number, What::Sample(sample)) }).unwrap();
        if number % 1000 == 999 {
            writer.end_round().unwrap();
        }
    }
    writer.finish().unwrap();
}

/// Runs `profile report`, and returns its status and the most memory that it had, in bytes.
#[allow(clippy::zombie_processes, reason = "wait4 waits for it")]
fn memory_of_report(file: &Path) -> (ExitStatus, u64) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    let child = command.arg("report").arg(file).stdout(Stdio::null()).spawn().unwrap();
    // SAFETY: plain data, for which zero is a valid value of every field.
    let (mut status, mut usage): (i32, libc::rusage) = (0, unsafe { zeroed() });
    // SAFETY: both pointers are valid for the call; the child was not waited for yet.
    let ended = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    assert_eq!(ended, child.id() as i32);
    (ExitStatus::from_raw(status), usage.ru_maxrss as u64 * 1024)
}

#[test]
fn a_million_samples_need_less_than_100_megabytes() {
    let file = scratch("recording-large.data");
    made(&file, 1_000_000, 5_000);
    assert!(fs::metadata(&file).unwrap().len() > 64_000_000);
    let (status, bytes) = memory_of_report(&file);
    assert!(status.success());
    assert!(bytes < 100_000_000, "{bytes} bytes");
    fs::remove_file(&file).unwrap();
}

#[test]
fn what_is_no_recording_or_a_damaged_one_is_an_error_or_read_as_far_as_it_goes() {
    let file = scratch("recording-damaged.data");
    made(&file, 50, 5);
    let whole = fs::read(&file).unwrap();
    assert_eq!(report(&file, &[])["samples"], 50);
    let tried = |bytes: &[u8], what: &str| {
        fs::write(&file, bytes).unwrap();
        let output = profile(&["report", file.to_str().unwrap()]);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 2)), "{what}: {complaint}");
        assert!(!complaint.contains("panicked"), "{what}: {complaint}");
        (output.status.code(), complaint)
    };
    let (status, complaint) = tried(b"#!/bin/sh\n", "a script");
    assert!(status == Some(2) && complaint.contains("no recording"), "{complaint}");
    for length in (0..whole.len()).step_by(whole.len() / 12) {
        tried(&whole[..length], &format!("cut off at {length}"));
    }
    // Each word of the header, as large as can be, and zero.
    for place in (8..104).step_by(8) {
        for value in [u64::MAX, 1 << 40, 0] {
            let mut changed = whole.clone();
            changed[place..place + 8].copy_from_slice(&value.to_ne_bytes());
            tried(&changed, &format!("{value:#x} at {place}"));
        }
    }
    // The first record's kind: a processor's trace, with any length, and a compressed record.
    for (kind, told) in [(71_u32, "trace"), (81, "compressed"), (83, "compressed")] {
        let begin = u64::from_ne_bytes(whole[40..48].try_into().unwrap()) as usize;
        let mut changed = whole.clone();
        changed[begin..begin + 4].copy_from_slice(&kind.to_ne_bytes());
        let (status, complaint) = tried(&changed, told);
        assert!(status == Some(2) && complaint.contains(told), "{complaint}");
    }
    fs::write(&file, &whole).unwrap();
    for arguments in [
        &["record", "-o", "/nowhere/file", "--", "true"][..],
        &["report", "/nowhere/file"],
        &["record"],
    ] {
        let output = profile(arguments);
        if !is_skipped(&output) {
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        }
    }
}
