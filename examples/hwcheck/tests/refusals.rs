//! The states of a machine in which nothing is written.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod machines;

use std::io::Write;
use std::process::Stdio;

use machines::{Folder, amd, intel, run};
use pmu_hwcheck::machine::software::{Plan, Software};
use pmu_hwcheck::report::{Outcome, Reason};
use pmu_hwcheck::run::check::{CheckError, Options, at_most, check};
use pmu_hwcheck::run::refusal::{Refusal, check_counters};
use pmu_hwcheck::run::run_lock::RunLock;
use pmu_virt::configuration::{
    AmdConfiguration, Configuration, HostError, IntelConfiguration, IntelFeature,
};

const OPTIONS: Options = Options { seed: 1, programs: 1, runs: 1, read_only: false };

/// The reason, of which the remedy is told, and nothing was written.
fn refusal(machine: &Software) -> Refusal {
    let lock = RunLock::take(machine).unwrap();
    match check(machine, &lock, OPTIONS) {
        Err(CheckError::Refused(refusal)) => {
            assert!(refusal.remedy().len() > 20, "{refusal}");
            assert!(machine.writes().is_empty());
            refusal
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn there_is_no_pmu() {
    let none = at_most(|_, _| [0; 4]).unwrap_err();
    assert_eq!(none, Refusal::NoPmu(HostError::Vendor));
    assert!(none.remedy().contains("virtual machine"));
    let more = Refusal::NoPmu(HostError::Counters(0x1FF));
    assert!(more.remedy().contains("pmcsources"));
}

#[test]
fn the_nmi_watchdog_has_a_counter() {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(intel()));
    folder.set_file("proc/sys/kernel/nmi_watchdog", "1\n");
    assert_eq!(refusal(&machine), Refusal::NmiWatchdog);
}

#[test]
fn a_locked_down_kernel_forbids_writes() {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(intel()));
    for mode in ["none [integrity] confidentiality\n", "none integrity [confidentiality]\n"] {
        folder.set_file("sys/kernel/security/lockdown", mode);
        assert_eq!(refusal(&machine), Refusal::LockedDown);
    }
}

#[test]
fn the_module_forbids_writes() {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(intel()));
    folder.set_file("sys/module/msr/parameters/allow_writes", "off\n");
    assert_eq!(refusal(&machine), Refusal::WritesForbidden);
}

#[test]
fn a_counter_runs_for_another_owner() {
    // Enabled in its select and in the global control; the second general counter, the third fixed one.
    for (register, value, counters) in [(0x187, 0x43_00C0, 0x2), (0x38D, 0x200, 0x4_0000_0000)] {
        let folder = Folder::new();
        let machine = folder.machine(Plan::new(intel()));
        machine.set(0x38F, 0x7_0000_000F).unwrap();
        machine.set(register, value).unwrap();
        assert_eq!(refusal(&machine), Refusal::CountersRun(counters));
    }
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(amd()));
    machine.set(0xC001_020A, 0x43_0076).unwrap();
    machine.set(0xC000_0301, 0x20).unwrap();
    assert_eq!(refusal(&machine), Refusal::CountersRun(0x20));
}

#[test]
fn a_counter_runs_by_its_select_alone_where_there_is_no_global_control() {
    for (configuration, select) in [
        (Configuration::Intel(IntelConfiguration::new(1, 2, 0)), 0x186),
        (Configuration::Amd(AmdConfiguration::LEGACY), 0xC001_0000),
        (Configuration::Amd(AmdConfiguration::CORE_EXTENSION), 0xC001_0000),
    ] {
        let folder = Folder::new();
        let machine = folder.machine(Plan::new(configuration));
        machine.set(select, 0x43_00C0).unwrap();
        assert_eq!(refusal(&machine), Refusal::CountersRun(0x1));
    }
}

#[test]
fn an_idle_machine_with_its_global_control_set_is_not_refused() {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(intel()));
    machine.set(0x38F, 0x7_0000_000F).unwrap();
    machine.set(0x186, 0x13_003C).unwrap();
    assert_eq!(check_counters(&machine, &intel()), Ok(()));
    // Enabled, and held back by the global control.
    machine.set(0x38F, 0x7_0000_000E).unwrap();
    machine.set(0x186, 0x43_003C).unwrap();
    assert_eq!(check_counters(&machine, &intel()), Ok(()));
}

#[test]
fn a_register_that_cannot_be_reached_is_told_from_one_that_faults() {
    let folder = Folder::new();
    let plan = Plan::new(intel()).with(|plan| plan.failing = Some(2..3));
    let machine = folder.machine(plan);
    let kind = pmu_core::access::AccessErrorKind::Unreachable;
    assert!(matches!(refusal(&machine), Refusal::Unreadable { kind: found, .. } if found == kind));
}

#[test]
fn without_consent_nothing_is_written() {
    for answer in ["n\n", "\n", ""] {
        let folder = Folder::new();
        let machine = folder.machine(Plan::new(intel()));
        let before = machine.state().unwrap();
        let mut command = machines::command(&folder.0, &[]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("event selects: 0x186") && text.contains("taints the kernel"));
        assert!(String::from_utf8(output.stderr).unwrap().contains("you did not agree"));
        assert_eq!(machine.state().unwrap(), before);
        assert!(machine.writes().is_empty());
    }
}

#[test]
fn what_cannot_run_is_told_before_the_user_is_asked() {
    for (file, text, told) in [
        ("proc/sys/kernel/nmi_watchdog", "1\n", "NMI watchdog"),
        ("sys/kernel/security/lockdown", "none [integrity]\n", "locked down"),
        ("sys/module/msr/parameters/allow_writes", "off\n", "forbids writes"),
        ("", "", "counters run"),
    ] {
        let folder = Folder::new();
        let machine = folder.machine(Plan::new(intel()));
        if file.is_empty() {
            machine.set(0x38F, 1).unwrap();
            machine.set(0x186, 0x43_003C).unwrap();
        } else {
            folder.set_file(file, text);
        }
        let mut command = machines::command(&folder.0, &[]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Nothing reads an answer; the pipe may be closed by then.
        _ = child.stdin.take().unwrap().write_all(b"y\n");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains(told), "{told}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "it asked: {told}");
        assert!(machine.writes().is_empty());
    }
}

#[test]
fn a_report_that_could_not_be_written_is_refused_before_anything_is_tried() {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(intel()));
    folder.set_file("report.json", "another's");
    for (file, reason) in
        [("report.json", "is there already"), ("none/report.json", "its folder is not there")]
    {
        let mut command = machines::command(&folder.0, &["--yes"]);
        let output = command.arg("--report").arg(folder.0.join(file)).output().unwrap();
        assert_ne!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(file) && text.contains(reason), "{text}");
        assert_eq!(machine.accesses().unwrap(), 0);
    }
}

#[test]
fn read_only_does_what_needs_no_write_also_where_writes_are_refused() {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(intel()));
    folder.set_file("proc/sys/kernel/nmi_watchdog", "1\n");
    let before = machine.state().unwrap();
    let (status, report, output) = run(&folder, &["--read-only"]);
    assert_eq!(status, Some(0), "{output:?}");
    let report = report.unwrap();
    assert_eq!(machines::claim(&report, "model.absent").outcome, Outcome::Agrees);
    assert_eq!(machines::claim(&report, "model.read-only").outcome, Outcome::Agrees);
    let select = machines::claim(&report, "model.event-select");
    assert_eq!(
        (select.outcome, select.evidence.reason),
        (Outcome::NotTried, Some(Reason::ReadOnly))
    );
    assert_eq!(machine.state().unwrap(), before);
}

/// A guest gets none of it, but the machine has it: leaf 0x0A, EDX bit 15 is clear.
#[test]
fn any_thread_that_a_machine_declares_is_expected_of_it() {
    for (version, deprecated, has) in [(2, 0, false), (3, 0, true), (4, 1, false), (4, 0, true)] {
        let cpuid = |leaf, _| match leaf {
            0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
            0x0A => [0x0730_0400 | version, 0, 0, deprecated << 15],
            _ => [0; 4],
        };
        let Ok(Configuration::Intel(intel)) = at_most(cpuid) else { panic!("refused") };
        assert_eq!(
            intel.has(IntelFeature::AnyThread),
            has,
            "version {version}, bit 15 {deprecated}"
        );
    }
}
