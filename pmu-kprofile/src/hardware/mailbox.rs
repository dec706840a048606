//! The hardware of several processors: requests to another processor, drained by the handler of an interrupt.
//!
//! A request is posted to the other processor's slot, and that processor is interrupted; its handler drains the slot
//! with its own session. A caller that waits for an answer drains its own slot meanwhile, so two requests that cross do
//! not deadlock. A slot holds one request, nothing is allocated, and a processor that does not answer within the
//! embedder's bound is an error.

use core::sync::atomic::Ordering;

use pmu_core::{InterfaceError, KProfileSource, ProcessorNumber};

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
///   inter-processor interrupt, and does not wait for it.
/// - [`serve`](Self::serve) is called in task context and in that handler. Mask that interrupt while using the session;
///   otherwise the handler finds the session in use.
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
    /// Returns the processor that executes the call.
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
    /// The error of the session.
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError>;

    /// Interrupts another processor, whose handler drains its slot.
    fn interrupt(&self, processor: ProcessorNumber);

    /// Returns whether to keep waiting for an answer after `turns` iterations of the waiting loop.
    fn keep_waiting(&self, turns: u64) -> bool;
}

/// One request slot for each processor whose index is below `P`. A `static` is the usual place.
pub struct Mailbox<const P: usize> {
    slots: [Slot; P],
}

/// One processor's slot.
struct Slot {
    /// A phase and its request: see [`word`].
    state: AtomicU64,
    /// Written by the processor while the phase is [`TAKEN`], read by the requester while it is [`DONE`].
    answer: UnsafeCell<Result<(), InterfaceError>>,
}

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
            Self { state: AtomicU64::new(FREE), answer: UnsafeCell::new(Ok(())) }
        }
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
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

impl<const P: usize> Mailbox<P> {
    const_fn! {
        /// Creates a mailbox without requests.
        pub const fn new() -> Self {
            Self { slots: array_of!(Slot::new()) }
        }
    }

    /// Serves the request to this processor, if there is one.
    ///
    /// # Context
    /// The handler of the interrupt that [`Processors::interrupt`] sends, or any other context in which the session may
    /// be used.
    pub fn drain(&self, processors: &impl Processors) {
        let Some(slot) = self.slots.get(processors.this_processor().index()) else { return };
        let Some(request) = request_of(slot.state.load(Ordering::Acquire), POSTED) else { return };
        if !slot.change(word(POSTED, request), word(TAKEN, request)) {
            return; // Withdrawn, or taken by who was interrupted here.
        }
        let answer = processors.serve(request);
        slot.answer.with_mut(|place| {
            // SAFETY: this call changed the phase to taken, so it alone accesses the answer until the phase is done.
            unsafe { *place = answer };
        });
        if !slot.change(word(TAKEN, request), word(DONE, request)) {
            // Abandoned: the requester was told that nothing runs.
            if let (SourceRequest::Start(source), Ok(())) = (request, answer) {
                // No requester is left to receive the error; the session marks a counter that it cannot stop as
                // faulted.
                let _ = processors.serve(SourceRequest::Stop(source));
            }
            slot.state.store(FREE, Ordering::Release);
        }
    }

    /// Posts a request to a processor and waits for its answer.
    fn ask(
        &self,
        processors: &impl Processors,
        processor: ProcessorNumber,
        request: SourceRequest,
    ) -> Result<(), InterfaceError> {
        if processor == processors.this_processor() {
            return processors.serve(request);
        }
        let silent = InterfaceError::NoAnswer(processor);
        let slot = self.slots.get(processor.index()).ok_or(silent)?;
        let (posted, mut turns) = (word(POSTED, request), 0);
        let mut wait = || {
            self.drain(processors);
            spin_loop();
            turns += 1;
            processors.keep_waiting(turns)
        };
        while !slot.change(FREE, posted) {
            if !wait() {
                return Err(silent);
            }
        }
        processors.interrupt(processor);
        loop {
            if let Some(answer) = slot.answer(request) {
                return answer;
            }
            if !wait()
                && (slot.change(posted, FREE)
                    || slot.change(word(TAKEN, request), word(ABANDONED, request)))
            {
                return Err(silent);
            }
        }
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
