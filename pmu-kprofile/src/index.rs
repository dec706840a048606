//! Finds the objects that an interrupt concerns, without visiting the others.
//!
//! - this file: by source, then by process (those of all processes first); a group is what has both in common,
//!   its callback objects first
//! - `stabbing`: by address, within a group: the ranges that a stabbing query hits, from `intervals` (elementary
//!   intervals) and `hit_lists` (of each, with structural sharing)
//! - `entry`: an object in an index
//!
//! An index is built from its predecessor, in a number of steps that grows with its length. It dereferences
//! nothing: what it finds are names. This folder may use `object`.

mod entry;
mod hit_lists;
mod intervals;
mod stabbing;

pub(crate) use entry::Entry;
use entry::NONE;
use stabbing::{Ranges, StabbingQuery};

use crate::object::{Basic, Key, Listed, ProfileObject};

/// The tag of no source. It is 0, as is all of a new index, so that lists in a static take no room in an image.
const UNUSED: u32 = 0;

/// Returns the tag of a source's number: of `ProfileMaximum`, which is no source, it would be [`UNUSED`].
#[inline(always)]
const fn tag(source: u32) -> u32 {
    source ^ pmu_core::KProfileSource::MAXIMUM
}

/// A change of the started objects.
pub(crate) enum Change {
    /// An object is started.
    Insert(Entry),
    /// An object is stopped.
    Remove(Listed<ProfileObject<'static>>),
}

/// A part of a table.
#[derive(Clone, Copy)]
struct Span {
    from: u32,
    to: u32,
}

impl Span {
    const EMPTY: Self = Self { from: 0, to: 0 };

    const fn is_empty(self) -> bool {
        self.from == self.to
    }
}

/// The entries of one key.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// Its callback objects; its ranges come next.
    callbacks: Span,
    ranges: Ranges,
}

impl Group {
    /// Nothing looks for the ranges of a group that is not there.
    const EMPTY: Self = Self { callbacks: Span::EMPTY, ranges: Ranges::UNUSED };
}

/// The groups of one source.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Source<const N: usize> {
    /// Its tag, if it has nothing but ranges of the group of all processes and all bits of a number
    /// count.
    only_ranges_of: u32,
    tag: u32,
    /// The group of all processes, if there is one.
    global: Group,
    has_global: bool,
    /// The groups of single processes.
    processes: Span,
}

impl<const N: usize> Source<N> {
    const UNUSED: Self = Self {
        only_ranges_of: UNUSED,
        tag: UNUSED,
        global: Group::EMPTY,
        has_global: false,
        processes: Span::EMPTY,
    };

    /// Makes the place unused.
    fn clear(&mut self) {
        (self.only_ranges_of, self.tag) = (UNUSED, UNUSED);
        (self.has_global, self.processes) = (false, Span::EMPTY);
    }

    /// The group of all processes.
    pub(crate) fn global(&self) -> Option<&Group> {
        self.has_global.then_some(&self.global)
    }
}

/// The groups of single processes, ascending within a source.
struct Processes<const N: usize> {
    ids: [u64; N],
    groups: [Group; N],
    length: usize,
}

/// The index of at most `N` objects.
#[repr(C)] // The sources first: an interrupt has their address then.
pub(crate) struct Index<const N: usize> {
    /// By number, modulo `N`, or wherever there was room next to that.
    sources: [Source<N>; N],
    entries: [Entry; N],
    length: usize,
    /// The bits of a source's number that do not tell sources apart. Set before the index is filled.
    pub(crate) ignored_bits: u32,
    /// The entries in order of their ranges' last addresses, within their groups.
    by_last: [u32; N],
    processes: Processes<N>,
    stabbing: StabbingQuery<N>,
}

impl<const N: usize> Index<N> {
    /// An empty index.
    pub(crate) const fn new() -> Self {
        const { assert!(N > 0 && N < NONE as usize / 3, "places are 32-bit numbers") };
        Self {
            length: 0,
            ignored_bits: 0,
            entries: [Entry::UNUSED; N],
            by_last: [0; N],
            sources: [Source::UNUSED; N],
            processes: Processes { ids: [0; N], groups: [Group::EMPTY; N], length: 0 },
            stabbing: StabbingQuery::new(),
        }
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The objects, by key.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Listed<ProfileObject<'static>>> {
        self.entries.iter().take(self.length).map(|entry| entry.object)
    }

    /// The group of all processes of a source that has nothing else than ranges of that, and the place
    /// that it should have; most have. Others are [`source`](Self::source)'s to find.
    #[inline]
    pub(crate) fn only_ranges(&self, source: u32) -> Option<&Group> {
        let there = self.sources.get(source as usize % N)?;
        (there.only_ranges_of == tag(source)).then_some(&there.global)
    }

    /// The groups of a source; `None`: there are none.
    pub(crate) fn source(&self, number: u32) -> Option<&Source<N>> {
        let number = number & !self.ignored_bits;
        let tag = tag(number);
        self.sources.get(self.place_of(number, tag)?).filter(|source| source.tag == tag)
    }

    /// Returns the slot of a source, or the slot that it would take; `None` if there is no room for it.
    fn place_of(&self, number: u32, tag: u32) -> Option<usize> {
        let first = number as usize % N;
        (first..N).chain(0..first).find(|place| {
            let there = self.sources.get(*place).map_or(UNUSED, |source| source.tag);
            there == tag || there == UNUSED
        })
    }

    /// The group of a process.
    pub(crate) fn process(&self, source: &Source<N>, process: u64) -> Option<&Group> {
        let Span { from, to } = source.processes;
        let ids = self.processes.ids.get(from as usize..to as usize)?;
        let place = ids.binary_search(&process).ok()?;
        self.processes.groups.get(from as usize + place)
    }

    /// A group's callback objects, in the order in which they were started.
    #[inline]
    pub(crate) fn callbacks(
        &self,
        group: &Group,
    ) -> impl Iterator<Item = Listed<ProfileObject<'static>>> {
        (group.callbacks.from..group.callbacks.to).map_while(|n| self.entry(n)).map(|e| e.object)
    }

    /// Calls `hit` with the part that counts of a group's basic objects whose range has `pc`.
    #[inline(always)]
    pub(crate) fn ranges(&self, group: &Group, pc: u64, hit: impl FnMut(Listed<Basic<'static>>)) {
        self.stabbing.query(&self.entries, group.ranges, pc, hit);
    }

    /// Becomes `from` with a change made. An object to be inserted finds room, and one to be removed is there.
    pub(crate) fn fill(&mut self, from: &Self, change: &Change) {
        let kept = from.entries.get(..from.length).unwrap_or(&[]);
        let ends = from.by_last.get(..from.length).unwrap_or(&[]);
        let mut by_last = self.by_last.iter_mut();
        let mut put = |place: u32| {
            if let Some(to) = by_last.next() {
                *to = place;
            }
        };
        match change {
            Change::Insert(entry) => {
                let mut entry = *entry;
                entry.key.source &= !self.ignored_bits;
                // Behind those of its order: callbacks are called in the order in which they were started.
                let place = kept.partition_point(|other| other.order() <= entry.order());
                insert(&mut self.entries, kept, place, entry);
                let mut new = Some(place as u32);
                for old in ends {
                    let other = from.entry(*old);
                    if other.is_some_and(|other| (other.key, other.last) > (entry.key, entry.last))
                    {
                        new.take().into_iter().for_each(&mut put);
                    }
                    put(*old + u32::from(*old as usize >= place));
                }
                new.into_iter().for_each(&mut put);
                self.length = from.length + 1;
            }
            Change::Remove(object) => {
                let place = kept.iter().position(|entry| entry.object == *object);
                let Some(place) = place else { return };
                remove(&mut self.entries, kept, place);
                let others = ends.iter().filter(|old| **old as usize != place);
                others.for_each(|old| put(*old - u32::from(*old as usize > place)));
                self.length = kept.len().saturating_sub(1);
            }
        }
        self.build();
    }

    /// Becomes entries in order of their keys and ranges.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn fill_with(&mut self, entries: impl Iterator<Item = Entry>) {
        self.length = 0;
        for (entry, (to, last)) in entries.zip(self.entries.iter_mut().zip(&mut self.by_last)) {
            (*to, *last) = (entry, self.length as u32);
            self.length += 1;
        }
        self.build();
    }

    #[inline]
    fn entry(&self, place: u32) -> Option<&Entry> {
        self.entries.get(place as usize)
    }

    /// Builds the groups, and what answers their stabbing queries, from the two orders.
    fn build(&mut self) {
        // In place: an array of this length may not fit the stack of a debug build.
        self.sources.iter_mut().for_each(Source::clear);
        self.processes.length = 0;
        self.stabbing.clear();
        let mut place = 0;
        while let Some(key) = self.entry(place).filter(|_| (place as usize) < self.length) {
            let key = key.key;
            let rest = self.entries.get(place as usize..self.length).unwrap_or(&[]);
            let members = rest.iter().take_while(|entry| entry.key == key);
            let callbacks = members.clone().filter(|entry| !entry.has_range).count() as u32;
            let (ranges, end) = (place + callbacks, place + members.count() as u32);
            let members = place as usize..end as usize;
            let ends = self.by_last.get(members).unwrap_or(&[]);
            let group = Group {
                callbacks: Span { from: place, to: ranges },
                ranges: self.stabbing.build(&self.entries, ranges..end, ends),
            };
            self.add_group(key, group);
            place = end;
        }
    }

    /// Adds the next group in order of the keys.
    fn add_group(&mut self, key: Key, group: Group) {
        let tag = tag(key.source);
        let place = self.place_of(key.source, tag);
        let Some(source) = place.and_then(|place| self.sources.get_mut(place)) else { return };
        source.tag = tag;
        if key.process == 0 {
            (source.global, source.has_global) = (group, true);
            let only_ranges = group.callbacks.is_empty() && self.ignored_bits == 0;
            source.only_ranges_of = if only_ranges { tag } else { UNUSED };
            return;
        }
        source.only_ranges_of = UNUSED;
        let processes = &mut self.processes;
        if let (Some(id), Some(to)) =
            (processes.ids.get_mut(processes.length), processes.groups.get_mut(processes.length))
        {
            (*id, *to) = (key.process, group);
            if source.processes.is_empty() {
                source.processes.from = processes.length as u32;
            }
            processes.length += 1;
            source.processes.to = processes.length as u32;
        }
    }
}

/// Becomes `from` with one entry more.
fn insert(to: &mut [Entry], from: &[Entry], place: usize, element: Entry) {
    let (before, after) = from.split_at_checked(place).unwrap_or((from, &[]));
    copy(to, before);
    if let Some([first, rest @ ..]) = to.get_mut(place..) {
        *first = element;
        copy(rest, after);
    }
}

/// Becomes `from` without one entry.
fn remove(to: &mut [Entry], from: &[Entry], place: usize) {
    copy(to, from.get(..place).unwrap_or(&[]));
    copy(to.get_mut(place..).unwrap_or(&mut []), from.get(place + 1..).unwrap_or(&[]));
}

fn copy(to: &mut [Entry], from: &[Entry]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    /// Objects are told apart by their addresses; nothing dereferences them.
    fn pointer<T>(number: usize) -> Listed<T> {
        Listed::at(core::ptr::without_provenance(number * 0x1000))
    }

    /// Pseudo-random numbers (xorshift64).
    fn random(state: &mut u64, below: u64) -> u64 {
        for shift in [13, -7, 17] {
            *state ^= if shift > 0 { *state << shift } else { *state >> -shift };
        }
        *state % below
    }

    #[test]
    fn the_same_is_hit_as_by_a_linear_scan() {
        const KEY: Key = Key { source: 3, process: 0 };
        for seed in 1..300 {
            let mut state = seed * 0x9E37_79B9;
            let (mut index, mut spare) = (Box::new(Index::<24>::new()), Box::new(Index::new()));
            let mut objects: Vec<(usize, (u64, u64))> = Vec::new();
            for step in 1..60 {
                if objects.len() == 24 || (!objects.is_empty() && random(&mut state, 3) == 0) {
                    let which = random(&mut state, objects.len() as u64) as usize;
                    let change = Change::Remove(pointer(objects.swap_remove(which).0));
                    spare.fill(&index, &change);
                } else {
                    let base = random(&mut state, 30);
                    // Empty ones, those within others, and those that reach to the end.
                    let last = match random(&mut state, 8) {
                        0 => base.wrapping_sub(1),
                        1 => u64::MAX,
                        2 => u64::MAX - 1,
                        _ => base + random(&mut state, 30),
                    };
                    let range = if last < base || base == 0 && last == u64::MAX {
                        (1, 0)
                    } else {
                        (base, last)
                    };
                    let entry =
                        Entry::of_callback(pointer(step), KEY).with_range(pointer(step), range);
                    spare.fill(&index, &Change::Insert(entry));
                    objects.push((step, range));
                }
                core::mem::swap(&mut index, &mut spare);
                for pc in (0..64).chain([u64::MAX - 1, u64::MAX]) {
                    let mut hit = Vec::new();
                    if let Some(group) = index.only_ranges(KEY.source) {
                        index.ranges(group, pc, |basic| hit.push(basic.address().addr() / 0x1000));
                    }
                    hit.sort_unstable();
                    let in_range = |(base, last): (u64, u64)| base <= pc && pc <= last;
                    let naive = objects.iter().filter(|(_, range)| in_range(*range));
                    let mut naive: Vec<_> = naive.map(|(number, _)| *number).collect();
                    naive.sort_unstable();
                    assert_eq!(hit, naive, "seed {seed}, step {step}, address {pc:#x}");
                }
            }
        }
    }
}
