//! A vendor's table of registers, and the lookup of an address.

use crate::registers::row::{Features, Row};

/// Number of addresses of a line of the index: they differ in their lowest five bits.
const LINE: usize = 32;
/// Number of lines; the first one is empty.
const LINES: usize = 32;

/// Greatest number of rows; the first one is unused.
const ROWS: usize = 64;

/// A register that was found by its address: its row, and its place.
#[derive(Clone, Copy)]
pub(crate) struct Located {
    /// The number of the row.
    pub(crate) number: usize,
    pub(crate) row: &'static Row,
    /// Its place in the [register file](crate::model::register_file::RegisterFile).
    pub(crate) index: usize,
}

/// Table of a vendor's registers, with an index that finds an address in constant time.
pub(crate) struct Table {
    rows: [Row; ROWS],
    used: usize,
    /// Line of an address, by its [`page`].
    pages: [u8; 256],
    /// Full page number of each line.
    tags: [u32; LINES],
    /// Row number of each address, with its place in bits 15:8; 0 is none.
    lines: [[u16; LINE]; LINES],
}

/// Hashes the upper bits of an address to a page, by Fibonacci hashing: 2³² over the golden ratio.
///
/// The vendors' ranges of registers have different pages, which [`Table::new`] checks: two ranges of one page would
/// have to share a line.
#[inline]
const fn page(tag: u32) -> usize {
    (tag.wrapping_mul(0x9E37_79B1) >> 24) as usize
}

impl Table {
    /// Creates the table of these rows, and the index of their addresses.
    ///
    /// # Panics
    /// At compile time, if an address is in two rows, or two ranges have the same page.
    pub(crate) const fn new(rows: &[Row]) -> Self {
        let mut table = [Row::not_offered(0, 0, ""); ROWS];
        let mut pages = [0; 256];
        let mut tags = [0; LINES];
        let mut lines = [[0; LINE]; LINES];
        let mut used = 1;
        let mut number = 1;
        while number <= rows.len() {
            let row = &rows[number - 1];
            table[number] = *row;
            let mut place = 0;
            while place < row.count as usize {
                let address = row.address(place);
                let tag = address / LINE as u32;
                let page = page(tag);
                if pages[page] == 0 {
                    pages[page] = used as u8;
                    tags[used] = tag;
                    used += 1;
                }
                let line = pages[page] as usize;
                assert!(tags[line] == tag, "two pages are one");
                let cell = &mut lines[line][address as usize % LINE];
                assert!(*cell == 0, "an address is in two rows");
                *cell = (row.index(place) << 8 | number) as u16;
                place += 1;
            }
            number += 1;
        }
        Self { rows: table, used: number, pages, tags, lines }
    }

    /// Returns the rows, by their numbers.
    pub(crate) fn rows(&'static self) -> impl Iterator<Item = &'static Row> {
        self.rows.iter().take(self.used)
    }

    /// Returns the numbers of the rows whose registers a processor with these features has, as a bitmap.
    pub(crate) const fn rows_with(&self, features: Features) -> u64 {
        let (mut rows, mut number) = (0, 1);
        while number < self.used {
            if features.has(self.rows[number % ROWS].needs) {
                rows |= 1 << number;
            }
            number += 1;
        }
        rows
    }

    /// Returns the register at an address.
    #[inline]
    pub(crate) fn find(&'static self, address: u32) -> Option<Located> {
        let tag = address / LINE as u32;
        let line = usize::from(self.pages[page(tag) % 256]) % LINES;
        if self.tags[line] != tag {
            return None;
        }
        let cell = usize::from(self.lines[line][address as usize % LINE]);
        let number = cell % ROWS;
        (number != 0).then(|| Located { number, row: &self.rows[number], index: cell >> 8 })
    }
}

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use super::*;
    use crate::registers::family::{Family, NOWHERE};

    fn row(address: u32) -> Row {
        Row::new(Family::GeneralCounter, address, "a counter", "a section")
    }

    fn table(rows: &[Row]) -> &'static Table {
        Box::leak(Box::new(Table::new(rows)))
    }

    #[test]
    fn each_address_is_found_in_its_row_and_no_other_is() {
        let table =
            table(&[row(0x40).each(8, 4), row(0x41).each(3, 4), row(0xC001_0200).each(2, 2)]);
        let places = [(0x40, 4, 8, 1), (0x41, 4, 3, 2), (0xC001_0200, 2, 2, 3)];
        let mut found = 0;
        for address in (0..0x2000).chain(0xC001_0000..0xC001_2000) {
            let expected = places.into_iter().find_map(|(first, stride, count, number)| {
                let offset = u32::checked_sub(address, first)?;
                (offset % stride == 0 && offset / stride < count)
                    .then_some((number, offset / stride))
            });
            let located = table.find(address);
            found += u32::from(located.is_some());
            // Counters are kept from 8 on.
            let at = located.map(|at| (at.number as u32, at.index as u32 - 8));
            assert_eq!(at, expected, "{address:#X}");
        }
        assert_eq!(found, 13);
        assert_eq!(table.rows_with(Features::NONE), 0b1110);
    }

    #[test]
    fn a_counter_beyond_the_eight_is_nowhere() {
        let table = table(&[row(0x1900).each(32, 4)]);
        assert_eq!(table.find(0x1900 + 4 * 7).map(|at| at.index), Some(15));
        assert_eq!(table.find(0x1900 + 4 * 8).map(|at| at.index), Some(NOWHERE));
    }

    #[test]
    #[should_panic(expected = "an address is in two rows")]
    fn an_address_in_two_rows_is_refused() {
        let _ = Table::new(&[row(0x100).each(4, 1), row(0x103)]);
    }

    #[test]
    #[should_panic(expected = "two pages are one")]
    fn two_pages_that_are_one_are_refused() {
        let other = (9..).find(|tag| page(*tag) == page(8)).unwrap();
        let _ = Table::new(&[row(8 * 32), row(other * 32)]);
    }
}
