//! The rows of a vendor's table of registers, and the way from an address to its row.

/// The registers of the model's own that follow the same rule: which one an address is, and where it is kept.
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

/// How many counters of a kind there can be.
pub(crate) const MAX_PER_KIND: usize = 8;

impl Family {
    pub(crate) const COUNT: usize = 10;

    /// The place of the family's first register in the [register file](crate::model::RegisterFile).
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
            Self::NotOffered => 31,
        }
    }

    /// How many registers it can have.
    pub(crate) const fn count(self) -> usize {
        match self {
            Self::EventSelect | Self::GeneralCounter | Self::FixedCounter => MAX_PER_KIND,
            Self::NotOffered => 0,
            _ => 1,
        }
    }
}

/// What RDMSR answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAs {
    /// What the register holds.
    Held,
    /// 0: the register is for writing.
    Zero,
    /// Which counters are in use: SDM vol. 3B, "IA32_PERF_GLOBAL_INUSE MSR".
    InUse,
}

/// What WRMSR does with the legal bits of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteAs {
    /// They are stored.
    Stored,
    /// Bits 31:0 are stored, extended with their sign: SDM vol. 3B, "Full-Width Writes to Performance Counter
    /// Registers". EDX is ignored; only a sign's extension, or nothing, is what software may put there.
    SignExtended,
    /// Bits that are 1 are cleared.
    Cleared,
    /// Bits that are 1 are set.
    Set,
    /// Nothing: a value that changes a bit has that bit illegal.
    Kept,
    /// Nothing: the write is ignored.
    Ignored,
    /// #GP.
    Refused,
}

/// The features that bring further addresses of registers, or further registers of a family.
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

    #[inline]
    const fn has(self, needed: Self) -> bool {
        needed.0 & !self.0 == 0
    }
}

/// A row of the manual's table: registers that follow one another and the same rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// As the manual has it.
    pub(crate) name: &'static str,
    /// The section that describes it.
    pub(crate) manual: &'static str,
    pub(crate) family: Family,
    /// The address of the first register.
    pub(crate) address: u32,
    /// How many there are, and the binary logarithm of their distance.
    pub(crate) count: u8,
    shift: u8,
    needs: Features,
    /// This many of them read 0 and ignore writes where the guest has no PMU; the others fault.
    hidden_as_zero: u8,
    pub(crate) read: ReadAs,
    pub(crate) write: WriteAs,
    /// What a write of the host's does: see [`VirtualPmu::host_write`](crate::VirtualPmu::host_write).
    pub(crate) host_write: WriteAs,
    /// Legal bits beside those of the family.
    pub(crate) also_legal: u64,
    /// Illegal bits that are dropped; any other is #GP.
    pub(crate) drops: u64,
    /// The bits that are the PMU's; the others are the embedder's.
    pub(crate) owned: u64,
}

impl Row {
    /// A register that holds what is written to it. An illegal bit is #GP.
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
            drops: 0,
            owned: u64::MAX,
        }
    }

    /// `count` registers of a PMU that the model never offers.
    pub(crate) const fn not_offered(address: u32, count: u8, name: &'static str) -> Self {
        let manual = "see the manual's table of registers";
        Self::new(Family::NotOffered, address, name, manual).each(count, 1)
    }

    /// One for each counter, `stride` addresses apart: 1, 2 or 4.
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

    /// What a write of the guest's does, and the host's unless [told](Self::host_write) otherwise.
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

    pub(crate) const fn drops(mut self, bits: u64) -> Self {
        self.drops = bits;
        self
    }

    pub(crate) const fn shares(mut self, owned: u64) -> Self {
        self.owned = owned;
        self
    }

    /// Its registers: the row, and each one's address and place.
    pub(crate) fn all(&'static self) -> impl Iterator<Item = (&'static Self, u32, usize)> {
        (0..usize::from(self.count))
            .map(move |place| (self, self.address + ((place as u32) << self.shift), place))
    }

    /// Returns whether a processor with these features has the register, if it has the counter.
    #[inline]
    pub(crate) const fn exists_with(&self, features: Features) -> bool {
        features.has(self.needs)
    }

    /// Returns whether the register with this place reads 0 where the guest has no PMU.
    #[inline]
    pub(crate) const fn is_hidden_as_zero(&self, place: usize) -> bool {
        place < self.hidden_as_zero as usize
    }
}

/// Addresses share a line of the index with those that differ in their lowest five bits.
const LINE: usize = 32;
/// As many lines as a vendor needs, of which the first one is empty.
const LINES: usize = 32;

/// A vendor's registers.
pub(crate) struct Table {
    rows: &'static [Row],
    /// The line of an address, by its [`page`].
    pages: [u8; 256],
    /// The number of an address's row, from 1; 0 is none.
    lines: [[u8; LINE]; LINES],
}

/// Tells apart the places where the vendors have their registers, which [`Table::new`] checks: two of the same
/// page would have to share a line.
const fn page(address: u32) -> usize {
    ((address / LINE as u32) ^ (address >> 16)) as usize & 0xFF
}

impl Table {
    /// The table of these rows, with an index of their addresses.
    ///
    /// # Panics
    /// When it is evaluated, which is at compile time: an address is in two rows, or two pages are one.
    pub(crate) const fn new(rows: &'static [Row]) -> Self {
        let mut pages = [0; 256];
        let mut lines = [[0; LINE]; LINES];
        let mut first = [0; LINES];
        let mut used = 1;
        let mut row = 0;
        while row < rows.len() {
            let mut place = 0;
            while place < rows[row].count {
                let address = rows[row].address + ((place as u32) << rows[row].shift);
                let page = page(address);
                if pages[page] == 0 {
                    pages[page] = used as u8;
                    first[used] = address / LINE as u32;
                    used += 1;
                }
                let line = pages[page] as usize;
                assert!(first[line] == address / LINE as u32, "two pages are one");
                let cell = &mut lines[line][address as usize % LINE];
                assert!(*cell == 0, "an address is in two rows");
                *cell = row as u8 + 1;
                place += 1;
            }
            row += 1;
        }
        Self { rows, pages, lines }
    }

    pub(crate) const fn rows(&self) -> &'static [Row] {
        self.rows
    }

    /// The row of an address, and the address's place in it.
    #[inline]
    pub(crate) fn find(&self, address: u32) -> Option<(&'static Row, usize)> {
        let line = usize::from(self.pages[page(address)]) % LINES;
        let row = usize::from(self.lines[line][address as usize % LINE]);
        let row = self.rows.get(row.wrapping_sub(1))?;
        let place = address.wrapping_sub(row.address) >> row.shift;
        // Another address of the same page has no place.
        (place < u32::from(row.count)).then_some((row, place as usize))
    }
}

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}
