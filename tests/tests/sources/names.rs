//! Sources by their names, the documents' and Windows', against the data files.

use pmu_amd::Amd64;
use pmu_core::EventSource;
use pmu_core::profile::DefaultInterface;
use pmu_intel::Emon;
use pmu_tests::{Row, data};

fn every_name<I: EventSource>(interface: &I, rows: &[Row<'_>]) {
    let names = |row: &Row<'_>| [row.text("name").to_owned(), row.text("windows_name").to_owned()];
    for (number, row) in rows.iter().enumerate() {
        let entry = &interface.sources()[number];
        for name in names(row) {
            assert!(entry.is_named(&name), "{name}");
            // The first, if several have it.
            let first = rows.iter().position(|row| names(row).contains(&name));
            assert_eq!(interface.row_named(&name), first, "{name}");
        }
        let others =
            rows.iter().filter(|other| names(other).iter().all(|n| !names(row).contains(n)));
        for name in others.flat_map(names) {
            assert!(!entry.is_named(&name), "{name}");
        }
    }
}

#[test]
fn a_source_has_its_two_names_and_no_other() {
    every_name(&Emon::declared(), &data!("emon_sources.csv"));
    every_name(&Amd64::declared(), &data!("amd64_sources.csv"));
    let time = &data!("emon_sources.csv")[..1];
    every_name(&DefaultInterface::new(), time);
}
