//! The Debug Store's management area. The guest writes the area, so its contents are not trusted.

use crate::precise::memory::{GuestFault, GuestMemory};
use crate::precise::store::{Place, Store, read_words};

/// Offsets in the area. SDM vol. 3B, "DS Save Area".
pub(crate) const BRANCHES: u64 = 0x00;
pub(crate) const RECORDS: u64 = 0x20;
pub(crate) const RESETS: u64 = 0x40;

/// A buffer of the area, as the guest has described it at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    /// Linear address of the index.
    at: u64,
    pub(crate) base: u64,
    pub(crate) index: u64,
    maximum: u64,
    threshold: u64,
}

impl Buffer {
    /// Reads the description of the buffer at this offset of the area.
    pub(crate) fn read(
        memory: &mut dyn GuestMemory,
        area: u64,
        offset: u64,
    ) -> Result<Self, GuestFault> {
        let first = area.wrapping_add(offset);
        let [base, index, maximum, threshold] = read_words(memory, first)?;
        Ok(Self { at: first.wrapping_add(8), base, index, maximum, threshold })
    }

    /// Returns whether a record of this size fits at the index.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        self.index >= self.base
            && self.index.checked_add(size).is_some_and(|end| end <= self.maximum)
    }

    /// Returns whether the index has reached the threshold of the interrupt.
    pub(crate) fn interrupts(&self) -> bool {
        self.index >= self.threshold
    }

    /// Writes the index.
    pub(crate) fn set_index(
        &mut self,
        memory: &mut dyn GuestMemory,
        index: u64,
    ) -> Result<(), GuestFault> {
        Store::at(memory, Place::Linear(self.at)).words([index])?;
        self.index = index;
        Ok(())
    }
}
