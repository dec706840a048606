//! Elementary intervals of addresses, each with the head of its hit list.

use core::hint::select_unpredictable;

use crate::index::lookup::{Entry, NONE};
use crate::object::bucket::Basic;
use crate::object::profile_object::ObjectPtr;

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
        // A search over a power of two needs no bounds. Two of them, which overlap, cover a part of any length.
        let is_upper = befores.get(upper).is_some_and(|before| *before < address);
        let first = select_unpredictable(is_upper, upper, first);
        let found = match half {
            // The compiler leaves this out of a shorter table, which has no part so long.
            256.. if 3 * N >= 512 => search::<512>(befores, first, half, address),
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
        // No branch: sampled addresses are random to a predictor.
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
        // A second change at one address replaces the head of the first: no interval is empty.
        let same = match begin.checked_sub(1) {
            None => true,
            Some(before) => {
                // The first interval has 0 as the address before it, too, but begins at 0 and not at 1.
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

// Hit lists with structural sharing: for each elementary interval, a linked list of the ranges that it hits.
//
// A hit list is ordered by the bases of its ranges, last base first. From one elementary interval to the next, the
// list changes by one range, which begins (at the head of the list) or ends (anywhere). So this is a partially
// persistent list, whose versions are addresses. A node has a next node up to an address, and one modification: the
// next node from that address on. If a node must be modified a second time, it is copied, and the node before it is
// modified to lead to the copy. (Node copying: Driscoll, Sarnak, Sleator, Tarjan, "Making Data Structures Persistent",
// 1989, §2.3: `n` ranges need at most 2·`n` nodes.)

/// A range in a hit list.
#[derive(Clone, Copy)]
struct Node {
    basic: ObjectPtr<Basic<'static>>,
    /// The next node, up to the address of the modification.
    next: u32,
    /// The next node, from that address on.
    modified_next: u32,
    modified_at: u64,
}

impl Node {
    /// A node that is not in use: zeros.
    const UNUSED: Self = Self { basic: ObjectPtr::NULL, next: 0, modified_next: 0, modified_at: 0 };

    /// A node that leads to the same node everywhere.
    const fn to(basic: ObjectPtr<Basic<'static>>, next: u32) -> Self {
        Self { basic, next, modified_next: next, modified_at: u64::MAX }
    }
}

/// The hit lists of all groups, of at most `N` ranges.
pub(super) struct HitLists<const N: usize> {
    nodes: [[Node; 2]; N],
    length: usize,
    /// For each range of the group that is being built, by the place of its entry.
    active: [Active; N],
}

/// A range that the sweep is within.
#[derive(Clone, Copy)]
struct Active {
    /// The present node of the range.
    node: u32,
    /// Neighbors in the list, by the places of their entries: the range before, and the range after.
    before: u32,
    after: u32,
}

impl<const N: usize> HitLists<N> {
    pub(super) const fn new() -> Self {
        Self {
            nodes: [[Node::UNUSED; 2]; N],
            length: 0,
            active: [Active { node: 0, before: 0, after: 0 }; N],
        }
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    /// Returns a node's range, and its next node, for an address.
    #[inline]
    pub(super) fn follow(
        &self,
        node: u32,
        address: u64,
    ) -> Option<(ObjectPtr<Basic<'static>>, u32)> {
        let node = self.nodes.as_flattened().get(node as usize)?;
        let next = if address >= node.modified_at { node.modified_next } else { node.next };
        Some((node.basic, next))
    }

    /// Adds a range that is hit from here on: at the head, before the present head. Returns the new head.
    pub(super) fn begin(&mut self, place: u32, entry: &Entry, head: u32) -> u32 {
        let after = self.active.get(head as usize).map_or(NONE, |head| head.node);
        let node = self.push(Node::to(entry.basic, after));
        if let Some(head) = self.active.get_mut(head as usize) {
            head.before = place;
        }
        if let Some(active) = self.active.get_mut(place as usize) {
            *active = Active { node, before: NONE, after: head };
        }
        place
    }

    /// Removes a range that is not hit from an address on: the range before it leads to the range after it. Returns the
    /// new head.
    pub(super) fn end(&mut self, place: u32, at: u64, head: u32) -> u32 {
        let Some(Active { before, after, .. }) = self.active.get(place as usize).copied() else {
            return head;
        };
        let node = match self.active.get_mut(after as usize) {
            Some(after) => {
                after.before = before;
                after.node
            }
            None => NONE,
        };
        if let Some(before) = self.active.get_mut(before as usize) {
            before.after = after;
        }
        self.redirect(before, at, node);
        if head == place { after } else { head }
    }

    /// Returns the present node of the head.
    pub(super) fn node_of(&self, head: u32) -> u32 {
        self.active.get(head as usize).map_or(NONE, |head| head.node)
    }

    /// Makes a range lead to a node from an address on.
    fn redirect(&mut self, mut place: u32, at: u64, mut to: u32) {
        while let Some(active) = self.active.get_mut(place as usize) {
            let Some(node) = self.nodes.as_flattened_mut().get_mut(active.node as usize) else {
                return;
            };
            if node.modified_at == u64::MAX || node.modified_at == at {
                (node.modified_at, node.modified_next) = (at, to);
                return;
            }
            let copy = Node::to(node.basic, to);
            let before = active.before;
            to = self.push(copy);
            if let Some(active) = self.active.get_mut(place as usize) {
                active.node = to;
            }
            place = before;
        }
    }

    fn push(&mut self, node: Node) -> u32 {
        let Some(to) = self.nodes.as_flattened_mut().get_mut(self.length) else { return NONE };
        *to = node;
        self.length += 1;
        (self.length - 1) as u32
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
