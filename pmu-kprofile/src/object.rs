//! Profile objects: which interrupts to act on, and what to do.
//!
//! - `request`, `service`: what a basic object is created from; Windows' checks of it, for any caller
//! - `basic`, [`bucket`]: what a basic object counts, and the arithmetic of its buckets
//! - `callback`: what a callback object calls
//! - `listed`: how an index names a started object
//! - `error`: why an object was not created
//!
//! An object knows nothing of lists: the registry marks it as started and as stopped, and notes where its source
//! runs for it. This folder may use `affinity` and `hardware` (to ask, never to start), and nothing else of
//! the crate.

mod basic;
pub mod bucket;
mod callback;
mod error;
mod listed;
mod request;
mod service;

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use pmu_core::{InterruptFrame, KProfileSource, ProcessId, ProcessorNumber, Rules};

pub(crate) use basic::{Basic, Outcome};
use bucket::Bucket;
pub use callback::ProfileCallback;
pub use error::CreateError;
pub(crate) use listed::Listed;
pub use request::BasicProfile;
pub use service::{
    Caller, CreateRequest, GroupAffinity, KernelCaller, RequestedAffinity, UserCaller, ValidRequest,
};

use crate::MAX_GROUPS;
use crate::affinity::mask_of;

/// A kernel profile object: conditions, and an action for the interrupts that meet them.
///
/// It is created stopped, and acts while it is started on [lists](crate::Profiles).
pub struct ProfileObject<'b> {
    process: Option<ProcessId>,
    source: AtomicU32,
    action: Action<'b>,
    rules: Rules,
    /// A [`State`].
    state: AtomicU8,
    /// The processors on which the source was started for this object, or for another one that shares it:
    /// a mask for each group. Written by the holder of the lists' write guard alone.
    running: [AtomicU64; MAX_GROUPS],
}

#[allow(clippy::large_enum_variant)] // There is nowhere else to put it.
pub(crate) enum Action<'b> {
    Basic(Basic<'b>),
    Callback(&'b dyn ProfileCallback),
}

/// The life of an object, as [`is_started`](ProfileObject::is_started) and the registry see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// On no lists, and no interrupt reads it.
    Stopped,
    /// On lists.
    Started,
    /// Unlinked; interrupts that began before may be reading it.
    Stopping,
}

/// Which interrupts concern an object: those of one source, and of one process (0: of all).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) source: u32,
    pub(crate) process: u64,
}

impl<'b> ProfileObject<'b> {
    /// Creates a callback object. Its only condition is the source; it acts on all processors, ever.
    ///
    /// # Errors
    /// [`NoCallbackObjects`](CreateError::NoCallbackObjects) before Windows 8. A source that the
    /// hardware does not support shows when the object is started.
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

    /// Creates a callback object, whatever the version.
    pub(crate) const fn new_callback(
        rules: Rules,
        source: KProfileSource,
        callback: &'b dyn ProfileCallback,
    ) -> Self {
        Self::new(rules, None, source, Action::Callback(callback))
    }

    const fn new(
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

    /// Returns the process on whose list the object goes; `None`: the global list.
    #[inline]
    pub fn process(&self) -> Option<ProcessId> {
        self.process
    }

    /// Returns what makes the interrupt recur.
    pub fn source(&self) -> KProfileSource {
        // The value came from a source, so it is one.
        KProfileSource::new(self.source.load(Ordering::Relaxed)).unwrap_or(KProfileSource::TIME)
    }

    /// Changes the source of an object that is not started.
    #[cfg(feature = "critical-section")] // Tracing has it.
    pub(crate) fn set_source(&self, source: KProfileSource) {
        self.source.store(source.value(), Ordering::Relaxed);
    }

    /// Returns the Windows that the object is like.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns the profiled addresses of a basic object, the end exclusive, whatever the version counts;
    /// `None` for a callback object.
    pub fn range(&self) -> Option<Range<u64>> {
        self.as_basic().map(|basic| basic.base..basic.limit)
    }

    /// Returns the counters of a basic object, one for each bucket and what the buffer has beyond;
    /// none for a callback object. Interrupts add to them while the object is started.
    pub fn buckets(&self) -> &'b [AtomicU32] {
        self.as_basic().map_or(&[], |basic| basic.buffer)
    }

    /// Returns the size of a basic object's buckets.
    pub fn bucket(&self) -> Option<Bucket> {
        self.as_basic().map(|basic| basic.bucket)
    }

    /// Returns the buckets that were hit, by their addresses, and how often. Any context; a count that an
    /// interrupt adds meanwhile may be missing.
    ///
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

    /// Returns whether the object is started, on whichever lists. Any context.
    pub fn is_started(&self) -> bool {
        self.is(State::Started)
    }

    pub(crate) fn is(&self, state: State) -> bool {
        self.state.load(Ordering::Acquire) == state as u8
    }

    /// Marks a stopped object as started. `false`: it was not stopped.
    pub(crate) fn begin(&self) -> bool {
        let (stopped, started) = (State::Stopped as u8, State::Started as u8);
        self.state.compare_exchange(stopped, started, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Marks a started object as on its way out, or out.
    pub(crate) fn end(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Returns whether the source runs for this object on a processor, as far as the lists know: it was started
    /// there, and neither stopped nor lost since. Any context.
    ///
    /// Tells, of an operation that failed somewhere, what it achieved elsewhere.
    pub fn runs_on(&self, processor: ProcessorNumber) -> bool {
        self.running(processor.group.into()) & mask_of(processor) != 0
    }

    /// The processors of a group on which the source runs for this object.
    pub(crate) fn running(&self, group: usize) -> u64 {
        self.running.get(group).map_or(0, |mask| mask.load(Ordering::Relaxed))
    }

    /// The source runs on these processors of a group: those that the object wants are its.
    pub(crate) fn add_running(&self, group: usize, processors: u64) {
        self.set_running(group, self.running(group) | (processors & self.wanted(group)));
    }

    /// The source runs on no other processors of a group than these.
    pub(crate) fn keep_running(&self, group: usize, processors: u64) {
        self.set_running(group, self.running(group) & processors);
    }

    fn set_running(&self, group: usize, processors: u64) {
        if let Some(mask) = self.running.get(group) {
            mask.store(processors, Ordering::Relaxed);
        }
    }

    /// Which interrupts can concern the object.
    pub(crate) fn key(&self) -> Key {
        Key { source: self.source().value(), process: self.process.map_or(0, ProcessId::get) }
    }

    /// The processors of a group on which the source is to run for this object while they are active.
    pub(crate) fn wanted(&self, group: usize) -> u64 {
        self.as_basic().map_or(u64::MAX, |basic| basic.affinity.mask(group))
    }

    /// Calls a callback object back.
    #[inline]
    pub(crate) fn call_back<F: InterruptFrame>(&self, frame: &F, source: KProfileSource) {
        if let Action::Callback(callback) = &self.action {
            callback.profile_interrupt(frame, source);
        }
    }

    /// What the object does with an interrupt.
    pub(crate) fn action(&self) -> &Action<'b> {
        &self.action
    }

    /// What a basic object counts.
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
