//! A profile object: its conditions, its action, and where it runs.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::{fmt, ptr};

use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::profile::KProfileSource;
use pmu_core::windows::Rules;

use crate::affinity::{Affinity, MAX_GROUPS, mask_of};
use crate::hardware::profile_hardware::ProfileHardware;
use crate::object::CreateError;
use crate::object::bucket::{Basic, Bucket, COUNTER_BYTES};
use crate::object::service::{CreateRequest, KernelCaller, RequestedAffinity, ValidRequest};

/// A kernel profile object: counts the interrupts of one source in buckets, or calls a function on each interrupt.
///
/// A basic object counts the interrupts at addresses in a range. A callback object calls a function of the embedder. A
/// new object is stopped. An object acts on interrupts only while the object is started on a
/// [`Profiles`](crate::Profiles).
pub struct ProfileObject<'b> {
    process: Option<ProcessId>,
    source: AtomicU32,
    action: Action<'b>,
    rules: Rules,
    /// A [`State`].
    state: AtomicU8,
    /// The processors on which the source runs for this object, also if it was started for another object: one mask per
    /// group. Only the holder of the lists' write guard writes it.
    running: [AtomicU64; MAX_GROUPS],
}

impl<'b> ProfileObject<'b> {
    /// Creates a callback object, which acts on each interrupt of its source on every processor.
    ///
    /// The object also acts on processors that become active after the object was started.
    ///
    /// # Errors
    /// [`NoCallbackObjects`](CreateError::NoCallbackObjects): the Windows version is before Windows 8.
    ///
    /// The function does not check whether the hardware supports the source. If the hardware does not support the
    /// source, starting the object fails.
    pub const fn callback(
        rules: Rules,
        source: KProfileSource,
        callback: &'b dyn ProfileCallback,
    ) -> Result<Self, CreateError> {
        if !rules.version.has_callback_objects() {
            return Err(CreateError::NoCallbackObjects);
        }
        Ok(Self::new_callback(rules, source, callback))
    }

    /// Creates a callback object in any version.
    pub(crate) const fn new_callback(
        rules: Rules,
        source: KProfileSource,
        callback: &'b dyn ProfileCallback,
    ) -> Self {
        Self::new(rules, None, source, Action::Callback(callback))
    }

    pub(super) const fn new(
        rules: Rules,
        process: Option<ProcessId>,
        source: KProfileSource,
        action: Action<'b>,
    ) -> Self {
        Self {
            process,
            source: AtomicU32::new(source.value()),
            action,
            rules,
            state: AtomicU8::new(State::Stopped as u8),
            running: [const { AtomicU64::new(0) }; MAX_GROUPS],
        }
    }

    /// Returns the process that the object profiles; `None` if the object profiles all execution.
    #[inline]
    pub fn process(&self) -> Option<ProcessId> {
        self.process
    }

    /// Returns the profile source.
    pub fn source(&self) -> KProfileSource {
        // The value came from a source, so it is a source.
        KProfileSource::new(self.source.load(Ordering::Relaxed)).unwrap_or(KProfileSource::TIME)
    }

    /// Changes the source of an object that is not started.
    #[cfg(feature = "critical-section")] // Tracing needs it.
    pub(crate) fn set_source(&self, source: KProfileSource) {
        self.source.store(source.value(), Ordering::Relaxed);
    }

    /// Returns the object's rules: the Windows version and the pointer width that the object follows.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns the range of addresses that a basic object profiles; `None` for a callback object.
    ///
    /// The end of the returned range is exclusive, even if the object's Windows version also counts interrupts at the
    /// end address.
    pub fn range(&self) -> Option<Range<u64>> {
        self.as_basic().map(|basic| basic.base..basic.limit)
    }

    /// Returns the counters of a basic object, one per bucket; empty for a callback object.
    ///
    /// If the buffer is larger than the range needs, the counters after the last bucket's counter are unused.
    /// Interrupts add to the counters while the object is started.
    ///
    /// # Examples
    /// ```
    /// use std::sync::atomic::Ordering;
    /// use pmu_kprofile::ProfileObject;
    ///
    /// /// Takes the counts of a round, and leaves zeros for the next one. No interrupt's count is lost.
    /// fn take_counts(object: &ProfileObject<'_>) -> Vec<u32> {
    ///     object.buckets().iter().map(|counter| counter.swap(0, Ordering::Relaxed)).collect()
    /// }
    /// ```
    pub fn buckets(&self) -> &'b [AtomicU32] {
        self.as_basic().map_or(&[], |basic| basic.buffer)
    }

    /// Returns the size of a basic object's buckets; `None` for a callback object.
    pub fn bucket(&self) -> Option<Bucket> {
        self.as_basic().map(|basic| basic.bucket)
    }

    /// Returns the address range and the count of each bucket whose count is not 0.
    ///
    /// If an interrupt adds to a count during the call, the returned count may not include that interrupt.
    ///
    /// # Context
    /// Any.
    ///
    /// # Examples
    /// ```
    /// # use pmu_kprofile::ProfileObject;
    /// fn hottest(object: &ProfileObject<'_>) -> Option<u64> {
    ///     object.hits().max_by_key(|(_, count)| *count).map(|(addresses, _)| addresses.start)
    /// }
    /// ```
    pub fn hits(&self) -> impl Iterator<Item = (Range<u64>, u32)> + '_ {
        let range = self.range().unwrap_or(0..0);
        let bytes = self.bucket().map_or(0, Bucket::bytes);
        (0..).zip(self.buckets()).filter_map(move |(number, counter)| {
            let start = range.start.checked_add(bytes.checked_mul(number)?)?;
            let end = start.checked_add(bytes).map_or(range.end, |end| end.min(range.end));
            let count = counter.load(Ordering::Relaxed);
            (count != 0).then_some((start..end.max(start), count))
        })
    }

    /// Returns whether the object is started on any [`Profiles`](crate::Profiles).
    ///
    /// # Context
    /// Any.
    pub fn is_started(&self) -> bool {
        self.is(State::Started)
    }

    pub(crate) fn is(&self, state: State) -> bool {
        // Pairs with the release in `end`: for whoever finds the object stopped, all uses of it are over.
        self.state.load(Ordering::Acquire) == state as u8
    }

    /// Marks a stopped object as started; `false` if it was not stopped.
    pub(crate) fn begin(&self) -> bool {
        let (stopped, started) = (State::Stopped as u8, State::Started as u8);
        self.state.compare_exchange(stopped, started, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the state of a started object to stopping or stopped.
    pub(crate) fn end(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Returns whether this object keeps its profile source running on `processor`.
    ///
    /// The result becomes `true` when the source is started on the processor, and `false` when the source is stopped
    /// there. The result also becomes `false` when this crate learns that the processor went down or lost its state. If
    /// starting or stopping the object failed on one processor, the object may still keep the source running on other
    /// processors. To find these processors, call this function for each processor.
    ///
    /// # Context
    /// Any.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::frame::ProcessorNumber;
    /// use pmu_kprofile::{ProfileHardware, ProfileObject};
    ///
    /// /// Returns the active processors on which an object's source could not be started.
    /// fn lacking(object: &ProfileObject<'_>, hardware: &impl ProfileHardware) -> Vec<ProcessorNumber> {
    ///     let active = hardware.active_processors();
    ///     active.iter().filter(|processor| !object.runs_on(*processor)).collect()
    /// }
    /// ```
    pub fn runs_on(&self, processor: ProcessorNumber) -> bool {
        self.running(processor.group.into()) & mask_of(processor) != 0
    }

    /// Returns the processors of a group on which the source runs for this object.
    pub(crate) fn running(&self, group: usize) -> u64 {
        self.running.get(group).map_or(0, |mask| mask.load(Ordering::Relaxed))
    }

    /// Adds the processors of a group on which the source now runs, limited to those that the object wants.
    pub(crate) fn add_running(&self, group: usize, processors: u64) {
        self.set_running(group, self.running(group) | (processors & self.wanted(group)));
    }

    /// Removes all processors of a group but these, on which the source still runs.
    pub(crate) fn keep_running(&self, group: usize, processors: u64) {
        self.set_running(group, self.running(group) & processors);
    }

    fn set_running(&self, group: usize, processors: u64) {
        if let Some(mask) = self.running.get(group) {
            // A load and a store are enough: only the holder of the write lock changes the mask.
            mask.store(processors, Ordering::Relaxed);
        }
    }

    /// Returns the key of the interrupts that can concern the object.
    pub(crate) fn key(&self) -> Key {
        Key { source: self.source().value(), process: self.process.map_or(0, ProcessId::get) }
    }

    /// Returns the processors of a group on which the source is to run for this object while they are active.
    pub(crate) fn wanted(&self, group: usize) -> u64 {
        self.as_basic().map_or(u64::MAX, |basic| basic.affinity.mask(group))
    }

    /// Calls the callback of a callback object; does nothing for a basic object.
    #[inline]
    pub(crate) fn call_back<F: InterruptFrame>(&self, frame: &F, source: KProfileSource) {
        if let Action::Callback(callback) = &self.action {
            callback.profile_interrupt(frame, source);
        }
    }

    /// Returns the object's action on an interrupt.
    pub(crate) fn action(&self) -> &Action<'b> {
        &self.action
    }

    /// Returns the counting part of a basic object; `None` for a callback object.
    pub(crate) fn as_basic(&self) -> Option<&Basic<'b>> {
        match &self.action {
            Action::Basic(basic) => Some(basic),
            Action::Callback(_) => None,
        }
    }

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
        // A larger buffer counts as the largest number of whole counters that the service's 32 bits can express.
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

impl fmt::Debug for ProfileObject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut object = f.debug_struct("ProfileObject");
        object.field("process", &self.process).field("source", &self.source());
        match &self.action {
            Action::Basic(basic) => object
                .field("base", &format_args!("{:#X}", basic.base))
                .field("limit", &format_args!("{:#X}", basic.limit))
                .field("bucket", &basic.bucket.bytes())
                .field("counters", &basic.buffer.len()),
            Action::Callback(_) => object.field("callback", &()),
        };
        object.field("started", &self.is_started()).finish()
    }
}

#[allow(clippy::large_enum_variant)] // There is nowhere else to put it.
pub(crate) enum Action<'b> {
    Basic(Basic<'b>),
    Callback(&'b dyn ProfileCallback),
}

/// The state of an object, as [`is_started`](crate::ProfileObject::is_started) and the registry see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// On no lists, and read by no interrupt.
    Stopped,
    /// On lists.
    Started,
    /// Taken off its list. Interrupts that began earlier may still be reading the object.
    Stopping,
}

/// The interrupts that concern an object, by their source and their process; 0 for all processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) source: u32,
    pub(crate) process: u64,
}

/// A pointer to a started object, or to a part of one. Only the registry dereferences it: under a guard, or with the
/// write lock held.
pub(crate) struct ObjectPtr<T>(*const T);

impl<T> Clone for ObjectPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ObjectPtr<T> {}

impl<T> PartialEq for ObjectPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl<T> ObjectPtr<T> {
    /// The null pointer, for slots without an object.
    pub(crate) const NULL: Self = Self(ptr::null());

    /// Creates a pointer to an object.
    pub(crate) const fn new(object: *const T) -> Self {
        Self(object)
    }

    /// Returns the raw pointer.
    #[inline]
    pub(crate) const fn as_ptr(self) -> *const T {
        self.0
    }
}

// SAFETY: (1) a pointer accesses nothing until the registry dereferences it; (2) the registry then lends a shared
// reference, and `T` is `Sync`.
unsafe impl<T: Sync> Send for ObjectPtr<T> {}
// SAFETY: (1) copying a pointer accesses nothing; (2) the registry lends a shared reference, and `T` is `Sync`.
unsafe impl<T: Sync> Sync for ObjectPtr<T> {}

/// The callback of a callback object: a function that is called on each interrupt of a profile source. A closure
/// implements the trait:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use pmu_core::frame::InterruptFrame;
/// use pmu_core::profile::KProfileSource;
/// use pmu_kprofile::{ProfileObject, Rules};
///
/// static IN_KERNEL: AtomicU64 = AtomicU64::new(0);
/// let count = |frame: &dyn InterruptFrame, _: KProfileSource| {
///     if frame.cs() & 3 == 0 {
///         IN_KERNEL.fetch_add(1, Ordering::Relaxed);
///     }
/// };
/// let object = ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &count)?;
/// # Ok::<(), pmu_kprofile::CreateError>(())
/// ```
///
/// The `frame` argument is the embedder's own interrupt frame, as a trait object. [`InterruptFrame::embedder`] gives
/// access to the embedder's own type, which may have further registers. [`InterruptFrame::call_chain`] visits the
/// return addresses.
///
/// # For implementers
/// - The callback runs in interrupt or NMI context: it must not take a lock, allocate or panic.
/// - The callback may run on several processors at a time. On one processor, a call of the callback may interrupt an
///   earlier call.
/// - The callback cannot start or stop profiles: the attempt returns
///   [`WrongContext`](crate::ProfileError::WrongContext).
pub trait ProfileCallback: Sync {
    /// Handles an interrupt of the object's source.
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource);

    /// Returns the address of the callback routine, so that a debugger can show the address.
    ///
    /// [`ProfileObject::to_kprofile`](crate::ProfileObject::to_kprofile) writes this address into the `KPROFILE`. The
    /// default implementation returns the address of [`profile_interrupt`](Self::profile_interrupt).
    ///
    /// ```
    /// # use pmu_core::frame::InterruptFrame;
    /// # use pmu_core::profile::KProfileSource;
    /// # use pmu_kprofile::compat::kprofile::Role;
    /// # use pmu_kprofile::{ProfileCallback, ProfileObject, Rules};
    /// /// Calls a routine of a driver's.
    /// struct Driver {
    ///     routine: fn(u64),
    /// }
    ///
    /// impl ProfileCallback for Driver {
    ///     fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
    ///         (self.routine)(frame.pc());
    ///     }
    ///     fn routine(&self) -> u64 {
    ///         self.routine as usize as u64
    ///     }
    /// }
    ///
    /// let driver = Driver { routine: |_| {} };
    /// let object = ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &driver)?;
    /// let Role::Callback { callback, .. } = object.to_kprofile().role else { unreachable!() };
    /// assert_eq!(callback, driver.routine as usize as u64);
    /// # Ok::<(), pmu_kprofile::CreateError>(())
    /// ```
    fn routine(&self) -> u64 {
        let routine: fn(&Self, &dyn InterruptFrame, KProfileSource) = Self::profile_interrupt;
        routine as usize as u64
    }
}

impl<C: Fn(&dyn InterruptFrame, KProfileSource) + Sync> ProfileCallback for C {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource) {
        self(frame, source);
    }
}

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
