//! The index: finds the group of a source and a process, and the objects whose ranges contain an address.
//!
//! The addresses where a range begins or ends divide the address space into elementary intervals; all addresses of an
//! interval are in the same ranges. A binary search finds the elementary interval of an address, which leads to the
//! head of the interval's hit list: the list of these ranges. (Elementary intervals and stabbing queries: de Berg and
//! others, "Computational Geometry", 3rd edition, §10.3.)

use crate::index::entry::{Entry, NONE};
use crate::index::groups::{Group, Processes, Source, Span, UNUSED, tag};
use crate::index::hit_lists::HitLists;
use crate::index::intervals::{ElementaryIntervals, Found};
use crate::object::basic::Basic;
use crate::object::object_ptr::ObjectPtr;
use crate::object::profile_object::ProfileObject;

/// The index of at most `N` objects.
#[repr(C)] // The sources first: an interrupt has their address then.
pub(crate) struct Index<const N: usize> {
    /// Hashed by the number modulo `N`, with linear probing.
    pub(super) sources: [Source<N>; N],
    pub(super) entries: [Entry; N],
    pub(super) length: usize,
    /// The slots of `sources` from this number on are unused.
    pub(super) slots: usize,
    /// The bits of a source's number that do not tell sources apart. Set before the index is filled.
    pub(crate) ignored_bits: u32,
    /// The entries in order of their ranges' last addresses, within their groups.
    pub(super) by_last: [u32; N],
    pub(super) processes: Processes<N>,
    pub(super) intervals: ElementaryIntervals<N>,
    pub(super) hit_lists: HitLists<N>,
}

impl<const N: usize> Index<N> {
    /// Creates an empty index.
    pub(crate) const fn new() -> Self {
        const { assert!(N > 0 && N < NONE as usize / 3, "places are 32-bit numbers") };
        Self {
            length: 0,
            ignored_bits: 0,
            entries: [Entry::UNUSED; N],
            by_last: [0; N],
            sources: [Source::UNUSED; N],
            slots: 0,
            processes: Processes { ids: [0; N], groups: [Group::EMPTY; N], length: 0 },
            intervals: ElementaryIntervals::new(),
            hit_lists: HitLists::new(),
        }
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the entries of the objects, ordered by key.
    pub(super) fn started(&self) -> &[Entry] {
        self.entries.get(..self.length).unwrap_or(&[])
    }

    /// Returns the objects, ordered by key.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectPtr<ProfileObject<'static>>> {
        self.started().iter().map(|entry| entry.object)
    }

    /// Returns the group of all processes of a source, if the source has no other group and no callback object, and is
    /// in the slot of its hash: the common case. [`source`](Self::source) finds any other.
    #[inline]
    pub(crate) fn only_ranges(&self, source: u32) -> Option<&Group> {
        let there = self.sources.get(source as usize % N)?;
        (there.only_ranges_of == tag(source)).then_some(&there.global)
    }

    /// Returns the groups of a source; `None` if the source has none.
    pub(crate) fn source(&self, number: u32) -> Option<&Source<N>> {
        let number = number & !self.ignored_bits;
        let tag = tag(number);
        self.sources.get(self.place_of(number, tag)?).filter(|source| source.tag == tag)
    }

    /// Returns the slot of a source, or the slot that it would take; `None` if there is no room for it.
    pub(super) fn place_of(&self, number: u32, tag: u32) -> Option<usize> {
        let first = number as usize % N;
        (first..N).chain(0..first).find(|place| {
            let there = self.sources.get(*place).map_or(UNUSED, |source| source.tag);
            there == tag || there == UNUSED
        })
    }

    /// Returns the group of a process.
    pub(crate) fn process(&self, source: &Source<N>, process: u64) -> Option<&Group> {
        let Span { from, to } = source.processes;
        let ids = self.processes.ids.get(from as usize..to as usize)?;
        let place = ids.binary_search(&process).ok()?;
        self.processes.groups.get(from as usize + place)
    }

    /// Returns a group's callback objects, in the order in which they were started.
    #[inline]
    pub(crate) fn callbacks(
        &self,
        group: &Group,
    ) -> impl Iterator<Item = ObjectPtr<ProfileObject<'static>>> {
        (group.callbacks.from..group.callbacks.to).map_while(|n| self.entry(n)).map(|e| e.object)
    }

    /// Calls `hit` with the counting part of each of a group's basic objects whose range has `pc`: a stabbing query.
    #[inline(always)]
    pub(crate) fn ranges(
        &self,
        group: &Group,
        pc: u64,
        mut hit: impl FnMut(ObjectPtr<Basic<'static>>),
    ) {
        match self.intervals.find(group.ranges, pc) {
            Found::Only(only) => {
                let entry = self.entries.get(only as usize);
                if let Some(entry) = entry.filter(|e| e.base <= pc && pc <= e.last) {
                    hit(entry.basic);
                }
            }
            Found::HitList(mut node) => {
                while let Some((basic, next)) = self.hit_lists.follow(node, pc) {
                    hit(basic);
                    node = next;
                }
            }
        }
    }

    #[inline]
    pub(super) fn entry(&self, place: u32) -> Option<&Entry> {
        self.entries.get(place as usize)
    }
}
