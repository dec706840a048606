//! The hardware of several processors: requests to another processor, drained by the handler of an interrupt.
//!
//! A request is posted to the other processor's slot, and that processor is interrupted; its handler drains the slot
//! with its own session. A caller that waits for an answer drains its own slot meanwhile, so two requests that cross do
//! not deadlock. A slot holds one request, nothing is allocated, and a processor that does not answer within the
//! embedder's bound is an error. A start is then withdrawn, or undone; a stop is left in the slot, and done before any
//! later request.

use core::mem;
use core::sync::atomic::Ordering;

use pmu_core::{InterfaceError, KProfileSource, MAX_COUNTERS, ProcessorNumber};

use super::ProfileHardware;
use crate::Affinity;
use crate::sync::{AtomicU64, UnsafeCell, array_of, const_fn, spin_loop};

/// Operation that a processor is asked to perform with its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SourceRequest {
    /// Start a source.
    Start(KProfileSource),
    /// Stop a source.
    Stop(KProfileSource),
}

/// Gives [`Remote`] access to a kernel's processors.
///
/// # For implementers
/// - [`interrupt`](Self::interrupt) makes the processor call [`Mailbox::drain`] soon, from the handler of an
///   inter-processor interrupt or from a task that the handler wakes, and does not wait for it.
/// - [`serve`](Self::serve) is called in task context and in that handler. Mask that interrupt while using the session;
///   otherwise the handler finds the session in use.
/// - [`keep_waiting`](Self::keep_waiting) bounds how long a start or a stop waits for another processor.
///
/// # Examples
///
/// ```
/// use pmu_core::{InterfaceError, KProfileSource, ProcessorNumber};
/// use pmu_kprofile::{Affinity, Mailbox, Processors, Remote, SourceRequest};
/// # fn processor() -> u16 { 0 }
/// # fn interrupt_depth() -> usize { 0 }
/// # fn send_interrupt(_: usize, _: u8) {}
/// # fn with_interrupts_off(act: impl FnOnce() -> Result<(), InterfaceError>) -> Result<(), InterfaceError> { act() }
/// # fn use_session(_: SourceRequest) -> Result<(), InterfaceError> { Ok(()) }
///
/// static MAILBOX: Mailbox<4> = Mailbox::new();
/// const VECTOR: u8 = 0xF0; // its handler calls `MAILBOX.drain(&Kernel)`
///
/// struct Kernel;
///
/// impl Processors for Kernel {
///     fn this_processor(&self) -> ProcessorNumber {
///         ProcessorNumber::from_index(processor())
///     }
///     fn in_interrupt(&self) -> bool {
///         interrupt_depth() > 0
///     }
///     fn active_processors(&self) -> Affinity {
///         Affinity::first(4)
///     }
///     fn supports(&self, source: KProfileSource) -> bool {
///         source == KProfileSource::TIME // … or what the interface's `query` says
///     }
///     fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
///         with_interrupts_off(|| use_session(request))
///     }
///     fn interrupt(&self, processor: ProcessorNumber) {
///         send_interrupt(processor.index(), VECTOR);
///     }
///     fn keep_waiting(&self, turns: u64) -> bool {
///         turns < 10_000_000
///     }
/// }
///
/// let mut hardware = Remote::new(&MAILBOX, Kernel); // which starts and stops profiles
/// # let _ = &mut hardware;
/// ```
pub trait Processors {
    /// As [`ProfileHardware::this_processor`].
    fn this_processor(&self) -> ProcessorNumber;

    /// As [`ProfileHardware::in_interrupt`].
    fn in_interrupt(&self) -> bool;

    /// As [`ProfileHardware::active_processors`].
    fn active_processors(&self) -> Affinity;

    /// As [`ProfileHardware::supports`].
    fn supports(&self, source: KProfileSource) -> bool;

    /// Performs a request with this processor's session.
    ///
    /// # Errors
    /// The error of the session. [`NoAnswer`](InterfaceError::NoAnswer): the session is in use or missing; a stop is
    /// then left to be done.
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError>;

    /// Interrupts another processor, whose handler drains its slot, or wakes the task that does.
    fn interrupt(&self, processor: ProcessorNumber);

    /// Returns whether to keep waiting for an answer after `turns` iterations of the waiting loop.
    fn keep_waiting(&self, turns: u64) -> bool;
}

/// One request slot for each processor whose index is below `P`. A `static` is the usual place.
pub struct Mailbox<const P: usize> {
    slots: [Slot; P],
}

/// Number of stops that a slot has room for: one of each source that can run on a processor, which is one per counter,
/// and the timer's.
const LEFT: usize = if cfg!(all(test, loom)) { 1 } else { MAX_COUNTERS + 1 };

/// One processor's slot.
struct Slot {
    /// [`IDLE`], [`HELD`] or [`AGAIN`]. Only contexts of the slot's processor change it.
    hand: AtomicU64,
    /// Not 0 where [`left`](Self::left) may have a source.
    is_left: AtomicU64,
    /// Sources to be stopped, for which no requester waits: each plus 1, or 0.
    left: [AtomicU64; LEFT],
    /// A phase and its request: see [`word`].
    state: AtomicU64,
    /// Written by the processor while the phase is [`TAKEN`], read by the requester while it is [`DONE`].
    answer: UnsafeCell<Result<(), InterfaceError>>,
}

/// No call of [`Mailbox::drain`] is under way.
const IDLE: u64 = 0;
/// A call is under way.
const HELD: u64 = 1;
/// The call that is under way looks once more: another one came meanwhile, or left something.
const AGAIN: u64 = 2;

/// No request.
const FREE: u64 = 0;
/// A request that its processor has not seen yet.
const POSTED: u64 = 1;
/// The processor is serving the request.
const TAKEN: u64 = 2;
/// The answer is ready.
const DONE: u64 = 3;
/// The processor is serving the request, and the requester no longer waits for it.
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
        const fn new() -> Self {
            Self {
                hand: AtomicU64::new(IDLE),
                is_left: AtomicU64::new(0),
                left: array_of!(AtomicU64::new(0)),
                state: AtomicU64::new(FREE),
                answer: UnsafeCell::new(Ok(())),
            }
        }
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns the request that waits for its processor.
    fn posted(&self) -> Option<SourceRequest> {
        request_of(self.state.load(Ordering::Acquire), POSTED)
    }

    /// Leaves a stop to the processor, which does it before the next request.
    fn leave(&self, source: KProfileSource) {
        let stop = u64::from(source.value()) + 1;
        let is_there = |place: &AtomicU64| {
            place.compare_exchange(0, stop, Ordering::AcqRel, Ordering::Acquire).is_ok()
                || place.load(Ordering::Relaxed) == stop
        };
        // There is a place: each source that is left here runs on the processor.
        let _ = self.left.iter().any(is_there);
        self.is_left.swap(1, Ordering::AcqRel);
    }

    /// Does the stops that were left. One that is not served stays.
    fn serve_left(&self, processors: &impl Processors) {
        if self.is_left.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        for place in &self.left {
            let stop = place.load(Ordering::Acquire);
            let source = stop.checked_sub(1).and_then(|value| KProfileSource::new(value as u32));
            let Some(source) = source else { continue };
            let unserved = Unserved(self);
            let answer = processors.serve(SourceRequest::Stop(source));
            mem::forget(unserved);
            if matches!(answer, Err(InterfaceError::NoAnswer(_))) {
                self.is_left.swap(1, Ordering::AcqRel);
            } else {
                // No requester is left to receive another error; the session marks a counter that it cannot stop as
                // faulted.
                place.store(0, Ordering::Release);
            }
        }
    }

    /// Serves the request that is posted, if there is one.
    fn serve_posted(&self, processors: &impl Processors) {
        let Some(request) = self.posted() else { return };
        if !self.change(word(POSTED, request), word(TAKEN, request)) {
            return; // Withdrawn.
        }
        let silent = Err(InterfaceError::NoAnswer(processors.this_processor()));
        let mut taken = Taken { slot: self, request, answer: silent, is_whole: false };
        taken.answer = processors.serve(request);
        taken.is_whole = true;
    }

    /// Takes the answer of a request, if it is ready, and frees the slot.
    fn answer(&self, request: SourceRequest) -> Option<Result<(), InterfaceError>> {
        if self.state.load(Ordering::Acquire) != word(DONE, request) {
            return None;
        }
        // SAFETY: (1) the phase is done, so the answer is not written; (2) the request is this caller's, so no other
        // caller frees the slot.
        let answer = unsafe { *self.answer.get().deref() };
        self.state.store(FREE, Ordering::Release);
        Some(answer)
    }
}

/// A slot in the hands of a call of [`Mailbox::drain`], which unwinds where this is dropped.
struct Held<'s>(&'s Slot);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.hand.store(IDLE, Ordering::Release);
    }
}

/// A stop that was left and is being served, by a call which unwinds where this is dropped: it stays left.
struct Unserved<'s>(&'s Slot);

impl Drop for Unserved<'_> {
    fn drop(&mut self) {
        self.0.is_left.swap(1, Ordering::AcqRel);
    }
}

/// A request in its processor's hands; dropped, it is answered.
struct Taken<'s> {
    slot: &'s Slot,
    request: SourceRequest,
    answer: Result<(), InterfaceError>,
    /// Set once it was served; not where that unwound.
    is_whole: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let &mut Self { slot, request, answer, is_whole } = self;
        let (SourceRequest::Start(source) | SourceRequest::Stop(source)) = request;
        if !is_whole {
            slot.leave(source);
        }
        slot.answer.with_mut(|place| {
            // SAFETY: the phase was changed to taken for this value, or for the one whose place it has (`reclaim`), and
            // nothing else accesses the answer until the phase is done.
            unsafe { *place = answer };
        });
        if !slot.change(word(TAKEN, request), word(DONE, request)) {
            // Abandoned: the requester was told that nothing runs, or waits for no answer of a stop.
            let is_started = matches!(request, SourceRequest::Start(_)) && answer.is_ok();
            let is_unserved = matches!(answer, Err(InterfaceError::NoAnswer(_)));
            if is_started || is_unserved && matches!(request, SourceRequest::Stop(_)) {
                slot.leave(source);
            }
            if is_started {
                slot.hand.store(AGAIN, Ordering::Release);
            }
            slot.state.store(FREE, Ordering::Release);
        }
    }
}

impl<const P: usize> Mailbox<P> {
    const_fn! {
        /// Creates a mailbox without requests.
        pub const fn new() -> Self {
            Self { slots: array_of!(Slot::new()) }
        }
    }

    /// Serves the stops that were left to this processor, and the request to it, if there is one.
    ///
    /// A call that interrupts another one returns at once, and the interrupted one looks once more. Where
    /// [`serve`](Processors::serve) unwinds, the requester is told [`NoAnswer`](InterfaceError::NoAnswer), the source
    /// is left to be stopped, and the slot is as usable as before. Where a call ends without returning or unwinding,
    /// see [`reclaim`](Self::reclaim).
    ///
    /// # In a task
    /// A kernel whose handler cannot use the session lets the handler wake a task, bound to the processor, which calls
    /// this. Then the following holds:
    ///
    /// - A start or a stop on another processor waits until that task has run, for as long as
    ///   [`keep_waiting`](Processors::keep_waiting) says. It holds the lists meanwhile: other tasks' attempts are
    ///   [`Busy`](crate::ProfileError::Busy), or wait too. So the task has a priority above those that start and stop,
    ///   and takes no lock that they hold. An idle task, which has the lowest one, answers when its processor has
    ///   nothing else to do: there use [`try_start`](crate::Profiles::try_start) and
    ///   [`try_stop`](crate::Profiles::try_stop), with a `keep_waiting` of little time, and sleep between tries, since
    ///   a task that spins for its turn keeps the idle task of its own processor from answering.
    /// - A start without an answer in time is withdrawn, or undone when the task comes to it, and its caller is told
    ///   [`NoAnswer`](InterfaceError::NoAnswer): the caller tries again. What
    ///   [`update_processors`](crate::Profiles::try_update_processors) could not start, its next call tries again.
    /// - A stop without an answer in time is left to the task, which does it before any later request. Its caller is
    ///   told `NoAnswer` too, and need not try again. Until then the source's interrupts hit nothing.
    /// - The task is not preempted within `drain` by one that starts or stops on the same processor: preemption is off.
    ///
    /// # Context
    /// The handler of the interrupt that [`Processors::interrupt`] sends, or any other context of its processor in
    /// which the session may be used.
    pub fn drain(&self, processors: &impl Processors) {
        let Some(slot) = self.slots.get(processors.this_processor().index()) else { return };
        let is_left = slot.is_left.load(Ordering::Acquire) != 0;
        if !is_left && slot.posted().is_none() || slot.hand.swap(AGAIN, Ordering::AcqRel) != IDLE {
            return;
        }
        let held = Held(slot);
        // Once more for each interrupt that drained meanwhile, and for a start that was to be undone.
        loop {
            slot.hand.store(HELD, Ordering::Release);
            slot.serve_left(processors);
            slot.serve_posted(processors);
            let over = slot.hand.compare_exchange(HELD, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if over.is_ok() {
                return mem::forget(held);
            }
        }
    }

    /// Makes the slot of a processor usable again after a call of [`drain`](Self::drain) there ended without returning
    /// or unwinding: its task was killed, or the processor was reset. A source whose start or stop was being served is
    /// left to be stopped.
    ///
    /// # Context
    /// Any.
    ///
    /// # Safety
    /// - No call of [`drain`](Self::drain) is under way on the processor, nor will one be resumed.
    ///
    /// ```
    /// # use pmu_core::ProcessorNumber;
    /// # use pmu_kprofile::Mailbox;
    /// # static MAILBOX: Mailbox<4> = Mailbox::new();
    /// // SAFETY: the processor was reset, and does not answer interrupts yet.
    /// unsafe { MAILBOX.reclaim(ProcessorNumber::from_index(3)) };
    /// ```
    ///
    /// Wrong: of a processor whose task is preempted within `drain`. It writes its answer when it is resumed, while
    /// another call on that processor writes another one.
    pub unsafe fn reclaim(&self, processor: ProcessorNumber) {
        let Some(slot) = self.slots.get(processor.index()) else { return };
        let state = slot.state.load(Ordering::Acquire);
        let taken = request_of(state, TAKEN).or_else(|| request_of(state, ABANDONED));
        drop(taken.map(|request| {
            let answer = Err(InterfaceError::NoAnswer(processor));
            Taken { slot, request, answer, is_whole: false }
        }));
        slot.hand.store(IDLE, Ordering::Release);
    }

    /// Posts a request to a processor and waits for its answer.
    fn ask(
        &self,
        processors: &impl Processors,
        processor: ProcessorNumber,
        request: SourceRequest,
    ) -> Result<(), InterfaceError> {
        let silent = InterfaceError::NoAnswer(processor);
        let mut turns = 0;
        let mut wait = || {
            self.drain(processors);
            spin_loop();
            turns += 1;
            processors.keep_waiting(turns)
        };
        if processor == processors.this_processor() {
            // First what was left here; a task that was preempted within `drain` may be at it.
            self.drain(processors);
            let slot = self.slots.get(processor.index());
            while slot.is_some_and(|slot| slot.hand.load(Ordering::Acquire) != IDLE) {
                if !wait() {
                    return self.unanswered(processors, processor, request);
                }
            }
            return match processors.serve(request) {
                Err(InterfaceError::NoAnswer(_)) => self.unanswered(processors, processor, request),
                answer => answer,
            };
        }
        let slot = self.slots.get(processor.index()).ok_or(silent)?;
        let posted = word(POSTED, request);
        while !slot.change(FREE, posted) {
            if !wait() {
                return self.unanswered(processors, processor, request);
            }
        }
        processors.interrupt(processor);
        loop {
            match slot.answer(request) {
                Some(Err(InterfaceError::NoAnswer(_))) => break,
                Some(answer) => return answer,
                None => {}
            }
            if !wait() {
                if slot.change(word(TAKEN, request), word(ABANDONED, request)) {
                    return Err(silent);
                }
                if slot.change(posted, FREE) {
                    break;
                }
            }
        }
        self.unanswered(processors, processor, request)
    }

    /// Leaves a request that was not served, if it is a stop, to its processor; returns the error of it.
    fn unanswered(
        &self,
        processors: &impl Processors,
        processor: ProcessorNumber,
        request: SourceRequest,
    ) -> Result<(), InterfaceError> {
        if let (SourceRequest::Stop(source), Some(slot)) =
            (request, self.slots.get(processor.index()))
        {
            slot.leave(source);
            if processor != processors.this_processor() {
                // The handler of the earlier interrupt may have found nothing.
                processors.interrupt(processor);
            }
        }
        Err(InterfaceError::NoAnswer(processor))
    }
}

impl<const P: usize> Default for Mailbox<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const P: usize> core::fmt::Debug for Mailbox<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

/// The hardware of all processors, reached through a mailbox.
///
/// ```
/// use pmu_core::{InterfaceError, KProfileSource, ProcessorNumber};
/// use pmu_kprofile::{Affinity, Mailbox, Processors, Remote, SourceRequest};
///
/// static MAILBOX: Mailbox<2> = Mailbox::new();
///
/// struct Kernel;
///
/// impl Processors for Kernel {
/// #   fn this_processor(&self) -> ProcessorNumber { ProcessorNumber::from_index(0) }
/// #   fn in_interrupt(&self) -> bool { false }
/// #   fn active_processors(&self) -> Affinity { Affinity::first(2) }
/// #   fn supports(&self, _: KProfileSource) -> bool { true }
///     fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
///         // … with the inter-processor interrupt masked: session.start(source), session.stop(source) …
/// #       Ok(())
///     }
///     fn interrupt(&self, processor: ProcessorNumber) {
///         // … send the inter-processor interrupt …
///     }
///     fn keep_waiting(&self, turns: u64) -> bool {
///         turns < 10_000_000 // … or as long as a clock says …
///     }
///     // …
/// }
///
/// /// The handler of that interrupt, on each processor.
/// fn on_interrupt() {
///     MAILBOX.drain(&Kernel);
/// }
///
/// let mut hardware = Remote::new(&MAILBOX, Kernel); // for `Profiles::try_start`
/// ```
#[derive(Debug)]
pub struct Remote<'m, K, const P: usize> {
    mailbox: &'m Mailbox<P>,
    processors: K,
}

impl<'m, K: Processors, const P: usize> Remote<'m, K, P> {
    /// Creates the hardware of a kernel's processors, all of which drain `mailbox`.
    pub const fn new(mailbox: &'m Mailbox<P>, processors: K) -> Self {
        Self { mailbox, processors }
    }
}

impl<K: Processors, const P: usize> ProfileHardware for Remote<'_, K, P> {
    fn this_processor(&self) -> ProcessorNumber {
        self.processors.this_processor()
    }

    fn in_interrupt(&self) -> bool {
        self.processors.in_interrupt()
    }

    fn active_processors(&self) -> Affinity {
        self.processors.active_processors()
    }

    fn supports(&self, source: KProfileSource) -> bool {
        self.processors.supports(source)
    }

    fn start(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.mailbox.ask(&self.processors, processor, SourceRequest::Start(source))
    }

    fn stop(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.mailbox.ask(&self.processors, processor, SourceRequest::Stop(source))
    }
}
