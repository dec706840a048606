//! The buckets that profile objects count into, a buffer for each mapped part of a file: all
//! processes that map it share the buffer.

use core::sync::atomic::{AtomicU32, Ordering};
use std::path::PathBuf;

use pmu_core::frame::ProcessId;
use pmu_core::profile::KProfileSource;
use pmu_kprofile::bucket::Bucket;
use pmu_kprofile::{BasicProfile, CreateError, ProfileHardware, ProfileObject, Rules};

use super::maps::Mapping;

/// No buffer has more counters than this, and none more than half of what all before it left of as many again: a larger
/// mapping, and one of very many large ones, gets larger buckets.
const MAX_COUNTERS: u64 = 1 << 27;

/// The counters that each may have whatever the others have: huge mappings of one program leave those of the others
/// small buckets.
const MIN_COUNTERS: u64 = 1 << 18;

/// The samples in one part of a file.
#[derive(Debug)]
pub struct Histogram {
    /// The file, or a label such as `[vdso]`.
    pub path: PathBuf,
    /// The offset in the file at which the first bucket begins.
    pub file_offset: u64,
    /// The number of bytes that the buckets span.
    pub size: u64,
    /// The buckets' size.
    pub bucket: Bucket,
    counters: &'static [AtomicU32],
}

impl Histogram {
    /// The samples in what is mapped, in buckets as small as can be.
    pub fn fine(mapping: &Mapping) -> Self {
        Self::within(mapping, MAX_COUNTERS)
    }

    /// The samples in what is mapped, in buckets as small as so many counters allow.
    fn within(mapping: &Mapping, counters: u64) -> Self {
        let bucket = (Bucket::SMALLEST.log2()..=Bucket::LARGEST.log2())
            .filter_map(|log2| Bucket::from_log2(log2).ok())
            .find(|bucket| bucket.count(mapping.size) <= counters);
        Self::new(mapping, bucket.unwrap_or(Bucket::LARGEST))
    }

    /// The samples in what is mapped, in buckets as large as can be.
    pub fn coarse(mapping: &Mapping) -> Self {
        Self::new(mapping, Bucket::LARGEST)
    }

    fn new(mapping: &Mapping, bucket: Bucket) -> Self {
        let Mapping { path, file_offset, size, .. } = mapping.clone();
        let counters = Box::<[AtomicU32]>::new_zeroed_slice(bucket.count(size) as usize);
        // SAFETY: an AtomicU32 of zero bytes is one of value 0.
        let counters = unsafe { counters.assume_init() };
        // Profile objects are shared with an interrupt path, so they live forever, and this with them.
        Self { path, file_offset, size, bucket, counters: Box::leak(counters) }
    }

    /// The buckets that were hit: where in the file they begin, and how often.
    pub fn hits(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.file_offset;
        (0..).zip(self.counters).filter_map(move |(index, counter)| {
            let hits: u64 = counter.load(Ordering::Relaxed).into();
            let place = first.wrapping_add(index * self.bucket.bytes());
            (hits != 0).then_some((place, hits))
        })
    }

    /// A profile object that counts into the buckets where they are mapped at `base`.
    ///
    /// # Errors
    /// Any of an object's creation, such as a source that the hardware does not support.
    pub fn object(
        &self,
        process: Option<ProcessId>,
        base: u64,
        source: KProfileSource,
        hardware: &impl ProfileHardware,
    ) -> Result<&'static ProfileObject<'static>, CreateError> {
        let request = BasicProfile {
            process,
            base,
            size: self.size,
            bucket_log2: self.bucket.log2(),
            buffer: self.counters,
            source,
            affinity: None,
        };
        let object = ProfileObject::basic(Rules::LATEST, request, hardware)?;
        Ok(Box::leak(Box::new(object)))
    }
}

/// The fine histograms of a run, one for each part of a file.
#[derive(Debug, Default)]
pub struct Histograms {
    all: Vec<Histogram>,
    /// The counters of all.
    counters: u64,
}

impl Histograms {
    /// The histogram for what is mapped, an existing one if it is mapped elsewhere too.
    pub fn of(&mut self, mapping: &Mapping) -> &Histogram {
        let known = self.all.iter().position(|histogram| {
            histogram.path == mapping.path
                && histogram.file_offset == mapping.file_offset
                && histogram.size == mapping.size
        });
        let index = known.unwrap_or_else(|| {
            let left = (2 * MAX_COUNTERS).saturating_sub(self.counters);
            let histogram = Histogram::within(mapping, (left / 2).max(MIN_COUNTERS));
            self.counters += histogram.counters.len() as u64;
            self.all.push(histogram);
            self.all.len() - 1
        });
        &self.all[index]
    }

    /// All of them.
    pub fn into_vec(self) -> Vec<Histogram> {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(path: &str, start: u64, size: u64) -> Mapping {
        Mapping { start, size, file_offset: 0x1000, path: path.into() }
    }

    #[test]
    fn the_same_part_of_a_file_has_one_histogram_wherever_it_is_mapped() {
        let mut histograms = Histograms::default();
        let first = histograms.of(&mapping("a", 0x7000, 0x100)).counters.as_ptr();
        assert_eq!(histograms.of(&mapping("a", 0x9000, 0x100)).counters.as_ptr(), first);
        assert_ne!(histograms.of(&mapping("b", 0x9000, 0x100)).counters.as_ptr(), first);
        assert_ne!(histograms.of(&mapping("a", 0x9000, 0x200)).counters.as_ptr(), first);
        assert_eq!(histograms.into_vec().len(), 3);
    }

    #[test]
    fn a_huge_mapping_gets_larger_buckets_and_not_a_huge_buffer() {
        for size in [0x1000, MAX_COUNTERS * 4, MAX_COUNTERS * 4 + 1, 1 << 47] {
            let bucket = Histogram::fine(&mapping("a", 0, size)).bucket;
            assert!(bucket.count(size) <= MAX_COUNTERS, "{size:#x}");
            assert!(bucket.log2() == 2 || bucket.count(size) >= MAX_COUNTERS / 2, "{size:#x}");
        }
    }

    #[test]
    fn huge_mappings_together_get_no_more_than_a_gigabyte_of_counters() {
        let mut histograms = Histograms::default();
        for number in 1..=50 {
            let vast = histograms.of(&mapping("a", 0, (1 << 40) - number * 0x1000));
            assert!(vast.counters.len() as u64 <= MAX_COUNTERS);
            assert!(number > 1 || vast.counters.len() as u64 >= MAX_COUNTERS / 2);
        }
        assert_eq!(histograms.of(&mapping("b", 0, 0x10_0000)).bucket.log2(), 2);
        let bytes: usize = histograms.all.iter().map(|one| 4 * one.counters.len()).sum();
        assert!(bytes <= (1 << 30) + (64 << 20), "{bytes}");
        // Usual mappings have the smallest buckets all the same.
        let mut histograms = Histograms::default();
        for number in 1..=100 {
            let one = histograms.of(&mapping("a", 0, 0x10_0000 + number * 0x1000));
            assert_eq!(one.bucket.log2(), 2);
        }
    }
}
