//! Creation as a service: `NtCreateProfile` and `NtCreateProfileEx`, from the request's numbers to a validated request
//! or its status.

use pmu_core::{KProfileSource, NtStatus, PointerWidth, ProcessId, Rules};

use super::bucket::Bucket;
use super::error::CreateError;
use crate::{Affinity, ProfileHardware};

/// A request for a basic profile, as the call has it.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CreateRequest {
    /// The process that the handle is of; `None`: no handle was given.
    pub process: Option<ProcessId>,
    /// `ProfileBase`.
    pub base: u64,
    /// `ProfileSize`, in bytes.
    pub size: u64,
    /// `BucketSize`, the logarithm of bytes.
    pub bucket_log2: u32,
    /// `BufferSize`, in bytes.
    pub buffer_bytes: u32,
    /// `ProfileSource`.
    pub source: KProfileSource,
    /// The affinity; `None`: none was given. See [`BasicProfile::affinity`](crate::BasicProfile::affinity).
    pub affinity: Option<Affinity>,
}

/// A request that passed all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ValidRequest {
    /// The first profiled address; 0 in segment mode.
    pub base: u64,
    /// Base plus size.
    pub limit: u64,
    /// The bucket's size, chosen in segment mode.
    pub bucket: Bucket,
    /// The segment, in segment mode; else 0.
    pub segment: u16,
    /// The processors.
    pub affinity: Affinity,
}

/// Who asks.
pub trait Caller {
    /// Returns what the kernel found out about a caller in user mode; `None`: the kernel itself asks.
    fn user(&self) -> Option<&UserCaller>;
}

/// The kernel itself, which is trusted.
#[derive(Clone, Copy, Debug)]
pub struct KernelCaller;

impl Caller for KernelCaller {
    #[inline(always)]
    fn user(&self) -> Option<&UserCaller> {
        None
    }
}

/// What only the kernel knows of a caller in user mode.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UserCaller {
    /// The probes of the handle's place, the buffer and the affinity's array: `STATUS_ACCESS_VIOLATION` or
    /// `STATUS_DATATYPE_MISALIGNMENT` where one fails.
    pub probes: Result<(), NtStatus>,
    /// Whether the affinity was well-formed: known groups, nothing reserved.
    pub affinity_is_well_formed: bool,
    /// Whether the caller is restricted: of low integrity, or in a sandbox.
    pub is_restricted: bool,
    /// The look-up of the process's handle; `Ok` where none was given.
    pub process: Result<(), NtStatus>,
    /// Whether the caller has `SeSystemProfilePrivilege`.
    pub has_profile_privilege: bool,
    /// The first address of the kernel's space.
    pub kernel_space: u64,
}

impl Caller for UserCaller {
    fn user(&self) -> Option<&UserCaller> {
        Some(self)
    }
}

impl CreateRequest {
    /// Checks a request, in Windows' order.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`CreateError`]; each has the status that Windows answers.
    #[inline] // Of the kernel's own requests half the checks vanish.
    pub fn validate(
        &self,
        rules: Rules,
        hardware: &impl ProfileHardware,
        caller: &impl Caller,
    ) -> Result<ValidRequest, CreateError> {
        let (version, mut base, mut segment) = (rules.version, self.base, 0);
        if self.buffer_bytes == 0 && version.refuses_empty_buffer() {
            return Err(CreateError::EmptyBuffer);
        }
        let segment_mode =
            rules.width == PointerWidth::Bits32 && self.bucket_log2 == 0 && self.base < 0x1_0000;
        let bucket = if segment_mode {
            segment = self.base as u16;
            base = 0;
            Bucket::for_buffer(rules, self.size, self.buffer_bytes)
        } else {
            Bucket::from_log2(self.bucket_log2).ok()
        };
        let bucket = bucket.ok_or(CreateError::BucketSize { log2: self.bucket_log2 })?;
        if !bucket.fits(rules, self.size, self.buffer_bytes) {
            return Err(CreateError::BufferTooSmall {
                buckets: bucket.count(self.size),
                counters: u64::from(self.buffer_bytes) / super::bucket::COUNTER_BYTES,
            });
        }
        let limit = base
            .checked_add(self.size)
            .filter(|limit| base.max(*limit) <= rules.width.max_address())
            .ok_or(CreateError::RangeWraps)?;
        if version.checks_source() && !hardware.supports(self.source) {
            return Err(CreateError::UnsupportedSource(self.source));
        }
        if let Some(user) = caller.user() {
            user.probes.map_err(CreateError::Caller)?;
            if version.checks_affinity() && !user.affinity_is_well_formed {
                return Err(CreateError::Affinity);
            }
        }
        let affinity = self.affinity(rules, hardware)?;
        if let Some(user) = caller.user() {
            if version.restricts_callers() && user.is_restricted && limit > user.kernel_space {
                return Err(CreateError::Caller(NtStatus::ACCESS_DENIED));
            }
            user.process.map_err(CreateError::Caller)?;
        }
        if segment != 0 && self.process.is_none() {
            return Err(CreateError::SegmentWithoutProcess);
        }
        if let Some(user) = caller.user() {
            let everybodys = self.process.is_none() && base < user.kernel_space;
            if everybodys && !user.has_profile_privilege {
                return Err(CreateError::Caller(NtStatus::PRIVILEGE_NOT_HELD));
            }
        }
        Ok(ValidRequest { base, limit, bucket, segment, affinity })
    }

    /// The processors that the affinity means now.
    #[inline]
    fn affinity(
        &self,
        rules: Rules,
        hardware: &impl ProfileHardware,
    ) -> Result<Affinity, CreateError> {
        let (version, active) = (rules.version, hardware.active_processors());
        Ok(match self.affinity {
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
        })
    }
}
