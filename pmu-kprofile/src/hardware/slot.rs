//! One processor's slot of a mailbox: a request with its answer, and the stops that no requester waits for.

use core::hint::black_box;
use core::mem::{self, MaybeUninit};
use core::sync::atomic::Ordering;

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_core::registers::MAX_COUNTERS;

use crate::hardware::mailbox::{RemoteProcessors, SourceRequest};
use crate::sync::{AtomicU64, UnsafeCell, array_of, const_fn};

/// Number of stops that a slot has room for: as many as sources can run on a processor, one per counter and the timer.
const MAX_STOPS: usize = if cfg!(all(test, loom)) { 1 } else { MAX_COUNTERS + 1 };

/// One processor's slot: a request with its answer, and the stops for which no requester waits.
pub(super) struct Slot {
    /// [`IDLE`], [`DRAINING`] or [`AGAIN`]. Only contexts of the slot's processor change it.
    drain: AtomicU64,
    /// Not 0 if [`stops`](Self::stops) may have a source.
    has_stops: AtomicU64,
    /// Sources to be stopped, for which no requester waits: each plus 1, or 0.
    stops: [AtomicU64; MAX_STOPS],
    /// A phase and its request: see [`word`].
    state: AtomicU64,
    /// Written by the processor while the phase is [`TAKEN`], read by the requester while it is [`DONE`].
    /// It is zeros before that, so that a new mailbox is.
    answer: UnsafeCell<MaybeUninit<Result<(), InterfaceError>>>,
}

/// No call of [`Slot::drain`] is under way.
const IDLE: u64 = 0;
/// A call is under way.
const DRAINING: u64 = 1;
/// The call that is under way looks once more: another call came meanwhile, or left a stop.
const AGAIN: u64 = 2;

/// No request.
const FREE: u64 = 0;
/// A request that its processor has not seen yet.
const POSTED: u64 = 1;
/// The processor is serving the request.
const TAKEN: u64 = 2;
/// The answer is ready.
const DONE: u64 = 3;
/// The processor is serving the request, and the requester no longer waits for its answer.
const ABANDONED: u64 = 4;

/// Encodes the state of a request: its phase, operation and source.
const fn word(phase: u64, request: SourceRequest) -> u64 {
    let (start, source) = match request {
        SourceRequest::Start(source) => (1, source),
        SourceRequest::Stop(source) => (0, source),
    };
    phase | start << 8 | (source.value() as u64) << 32
}

/// Returns the request of a state, if the state is in this phase.
fn request_of(state: u64, phase: u64) -> Option<SourceRequest> {
    let source = KProfileSource::new((state >> 32) as u32).filter(|_| state & 0xFF == phase)?;
    Some(if state >> 8 & 1 != 0 {
        SourceRequest::Start(source)
    } else {
        SourceRequest::Stop(source)
    })
}

// SAFETY: (1) the state is atomic; (2) a slot holds one request at a time; (3) the processor that changed the state
// from posted to taken writes the answer, and the requester reads it after the change to done published it. So no write
// meets a read.
unsafe impl Sync for Slot {}

impl Slot {
    const_fn! {
        pub(super) const fn new() -> Self {
            Self {
                drain: AtomicU64::new(IDLE),
                has_stops: AtomicU64::new(0),
                stops: array_of!(AtomicU64::new(0)),
                state: AtomicU64::new(FREE),
                answer: UnsafeCell::new(MaybeUninit::zeroed()),
            }
        }
    }

    /// Posts a request, if the slot is free.
    pub(super) fn post(&self, request: SourceRequest) -> bool {
        self.change(FREE, word(POSTED, request))
    }

    /// Withdraws a posted request, if its processor has not taken the request yet.
    pub(super) fn cancel(&self, request: SourceRequest) -> bool {
        self.change(word(POSTED, request), FREE)
    }

    /// Tells the processor that is serving a request that the requester no longer waits for the answer.
    pub(super) fn abandon(&self, request: SourceRequest) -> bool {
        self.change(word(TAKEN, request), word(ABANDONED, request))
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes the answer of a request, if the answer is ready, and frees the slot.
    pub(super) fn answer(&self, request: SourceRequest) -> Option<Result<(), InterfaceError>> {
        if self.state.load(Ordering::Acquire) != word(DONE, request) {
            return None;
        }
        // SAFETY: (1) the phase is done, so the answer was written, and is not written now; (2) the request is this
        // caller's, so no other caller frees the slot.
        let answer = unsafe { self.answer.get().deref().assume_init() };
        // Release: the next requester's post acquires it, so the next answer is written after this one was read.
        self.state.store(FREE, Ordering::Release);
        Some(answer)
    }

    /// Leaves a stop to the processor, which does it before the next request.
    #[inline(never)] // 80 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(super) fn leave(&self, source: KProfileSource) {
        let stop = u64::from(source.value()) + 1;
        // The same stop may have been left before: once is enough.
        let is_there = |place: &AtomicU64| {
            place.compare_exchange(0, stop, Ordering::AcqRel, Ordering::Acquire).is_ok()
                || place.load(Ordering::Relaxed) == stop
        };
        // There is a place: each source that is left here runs on the processor.
        let _ = self.stops().iter().any(is_there);
        // After the place, so that a drain that takes this mark finds the stop.
        self.has_stops.swap(1, Ordering::AcqRel);
    }

    /// Returns the places of stops. The compiler does not unroll a loop over the result, as it does over an array.
    fn stops(&self) -> &[AtomicU64] {
        black_box(&self.stops)
    }

    /// Returns whether no call of [`drain`](Self::drain) is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.drain.load(Ordering::Acquire) == IDLE
    }

    /// Serves the stops that were left, and the posted request: see [`Mailbox::drain`](super::Mailbox::drain).
    pub(super) fn drain(&self, processors: &impl RemoteProcessors) {
        // Mostly there is nothing to do: then no line that processors share is written.
        let has_stops = self.has_stops.load(Ordering::Acquire) != 0;
        if !has_stops && self.posted().is_none() || self.drain.swap(AGAIN, Ordering::AcqRel) != IDLE
        {
            return;
        }
        let draining = Draining(self);
        // Once more for each interrupt that drained meanwhile, and for a start that was to be undone.
        loop {
            // Before anything is served: a call that comes from here on leaves `AGAIN` for the exchange below.
            self.drain.store(DRAINING, Ordering::Release);
            self.serve_stops(processors);
            self.serve_posted(processors);
            let over =
                self.drain.compare_exchange(DRAINING, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if over.is_ok() {
                // The exchange has made the slot idle, which is all that the drop would do.
                return mem::forget(draining);
            }
        }
    }

    /// Answers the request that a call of [`drain`](Self::drain) was serving when the call ended without returning or
    /// unwinding.
    ///
    /// # Safety
    /// As for [`Mailbox::reclaim`](super::Mailbox::reclaim).
    pub(super) unsafe fn reclaim(&self, processor: ProcessorNumber) {
        let state = self.state.load(Ordering::Acquire);
        let taken = request_of(state, TAKEN).or_else(|| request_of(state, ABANDONED));
        drop(taken.map(|request| Unanswered { slot: self, request, processor }));
        self.drain.store(IDLE, Ordering::Release);
    }

    /// Returns the request that waits for its processor.
    fn posted(&self) -> Option<SourceRequest> {
        request_of(self.state.load(Ordering::Acquire), POSTED)
    }

    /// Does the stops that were left. A stop that is not served stays.
    fn serve_stops(&self, processors: &impl RemoteProcessors) {
        // Cleared before the places are read: a stop that is left meanwhile sets it again.
        if self.has_stops.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        for place in self.stops() {
            let stop = place.load(Ordering::Acquire);
            let source = stop.checked_sub(1).and_then(|value| KProfileSource::new(value as u32));
            let Some(source) = source else { continue };
            // If the kernel's code unwinds, the stop stays for the next drain.
            let unserved = Unserved(self);
            let answer = processors.serve(SourceRequest::Stop(source));
            mem::forget(unserved);
            if matches!(answer, Err(InterfaceError::NoAnswer(_))) {
                self.has_stops.swap(1, Ordering::AcqRel);
            } else {
                // No requester is left to receive another error; the session marks a counter that it cannot stop as
                // faulted.
                place.store(0, Ordering::Release);
            }
        }
    }

    /// Serves the posted request, if there is one.
    fn serve_posted(&self, processors: &impl RemoteProcessors) {
        let Some(request) = self.posted() else { return };
        if !self.change(word(POSTED, request), word(TAKEN, request)) {
            return; // Withdrawn.
        }
        let unanswered = Unanswered { slot: self, request, processor: processors.this_processor() };
        let answer = processors.serve(request);
        mem::forget(unanswered);
        self.put_answer(request, answer);
    }

    /// Answers a request that was taken.
    fn put_answer(&self, request: SourceRequest, answer: Result<(), InterfaceError>) {
        self.answer.with_mut(|place| {
            // SAFETY: the phase was changed to taken for this value, or for the one whose place it has (`reclaim`), and
            // nothing else accesses the answer until the phase is done.
            unsafe { *place = MaybeUninit::new(answer) };
        });
        if !self.change(word(TAKEN, request), word(DONE, request)) {
            // Abandoned: the requester was told that nothing runs, or waits for no answer of a stop.
            let (SourceRequest::Start(source) | SourceRequest::Stop(source)) = request;
            let is_started = matches!(request, SourceRequest::Start(_)) && answer.is_ok();
            let is_unserved = matches!(answer, Err(InterfaceError::NoAnswer(_)));
            if is_started || is_unserved && matches!(request, SourceRequest::Stop(_)) {
                self.leave(source);
            }
            // The drain that is under way also takes the stop that was just left.
            if is_started {
                self.drain.store(AGAIN, Ordering::Release);
            }
            self.state.store(FREE, Ordering::Release);
        }
    }
}

/// A call of [`Slot::drain`] under way. Dropped by unwinding, it leaves the slot idle.
struct Draining<'s>(&'s Slot);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.drain.store(IDLE, Ordering::Release);
    }
}

/// A stop that is being served. Dropped by unwinding, it leaves the stop to be done.
struct Unserved<'s>(&'s Slot);

impl Drop for Unserved<'_> {
    fn drop(&mut self) {
        self.0.has_stops.swap(1, Ordering::AcqRel);
    }
}

/// A request that its processor is serving. Dropped before it was served, it answers, and leaves a stop to be done.
struct Unanswered<'s> {
    slot: &'s Slot,
    request: SourceRequest,
    processor: ProcessorNumber,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let (SourceRequest::Start(source) | SourceRequest::Stop(source)) = self.request;
        self.slot.leave(source);
        self.slot.put_answer(self.request, Err(InterfaceError::NoAnswer(self.processor)));
    }
}
