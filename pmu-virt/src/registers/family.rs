//! Families of registers. The family of a register determines the register's position in the register file.

use crate::registers::counters::MAX_PER_KIND;

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
    /// [register file](crate::model::register_file::RegisterFile).
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
