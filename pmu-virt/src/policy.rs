//! The policy for the events that a guest may count. The rules are the same as for KVM's `KVM_SET_PMU_EVENT_FILTER`
//! (Linux, Documentation/virt/kvm/api.rst), so that KVM and this crate can use the same policy.

use core::ops::Deref;

/// The embedder's policy for the events that a guest may count. A guest can program a counter with a forbidden event,
/// but the counter does not count.
///
/// A [`VirtualPmu`](crate::VirtualPmu) asks the policy when the guest writes an event select. In
/// [`VirtualPmu::set_policy`](crate::VirtualPmu::set_policy), the PMU asks the policy about all counters.
///
/// ```
/// use pmu_virt::{FedEvents, VirtualPmu};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// use pmu_virt::policy::EventPolicy;
/// /// Allows what every guest may know: its own cycles and instructions.
/// struct Harmless;
///
/// impl EventPolicy for Harmless {
///     fn allows_general(&self, event: u16, unit_mask: u8) -> bool {
///         matches!((event, unit_mask), (0x3C | 0xC0, 0))
///     }
///     fn allows_fixed(&self, counter: u8) -> bool {
///         counter < 3
///     }
/// }
///
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, Harmless)?;
/// let _ = pmu.write(0x186, 0x53_003C);
/// let _ = pmu.write(0x187, 0x53_412E); // misses of the last-level cache
/// assert_eq!(pmu.running().map(|event| event.counter).collect::<Vec<_>>(), [0]);
/// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
/// ```
pub trait EventPolicy {
    /// Returns whether a general counter may count this event.
    fn allows_general(&self, event: u16, unit_mask: u8) -> bool;

    /// Returns whether a general counter may count this event with this unit mask 2, which is not 0. Only version 6 of
    /// Intel's architectural performance monitoring has a second unit mask. The PMU calls this method only if
    /// [`allows_general`](Self::allows_general) allows the event. The default implementation returns `false`.
    fn allows_unit_mask_2(&self, _event: u16, _unit_mask: u8, _unit_mask_2: u8) -> bool {
        false
    }

    /// Returns whether the fixed counter with this number may count.
    fn allows_fixed(&self, counter: u8) -> bool;
}

/// Applies the policy that a handle points to: a reference, or an `Arc` that the PMUs of many guests share.
///
/// ```
/// use std::sync::Arc;
///
/// use pmu_virt::{FedEvents, VirtualPmu};
/// use pmu_virt::configuration::{AmdConfiguration, Configuration};
/// use pmu_virt::policy::{EventFilter, FilterAction, FilterEntry};
/// let entries = [FilterEntry::new(0xC0, 0)];
/// let filter = Arc::new(EventFilter::<300>::compile(FilterAction::Allow, 0, &entries)?);
/// let configuration = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
/// let mut pmus = Vec::new();
/// for _ in 0..4 {
///     pmus.push(VirtualPmu::with_policy(configuration, FedEvents::NONE, Arc::clone(&filter))?);
/// }
/// let _ = pmus[3].write(0xC001_0200, 0x53_00C0);
/// assert_eq!(pmus[3].running().count(), 1);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
impl<H: Deref<Target: EventPolicy>> EventPolicy for H {
    fn allows_general(&self, event: u16, unit_mask: u8) -> bool {
        (**self).allows_general(event, unit_mask)
    }
    fn allows_unit_mask_2(&self, event: u16, unit_mask: u8, unit_mask_2: u8) -> bool {
        (**self).allows_unit_mask_2(event, unit_mask, unit_mask_2)
    }
    fn allows_fixed(&self, counter: u8) -> bool {
        (**self).allows_fixed(counter)
    }
}

/// Policy that allows every event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AllowAll;

impl EventPolicy for AllowAll {
    #[inline]
    fn allows_general(&self, _: u16, _: u8) -> bool {
        true
    }
    #[inline]
    fn allows_unit_mask_2(&self, _: u16, _: u8, _: u8) -> bool {
        true
    }
    #[inline]
    fn allows_fixed(&self, _: u8) -> bool {
        true
    }
}

/// Action of an event filter: allow or deny the events that the filter lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FilterAction {
    /// Counters count only events that match an entry of the filter.
    Allow,
    /// Counters count only events that match no entry of the filter.
    Deny,
}

/// Row of a compiled filter: an event, and one bit per unit mask, set where an entry matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
struct FilterRow {
    event: u16,
    unit_masks: UnitMasks,
}

/// Policy that allows or denies a list of events, by the rules of KVM. The filter has room for `EVENTS` different event
/// numbers. Each event number takes 40 bytes.
///
/// A lookup is a binary search, and takes at most 9 steps with
/// [`MAX_FILTER_ENTRIES`] event numbers. Several guests can share a filter by a
/// reference or an `Arc`: `VirtualPmu<&EventFilter<300>>`, `VirtualPmu<Arc<EventFilter<300>>>`.
///
/// ```
/// use pmu_virt::policy::{EventFilter, EventPolicy, FilterAction, FilterEntry};
/// let entries = [FilterEntry::new(0xC0, 0), FilterEntry::new(0x3C, 0)];
/// let filter = EventFilter::<2>::compile(FilterAction::Allow, 0b001, &entries)?;
/// assert!(filter.allows_general(0x3C, 0) && !filter.allows_general(0x3C, 1));
/// assert!(filter.allows_fixed(0) && !filter.allows_fixed(1));
/// # Ok::<(), pmu_virt::policy::FilterError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventFilter<const EVENTS: usize> {
    action: FilterAction,
    fixed: u32,
    /// Rows by ascending event, the first `used` of them.
    rows: [FilterRow; EVENTS],
    used: usize,
}

impl<const EVENTS: usize> EventFilter<EVENTS> {
    /// Compiles a list of entries into a filter.
    ///
    /// `entries` select events of general counters. The bitmap `fixed` selects fixed counters. `entries` have no effect
    /// on fixed counters. With [`FilterAction::Allow`], the filter allows only the selected events and fixed counters.
    /// With [`FilterAction::Deny`], the filter allows only the events and fixed counters that are not selected.
    ///
    /// # Errors
    /// - There are more entries than [`MAX_FILTER_ENTRIES`].
    /// - The entries have more than `EVENTS` different event numbers.
    /// - An event has more than 12 bits.
    pub fn compile(
        action: FilterAction,
        fixed: u32,
        entries: &[FilterEntry],
    ) -> Result<Self, FilterError> {
        if entries.len() > MAX_FILTER_ENTRIES {
            return Err(FilterError::TooManyEntries(entries.len()));
        }
        if let Some(wide) = entries.iter().find(|entry| entry.event > 0xFFF) {
            return Err(FilterError::WideEvent(wide.event));
        }
        let mut events = [0; MAX_FILTER_ENTRIES];
        let events = events.get_mut(..entries.len()).unwrap_or_default();
        for (event, entry) in events.iter_mut().zip(entries) {
            *event = entry.event;
        }
        // All numbers are sorted before any mask is set: to insert each entry of 300 would move the rows behind it.
        events.sort_unstable();
        let mut rows = [FilterRow { event: 0, unit_masks: [0; 4] }; EVENTS];
        let mut used = 0;
        for same in events.chunk_by(|one, other| one == other) {
            let row = rows.get_mut(used).ok_or(FilterError::TooManyEvents { most: EVENTS })?;
            row.event = same.first().copied().unwrap_or(0);
            used += 1;
        }
        // An exclude applies to all of the event's entries, wherever it stands.
        for exclude in [false, true] {
            for entry in entries.iter().filter(|entry| entry.exclude == exclude) {
                let used = rows.get_mut(..used).unwrap_or_default();
                let row = used.binary_search_by_key(&entry.event, |row| row.event).ok();
                let Some(row) = row.and_then(|row| used.get_mut(row)) else { continue };
                for (word, matched) in row.unit_masks.iter_mut().zip(entry.unit_masks()) {
                    *word = if exclude { *word & !matched } else { *word | matched };
                }
            }
        }
        Ok(Self { action, fixed, rows, used })
    }
}

impl<const EVENTS: usize> EventPolicy for EventFilter<EVENTS> {
    fn allows_general(&self, event: u16, unit_mask: u8) -> bool {
        let rows = self.rows.get(..self.used).unwrap_or_default();
        let row = rows.binary_search_by_key(&event, |row| row.event).ok();
        let matched = row.and_then(|row| rows.get(row)).is_some_and(|row| {
            row.unit_masks[usize::from(unit_mask >> 6)] >> (unit_mask & 63) & 1 != 0
        });
        matched == (self.action == FilterAction::Allow)
    }

    /// Returns whether the filter lists denied events. An entry has no unit mask 2, as in KVM's encoding. A filter of
    /// allowed events therefore allows no event with a unit mask 2. A filter of denied events denies a listed event
    /// with every unit mask 2.
    fn allows_unit_mask_2(&self, _: u16, _: u8, _: u8) -> bool {
        self.action == FilterAction::Deny
    }

    fn allows_fixed(&self, counter: u8) -> bool {
        // KVM's bitmap has 32 bits: a counter beyond them is not listed.
        let matched = self.fixed.checked_shr(counter.into()).unwrap_or(0) & 1 != 0;
        matched == (self.action == FilterAction::Allow)
    }
}

/// Entry of an [event filter](crate::policy::EventFilter). The entry matches one event number with certain unit masks.
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
    /// use pmu_virt::policy::{EventFilter, EventPolicy, FilterAction, FilterEntry, FilterError};
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
    /// use pmu_virt::policy::FilterEntry;
    /// // Every unit mask of event 0x0D1 that has bit 0.
    /// let entry = FilterEntry::from_masked(0x0100_0000_0000_01D1)?;
    /// assert_eq!((entry.event, entry.unit_mask, entry.mask), (0xD1, 0x01, 0x01));
    /// assert_eq!(entry.to_masked(), Ok(0x0100_0000_0000_01D1));
    /// # Ok::<(), pmu_virt::policy::FilterError>(())
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

/// Maximum number of entries in an event filter, as in KVM.
pub const MAX_FILTER_ENTRIES: usize = 300;

/// Reason why a filter, or an entry, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FilterError {
    /// The list of entries has more than [`MAX_FILTER_ENTRIES`] entries. The value is the number of entries.
    #[error("{0} entries, at most {MAX_FILTER_ENTRIES}")]
    TooManyEntries(usize),
    /// The entries have more than `most` different event numbers.
    #[error("more than {most} different events")]
    TooManyEvents {
        /// Maximum number of different event numbers in the filter.
        most: usize,
    },
    /// An event number has more than 12 bits. The value is the event number.
    #[error("event {0:#X} has more than 12 bits")]
    WideEvent(u16),
    /// An encoded entry sets bits outside the entry's fields. The value has only these bits.
    #[error("no filter entry has the bits {0:#X}")]
    UnknownBits(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected values: Documentation/virt/kvm/api.rst, 4.120 KVM_SET_PMU_EVENT_FILTER.

    #[test]
    fn an_exclude_takes_out_of_an_include() {
        let entries = [
            // Every unit mask with bit 0 set, but 0x03.
            FilterEntry { event: 0xD0, unit_mask: 1, mask: 1, exclude: false },
            FilterEntry { event: 0xD0, unit_mask: 3, mask: 0xFF, exclude: true },
        ];
        let filter = EventFilter::<1>::compile(FilterAction::Deny, 0, &entries).unwrap();
        for unit_mask in 0..=u8::MAX {
            let denied = unit_mask & 1 == 1 && unit_mask != 3;
            assert_eq!(filter.allows_general(0xD0, unit_mask), !denied, "{unit_mask:#X}");
            assert!(filter.allows_general(0xD1, unit_mask));
        }
    }

    /// The rule as the document has it, entry by entry, on filters of as many entries as there may be.
    #[test]
    fn three_hundred_entries_of_one_event_or_of_many_match_as_each_of_them_does() {
        let mut random = 0x2545_F491_4F6C_DD1D_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for events in [1, 3, 40, 0x1000] {
            let entries: std::vec::Vec<_> = (0..MAX_FILTER_ENTRIES)
                .map(|_| FilterEntry {
                    event: next(events) as u16,
                    unit_mask: next(256) as u8 & next(256) as u8,
                    mask: next(256) as u8 | next(256) as u8,
                    exclude: next(4) == 0,
                })
                .collect();
            let filter = EventFilter::<300>::compile(FilterAction::Allow, 0, &entries).unwrap();
            for event in entries.iter().map(|entry| entry.event).chain([0x123]) {
                for unit_mask in 0..=u8::MAX {
                    let matches = |exclude| {
                        entries.iter().any(|entry| {
                            entry.event == event
                                && entry.exclude == exclude
                                && unit_mask & entry.mask == entry.unit_mask
                        })
                    };
                    let allowed = matches(false) && !matches(true);
                    let context = std::format!("{event:#X}/{unit_mask:#X}");
                    assert_eq!(filter.allows_general(event, unit_mask), allowed, "{context}");
                }
            }
        }
    }

    #[test]
    fn the_fixed_bitmap_alone_speaks_of_fixed_counters() {
        for (action, bitmap, counter, allowed) in [
            (FilterAction::Allow, 0b10, 1, true),
            (FilterAction::Allow, 0b10, 0, false),
            (FilterAction::Deny, 0b10, 1, false),
            (FilterAction::Deny, 0b10, 0, true),
        ] {
            let filter = EventFilter::<0>::compile(action, bitmap, &[]).unwrap();
            assert_eq!(filter.allows_fixed(counter), allowed);
        }
    }

    #[test]
    fn a_masked_entry_is_read_from_kvms_layout() {
        assert_eq!(
            FilterEntry::from_masked(0xF080_000A_0000_10D1),
            Ok(FilterEntry { event: 0xAD1, unit_mask: 0x10, mask: 0xF0, exclude: true })
        );
        assert_eq!(FilterEntry::from_masked(1 << 16), Err(FilterError::UnknownBits(1 << 16)));
    }

    #[test]
    fn every_masked_entry_comes_back() {
        for event in [0, 1, 0xFF, 0x100, 0xAD1, 0xFFF] {
            for (unit_mask, mask) in [(0, 0), (0x10, 0xF0), (0xFF, 0xFF)] {
                for exclude in [false, true] {
                    let entry = FilterEntry { event, unit_mask, mask, exclude };
                    assert_eq!(FilterEntry::from_masked(entry.to_masked().unwrap()), Ok(entry));
                }
            }
        }
        assert_eq!(FilterEntry::new(0x1000, 0).to_masked(), Err(FilterError::WideEvent(0x1000)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        fn refused<const EVENTS: usize>(entries: &[FilterEntry]) -> FilterError {
            EventFilter::<EVENTS>::compile(FilterAction::Deny, 0, entries).unwrap_err()
        }
        let entries = [FilterEntry::new(1, 0), FilterEntry::new(2, 0)];
        assert_eq!(refused::<1>(&entries), FilterError::TooManyEvents { most: 1 });
        assert_eq!(refused::<1>(&[FilterEntry::new(0x1000, 0)]), FilterError::WideEvent(0x1000));
        assert_eq!(refused::<1>(&[FilterEntry::new(1, 0); 301]), FilterError::TooManyEntries(301));
    }
}
