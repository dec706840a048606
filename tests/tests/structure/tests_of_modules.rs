//! `tests/data/tests_of_modules.csv`: each source file has a row with the folders of its tests, and each folder of
//! tests is in a row.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use pmu_tests::data;

/// Folders of tests of all modules: together, of what they cost, of what documents say, and of how they are built.
const OF_ALL: [&str; 4] = ["costs", "documents", "structure", "subsystem"];

fn files(folder: &Path, found: &mut BTreeSet<String>, root: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found, root);
        } else {
            found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn each_source_file_and_each_folder_of_tests_is_in_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rows: BTreeMap<&str, Vec<&str>> = data!("tests_of_modules.csv")
        .iter()
        .map(|row| (row.text("module"), row.text("tests").split(' ').collect()))
        .collect();

    let (mut sources, mut used) = (BTreeSet::new(), BTreeSet::new());
    for library in ["core", "intel", "amd", "arm", "kprofile", "virt", "events"] {
        files(&root.join(format!("pmu-{library}/src")), &mut sources, &root);
    }
    files(&root.join("pmu/src"), &mut sources, &root);
    for file in &sources {
        // A module's row is that of its file and of its folder.
        let is_of = |module: &&&str| {
            let rest = file.strip_prefix(**module);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
        };
        let row = rows.keys().filter(is_of).max_by_key(|module| module.len());
        used.insert(*row.unwrap_or_else(|| panic!("{file} has no row")));
    }
    let unused: Vec<_> = rows.keys().filter(|module| !used.contains(*module)).collect();
    assert!(unused.is_empty(), "rows of no file: {unused:?}");

    let folder = root.join("tests/tests");
    let mut named: BTreeSet<&str> = OF_ALL.into();
    for place in rows.values().flatten() {
        assert!(folder.join(place).exists(), "{place}");
        named.insert(place.split('/').next().unwrap());
    }
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(!path.join("main.rs").exists() || named.contains(name), "{name} is of no module");
    }
}
