//! `pmu-core` is for any architecture: it names registers of x86 in modules alone whose heads say whose they are.

use std::fs;
use std::path::Path;

/// Beginnings of names of registers in Intel's and AMD's manuals, and of entries of the local APIC.
const NAMES: [&str; 6] = ["IA32_", "MSR_", "PerfCntr", "DBG_EXTN", "LVT", "DEBUGCTL"];
const OWNERS: [&str; 4] = ["x86", "Intel", "AMD", "model-specific"];

fn check(folder: &Path, without: &mut Vec<String>, named: &mut usize) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check(&path, without, named);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        if NAMES.iter().any(|name| text.contains(name)) {
            *named += 1;
            if !OWNERS.iter().any(|owner| head.concat().contains(owner)) {
                without.push(path.display().to_string());
            }
        }
    }
}

#[test]
fn pmu_core_names_registers_of_x86_only_where_a_module_says_so() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pmu-core/src");
    let (mut without, mut named) = (vec![], 0);
    check(&core, &mut without, &mut named);
    assert!(named > 5, "the names are no longer those of the manuals");
    assert!(without.is_empty(), "{without:#?}");
}
