//! Finds the ranges of a group that an address hits: a stabbing query.
//!
//! The addresses where a range begins or ends divide the address space into elementary intervals, over each of
//! which the same ranges are hit. A binary search finds the elementary interval of an address, which names the
//! head of its hit list: of just those ranges. (Elementary intervals and stabbing queries: de Berg and others,
//! "Computational Geometry", 3rd edition, §10.3.)

use core::ops::Range;

use super::entry::{Entry, NONE};
use super::hit_lists::HitLists;
pub(super) use super::intervals::Part as Ranges;
use super::intervals::{ElementaryIntervals, Found};
use crate::object::{Basic, Listed};

/// Elementary intervals and hit lists for the stabbing queries of all groups, of at most `N` ranges.
pub(super) struct StabbingQuery<const N: usize> {
    intervals: ElementaryIntervals<N>,
    hit_lists: HitLists<N>,
}

impl<const N: usize> StabbingQuery<N> {
    pub(super) const fn new() -> Self {
        Self { intervals: ElementaryIntervals::new(), hit_lists: HitLists::new() }
    }

    pub(super) fn clear(&mut self) {
        self.intervals.clear();
        self.hit_lists.clear();
    }

    /// Calls `hit` with each of a group's ranges that has the address.
    #[inline(always)]
    pub(super) fn query(
        &self,
        entries: &[Entry; N],
        ranges: Ranges,
        address: u64,
        mut hit: impl FnMut(Listed<Basic<'static>>),
    ) {
        match self.intervals.find(ranges, address) {
            Found::Only(only) => {
                let entry = entries.get(only as usize);
                if let Some(entry) = entry.filter(|e| e.base <= address && address <= e.last) {
                    hit(entry.basic);
                }
            }
            Found::HitList(mut node) => {
                while let Some((basic, next)) = self.hit_lists.follow(node, address) {
                    hit(basic);
                    node = next;
                }
            }
        }
    }

    /// Divides the addresses of a group's entries into elementary intervals, and builds their hit lists. `ends`
    /// are the group's places in order of the ranges' last addresses.
    pub(super) fn build(
        &mut self,
        entries: &[Entry; N],
        places: Range<u32>,
        ends: &[u32],
    ) -> Ranges {
        if places.end - places.start == 1 {
            return Ranges::only(places.start);
        }
        let Self { intervals, hit_lists } = self;
        let mut intervals = intervals.open();
        let range = |place: u32| {
            let entry = entries.get(place as usize).filter(|_| place < places.end)?;
            (entry.has_range && entry.base <= entry.last).then_some(entry)
        };
        let begins = places.clone().filter_map(|place| Some((place, range(place)?)));
        let ends = ends.iter().filter_map(|place| {
            let end = range(*place)?.last.checked_add(1)?;
            Some((*place, end))
        });
        let (mut begins, mut ends) = (begins.peekable(), ends.peekable());
        let mut head = NONE;
        loop {
            let at = match (begins.peek(), ends.peek()) {
                (Some((place, entry)), next_end)
                    if next_end.is_none_or(|(_, end)| entry.base <= *end) =>
                {
                    head = hit_lists.begin(*place, entry, head);
                    let at = entry.base;
                    begins.next();
                    at
                }
                (_, Some((place, at))) => {
                    head = hit_lists.end(*place, *at, head);
                    let at = *at;
                    ends.next();
                    at
                }
                _ => return intervals.close(),
            };
            intervals.push(at, hit_lists.node_of(head));
        }
    }
}
