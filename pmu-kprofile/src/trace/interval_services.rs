//! The interval services: `NtQueryIntervalProfile`, `NtSetIntervalProfile`, and the records of intervals.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pmu_core::EventSource;
use pmu_core::interval::Interval;
use pmu_core::profile::{KProfileSource, NotASource, NtStatus};
use pmu_core::windows::Rules;

use crate::object::service::Caller;
use crate::trace::callbacks::CacheErrata;
use crate::trace::event::records::{IntervalHook, SourceInterval};

/// The services that query and set the intervals of profile sources: `NtQueryIntervalProfile` and
/// `NtSetIntervalProfile`.
///
/// The kernel's [`EventSource`] stores the intervals. Each source has one interval for the whole machine. This
/// type stores whether changes of intervals are traced, and the interval of `ProfileAlignmentFixup`. The interval of
/// `ProfileAlignmentFixup` has no effect.
///
/// ```
/// use pmu_core::profile::{DefaultInterface, KProfileSource, NtStatus};
/// use pmu_kprofile::trace::{IntervalServices, Record, TraceRing};
/// use pmu_kprofile::service::UserCaller;
/// use pmu_kprofile::{PointerWidth, Rules};
///
/// static SERVICES: IntervalServices = IntervalServices::new(Rules::LATEST);
/// static RING: TraceRing<64> = TraceRing::new(); // of this processor
/// # fn now() -> u64 { 0 }
///
/// /// `NtSetIntervalProfile`, of a caller whom the kernel has looked up.
/// fn nt_set_interval_profile(
///     interface: &DefaultInterface, // or the machine's
///     interval: u32,
///     source: u32,
///     caller: &UserCaller,
/// ) -> NtStatus {
///     let record = |event| _ = RING.push(&Record::new(PointerWidth::Bits64, now(), event));
///     let source = KProfileSource::try_from(source);
///     match SERVICES.set(interface, interval, source, caller, record) {
///         Ok(_in_force) => NtStatus::SUCCESS, // … each session takes it up: `Session::apply_interval` …
///         Err(status) => status,
///     }
/// }
/// # let interface = DefaultInterface::new();
/// # let mut caller = UserCaller {
/// #     probes: Ok(()), is_restricted: false, process: Ok(()), has_profile_privilege: true, kernel_space: 1 << 47,
/// # };
/// # assert_eq!(nt_set_interval_profile(&interface, 20_000, 0, &caller), NtStatus::SUCCESS);
/// # assert_eq!(SERVICES.query(&interface, KProfileSource::try_from(0), &caller), Ok(20_000));
/// # caller.has_profile_privilege = false;
/// # assert_eq!(nt_set_interval_profile(&interface, 1, 0, &caller), NtStatus::PRIVILEGE_NOT_HELD);
/// ```
#[derive(Debug)]
pub struct IntervalServices {
    rules: Rules,
    errata: Option<&'static CacheErrata>,
    alignment_fixup: AtomicU32,
    traced: AtomicBool,
    /// Sources below 256 whose interval was set while tracing was on, one bit each.
    set_while_traced: [AtomicU64; 4],
}

impl IntervalServices {
    /// Creates the interval services of a Windows version. Changes of intervals are not traced yet.
    pub const fn new(rules: Rules) -> Self {
        Self {
            rules,
            errata: None,
            alignment_fixup: AtomicU32::new(0),
            traced: AtomicBool::new(false),
            set_while_traced: [const { AtomicU64::new(0) }; 4],
        }
    }

    /// Makes the services limit the interval of `ProfileTime` to the longest interval that `errata` permits.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::profile::{DefaultInterface, KProfileSource};
    /// use pmu_core::interval::{IntervalLimits, IntervalUnit};
    /// use pmu_kprofile::trace::{CacheErrata, IntervalServices};
    /// use pmu_kprofile::Rules;
    /// use pmu_kprofile::service::KernelCaller;
    ///
    /// static ERRATA: CacheErrata = CacheErrata::new();
    /// static SERVICES: IntervalServices = IntervalServices::new(Rules::LATEST).with_errata(&ERRATA);
    ///
    /// // The workaround needs an interrupt every millisecond, and a caller asks for one every five.
    /// ERRATA.require(IntervalLimits::of(IntervalUnit::HundredNanoseconds).clamp(10_000));
    /// let interface = DefaultInterface::new(); // or the machine's
    /// let set = SERVICES.set(&interface, 50_000, Ok(KProfileSource::TIME), &KernelCaller, |_| ());
    /// assert_eq!(set.map(|interval| interval.map(|interval| interval.get())), Ok(Some(10_000)));
    /// ```
    pub const fn with_errata(mut self, errata: &'static CacheErrata) -> Self {
        self.errata = Some(errata);
        self
    }

    /// Returns the interval of a source, in the unit of the source, for the service `NtQueryIntervalProfile`.
    ///
    /// The result is 0 for a source that is not supported. For `ProfileAlignmentFixup`, the result is the interval that
    /// was set last, or 0 if no interval was set. After the call, the kernel writes the result to the caller's memory.
    /// If this write faults, the service still succeeds, as in Windows.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The [probe](crate::service::UserCaller::probes) of the caller's memory failed. The error is the status of the
    /// probe.
    pub fn query(
        &self,
        interface: &impl EventSource,
        source: Result<KProfileSource, NotASource>,
        caller: &impl Caller,
    ) -> Result<u32, NtStatus> {
        caller.user().map_or(Ok(()), |user| user.probes)?;
        Ok(match self.source(source) {
            None => 0,
            Some(KProfileSource::ALIGNMENT_FIXUP) => self.alignment_fixup.load(Ordering::Relaxed),
            Some(source) => interface.query(source).interval,
        })
    }

    /// Sets the interval of a source, clamped to the source's limits, and returns the clamped interval. This is the
    /// service `NtSetIntervalProfile`.
    ///
    /// The result is `Ok(None)` if the source is not supported, or is `ProfileAlignmentFixup`. In both cases the
    /// service succeeds, but the hardware does not change. The interval of `ProfileAlignmentFixup` is only stored.
    ///
    /// While intervals are [traced](Self::begin_trace), the function passes the new interval to `record`, in a
    /// [`SourceInterval`] whose hook id is [`SET_INTERVAL_HOOK`](crate::trace::SET_INTERVAL_HOOK). `record` writes the
    /// `SourceInterval` to the trace. If the result is `Ok(None)`, the function does not call `record`. If the previous
    /// interval was set while tracing was off, the member `old` of the `SourceInterval` is 0.
    ///
    /// A running counter is loaded with the new interval at its next overflow. A running timer gets the new interval
    /// when the kernel calls [`Session::apply_interval`](pmu_core::profile::Session::apply_interval).
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// `STATUS_PRIVILEGE_NOT_HELD`: the caller is in user mode and lacks `SeSystemProfilePrivilege`, and the Windows
    /// version is 6.2 or later. Nothing is changed.
    pub fn set(
        &self,
        interface: &impl EventSource,
        units: u32,
        source: Result<KProfileSource, NotASource>,
        caller: &impl Caller,
        record: impl FnOnce(SourceInterval<'static>),
    ) -> Result<Option<Interval>, NtStatus> {
        let lacks_privilege = caller.user().is_some_and(|user| !user.has_profile_privilege);
        if lacks_privilege && self.rules.version.interval_takes_privilege() {
            return Err(NtStatus::PRIVILEGE_NOT_HELD);
        }
        let Some(source) = self.source(source) else { return Ok(None) };
        if source == KProfileSource::ALIGNMENT_FIXUP {
            self.alignment_fixup.store(units, Ordering::Relaxed);
            return Ok(None);
        }
        let units = match self.errata {
            Some(errata) if source == KProfileSource::TIME => errata.limit(units.into()),
            _ => units.into(),
        };
        let old = interface.query(source).interval;
        let Ok(interval) = interface.set_interval_clamped(source, units) else { return Ok(None) };
        let traced = self.traced.load(Ordering::Relaxed);
        let old = if self.set_while_traced(source, traced) { old } else { 0 };
        if traced {
            let (source, new) = (source.value(), interval.get());
            record(SourceInterval { hook: IntervalHook::Set, source, new, old, name: None });
        }
        Ok(Some(interval))
    }

    /// Begins to trace changes of intervals, and records the present interval of each of `sources`.
    ///
    /// Pass the sources whose samples the kernel is about to trace. A reader of the trace needs the recorded intervals
    /// to weigh the samples. For each supported source, the function calls `record` with a [`SourceInterval`] whose
    /// hook id is [`COLLECTION_START_HOOK`](crate::trace::COLLECTION_START_HOOK). The old and the new interval in this
    /// record are equal. Before Windows 6.0 the function does nothing.
    ///
    /// # Context
    /// Task. Call this function before `TraceControl::set_group_mask` turns the tracing of samples on.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::profile::{DefaultInterface, KProfileSource};
    /// use pmu_kprofile::trace::{IntervalServices, Record, TraceRing};
    /// use pmu_kprofile::{PointerWidth, Rules};
    ///
    /// static SERVICES: IntervalServices = IntervalServices::new(Rules::LATEST);
    /// static RING: TraceRing<64> = TraceRing::new(); // of this processor
    /// # fn now() -> u64 { 0 }
    ///
    /// /// A trace of time's samples begins and ends with the interval, so that a reader can weigh the samples.
    /// fn trace(interface: &DefaultInterface, samples: fn()) {
    ///     let record = |event| _ = RING.push(&Record::new(PointerWidth::Bits64, now(), event));
    ///     SERVICES.begin_trace(interface, [KProfileSource::TIME], record);
    ///     samples();
    ///     SERVICES.end_trace(interface, [KProfileSource::TIME], record);
    /// }
    /// trace(&DefaultInterface::new(), || ());
    /// assert_eq!(RING.drain().count(), 2);
    /// ```
    pub fn begin_trace(
        &self,
        interface: &impl EventSource,
        sources: impl IntoIterator<Item = KProfileSource>,
        record: impl FnMut(SourceInterval<'static>),
    ) {
        if self.rules.version.traces_intervals() {
            self.traced.store(true, Ordering::Relaxed);
            collect(IntervalHook::CollectionStart, interface, sources, record);
        }
    }

    /// Ends the tracing of intervals, and records the present interval of each of `sources`.
    ///
    /// For each supported source, the function calls `record` with a [`SourceInterval`] whose hook id is
    /// [`COLLECTION_END_HOOK`](crate::trace::COLLECTION_END_HOOK). If [`begin_trace`](Self::begin_trace) did not begin
    /// the tracing of intervals, the function does not call `record`.
    ///
    /// # Context
    /// Task. Call this function after the tracing of samples was turned off.
    pub fn end_trace(
        &self,
        interface: &impl EventSource,
        sources: impl IntoIterator<Item = KProfileSource>,
        record: impl FnMut(SourceInterval<'static>),
    ) {
        if self.traced.swap(false, Ordering::Relaxed) {
            collect(IntervalHook::CollectionEnd, interface, sources, record);
        }
    }

    /// Returns the source that a caller means: `ProfileTime` before version 3.51.
    fn source(&self, source: Result<KProfileSource, NotASource>) -> Option<KProfileSource> {
        if self.rules.version.has_source_and_affinity() {
            source.ok()
        } else {
            Some(KProfileSource::TIME)
        }
    }

    /// Notes whether a source's interval is set while tracing is on, and returns whether its previous interval was.
    fn set_while_traced(&self, source: KProfileSource, traced: bool) -> bool {
        let bit = 1 << (source.value() % 64);
        match self.set_while_traced.get(source.value() as usize / 64) {
            Some(word) if traced => word.fetch_or(bit, Ordering::Relaxed) & bit != 0,
            Some(word) => word.fetch_and(!bit, Ordering::Relaxed) & bit != 0,
            // Nothing is noted of sources with greater numbers, which were added.
            None => false,
        }
    }
}

/// Calls `record` with the interval of each source that is supported.
fn collect(
    hook: IntervalHook,
    interface: &impl EventSource,
    sources: impl IntoIterator<Item = KProfileSource>,
    mut record: impl FnMut(SourceInterval<'static>),
) {
    for source in sources {
        let found = interface.query(source);
        if found.is_supported() {
            let (source, new) = (source.value(), found.interval);
            record(SourceInterval { hook, source, new, old: new, name: None });
        }
    }
}
