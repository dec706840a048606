//! The events that a guest may count. The rules are those of KVM's `KVM_SET_PMU_EVENT_FILTER` (Linux,
//! Documentation/virt/kvm/api.rst), so that one policy serves both.

use core::fmt;
use core::ops::Deref;

/// Policy that allows events to count. A guest can still program a forbidden event; it counts nothing.
///
/// Called when a guest writes an event select, and for all counters at
/// [`VirtualPmu::set_policy`](crate::VirtualPmu::set_policy).
///
/// ```
/// use pmu_virt::{Configuration, EventPolicy, FedEvents, IntelConfiguration, VirtualPmu};
/// /// What every guest may know: its own cycles and instructions.
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
/// # Ok::<(), pmu_virt::ConfigurationError>(())
/// ```
pub trait EventPolicy {
    /// Returns whether a general counter may count this event.
    fn allows_general(&self, event: u16, unit_mask: u8) -> bool;

    /// Returns whether a general counter may count an event that [`allows_general`](Self::allows_general) allows
    /// also with this unit mask 2, which is not 0 (Intel's version 6). A policy that does not implement
    /// this allows none.
    fn allows_unit_mask_2(&self, _event: u16, _unit_mask: u8, _unit_mask_2: u8) -> bool {
        false
    }

    /// Returns whether the fixed counter with this number may count.
    fn allows_fixed(&self, counter: u8) -> bool;
}

/// A handle of a policy is that policy: a reference, or an `Arc` that the PMUs of many guests share.
///
/// ```
/// use std::sync::Arc;
///
/// use pmu_virt::{AmdConfiguration, Configuration, EventFilter, FedEvents, FilterAction, FilterEntry, VirtualPmu};
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

/// Effect on an event that the entries match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FilterAction {
    /// It counts; no other does.
    Allow,
    /// It does not count; any other does.
    Deny,
}

/// Matches an event with those unit masks that agree with `unit_mask` in the bits of `mask`, and have no others: as in
/// KVM, a `unit_mask` with a bit outside `mask` matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FilterEntry {
    /// The event, 12 bits.
    pub event: u16,
    /// Value with which the unit mask is compared.
    pub unit_mask: u8,
    /// The bits of the unit mask that are compared.
    pub mask: u8,
    /// Excludes the unit masks from the matches of the event's other entries.
    pub exclude: bool,
}

impl FilterEntry {
    /// Matches this event with this unit mask.
    pub const fn new(event: u16, unit_mask: u8) -> Self {
        Self { event, unit_mask, mask: u8::MAX, exclude: false }
    }

    /// Decodes KVM's masked entry: 7:0 and 35:32 event, 15:8 unit mask, 55 exclude, 63:56 mask.
    ///
    /// # Errors
    /// Bits are set that no entry has.
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

    /// Returns the entry as KVM's masked entry, with `KVM_PMU_EVENT_FLAG_MASKED_EVENTS`.
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
    fn unit_masks(&self) -> UnitMasks {
        let mut matched = [0; 4];
        if self.unit_mask & !self.mask != 0 {
            return matched;
        }
        let mut low: u64 = 1 << (self.unit_mask & 0x3F);
        // A bit that is not compared doubles them: without it, and with it.
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
type UnitMasks = [u64; 4];

/// Row of a compiled filter: an event, and one bit per unit mask, set where its entries match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
struct FilterRow {
    event: u16,
    unit_masks: UnitMasks,
}

/// Filter of at most `EVENTS` different events, 40 bytes each, compiled so that a lookup takes at most 9 steps. Share
/// a large one by a handle: `VirtualPmu<&EventFilter<300>>`, `VirtualPmu<Arc<EventFilter<300>>>`.
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
    /// Ascending by event, the first `used` of them.
    rows: [FilterRow; EVENTS],
    used: usize,
}

/// Greatest number of entries of a filter, as in KVM.
pub const MAX_FILTER_ENTRIES: usize = 300;

impl<const EVENTS: usize> EventFilter<EVENTS> {
    /// Compiles `entries`. `fixed` is the bitmap of the fixed counters that `action` applies to; entries do not apply
    /// to these.
    ///
    /// # Errors
    /// There are too many entries, more than `EVENTS` different events, or one of more than 12 bits.
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

    /// Returns whether the filter is a list of denied events. No entry has a unit mask 2, as in KVM's encoding: a
    /// list of allowed events includes none of them, and a list of denied events denies an event with each of them.
    fn allows_unit_mask_2(&self, _: u16, _: u8, _: u8) -> bool {
        self.action == FilterAction::Deny
    }

    fn allows_fixed(&self, counter: u8) -> bool {
        let matched = self.fixed.checked_shr(counter.into()).unwrap_or(0) & 1 != 0;
        matched == (self.action == FilterAction::Allow)
    }
}

/// Reason why a filter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FilterError {
    /// More entries than [`MAX_FILTER_ENTRIES`].
    TooManyEntries(usize),
    /// More different events than the filter has room for.
    TooManyEvents {
        /// The most.
        most: usize,
    },
    /// An event of more than 12 bits.
    WideEvent(u16),
    /// Bits that no entry has.
    UnknownBits(u64),
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyEntries(entries) => {
                write!(f, "{entries} entries, at most {MAX_FILTER_ENTRIES}")
            }
            Self::TooManyEvents { most } => write!(f, "more than {most} different events"),
            Self::WideEvent(event) => write!(f, "event {event:#X} has more than 12 bits"),
            Self::UnknownBits(bits) => write!(f, "no filter entry has the bits {bits:#X}"),
        }
    }
}

impl core::error::Error for FilterError {}

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
