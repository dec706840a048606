//! The reading end of a ring: a task drains its records.
//!
//! A reader copies a record and then claims it, so readers need no lock. A reader that loses the claim drops its copy.

use core::sync::atomic::Ordering;

use crate::trace::event::sample::SAMPLE_WORDS;
use crate::trace::record_bytes::RecordBytes;
use crate::trace::ring::TraceRing;

impl<const N: usize, const W: usize> TraceRing<N, W> {
    /// Returns an iterator that takes the records out of the ring, oldest first.
    ///
    /// Several iterators may read the same ring at the same time. Each record is then returned by exactly one iterator.
    ///
    /// # Context
    /// Task, on any processor.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::trace::TraceRing;
    ///
    /// /// A task writes the records of all processors to a file, as they are.
    /// fn write(rings: &[TraceRing<128>], file: &mut Vec<u8>) -> u64 {
    ///     for ring in rings {
    ///         ring.drain().for_each(|record| file.extend_from_slice(record.as_slice()));
    ///     }
    ///     rings.iter().map(|ring| ring.dropped()).sum()
    /// }
    /// # write(&[TraceRing::new()], &mut vec![]);
    /// ```
    pub fn drain(&self) -> Drain<'_, N, W> {
        Drain { ring: self }
    }
}

/// An iterator that takes the records out of a ring, oldest first, until the ring is empty.
#[derive(Debug)]
pub struct Drain<'r, const N: usize, const W: usize = SAMPLE_WORDS> {
    ring: &'r TraceRing<N, W>,
}

impl<const N: usize, const W: usize> Drain<'_, N, W> {
    /// Frees the slot of a position that was read, if it is not free yet.
    fn free(&self, position: u64) {
        let slots = TraceRing::<N, W>::SLOTS;
        if let Some(slot) = self.ring.slots.get((position % slots) as usize) {
            let read = 2 * (position / slots) + 1;
            // `Err`: another reader freed the slot, and a writer may use it already.
            let _ = slot.turn.compare_exchange(read, read + 1, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl<const N: usize, const W: usize> Iterator for Drain<'_, N, W> {
    type Item = RecordBytes<W>;

    fn next(&mut self) -> Option<Self::Item> {
        let (slots, tail) = (TraceRing::<N, W>::SLOTS, &self.ring.tail);
        let mut position = tail.load(Ordering::Acquire);
        loop {
            // The reader that claimed the record before this one may have ended before it freed the slot.
            position.checked_sub(1).into_iter().for_each(|before| self.free(before));
            let slot = self.ring.slots.get((position % slots) as usize)?;
            let turn = 2 * (position / slots);
            let is_published = slot.turn.load(Ordering::Acquire) == turn + 1;
            let bytes = if is_published { slot.read() } else { RecordBytes([[0; 8]; W]) };
            // A slot is freed after the tail is moved on from it. So if the tail is at `position` still, this slot was
            // not written since `position` was loaded, and the copy is whole.
            let next = position.wrapping_add(u64::from(is_published));
            match tail.compare_exchange(position, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if is_published => {
                    self.free(position);
                    return Some(bytes);
                }
                Ok(_) => return None,
                Err(found) => position = found,
            }
        }
    }
}
