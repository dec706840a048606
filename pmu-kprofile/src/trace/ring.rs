//! The writing end of a ring of trace records: interrupts push, one ring per processor.
//!
//! A write to the ring may be interrupted by another write: for instance, a PMI that is an NMI interrupts the dispatch
//! of a timer interrupt. So a writer claims a slot by one atomic operation, fills it, and then publishes it by its
//! turn. The reader stops at the first slot that is claimed and not published yet.

use core::sync::atomic::Ordering;

use pmu_core::frame::InterruptFrame;
use pmu_core::windows::PointerWidth;

use crate::sync::{AtomicU64, array_of, const_fn};
use crate::trace::event::records::{STACK_WORDS, fill};
use crate::trace::event::sample::{SAMPLE_WORDS, Sample};
use crate::trace::record::{MAX_PMC_VALUES, Record, RecordBytes};

/// Maximum number of attempts at a claim. An attempt fails if another interrupt claims a slot between two steps of it.
/// Interrupts do not nest this deeply.
const TRIES: usize = 8;

/// Number of words of a context switch with all extended data: header, time stamp, index, values, and 24 bytes.
const SWITCH_WORDS: usize = 2 + 1 + MAX_PMC_VALUES + 3;

/// A ring with room for `N` call chains of one processor, for [`TraceRing::push_call_chain`].
pub type StackRing<const N: usize> = TraceRing<N, STACK_WORDS>;

/// A ring with room for `N` context switches of one processor. Each record can have a PEBS index, and up to
/// [`MAX_PMC_VALUES`] counter values.
pub type SwitchRing<const N: usize> = TraceRing<N, SWITCH_WORDS>;

/// A ring of the trace records of one processor: interrupts push records, and a task drains them.
///
/// The ring has room for `N` records of at most `W` words of 8 bytes each. The default `W` is the length of a profile
/// interrupt's record.
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
    pub(super) slots: [Slot<W>; N],
    /// Next position to claim; positions do not wrap at `N`.
    head: AtomicU64,
    /// Next position to read.
    pub(super) tail: AtomicU64,
    dropped: AtomicU64,
}

impl<const N: usize, const W: usize> TraceRing<N, W> {
    pub(super) const SLOTS: u64 = N as u64;

    const_fn! {
        /// Creates an empty ring of trace records.
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

    /// Pushes the record of a profile interrupt; returns `false` if the ring is full.
    ///
    /// If the ring is full, the record is lost and counted as [dropped](Self::dropped).
    ///
    /// # Context
    /// Any, including NMI, on the ring's processor. Wait-free.
    #[inline]
    pub fn push_sample(&self, width: PointerWidth, timestamp: u64, sample: &Sample) -> bool {
        self.push_by(|slot| slot.fill(sample.words(width, timestamp)))
    }

    /// Pushes the call chain of an interrupt; returns `false` if the ring is full.
    ///
    /// If a call chain is too long for a record, its outermost return addresses are cut off. If the ring is full, the
    /// call chain is lost and counted as [dropped](Self::dropped).
    ///
    /// # Context
    /// Any, including NMI, on the ring's processor. The function is wait-free if the frame's
    /// [`call_chain`](InterruptFrame::call_chain) is wait-free.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::frame::InterruptFrame;
    /// use pmu_kprofile::PointerWidth;
    /// use pmu_kprofile::trace::StackRing;
    ///
    /// static STACKS: StackRing<64> = StackRing::new(); // of this processor
    ///
    /// /// In the handler of an interrupt whose call chain is of interest.
    /// fn on_interrupt(frame: &dyn InterruptFrame) {
    ///     if !STACKS.push_call_chain(PointerWidth::Bits64, frame) {
    ///         // The task that drains the ring is too slow: `STACKS.dropped()` has one more.
    ///     }
    /// }
    /// ```
    pub fn push_call_chain(&self, width: PointerWidth, frame: &dyn InterruptFrame) -> bool {
        self.push_by(|slot| fill(&slot.words, width, frame))
    }

    /// Pushes any record; returns `false` if the ring is full, or if the record is longer than `W` words.
    ///
    /// A record that is not pushed is counted as [dropped](Self::dropped).
    ///
    /// # Context
    /// Any, including NMI, on the ring's processor. Wait-free. The call encodes the record in a buffer of `W` words on
    /// the stack.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::PointerWidth;
    /// use pmu_kprofile::trace::{ContextSwitch, Event, Record, TraceError, SwitchRing};
    ///
    /// static RING: SwitchRing<64> = SwitchRing::new(); // of this processor
    ///
    /// let switch = ContextSwitch { old_thread: 4, new_thread: 8, ..ContextSwitch::default() };
    /// assert!(RING.push(&Record::new(PointerWidth::Bits64, 1_000, switch)));
    /// let bytes = RING.drain().next().unwrap();
    /// assert_eq!(bytes.decode()?.event, Event::ContextSwitch(switch));
    /// # Ok::<(), TraceError>(())
    /// ```
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
            // Acquires the reader's release of the slot: its copy was made before this writer fills the slot.
            if slot.turn.load(Ordering::Acquire) != 2 * (position / Self::SLOTS) {
                if position == self.head.load(Ordering::Relaxed) {
                    break; // Full: the slot still holds what was not read.
                }
                continue;
            }
            // An unconditional addition could claim a slot that is not free, and a claim cannot be given back.
            // Relaxed, because the turn alone orders accesses to the slot's words.
            let claim = self.head.compare_exchange(
                position,
                position.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if claim.is_ok() {
                fill(slot);
                // Publishes the words, which the reader acquires by the turn.
                slot.turn.store(2 * (position / Self::SLOTS) + 1, Ordering::Release);
                return true;
            }
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Returns the number of records that were dropped so far. A record is dropped if the ring is full, or if the
    /// record is longer than `W` words.
    ///
    /// # Context
    /// Any.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

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

impl<const N: usize, const W: usize> Default for TraceRing<N, W> {
    fn default() -> Self {
        Self::new()
    }
}

/// A slot of a ring with `N` slots, which has the positions `p` of one `p % N`. Turn `2·(p / N)`: free for the writer
/// of `p`. Turn `2·(p / N) + 1`: published by the writer of `p`.
#[derive(Debug)]
pub(super) struct Slot<const W: usize> {
    pub(super) turn: AtomicU64,
    pub(super) words: [AtomicU64; W],
}

impl<const W: usize> Slot<W> {
    const_fn! {
        pub(super) const fn new() -> Self {
            Self { turn: AtomicU64::new(0), words: array_of!(AtomicU64::new(0)) }
        }
    }

    #[inline]
    pub(super) fn fill(&self, words: impl IntoIterator<Item = u64>) {
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> RecordBytes<W> {
        let mut bytes = [[0; 8]; W];
        for (bytes, word) in bytes.iter_mut().zip(&self.words) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        RecordBytes(bytes)
    }
}

// The reading end of a ring: a task drains its records.
//
// A reader copies a record and then claims it, so readers need no lock. A reader that loses the claim drops its copy.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::event::sample::Detail;
    use crate::trace::event::table::Event;
    use crate::trace::record::RecordBytes;
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
