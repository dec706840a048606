//! An index of a table of profile sources, by value and by name.

use crate::profile::source::{KProfileSource, ProfileSource};

/// The sources of a profile interface as rows of a table, with an index that finds a row by value or by name.
#[derive(Clone, Copy, Debug)]
pub struct SourceTable {
    rows: &'static [ProfileSource],
    general: &'static [u8; KProfileSource::MAXIMUM as usize],
    generals: u16,
    names: &'static [Named],
}

impl SourceTable {
    /// Creates a table from `rows` and their index.
    pub const fn new<const SLOTS: usize>(
        rows: &'static [ProfileSource],
        index: &'static SourceIndex<SLOTS>,
    ) -> Self {
        assert!(rows.len() == index.rows as usize);
        Self { rows, general: &index.general, generals: index.generals, names: &index.names }
    }

    /// Returns the rows, ascending by value. The first row is `ProfileTime`.
    pub const fn rows(&self) -> &'static [ProfileSource] {
        self.rows
    }

    /// Returns the index of a source's row.
    #[inline]
    pub fn row(&self, source: KProfileSource) -> Option<usize> {
        let row = match source.value().checked_sub(FIRST_SPECIFIC) {
            None => usize::from(*self.general.get(source.value() as usize)?),
            Some(specific) => specific as usize + usize::from(self.generals),
        };
        (row < self.rows.len()).then_some(row)
    }

    /// As [`row`](Self::row), and linked once: each operation on a source asks.
    #[inline(never)]
    pub(crate) fn row_by_call(&self, source: KProfileSource) -> Option<usize> {
        self.row(source)
    }

    /// Returns the index of the row with this name. `name` is the documented name or the name that Windows reports.
    /// Case matters.
    pub fn row_named(&self, name: &str) -> Option<usize> {
        let mask = self.names.len().checked_sub(1)?;
        let (hash, tag) = hash_of(name.as_bytes());
        let mut slot = hash & mask;
        loop {
            let there = self.names.get(slot)?;
            if there.row == NONE {
                return None;
            }
            let row = usize::from(there.row);
            if there.tag == tag && self.rows.get(row)?.is_named(name) {
                return Some(row);
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// The index of a [`SourceTable`], computed at compile time by the vendor crates.
///
/// The hash of a name, without the prefix `Profile`, leads to the name's row. `SLOTS` is a power of two, and at least
/// twice the number of names.
#[derive(Debug)]
pub struct SourceIndex<const SLOTS: usize> {
    /// The row of each general source, or [`NONE`].
    general: [u8; KProfileSource::MAXIMUM as usize],
    /// Number of general sources at the beginning of the table. Those of the interface follow, with consecutive values.
    generals: u16,
    rows: u16,
    /// Rows by the hashes of their names, or in the next free slot.
    names: [Named; SLOTS],
}

/// The absence of a row.
const NONE: u8 = u8::MAX;

/// The row of a name, and a part of the name's hash, which avoids most comparisons with other names.
#[derive(Clone, Copy, Debug)]
struct Named {
    tag: u8,
    row: u8,
}

/// The first source that belongs to one interface alone.
const FIRST_SPECIFIC: u32 = KProfileSource::MAXIMUM + 1;

const PREFIX: &str = "Profile";

impl<const SLOTS: usize> SourceIndex<SLOTS> {
    /// Creates the index of the table `rows`. `rows` begins with the sources that are
    /// [the same on every processor](KProfileSource::is_general), in ascending order of their values. The interface's
    /// own sources follow, with consecutive values. Rows in any other order do not compile.
    pub const fn new(rows: &[ProfileSource]) -> Self {
        assert!(SLOTS.is_power_of_two() && rows.len() < NONE as usize);
        let mut index = Self {
            general: [NONE; KProfileSource::MAXIMUM as usize],
            generals: 0,
            rows: rows.len() as u16,
            names: [Named { tag: 0, row: NONE }; SLOTS],
        };
        let (mut row, mut names) = (0, 0);
        while row < rows.len() {
            let (source, name) = (rows[row].source(), rows[row].name());
            let windows_spelling = rows[row].windows_spelling();
            if source.is_general() {
                assert!(index.generals as usize == row, "a general source behind others");
                index.general[source.value() as usize] = row as u8;
                index.generals += 1;
            } else {
                let value = FIRST_SPECIFIC as usize + row - index.generals as usize;
                assert!(source.value() as usize == value, "a gap between the values");
            }
            index.insert(name, row as u8);
            names += 1;
            if let Some(spelling) = windows_spelling {
                index.insert(spelling, row as u8);
                names += 1;
            }
            row += 1;
        }
        assert!(names * 2 <= SLOTS, "too few slots");
        index
    }

    const fn insert(&mut self, name: &str, row: u8) {
        let (hash, tag) = hash_of(name.as_bytes());
        let mut slot = hash % SLOTS;
        while self.names[slot].row != NONE {
            slot = (slot + 1) % SLOTS;
        }
        self.names[slot] = Named { tag, row };
    }
}

/// Returns the hash of a name, which selects its first slot, and its tag; the same with and without the prefix.
const fn hash_of(name: &[u8]) -> (usize, u8) {
    let mut rest = match name.split_at_checked(PREFIX.len()) {
        Some((prefix, rest)) if equal(prefix, PREFIX.as_bytes()) => rest,
        _ => name,
    };
    let mut hash = 0;
    while let Some((word, after)) = rest.split_first_chunk() {
        hash = mix(hash, u64::from_le_bytes(*word));
        rest = after;
    }
    let mut tail = rest.len() as u64;
    while let Some((byte, after)) = rest.split_first() {
        tail = tail << 8 | *byte as u64;
        rest = after;
    }
    hash = mix(hash, tail);
    ((hash >> 32) as usize, (hash >> 56) as u8)
}

/// Does one step of a multiplicative hash, by a constant near 2⁶⁴ divided by the golden ratio (Knuth, The Art of
/// Computer Programming, vol. 3, §6.4).
const fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut same = a.len() == b.len();
    let mut at = 0;
    while same && at < a.len() {
        same = a[at] == b[at];
        at += 1;
    }
    same
}
