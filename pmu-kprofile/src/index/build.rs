//! Building an index: from its predecessor, with one change.

use core::ops::Range;

use crate::index::intervals::{ElementaryIntervals, HitLists, Part};
use crate::index::lookup::{Entry, Group, Index, NONE, Source, Span, UNUSED, tag};
use crate::object::profile_object::{Key, ObjectPtr, ProfileObject};

/// A change of the started objects.
pub(crate) enum Change {
    /// An object is started.
    Insert(Entry),
    /// An object is stopped.
    Remove(ObjectPtr<ProfileObject<'static>>),
}

impl<const N: usize> Index<N> {
    /// Makes this index a copy of `from` with one change. There is room for an object to be inserted, and an object to
    /// be removed is there.
    pub(crate) fn fill(&mut self, from: &Self, change: &Change) {
        let kept = from.started();
        let (place, new) = match change {
            Change::Insert(entry) => {
                let mut entry = *entry;
                entry.key.source &= !self.ignored_bits;
                // Behind entries of the same order: callbacks are called in the order in which they were started.
                let behind = kept.iter().position(|other| other.order() > entry.order());
                let place = behind.unwrap_or(kept.len());
                insert(&mut self.entries, kept, place, entry);
                self.length = kept.len() + 1;
                (place as u32, Some(entry))
            }
            Change::Remove(object) => {
                let place = kept.iter().position(|entry| entry.object == *object);
                let Some(place) = place else { return };
                remove(&mut self.entries, kept, place);
                self.length = kept.len().saturating_sub(1);
                (place as u32, None)
            }
        };
        // `ends` is sorted: the new entry is merged into it. Entries behind the place of the change are one place
        // further, or one place nearer, now.
        let ends = from.by_last.get(..from.length).unwrap_or(&[]);
        let mut olds = ends.iter().copied().filter(|old| new.is_some() || *old != place);
        let (mut old, mut to_come) = (olds.next(), new);
        for to in &mut self.by_last {
            let is_behind = |entry: Entry, old| {
                let other = from.entry(old);
                other.is_some_and(|other| (other.key, other.last) > (entry.key, entry.last))
            };
            let comes = to_come.is_some_and(|new| old.is_none_or(|old| is_behind(new, old)));
            *to = match old {
                _ if comes => {
                    to_come = None;
                    place
                }
                Some(kept) => {
                    old = olds.next();
                    let moves = u32::from(kept >= place);
                    if new.is_some() { kept + moves } else { kept - moves }
                }
                None => break,
            };
        }
        self.build();
    }

    /// Fills the index with entries that are in order of their keys and ranges.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn fill_with(&mut self, entries: impl Iterator<Item = Entry>) {
        self.length = 0;
        for (entry, (to, last)) in entries.zip(self.entries.iter_mut().zip(&mut self.by_last)) {
            (*to, *last) = (entry, self.length as u32);
            self.length += 1;
        }
        self.build();
    }

    /// Builds the groups, with the intervals and the hit lists of each, from the two orders of the entries.
    fn build(&mut self) {
        // In place: an array of this length may not fit the stack of a debug build.
        let used = self.sources.get_mut(..self.slots).unwrap_or_default();
        used.iter_mut().for_each(|source| *source = Source::UNUSED);
        self.slots = 0;
        self.processes.length = 0;
        self.intervals.clear();
        self.hit_lists.clear();
        let mut place = 0;
        while let Some(key) = self.entry(place).filter(|_| (place as usize) < self.length) {
            let key = key.key;
            let rest = self.entries.get(place as usize..self.length).unwrap_or(&[]);
            let members = rest.iter().take_while(|entry| entry.key == key);
            let callbacks = members.clone().filter(|entry| !entry.has_range).count() as u32;
            let (ranges, end) = (place + callbacks, place + members.count() as u32);
            let members = place as usize..end as usize;
            let ends = self.by_last.get(members).unwrap_or(&[]);
            let (intervals, hit_lists) = (&mut self.intervals, &mut self.hit_lists);
            let group = Group {
                callbacks: Span { from: place, to: ranges },
                ranges: sweep(&self.entries, ranges..end, ends, intervals, hit_lists),
            };
            self.add_group(key, group);
            place = end;
        }
    }

    /// Adds the next group in order of the keys.
    fn add_group(&mut self, key: Key, group: Group) {
        let tag = tag(key.source);
        let Some(place) = self.place_of(key.source, tag) else { return };
        let Some(source) = self.sources.get_mut(place) else { return };
        self.slots = self.slots.max(place + 1);
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
            // Keys ascend, so the processes of a source have consecutive places.
            if source.processes.is_empty() {
                source.processes.from = processes.length as u32;
            }
            processes.length += 1;
            source.processes.to = processes.length as u32;
        }
    }
}

/// Makes `to` a copy of `from` with one entry more.
fn insert(to: &mut [Entry], from: &[Entry], place: usize, element: Entry) {
    let (before, after) = from.split_at_checked(place).unwrap_or((from, &[]));
    copy(to, before);
    if let Some([first, rest @ ..]) = to.get_mut(place..) {
        *first = element;
        copy(rest, after);
    }
}

/// Makes `to` a copy of `from` without one entry.
fn remove(to: &mut [Entry], from: &[Entry], place: usize) {
    copy(to, from.get(..place).unwrap_or(&[]));
    copy(to.get_mut(place..).unwrap_or(&mut []), from.get(place + 1..).unwrap_or(&[]));
}

#[inline(never)] // 80 bytes of the glue.
fn copy(to: &mut [Entry], from: &[Entry]) {
    if let Some(to) = to.get_mut(..from.len()) {
        to.copy_from_slice(from);
    }
}

/// Divides the addresses of a group's entries into elementary intervals, and builds their hit lists. `ends` are the
/// group's places in order of the ranges' last addresses.
pub(super) fn sweep<const N: usize>(
    entries: &[Entry; N],
    places: Range<u32>,
    ends: &[u32],
    intervals: &mut ElementaryIntervals<N>,
    hit_lists: &mut HitLists<N>,
) -> Part {
    if places.end - places.start == 1 {
        return Part::only(places.start);
    }
    let mut intervals = intervals.open();
    let range = |place: u32| {
        let entry = entries.get(place as usize).filter(|_| place < places.end)?;
        (entry.has_range && entry.base <= entry.last).then_some(entry)
    };
    let mut begins = places.clone().filter_map(|place| Some((place, range(place)?)));
    let mut ends = ends.iter().filter_map(|place| {
        // A range up to the end of the address space has no end to sweep.
        let end = range(*place)?.last.checked_add(1)?;
        Some((*place, end))
    });
    let (mut begin, mut end) = (None, None);
    let mut head = NONE;
    loop {
        begin = begin.or_else(|| begins.next());
        end = end.or_else(|| ends.next());
        let at = match (begin, end) {
            (Some((place, entry)), next_end)
                if next_end.is_none_or(|(_, end)| entry.base <= end) =>
            {
                begin = None;
                head = hit_lists.begin(place, entry, head);
                entry.base
            }
            (_, Some((place, at))) => {
                end = None;
                head = hit_lists.end(place, at, head);
                at
            }
            _ => return intervals.close(),
        };
        intervals.push(at, hit_lists.node_of(head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    /// Objects are told apart by their addresses; nothing dereferences them.
    fn pointer<T>(number: usize) -> ObjectPtr<T> {
        ObjectPtr::new(core::ptr::without_provenance(number * 0x1000))
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
                        index.ranges(group, pc, |basic| hit.push(basic.as_ptr().addr() / 0x1000));
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
