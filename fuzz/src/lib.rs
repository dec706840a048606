//! The bodies of the fuzz targets: each takes any bytes, and panics on a wrong result.
//!
//! cargo-fuzz runs them on generated inputs; the test below, on the inputs kept in `seeds`.

pub mod branch_records;
pub mod control_area;
pub mod cpuid_claim;
pub mod cpuid_dump;
pub mod hwcheck_report;
pub mod ibs_records;
pub mod input;
pub mod kprofile_layout;
pub mod kprofile_walk;
pub mod perf_event;
pub mod perf_names;
pub mod precise_records;
pub mod profile_kallsyms;
pub mod profile_maps;
pub mod profile_perf_map;
pub mod profile_recording;
pub mod profile_records;
pub mod profile_symbols;
pub mod source_list;
pub mod trace_file;
pub mod trace_record;
pub mod traced_branches;
pub mod virt_branches;
pub mod virt_cpuid;
pub mod virt_filter;
pub mod virt_ibs;
pub mod virt_model;
pub mod virt_pmi;
pub mod virt_precise;
pub mod virt_reload;
pub mod virt_state;
pub mod vmm_image;
pub mod vmm_step;

/// The monitor's modules that take untrusted bytes. The monitor is a program, not a library.
#[path = "../../examples/vmm/src"]
#[allow(dead_code, reason = "each target uses its part")]
mod vmm {
    pub(crate) mod boot;
    pub(crate) mod count {
        pub(crate) mod retired;
    }
    pub(crate) mod error;
    pub(crate) mod guest;
    pub(crate) mod guest_pmu {
        pub(crate) mod deviating;
        pub(crate) mod facilities;
        pub(crate) mod spec;
    }
    pub(crate) mod instruction;
}
use vmm::{boot, error, guest, guest_pmu, instruction};

/// The body of a target.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 32] = [
    ("branch_records", branch_records::run),
    ("control_area", control_area::run),
    ("cpuid_claim", cpuid_claim::run),
    ("cpuid_dump", cpuid_dump::run),
    ("hwcheck_report", hwcheck_report::run),
    ("ibs_records", ibs_records::run),
    ("kprofile_layout", kprofile_layout::run),
    ("kprofile_walk", kprofile_walk::run),
    ("perf_event", perf_event::run),
    ("perf_names", perf_names::run),
    ("precise_records", precise_records::run),
    ("profile_kallsyms", profile_kallsyms::run),
    ("profile_maps", profile_maps::run),
    ("profile_perf_map", profile_perf_map::run),
    ("profile_recording", profile_recording::run),
    ("profile_records", profile_records::run),
    ("profile_symbols", profile_symbols::run),
    ("source_list", source_list::run),
    ("trace_file", trace_file::run),
    ("trace_record", trace_record::run),
    ("traced_branches", traced_branches::run),
    ("virt_branches", virt_branches::run),
    ("virt_cpuid", virt_cpuid::run),
    ("virt_filter", virt_filter::run),
    ("virt_ibs", virt_ibs::run),
    ("virt_model", virt_model::run),
    ("virt_pmi", virt_pmi::run),
    ("virt_precise", virt_precise::run),
    ("virt_reload", virt_reload::run),
    ("virt_state", virt_state::run),
    ("vmm_image", vmm_image::run),
    ("vmm_step", vmm_step::run),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Greatest number of changes to an input.
    const CHANGES: usize = 48;

    fn files(folder: &str) -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn every_target_has_its_program_and_kept_inputs() {
        let names = |paths: Vec<PathBuf>| {
            let stem = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
            paths.iter().map(stem).collect::<BTreeSet<_>>()
        };
        let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names(files("fuzz_targets")), targets);
        assert_eq!(names(files("seeds")), targets);
        for target in targets {
            assert!(!files(&format!("seeds/{target}")).is_empty(), "{target}");
        }
    }

    /// Runs each input unchanged, cut off, and with one byte changed, at places all over it.
    #[test]
    fn every_kept_input_keeps_its_promises() {
        for (name, run) in TARGETS {
            for path in files(&format!("seeds/{name}")) {
                // Shown with a failure.
                println!("{}", path.display());
                let bytes = fs::read(&path).unwrap();
                run(&bytes);
                for place in (0..bytes.len()).step_by(bytes.len().div_ceil(CHANGES).max(1)) {
                    println!("cut off at {place}");
                    run(&bytes[..place]);
                    let mut changed = bytes.clone();
                    changed[place] ^= 1 << (place % 8);
                    println!("changed at {place}");
                    run(&changed);
                }
            }
        }
    }
}
