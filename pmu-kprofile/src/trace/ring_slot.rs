//! A slot of a ring: the words of one record, and whose turn it is.

use core::sync::atomic::Ordering;

use crate::sync::{AtomicU64, array_of, const_fn};
use crate::trace::record_bytes::RecordBytes;

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
