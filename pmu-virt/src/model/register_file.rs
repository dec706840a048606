//! The values of the registers.

use crate::registers::counters::{MAX_COUNTERS, MAX_PER_KIND};
use crate::registers::family::Family;

/// Values of the registers. The place of a register is [`Family::first`] and the number within the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterFile(pub(super) [u64; Self::SIZE]);

impl RegisterFile {
    pub(crate) const SIZE: usize = 32;
    pub(crate) const ZERO: Self = Self([0; Self::SIZE]);

    #[inline]
    pub(crate) const fn get(&self, index: usize) -> u64 {
        self.0[index % Self::SIZE]
    }

    #[inline]
    pub(crate) const fn set(&mut self, index: usize, value: u64) {
        self.0[index % Self::SIZE] = value;
    }

    /// Returns the only register of a family.
    #[inline]
    pub(crate) const fn of(&self, family: Family) -> u64 {
        self.get(family.first())
    }

    /// Returns the only register of a family, for a change.
    #[inline]
    pub(crate) const fn of_mut(&mut self, family: Family) -> &mut u64 {
        &mut self.0[family.first() % Self::SIZE]
    }

    /// Returns the event select of a general counter.
    #[inline]
    pub(crate) const fn select(&self, counter: usize) -> u64 {
        self.get(Family::EventSelect.first() + counter % MAX_PER_KIND)
    }

    /// Returns the counter with this place, 0–15.
    #[inline]
    pub(crate) const fn counter(&self, counter: usize) -> u64 {
        self.get(Family::GeneralCounter.first() + counter % MAX_COUNTERS)
    }

    #[inline]
    pub(crate) const fn counter_mut(&mut self, counter: usize) -> &mut u64 {
        &mut self.0[Family::GeneralCounter.first() + counter % MAX_COUNTERS]
    }
}
