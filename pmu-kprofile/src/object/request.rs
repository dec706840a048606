//! The creation of a basic object for the kernel itself.

use core::sync::atomic::AtomicU32;

use pmu_core::frame::ProcessId;
use pmu_core::profile::KProfileSource;
use pmu_core::windows::Rules;

use crate::affinity::Affinity;
use crate::hardware::profile_hardware::ProfileHardware;
use crate::object::action::Action;
use crate::object::basic::Basic;
use crate::object::bucket::COUNTER_BYTES;
use crate::object::caller::KernelCaller;
use crate::object::error::CreateError;
use crate::object::profile_object::ProfileObject;
use crate::object::service::{CreateRequest, RequestedAffinity, ValidRequest};

/// The parameters of a basic profile object: the arguments of `NtCreateProfileEx`.
///
/// ```
/// use core::sync::atomic::AtomicU32;
/// use pmu_core::profile::KProfileSource;
/// use pmu_kprofile::{BasicProfile, CreateError, ProfileHardware, ProfileObject, Rules};
///
/// static BUCKETS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
///
/// /// Where in 4 KiB from `base` on the time goes, on all processors that are there.
/// fn of_time(
///     base: u64,
///     hardware: &impl ProfileHardware,
/// ) -> Result<ProfileObject<'static>, CreateError> {
///     let request = BasicProfile {
///         process: None,
///         base,
///         size: 0x1000,
///         bucket_log2: 4, // 16 bytes of code per counter
///         buffer: &BUCKETS,
///         source: KProfileSource::TIME,
///         affinity: None,
///     };
///     ProfileObject::basic(Rules::LATEST, request, hardware)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BasicProfile<'b> {
    /// Process to profile; `None` to profile all execution.
    pub process: Option<ProcessId>,
    /// First address of the profiled range. In 32-bit Windows, a base below 64 KiB with a `bucket_log2` of 0 selects
    /// the segment mode. In segment mode, `base` is the CS value of the virtual-8086 code to profile, not an address.
    pub base: u64,
    /// Size of the profiled range in bytes.
    pub size: u64,
    /// Base-2 logarithm of a bucket's size in bytes: 2–31, or 0 in segment mode, where the kernel chooses the size.
    pub bucket_log2: u32,
    /// Buffer of the counters, one per bucket. An interrupt adds 1 to a counter, modulo 2³². This crate never clears
    /// the counters.
    pub buffer: &'b [AtomicU32],
    /// Profile source.
    pub source: KProfileSource,
    /// Profiled processors. `None` selects the processors that are active when the object is created, as in Windows.
    ///
    /// [`Affinity::ALL`], an extension to Windows, selects all processors, including processors that become active
    /// later. On a processor that becomes active later, the next call of
    /// [`try_update_processors`](crate::Profiles::try_update_processors) starts the profile.
    pub affinity: Option<Affinity>,
}

#[cfg(feature = "defmt")]
impl defmt::Format for BasicProfile<'_> {
    /// Formats the buffer as its number of counters, without their values.
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
    /// Creates a basic profile object. The function makes the same checks as Windows, in the same order.
    ///
    /// If the affinity is `None`, the object profiles the processors that are active during the call. Before Windows 7,
    /// the same applies to an affinity without an active processor. Every Windows version accepts [`Affinity::ALL`]:
    /// the object then also profiles processors that become active later.
    ///
    /// The object can only be started on a [`Profiles`](crate::Profiles) with the same rules: pass the result of
    /// [`Profiles::rules`](crate::Profiles::rules).
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`CreateError`]; [`CreateError::status`] returns the status with which Windows reports the error.
    pub fn basic(
        rules: Rules,
        request: BasicProfile<'b>,
        hardware: &impl ProfileHardware,
    ) -> Result<Self, CreateError> {
        let BasicProfile { process, base, size, bucket_log2, buffer, source, affinity } = request;
        let buffer_bytes = u32::try_from(buffer.len() as u64 * COUNTER_BYTES)
            .unwrap_or(u32::MAX - (COUNTER_BYTES as u32 - 1));
        let (source, affinity) = (Ok(source), RequestedAffinity::Processors(affinity.as_ref()));
        let asked =
            CreateRequest { process, base, size, bucket_log2, buffer_bytes, source, affinity };
        let ValidRequest { base, limit, bucket, segment, source, affinity } =
            asked.validate(rules, hardware, &KernelCaller)?;
        let basic = Basic { base, limit, bucket, buffer, segment, affinity };
        Ok(Self::new(rules, process, source, Action::Basic(basic)))
    }
}
