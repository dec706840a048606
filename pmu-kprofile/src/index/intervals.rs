//! Elementary intervals of addresses, and the hit list that each leads to.

use core::hint::select_unpredictable;

use super::entry::NONE;

/// For each group, elementary intervals in order of their addresses: the last address before it, and the head
/// of its hit list. A group's first interval begins at 0, before which there is none, and most often hits
/// nothing; with it there are three at most for each of `N` ranges.
pub(super) struct ElementaryIntervals<const N: usize> {
    before: [[u64; 3]; N],
    heads: [[u32; 3]; N],
    length: usize,
}

/// A group's elementary intervals, ready to be searched: by halving a part whose length is a power of two, a
/// step needs neither the part's end nor a branch but the loop's.
///
/// Invariant: unless `power` is 0, `first` is at most `upper`, `upper + power` at most 3·`N`, and `power` a
/// power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<const N: usize> {
    first: u32,
    /// First place of the group's last `power` intervals.
    upper: u32,
    /// Largest power of two that is at most the number of intervals; 0 if there are none and `first` is the only range.
    power: u32,
}

impl<const N: usize> Part<N> {
    /// No range.
    pub(super) const NOTHING: Self = Self::only(NONE);

    /// One range, the most common case, needs no intervals.
    pub(super) const fn only(range: u32) -> Self {
        Self { first: range, upper: 0, power: 0 }
    }
}

/// A range that an address may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The only one, which may lie elsewhere.
    Only(u32),
    /// The head of the hit list.
    HitList(u32),
}

impl<const N: usize> ElementaryIntervals<N> {
    pub(super) const fn new() -> Self {
        Self { before: [[0; 3]; N], heads: [[NONE; 3]; N], length: 0 }
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

    /// The range that an address may hit.
    #[inline(always)]
    pub(super) fn find(&self, part: Part<N>, address: u64) -> Found {
        if part.power == 0 {
            return Found::Only(part.first);
        }
        let before = |place: u32| {
            // SAFETY: by the part's invariant, each place below is one of the table's 3·N: one of the
            // `power` that begin at `upper`, or at `first`, which comes before it.
            unsafe { *self.before.as_flattened().get_unchecked(place as usize) }
        };
        let mut found = select_unpredictable(before(part.upper) < address, part.upper, part.first);
        let mut half = part.power / 2;
        while half > 0 {
            let middle = found + half;
            found = select_unpredictable(before(middle) < address, middle, found);
            half /= 2;
        }
        // SAFETY: as above; both tables have one length.
        Found::HitList(unsafe { *self.heads.as_flattened().get_unchecked(found as usize) })
    }
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

    /// That is all.
    pub(super) fn close(self) -> Part<N> {
        let length = self.intervals.length.saturating_sub(self.first);
        let Some(log2) = length.checked_ilog2() else { return Part::NOTHING };
        let power = 1 << log2;
        // They end at `intervals.length`, which `append` never lets exceed 3·N.
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
    fn an_only_range_is_found_without_a_search() {
        let table = ElementaryIntervals::<1>::new();
        assert_eq!(table.find(Part::only(7), 3), Found::Only(7));
    }
}
