//! Chains of hits: for each address, the ranges that it hits, one after the other.
//!
//! A chain is a linked list in order of the bases, last one first. From one stretch of addresses to the next
//! it changes by one range, which begins (at the chain's head) or ends (anywhere): a list that keeps all its
//! versions. A link therefore has a place for what follows up to an address, and for what follows from there
//! on. A link that must change once more is copied, and whatever leads to it is changed so that it leads to
//! the copy. (Driscoll, Sarnak, Sleator, Tarjan, "Making Data Structures Persistent", 1989, §2.3: of `n`
//! ranges there are at most 2·`n` links.)

use core::ptr;

use super::{Entry, NONE};
use crate::object::Basic;

/// A range in a chain.
#[derive(Clone, Copy)]
struct Link {
    basic: *const Basic<'static>,
    /// The next link, up to an address…
    next: u32,
    /// …and from there on.
    changed: u32,
    changes_at: u64,
}

impl Link {
    const UNUSED: Self = Self::to(ptr::null(), NONE);

    /// To the same link everywhere.
    const fn to(basic: *const Basic<'static>, next: u32) -> Self {
        Self { basic, next, changed: next, changes_at: u64::MAX }
    }
}

/// The chains of all groups, of at most `N` ranges.
pub(super) struct Chains<const N: usize> {
    links: [[Link; 2]; N],
    length: usize,
    /// For each range of the group that is being made, by its entry's place.
    active: [Active; N],
}

/// A range while addresses are passed that hit it.
#[derive(Clone, Copy)]
struct Active {
    /// Its link, as it is now.
    link: u32,
    /// Its neighbours, by their entries' places: the range that leads to it, and the one it leads to.
    before: u32,
    after: u32,
}

impl<const N: usize> Chains<N> {
    pub(super) const fn new() -> Self {
        Self {
            links: [[Link::UNUSED; 2]; N],
            length: 0,
            active: [Active { link: NONE, before: NONE, after: NONE }; N],
        }
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    /// A link's range, and the next link, where an address is.
    #[inline]
    pub(super) fn follow(&self, link: u32, address: u64) -> Option<(*const Basic<'static>, u32)> {
        let link = self.links.as_flattened().get(link as usize)?;
        let next = if address >= link.changes_at { link.changed } else { link.next };
        Some((link.basic, next))
    }

    /// From here on a range is hit: it leads to what was the head. The chain's head.
    pub(super) fn begin(&mut self, place: u32, entry: &Entry, head: u32) -> u32 {
        let after = self.active.get(head as usize).map_or(NONE, |head| head.link);
        let link = self.push(Link::to(entry.basic, after));
        if let Some(head) = self.active.get_mut(head as usize) {
            head.before = place;
        }
        if let Some(active) = self.active.get_mut(place as usize) {
            *active = Active { link, before: NONE, after: head };
        }
        place
    }

    /// From an address on a range is not hit any more: what led to it leads to what it led to. The
    /// chain's head.
    pub(super) fn end(&mut self, place: u32, at: u64, head: u32) -> u32 {
        let Some(Active { before, after, .. }) = self.active.get(place as usize).copied() else {
            return head;
        };
        let link = match self.active.get_mut(after as usize) {
            Some(after) => {
                after.before = before;
                after.link
            }
            None => NONE,
        };
        if let Some(before) = self.active.get_mut(before as usize) {
            before.after = after;
        }
        self.redirect(before, at, link);
        if head == place { after } else { head }
    }

    /// The link of the head, from here on.
    pub(super) fn link_of(&self, head: u32) -> u32 {
        self.active.get(head as usize).map_or(NONE, |head| head.link)
    }

    /// From an address on a range leads to a link.
    fn redirect(&mut self, mut place: u32, at: u64, mut to: u32) {
        while let Some(active) = self.active.get_mut(place as usize) {
            let Some(link) = self.links.as_flattened_mut().get_mut(active.link as usize) else {
                return;
            };
            if link.changes_at == u64::MAX || link.changes_at == at {
                (link.changes_at, link.changed) = (at, to);
                return;
            }
            let copy = Link::to(link.basic, to);
            let before = active.before;
            to = self.push(copy);
            if let Some(active) = self.active.get_mut(place as usize) {
                active.link = to;
            }
            place = before;
        }
    }

    fn push(&mut self, link: Link) -> u32 {
        let Some(to) = self.links.as_flattened_mut().get_mut(self.length) else { return NONE };
        *to = link;
        self.length += 1;
        (self.length - 1) as u32
    }
}
