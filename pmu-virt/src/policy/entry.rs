//! An entry of a filter, in the encoding of KVM's masked events.

use crate::policy::error::FilterError;

/// Entry of an [event filter](crate::EventFilter). The entry matches one event number with certain unit masks.
///
/// A unit mask `u` matches if `u & mask == unit_mask`. If `unit_mask` sets a bit that `mask` clears, the entry matches
/// no event, as in KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FilterEntry {
    /// The event's number, at most 12 bits.
    pub event: u16,
    /// Value with which the event's unit mask is compared.
    pub unit_mask: u8,
    /// Bits of the event's unit mask that are compared.
    pub mask: u8,
    /// The entry excludes the unit masks that it matches. The filter then does not match the event with these unit
    /// masks, even if another entry matches. The order of the entries does not matter.
    pub exclude: bool,
}

impl FilterEntry {
    /// Creates an entry that matches this event with exactly this unit mask.
    pub const fn new(event: u16, unit_mask: u8) -> Self {
        Self { event, unit_mask, mask: u8::MAX, exclude: false }
    }

    /// Decodes an entry of Linux' `KVM_SET_PMU_EVENT_FILTER` in the format of masked events. Bits 7:0 and 35:32 are the
    /// event number, and bits 15:8 are the unit mask. Bit 55 is the exclude flag, and bits 63:56 are the mask.
    ///
    /// # Errors
    /// `entry` has a bit set that is not in one of these fields.
    ///
    /// ```
    /// use pmu_virt::{EventFilter, EventPolicy, FilterAction, FilterEntry, FilterError};
    /// // The list that a monitor gives to KVM: event 0xD1 with any unit mask but 0x03.
    /// let masked = [0x0000_0000_0000_00D1, 0xFF80_0000_0000_03D1];
    /// let entries = masked.into_iter().map(FilterEntry::from_masked).collect::<Result<Vec<_>, _>>()?;
    /// let filter = EventFilter::<1>::compile(FilterAction::Deny, 0, &entries)?;
    /// assert!(!filter.allows_general(0xD1, 0x20) && filter.allows_general(0xD1, 0x03));
    /// assert_eq!(FilterEntry::from_masked(1 << 40), Err(FilterError::UnknownBits(1 << 40)));
    /// # Ok::<(), FilterError>(())
    /// ```
    pub const fn from_masked(entry: u64) -> Result<Self, FilterError> {
        let unknown = entry & !0xFF80_000F_0000_FFFF;
        if unknown != 0 {
            return Err(FilterError::UnknownBits(unknown));
        }
        Ok(Self {
            event: (entry & 0xFF | entry >> 24 & 0xF00) as u16,
            unit_mask: (entry >> 8) as u8,
            mask: (entry >> 56) as u8,
            exclude: entry >> 55 & 1 != 0,
        })
    }

    /// Encodes the entry for `KVM_SET_PMU_EVENT_FILTER` with `KVM_PMU_EVENT_FLAG_MASKED_EVENTS`.
    ///
    /// # Errors
    /// The event has more than 12 bits.
    ///
    /// ```
    /// use pmu_virt::FilterEntry;
    /// // Every unit mask of event 0x0D1 that has bit 0.
    /// let entry = FilterEntry::from_masked(0x0100_0000_0000_01D1)?;
    /// assert_eq!((entry.event, entry.unit_mask, entry.mask), (0xD1, 0x01, 0x01));
    /// assert_eq!(entry.to_masked(), Ok(0x0100_0000_0000_01D1));
    /// # Ok::<(), pmu_virt::FilterError>(())
    /// ```
    pub const fn to_masked(&self) -> Result<u64, FilterError> {
        if self.event > 0xFFF {
            return Err(FilterError::WideEvent(self.event));
        }
        let event = self.event as u64 & 0xFF | (self.event as u64 & 0xF00) << 24;
        Ok(event
            | (self.unit_mask as u64) << 8
            | (self.exclude as u64) << 55
            | (self.mask as u64) << 56)
    }

    /// Returns the unit masks that match.
    pub(crate) fn unit_masks(&self) -> UnitMasks {
        let mut matched = [0; 4];
        if self.unit_mask & !self.mask != 0 {
            return matched;
        }
        let mut low: u64 = 1 << (self.unit_mask & 0x3F);
        // A bit that is not compared doubles the matches: without the bit, and with it.
        for (bit, distance) in [1, 2, 4, 8, 16, 32].into_iter().enumerate() {
            if self.mask >> bit & 1 == 0 {
                low |= low << distance;
            }
        }
        for (word, high) in matched.iter_mut().zip((0..=u8::MAX).step_by(64)) {
            if high & self.mask == self.unit_mask & 0xC0 {
                *word = low;
            }
        }
        matched
    }
}

/// One bit per unit mask.
pub(crate) type UnitMasks = [u64; 4];
