//! Finds the objects that an interrupt concerns, without looking at the others.
//!
//! Objects are kept in groups of one process and one source; within a group the callback objects come
//! first, then the basic ones by the base of their range. The addresses where a range begins or ends
//! divide the address space into stretches, over each of which the same ranges are hit. A binary search
//! finds the stretch of an address; the stretch names the last range, in order of the bases, that is
//! hit. Each range names the nearest one before it that reaches further: whatever lies between the two
//! reaches no further than itself, so the way to the next hit leads past most that are missed.
//!
//! An index is built from its predecessor, in a number of steps that grows with its length.

use core::ptr;

use crate::ProfileObject;

/// No place.
const NONE: u32 = u32::MAX;

/// Which interrupts concern an object: those of one process (0: of all) and of one source. One number,
/// so that keys are compared in two instructions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    #[inline]
    pub(crate) const fn new(process: u64, source: u32) -> Self {
        Self((process as u128) << 32 | source as u128)
    }
}

/// An object and its range.
#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    /// Callback objects, which have no range, come before the others.
    has_range: bool,
    base: u64,
    /// The range's last address; below the base, if the range is empty.
    last: u64,
    /// The nearest entry before this one, of the same group, whose range reaches further.
    further: u32,
    object: *const ProfileObject<'static>,
}

impl Entry {
    const UNUSED: Self = Self {
        key: Key::new(0, 0),
        has_range: false,
        base: 0,
        last: 0,
        further: NONE,
        object: ptr::null(),
    };

    fn of(object: *const ProfileObject<'static>, key: Key, range: Option<(u64, u64)>) -> Self {
        let (base, last) = range.unwrap_or((0, 0));
        Self { key, has_range: range.is_some(), base, last, further: NONE, object }
    }

    /// Where the entry goes among the others.
    fn order(&self) -> (Key, bool, u64) {
        (self.key, self.has_range, self.base)
    }
}

/// The entries of one key, and their stretches.
#[derive(Clone, Copy)]
struct Group {
    key: Key,
    /// Its callback objects begin here…
    callbacks: u32,
    /// …and its ranges here…
    ranges: u32,
    /// …and its stretches here, up to here.
    stretches: [u32; 2],
}

/// Where a stretch begins, and the last range in order of the bases that is hit there.
#[derive(Clone, Copy)]
struct Stretches<const N: usize> {
    from: [[u64; 2]; N],
    last: [[u32; 2]; N],
    length: usize,
}

/// The index of at most `N` objects.
pub(crate) struct Index<const N: usize> {
    length: usize,
    entries: [Entry; N],
    /// The entries in order of their ranges' last addresses, within their groups.
    by_last: [u32; N],
    groups: [Group; N],
    group_count: usize,
    stretches: Stretches<N>,
}

impl<const N: usize> Index<N> {
    pub(crate) const fn new() -> Self {
        const { assert!(N < NONE as usize / 2, "places are 32-bit numbers") };
        let group = Group { key: Key::new(0, 0), callbacks: 0, ranges: 0, stretches: [0; 2] };
        Self {
            length: 0,
            entries: [Entry::UNUSED; N],
            by_last: [0; N],
            groups: [group; N],
            group_count: 0,
            stretches: Stretches { from: [[0; 2]; N], last: [[NONE; 2]; N], length: 0 },
        }
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The objects, by key.
    pub(crate) fn objects(&self) -> impl Iterator<Item = *const ProfileObject<'static>> {
        self.entries.iter().take(self.length).map(|entry| entry.object)
    }

    /// Becomes `from` with one object more, of which there is room. `range` is its first address and
    /// its last; `None`: a callback object.
    pub(crate) fn fill_with(
        &mut self,
        from: &Self,
        object: *const ProfileObject<'static>,
        key: Key,
        range: Option<(u64, u64)>,
    ) {
        let entry = Entry::of(object, key, range);
        let kept = from.entries.get(..from.length).unwrap_or(&[]);
        // Behind those of its order: callbacks are called in the order in which they were started.
        let place = kept.partition_point(|other| other.order() <= entry.order());
        let (before, after) = kept.split_at_checked(place).unwrap_or((kept, &[]));
        self.set_entries(before.iter().chain([&entry]).chain(after).copied());

        let moved = |old: &u32| if (*old as usize) < place { *old } else { *old + 1 };
        let ends = from.by_last.get(..from.length).unwrap_or(&[]);
        let earlier = |old: &u32| {
            let other = from.entry(*old);
            other.is_some_and(|other| (other.key, other.last) <= (key, entry.last))
        };
        let end_place = ends.partition_point(earlier);
        let (before, after) = ends.split_at_checked(end_place).unwrap_or((ends, &[]));
        let ends = before.iter().map(moved).chain([place as u32]).chain(after.iter().map(moved));
        self.by_last.iter_mut().zip(ends).for_each(|(to, from)| *to = from);
        self.link();
    }

    /// Becomes `from` without an object.
    pub(crate) fn fill_without(&mut self, from: &Self, object: *const ProfileObject<'static>) {
        let kept = from.entries.get(..from.length).unwrap_or(&[]);
        let place = kept.iter().position(|entry| entry.object == object).unwrap_or(from.length);
        self.set_entries(kept.iter().filter(|entry| entry.object != object).copied());
        let ends = from.by_last.get(..from.length).unwrap_or(&[]);
        let ends = ends.iter().filter(|old| **old as usize != place);
        let moved = |old: &u32| if (*old as usize) < place { *old } else { *old - 1 };
        self.by_last.iter_mut().zip(ends.map(moved)).for_each(|(to, from)| *to = from);
        self.link();
    }

    fn set_entries(&mut self, entries: impl Iterator<Item = Entry>) {
        self.length = 0;
        for (place, entry) in self.entries.iter_mut().zip(entries) {
            *place = entry;
            self.length += 1;
        }
    }

    #[inline]
    fn entry(&self, place: u32) -> Option<&Entry> {
        self.entries.get(place as usize)
    }

    /// Makes groups, links and stretches from the two orders.
    fn link(&mut self) {
        (self.group_count, self.stretches.length) = (0, 0);
        let mut place = 0;
        while let Some(key) = self.entry(place).filter(|_| (place as usize) < self.length) {
            let key = key.key;
            let rest = self.entries.get(place as usize..self.length).unwrap_or(&[]);
            let members = rest.iter().take_while(|entry| entry.key == key);
            let callbacks = members.clone().filter(|entry| !entry.has_range).count() as u32;
            let (ranges, end) = (place + callbacks, place + members.count() as u32);
            let first = self.stretches.length as u32;
            self.link_further(ranges, end);
            self.divide(place, ranges, end);
            let stretches = [first, self.stretches.length as u32];
            if let Some(group) = self.groups.get_mut(self.group_count) {
                *group = Group { key, callbacks: place, ranges, stretches };
            }
            self.group_count += 1;
            place = end;
        }
    }

    fn link_further(&mut self, ranges: u32, end: u32) {
        for place in ranges..end {
            let last = self.entry(place).map_or(0, |entry| entry.last);
            let before = if place == ranges { NONE } else { place - 1 };
            // One that reaches as far is as good as this one: it is passed with it.
            let further = last.checked_add(1).map_or(NONE, |next| self.reaching(before, next));
            if let Some(entry) = self.entries.get_mut(place as usize) {
                entry.further = further;
            }
        }
    }

    /// Of this entry, and those before it that reach ever further, the first to reach an address.
    #[inline]
    fn reaching(&self, mut place: u32, address: u64) -> u32 {
        while let Some(entry) = self.entry(place).filter(|entry| entry.last < address) {
            place = entry.further;
        }
        place
    }

    /// Divides a group's addresses into stretches.
    fn divide(&mut self, group: u32, ranges: u32, end: u32) {
        let first = self.stretches.length;
        let (mut begins, mut ends) = (ranges, group);
        let mut hit = NONE;
        loop {
            let begin = (begins < end).then(|| self.entry(begins)).flatten();
            let begin = begin.map(|entry| entry.base);
            let ending = self.by_last.get(ends as usize).filter(|_| ends < end);
            let ending = ending.and_then(|place| self.entry(*place)?.last.checked_add(1));
            let at = match (begin, ending) {
                (Some(begin), Some(ending)) => begin.min(ending),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => return,
            };
            if begin == Some(at) {
                hit = begins;
                begins += 1;
            } else {
                ends += 1;
            }
            hit = self.reaching(hit, at);
            self.stretches.push(first, at, hit);
        }
    }

    #[inline]
    fn group(&self, key: Key) -> Option<&Group> {
        let (mut low, mut size) = (0, self.group_count);
        while size > 1 {
            let half = size / 2;
            if self.groups.get(low + half)?.key <= key {
                low += half;
            }
            size -= half;
        }
        self.groups.get(low).filter(|group| size != 0 && group.key == key)
    }

    /// Calls `examine` with each object of a key that concerns an interrupt at `pc`: its callback
    /// objects in the order in which they were started, then the objects whose range has `pc`.
    #[inline]
    pub(crate) fn for_each(
        &self,
        key: Key,
        pc: u64,
        mut examine: impl FnMut(*const ProfileObject<'static>),
    ) {
        let Some(group) = self.group(key) else { return };
        for callback in group.callbacks..group.ranges {
            if let Some(entry) = self.entry(callback) {
                examine(entry.object);
            }
        }
        let mut place = self.stretches.last_hit(group.stretches, pc);
        while let Some(entry) = self.entry(place) {
            examine(entry.object);
            let before = if place == group.ranges { NONE } else { place - 1 };
            place = self.reaching(before, pc);
        }
    }
}

impl<const N: usize> Stretches<N> {
    /// Adds a stretch to those of a group, or corrects the last one if it begins at the same address.
    fn push(&mut self, first: usize, from: u64, last: u32) {
        let (froms, lasts) = (self.from.as_flattened_mut(), self.last.as_flattened_mut());
        if let Some(previous) = self.length.checked_sub(1).filter(|previous| *previous >= first)
            && froms.get(previous) == Some(&from)
            && let Some(place) = lasts.get_mut(previous)
        {
            *place = last;
        } else if let (Some(to), Some(place)) =
            (froms.get_mut(self.length), lasts.get_mut(self.length))
        {
            (*to, *place) = (from, last);
            self.length += 1;
        }
    }

    /// Of the stretches of a group, the last hit in that of an address.
    #[inline]
    fn last_hit(&self, [first, end]: [u32; 2], address: u64) -> u32 {
        let froms = self.from.as_flattened().get(first as usize..end as usize).unwrap_or(&[]);
        let after = froms.partition_point(|from| *from <= address);
        match after.checked_sub(1) {
            Some(within) => {
                let place = first as usize + within;
                self.last.as_flattened().get(place).copied().unwrap_or(NONE)
            }
            None => NONE,
        }
    }
}
