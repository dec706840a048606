//! Creation as a service, `NtCreateProfile` and `NtCreateProfileEx`: turns the numbers of a request into a validated
//! request or a status. A [`Caller`] is the kernel itself or user mode.

use pmu_core::frame::ProcessId;
use pmu_core::profile::{KProfileSource, NotASource, NtStatus};
use pmu_core::windows::{PointerWidth, Rules};

use crate::affinity::Affinity;
use crate::hardware::profile_hardware::ProfileHardware;
use crate::object::CreateError;
use crate::object::bucket::Bucket;

/// A request for a basic profile, with the arguments of `NtCreateProfile` or `NtCreateProfileEx`.
///
/// ```
/// use pmu_core::profile::{KProfileSource, NtStatus};
/// use pmu_kprofile::service::{CreateRequest, GroupAffinity, RequestedAffinity, UserCaller};
/// use pmu_kprofile::{ProfileHardware, Rules};
///
/// /// `NtCreateProfileEx` of a kernel that is like a certain Windows, after it captured the arguments and looked
/// /// the caller up.
/// fn create(rules: Rules, hardware: &impl ProfileHardware, caller: &UserCaller) -> NtStatus {
///     let array = [GroupAffinity { mask: 0b11, group: 0, reserved: [0; 3] }];
///     let request = CreateRequest {
///         process: None,
///         base: 0x40_0000,
///         size: 0x1000,
///         bucket_log2: 4,
///         buffer_bytes: 0x400,
///         source: KProfileSource::try_from(19), // any number that the caller gave
///         affinity: RequestedAffinity::Groups(&array),
///     };
///     match request.validate(rules, hardware, caller) {
///         Ok(valid) => NtStatus::SUCCESS, // … makes the object and its handle of `valid`
///         Err(error) => error.status(),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CreateRequest<'a> {
    /// Process of the request's process handle; `None` if the request has no process handle.
    pub process: Option<ProcessId>,
    /// `ProfileBase`: the first address of the profiled range.
    pub base: u64,
    /// `ProfileSize`: the size of the profiled range in bytes.
    pub size: u64,
    /// `BucketSize`: the base-2 logarithm of the bucket's size in bytes.
    pub bucket_log2: u32,
    /// `BufferSize`: the size in bytes of the buffer for the counters.
    pub buffer_bytes: u32,
    /// `ProfileSource`: the source, or [`NotASource`] for the number `ProfileMaximum`. Before version 6.2, Windows
    /// accepts `ProfileMaximum`, although no interrupt has this source. This crate refuses `ProfileMaximum` in every
    /// version.
    pub source: Result<KProfileSource, NotASource>,
    /// Requested processors.
    pub affinity: RequestedAffinity<'a>,
}

/// The processors of a creation request: one variant for each form in which a caller can pass them.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RequestedAffinity<'a> {
    /// `NtCreateProfile`: a mask of processors of the caller's group.
    ///
    /// The mask has the width of the kernel's pointers. A mask with all bits set selects the active processors of the
    /// group. If a 32-bit caller of a 64-bit kernel passes 32 ones, the mask selects only the first 32 processors of
    /// the group.
    Mask {
        /// Argument `Affinity` of the service, zero-extended to 64 bits.
        mask: u64,
        /// Processor group in which the caller runs; 0 before Windows 6.1.
        group: u16,
    },
    /// `NtCreateProfileEx`: an array with a set of processors for each group. An empty array selects all active
    /// processors.
    Groups(&'a [GroupAffinity]),
    /// A request of the kernel itself: a set of processors, or `None` for the active processors. See
    /// [`BasicProfile::affinity`](crate::BasicProfile::affinity).
    Processors(Option<&'a Affinity>),
}

/// Windows' `GROUP_AFFINITY`: a set of processors of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupAffinity {
    /// Processors of the group, one bit per processor.
    pub mask: u64,
    /// Group number.
    pub group: u16,
    /// Reserved; zero.
    pub reserved: [u16; 3],
}

/// A creation request that passed all checks. The kernel creates the object with these values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ValidRequest {
    /// First profiled address; 0 in segment mode.
    pub base: u64,
    /// First address beyond the profiled range: base plus size.
    pub limit: u64,
    /// Size of the buckets. In segment mode, [`CreateRequest::validate`] chose the size.
    pub bucket: Bucket,
    /// CS value of the virtual-8086 code to profile, in segment mode; otherwise 0.
    pub segment: u16,
    /// Profile source; `ProfileTime` before Windows 3.51.
    pub source: KProfileSource,
    /// Profiled processors.
    pub affinity: Affinity,
}

impl CreateRequest<'_> {
    /// Validates a creation request. The function makes the same checks as Windows, in the same order.
    ///
    /// After success, the embedder's kernel creates the object, and a handle to the object with the access right
    /// [`PROFILE_CONTROL`](pmu_core::profile::classes::PROFILE_CONTROL). If this fails, the kernel chooses the status
    /// of the service.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`CreateError`]; [`CreateError::status`] returns the status with which Windows reports the error.
    #[inline] // Of the kernel's own requests half the checks vanish.
    pub fn validate(
        &self,
        rules: Rules,
        hardware: &impl ProfileHardware,
        caller: &impl Caller,
    ) -> Result<ValidRequest, CreateError> {
        let (version, mut base, mut segment) = (rules.version, self.base, 0);
        if matches!(self.affinity, RequestedAffinity::Groups(_)) && !version.has_groups() {
            return Err(CreateError::NotInVersion(rules));
        }
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
        let source = match self.source.map_err(|NotASource| CreateError::NotASource)? {
            _ if !version.has_source_and_affinity() => KProfileSource::TIME,
            source if version.checks_source() && !hardware.supports(source) => {
                return Err(CreateError::UnsupportedSource(source));
            }
            source => source,
        };
        if let Some(user) = caller.user() {
            user.probes.map_err(CreateError::Caller)?;
        }
        let affinity = self.affinity(rules, hardware)?;
        if let Some(user) = caller.user() {
            let reaches_kernel = limit > user.kernel_space || base >= user.kernel_space;
            if version.restricts_callers() && user.is_restricted && reaches_kernel {
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
        Ok(ValidRequest { base, limit, bucket, segment, source, affinity })
    }

    /// Returns the processors that the affinity means now.
    #[inline]
    fn affinity(
        &self,
        rules: Rules,
        hardware: &impl ProfileHardware,
    ) -> Result<Affinity, CreateError> {
        let (version, active) = (rules.version, hardware.active_processors());
        let affinity = match self.affinity {
            _ if !version.has_source_and_affinity() => return Ok(Affinity::ALL),
            // An extension: Windows' check for inactive processors would refuse this set.
            RequestedAffinity::Processors(Some(&Affinity::ALL)) => return Ok(Affinity::ALL),
            RequestedAffinity::Processors(None) | RequestedAffinity::Groups([]) => {
                return Ok(active);
            }
            RequestedAffinity::Processors(Some(affinity)) => *affinity,
            RequestedAffinity::Mask { mask, group } => {
                let all = version.has_groups() && mask == rules.width.max_address();
                let mask = if all { active.mask(group.into()) } else { mask };
                Affinity::of_group(group, mask)
            }
            RequestedAffinity::Groups(groups) => {
                let is_wrong = |entry: &GroupAffinity| {
                    let inactive = entry.mask & !active.mask(entry.group.into());
                    entry.mask == 0 || inactive != 0 || entry.reserved != [0; 3]
                };
                if groups.iter().any(is_wrong) {
                    return Err(CreateError::Affinity);
                }
                groups.iter().fold(Affinity::EMPTY, |set, entry| {
                    set.union(Affinity::of_group(entry.group, entry.mask))
                })
            }
        };
        if version.checks_affinity() {
            let wrong = affinity.is_empty() || !affinity.difference(active).is_empty();
            return if wrong { Err(CreateError::Affinity) } else { Ok(affinity) };
        }
        let idle = affinity.intersection(active).is_empty();
        let all = affinity.is_empty() || (idle && version.idle_affinity_means_all());
        Ok(if all { active } else { affinity })
    }
}

/// The caller of a Windows service such as `NtCreateProfile`: the kernel itself, or user mode.
///
/// ```
/// use pmu_kprofile::service::{Caller, UserCaller};
///
/// /// What this kernel knows of a thread that called.
/// struct Thread {
///     /// None for a thread of the kernel's own.
///     user: Option<UserCaller>,
/// }
///
/// impl Caller for Thread {
///     fn user(&self) -> Option<&UserCaller> {
///         self.user.as_ref()
///     }
/// }
/// # assert!(Thread { user: None }.user().is_none());
/// ```
pub trait Caller {
    /// Returns the facts about a caller in user mode; `None` if the caller is the kernel itself.
    fn user(&self) -> Option<&UserCaller>;
}

/// The kernel itself as the caller of a service. The service checks no privileges and probes no memory.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct KernelCaller;

impl Caller for KernelCaller {
    #[inline(always)]
    fn user(&self) -> Option<&UserCaller> {
        None
    }
}

/// Facts about a user-mode caller. Before the kernel calls a service function of this crate, the kernel probes the
/// caller's memory, looks up the caller's handle, and determines the caller's rights.
///
/// # Examples
/// ```
/// use pmu_core::profile::NtStatus;
/// use pmu_kprofile::service::UserCaller;
///
/// /// What this kernel knows of a thread in user mode.
/// struct Thread {
///     integrity: u32,
///     privileges: u64,
/// }
/// const MEDIUM: u32 = 0x2000;
/// const SE_SYSTEM_PROFILE: u64 = 1 << 11;
///
/// /// Returns the facts about a thread, after its memory was probed and its process's handle was looked up.
/// fn facts(thread: &Thread, probes: Result<(), NtStatus>, process: Result<(), NtStatus>) -> UserCaller {
///     UserCaller {
///         probes,
///         is_restricted: thread.integrity < MEDIUM,
///         process,
///         has_profile_privilege: thread.privileges & SE_SYSTEM_PROFILE != 0,
///         kernel_space: 0xFFFF_8000_0000_0000,
///     }
/// }
/// # assert!(facts(&Thread { integrity: 0x1000, privileges: 0 }, Ok(()), Ok(())).is_restricted);
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UserCaller {
    /// Result of probing the memory that the caller passed: the handle's address, the buffer, and the array of
    /// affinities. If a probe fails, the status is `STATUS_ACCESS_VIOLATION` or `STATUS_DATATYPE_MISALIGNMENT`.
    pub probes: Result<(), NtStatus>,
    /// `true` if the caller is restricted, because its process has low integrity or is in a sandbox.
    pub is_restricted: bool,
    /// Result of looking up the caller's process handle; `Ok(())` if the caller passed no process handle.
    pub process: Result<(), NtStatus>,
    /// `true` if the caller has the privilege `SeSystemProfilePrivilege`.
    pub has_profile_privilege: bool,
    /// Lowest address of the kernel's part of the address space.
    pub kernel_space: u64,
}

impl Caller for UserCaller {
    fn user(&self) -> Option<&UserCaller> {
        Some(self)
    }
}
