//! The data file of traces, `tests/data/trace.csv`.

use core::cell::RefCell;
use std::collections::BTreeSet;

use crate::{Row, data};

thread_local! {
    /// The rows requested so far by a test's thread, so that a test can list the others.
    static READ: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Returns a row of the data file.
pub fn fact(item: &str) -> Row<'static> {
    READ.with_borrow_mut(|read| read.insert(item.to_owned()));
    let rows = data!("trace.csv");
    rows.into_iter().find(|row| row.text("item") == item).unwrap_or_else(|| panic!("no {item}"))
}

/// Returns an offset or value of the data file.
pub fn value(item: &str) -> u64 {
    fact(item).number("offset_or_value")
}

/// Writes a member of a structure that begins at `base`.
pub fn put(image: &mut [u8], base: usize, item: &str, value: u64) {
    let row = fact(item);
    let (at, size) = (base + row.number("offset_or_value") as usize, row.number("size") as usize);
    image[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// Returns the rows that this test has not requested, except those of source lists.
pub fn unread() -> Vec<String> {
    let (rows, read) = (data!("trace.csv"), READ.with_borrow(Clone::clone));
    let items =
        rows.iter().map(|row| row.text("item")).filter(|item| !item.starts_with("PROFILE_"));
    items.filter(|item| !read.contains(*item)).map(str::to_owned).collect()
}
