//! Resolved configurations: the registers that exist, and their bits.

use crate::registers::counters::Counters;
use crate::registers::family::Family;
use crate::registers::row::Features;
use crate::registers::table::{Located, Table};

/// Effect of an interrupting overflow on the counters, where the guest has requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freeze {
    /// The guest cannot request a freeze.
    Never,
    /// Clears the global control register.
    ClearsControl,
    /// Sets [`Layout::FROZEN`] in the global status.
    SetsStatus,
}

/// Registers and legal bits that a configuration has: the part of the model that differs by vendor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) table: &'static Table,
    /// Bitmap of the table's rows that exist. Of a row, only the registers of existing counters do.
    rows: u64,
    /// The registers that exist, one bit per place of the register file.
    present: u32,
    /// Legal bits of the registers of each family; 0 for a family that is absent.
    legal: [u64; Family::COUNT],
    /// Constant values of `IA32_MISC_ENABLE` and `IA32_PERF_CAPABILITIES`.
    pub(crate) misc_enable: u64,
    pub(crate) capabilities: u64,
    /// The processor has no PMU, and registers of rows that [say so](crate::registers::row::Row::hidden_as_zero) read
    /// 0.
    pub(crate) hidden_as_zero: bool,
    /// RDPMC of an absent counter reads 0, for the first four.
    pub(crate) absent_counters_read_zero: bool,
    pub(crate) freeze: Freeze,
    /// Bits of an event select that qualify an event, and that a policy does not see.
    pub(crate) qualifiers: u64,
    /// Bits that only the event select of the third general counter has.
    pub(crate) third_select: u64,
    /// Delivery of an interrupt masks the LVT entry.
    pub(crate) masks_entry: bool,
}

impl Layout {
    /// Status bit that says that the counters are frozen, and that keeps them stopped until software clears the bit.
    pub(crate) const FROZEN: u64 = 1 << 59;
    /// Bit of `IA32_DEBUGCTL` by which software asks for the freeze.
    pub(crate) const FREEZE_ON_INTERRUPT: u64 = 1 << 12;

    /// Returns the layout of a processor without a PMU.
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

    /// Adds the registers of `counters` to this family, each with the legal bits `legal`. A family of one register has
    /// bit 0.
    pub(crate) const fn with(mut self, family: Family, counters: u8, legal: u64) -> Self {
        self.present |= (counters as u32) << family.first();
        self.legal[family as usize] = if counters == 0 { 0 } else { legal };
        self
    }

    pub(crate) const fn with_features(mut self, features: Features) -> Self {
        self.rows = self.table.rows_with(features);
        self
    }

    /// Returns the legal bits of a register of this family.
    #[inline]
    pub(crate) const fn legal(&self, family: Family) -> u64 {
        self.legal[family as usize]
    }

    /// Returns the legal bits of the register at this place of the register file, with the bits that no other register
    /// of its family has.
    pub(crate) const fn legal_of(&self, family: Family, index: usize) -> u64 {
        let legal = self.legal(family);
        if index == Family::EventSelect.first() + 2 { legal | self.third_select } else { legal }
    }

    /// Returns the bits of the global control register; 0 where there is none.
    #[inline]
    pub(crate) const fn global(&self) -> u64 {
        self.legal(Family::GlobalControl)
    }

    /// Returns the counters that exist.
    #[inline]
    pub(crate) const fn counters(&self) -> Counters {
        (self.present >> Family::GeneralCounter.first()) as Counters
    }

    #[inline]
    pub(crate) const fn has(&self, counter: usize) -> bool {
        self.counters() as usize >> (counter % 16) & 1 != 0
    }

    /// Returns the greatest value of the counter with this place, 0–15.
    #[inline]
    pub(crate) const fn mask(&self, counter: usize) -> u64 {
        self.legal(if counter < 8 { Family::GeneralCounter } else { Family::FixedCounter })
    }

    /// Returns whether the processor has this register.
    #[inline]
    pub(crate) const fn exists(&self, located: &Located) -> bool {
        self.present >> (located.index % 32) & 1 != 0 && self.rows >> (located.number % 64) & 1 != 0
    }

    /// Returns the register at an address, if the processor has it.
    pub(crate) fn find(&self, address: u32) -> Option<Located> {
        self.table.find(address).filter(|located| self.exists(located))
    }
}

/// Returns the greatest value of a counter of this width.
pub(crate) const fn greatest(width: u8) -> u64 {
    match 64u32.checked_sub(width as u32) {
        Some(unused @ 0..=63) => u64::MAX >> unused,
        _ => 0,
    }
}
