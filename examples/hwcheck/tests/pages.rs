//! The pages that depend on claims: the table in `hardware`, and the list of the untried in `docs`.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use pmu_hwcheck::counts::sources::of_known_numbers;
use pmu_hwcheck::report::claims::{CLAIMS, Tried};
use pmu_hwcheck::report::table::readme;
use pmu_hwcheck::report::{MachineKind, Report};
use pmu_virt::configuration::Vendor;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_table_is_that_of_the_reports() {
    let folder = root().join("hardware");
    let kept = fs::read_to_string(folder.join("README.md")).unwrap();
    let fresh = readme(&folder).unwrap();
    assert_eq!(kept, fresh, "cargo run --bin hwcheck -- --table hardware");
}

#[test]
fn a_report_of_a_software_machine_is_named_as_one() {
    for entry in fs::read_dir(root().join("hardware")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let report = Report::parse(&fs::read(&path).unwrap()).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_software = report.machine == MachineKind::Software;
            assert_eq!(name.starts_with("software-"), is_software, "{name}");
        }
    }
}

/// The rows of the list: the ids, and what would settle them.
fn untried() -> Vec<(Vec<String>, String)> {
    let text = fs::read_to_string(root().join("docs/untried.md")).unwrap();
    let list = text.as_str();
    let rows = list.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [_, ids, command] = cells[..] else { panic!("{line}") };
        let ids = ids.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (ids, command.to_owned())
    });
    rows.collect()
}

#[test]
fn every_line_of_the_untried_names_what_would_settle_it_and_every_claim_is_in_one() {
    let mut named = Vec::new();
    let rows = untried();
    assert!(rows.len() > 4);
    for (ids, command) in rows {
        for id in &ids {
            let known = CLAIMS.iter().find(|known| known.id == id);
            let known = known.unwrap_or_else(|| panic!("{id} is no claim"));
            let settles = match known.tried {
                Tried::BareMetal => "bare metal, later",
                Tried::Stick => "examples/kernel/run.sh image",
                _ => "--bin hwcheck",
            };
            assert!(command.contains(settles), "{id}: {command}");
        }
        let others = [
            "--count perf",
            "profile -- --source",
            "examples/kernel/run.sh monitor",
            "examples/kernel-arm",
        ];
        let is_command = others.iter().any(|other| command.contains(other));
        assert!(!ids.is_empty() || is_command, "nothing settles it: {command}");
        named.extend(ids);
    }
    let all: BTreeSet<_> = CLAIMS.iter().map(|known| known.id.to_owned()).collect();
    assert_eq!(named.len(), all.len());
    assert_eq!(named.into_iter().collect::<BTreeSet<_>>(), all);
}

#[test]
fn the_tools_readme_has_every_claim_and_every_source_of_a_known_number() {
    let text = include_str!("../README.md");
    for known in CLAIMS {
        assert!(text.contains(&format!("`{}`", known.id)), "{}", known.id);
        assert!(text.contains(known.claim), "{}", known.claim);
    }
    for source in [Vendor::Intel, Vendor::Amd].into_iter().flat_map(of_known_numbers) {
        assert!(text.contains(&format!("`{source}`")), "{source}");
    }
}
