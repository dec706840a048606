//! `examples/kernel` with the word `check` in the monitor: what the stick says of PMUs that are as their manuals, and
//! of each deviation that a guest can observe.
//!
//! PMU_KERNEL names the image (`examples/kernel/run.sh build` prints its path).
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use std::process::Command;

use guest::{kvm, messages, skipped};
use pmu_virt::mock::Deviation;
use serde_json::Value;

/// Of each vendor, with and without global registers, with either kind of freezing.
const CONFIGURATIONS: [&str; 6] = [
    "intel:version=1,gp=2,fixed=0",
    "intel:version=2,gp=4,fixed=3",
    "intel:version=4,gp=8,fixed=3,width=48,full-width",
    "amd:legacy",
    "amd:core",
    "amd:v2,counters=6",
];
const INTEL: &str = CONFIGURATIONS[2];
const AMD: &str = CONFIGURATIONS[5];
const PEBS: &str = "intel:version=5,gp=8,fixed=3,full-width,pebs";

/// Each deviation that a guest can observe: the PMU on which it is shown, and the claim that reports it.
const OBSERVED: [(Deviation, &[&str], &str); 16] = [
    (Deviation::MasksOnDelivery, &[AMD], "interrupt.mask-on-delivery"),
    (Deviation::IgnoresDebugControl, &[INTEL], "freeze.control"),
    (Deviation::LatchesSecondInterrupt, &[INTEL, AMD], "interrupt.second"),
    (Deviation::NarrowAcknowledge, &[INTEL, AMD], "freeze.acknowledge"),
    (Deviation::LeftRunning, &[INTEL, AMD], "firmware.running"),
    (Deviation::LeftOverflowed, &[INTEL, AMD], "firmware.overflowed"),
    (Deviation::LeftFrozen, &[INTEL, AMD], "firmware.frozen"),
    (Deviation::LeftPrecise, &[INTEL], "firmware.precise"),
    (Deviation::DeadCounter, &[INTEL, AMD], "driver.take"),
    (Deviation::FewerCounters, &[INTEL, AMD], "processors.same-counters"),
    (Deviation::LosesRegisters, &[INTEL, AMD], "init.registers"),
    (Deviation::RaisesOnUnmask, &[INTEL], "interrupt.raise-on-unmask"),
    (Deviation::PreciseStatusBeside, &[PEBS], "precise.status"),
    (Deviation::ShortDebugStore, &[PEBS], "precise.threshold"),
    (Deviation::ScribbledIndex, &[PEBS], "precise.index"),
    (Deviation::CollidedRecords, &[PEBS], "precise.collisions"),
];

/// Runs the kernel, and returns the ids of the claims that agree, that disagree, and that were not tried; `None`: it
/// cannot be run here.
fn check(pmu: &str, words: &str, arguments: &[&str]) -> Option<[Vec<String>; 3]> {
    if !kvm() {
        return None;
    }
    let Some(kernel) = std::env::var_os("PMU_KERNEL") else {
        skipped("the stick", "PMU_KERNEL names no kernel image (examples/kernel/run.sh build)");
        return None;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmm"));
    command.arg("--kernel").arg(kernel).args(["--timeout", "300", "--cpus", "2", "--pmu", pmu]);
    let append = format!("check {words}");
    let output = command.args(["--append", append.trim()]).args(arguments).output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(33), "{pmu} {words} {arguments:?}:\n{lines}{said}");
    let mode = if arguments.contains(&"--x2apic") { "apic x2APIC" } else { "apic xAPIC" };
    assert!(
        lines.lines().any(|line| line.starts_with("clock ") && line.ends_with(mode)),
        "{lines}"
    );
    let report = lines.lines().find(|line| line.starts_with('{')).unwrap();
    let report: Value = serde_json::from_str(report).unwrap();
    let claims = report["claims"].as_array().unwrap();
    Some(["agrees", "disagrees", "not-tried"].map(|outcome| {
        let of = claims.iter().filter(|claim| claim["outcome"] == outcome);
        of.map(|claim| claim["id"].as_str().unwrap().to_owned()).collect()
    }))
}

#[test]
fn a_pmu_without_deviation_disagrees_with_nothing() {
    for pmu in CONFIGURATIONS {
        let Some([agree, disagree, not_tried]) = check(pmu, "", &[]) else { return };
        assert_eq!(disagree, [""; 0], "{pmu}");
        assert!(agree.iter().any(|id| id == "interrupt.nmi"), "{pmu}: {not_tried:?}");
        // As the manuals have each: freezing from Intel's version 2 on; full-width writes where they are declared,
        // and on AMD; a status from version 2 on, and with PerfMonV2.
        let is_tried = |id: &str| !not_tried.iter().any(|other| other == id);
        let has_status = !matches!(pmu, "amd:legacy" | "amd:core") && !pmu.contains("version=1");
        assert_eq!(is_tried("firmware.overflowed"), has_status, "{pmu}");
        assert_eq!(is_tried("counter.full-width"), pmu == INTEL || pmu.starts_with("amd"), "{pmu}");
        let freezes = pmu.contains("version=2") || pmu == INTEL;
        assert_eq!(is_tried("freeze.counters"), freezes, "{pmu}");
    }
}

#[test]
fn no_pmu_is_told_and_nothing_is_tried() {
    for pmu in ["none", "none:amd"] {
        let Some([agree, disagree, not_tried]) = check(pmu, "", &[]) else { return };
        assert_eq!((agree.len(), disagree.len()), (0, 0), "{pmu}: {agree:?} {disagree:?}");
        assert!(not_tried.len() > 15);
    }
}

/// Depth, order, filter and freeze, on a loop whose branches were counted by hand.
#[test]
fn branch_records_are_tried_where_there_are_some() {
    const IDS: [&str; 4] =
        ["branches.registers", "branches.depth", "branches.filter", "branches.freeze"];
    for (pmu, has) in [
        ("intel:version=4,gp=8,fixed=3,width=48,full-width,lbr", true),
        ("amd:v2,counters=6,lbr", true),
        (INTEL, false),
        (AMD, false),
    ] {
        let Some([agree, disagree, not_tried]) = check(pmu, "", &[]) else { return };
        assert_eq!(disagree, [""; 0], "{pmu}");
        let told = if has { agree } else { not_tried };
        assert!(IDS.iter().all(|id| told.iter().any(|other| other == id)), "{pmu}: {told:?}");
    }
}

/// Each format of the Debug Store (format 0 has one counter that writes records), and architectural PEBS.
#[test]
fn the_claims_of_precise_records_hold_on_each_format() {
    const IDS: [&str; 9] = [
        "precise.registers",
        "precise.formats",
        "precise.address",
        "precise.threshold",
        "precise.status",
        "precise.index",
        "precise.reload",
        "precise.freeze",
        "precise.collisions",
    ];
    let formats = (1..=6).map(|format| format!("version=5,gp=4,full-width,pebs={format}"));
    let others = ["version=5,gp=1,pebs=0", "version=6,gp=4,full-width,pebs=architectural"];
    for pmu in formats.chain(others.map(str::to_owned)) {
        let Some([agree, disagree, _]) = check(&format!("intel:{pmu}"), "", &[]) else { return };
        assert_eq!(disagree, [""; 0], "{pmu}");
        let expected = if pmu.contains("gp=1") { &IDS[..8] } else { &IDS };
        for id in expected {
            assert!(agree.iter().any(|other| other == id), "{pmu}: {id}: {agree:?}");
        }
    }
}

#[test]
fn precise_records_are_not_tried_where_there_are_none() {
    for pmu in [INTEL, AMD] {
        let Some([_, _, not_tried]) = check(pmu, "", &[]) else { return };
        let of_records = not_tried.iter().filter(|id| id.starts_with("precise."));
        assert_eq!(of_records.count(), 9, "{pmu}");
    }
}

#[test]
fn a_local_apic_in_x2apic_mode_is_used_as_it_was_handed_over() {
    for pmu in [INTEL, AMD] {
        let Some([agree, disagree, _]) = check(pmu, "", &["--x2apic"]) else { return };
        assert_eq!(disagree, [""; 0], "{pmu}");
        assert!(agree.iter().any(|id| id == "init.registers"), "{pmu}: {agree:?}");
    }
}

/// KVM's local APIC has extended entries in no mode; the monitor plays them in x2APIC mode.
#[test]
fn the_claims_of_sampled_ops_hold_where_the_monitor_has_the_entry() {
    for pmu in ["amd:v2,ibs", "amd:v2,ibs=zen5"] {
        let Some([agree, disagree, _]) = check(pmu, "", &["--x2apic"]) else { return };
        assert_eq!(disagree, [""; 0], "{pmu}");
        for id in ["ibs.entry", "ibs.errata", "ibs.fetch-address", "ibs.address", "ibs.stop"] {
            assert!(agree.iter().any(|other| other == id), "{pmu}: {id}: {agree:?}");
        }
    }
}

/// The monitor's family has no such erratum, so the driver does not know it.
#[test]
fn an_erratum_that_the_driver_does_not_know_is_reported() {
    let Some([_, disagree, _]) = check("amd:v2,ibs=fetch-count-kept", "", &["--x2apic"]) else {
        return;
    };
    assert_eq!(disagree, ["ibs.errata"]);
}

#[test]
fn a_claim_is_left_out_that_the_command_line_skips() {
    let words = "skip=interrupt.nmi skip=freeze.counters";
    let Some([agree, disagree, not_tried]) = check(INTEL, words, &[]) else { return };
    assert_eq!(disagree, [""; 0]);
    for id in ["interrupt.nmi", "freeze.counters"] {
        assert!(
            not_tried.iter().any(|other| other == id) && !agree.iter().any(|other| other == id)
        );
    }
    assert!(agree.iter().any(|id| id == "interrupt.vector"));
}

#[test]
fn each_deviation_that_a_guest_can_observe_is_reported_by_its_claim() {
    for (deviation, pmus, claim) in OBSERVED {
        for pmu in pmus {
            let arguments = ["--deviation", deviation.name()];
            let Some([_, disagree, _]) = check(pmu, "", &arguments) else { return };
            assert!(disagree.iter().any(|id| id == claim), "{deviation:?} on {pmu}: {disagree:?}");
        }
    }
}

#[test]
fn a_deviation_that_a_guest_cannot_observe_is_refused_with_the_reason() {
    for deviation in Deviation::ALL {
        if OBSERVED.iter().any(|(observed, ..)| *observed == deviation) {
            continue;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmm"));
        let output = command.args(["--kernel", "/", "--deviation", deviation.name()]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{deviation:?}");
        assert!(messages(&output).contains("a guest cannot observe it"), "{deviation:?}");
    }
}
