//! Profile objects: which interrupts to act on, and what to do.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pmu_core::{InterruptFrame, KProfileSource, ProcessId, ProcessorNumber};

use crate::affinity::mask_of;
use crate::bucket::{Bucket, COUNTER_BYTES};
use crate::index::Key;
use crate::layout::{KProfile, Layout, ListEntry, ObjectType, Role};
use crate::{Affinity, CreateError, MAX_GROUPS, PointerWidth, ProfileHardware, Rules};

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

/// Acts on a profile interrupt in a way of its own.
///
/// # For implementers
/// - Called in interrupt or NMI context, possibly on several processors at a time, and while a call
///   on the same processor is under way: no lock, no allocation, no panic.
/// - Starting and stopping profiles from here is refused
///   ([`WrongContext`](crate::ProfileError::WrongContext)).
pub trait ProfileCallback: Sync {
    /// An interrupt of the object's source came.
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource);
}

/// A kernel profile object: conditions, and an action for the interrupts that meet them.
///
/// It is created stopped, and acts while it is started on [lists](crate::Profiles).
pub struct ProfileObject<'b> {
    process: Option<ProcessId>,
    source: AtomicU32,
    action: Action<'b>,
    rules: Rules,
    started: AtomicBool,
    /// The processors on which the source was started for this object, or for another one that shares it:
    /// a mask for each group. Written by the holder of the lists' write guard alone.
    running: [AtomicU64; MAX_GROUPS],
}

#[allow(clippy::large_enum_variant)] // There is nowhere else to put it.
enum Action<'b> {
    Basic(Basic<'b>),
    Callback(&'b dyn ProfileCallback),
}

/// What a basic object counts.
pub(crate) struct Basic<'b> {
    base: u64,
    /// Base plus size.
    limit: u64,
    bucket: Bucket,
    buffer: &'b [AtomicU32],
    /// The segment of virtual-8086 execution; 0: linear addresses. Only objects of a process have one.
    segment: u16,
    /// The processors on which the source runs for this object.
    affinity: Affinity,
}

/// What an object did with an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The conditions are not met.
    Passed,
    /// It counted.
    Acted,
    /// Windows would have counted outside the buffer.
    Outside,
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

    /// A callback object, whatever the version.
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
            started: AtomicBool::new(false),
            running: [const { AtomicU64::new(0) }; MAX_GROUPS],
        }
    }

    /// The process on whose list the object goes; `None`: the global list.
    #[inline]
    pub fn process(&self) -> Option<ProcessId> {
        self.process
    }

    /// What makes the interrupt recur.
    pub fn source(&self) -> KProfileSource {
        // The value came from a source, so it is one.
        KProfileSource::new(self.source.load(Ordering::Relaxed)).unwrap_or(KProfileSource::TIME)
    }

    /// Changes the source of an object that is not started.
    pub(crate) fn set_source(&self, source: KProfileSource) {
        self.source.store(source.value(), Ordering::Relaxed);
    }

    /// The Windows that the object is like.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns whether the object is started, on whichever lists. Any context.
    pub fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Marks the object as started or stopped. `false`: it was so already.
    pub(crate) fn set_started(&self, started: bool) -> bool {
        self.started.swap(started, Ordering::AcqRel) != started
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

    /// The first and the last address that can concern a basic object; the last is below the first if
    /// none can.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        match &self.action {
            Action::Callback(_) => None,
            Action::Basic(b) if self.rules.version.end_is_inclusive() => Some((b.base, b.limit)),
            Action::Basic(b) if b.base < b.limit => Some((b.base, b.limit - 1)),
            Action::Basic(_) => Some((1, 0)),
        }
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

    /// What a basic object counts.
    pub(crate) fn as_basic(&self) -> Option<&Basic<'b>> {
        match &self.action {
            Action::Basic(basic) => Some(basic),
            Action::Callback(_) => None,
        }
    }

    /// The object as Windows would lay it out, linked to nothing: for a debugger's eyes.
    pub fn to_kprofile(&self) -> KProfile {
        let role = match &self.action {
            Action::Basic(basic) => Role::Basic {
                range_base: basic.base,
                range_limit: basic.limit,
                bucket_shift: basic.bucket.shift(),
                buffer: basic.buffer.as_ptr() as usize as u64,
                segment: basic.segment.into(),
            },
            Action::Callback(callback) => Role::Callback {
                callback: 0,
                context: core::ptr::from_ref(*callback).cast::<()>() as usize as u64,
            },
        };
        KProfile {
            object_type: match &self.action {
                Action::Callback(_) => ObjectType::Callback,
                Action::Basic(_) => ObjectType::basic_of(self.rules.version),
            },
            link: ListEntry::default(),
            process: self.process.map_or(0, ProcessId::get),
            role,
            affinity: match &self.action {
                Action::Basic(Basic { affinity: Affinity::ALL, .. }) => {
                    let layout = self.rules.version.layout(self.rules.width);
                    layout.map_or(Affinity::ALL, Layout::processors)
                }
                Action::Basic(basic) => basic.affinity,
                Action::Callback(_) => Affinity::EMPTY,
            },
            source: self.source(),
            started: self.is_started(),
        }
    }
}

/// RFLAGS bit 17: virtual-8086 mode (Intel SDM vol. 1, §3.4.3).
const VIRTUAL_8086: u64 = 1 << 17;

impl Basic<'_> {
    /// Returns whether an interrupt is of the segment that is profiled, if one is.
    #[inline]
    pub(crate) fn has_segment_of<F: InterruptFrame>(&self, frame: &F) -> bool {
        self.segment == 0 || (frame.flags() & VIRTUAL_8086 != 0 && frame.cs() == self.segment)
    }

    /// Counts an interrupt of the object's key and range at `pc`, if the processor, by its
    /// index, is one of the object's.
    #[inline]
    pub(crate) fn count(&self, pc: u64, processor: usize) -> Outcome {
        if !self.affinity.contains_index(processor) {
            return Outcome::Passed;
        }
        let counter = self.bucket.counter(pc.wrapping_sub(self.base));
        match self.buffer.get(counter as usize) {
            Some(counter) => {
                counter.fetch_add(1, Ordering::Relaxed);
                Outcome::Acted
            }
            None => Outcome::Outside,
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
