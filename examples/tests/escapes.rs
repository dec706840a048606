//! Text that another user chose, in each output: control characters are made visible, and move no terminal's cursor.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::mem::zeroed;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flate2::read::GzDecoder;
use perf_event_open_sys::bindings::perf_event_attr;
use pmu_examples::profiler::maps::Mapping;
use pmu_examples::profiler::perf::{Record, Sample, What};
use pmu_examples::profiler::perf_data::writer::{Facts, Writer};
use pmu_examples::untrusted::{visible, visible_lines};
use pprof::protos::Message;

/// Ends of lines, a terminal's commands in 7 and in 8 bits, a delete, and an override of the direction.
const HOSTILE: &str = "a\x1b]0;b\x07\x1b[2J\r\n~c\u{9b}31m\x7f\u{202e}d";

/// A process whose map file is made here: no process has a number so large.
const PROCESS: u32 = 4_194_309;

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Fails if a text has what moves the cursor, but for the ends of its own lines.
fn assert_visible(text: &str, what: &str) {
    for hostile in ['\x1b', '\x07', '\r', '\u{9b}', '\x7f', '\u{202e}'] {
        assert!(!text.contains(hostile), "{what} has {hostile:?}: {text:?}");
    }
    assert!(text.lines().all(|line| !line.starts_with("~c")), "{what} has its line: {text:?}");
}

/// A recording of samples in a file and in memory of no file, all of whose texts are hostile.
fn made(file: &Path) {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut attributes: perf_event_attr = unsafe { zeroed() };
    attributes.type_ = 1;
    attributes.sample_type = 1 | 2 | 4 | 1 << 5 | 1 << 7;
    attributes.__bindgen_anon_1.sample_period = 1_000_000;
    attributes.set_sample_id_all(1);
    let facts = Facts {
        event: format!("event {HOSTILE}"),
        processor: format!("processor {HOSTILE}"),
        command: vec!["profile".into(), format!("command {HOSTILE}")],
    };
    let mut writer = Writer::create(file, &attributes, facts).unwrap();
    let (process, thread) = (PROCESS, PROCESS + 1);
    let both =
        |start, path: String| Mapping { start, size: 0x1000, file_offset: 0, path: path.into() };
    for what in [
        What::Exec { process, name: HOSTILE.into() },
        What::Name { process, thread, name: format!("thread {HOSTILE}") },
        What::Map { process, mapping: both(0x40_0000, format!("/nowhere/{HOSTILE}/{HOSTILE}")) },
        What::Map { process, mapping: both(0x50_0000, "//anon".into()) },
    ] {
        writer.write(&Record::new(0, what)).unwrap();
    }
    for number in 0..40_u64 {
        let pc = if number % 2 == 0 { 0x40_0010 } else { 0x50_0010 };
        let of = if number % 4 < 2 { process } else { thread };
        let ids = u64::from(process) | u64::from(of) << 32;
        let words = [pc, ids, number, 0, 3, -512_i64 as u64, pc, 0x40_0021];
        let mut raw = [9_u32.to_ne_bytes(), 2_u32.to_ne_bytes()].concat();
        raw[6..8].copy_from_slice(&72_u16.to_ne_bytes());
        words.iter().for_each(|word| raw.extend(word.to_ne_bytes()));
        let sample = Sample {
            process,
            thread: of,
            processor: 0,
            pc,
            kernel: false,
            callers: Vec::new(),
            user: None,
        };
        writer.write(&Record { raw, ..Record::new(number, What::Sample(sample)) }).unwrap();
    }
    writer.finish().unwrap();
}

fn report(file: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    let output = command.arg("report").arg(file).args(options).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_visible(&String::from_utf8_lossy(&output.stderr), "standard error");
    output
}

/// All strings of a JSON text, with what its escapes stand for.
fn strings(value: &serde_json::Value, all: &mut Vec<String>) {
    match value {
        serde_json::Value::String(text) => all.push(text.clone()),
        serde_json::Value::Array(values) => values.iter().for_each(|value| strings(value, all)),
        serde_json::Value::Object(members) => members.values().for_each(|one| strings(one, all)),
        _ => {}
    }
}

#[test]
fn names_paths_and_arguments_of_others_move_no_cursor_in_any_output() {
    let file = scratch("escapes.data");
    let map = PathBuf::from(format!("/tmp/perf-{PROCESS}.map"));
    // A line ends a function's name.
    let name = HOSTILE.replace(['\r', '\n'], "");
    fs::write(&map, format!("500000 1000 function {name}\n")).unwrap();
    made(&file);
    for options in [&[][..], &["--csv"]] {
        let text = String::from_utf8(report(&file, options).stdout).unwrap();
        assert!(text.contains("function a\u{FFFD}]0;b"), "{text}");
        assert_visible(&text, "standard output");
    }
    let json = report(&file, &["--json"]).stdout;
    let mut all = Vec::new();
    strings(&serde_json::from_slice(&json).unwrap(), &mut all);
    assert!(all.iter().any(|text| text.starts_with("thread a\u{FFFD}")), "{all:?}");
    all.iter().for_each(|text| assert_visible(text, "JSON"));

    for option in ["--svg", "--flamegraph", "--folded", "--firefox", "--pprof"] {
        let place = scratch("escapes.output");
        report(&file, &[option, place.to_str().unwrap()]);
        let bytes = fs::read(&place).unwrap();
        fs::remove_file(&place).unwrap();
        match option {
            "--pprof" => {
                let mut message = Vec::new();
                GzDecoder::new(&*bytes).read_to_end(&mut message).unwrap();
                let profile = pprof::protos::Profile::decode(&*message).unwrap();
                assert!(profile.string_table.iter().any(|text| text.contains("function a")));
                profile.string_table.iter().for_each(|text| assert_visible(text, option));
            }
            "--firefox" => {
                let mut all = Vec::new();
                strings(&serde_json::from_slice(&bytes).unwrap(), &mut all);
                assert!(all.iter().any(|text| text.contains("function a")), "{all:?}");
                all.iter().for_each(|text| assert_visible(text, option));
            }
            _ => {
                let text = String::from_utf8(bytes).unwrap();
                assert!(text.contains("function a"), "{option}: {text}");
                assert_visible(&text, option);
            }
        }
    }
    // A message that names the threads that were sampled, and one that names a file.
    let only = ["report", file.to_str().unwrap(), "--only", "none"];
    for arguments in [&only[..], &["report", &format!("/nowhere/{HOSTILE}")]] {
        let output = Command::new(env!("CARGO_BIN_EXE_profile")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_visible(&String::from_utf8_lossy(&output.stderr), "a message");
    }
    fs::remove_file(&map).unwrap();
}

#[test]
fn a_dumps_file_name_moves_no_cursor() {
    for program in [env!("CARGO_BIN_EXE_pmcsources"), env!("CARGO_BIN_EXE_events")] {
        let file = format!("/nowhere/{}", HOSTILE.replace('\n', ""));
        let output = Command::new(program).args(["--cpuid", &file, "x"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_visible(&String::from_utf8_lossy(&output.stderr), program);
    }
}

/// The characters of Unicode's categories Cc, Zl and Zp, and those with the property `Bidi_Control`.
#[test]
fn what_is_hostile_is_replaced_and_what_is_not_is_kept() {
    for plain in ["", "core::ptr::read<T>", "Größe 測定 \u{a0}", "\u{202f}\u{2065}\u{206a}"] {
        assert_eq!(visible(plain), plain);
    }
    let hostile = "\0\t\n\r\x1b\x7f\u{80}\u{9f}\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}";
    assert_eq!(visible(hostile), "\u{FFFD}".repeat(hostile.chars().count()));
    assert_eq!(visible_lines("a\x1b\nb\r\n"), "a\u{FFFD}\nb\u{FFFD}\n");
}
