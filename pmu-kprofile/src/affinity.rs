//! Sets of processors, by group.
//!
//! Sets are large and no interrupt path uses these operations, so they are not inlined.

use core::num::NonZero;

use pmu_core::frame::ProcessorNumber;

/// Maximum number of processor groups in a set, as in `KAFFINITY_EX` of Windows 11.
pub const MAX_GROUPS: usize = 32;

/// A set of processors: one 64-bit mask per processor group, as in Windows' structure `KAFFINITY_EX`.
///
/// ```
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::Affinity;
/// let some = Affinity::first(2).union(Affinity::of_group(1, 0b100));
/// let numbers: Vec<_> = some.iter().map(|processor| processor.to_string()).collect();
/// assert_eq!(numbers, ["0:0", "0:1", "1:2"]);
/// assert!(!some.contains(ProcessorNumber::from_index(64)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Affinity {
    masks: [u64; MAX_GROUPS],
}

impl Affinity {
    /// The empty set.
    pub const EMPTY: Self = Self { masks: [0; MAX_GROUPS] };

    /// All processors, including processors that become active later.
    ///
    /// A [profile](crate::BasicProfile) with this affinity also runs on processors that become active while the profile
    /// is started.
    pub const ALL: Self = Self { masks: [u64::MAX; MAX_GROUPS] };

    /// Returns a set of processors of one group. Each bit that is set in `mask` stands for one processor of the group.
    /// The set is empty if `group` is [`MAX_GROUPS`] or more.
    pub const fn of_group(group: u16, mask: u64) -> Self {
        let mut masks = [0; MAX_GROUPS];
        if (group as usize) < MAX_GROUPS {
            masks[group as usize] = mask;
        }
        Self { masks }
    }

    /// Returns the set of one processor.
    pub const fn of(processor: ProcessorNumber) -> Self {
        Self::of_group(processor.group, mask_of(processor))
    }

    /// Returns the set of the first `count` processors: 64 processors of group 0, then 64 of group 1, and so on.
    pub const fn first(count: usize) -> Self {
        let mut masks = [0; MAX_GROUPS];
        let mut group = 0;
        while group < MAX_GROUPS {
            masks[group] = first_of_group(count, group);
            group += 1;
        }
        Self { masks }
    }

    /// Returns the mask of the set's processors in one group, one bit per processor.
    #[inline]
    pub fn mask(&self, group: usize) -> u64 {
        self.masks.get(group).copied().unwrap_or(0)
    }

    /// Returns whether the set contains a processor.
    #[inline]
    pub fn contains(&self, processor: ProcessorNumber) -> bool {
        self.mask(processor.group.into()) & mask_of(processor) != 0
    }

    /// Returns whether the set contains the processor with this system-wide index, in full groups of 64.
    #[inline]
    pub(crate) fn contains_index(&self, index: usize) -> bool {
        self.mask(index / 64) >> (index % 64) & 1 != 0
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.masks.iter().all(|mask| *mask == 0)
    }

    /// Returns the processors that are in at least one of the two sets.
    pub fn union(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// Returns the processors that are in both sets.
    pub fn intersection(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// Returns the processors that are in this set but not in `other`.
    pub fn difference(self, other: Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    fn zip(mut self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        for (mask, other) in self.masks.iter_mut().zip(other.masks) {
            *mask = combine(*mask, other);
        }
        self
    }

    /// Returns the processors of the set, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = ProcessorNumber> + '_ {
        processors_in(|group| self.mask(group))
    }
}

/// Returns a processor's bit in the mask of its group.
pub(crate) const fn mask_of(processor: ProcessorNumber) -> u64 {
    // A number beyond 63 is in no mask; a plain shift would panic, or give another processor's bit.
    1u64.unbounded_shl(processor.number as u32)
}

/// Returns the mask of a group in which only one processor is.
pub(crate) const fn mask_in(processor: ProcessorNumber, group: usize) -> u64 {
    if processor.group as usize == group { mask_of(processor) } else { 0 }
}

/// Returns the mask of a group's processors that are among the first `count`, in full groups of 64.
pub(crate) const fn first_of_group(count: usize, group: usize) -> u64 {
    let left = count.saturating_sub(group * 64);
    if left >= 64 { u64::MAX } else { (1 << left) - 1 }
}

/// Returns the processors in the groups' masks, in ascending order. Each mask is requested when its group's turn comes,
/// so a combination of sets needs no storage of its own.
pub(crate) fn processors_in(mask: impl Fn(usize) -> u64) -> impl Iterator<Item = ProcessorNumber> {
    let (mut next, mut left) = (0, 0);
    core::iter::from_fn(move || {
        while left == 0 && next < MAX_GROUPS {
            left = mask(next);
            next += 1;
        }
        let lowest = NonZero::new(left)?;
        left &= left - 1;
        Some(ProcessorNumber { group: next as u16 - 1, number: lowest.trailing_zeros() as u8 })
    })
}

impl FromIterator<ProcessorNumber> for Affinity {
    fn from_iter<T: IntoIterator<Item = ProcessorNumber>>(processors: T) -> Self {
        let mut set = Self::EMPTY;
        for processor in processors {
            if let Some(mask) = set.masks.get_mut(usize::from(processor.group)) {
                *mask |= mask_of(processor);
            }
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_set_has_what_was_put_in_over_group_borders() {
        let set = Affinity::first(66);
        let members: Vec<usize> = set.iter().map(ProcessorNumber::index).collect();
        assert_eq!(members, (0..66).collect::<Vec<_>>());
        assert!(set.contains(ProcessorNumber { group: 1, number: 1 }));
        assert!(!set.contains(ProcessorNumber { group: 1, number: 2 }));
        assert_eq!(set.iter().collect::<Affinity>(), set);
        assert_eq!(Affinity::first(MAX_GROUPS * 64), Affinity::ALL);
        assert_eq!(Affinity::first(usize::MAX), Affinity::ALL);
        assert!(Affinity::first(0).is_empty());
    }

    #[test]
    fn a_processor_that_cannot_be_is_in_no_set() {
        for processor in [
            ProcessorNumber { group: 32, number: 0 },
            ProcessorNumber { group: 0, number: 64 },
            ProcessorNumber { group: u16::MAX, number: u8::MAX },
        ] {
            assert!(!Affinity::ALL.contains(processor));
            assert!(Affinity::of(processor).is_empty());
        }
    }
}
