//! A processor's ring of trace records: written by its interrupts, read in task context.
//!
//! An interrupt that writes may itself be interrupted by one that writes (a timer's dispatch by a
//! PMI as NMI). A slot is therefore claimed by one atomic step, filled, and then published by its
//! sequence number; the reader stops at the first slot that is claimed and not yet published.

use core::sync::atomic::Ordering;

use pmu_core::{InterruptFrame, PointerWidth};

use super::record::{MAX_RECORD, RecordError, TraceRecord, WORDS};
use super::stack_walk::{self, STACK_WORDS, StackWalk};
use crate::sync::{AtomicU64, Flag, array_of, const_fn};

/// How often a claim is tried. Each failure means that an interrupt came in between and claimed a
/// slot of its own; so deep do interrupts not nest.
const TRIES: usize = 8;

/// Room for the call chains of `N` events of one processor.
pub type StackRing<const N: usize> = TraceRing<N, STACK_WORDS>;

/// Room for `N` records of one processor, of at most `W` words each.
#[derive(Debug)]
pub struct TraceRing<const N: usize, const W: usize = WORDS> {
    slots: [Slot<W>; N],
    /// The next position to claim; positions count on without wrapping at `N`.
    head: AtomicU64,
    /// The next position to read.
    tail: AtomicU64,
    dropped: AtomicU64,
    draining: Flag,
}

/// A slot says by its turn whose it is: of the position `p` that maps to it, turn `2·(p / N)` means
/// free for the writer of `p`, and `2·(p / N) + 1` means published by it.
#[derive(Debug)]
struct Slot<const W: usize> {
    turn: AtomicU64,
    words: [AtomicU64; W],
}

impl<const W: usize> Slot<W> {
    const_fn! {
        const fn new() -> Self {
            Self { turn: AtomicU64::new(0), words: array_of!(AtomicU64::new(0)) }
        }
    }

    #[inline]
    fn fill(&self, record: &TraceRecord) {
        let mut words = self.words.iter();
        record.put_words(|word| {
            if let Some(to) = words.next() {
                to.store(word, Ordering::Relaxed);
            }
        });
    }

    /// Reads the slot into `bytes`, which have room for it.
    fn read<const B: usize>(&self) -> [u8; B] {
        let mut bytes = [0; B];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }
}

impl<const N: usize> TraceRing<N> {
    const_fn! {
        /// An empty ring, of records of profile interrupts.
        pub const fn new() -> Self {
            Self::empty()
        }
    }

    /// Stores a record; `false`, and one more [dropped](Self::dropped), if there is no room.
    ///
    /// Interrupt or NMI context, on the ring's processor only. Wait-free.
    #[inline]
    pub fn push(&self, record: &TraceRecord) -> bool {
        self.push_by(|slot| slot.fill(record))
    }
}

impl<const N: usize> StackRing<N> {
    const_fn! {
        /// An empty ring, of call chains.
        pub const fn for_stacks() -> Self {
            Self::empty()
        }
    }

    /// Stores the call chain of an interrupt; `false`, and one more [dropped](Self::dropped), if there is no room.
    ///
    /// Interrupt or NMI context, on the ring's processor only. Wait-free, if the frame's
    /// [`call_chain`](InterruptFrame::call_chain) is.
    pub fn push_call_chain(&self, width: PointerWidth, frame: &dyn InterruptFrame) -> bool {
        self.push_by(|slot| stack_walk::fill(&slot.words, width, frame))
    }
}

impl<const N: usize, const W: usize> TraceRing<N, W> {
    const SLOTS: u64 = N as u64;

    const_fn! {
        const fn empty() -> Self {
            const { assert!(N > 0, "a ring has at least one slot") };
            Self {
                slots: array_of!(Slot::new()),
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
                draining: Flag::new(),
            }
        }
    }

    /// Claims a slot, fills it and publishes it.
    #[inline]
    fn push_by(&self, fill: impl FnOnce(&Slot<W>)) -> bool {
        for _ in 0..TRIES {
            let position = self.head.load(Ordering::Relaxed);
            let Some(slot) = self.slots.get((position % Self::SLOTS) as usize) else { break };
            if slot.turn.load(Ordering::Acquire) != 2 * (position / Self::SLOTS) {
                if position == self.head.load(Ordering::Relaxed) {
                    break; // Full: the slot still holds what was not read.
                }
                continue;
            }
            let claim = self.head.compare_exchange(
                position,
                position.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if claim.is_ok() {
                fill(slot);
                slot.turn.store(2 * (position / Self::SLOTS) + 1, Ordering::Release);
                return true;
            }
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Records that found no room so far. Any context.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The right to read; `None` while another reader has it. Task context, any processor.
    pub fn drain(&self) -> Option<Drain<'_, N, W>> {
        let free = self.draining.try_take();
        free.then(|| Drain { ring: self })
    }
}

impl<const N: usize> Default for TraceRing<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads a ring's records, oldest first; ends where the ring is empty.
#[derive(Debug)]
pub struct Drain<'r, const N: usize, const W: usize = WORDS> {
    ring: &'r TraceRing<N, W>,
}

impl<const N: usize, const W: usize> Drain<'_, N, W> {
    /// The bytes of the oldest record, if there is one.
    fn oldest<const B: usize>(&self) -> Option<[u8; B]> {
        let position = self.ring.tail.load(Ordering::Relaxed);
        let slot = self.ring.slots.get((position % TraceRing::<N, W>::SLOTS) as usize)?;
        let turn = 2 * (position / TraceRing::<N, W>::SLOTS);
        if slot.turn.load(Ordering::Acquire) != turn + 1 {
            return None;
        }
        let bytes = slot.read();
        slot.turn.store(turn + 2, Ordering::Release);
        self.ring.tail.store(position.wrapping_add(1), Ordering::Relaxed);
        Some(bytes)
    }
}

impl<const N: usize> Iterator for Drain<'_, N> {
    type Item = Result<TraceRecord, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.oldest::<MAX_RECORD>()?;
        Some(TraceRecord::decode(&bytes).map(|(record, _)| record))
    }
}

impl<const N: usize> Iterator for Drain<'_, N, STACK_WORDS> {
    type Item = Result<StackWalk, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.oldest::<{ 8 * STACK_WORDS }>()?;
        Some(StackWalk::decode(&bytes).map(|(walk, _)| walk))
    }
}

impl<const N: usize, const W: usize> Drop for Drain<'_, N, W> {
    fn drop(&mut self) {
        self.ring.draining.release();
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Detail;
    use super::*;
    use crate::PointerWidth;
    use std::vec::Vec;

    fn record(pc: u64) -> TraceRecord {
        TraceRecord {
            width: PointerWidth::Bits64,
            timestamp: pc * 10,
            pebs_index: pc.is_multiple_of(2).then_some(pc),
            pc,
            thread: 7,
            detail: Detail::PmcInterrupt { source: 0x19 },
        }
    }

    #[test]
    fn records_come_out_in_order_and_what_finds_no_room_is_counted() {
        let ring = TraceRing::<3>::new();
        let mut next = 0;
        for round in 0..5 {
            let pushed: Vec<bool> = (0..4).map(|i| ring.push(&record(next + i))).collect();
            assert_eq!(pushed, [true, true, true, false]);
            assert_eq!(ring.dropped(), round + 1);
            let read: Vec<_> = ring.drain().unwrap().map(Result::unwrap).collect();
            assert_eq!(read, [record(next), record(next + 1), record(next + 2)]);
            assert_eq!(ring.drain().unwrap().count(), 0);
            next += 4;
        }
    }

    #[test]
    fn one_reader_at_a_time() {
        let ring = TraceRing::<3>::new();
        let first = ring.drain();
        assert!(first.is_some() && ring.drain().is_none());
        drop(first);
        assert!(ring.drain().is_some());
    }

    #[test]
    fn a_record_in_the_making_holds_the_reader_back_and_loses_nothing() {
        let ring = TraceRing::<3>::new();
        // An interrupt claimed position 0 and was interrupted before it published.
        ring.head.store(1, Ordering::Relaxed);
        assert!(ring.push(&record(1)));
        assert_eq!(ring.drain().unwrap().count(), 0);
        ring.slots[0].fill(&record(0));
        ring.slots[0].turn.store(1, Ordering::Release);
        let read: Vec<_> = ring.drain().unwrap().map(Result::unwrap).collect();
        assert_eq!(read, [record(0), record(1)]);
    }
}
