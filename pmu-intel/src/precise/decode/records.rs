//! The records of a buffer, one after the other.

use core::sync::atomic::AtomicU64;

use crate::precise::decode::adaptive::AdaptiveHeader;
use crate::precise::decode::format::PreciseFormat;
use crate::precise::decode::fragment::FragmentHeader;
use crate::precise::decode::record::PreciseRecord;
use crate::precise::decode::words::Words;

/// Iterator over the precise records in a buffer, the oldest first.
///
/// The buffer's content is not trusted. If a record's fields contradict each other, or if this crate does not know one
/// of the record's groups, the iterator drops the record and [counts](Self::malformed) it. If the size in a record is
/// impossible, the iterator cannot find the next record, and drops the rest of the buffer. Whatever the buffer
/// contains, the iterator terminates, allocates nothing, and does not panic.
///
/// ```
/// use pmu_intel::precise::{PreciseFormat, PreciseRecords};
/// // An adaptive record of the basic group only: its size in bits 63:48, the address, counter 0, the time.
/// let words: [u64; 4] = [32 << 48, 0x40_1000, 1, 5_000];
/// let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
/// let mut records = PreciseRecords::from_bytes(PreciseFormat::Adaptive, &bytes);
/// let record = records.next().unwrap();
/// assert_eq!((record.address(), record.time()), (Some(0x40_1000), Some(5_000)));
/// assert!(records.next().is_none() && records.malformed() == 0);
/// ```
///
/// # Context
/// Any context, including interrupt and NMI.
#[derive(Clone, Debug)]
pub struct PreciseRecords<'a> {
    format: PreciseFormat,
    rest: Words<'a>,
    malformed: u32,
}

impl<'a> PreciseRecords<'a> {
    /// Returns the precise records in a copy of a buffer. `bytes` starts at the first byte of the buffer.
    pub const fn from_bytes(format: PreciseFormat, bytes: &'a [u8]) -> Self {
        Self::new(format, Words::Bytes(bytes))
    }

    /// Returns the precise records in a buffer to which a processor writes.
    ///
    /// ```
    /// use core::sync::atomic::AtomicU64;
    /// use pmu_intel::precise::{PreciseFormat, PreciseRecords};
    /// static BUFFER: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];
    /// // The processor wrote one record of format 3.
    /// let written = &BUFFER[..0xC8 / 8];
    /// assert_eq!(PreciseRecords::from_words(PreciseFormat::Skylake, written).count(), 1);
    /// ```
    pub const fn from_words(format: PreciseFormat, words: &'a [AtomicU64]) -> Self {
        Self::new(format, Words::Shared(words))
    }

    pub(crate) const fn new(format: PreciseFormat, rest: Words<'a>) -> Self {
        Self { format, rest, malformed: 0 }
    }

    /// Returns the number of precise records that this iterator has dropped so far. If the iterator had to drop the
    /// rest of the buffer, this rest counts as one record.
    pub const fn malformed(&self) -> u32 {
        self.malformed
    }

    /// Returns the number of bytes that are not read yet.
    pub(crate) fn remaining(&self) -> usize {
        8 * self.rest.len()
    }

    /// Takes `count` words off the rest.
    fn take(&mut self, count: usize) -> Option<Words<'a>> {
        let taken = self.rest.range(0, count)?;
        self.rest = self.rest.after(count);
        Some(taken)
    }

    /// Drops the rest.
    fn give_up(&mut self) -> Next<'a> {
        self.rest = Words::Bytes(&[]);
        Next::Malformed
    }

    fn advance(&mut self) -> Next<'a> {
        if self.rest.is_empty() {
            return Next::End;
        }
        match self.format {
            PreciseFormat::Adaptive => self.adaptive(),
            PreciseFormat::Architectural => self.architectural(),
            format => {
                let size = format.record_size().unwrap_or(0) / 8;
                match self.take(size) {
                    Some(words) => Next::Record(PreciseRecord::new(format, words)),
                    None => self.give_up(),
                }
            }
        }
    }

    fn adaptive(&mut self) -> Next<'a> {
        let header = self.rest.get(0).map(AdaptiveHeader::from_bits);
        let words = header.and_then(|header| self.take(header.words()?));
        let Some((header, words)) = header.zip(words) else { return self.give_up() };
        if header.is_consistent(words) {
            Next::Record(PreciseRecord::new(self.format, words))
        } else {
            Next::Malformed
        }
    }

    /// Takes all fragments of one record.
    fn architectural(&mut self) -> Next<'a> {
        let (mut count, mut is_consistent) = (0, true);
        loop {
            let fragment = self.rest.after(count);
            let Some(header) = fragment.get(0).map(FragmentHeader::from_bits) else {
                // The last fragment says that another one follows.
                return self.give_up();
            };
            if header.is_end() && count == 0 {
                self.rest = Words::Bytes(&[]);
                return Next::End;
            }
            if header.begins() && count != 0 {
                // Another record begins where the rest of this one was announced.
                is_consistent = false;
                break;
            }
            let words = header.words().and_then(|words| fragment.range(0, words));
            let Some(words) = words else { return self.give_up() };
            is_consistent &= header.is_consistent(words) && (header.begins() || count != 0);
            count += words.len();
            if !header.is_continued() || count == words.len() && !header.begins() {
                break;
            }
        }
        match self.take(count) {
            Some(words) if is_consistent => Next::Record(PreciseRecord::new(self.format, words)),
            _ => Next::Malformed,
        }
    }
}

/// Result of a step of the iterator.
enum Next<'a> {
    Record(PreciseRecord<'a>),
    Malformed,
    End,
}

impl<'a> Iterator for PreciseRecords<'a> {
    type Item = PreciseRecord<'a>;

    fn next(&mut self) -> Option<PreciseRecord<'a>> {
        loop {
            match self.advance() {
                Next::Record(record) => return Some(record),
                Next::Malformed => self.malformed = self.malformed.saturating_add(1),
                Next::End => return None,
            }
        }
    }
}
