//! Hit lists with structural sharing: for each address, the ranges that it hits, one after the other.
//!
//! A hit list is a linked list in order of the bases, last one first. From one elementary interval to the next
//! it changes by one range, which begins (at the list's head) or ends (anywhere): a partially persistent list,
//! whose version is the address. A node therefore has a next node up to an address, and one modification: the
//! next node from there on. A node that must be modified once more is copied, and the node that leads to it is
//! modified so that it leads to the copy. (Node copying: Driscoll, Sarnak, Sleator, Tarjan, "Making Data
//! Structures Persistent", 1989, §2.3: of `n` ranges there are at most 2·`n` nodes.)

use crate::index::entry::{Entry, NONE};
use crate::object::basic::Basic;
use crate::object::object_ptr::ObjectPtr;

/// A range in a hit list.
#[derive(Clone, Copy)]
struct Node {
    basic: ObjectPtr<Basic<'static>>,
    /// The next node, up to an address…
    next: u32,
    /// …and from there on.
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
    /// For each range of the group that is being built, by its entry's place.
    active: [Active; N],
}

/// A range while addresses are passed that hit it.
#[derive(Clone, Copy)]
struct Active {
    /// Its node, as it is now.
    node: u32,
    /// Its neighbours, by their entries' places: the range that leads to it, and the one it leads to.
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

    /// From here on a range is hit: it leads to what was the head. Returns the list's head.
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

    /// From an address on a range is not hit any more: what led to it leads to what it led to. Returns
    /// the list's head.
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

    /// Returns the node of the head, from here on.
    pub(super) fn node_of(&self, head: u32) -> u32 {
        self.active.get(head as usize).map_or(NONE, |head| head.node)
    }

    /// From an address on a range leads to a node.
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
