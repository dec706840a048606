//! The registers are always as they were found at the end; values that another owner wrote are left alone.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod machines;

use core::time::Duration;
use std::process::Stdio;
use std::time::Instant;

use machines::{Folder, claim, intel, leave_traces, run};
use pmu_hwcheck::machine::Machine;
use pmu_hwcheck::machine::software::{Plan, Software};
use pmu_hwcheck::machine::workload::{Memory, Workload};
use pmu_hwcheck::programs::Comparison;
use pmu_hwcheck::registers::Registers;
use pmu_hwcheck::registers::agreed::Agreed;
use pmu_hwcheck::registers::journal::Journal;
use pmu_hwcheck::registers::read;
use pmu_hwcheck::registers::restore::restore;
use pmu_hwcheck::report::{Hex, Outcome, Reason};

fn machine(folder: &Folder, change: impl FnOnce(&mut Plan)) -> Software {
    let machine = folder.machine(Plan::new(intel()).with(change));
    leave_traces(&machine);
    machine
}

/// The accesses of a run to which nothing happens.
fn accesses() -> u64 {
    let folder = Folder::new();
    let machine = machine(&folder, |_| {});
    let (status, _, output) = run(&folder, &[]);
    assert_eq!(status, Some(0), "{output:?}");
    machine.accesses().unwrap()
}

#[test]
fn a_run_puts_everything_back() {
    let folder = Folder::new();
    let machine = machine(&folder, |_| {});
    let before = machine.state().unwrap();
    let (status, report, output) = run(&folder, &[]);
    assert_eq!(status, Some(0), "{output:?}");
    let restored = report.unwrap().restored;
    // Three selects, three counters, the fixed ones and both controls; the fourth could not be written again.
    assert_eq!((restored.restored, restored.failed.len()), (11, 0));
    assert_eq!(machine.state().unwrap(), before);
    let rdpmc = folder.0.join("sys/bus/event_source/devices/cpu/rdpmc");
    assert_eq!(std::fs::read_to_string(rdpmc).unwrap(), "1");
}

#[test]
fn a_worker_that_is_killed_at_any_access_leaves_nothing() {
    let all = accesses();
    let mut killed = 0;
    let points = 30;
    // The supervisor reads before and restores after: a point there kills it, and says nothing.
    for point in 0..points {
        let at = 20 + point * point * (all - 20) / (points * points);
        let folder = Folder::new();
        let machine = machine(&folder, |plan| plan.killed_at = Some(at));
        let before = machine.state().unwrap();
        let (status, report, output) = run(&folder, &[]);
        let Some(status) = status else { continue };
        assert_eq!(status, 1, "killed at {at}: {output:?}");
        let report = report.unwrap();
        assert!(!report.restored.worker_ended_well);
        assert_eq!(machine.state().unwrap(), before, "killed at {at}");
        let last = claim(&report, "driver.take");
        assert_eq!(last.evidence.reason, Some(Reason::WorkerEnded));
        killed += 1;
    }
    assert!(killed > 20, "{killed}");
}

#[test]
fn a_device_that_fails_half_way_and_recovers_is_restored() {
    let all = accesses();
    for part in 1..6 {
        let folder = Folder::new();
        let at = 60 + part * (all - 260) / 6;
        let machine = machine(&folder, |plan| plan.failing = Some(at..at + 2));
        let before = machine.state().unwrap();
        let (status, report, output) = run(&folder, &[]);
        assert!(matches!(status, Some(0 | 1)), "{output:?}");
        assert!(report.unwrap().restored.failed.is_empty());
        assert_eq!(machine.state().unwrap(), before, "failed at {at}");
    }
}

#[test]
fn a_kernel_that_refuses_writes_is_told_and_nothing_was_to_be_restored() {
    let folder = Folder::new();
    let machine = machine(&folder, |plan| plan.refuses_writes = true);
    let before = machine.state().unwrap();
    let (status, report, output) = run(&folder, &[]);
    assert_eq!(status, Some(1), "{output:?}");
    let report = report.unwrap();
    assert_eq!(report.restored.failed, []);
    assert_eq!(claim(&report, "driver.take").evidence.reason, Some(Reason::Unreachable));
    assert_eq!(machine.state().unwrap(), before);
}

/// Its number, for each write of the restoring: a control, or a counter.
#[test]
fn registers_are_restored_from_the_counters_to_the_global_control() {
    let folder = Folder::new();
    let machine = machine(&folder, |_| {});
    let found = |address| read(&machine, &intel(), address).ok();
    let agreed = Agreed::new(&intel(), found);
    let journal = Journal::new(&agreed).unwrap();
    let registers = Registers::new(&machine, intel(), &agreed, &journal);
    Comparison::new(&registers).unwrap().programs(1, 3, &|| false).unwrap();
    // As a worker that was killed leaves it: it counts, and has overflowed.
    for (register, value) in
        [(0x186, 0x43_003C), (0x38D, 0x2), (0x4C1, 0xFFFF_FFFF_FFFF), (0x38F, 0x1_0000_0005)]
    {
        registers.write(register, value).unwrap();
    }
    machine.run(Workload::Loop, &Memory::new(0, 0), 10);
    let before = machine.writes().len();
    assert_eq!(restore(&registers).failed, []);
    let step = |(register, value): (u32, u64)| match register {
        // The third counter, of pin control, stays as it was.
        0x38F if value == 0x4 => 0,
        0x186..=0x189 | 0x38D if value == 0 => 1,
        0x390 => 2,
        0xC1..=0xC4 | 0x4C1..=0x4C4 | 0x309..=0x30B => 3,
        0x186..=0x189 | 0x38D => 4,
        0x38F => 5,
        other => panic!("{other:#x}"),
    };
    let mut steps: Vec<_> = machine.writes().split_off(before).into_iter().map(step).collect();
    assert_eq!(steps.last(), Some(&5));
    // A select that is restored to 0 is written twice.
    steps.dedup();
    assert!(steps.starts_with(&[0, 1, 2, 3]) && steps.ends_with(&[4, 5]), "{steps:?}");
}

#[test]
fn a_device_that_is_gone_is_told_register_by_register() {
    let folder = Folder::new();
    let _machine = machine(&folder, |plan| plan.failing = Some(300..u64::MAX));
    let (status, report, output) = run(&folder, &[]);
    assert_eq!(status, Some(5), "{output:?}");
    let failed = report.unwrap().restored.failed;
    assert!(failed.contains(&Hex(0x186)) && failed.contains(&Hex(0x38F)), "{failed:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("could NOT be put back: 0xc1"));
}

#[test]
fn another_owners_writes_are_noticed_and_left_alone() {
    let all = accesses();
    // A select, the fixed counters' control, the global control.
    for (register, value) in [(0x187, 0x53_013C), (0x38D, 0x0B), (0x38F, 0x5)] {
        let mut noticed = 0;
        for part in 1..10 {
            let at = 60 + part * (all - 260) / 10;
            let folder = Folder::new();
            let machine = machine(&folder, |plan| plan.others = vec![(at, register, value)]);
            let before = machine.state().unwrap();
            let (status, report, output) = run(&folder, &[]);
            let report = report.unwrap();
            let left = &report.restored.left_alone;
            let after = machine.state().unwrap();
            for (address, value) in before.registers() {
                if !left.contains(&Hex(u64::from(address))) {
                    assert_eq!(after.register(address), Some(value), "{address:#x} at {at}");
                }
            }
            // Within a program it may be written over before the next look.
            if claim(&report, "driver.take").outcome != Outcome::Disturbed {
                assert!(left.is_empty(), "{register:#x} at {at}: {left:?}");
                continue;
            }
            noticed += 1;
            assert!(left.contains(&Hex(u64::from(register))), "{register:#x}: {left:?}");
            assert!(report.restored.disturbed.contains(&Hex(u64::from(register))));
            assert_eq!(after.register(register), Some(value), "{register:#x} at {at}");
            assert_eq!(status, Some(4), "{register:#x}: {output:?}");
        }
        assert!(noticed > 3, "{register:#x}: {noticed}");
    }
}

/// So late that only the last comparison meets it: no claim says *disturbed*, and the status does.
#[test]
fn another_owners_last_write_is_left_alone_and_told_by_the_status() {
    let all = accesses();
    let mut late = 0;
    for at in (all - 140..all).step_by(7) {
        let folder = Folder::new();
        let machine = machine(&folder, |plan| plan.others = vec![(at, 0x187, 0x53_013C)]);
        let (status, report, output) = run(&folder, &[]);
        let report = report.unwrap();
        if report.restored.left_alone.is_empty() {
            continue;
        }
        late += u32::from(claim(&report, "driver.take").outcome != Outcome::Disturbed);
        assert_eq!(status, Some(4), "at {at} of {all}: {output:?}");
        assert_eq!(machine.state().unwrap().register(0x187), Some(0x53_013C), "at {at}");
    }
    assert!(late > 0);
}

#[test]
fn a_signal_ends_the_worker_and_the_registers_are_restored() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let folder = Folder::new();
        let machine = machine(&folder, |_| {});
        let before = machine.state().unwrap();
        let mut command = machines::command(&folder.0, &["--yes", "--programs", "1000000"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until(|| machine.accesses().is_ok_and(|accesses| accesses > 200));
        // SAFETY: a child that was not waited for yet.
        unsafe {
            libc::kill(child.id() as i32, signal);
        }
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert_eq!(machine.state().unwrap(), before);
        let rdpmc = folder.0.join("sys/bus/event_source/devices/cpu/rdpmc");
        assert_eq!(std::fs::read_to_string(rdpmc).unwrap(), "1");
    }
}

#[test]
fn a_worker_whose_supervisor_is_killed_restores_and_ends() {
    let folder = Folder::new();
    let machine = machine(&folder, |_| {});
    let before = machine.state().unwrap();
    let mut command = machines::command(&folder.0, &["--yes", "--programs", "1000000"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| machine.accesses().is_ok_and(|accesses| accesses > 200));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| machine.state().is_ok_and(|state| state == before));
    let rdpmc = folder.0.join("sys/bus/event_source/devices/cpu/rdpmc");
    assert_eq!(std::fs::read_to_string(rdpmc).unwrap(), "1");
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(300), "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}
