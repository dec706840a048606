//! The table in `pmu-kprofile`'s README of the documented behavior: the tests that it names exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const README: &str = include_str!("../../../pmu-kprofile/README.md");

/// Returns the rows of the table under a heading, by columns.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, section) = README.split_once(heading).expect("the heading");
    let lines = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns the names in backticks.
fn names(column: &'static str) -> impl Iterator<Item = &'static str> {
    column.split('`').skip(1).step_by(2)
}

#[test]
fn each_row_of_the_documents_names_tests_that_there_are() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let rows = table("## What the documents have, and where");
    assert!(rows.len() > 10);
    let mut named = BTreeSet::new();
    for row in &rows {
        let [what, _versions, place, tested] = row[..] else { panic!("{row:?}") };
        assert!(!place.is_empty(), "{what}");
        assert_ne!(names(tested).count(), 0, "{what}");
        for test in names(tested) {
            let text = fs::read_to_string(tests.join(test).with_extension("rs"));
            assert!(text.is_ok_and(|text| text.contains("#[test]")), "{what}: {test}");
            named.insert(test);
        }
    }
    // Conversely, each test of the documents has a row. These test additions of the crate.
    let own = ["kprofile/mailbox", "kprofile/memory", "kprofile/threads"];
    for folder in ["kprofile", "trace"] {
        for file in fs::read_dir(tests.join(folder)).unwrap() {
            let file = file.unwrap().path();
            let test = format!("{folder}/{}", file.file_stem().unwrap().to_str().unwrap());
            if fs::read_to_string(file).unwrap().contains("#[test]") {
                assert!(named.contains(test.as_str()) || own.contains(&test.as_str()), "{test}");
            }
        }
    }
}
