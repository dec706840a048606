//! Advice of `profile`: an error names its reason, and the next step to take.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SHORT_LIVED: &str = env!("CARGO_BIN_EXE_short-lived");
const PROFILE: &str = env!("CARGO_BIN_EXE_profile");

fn profile(arguments: &[&str]) -> Output {
    Command::new(PROFILE).args(arguments).output().expect("the program runs")
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The first is Intel's, the second AMD's, so that every machine lacks one.
#[test]
fn a_source_that_the_machine_lacks_has_one_reason_in_every_spelling() {
    let spellings = [
        ["TotalCycles", "totalCYCLES", "PROFILETOTALCYCLES"],
        ["FRInterruptsMaskedCycles", "frINTERRUPTSmaskedCYCLES", "profilefrinterruptsmaskedcycles"],
    ];
    let mut missing = 0;
    for spellings in spellings {
        let complaints =
            spellings.map(|name| complaint(&profile(&["--source", name, "--", "true"])));
        let denied = complaints.each_ref().map(|text| text.contains("no profile source"));
        assert_eq!(denied, [denied[0]; 3], "{complaints:?}");
        for (name, complaint) in spellings.iter().zip(complaints).filter(|_| denied[0]) {
            missing += 1;
            assert!(
                complaint.contains(name) && complaint.contains("`profile --list`"),
                "{complaint}"
            );
            assert!(!complaint.contains("pmcsources"), "{complaint}");
            // One reason: the name is no misspelled event's.
            assert!(!complaint.contains("nearest"), "{complaint}");
            let builtin = profile(&["--seconds", "1", "--source", name]);
            assert_eq!(builtin.status.success(), complaint.contains("built-in"), "{complaint}");
        }
    }
    assert!(missing >= 3, "{missing}");
}

#[test]
fn a_source_of_the_machine_is_not_denied_for_want_of_a_command() {
    for name in ["LLCMisses", "FRInterruptsMaskedCycles"] {
        let complaint = complaint(&profile(&["--source", name]));
        let list = String::from_utf8(profile(&["--list"]).stdout).unwrap();
        let told = if list.contains(&format!(" {name} ")) { "give a COMMAND" } else { name };
        assert!(complaint.contains(told), "{complaint}");
    }
}

/// Returns true, with a line that says so, where perf events are not to be had.
fn is_without_perf_events(complaint: &str) -> bool {
    let is_without = complaint.contains("forbids sampling") || complaint.contains("perf events:");
    if is_without {
        println!("skipped: no perf events here: {}", complaint.lines().next().unwrap_or(""));
    }
    is_without
}

#[test]
fn a_selection_that_nothing_matches_names_what_was_sampled() {
    let command = ["--", SHORT_LIVED, "threads", "5", "20000"];
    let output = profile(&[&["--only", "no-such-name,0"], &command[..]].concat());
    let complaint = complaint(&output);
    if is_without_perf_events(&complaint) {
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.contains("no-such-name,0") && complaint.contains("short-lived ("),
        "{complaint}"
    );
    assert!(!complaint.contains("less processor time"), "{complaint}");
    // The name that is told selects.
    assert!(profile(&[&["--only", "short-lived"], &command[..]].concat()).status.success());
}

#[test]
fn a_selection_among_running_processes_that_nothing_matches_names_what_was_sampled() {
    let mut running = Command::new(SHORT_LIVED);
    running.args(["threads", "20", "100000"]).stdout(Stdio::null());
    let mut running = running.spawn().unwrap();
    let number = running.id().to_string();
    let output = profile(&["--seconds", "1", "--pid", &number, "--only", "no-such-name"]);
    _ = running.kill();
    _ = running.wait();
    let complaint = complaint(&output);
    if is_without_perf_events(&complaint) {
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("no-such-name"), "{complaint}");
    assert!(complaint.contains(&format!("({number})")), "{complaint}");
}

#[test]
fn a_selection_without_processes_is_an_error_that_says_what_is_missing() {
    let output = profile(&["--only", "short-lived"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    for part in ["--only", "COMMAND", "--pid", "--all"] {
        assert!(complaint(&output).contains(part), "{}", complaint(&output));
    }
}

/// Runs a program as an ordinary user; `None`, and a line that says so, where root cannot become one, or that
/// user cannot execute it.
fn as_ordinary_user(program: &str, arguments: &[&str]) -> Option<Output> {
    let mut program = Command::new(program);
    program.args(arguments);
    if is_root() {
        program.uid(65534).gid(65534).current_dir("/");
    }
    match program.output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("skipped: not as an ordinary user: {error}");
            None
        }
    }
}

/// Copies the program that is profiled. A copy that this process wrote could be busy: a child that another test forks
/// has the file open until the child executes its own program.
fn copy_of_program(to: &Path) {
    assert!(Command::new("cp").arg(SHORT_LIVED).arg(to).status().unwrap().success());
}

/// Creates a program of this name that others can execute, and not read.
fn unreadable(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    _ = fs::remove_file(&program);
    copy_of_program(&program);
    fs::set_permissions(&program, Permissions::from_mode(0o111)).unwrap();
    program
}

fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn a_process_of_another_user_is_told_with_who_may_sample_it() {
    // This process is root's, or else the first one is.
    let process = if is_root() { std::process::id() } else { 1 };
    let folder = fs::metadata(format!("/proc/{process}"));
    if !is_root() && folder.map_or(true, |folder| folder.uid() != 0) {
        println!("skipped: no process of another user here");
        return;
    }
    let number = process.to_string();
    let Some(output) = as_ordinary_user(PROFILE, &["--seconds", "1", "--pid", &number]) else {
        return;
    };
    let complaint = complaint(&output);
    if complaint.contains("perf events:") || output.status.success() {
        println!("skipped: no perf events here, or all are allowed: {complaint}");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    for part in
        [&*format!("process {number} "), "another user", "as root", "CAP_PERFMON", "your own"]
    {
        assert!(complaint.contains(part), "{part:?} is missing in {complaint}");
    }
    for part in ["security module", "paranoid"] {
        assert!(!complaint.contains(part), "{complaint}");
    }
}

#[test]
fn a_program_that_cannot_be_measured_is_told_as_one() {
    let program = unreadable("unreadable");
    let command = ["--", program.to_str().unwrap(), "threads", "5", "20000"];
    let Some(output) = as_ordinary_user(PROFILE, &command) else { return };
    let complaint = complaint(&output);
    if is_without_perf_events(&complaint) {
        return;
    }
    if output.status.success() {
        println!("skipped: all may be sampled here");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    // At least 200 ms: half in the threads, and as much in the first.
    assert!(!complaint.contains("less processor time"), "{complaint}");
    for part in ["may not read", "set-user-ID", "As root, `profile --all --only NAME`"] {
        assert!(complaint.contains(part), "{part:?} is missing in {complaint}");
    }
}

#[test]
fn a_protected_process_is_told_as_one() {
    let program = unreadable("protected");
    // It is protected from its exec on, which its name tells; and it outlives the profile.
    let script = format!(
        "{} threads 100000 20000 & \
         while [ \"$(cat /proc/$!/comm)\" != protected ]; do sleep 0.05; done; \
         {PROFILE} --seconds 1 --pid $!; kill $!",
        program.display()
    );
    let Some(output) = as_ordinary_user("sh", &["-c", &script]) else { return };
    let complaint = complaint(&output);
    if complaint.contains("perf events:") || !complaint.contains("profile: ") {
        println!("skipped: no perf events here, or not for this user: {complaint}");
        return;
    }
    let is_told = complaint.contains("is protected") && complaint.contains("run as root");
    assert!(is_told, "{complaint}");
}
