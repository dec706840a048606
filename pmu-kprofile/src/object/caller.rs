//! The caller of a service: the kernel itself, or user mode.

use pmu_core::profile::NtStatus;

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
