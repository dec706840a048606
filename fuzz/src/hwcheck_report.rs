//! Received reports of `hwcheck`, and the table that is made of them.

use pmu_hwcheck::report::summary::summary;
use pmu_hwcheck::report::table::{escape, table};
use pmu_hwcheck::report::{MAX_ENTRIES, MAX_TEXT, Report, SCHEMA};

/// The report.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    assert_inert(&escape(&text));
    let Ok(report) = Report::parse(bytes) else { return };
    assert_eq!(report.schema, SCHEMA);
    assert!(report.claims.len() <= MAX_ENTRIES && report.registers.len() <= MAX_ENTRIES);
    assert!(report.claims.iter().all(|claim| claim.id.len() <= MAX_TEXT));
    // A report that is written and read again is the same.
    assert_eq!(Report::parse(report.to_json().as_bytes()), Ok(report.clone()));
    let words = summary(&report);
    assert!(!words.chars().any(|one| one.is_control() && one != '\n'));
    // Each row of the table has as many cells as its heading, whatever the report says.
    let table = table(&[report.clone(), report]);
    for part in table.split("\n\n") {
        let cells = |line: &str| line.matches('|').count();
        let heading = part.lines().next().map_or(0, cells);
        assert!(part.lines().all(|line| cells(line) == heading), "{part}");
    }
    assert!(!table.contains('<') && table.is_ascii());
}

/// Nothing in it that Markdown, HTML or a terminal acts on.
fn assert_inert(text: &str) {
    let acting = |one: char| "<>|`*_[]\\\"'".contains(one) || one.is_control() || !one.is_ascii();
    assert!(!text.chars().any(acting), "{text}");
}
