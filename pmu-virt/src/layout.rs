//! Configurations resolved: the registers that there are, and the bits that each of them has.

use crate::table::{Family, Features, Located, Table};

/// A bit a counter: general counter *n* is bit *n*, fixed counter *n* is bit 8 + *n*.
pub(crate) type Counters = u16;

/// The counters in the layout of the global registers: general from bit 0, fixed from bit 32.
#[inline]
pub(crate) const fn to_global(counters: Counters) -> u64 {
    counters as u64 & 0xFF | (counters as u64 & 0xFF00) << 24
}

/// The other way round; other bits are dropped.
#[inline]
pub(crate) const fn from_global(bits: u64) -> Counters {
    (bits & 0xFF | bits >> 24 & 0xFF00) as Counters
}

/// Effect of an interrupting overflow on the counters, where the guest has asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freeze {
    /// Nothing can be asked for.
    Never,
    /// Clears the global control register.
    ClearsControl,
    /// Sets [`Layout::FROZEN`] in the global status.
    SetsStatus,
}

/// A processor's PMU as data: what the model knows of its vendor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) table: &'static Table,
    /// The rows of the table whose registers there are, as far as the counters are.
    rows: u64,
    /// The registers that there are, a bit for each place of the register file.
    present: u32,
    /// The legal bits of each family's registers: 0 where there is none.
    legal: [u64; Family::COUNT],
    /// Constant values of `IA32_MISC_ENABLE` and `IA32_PERF_CAPABILITIES`.
    pub(crate) misc_enable: u64,
    pub(crate) capabilities: u64,
    /// The processor has no PMU, and the registers that a row names read 0.
    pub(crate) hidden_as_zero: bool,
    /// RDPMC of the first four counters reads 0 where there is none.
    pub(crate) absent_counters_read_zero: bool,
    pub(crate) freeze: Freeze,
    /// The bits of an event select that qualify an event, of which a policy says nothing.
    pub(crate) qualifiers: u64,
    /// The bits that the event select of the third general counter has to itself.
    pub(crate) third_select: u64,
    /// Delivery masks the local APIC's performance entry.
    pub(crate) masks_entry: bool,
}

impl Layout {
    /// The status bit of frozen counters: they stand still until it is cleared.
    pub(crate) const FROZEN: u64 = 1 << 59;
    /// The bit of `IA32_DEBUGCTL` that asks for that.
    pub(crate) const FREEZE_ON_INTERRUPT: u64 = 1 << 12;

    /// Of a processor without a PMU.
    pub(crate) const fn hidden(table: &'static Table) -> Self {
        Self {
            table,
            rows: table.rows_with(Features::NONE),
            present: 0,
            legal: [0; Family::COUNT],
            misc_enable: 0,
            capabilities: 0,
            hidden_as_zero: false,
            absent_counters_read_zero: false,
            freeze: Freeze::Never,
            qualifiers: 0,
            third_select: 0,
            masks_entry: false,
        }
    }

    /// With the counters of `counters` of this family, or its only register with bit 0, of which each has the bits
    /// of `legal`.
    pub(crate) const fn with(mut self, family: Family, counters: u8, legal: u64) -> Self {
        self.present |= (counters as u32) << family.first();
        self.legal[family as usize] = if counters == 0 { 0 } else { legal };
        self
    }

    pub(crate) const fn with_features(mut self, features: Features) -> Self {
        self.rows = self.table.rows_with(features);
        self
    }

    /// The legal bits of a register of this family.
    #[inline]
    pub(crate) const fn legal(&self, family: Family) -> u64 {
        self.legal[family as usize]
    }

    /// The legal bits of the register that is kept at this place, with those that it has to itself.
    pub(crate) const fn legal_of(&self, family: Family, index: usize) -> u64 {
        let legal = self.legal(family);
        if index == Family::EventSelect.first() + 2 { legal | self.third_select } else { legal }
    }

    /// The bits of the global control register; 0 where there is none.
    #[inline]
    pub(crate) const fn global(&self) -> u64 {
        self.legal(Family::GlobalControl)
    }

    /// The counters that there are.
    #[inline]
    pub(crate) const fn counters(&self) -> Counters {
        (self.present >> Family::GeneralCounter.first()) as Counters
    }

    #[inline]
    pub(crate) const fn has(&self, counter: usize) -> bool {
        self.counters() as usize >> (counter % 16) & 1 != 0
    }

    /// The greatest value of the counter with this place, 0–15.
    #[inline]
    pub(crate) const fn mask(&self, counter: usize) -> u64 {
        self.legal(if counter < 8 { Family::GeneralCounter } else { Family::FixedCounter })
    }

    /// Returns whether the processor has this register.
    #[inline]
    pub(crate) const fn exists(&self, located: &Located) -> bool {
        self.present >> (located.index % 32) & 1 != 0 && self.rows >> (located.number % 64) & 1 != 0
    }

    /// The register at an address, if the processor has it.
    pub(crate) fn find(&self, address: u32) -> Option<Located> {
        self.table.find(address).filter(|located| self.exists(located))
    }
}

/// The greatest value of a counter of this width.
pub(crate) const fn greatest(width: u8) -> u64 {
    match 64u32.checked_sub(width as u32) {
        Some(unused @ 0..=63) => u64::MAX >> unused,
        _ => 0,
    }
}
