//! Creating a basic object: the request, and Windows' checks of it.

use core::sync::atomic::AtomicU32;

use pmu_core::{KProfileSource, PointerWidth, ProcessId, Rules};

use super::basic::Basic;
use super::bucket::{Bucket, COUNTER_BYTES};
use super::error::CreateError;
use super::{Action, ProfileObject};
use crate::{Affinity, ProfileHardware};

/// What a basic profile is to sample: the arguments of `NtCreateProfileEx`.
#[derive(Clone, Copy, Debug)]
pub struct BasicProfile<'b> {
    /// The process whose execution is profiled; `None`: whatever executes.
    pub process: Option<ProcessId>,
    /// The range's first address. In the segment mode of a 32-bit Windows, which a `bucket_log2` of 0
    /// and a base below 64 KiB select: the segment, for virtual-8086 execution.
    pub base: u64,
    /// The range's size in bytes.
    pub size: u64,
    /// The logarithm of a bucket's size in bytes, 2–31.
    pub bucket_log2: u32,
    /// A counter for each bucket. They are added to, modulo 2³², and never cleared.
    pub buffer: &'b [AtomicU32],
    /// What makes the interrupt recur.
    pub source: KProfileSource,
    /// The processors whose execution is profiled. `None`: those that are active when the object is
    /// created, as for Windows. [`Affinity::ALL`]: all, ever, which Windows does not have: also those that
    /// become active later, from [`update_processors`](crate::Profiles::update_processors) on.
    pub affinity: Option<Affinity>,
}

#[cfg(feature = "defmt")]
impl defmt::Format for BasicProfile<'_> {
    /// With the number of the counters in place of what they hold.
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(
            f,
            "BasicProfile {{ process: {}, base: {=u64:#x}, size: {=u64}, bucket_log2: {=u32}, \
             counters: {=usize}, source: {}, affinity: {} }}",
            self.process,
            self.base,
            self.size,
            self.bucket_log2,
            self.buffer.len(),
            self.source,
            self.affinity,
        );
    }
}

impl<'b> ProfileObject<'b> {
    /// Creates a basic profile object, with Windows' checks in Windows' order.
    ///
    /// The affinity is taken as of now: `None`, and before Windows 7 an affinity without active
    /// processors, become the processors that are active. [`Affinity::ALL`] is accepted under all rules, and
    /// stays what it is.
    ///
    /// The object is for lists of the same rules: take them from [`Profiles::rules`](crate::Profiles::rules).
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`CreateError`]; each has the status that Windows answers.
    pub fn basic(
        rules: Rules,
        request: BasicProfile<'b>,
        hardware: &impl ProfileHardware,
    ) -> Result<Self, CreateError> {
        let buffer_bytes = u32::try_from(request.buffer.len() as u64 * COUNTER_BYTES)
            .unwrap_or(u32::MAX - (COUNTER_BYTES as u32 - 1));
        let (version, mut base, mut segment) = (rules.version, request.base, 0);
        if buffer_bytes == 0 && version.refuses_empty_buffer() {
            return Err(CreateError::EmptyBuffer);
        }
        let segment_mode = rules.width == PointerWidth::Bits32
            && request.bucket_log2 == 0
            && request.base < 0x1_0000;
        let bucket = if segment_mode {
            segment = request.base as u16;
            base = 0;
            Bucket::for_buffer(rules, request.size, buffer_bytes)
        } else {
            Bucket::from_log2(request.bucket_log2).ok()
        };
        let bucket = bucket.ok_or(CreateError::BucketSize { log2: request.bucket_log2 })?;
        if !bucket.fits(rules, request.size, buffer_bytes) {
            return Err(CreateError::BufferTooSmall {
                buckets: bucket.count(request.size),
                counters: request.buffer.len() as u64,
            });
        }
        let limit = base
            .checked_add(request.size)
            .filter(|limit| base.max(*limit) <= rules.width.max_address())
            .ok_or(CreateError::RangeWraps)?;
        if version.checks_source() && !hardware.supports(request.source) {
            return Err(CreateError::UnsupportedSource(request.source));
        }
        let active = hardware.active_processors();
        let affinity = match request.affinity {
            _ if !version.has_source_and_affinity() => Affinity::ALL,
            Some(Affinity::ALL) => Affinity::ALL,
            Some(affinity) if version.checks_affinity() => {
                if affinity.is_empty() || !affinity.difference(active).is_empty() {
                    return Err(CreateError::Affinity);
                }
                affinity
            }
            Some(affinity) => {
                let idle = affinity.intersection(active).is_empty();
                let all = affinity.is_empty() || (idle && version.idle_affinity_means_all());
                if all { active } else { affinity }
            }
            None => active,
        };
        if segment != 0 && request.process.is_none() {
            return Err(CreateError::SegmentWithoutProcess);
        }
        let basic = Basic { base, limit, bucket, buffer: request.buffer, segment, affinity };
        Ok(Self::new(rules, request.process, request.source, Action::Basic(basic)))
    }
}
