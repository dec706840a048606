//! A profile object: its conditions, its action, and where it runs.

use crate::object::basic::Basic;
use crate::object::callback::ProfileCallback;
use crate::object::error::CreateError;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::profile::KProfileSource;
use pmu_core::windows::Rules;

use crate::affinity::{MAX_GROUPS, mask_of};
use crate::object::action::Action;
use crate::object::bucket::Bucket;
use crate::object::key::Key;
use crate::object::state::State;

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
