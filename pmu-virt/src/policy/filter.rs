//! A filter of events, which is compiled from entries.

use crate::policy::entry::{FilterEntry, UnitMasks};
use crate::policy::error::{FilterError, MAX_FILTER_ENTRIES};
use crate::policy::event_policy::EventPolicy;

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
/// A lookup is a binary search, and takes at most 9 steps with [`MAX_FILTER_ENTRIES`](crate::MAX_FILTER_ENTRIES) event
/// numbers. Several guests can share a filter by a reference or an `Arc`: `VirtualPmu<&EventFilter<300>>`,
/// `VirtualPmu<Arc<EventFilter<300>>>`.
///
/// ```
/// use pmu_virt::{EventFilter, EventPolicy, FilterAction, FilterEntry};
/// let entries = [FilterEntry::new(0xC0, 0), FilterEntry::new(0x3C, 0)];
/// let filter = EventFilter::<2>::compile(FilterAction::Allow, 0b001, &entries)?;
/// assert!(filter.allows_general(0x3C, 0) && !filter.allows_general(0x3C, 1));
/// assert!(filter.allows_fixed(0) && !filter.allows_fixed(1));
/// # Ok::<(), pmu_virt::FilterError>(())
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
        let matched = self.fixed.checked_shr(counter.into()).unwrap_or(0) & 1 != 0;
        matched == (self.action == FilterAction::Allow)
    }
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
