//! The data file of traces, `tests/data/trace.csv`.

use std::collections::BTreeSet;
use std::sync::Mutex;

use pmu_tests::{Row, data};

/// The rows requested so far, so that a test can list the others.
static READ: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Returns a row of the data file.
pub(crate) fn fact(item: &str) -> Row<'static> {
    READ.lock().unwrap().insert(item.to_owned());
    let rows = data!("trace.csv");
    rows.into_iter().find(|row| row.text("item") == item).unwrap_or_else(|| panic!("no {item}"))
}

/// Returns an offset or value of the data file.
pub(crate) fn value(item: &str) -> u64 {
    fact(item).number("offset_or_value")
}

/// Writes a member of a structure that begins at `base`.
pub(crate) fn put(image: &mut [u8], base: usize, item: &str, value: u64) {
    let row = fact(item);
    let (at, size) = (base + row.number("offset_or_value") as usize, row.number("size") as usize);
    image[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// Returns the rows that no test of this program has requested, except those of source lists.
pub(crate) fn unread() -> Vec<String> {
    let (rows, read) = (data!("trace.csv"), READ.lock().unwrap());
    let items =
        rows.iter().map(|row| row.text("item")).filter(|item| !item.starts_with("PROFILE_"));
    items.filter(|item| !read.contains(*item)).map(str::to_owned).collect()
}
