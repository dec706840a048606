//! The table of `Pmu` has each of its operations.

use std::path::Path;

#[test]
fn every_operation_of_pmu_is_in_its_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pmu/src/kernel");
    let table = std::fs::read_to_string(folder.join("pmu.rs")).unwrap();
    let table: String = table.lines().filter(|line| line.starts_with("/// | ")).collect();
    let mut operations = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for block in text.split("\nimpl").filter(|block| block.contains("> Pmu<K, P, E, N> {\n")) {
            let block = block.split("\n}\n").next().unwrap();
            for line in block.lines().filter_map(|line| line.strip_prefix("    pub ")) {
                let line = line.strip_prefix("const ").unwrap_or(line);
                let Some(named) = line.strip_prefix("fn ") else { continue };
                let name = named.split(['(', '<']).next().unwrap();
                operations += 1;
                assert!(name == "new" || table.contains(&format!("(Self::{name})")), "{name}");
            }
        }
    }
    assert!(operations > 30, "{operations}");
}
