//! Hit lists with structural sharing: for each elementary interval, a linked list of the ranges that it hits.
//!
//! A hit list is ordered by the bases of its ranges, last base first. From one elementary interval to the next, the
//! list changes by one range, which begins (at the head of the list) or ends (anywhere). So this is a partially
//! persistent list, whose versions are addresses. A node has a next node up to an address, and one modification: the
//! next node from that address on. If a node must be modified a second time, it is copied, and the node before it is
//! modified to lead to the copy. (Node copying: Driscoll, Sarnak, Sleator, Tarjan, "Making Data Structures Persistent",
//! 1989, §2.3: `n` ranges need at most 2·`n` nodes.)

use crate::index::entry::{Entry, NONE};
use crate::object::basic::Basic;
use crate::object::object_ptr::ObjectPtr;

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
