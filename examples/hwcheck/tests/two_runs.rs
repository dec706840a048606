//! Two runs on one machine: one after the other, never at a time; and a run after one that was interrupted.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod machines;

use core::time::Duration;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Instant;

use machines::{Folder, intel, leave_traces, run};
use pmu_hwcheck::machine::software::{Plan, Software};

fn machine(folder: &Folder) -> Software {
    let machine = folder.machine(Plan::new(intel()));
    leave_traces(&machine);
    machine
}

/// Starts a run, in a process group of its own, that writes until it is ended.
fn start(folder: &Folder, machine: &Software) -> Child {
    let mut command = machines::command(&folder.0, &["--yes", "--programs", "1000000"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let child = command.spawn().unwrap();
    wait_until(|| machine.accesses().is_ok_and(|accesses| accesses > 200));
    child
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(300), "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn rdpmc(folder: &Folder) -> String {
    let path = folder.0.join("sys/bus/event_source/devices/cpu/rdpmc");
    std::fs::read_to_string(path).unwrap().trim_end().into()
}

#[test]
fn a_run_beside_another_is_refused_and_touches_no_register() {
    let folder = Folder::new();
    let machine = machine(&folder);
    let before = machine.state().unwrap();
    let mut first = start(&folder, &machine);
    for arguments in [&[][..], &["--read-only"]] {
        let (status, _, output) = run(&folder, arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(status, Some(3), "{text}");
        assert!(text.contains("another run lives") && text.contains("wait until"), "{text}");
    }
    // SAFETY: a child that was not waited for yet.
    unsafe { libc::kill(first.id() as i32, libc::SIGTERM) };
    first.wait().unwrap();
    assert_eq!(machine.state().unwrap(), before);
    // The lock went with the run.
    let (status, _, output) = run(&folder, &[]);
    assert_eq!(status, Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_worker_that_outlives_its_supervisor_keeps_the_lock_until_everything_is_restored() {
    let folder = Folder::new();
    let machine = machine(&folder);
    let before = machine.state().unwrap();
    let mut first = start(&folder, &machine);
    first.kill().unwrap();
    first.wait().unwrap();
    wait_until(|| run(&folder, &["--read-only"]).0 == Some(0));
    assert_eq!(machine.state().unwrap(), before);
}

#[test]
fn changes_that_an_interrupted_run_left_are_named_with_rdpmc_which_the_next_run_puts_back() {
    let folder = Folder::new();
    let machine = machine(&folder);
    let first = start(&folder, &machine);
    // Supervisor and worker at once: nothing is restored.
    // SAFETY: the group of a child that was not waited for yet.
    unsafe { libc::kill(-(first.id() as i32), libc::SIGKILL) };
    drop(first.wait_with_output());
    // The worker is not this process's child.
    wait_until(|| {
        machine.accesses().ok() == {
            pause();
            machine.accesses().ok()
        }
    });
    assert_eq!(rdpmc(&folder), "2");
    // The first select, as a worker may leave it.
    machine.set(0x186, 0x0003_00C0).unwrap();
    let (_, _, output) = run(&folder, &["--read-only"]);
    let text = String::from_utf8(output.stderr).unwrap();
    for part in [
        "left changes of processor 0",
        "0x186 held 0x13003c, holds 0x300c0",
        "/rdpmc held 1, holds 2",
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
    assert_eq!(rdpmc(&folder), "2");
    // A counter that still runs would be refused, as another owner's.
    machine.set(0x38F, 0).unwrap();
    let (status, _, output) = run(&folder, &[]);
    assert_eq!(status, Some(0), "{output:?}");
    assert_eq!(rdpmc(&folder), "1");
    // Once.
    let (_, _, output) = run(&folder, &["--read-only"]);
    assert!(output.stderr.is_empty(), "{output:?}");
}

fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
