//! The counting of a basic object.

use core::sync::atomic::{AtomicU32, Ordering};

use pmu_core::frame::InterruptFrame;
use pmu_core::windows::Rules;

use crate::affinity::Affinity;
use crate::object::bucket::Bucket;

/// RFLAGS bit 17: virtual-8086 mode (Intel SDM vol. 1, §3.4.3).
const VIRTUAL_8086: u64 = 1 << 17;

/// A range of addresses, its buckets, and the segment and processors that are profiled.
pub(crate) struct Basic<'b> {
    pub(crate) base: u64,
    /// Base plus size.
    pub(crate) limit: u64,
    pub(crate) bucket: Bucket,
    pub(crate) buffer: &'b [AtomicU32],
    /// The segment of virtual-8086 execution; 0 for linear addresses. Only an object of a process has a segment.
    pub(crate) segment: u16,
    /// The processors on which the source runs for this object.
    pub(crate) affinity: Affinity,
}

/// The outcome of an interrupt for one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The conditions are not met.
    Passed,
    /// The object counted the interrupt.
    Acted,
    /// Windows would have counted outside the buffer.
    Outside,
}

impl Basic<'_> {
    /// Returns the first and the last address that can concern the object; the last is below the first if none can.
    pub(crate) fn range(&self, rules: Rules) -> (u64, u64) {
        if rules.version.end_is_inclusive() {
            (self.base, self.limit)
        } else if self.base < self.limit {
            (self.base, self.limit - 1)
        } else {
            (1, 0)
        }
    }

    /// Returns whether an interrupt is in the profiled segment; `true` if no segment is profiled.
    #[inline]
    pub(crate) fn has_segment_of<F: InterruptFrame>(&self, frame: &F) -> bool {
        self.segment == 0 || (frame.flags() & VIRTUAL_8086 != 0 && frame.cs() == self.segment)
    }

    /// Counts an interrupt at `pc`, which is in the object's range, if the object profiles the processor with this
    /// index.
    #[inline]
    pub(crate) fn count(&self, pc: u64, processor: usize) -> Outcome {
        if !self.affinity.contains_index(processor) {
            return Outcome::Passed;
        }
        let counter = self.bucket.counter(pc.wrapping_sub(self.base));
        match self.buffer.get(counter as usize) {
            Some(counter) => {
                counter.fetch_add(1, Ordering::Relaxed);
                Outcome::Acted
            }
            None => Outcome::Outside,
        }
    }
}
