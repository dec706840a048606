//! Elementary intervals of addresses, each with the head of its hit list.

use core::hint::select_unpredictable;

use crate::index::entry::NONE;

/// The elementary intervals of all groups, in order of their addresses within a group. An interval is the last address
/// before it, and the head of its hit list. The first interval of a group begins at 0, where no address is before, and
/// most often hits nothing. With the first, a group has at most three intervals per range.
pub(super) struct ElementaryIntervals<const N: usize> {
    before: [[u64; 3]; N],
    heads: [[u32; 3]; N],
    length: usize,
}

/// A group's elementary intervals, for a binary search. The search halves a part whose length is a power of two, so no
/// step needs the end of the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    first: u32,
    /// First place of the group's last `power` intervals.
    upper: u32,
    /// Largest power of two that is at most the number of intervals; 0 if there are none and `first` is the only range.
    power: u32,
}

impl Part {
    /// A group without ranges.
    pub(super) const NOTHING: Self = Self::only(NONE);

    /// The part of a group that is not there: zeros.
    pub(super) const UNUSED: Self = Self::only(0);

    /// A group of one range, the most common case: it needs no intervals.
    pub(super) const fn only(range: u32) -> Self {
        Self { first: range, upper: 0, power: 0 }
    }
}

/// A range that an address may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The only range of the group. The address may be outside of it.
    Only(u32),
    /// The head of the hit list.
    HitList(u32),
}

impl<const N: usize> ElementaryIntervals<N> {
    pub(super) const fn new() -> Self {
        Self { before: [[0; 3]; N], heads: [[0; 3]; N], length: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    /// Begins a group's intervals.
    pub(super) fn open(&mut self) -> Open<'_, N> {
        let first = self.length;
        let mut open = Open { intervals: self, first };
        open.append(0, NONE);
        open
    }

    /// Returns what an address of the group may hit.
    #[inline(always)]
    pub(super) fn find(&self, part: Part, address: u64) -> Found {
        if part.power == 0 {
            return Found::Only(part.first);
        }
        let befores = self.before.as_flattened();
        let [first, upper, half] = [part.first, part.upper, part.power / 2].map(|n| n as usize);
        let is_upper = befores.get(upper).is_some_and(|before| *before < address);
        let first = select_unpredictable(is_upper, upper, first);
        let found = match half {
            256.. => search::<512>(befores, first, half, address),
            _ => search::<1>(befores, first, half, address),
        };
        Found::HitList(self.heads.as_flattened().get(found).copied().unwrap_or(NONE))
    }
}

/// Returns the interval of an address, among `2 * half` intervals from `first` on: the last whose address before it is
/// less than `address`, or the first.
///
/// The steps within a block are of constant widths, so that the compiler unrolls them, and proves that their places
/// are in the block: three instructions each, where the steps before have eight.
#[inline(always)]
fn search<const BLOCK: usize>(befores: &[u64], first: usize, half: usize, address: u64) -> usize {
    let (mut first, mut half) = (first, half);
    while half >= BLOCK {
        let middle = first + half;
        let Some(before) = befores.get(middle) else { break };
        first = select_unpredictable(*before < address, middle, first);
        half /= 2;
    }
    let block = befores.get(first..).and_then(|rest| rest.first_chunk::<BLOCK>());
    let Some(block) = block else { return first };
    let (mut found, mut half) = (0, BLOCK / 2);
    while half > 0 {
        let middle = found | half;
        let is_middle = block.get(middle).is_some_and(|before| *before < address);
        found = select_unpredictable(is_middle, middle, found);
        half /= 2;
    }
    first + found
}

/// The intervals of a group that is being built.
pub(super) struct Open<'s, const N: usize> {
    intervals: &'s mut ElementaryIntervals<N>,
    first: usize,
}

impl<const N: usize> Open<'_, N> {
    /// Adds an interval, or corrects the one before if it begins at the same address.
    pub(super) fn push(&mut self, begin: u64, head: u32) {
        let previous = self.intervals.length.saturating_sub(1);
        let same = match begin.checked_sub(1) {
            None => true,
            Some(before) => {
                previous > self.first
                    && self.intervals.before.as_flattened().get(previous) == Some(&before)
            }
        };
        match self.intervals.heads.as_flattened_mut().get_mut(previous) {
            Some(to) if same => *to = head,
            _ => self.append(begin.wrapping_sub(1), head),
        }
    }

    fn append(&mut self, before: u64, head: u32) {
        let ElementaryIntervals { before: befores, heads, length } = &mut *self.intervals;
        let (befores, heads) = (befores.as_flattened_mut(), heads.as_flattened_mut());
        if let (Some(to), Some(place)) = (befores.get_mut(*length), heads.get_mut(*length)) {
            (*to, *place) = (before, head);
            *length += 1;
        }
    }

    /// Ends the group's intervals.
    pub(super) fn close(self) -> Part {
        let length = self.intervals.length.saturating_sub(self.first);
        let Some(log2) = length.checked_ilog2() else { return Part::NOTHING };
        let power = 1 << log2;
        // The intervals end at `intervals.length`, which `append` never lets exceed 3·N.
        Part { first: self.first as u32, upper: self.intervals.length as u32 - power, power }
    }
}

#[cfg(test)]
mod tests {
    use super::{ElementaryIntervals, Found, NONE, Part};
    use std::vec::Vec;

    #[test]
    fn the_same_as_by_a_linear_scan() {
        for length in 0..60 {
            let mut table = ElementaryIntervals::<41>::new();
            let begins: Vec<u64> = (0..length).map(|n| n / 3 * 5).collect();
            let mut open = table.open();
            (0..).zip(&begins).for_each(|(n, begin)| open.push(*begin, n));
            let part = open.close();
            for address in (0..130).chain([u64::MAX]) {
                let naive = begins.iter().rposition(|begin| *begin <= address);
                let naive = naive.map_or(NONE, |n| n as u32);
                assert_eq!(table.find(part, address), Found::HitList(naive), "{part:?} {address}");
            }
        }
    }

    /// Within a block, and by steps before it.
    #[test]
    fn a_long_part_is_searched_as_by_a_linear_scan() {
        for length in (60..3000).step_by(61).chain([511, 512, 513, 1023, 1024, 1025, 2047, 2048]) {
            let mut table = ElementaryIntervals::<1024>::new();
            let mut open = table.open();
            (1..length).for_each(|n| open.push(3 * n, n as u32));
            let part = open.close();
            for address in (0..3 * length + 5).step_by(7).chain([u64::MAX]) {
                let naive = match address / 3 {
                    0 => NONE,
                    last => last.min(length - 1) as u32,
                };
                assert_eq!(table.find(part, address), Found::HitList(naive), "{part:?} {address}");
            }
        }
    }

    #[test]
    fn what_finds_no_room_is_not_searched() {
        let mut table = ElementaryIntervals::<1>::new();
        let mut open = table.open();
        (1..9).for_each(|n| open.push(n, n as u32));
        let part = open.close();
        let found = [0, 1, 2, 3].map(|address| table.find(part, address));
        assert_eq!(found, [NONE, 1, 2, 2].map(Found::HitList));
    }

    #[test]
    fn intervals_of_one_begin_are_one() {
        let mut table = ElementaryIntervals::<1>::new();
        let mut open = table.open();
        [(4, 1), (4, 2), (4, 3), (9, 4)]
            .into_iter()
            .for_each(|(begin, head)| open.push(begin, head));
        let part = open.close();
        let found = [3, 4, 8, 9].map(|address| table.find(part, address));
        assert_eq!(found, [NONE, 3, 3, 4].map(Found::HitList));
    }

    #[test]
    fn an_only_range_is_found_without_a_search() {
        let table = ElementaryIntervals::<1>::new();
        assert_eq!(table.find(Part::only(7), 3), Found::Only(7));
    }
}
