//! Callers of programs without frame pointers, by their unwind tables: those that there are, and no others.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The callers of each function of `programs/callers.c`, as its source has them.
const CALLERS: [(&str, &[&str]); 7] = [
    ("leaf", &["middle"]),
    ("middle", &["middle", "outer"]),
    ("outer", &["main"]),
    ("interrupted", &["main"]),
    ("handler", &["__restore_rt"]),
    ("in_handler", &["handler"]),
    ("asks", &["main"]),
];

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Builds the program; `None`, and a line that says so, where there is no compiler.
fn build(name: &str, options: &[&str]) -> Option<PathBuf> {
    build_of("callers.c", name, options)
}

/// The same of another source.
fn build_of(source: &str, name: &str, options: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let program = scratch(name);
    let mut command = Command::new("cc");
    command.args(["-O2", "-o"]).arg(&program).arg(source).args(options);
    match command.status() {
        Ok(status) if status.success() => Some(program),
        _ => {
            println!("skipped: no C compiler here");
            None
        }
    }
}

/// Frames, the outermost first, and samples.
type Stack = (Vec<String>, u64);

/// Profiles a program, and returns its folded stacks; `None`, and a line that says so, where the kernel forbids it.
fn stacks(program: &Path, way: &str) -> Option<(Vec<Stack>, Output)> {
    let folded = program.with_extension(way);
    let output = Command::new(env!("CARGO_BIN_EXE_profile"))
        .args(["--call-graph", way, "--folded"])
        .args([&folded, program])
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("forbids sampling") || complaint.contains("perf events:") {
        println!("skipped: no perf events here: {complaint}");
        return None;
    }
    let stack = |line: &str| {
        let (frames, samples) = line.rsplit_once(' ').unwrap();
        // The first is the process's name.
        let frames = frames.split(';').skip(1).map(str::to_string).collect();
        (frames, samples.parse().unwrap())
    };
    let text = fs::read_to_string(folded).unwrap_or_else(|error| panic!("{error}: {complaint}"));
    Some((text.lines().map(stack).collect(), output))
}

#[test]
fn a_program_without_frame_pointers_has_all_its_callers_and_no_false_one() {
    let Some(program) = build("callers", &["-fomit-frame-pointer"]) else { return };
    let known: HashMap<_, _> = CALLERS.into_iter().collect();
    for way in ["auto", "dwarf"] {
        let Some((stacks, output)) = stacks(&program, way) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("callers by the unwind tables of"), "{text}");
        let (mut all, mut alone) = (0, 0);
        let mut met = HashMap::<&str, u64>::new();
        for (frames, samples) in &stacks {
            all += samples;
            alone += if frames.len() == 1 { *samples } else { 0 };
            for pair in frames.windows(2) {
                let [caller, function] = [&*pair[0], &*pair[1]];
                if let Some(callers) = known.get(function) {
                    assert!(
                        callers.contains(&caller),
                        "{way}: {caller} calls {function}: {frames:?}"
                    );
                    *met.entry(function).or_default() += samples;
                }
            }
            // The interrupted function is below the signal's.
            let handled = frames.iter().any(|frame| frame == "in_handler");
            let signal = frames.iter().position(|frame| frame == "__restore_rt");
            if let Some(place) = signal.filter(|_| handled) {
                assert_eq!(frames[place - 1], "interrupted", "{frames:?}");
            }
        }
        assert!(alone * 50 <= all, "{way}: {alone} of {all} stacks have one frame");
        for function in ["leaf", "interrupted", "in_handler", "asks"] {
            assert!(met.contains_key(function), "{way}: no {function} among {stacks:?}");
        }
        let vdso = |frames: &[String]| frames.iter().any(|frame| frame.starts_with("__vdso_"));
        let named = stacks.iter().any(|(frames, _)| vdso(frames));
        let unnamed = stacks.iter().any(|(frames, _)| frames.iter().any(|frame| frame == "[vdso]"));
        assert!(named || !unnamed, "{stacks:?}");
    }
}

#[test]
fn stacks_that_end_at_their_first_frame_are_noted_with_the_remedy() {
    let Some(program) = build("callers-noted", &["-fomit-frame-pointer"]) else { return };
    let Some((stacks, output)) = stacks(&program, "fp") else { return };
    let alone = stacks.iter().filter(|(frames, _)| frames.len() == 1).count();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        alone > 0
            && text.contains("end at their first frame")
            && text.contains("--call-graph auto"),
        "{text}"
    );
}

/// Removes a program's tables; false, and a line that says so, where there is no tool for it.
fn remove_tables(program: &Path) -> bool {
    // The C library's own files have tables, which end up in the program.
    let removed = Command::new("objcopy")
        .args(["--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr"])
        .arg(program)
        .status();
    let is_removed = removed.is_ok_and(|status| status.success());
    if !is_removed {
        println!("skipped: no objcopy here");
    }
    is_removed
}

#[test]
fn leaves_without_tables_and_frames_have_their_callers_and_hardly_a_false_one() {
    let options = [
        "-fno-omit-frame-pointer",
        "-momit-leaf-frame-pointer",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
        "-static",
    ];
    let Some(program) = build("callers-leaf", &options) else { return };
    if !remove_tables(&program) {
        return;
    }
    let Some((stacks, _)) = stacks(&program, "auto") else { return };
    let leaves: HashMap<_, _> = CALLERS.into_iter().filter(|(name, _)| *name != "asks").collect();
    let (mut known, mut lost, mut wrong) = (0, 0, 0);
    for (frames, samples) in &stacks {
        for pair in frames.windows(2) {
            let [caller, function] = [&*pair[0], &*pair[1]];
            let Some(callers) = leaves.get(function) else { continue };
            known += *samples;
            wrong += if callers.contains(&caller) { 0 } else { *samples };
        }
        lost += if frames.len() == 1 { *samples } else { 0 };
    }
    assert!(known >= 100 && lost * 50 <= known, "{known} callers, {lost} lost: {stacks:?}");
    // Without a table, a sample between two instructions of a call may be misread.
    assert!(wrong * 100 <= known, "{wrong} of {known} callers are false: {stacks:?}");
    assert!(stacks.iter().any(|(frames, _)| frames.ends_with(&["middle".into(), "leaf".into()])));
}

#[test]
fn code_that_a_files_tables_leave_out_has_its_callers_by_frame_pointers() {
    let Some(program) = build_of("uncovered.c", "uncovered", &["-fomit-frame-pointer"]) else {
        return;
    };
    let Some((stacks, output)) = stacks(&program, "auto") else { return };
    let (mut all, mut whole) = (0, 0);
    for (frames, samples) in &stacks {
        if frames.last().is_some_and(|frame| frame == "uncovered") {
            all += samples;
            let expected = ["main", "calls", "uncovered"].map(String::from);
            whole += if frames.ends_with(&expected) { *samples } else { 0 };
        }
    }
    assert!(all >= 50 && whole == all, "{whole} of {all}: {stacks:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("by frame pointers in uncovered"), "{text}");
}

#[test]
fn goroutines_have_their_callers_up_to_the_first_function() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("compare/programs/calls.go");
    let program = scratch("calls-go");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(&program).arg(source);
    command.env("GOCACHE", scratch("go-cache")).env("GO111MODULE", "off");
    if !command.status().is_ok_and(|status| status.success()) {
        println!("skipped: no Go here");
        return;
    }
    let Some((stacks, _)) = stacks(&program, "auto") else { return };
    let (mut all, mut whole) = (0, 0);
    for (frames, samples) in &stacks {
        for pair in frames.windows(2) {
            let callers: &[&str] = match &*pair[1] {
                "main.leaf" => &["main.middle"],
                "main.middle" => &["main.middle", "main.outer"],
                "main.outer" => &["main.main", "main.inGoroutine"],
                _ => continue,
            };
            assert!(callers.contains(&&*pair[0]), "{frames:?}");
        }
        if frames.iter().any(|frame| frame == "main.leaf") {
            all += samples;
            whole += if frames[0].starts_with("runtime.goexit") { *samples } else { 0 };
        }
    }
    assert!(all >= 100 && whole * 50 >= all * 49, "{whole} of {all}: {stacks:?}");
}

#[test]
fn files_without_tables_have_their_callers_by_frame_pointers_which_is_told() {
    let options = [
        "-fno-omit-frame-pointer",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
        "-static",
    ];
    let Some(program) = build("callers-fp", &options) else { return };
    if !remove_tables(&program) {
        return;
    }
    let Some((stacks, output)) = stacks(&program, "auto") else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("by frame pointers in callers-fp"), "{text}");
    let main_calls =
        |frames: &[String]| frames.windows(2).any(|pair| pair[0] == "main" && pair[1] == "outer");
    assert!(stacks.iter().any(|(frames, _)| main_calls(frames)), "{stacks:?}");
}
