//! Advice that fits its cause: compiled code, recordings without callers, processes that sleep.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::mem::zeroed;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use perf_event_open_sys::bindings::perf_event_attr;
use pmu_examples::profiler::maps::Mapping;
use pmu_examples::profiler::perf::{Record, Sample, What};
use pmu_examples::profiler::perf_data::writer::{Facts, Writer};
use serde_json::Value;

/// A recording of 40 samples of a process, half at either of two places in memory of no file, with callers if that is
/// set.
fn made(file: &Path, process: u32, name: &str, has_callers: bool) {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut attributes: perf_event_attr = unsafe { zeroed() };
    attributes.type_ = 1;
    attributes.sample_type = 1 | 2 | 4 | 1 << 7 | if has_callers { 1 << 5 } else { 0 };
    attributes.__bindgen_anon_1.sample_period = 1_000_000;
    attributes.set_sample_id_all(1);
    let mut writer = Writer::create(file, &attributes, Facts::default()).unwrap();
    let mapping = Mapping { start: 0x40_0000, size: 0x10_0000, file_offset: 0, path: "".into() };
    let mapping = Mapping { path: "//anon".into(), ..mapping };
    for what in [What::Exec { process, name: name.into() }, What::Map { process, mapping }] {
        writer.write(&Record::new(0, what)).unwrap();
    }
    for number in 0..40_u64 {
        let pc = 0x40_0010 + number % 2 * 0x1000;
        let mut words = vec![pc, u64::from(process) | u64::from(process) << 32, number, 0];
        if has_callers {
            words.extend([2, -512_i64 as u64, pc]);
        }
        let mut raw = [9_u32.to_ne_bytes(), 2_u32.to_ne_bytes()].concat();
        raw[6..8].copy_from_slice(&(8 + 8 * words.len() as u16).to_ne_bytes());
        words.iter().for_each(|word| raw.extend(word.to_ne_bytes()));
        let (processor, kernel, callers, user) = (0, false, Vec::new(), None);
        let sample = Sample { process, thread: process, processor, pc, kernel, callers, user };
        writer.write(&Record { raw, ..Record::new(number, What::Sample(sample)) }).unwrap();
    }
    writer.finish().unwrap();
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn report(file: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    let output = command.args(["report", "--json"]).arg(file).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {complaint}"))
}

#[test]
fn samples_without_names_in_compiled_code_are_told_with_the_runtimes_own_remedy() {
    let file = scratch("fitting-runtime.data");
    for (number, (process, has, lacks)) in [
        (
            "java",
            &["-XX:+PreserveFramePointer", "Compiler.perfmap"][..],
            &["--perf-basic-prof", "unwind"][..],
        ),
        ("node", &["--perf-basic-prof"], &["PreserveFramePointer", "unwind"]),
        ("tool", &["--perf-basic-prof", "-XX:+PreserveFramePointer"], &["unwind"]),
    ]
    .into_iter()
    .enumerate()
    {
        made(&file, 4_194_400 + number as u32, process, true);
        let notes = report(&file)["notes"].to_string();
        has.iter().for_each(|part| assert!(notes.contains(part), "{process}: {notes}"));
        lacks.iter().for_each(|part| assert!(!notes.contains(part), "{process}: {notes}"));
    }
}

#[test]
fn code_that_was_compiled_twice_under_one_name_is_one_row() {
    let (file, process) = (scratch("fitting-twice.data"), 4_194_410);
    let map = PathBuf::from(format!("/tmp/perf-{process}.map"));
    fs::write(&map, "400000 100 hot\n401000 100 hot\n").unwrap();
    made(&file, process, "java", true);
    let report = report(&file);
    fs::remove_file(&map).unwrap();
    let functions = report["functions"].as_array().unwrap();
    assert_eq!(functions.len(), 1, "{report:#}");
    assert_eq!((&functions[0]["name"], &functions[0]["samples"]), (&"hot".into(), &40.into()));
    // With names, only callers are missing.
    let notes = report["notes"].to_string();
    assert!(notes.contains("PreserveFramePointer") && !notes.contains("perfmap"), "{notes}");
}

#[test]
fn a_recording_without_call_chains_is_said_to_be_one() {
    let file = scratch("fitting-chains.data");
    for has_callers in [false, true] {
        made(&file, 4_194_420, "tool", has_callers);
        let notes = report(&file)["notes"].to_string();
        assert_eq!(notes.contains("without call chains"), !has_callers, "{notes}");
        assert!(!notes.contains("-fasynchronous-unwind-tables"), "{notes}");
    }
}

#[test]
fn a_process_that_sleeps_while_its_children_run_is_told_with_their_numbers() {
    let script =
        format!("{} threads 200 100000 & echo $!; wait", env!("CARGO_BIN_EXE_short-lived"));
    let mut shell = Command::new("sh");
    let mut shell = shell.args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = shell.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let child = line.trim();
    let output = Command::new(env!("CARGO_BIN_EXE_profile"))
        .args(["--seconds", "1", "--pid", &shell.id().to_string()])
        .output()
        .unwrap();
    _ = Command::new("kill").arg(child).status();
    _ = shell.kill();
    _ = shell.wait();
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("forbids sampling") || complaint.contains("perf events:") {
        println!("skipped: no perf events here: {complaint}");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.contains("slept") && complaint.contains(&format!("--pid {child}")),
        "{complaint}"
    );
    assert!(complaint.contains("short-lived") && !complaint.contains("--interval"), "{complaint}");
}
