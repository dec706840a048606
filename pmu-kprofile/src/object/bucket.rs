//! Bucket arithmetic: the mapping from an address to a counter of the buffer.
//!
//! A profile divides its range into buckets of 2ᴮ bytes, 2 ≤ B ≤ 31, with one 4-byte counter per bucket. Windows stores
//! B−2. The byte offset of a counter in the buffer is `((pc − base) >> (B − 2)) & !3`.

use core::sync::atomic::{AtomicU32, Ordering};

use pmu_core::frame::InterruptFrame;
use pmu_core::windows::Rules;

use crate::affinity::Affinity;
use crate::object::CreateError;

/// Size of a bucket's counter in bytes.
pub const COUNTER_BYTES: u64 = 4;

/// Size of the buckets into which a profile divides its range: a power of two, from 4 bytes to 2 GiB.
///
/// ```
/// use pmu_kprofile::bucket::Bucket;
/// let bucket = Bucket::from_log2(4)?;
/// assert_eq!((bucket.bytes(), bucket.count(0x1000), bucket.counter(0x25)), (16, 256, 2));
/// # Ok::<(), pmu_kprofile::CreateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Bucket {
    log2: u8,
}

impl Bucket {
    /// The smallest bucket, 4 bytes.
    pub const SMALLEST: Self = Self { log2: 2 };

    /// The largest bucket, 2 GiB.
    pub const LARGEST: Self = Self { log2: 31 };

    /// Creates a bucket size of 2 to the power of `log2` bytes.
    ///
    /// # Errors
    /// [`BucketSize`](CreateError::BucketSize): `log2` is not within 2–31.
    pub const fn from_log2(log2: u32) -> Result<Self, CreateError> {
        if log2 < 2 || log2 > 31 {
            Err(CreateError::BucketSize { log2 })
        } else {
            Ok(Self { log2: log2 as u8 })
        }
    }

    /// Returns the base-2 logarithm of this bucket size in bytes.
    pub const fn log2(self) -> u32 {
        self.log2 as u32
    }

    /// Returns the value of `KPROFILE.BucketShift`: [`log2`](Self::log2) minus 2.
    pub const fn shift(self) -> u32 {
        self.log2() - 2
    }

    /// Returns this bucket size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.log2()
    }

    /// Returns the byte offset of an address's counter in a profile's buffer. `distance` is the address minus the base
    /// of the range.
    #[inline]
    pub const fn offset(self, distance: u64) -> u64 {
        (distance >> self.shift()) & !3
    }

    /// Returns the index of an address's counter in a profile's buffer. `distance` is the address minus the base of the
    /// range.
    #[inline]
    pub const fn counter(self, distance: u64) -> u64 {
        distance >> self.log2
    }

    /// Returns the number of buckets in a range of `size` bytes, including a partial last bucket.
    pub const fn count(self, size: u64) -> u64 {
        size.div_ceil(self.bytes())
    }

    /// Returns whether a buffer of `buffer_bytes` bytes is large enough for a range of `size` bytes. The buffer holds
    /// one 32-bit count for each bucket of the range. The function makes the same check as the Windows version in
    /// `rules`.
    ///
    /// Before version 1703, Windows compared two sizes in bytes: the size of all counts, and the size of the buffer.
    /// This comparison can accept a buffer that is too small, if the last bucket is partial or the buffer's size is not
    /// a multiple of 4.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::bucket::{Bucket, COUNTER_BYTES};
    /// use pmu_kprofile::{CreateError, Rules};
    ///
    /// // A buffer for each 64 bytes of a kernel's code, of which the last bucket is not whole.
    /// const TEXT: u64 = 0x12_3456;
    /// let bucket = Bucket::from_log2(6)?;
    /// let bytes = (bucket.count(TEXT) * COUNTER_BYTES) as u32;
    /// assert!(bucket.fits(Rules::LATEST, TEXT, bytes));
    /// assert!(!bucket.fits(Rules::LATEST, TEXT, bytes - 4));
    /// # Ok::<(), CreateError>(())
    /// ```
    pub const fn fits(self, rules: Rules, size: u64, buffer_bytes: u32) -> bool {
        if rules.version.checks_buffer_strictly() {
            self.count(size) <= buffer_bytes as u64 / COUNTER_BYTES
        } else {
            // Windows before 1703: the last counter may be beyond the buffer. Its hits count as outside.
            size >> self.shift() <= buffer_bytes as u64
        }
    }

    /// Returns the smallest bucket size for which a buffer has enough counters. `size` is the size of the range in
    /// bytes, and `buffer_bytes` is the size of the buffer in bytes. The kernel of 32-bit Windows chooses this bucket
    /// size in [segment mode](crate::BasicProfile::base).
    ///
    /// If `rules` has a Windows version before 1703, the result is sometimes wrong: the formula of these versions
    /// rounds a quotient down. If the result is too small, the range has more buckets than the buffer has counters.
    /// [`fits`](Self::fits) may accept a bucket size that is too small. The result can also be `None` although a large
    /// enough bucket size exists.
    pub const fn for_buffer(rules: Rules, size: u64, buffer_bytes: u32) -> Option<Self> {
        let counters = buffer_bytes as u64 / COUNTER_BYTES;
        if counters == 0 {
            return None;
        }
        let log2 = if rules.version.checks_buffer_strictly() {
            // The smallest B with ceil(size / 2ᴮ) ≤ counters, which is ceil(size / counters) ≤ 2ᴮ.
            ceil_log2(size.div_ceil(counters))
        } else {
            match size / counters {
                // The logarithm of −1 or of 0; both are outside the limits of a bucket.
                0 => return None,
                1 => 2,
                quotient => (quotient - 1).ilog2() + 1,
            }
        };
        match Self::from_log2(if log2 < 2 { 2 } else { log2 }) {
            Ok(bucket) => Some(bucket),
            Err(_) => None,
        }
    }
}

const fn ceil_log2(n: u64) -> u32 {
    if n <= 1 { 0 } else { (n - 1).ilog2() + 1 }
}

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
                // Atomic, because all processors share the buffer. Nothing is published by it, so relaxed is enough.
                counter.fetch_add(1, Ordering::Relaxed);
                Outcome::Acted
            }
            None => Outcome::Outside,
        }
    }
}
