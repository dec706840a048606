//! A vendor's table of registers, and the lookup of an address.

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
    /// Its place in the [register file](crate::model::RegisterFile).
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
        // The first line has tag 0, and no row: so addresses below 32, and those of unknown pages, are found nowhere.
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

/// Answer to RDMSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAs {
    /// The stored value.
    Held,
    /// 0: the register is for writing.
    Zero,
    /// The counters in use: SDM vol. 3B, "IA32_PERF_GLOBAL_INUSE MSR".
    InUse,
}

/// Effect of WRMSR's legal bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteAs {
    /// The legal bits are stored.
    Stored,
    /// Bits 31:0 are stored, sign-extended: SDM vol. 3B, "Full-Width Writes to Performance Counter Registers". EDX is
    /// ignored; software may write only the sign's extension, or 0, there.
    SignExtended,
    /// Bits that are 1 are cleared.
    Cleared,
    /// Bits that are 1 are set.
    Set,
    /// Every bit is stored, also one that is illegal and does not fault.
    StoredWhole,
    /// Nothing: a bit that would change is illegal.
    Kept,
    /// Nothing: the write is ignored.
    Ignored,
    /// #GP.
    Refused,
}

/// Set of the features that add addresses of registers, or registers of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features(pub(crate) u8);

impl Features {
    pub(crate) const NONE: Self = Self(0);
    /// `IA32_PERF_CAPABILITIES[13]`.
    pub(crate) const FULL_WIDTH_WRITES: Self = Self(1 << 0);
    /// Intel's version 4 and later ones.
    pub(crate) const VERSION_4: Self = Self(1 << 1);
    /// Intel's version 6.
    pub(crate) const VERSION_6: Self = Self(1 << 2);
    /// AMD's core extension: leaf 0x80000001, ECX bit 23.
    pub(crate) const CORE_EXTENSION: Self = Self(1 << 3);

    pub(crate) const fn with(self, features: Self, present: bool) -> Self {
        if present { Self(self.0 | features.0) } else { self }
    }

    pub(crate) const fn has(self, needed: Self) -> bool {
        needed.0 & !self.0 == 0
    }
}

/// A row of the manual's table: consecutive registers that follow the same rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Name in the manual.
    pub(crate) name: &'static str,
    /// The section that describes it.
    pub(crate) manual: &'static str,
    pub(crate) family: Family,
    /// The address of the first register.
    pub(crate) address: u32,
    /// Number of the registers, and the binary logarithm of the distance of their addresses.
    pub(crate) count: u8,
    shift: u8,
    pub(crate) needs: Features,
    /// So many of the registers, from the first on, read 0 and ignore writes where the guest has no PMU; the others
    /// fault.
    hidden_as_zero: u8,
    pub(crate) read: ReadAs,
    pub(crate) write: WriteAs,
    /// Effect of [`VirtualPmu::host_write`](crate::VirtualPmu::host_write).
    pub(crate) host_write: WriteAs,
    /// Legal bits in addition to those of the family.
    pub(crate) also_legal: u64,
    /// Illegal bits that fault (#GP). Any other illegal bit is dropped.
    pub(crate) faults: u64,
    /// The bits that are the PMU's; the others are the embedder's.
    pub(crate) owned: u64,
}

impl Row {
    /// Creates a row of one register that stores its legal bits, and on which an illegal bit faults (#GP).
    pub(crate) const fn new(
        family: Family,
        address: u32,
        name: &'static str,
        manual: &'static str,
    ) -> Self {
        Self {
            name,
            manual,
            family,
            address,
            count: 1,
            shift: 0,
            needs: Features::NONE,
            hidden_as_zero: 0,
            read: ReadAs::Held,
            write: WriteAs::Stored,
            host_write: WriteAs::Stored,
            also_legal: 0,
            faults: u64::MAX,
            owned: u64::MAX,
        }
    }

    /// Creates a row of `count` registers of a facility that the model never offers.
    pub(crate) const fn not_offered(address: u32, count: u8, name: &'static str) -> Self {
        let manual = "see the manual's table of registers";
        Self::new(Family::NotOffered, address, name, manual).each(count, 1)
    }

    /// Makes the row one register per counter, `stride` addresses apart: 1, 2 or 4.
    pub(crate) const fn each(mut self, count: u8, stride: u32) -> Self {
        self.count = count;
        self.shift = stride.trailing_zeros() as u8;
        self
    }

    pub(crate) const fn needs(mut self, features: Features) -> Self {
        self.needs = features;
        self
    }

    pub(crate) const fn hidden_as_zero(mut self, count: u8) -> Self {
        self.hidden_as_zero = count;
        self
    }

    pub(crate) const fn read(mut self, read: ReadAs) -> Self {
        self.read = read;
        self
    }

    /// Sets the effect of a guest's write, and of the host's unless the host's is [set](Self::host_write) afterwards.
    pub(crate) const fn write(mut self, write: WriteAs) -> Self {
        self.write = write;
        self.host_write = write;
        self
    }

    pub(crate) const fn host_write(mut self, write: WriteAs) -> Self {
        self.host_write = write;
        self
    }

    pub(crate) const fn also_legal(mut self, bits: u64) -> Self {
        self.also_legal = bits;
        self
    }

    /// Makes WRMSR drop these bits where they are illegal, rather than fault.
    pub(crate) const fn drops(mut self, bits: u64) -> Self {
        self.faults = !bits;
        self
    }

    pub(crate) const fn shares(mut self, owned: u64) -> Self {
        self.owned = owned;
        self
    }

    /// Returns the row's registers: the row, and the address and place of each register.
    pub(crate) fn all(&'static self) -> impl Iterator<Item = (&'static Self, u32, usize)> {
        (0..usize::from(self.count)).map(move |place| (self, self.address(place), place))
    }

    pub(crate) const fn address(&self, place: usize) -> u32 {
        self.address + ((place as u32) << self.shift)
    }

    /// Returns a register's place in the register file; [`NOWHERE`] if no processor has the register.
    pub(crate) const fn index(&self, place: usize) -> usize {
        // Version 6 has addresses for 32 counters: those of counters that no model has must fault, and not be the
        // embedder's.
        if place < self.family.count() { self.family.first() + place } else { NOWHERE }
    }

    /// Returns whether the register at this address reads 0 where the guest has no PMU.
    pub(crate) const fn is_hidden_as_zero(&self, address: u32) -> bool {
        address - self.address < self.hidden_as_zero as u32
    }
}

/// Returns the bits of a feature if the processor has the feature.
pub(crate) const fn when(present: bool, bits: u64) -> u64 {
    if present { bits } else { 0 }
}

// To add a register like `IA32_DEBUGCTL`: its family and its place here; its row and its legal bits in the vendor's
// file beside this one, with the manual's section; its `RegisterKind` in `layout.rs`; and its `Kind` in
// `tests/tests/virt/naive`, from the manual and not from the table. State, bytes, reset, lists and dry runs follow. A
// register of a family that is here already, or one that the model never offers, is the row and the naive model's line.
/// Family of registers of one purpose, which decides their places in the register file and their legal bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    EventSelect,
    GeneralCounter,
    FixedCounter,
    FixedControl,
    GlobalControl,
    GlobalStatus,
    DebugControl,
    MiscEnable,
    Capabilities,
    /// Registers of PMUs that the model never offers.
    NotOffered,
}

impl Family {
    /// The number of families.
    pub(crate) const COUNT: usize = Self::NotOffered as usize + 1;

    /// Returns the place of the family's first register in the
    /// [register file](crate::model::RegisterFile).
    pub(crate) const fn first(self) -> usize {
        match self {
            Self::EventSelect => 0,
            Self::GeneralCounter => MAX_PER_KIND,
            Self::FixedCounter => 2 * MAX_PER_KIND,
            Self::FixedControl => 24,
            Self::GlobalControl => 25,
            Self::GlobalStatus => 26,
            Self::DebugControl => 27,
            Self::MiscEnable => 28,
            Self::Capabilities => 29,
            Self::NotOffered => NOWHERE,
        }
    }

    /// Returns the greatest number of its registers.
    pub(crate) const fn count(self) -> usize {
        match self {
            Self::EventSelect | Self::GeneralCounter | Self::FixedCounter => MAX_PER_KIND,
            _ => 1,
        }
    }
}

/// Place in the register file that holds nothing.
pub(crate) const NOWHERE: usize = 31;

/// Set of counters, one bit per counter: general counter *n* is bit *n*, fixed counter *n* is bit 8 + *n*.
pub(crate) type Counters = u16;

/// Returns the counters as bits of the global registers: general from bit 0, fixed from bit 32.
#[inline]
pub(crate) const fn to_global(counters: Counters) -> u64 {
    counters as u64 & 0xFF | (counters as u64 & 0xFF00) << 24
}

/// Returns the counters of these bits of a global register; other bits are dropped.
#[inline]
pub(crate) const fn from_global(bits: u64) -> Counters {
    (bits & 0xFF | bits >> 24 & 0xFF00) as Counters
}

/// Returns the place of each counter of the set, 0–15.
#[inline]
pub(crate) fn places(counters: Counters) -> impl Iterator<Item = usize> {
    (0..MAX_COUNTERS).filter(move |counter| counters >> counter & 1 != 0)
}

/// Greatest number of counters of a processor: general counters have places 0–7, fixed ones 8–15.
pub(crate) const MAX_COUNTERS: usize = 2 * MAX_PER_KIND;

/// Greatest number of counters of a kind.
pub(crate) const MAX_PER_KIND: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::table::{Family, NOWHERE};
    use std::boxed::Box;

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
