//! The rows of a vendor's table of registers, with the rules of each register.

use crate::registers::family::{Family, NOWHERE};

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
