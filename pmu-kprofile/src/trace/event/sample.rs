//! The records of the two kinds of profile interrupts: sampled profiles and PMC interrupts.

use pmu_core::windows::PointerWidth;

use crate::trace::TraceError;
use crate::trace::record::{HEADER, Reader, Writer, header_word};

/// Hook id of a record of a sampled profile: `PERFINFO_LOG_TYPE_SAMPLED_PROFILE`.
pub const SAMPLED_PROFILE_HOOK: u16 = 0x0F2E;

/// Hook id of a record of a PMC interrupt: `PERFINFO_LOG_TYPE_PMC_INTERRUPT`.
pub const PMC_INTERRUPT_HOOK: u16 = 0x0F2F;

/// Hook id of a record of a profile that was sampled by an NMI: `PERFINFO_LOG_TYPE_SAMPLED_PROFILE_NMI`. The form of
/// this record's payload is not known.
pub const SAMPLED_PROFILE_NMI_HOOK: u16 = 0x0F47;

/// Bit of a sampled profile's flags that is set if a DPC was executing.
pub const EXECUTING_DPC: u8 = 0x01;

/// Bit of a sampled profile's flags that is set if an interrupt routine was executing.
pub const EXECUTING_ISR: u8 = 0x02;

/// Bits of a sampled profile's flags that hold the thread's priority.
pub const PRIORITY: u8 = 0xF8;

/// The kind of a recorded profile interrupt. Each kind has its own hook id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Hook {
    /// A sampled profile: [`SAMPLED_PROFILE_HOOK`].
    SampledProfile,
    /// A PMC interrupt: [`PMC_INTERRUPT_HOOK`].
    PmcInterrupt,
}

impl Hook {
    /// Returns the hook id of records of this kind.
    pub const fn id(self) -> u16 {
        match self {
            Self::SampledProfile => SAMPLED_PROFILE_HOOK,
            Self::PmcInterrupt => PMC_INTERRUPT_HOOK,
        }
    }
}

/// Content of a profile interrupt's record: the interrupted address, the thread, and the members that depend on the
/// kind of the interrupt.
///
/// As in Windows, the record of a profile interrupt has no PEBS index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Sample {
    /// Address to which the interrupt returns. In the record of a 32-bit kernel, the address has 32 bits.
    pub pc: u64,
    /// Id of the interrupted thread.
    pub thread: u32,
    /// Members of the record that depend on the kind of the interrupt: sampled profile or PMC interrupt.
    pub detail: Detail,
}

/// Members of a record that depend on the kind of the interrupt: sampled profile or PMC interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Detail {
    /// Members of a sampled profile.
    SampledProfile {
        /// Number of interrupts that the record stands for.
        count: u16,
        /// Flags of the sample: [`EXECUTING_DPC`], [`EXECUTING_ISR`], and the thread's priority in [`PRIORITY`].
        flags: u8,
        /// Rank. This crate does not interpret the member.
        rank: u8,
    },
    /// Members of a PMC interrupt.
    PmcInterrupt {
        /// Number of the profile source: see [`KProfileSource`](pmu_core::profile::KProfileSource).
        source: u16,
        /// Reserved member. This crate does not interpret the member.
        reserved: u16,
    },
}

impl Detail {
    /// Returns the kind of the profile interrupt, which determines the hook id.
    pub const fn hook(self) -> Hook {
        match self {
            Self::SampledProfile { .. } => Hook::SampledProfile,
            Self::PmcInterrupt { .. } => Hook::PmcInterrupt,
        }
    }

    const fn to_bits(self) -> u32 {
        match self {
            Self::SampledProfile { count, flags, rank } => {
                count as u32 | (flags as u32) << 16 | (rank as u32) << 24
            }
            Self::PmcInterrupt { source, reserved } => source as u32 | (reserved as u32) << 16,
        }
    }
}

/// Number of words in the record of a profile interrupt without extended data.
pub(in crate::trace) const SAMPLE_WORDS: usize = 4;

impl Sample {
    /// Returns a payload's size in bytes.
    pub(super) const fn size(width: PointerWidth) -> usize {
        width.bytes() + 8
    }

    pub(super) fn hook(&self) -> u16 {
        self.detail.hook().id()
    }

    /// Returns the whole record, without extended data. Shifts assemble the record in registers, because an interrupt
    /// pays for each step and has a small stack.
    #[inline]
    pub(in crate::trace) fn words(
        &self,
        width: PointerWidth,
        timestamp: u64,
    ) -> [u64; SAMPLE_WORDS] {
        let header = header_word(width, HEADER + Self::size(width), self.detail.hook().id());
        let payload = u64::from(self.thread) | u64::from(self.detail.to_bits()) << 32;
        match width {
            PointerWidth::Bits32 => {
                [header, timestamp, self.pc & 0xFFFF_FFFF | payload << 32, payload >> 32]
            }
            PointerWidth::Bits64 => [header, timestamp, self.pc, payload],
        }
    }

    pub(super) fn encode(&self, width: PointerWidth, to: &mut Writer<'_>) {
        to.address(width, self.pc);
        to.put(&self.thread.to_le_bytes());
        to.put(&self.detail.to_bits().to_le_bytes());
    }

    pub(super) fn decode(
        hook: u16,
        width: PointerWidth,
        from: &mut Reader<'_>,
    ) -> Result<Self, TraceError> {
        Ok(Self {
            pc: from.address(width)?,
            thread: from.u32()?,
            detail: match hook {
                PMC_INTERRUPT_HOOK => {
                    Detail::PmcInterrupt { source: from.u16()?, reserved: from.u16()? }
                }
                _ => Detail::SampledProfile {
                    count: from.u16()?,
                    flags: from.u8()?,
                    rank: from.u8()?,
                },
            },
        })
    }
}

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
