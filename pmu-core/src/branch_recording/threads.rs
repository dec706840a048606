//! Call stacks of threads: read into the threads' memories as their events are switched out, and written back as they
//! are switched in.
//!
//! A memory keeps a call stack only while its thread does not run. So a settled event whose memory keeps one has come
//! with its thread right now.

use core::sync::atomic::Ordering::Relaxed;

use crate::branches::filter::BranchFilter;
use crate::branches::memory::{BranchMemory, STACK, UNKNOWN};
use crate::branches::recording::{Stacks, Wanted};
use crate::branches::sampled::Branches;
use crate::counters::hooks::running::Running;

impl Branches<'_> {
    /// Returns the memories of the thread that leaves, and of the one that comes. Notes which event has the call stack
    /// from here on: if one of a thread is on a counter, it is this one.
    pub(crate) fn stacks(&self, running: &Running<'_>, wanted: Option<Wanted>) -> Stacks<'static> {
        let mut stacks = Stacks::default();
        let mode = self.memory.mode();
        let was_stack = mode & STACK != 0;
        if self.memory.call_stacks.get().is_none()
            || !was_stack && !wanted.is_some_and(|wanted| wanted.is_call_stack)
        {
            return stacks;
        }
        let before = self.memory.tag.load(Relaxed);
        if running.are_switched() && mode & (STACK | UNKNOWN) == STACK {
            stacks.leaving = self.memory_of(before);
        }
        let mut is_of_thread = false;
        for event in running.counters().iter().filter_map(|counter| running.on(counter)) {
            if !event.branches().is_some_and(BranchFilter::is_call_stack) {
                continue;
            }
            let tag = event.tag();
            if tag == before {
                // The event is the processor's, and did not leave.
                stacks.leaving = None;
            }
            let memory = self.memory_of(tag);
            if memory.is_some() || !is_of_thread {
                self.memory.tag.store(tag, Relaxed);
                is_of_thread = memory.is_some();
            }
            if memory.is_some_and(|memory| memory.kept.load(Relaxed) != 0) {
                stacks.coming = memory;
            }
        }
        stacks
    }

    pub(crate) fn memory_of(&self, tag: u64) -> Option<&'static BranchMemory> {
        self.memory.call_stacks.get().and_then(|memory_of| memory_of(tag))
    }
}
