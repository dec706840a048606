//! A processor's ring of trace records: interrupts write it, and a task reads it.
//!
//! A writing interrupt may itself be interrupted by another that writes (a timer's dispatch by a PMI as NMI). A slot is
//! therefore claimed by one atomic operation, filled, and then published by its sequence number; the reader stops at
//! the first slot that is claimed but not yet published. A reader copies a record and then claims it, so that readers
//! need no lock: the one that loses the claim has copied for nothing.

use core::fmt;
use core::sync::atomic::Ordering;

use pmu_core::{InterruptFrame, PointerWidth};

use super::event::{self, SAMPLE_WORDS, STACK_WORDS, Sample};
use super::record::{MAX_PMC_VALUES, Record, RecordError};
use crate::sync::{AtomicU64, array_of, const_fn};

/// Maximum number of attempts at a claim. Each failure means that an interrupt came in between and claimed a slot of
/// its own; interrupts do not nest this deeply.
const TRIES: usize = 8;

/// Number of words of a context switch with all extended data: header, time stamp, index, values, and 24 bytes.
const SWITCH_WORDS: usize = 2 + 1 + MAX_PMC_VALUES + 3;

/// A ring for the call chains of `N` events of one processor.
pub type StackRing<const N: usize> = TraceRing<N, STACK_WORDS>;

/// A ring for `N` context switches of one processor, with extended data.
pub type SwitchRing<const N: usize> = TraceRing<N, SWITCH_WORDS>;

/// A ring for `N` records of one processor, each of at most `W` words of 8 bytes: by default profile interrupts.
///
/// ```
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{Detail, Sample, TraceRing};
/// static RING: TraceRing<128> = TraceRing::new(); // one per processor
/// // In an interrupt of that processor:
/// let detail = Detail::SampledProfile { count: 1, flags: 0, rank: 0 };
/// assert!(RING.push_sample(PointerWidth::Bits64, 1_000, &Sample { pc: 0x1234, thread: 7, detail }));
/// // In a task:
/// let times: Vec<_> = RING.drain().map(|bytes| bytes.decode().unwrap().timestamp).collect();
/// assert_eq!((times, RING.dropped()), (vec![1_000], 0));
/// ```
#[derive(Debug)]
pub struct TraceRing<const N: usize, const W: usize = SAMPLE_WORDS> {
    slots: [Slot<W>; N],
    /// Next position to claim; positions do not wrap at `N`.
    head: AtomicU64,
    /// Next position to read.
    tail: AtomicU64,
    dropped: AtomicU64,
}

/// A slot, whose turn tells its owner: of the position `p` that maps to it, turn `2·(p / N)` means free for the writer
/// of `p`, and `2·(p / N) + 1` means published by it.
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
    fn fill(&self, words: impl IntoIterator<Item = u64>) {
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    fn read(&self) -> RecordBytes<W> {
        let mut bytes = [[0; 8]; W];
        for (bytes, word) in bytes.iter_mut().zip(&self.words) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        RecordBytes(bytes)
    }
}

impl<const N: usize, const W: usize> TraceRing<N, W> {
    const SLOTS: u64 = N as u64;

    const_fn! {
        /// Creates an empty ring.
        pub const fn new() -> Self {
            const {
                assert!(N > 0, "a ring has at least one slot");
                assert!(W >= SAMPLE_WORDS, "a slot has room for a profile interrupt");
            };
            Self {
                slots: array_of!(Slot::new()),
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
            }
        }
    }

    /// Stores the record of a profile interrupt. Without room, returns `false` and counts it as
    /// [dropped](Self::dropped).
    ///
    /// # Context
    /// Any, NMI included, on the ring's processor. Wait-free.
    #[inline]
    pub fn push_sample(&self, width: PointerWidth, timestamp: u64, sample: &Sample) -> bool {
        self.push_by(|slot| slot.fill(sample.words(width, timestamp)))
    }

    /// Stores the call chain of an interrupt, with as many addresses as fit into a slot. Without room, returns `false`
    /// and counts it as [dropped](Self::dropped).
    ///
    /// # Context
    /// Any, NMI included, on the ring's processor. Wait-free if the frame's [`call_chain`](InterruptFrame::call_chain)
    /// is.
    pub fn push_call_chain(&self, width: PointerWidth, frame: &dyn InterruptFrame) -> bool {
        self.push_by(|slot| event::fill(&slot.words, width, frame))
    }

    /// Stores any record. Without room, or if the record is longer than a slot, returns `false` and counts it as
    /// [dropped](Self::dropped).
    ///
    /// # Context
    /// Any, NMI included, on the ring's processor. Wait-free. The bytes are on the stack meanwhile.
    pub fn push(&self, record: &Record<'_>) -> bool {
        let mut bytes = [[0; 8]; W];
        if record.encode(bytes.as_flattened_mut()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.push_by(|slot| slot.fill(bytes.map(u64::from_le_bytes)))
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

    /// Returns the number of records dropped so far.
    ///
    /// # Context
    /// Any.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns a reader of the records. Each record comes once: of several readers at a time, to any of them.
    ///
    /// # Context
    /// Task, on any processor.
    pub fn drain(&self) -> Drain<'_, N, W> {
        Drain { ring: self }
    }
}

impl<const N: usize, const W: usize> Default for TraceRing<N, W> {
    fn default() -> Self {
        Self::new()
    }
}

/// A record read from a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordBytes<const W: usize = SAMPLE_WORDS>([[u8; 8]; W]);

impl<const W: usize> RecordBytes<W> {
    /// Returns the record's bytes, in the format of a file.
    pub fn as_slice(&self) -> &[u8] {
        let bytes = self.0.as_flattened();
        let size = match bytes {
            [_, _, _, _, low, high, ..] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        };
        bytes.get(..size.into()).unwrap_or(bytes)
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// None for a record that a ring's methods stored.
    pub fn decode(&self) -> Result<Record<'_>, RecordError> {
        Record::decode(self.as_slice()).map(|(record, _)| record)
    }
}

impl<const W: usize> fmt::Debug for RecordBytes<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordBytes({:02x?})", self.as_slice())
    }
}

#[cfg(feature = "defmt")]
impl<const W: usize> defmt::Format for RecordBytes<W> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "RecordBytes({=[u8]:02x})", self.as_slice());
    }
}

/// Reads a ring's records, oldest first, until the ring is empty.
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
            // `Err`: another reader freed it, and a writer may have it already.
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
            // A reader that claimed the record before may have ended there; it had copied it.
            position.checked_sub(1).into_iter().for_each(|before| self.free(before));
            let slot = self.ring.slots.get((position % slots) as usize)?;
            let turn = 2 * (position / slots);
            let is_published = slot.turn.load(Ordering::Acquire) == turn + 1;
            let bytes = if is_published { slot.read() } else { RecordBytes([[0; 8]; W]) };
            // A slot is freed once the tail is moved on from it. So this one was not written since `position` was loaded,
            // if the tail is there still.
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

#[cfg(test)]
mod tests {
    use super::super::event::{Detail, Event};
    use super::*;
    use std::vec::Vec;

    const WIDTH: PointerWidth = PointerWidth::Bits64;

    fn sample(pc: u64) -> Sample {
        Sample { pc, thread: 7, detail: Detail::PmcInterrupt { source: 0x19, reserved: 0 } }
    }

    fn push(ring: &TraceRing<3>, pc: u64) -> bool {
        ring.push_sample(WIDTH, pc * 10, &sample(pc))
    }

    fn pcs(ring: &TraceRing<3>) -> Vec<u64> {
        let pc = |bytes: RecordBytes| match bytes.decode().unwrap() {
            Record { timestamp, event: Event::Sample(found), .. } => {
                assert_eq!((timestamp, found), (found.pc * 10, sample(found.pc)));
                found.pc
            }
            other => panic!("{other:?}"),
        };
        ring.drain().map(pc).collect()
    }

    #[test]
    fn records_come_out_in_order_and_what_finds_no_room_is_counted() {
        let ring = TraceRing::new();
        let mut next = 0;
        for round in 0..5 {
            let pushed: Vec<bool> = (0..4).map(|i| push(&ring, next + i)).collect();
            assert_eq!(pushed, [true, true, true, false]);
            assert_eq!(ring.dropped(), round + 1);
            assert_eq!(pcs(&ring), [next, next + 1, next + 2]);
            assert_eq!(pcs(&ring), []);
            next += 4;
        }
    }

    #[test]
    fn a_reader_that_is_forgotten_keeps_no_other_from_reading() {
        let ring: TraceRing<3> = TraceRing::new();
        assert!(push(&ring, 1) && push(&ring, 2));
        let forgotten = std::boxed::Box::leak(std::boxed::Box::new(ring.drain()));
        assert_eq!(forgotten.next().map(|bytes| bytes.decode().unwrap().timestamp), Some(10));
        assert_eq!(pcs(&ring), [2]);
    }

    /// Its task was killed between the two.
    #[test]
    fn a_reader_that_ended_before_it_freed_its_slot_takes_no_room_away() {
        let ring: TraceRing<3> = TraceRing::new();
        for round in 0..4 {
            assert!((0..3).all(|number| push(&ring, round + number)), "{round}");
            ring.tail.fetch_add(1, Ordering::Relaxed);
            assert_eq!(pcs(&ring), [round + 1, round + 2]);
        }
    }

    #[test]
    fn readers_at_a_time_get_each_record_once() {
        let ring: TraceRing<3> = TraceRing::new();
        for round in 0..5 {
            assert!((0..3).all(|number| push(&ring, round + number)));
            let (mut one, mut other) = (ring.drain(), ring.drain());
            let read = [one.next(), other.next(), other.next(), one.next(), other.next()];
            let pcs = read.map(|bytes| bytes.map(|bytes| bytes.decode().unwrap().timestamp / 10));
            assert_eq!(pcs, [Some(round), Some(round + 1), Some(round + 2), None, None]);
        }
    }

    #[test]
    fn a_record_in_the_making_holds_the_reader_back_and_loses_nothing() {
        let ring = TraceRing::new();
        // An interrupt claimed position 0 and was interrupted before it published.
        ring.head.store(1, Ordering::Relaxed);
        assert!(push(&ring, 1));
        assert_eq!(pcs(&ring), []);
        ring.slots[0].fill(sample(0).words(WIDTH, 0));
        ring.slots[0].turn.store(1, Ordering::Release);
        assert_eq!(pcs(&ring), [0, 1]);
    }
}
