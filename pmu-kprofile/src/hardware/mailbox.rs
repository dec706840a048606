//! The mailbox: requests to other processors, drained by the handler of an inter-processor interrupt.
//!
//! A request is posted to the other processor's slot, and that processor is interrupted. Its handler drains the slot
//! with its own session. While a caller waits for an answer, it drains its own slot, so two requests that cross do not
//! deadlock. A slot holds one request, and nothing is allocated. A processor that does not answer within the embedder's
//! bound is an error. An unanswered start is withdrawn or undone; an unanswered stop stays in the slot, and is done
//! before any later request.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};

use crate::affinity::Affinity;
use crate::hardware::profile_hardware::ProfileHardware;
use crate::hardware::slot::Slot;
use crate::sync::{array_of, const_fn, spin_loop};

/// Mailbox for requests between processors. Each request asks another processor to start or stop a profile source. The
/// mailbox has a slot for each processor index below `P`.
///
/// A mailbox is usually a `static`.
pub struct Mailbox<const P: usize> {
    slots: [Slot; P],
}

impl<const P: usize> Mailbox<P> {
    const_fn! {
        /// Creates a mailbox without requests.
        pub const fn new() -> Self {
            Self { slots: array_of!(Slot::new()) }
        }
    }

    /// Performs the requests that other processors made to the processor that executes the call. The call first
    /// performs earlier stop requests that were not answered in time. The call then performs the new request, if there
    /// is one.
    ///
    /// If a call of `drain` interrupts another call of `drain` on the same processor, the new call returns at once. The
    /// interrupted call then looks for requests once more.
    ///
    /// If [`serve`](RemoteProcessors::serve) unwinds, the processor that made the request gets the error
    /// [`NoAnswer`](InterfaceError::NoAnswer). The next call of `drain` stops the source of that request. If a task is
    /// killed within `drain`, or the processor is reset during the call, use [`reclaim`](Self::reclaim).
    ///
    /// # In a task
    /// The handler of the inter-processor interrupt may be unable to use the processor's
    /// [`Session`](pmu_core::profile::Session). The handler can then wake a task that calls this function. The task is
    /// bound to the processor. These rules hold for a woken task:
    ///
    /// - A caller that starts or stops a source on another processor waits until the woken task of that processor has
    ///   run. The caller waits only as long as [`keep_waiting`](RemoteProcessors::keep_waiting) returns `true`. During
    ///   this time no other task can start or stop a profile. Functions such as
    ///   [`try_start`](crate::Profiles::try_start), which never wait, return [`Busy`](crate::ProfileError::Busy). Give
    ///   the woken task a higher priority than the tasks that start and stop profiles. The woken task must take no lock
    ///   that these tasks hold.
    /// - A woken task of the lowest priority answers only when its processor has nothing else to do. In this case,
    ///   start and stop profiles with [`try_start`](crate::Profiles::try_start) and
    ///   [`try_stop`](crate::Profiles::try_stop), and let `keep_waiting` return `false` soon. If the call fails, sleep
    ///   before you try again. A task that spins keeps the woken task of its own processor from running.
    /// - A start that is not answered in time has no effect. If the woken task is performing the start at that time,
    ///   the task then stops the source. The error is [`NoAnswer`](InterfaceError::NoAnswer), and the caller has to try
    ///   again. If the start was part of [`try_update_processors`](crate::Profiles::try_update_processors), the next
    ///   call of that function tries the start again.
    /// - A stop that is not answered in time stays in the mailbox, and the woken task does the stop before any later
    ///   request. The error is also `NoAnswer`, but the caller need not try again. Until the stop is done, the source
    ///   may still interrupt, but its interrupts reach no profile object.
    /// - Preemption must be off during `drain`, so that no task that starts or stops profiles runs on the same
    ///   processor.
    ///
    /// # Context
    /// Interrupt or task, on the processor that [`RemoteProcessors::interrupt`] interrupted. The context must be able
    /// to use the processor's session.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// use pmu_kprofile::hardware::{Mailbox, RemoteProcessors};
    /// # static WORK: AtomicBool = AtomicBool::new(false);
    /// # fn wake_the_task_of_this_processor() { WORK.store(true, Ordering::Relaxed) }
    /// # fn is_woken() -> bool { WORK.swap(false, Ordering::Relaxed) }
    /// # fn with_interrupts_on<R>(act: impl FnOnce() -> R) -> R { act() }
    ///
    /// static MAILBOX: Mailbox<4> = Mailbox::new();
    ///
    /// /// The handler of the inter-processor interrupt, where the session must not be used in it.
    /// fn on_interrupt() {
    ///     wake_the_task_of_this_processor();
    /// }
    ///
    /// /// The task, bound to its processor, above the tasks that start and stop profiles.
    /// fn task(processors: &impl RemoteProcessors) {
    ///     while is_woken() {
    ///         MAILBOX.drain(processors);
    ///     }
    /// }
    /// ```
    // Linked once: a handler and each use of a session serve requests.
    #[inline(never)] // 128 bytes of the Hermit-like glue, at `opt-level` 3.
    pub fn drain(&self, processors: &impl RemoteProcessors) {
        if let Some(slot) = self.slots.get(processors.this_processor().index()) {
            slot.drain(processors);
        }
    }

    /// Makes this mailbox usable again for a processor, after a call of [`drain`](Self::drain) on that processor ended
    /// without returning or unwinding.
    ///
    /// A call of `drain` ends in this way if the task that made the call is killed, or if the processor is reset. If
    /// the call ended while it performed a request, the profile source in the request may still be running. The next
    /// call of `drain` on that processor stops the source.
    ///
    /// # Context
    /// Any.
    ///
    /// # Safety
    /// - No call of [`drain`](Self::drain) is running on the processor.
    /// - No interrupted or preempted call of `drain` will be resumed on the processor.
    ///
    /// ```
    /// # use pmu_core::frame::ProcessorNumber;
    /// # use pmu_kprofile::hardware::Mailbox;
    /// # static MAILBOX: Mailbox<4> = Mailbox::new();
    /// // SAFETY: the processor was reset, and does not answer interrupts yet.
    /// unsafe { MAILBOX.reclaim(ProcessorNumber::from_index(3)) };
    /// ```
    ///
    /// Wrong use: a task is preempted within `drain`, and the kernel calls `reclaim` for the task's processor. When the
    /// task is resumed, two calls of `drain` may write this processor's answer at the same time, which is a data race.
    pub unsafe fn reclaim(&self, processor: ProcessorNumber) {
        if let Some(slot) = self.slots.get(processor.index()) {
            // SAFETY: the caller's promise.
            unsafe { slot.reclaim(processor) };
        }
    }

    /// Posts a request to a processor and waits for its answer.
    #[inline(never)] // 800 bytes of the glue, at `opt-level` 3.
    pub(super) fn ask(
        &self,
        processors: &impl RemoteProcessors,
        processor: ProcessorNumber,
        request: SourceRequest,
    ) -> Result<(), InterfaceError> {
        let no_answer = InterfaceError::NoAnswer(processor);
        let mut turns = 0;
        let mut wait = || {
            self.drain(processors);
            spin_loop();
            turns += 1;
            processors.keep_waiting(turns)
        };
        if processor == processors.this_processor() {
            // First the stops that were left here. A task that was preempted within `drain` may be serving them.
            self.drain(processors);
            let slot = self.slots.get(processor.index());
            while slot.is_some_and(|slot| !slot.is_idle()) {
                if !wait() {
                    return self.unanswered(processors, processor, request);
                }
            }
            return match processors.serve(request) {
                Err(InterfaceError::NoAnswer(_)) => self.unanswered(processors, processor, request),
                answer => answer,
            };
        }
        let slot = self.slots.get(processor.index()).ok_or(no_answer)?;
        while !slot.post(request) {
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
                // The request is being served, and its answer would be too late: the processor that serves it undoes a
                // start.
                if slot.abandon(request) {
                    return Err(no_answer);
                }
                // If neither succeeds, the processor has taken or answered the request in between: the loop looks
                // again.
                if slot.cancel(request) {
                    break;
                }
            }
        }
        self.unanswered(processors, processor, request)
    }

    /// Leaves a stop that was not served to its processor. Returns the error of the request.
    // Linked once: a request fails at several points.
    #[inline(never)] // 176 bytes of the glue, at `opt-level` 3.
    fn unanswered(
        &self,
        processors: &impl RemoteProcessors,
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

/// Functions of the kernel that a [`Mailbox`](super::Mailbox) calls. The functions interrupt another processor, perform
/// a request with the session of the processor that executes the call, and limit how long a caller waits for an answer.
///
/// # For implementers
/// - [`interrupt`](Self::interrupt) makes the other processor call [`Mailbox::drain`](super::Mailbox::drain) soon, from
///   the handler of an inter-processor interrupt or from a task that the handler wakes. `interrupt` does not wait for
///   that call.
/// - [`serve`](Self::serve) is called in task context, and in the handler of the inter-processor interrupt if the
///   handler calls `drain`. Mask the inter-processor interrupt while any code uses the session; otherwise the handler
///   may find the session in use.
/// - [`keep_waiting`](Self::keep_waiting) limits how long a start or a stop waits for another processor.
///
/// # Examples
///
/// ```
/// use pmu_core::profile::{InterfaceError, KProfileSource};
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::Affinity;
/// use pmu_kprofile::hardware::{Mailbox, Remote, RemoteProcessors, SourceRequest};
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
/// impl RemoteProcessors for Kernel {
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
pub trait RemoteProcessors {
    /// Returns the processor that executes the call: see
    /// [`ProfileHardware::this_processor`](crate::ProfileHardware::this_processor).
    fn this_processor(&self) -> ProcessorNumber;

    /// Returns whether this processor is handling an interrupt: see
    /// [`ProfileHardware::in_interrupt`](crate::ProfileHardware::in_interrupt).
    fn in_interrupt(&self) -> bool;

    /// Returns the processors that are active and have a session: see
    /// [`ProfileHardware::active_processors`](crate::ProfileHardware::active_processors).
    fn active_processors(&self) -> Affinity;

    /// Returns whether the profile interface supports a source: see
    /// [`ProfileHardware::supports`](crate::ProfileHardware::supports).
    fn supports(&self, source: KProfileSource) -> bool;

    /// Performs a request with the session of the processor that executes the call.
    ///
    /// # Errors
    /// - The error that the session returned.
    /// - [`NoAnswer`](InterfaceError::NoAnswer): the session is in use. If the request is a stop, the
    ///   [`Mailbox`](super::Mailbox) keeps the request, and performs the stop later.
    /// - [`NoSession`](InterfaceError::NoSession): the processor has no session, so no source runs on it.
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError>;

    /// Interrupts another processor. On that processor, the handler of the interrupt calls
    /// [`Mailbox::drain`](super::Mailbox::drain), or wakes a task that calls `drain`.
    fn interrupt(&self, processor: ProcessorNumber);

    /// Returns whether to keep waiting for another processor's answer. `turns` is the number of iterations of the
    /// waiting loop so far.
    fn keep_waiting(&self, turns: u64) -> bool;
}

/// The profile hardware of several processors, reached through a mailbox.
///
/// ```
/// use pmu_core::profile::{InterfaceError, KProfileSource};
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::Affinity;
/// use pmu_kprofile::hardware::{Mailbox, Remote, RemoteProcessors, SourceRequest};
///
/// static MAILBOX: Mailbox<2> = Mailbox::new();
///
/// struct Kernel;
///
/// impl RemoteProcessors for Kernel {
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

impl<'m, K: RemoteProcessors, const P: usize> Remote<'m, K, P> {
    /// Creates the profile hardware of several processors. Each of these processors must [drain](Mailbox::drain)
    /// `mailbox`.
    pub const fn new(mailbox: &'m Mailbox<P>, processors: K) -> Self {
        Self { mailbox, processors }
    }
}

impl<K: RemoteProcessors, const P: usize> ProfileHardware for Remote<'_, K, P> {
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

/// Request to a processor: start or stop a profile source with the processor's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SourceRequest {
    /// Start this source.
    Start(KProfileSource),
    /// Stop this source.
    Stop(KProfileSource),
}
