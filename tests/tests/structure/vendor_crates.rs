//! The vendor crates have the same files, so that knowing one is knowing the other; and the layers of `pmu-core`.

use std::collections::BTreeSet;
use std::path::Path;

/// The files of a crate's `src`.
fn files(vendor: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(vendor).join("src");
    let entries = std::fs::read_dir(folder).expect("a crate");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".rs")).collect()
}

#[test]
fn the_vendor_crates_have_the_same_files_and_extras_are_listed() {
    let everywhere = ["counters.rs", "interface.rs", "lib.rs", "registers.rs", "sources.rs"];
    let shared = [&everywhere[..], &["branches.rs", "cpuid.rs"]].concat();
    let with = |extras: &[&str]| -> BTreeSet<String> {
        shared.iter().chain(extras).map(ToString::to_string).collect()
    };
    // The Debug Store and its records, the sources of later versions, the erratum of memory events, top-down counts,
    // counter reload and version 6's unused registers are Intel's; AMD's sources are the Hammer's, and mean other
    // events on later generations; instruction-based sampling is AMD's.
    assert_eq!(
        files("pmu-intel"),
        with(&[
            "branch_trace.rs",
            "debug_store.rs",
            "later_sources.rs",
            "precise.rs",
            "reload.rs",
            "sibling_erratum.rs",
            "topdown.rs",
            "unused.rs"
        ])
    );
    assert_eq!(files("pmu-amd"), with(&["generation.rs", "ibs.rs", "meaning.rs", "zen.rs"]));
    // Arm's processors are identified otherwise than by CPUID, and have no branch records here. Their registers are
    // translated, and accessed by instructions of their own.
    let arm = ["backend.rs", "native.rs"];
    let all = everywhere.iter().chain(&arm).map(ToString::to_string).collect();
    assert_eq!(files("pmu-arm"), all);
}

/// `pmu-core` has two layers: `profile` stands on `counters`, which knows nothing of it.
#[test]
fn the_counters_have_no_word_of_windows_profiling() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pmu-core/src/counters");
    let words = ["Windows", "KPROFILE", "KProfile", "Profile", "Emon", "Amd64", " Session<"];
    let mut files = 0;
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the layer") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // The counters have a session of their own.
            let text = std::fs::read_to_string(&path).unwrap().replace("CounterSession", "");
            for word in words {
                let place = text.lines().position(|line| line.contains(word));
                assert_eq!(place, None, "{}: {word}", path.display());
            }
            files += 1;
        }
    }
    assert!(files > 40, "{files}");
}
