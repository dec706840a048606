//! Sampled profiles that were collected and written in one record.

use pmu_core::windows::PointerWidth;

use crate::trace::bytes::{Reader, Writer};
use crate::trace::error::TraceError;
use crate::trace::event::sample::{Hook, Sample};

/// Hook id of a record with several sampled profiles: `PERFINFO_LOG_TYPE_SAMPLED_PROFILE_CACHE`.
pub const SAMPLED_PROFILE_CACHE_HOOK: u16 = 0x0F37;

/// `PERFINFO_SAMPLED_PROFILE_CACHE_MAX`: maximum number of sampled profiles in one [`SampleCache`].
pub const MAX_CACHED_SAMPLES: usize = 20;

/// One record of several sampled profiles. Windows collects the profiles before it writes the record.
///
/// # Examples
/// ```
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{Detail, Record, TraceError, Sample, SampleCache};
///
/// const WIDTH: PointerWidth = PointerWidth::Bits64;
/// let detail = Detail::SampledProfile { count: 1, flags: 0, rank: 0 };
/// let samples = [0x1000, 0x1010].map(|pc| Sample { pc, thread: 7, detail });
/// let mut buffer = [0; 32];
/// let cache = SampleCache::new(WIDTH, &samples, &mut buffer)?;
/// assert!(cache.samples().eq(samples));
/// let mut file = [0; 64];
/// assert_eq!(Record::new(WIDTH, 0, cache).encode(&mut file)?, 16 + 8 + 2 * 16);
/// # Ok::<(), TraceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SampleCache<'b> {
    width: PointerWidth,
    count: u32,
    /// Padding that aligns the samples to pointers; Windows leaves it uninitialized.
    padding: u32,
    samples: &'b [u8],
}

impl<'b> SampleCache<'b> {
    /// Encodes several sampled profiles in `buffer`, for one record.
    ///
    /// The buffer needs 16 bytes per sample, or 12 if pointers are 32 bits wide. Each sample must be a [sampled
    /// profile](Hook::SampledProfile).
    ///
    /// # Errors
    /// - [`NoRoom`](TraceError::NoRoom): the buffer is too small.
    /// - [`Hook`](TraceError::Hook): a sample is not a sampled profile.
    /// - [`TooMany`](TraceError::TooMany): there are more than [`MAX_CACHED_SAMPLES`] samples.
    pub fn new(
        width: PointerWidth,
        samples: &[Sample],
        buffer: &'b mut [u8],
    ) -> Result<Self, TraceError> {
        if samples.len() > MAX_CACHED_SAMPLES {
            return Err(TraceError::TooMany(samples.len()));
        }
        let of_sampled = |sample: &&Sample| sample.detail.hook() != Hook::SampledProfile;
        if let Some(other) = samples.iter().find(of_sampled) {
            return Err(TraceError::Hook(other.hook()));
        }
        let mut writer = Writer::new(&mut *buffer);
        samples.iter().for_each(|sample| sample.encode(width, &mut writer));
        let length = writer.length();
        let bytes = buffer.get(..length).ok_or(TraceError::NoRoom { needed: length })?;
        Ok(Self { width, count: samples.len() as u32, padding: 0, samples: bytes })
    }

    /// Returns the sampled profiles, in the order in which they were collected.
    pub fn samples(&self) -> impl Iterator<Item = Sample> + use<'b> {
        let (width, mut reader) = (self.width, Reader::new(self.samples));
        let hook = Hook::SampledProfile.id();
        core::iter::from_fn(move || Sample::decode(hook, width, &mut reader).ok())
    }

    pub(super) fn hook(&self) -> u16 {
        SAMPLED_PROFILE_CACHE_HOOK
    }

    pub(super) fn encode(&self, width: PointerWidth, to: &mut Writer<'_>) {
        to.put(&self.count.to_le_bytes());
        if width == PointerWidth::Bits64 {
            to.put(&self.padding.to_le_bytes());
        }
        if width == self.width {
            to.put(self.samples);
        } else {
            self.samples().for_each(|sample| sample.encode(width, to));
        }
    }

    pub(super) fn decode(
        _: u16,
        width: PointerWidth,
        from: &mut Reader<'b>,
    ) -> Result<Self, TraceError> {
        let count = from.u32()?;
        let padding = if width == PointerWidth::Bits64 { from.u32()? } else { 0 };
        let size = (count as usize).checked_mul(Sample::size(width));
        let samples = from.bytes(size.ok_or(TraceError::TooShort)?)?;
        Ok(Self { width, count, padding, samples })
    }
}
