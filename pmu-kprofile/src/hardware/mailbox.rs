//! The mailbox: requests to other processors, drained by the handler of an inter-processor interrupt.
//!
//! A request is posted to the other processor's slot, and that processor is interrupted. Its handler drains the slot
//! with its own session. A caller that waits for an answer drains its own slot meanwhile, so two requests that cross do
//! not deadlock. A slot holds one request, and nothing is allocated. A processor that does not answer within the
//! embedder's bound is an error. A start is then withdrawn or undone; a stop stays in the slot, and is done before any
//! later request.

use pmu_core::{InterfaceError, ProcessorNumber};

use crate::hardware::processors::Processors;
use crate::hardware::request::SourceRequest;
use crate::hardware::slot::Slot;
use crate::sync::{array_of, const_fn, spin_loop};

/// Requests to other processors to start and stop sources: one slot for each processor whose index is below `P`.
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

    /// Performs the requests of other processors to this processor: first the stops that were not done in time, then
    /// the posted request.
    ///
    /// A call that interrupts another call returns at once; the interrupted call then looks for requests once more. If
    /// [`serve`](Processors::serve) unwinds, the requester's error is [`NoAnswer`](InterfaceError::NoAnswer), the
    /// source is left to be stopped by the next call, and the slot stays usable. If a call ends without returning or
    /// unwinding, see [`reclaim`](Self::reclaim).
    ///
    /// # In a task
    /// If the handler of the inter-processor interrupt cannot use the session, it can wake a task, bound to the
    /// processor, which calls this function. The following then holds:
    ///
    /// - A start or a stop on another processor waits until the task has run, for as long as
    ///   [`keep_waiting`](Processors::keep_waiting) says. Meanwhile, other tasks that start or stop wait too, or their
    ///   error is [`Busy`](crate::ProfileError::Busy). Give the task a higher priority than the tasks that start and
    ///   stop, and let it take no lock that they hold.
    /// - An idle task, of the lowest priority, answers only when its processor has nothing else to do. With such a
    ///   task, use [`try_start`](crate::Profiles::try_start) and [`try_stop`](crate::Profiles::try_stop), let
    ///   `keep_waiting` end soon, and sleep between tries: a task that spins keeps the idle task of its own processor
    ///   from answering.
    /// - A start that is not answered in time is withdrawn, or undone when the task runs. The error is
    ///   [`NoAnswer`](InterfaceError::NoAnswer): the caller tries again. A start by
    ///   [`try_update_processors`](crate::Profiles::try_update_processors) is tried again by the next call of that
    ///   function.
    /// - A stop that is not answered in time is left to the task, which does it before any later request. The error is
    ///   `NoAnswer` too, but the caller need not try again. Until the stop is done, interrupts of the source hit no
    ///   object.
    /// - Preemption is off within `drain`: meanwhile no task that starts or stops runs on the same processor.
    ///
    /// # Context
    /// The handler of the interrupt that [`Processors::interrupt`] sends, or any other context of that processor in
    /// which the processor's session may be used.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// use pmu_kprofile::{Mailbox, Processors};
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
    /// fn task(processors: &impl Processors) {
    ///     while is_woken() {
    ///         MAILBOX.drain(processors);
    ///     }
    /// }
    /// ```
    pub fn drain(&self, processors: &impl Processors) {
        if let Some(slot) = self.slots.get(processors.this_processor().index()) {
            slot.drain(processors);
        }
    }

    /// Makes the slot of a processor usable again after a call of [`drain`](Self::drain) there ended without returning
    /// or unwinding.
    ///
    /// A call ends in this way if its task was killed, or the processor was reset. If the call was serving a request,
    /// the source of the request is left to be stopped by the next call of `drain`.
    ///
    /// # Context
    /// Any.
    ///
    /// # Safety
    /// - No call of [`drain`](Self::drain) is running on the processor, and no interrupted or preempted call of `drain`
    ///   will be resumed there.
    ///
    /// ```
    /// # use pmu_core::ProcessorNumber;
    /// # use pmu_kprofile::Mailbox;
    /// # static MAILBOX: Mailbox<4> = Mailbox::new();
    /// // SAFETY: the processor was reset, and does not answer interrupts yet.
    /// unsafe { MAILBOX.reclaim(ProcessorNumber::from_index(3)) };
    /// ```
    ///
    /// Wrong: a processor whose task is preempted within `drain`. When the task is resumed, it writes its answer while
    /// another call on that processor writes another answer.
    pub unsafe fn reclaim(&self, processor: ProcessorNumber) {
        if let Some(slot) = self.slots.get(processor.index()) {
            // SAFETY: the caller's promise.
            unsafe { slot.reclaim(processor) };
        }
    }

    /// Posts a request to a processor and waits for its answer.
    pub(super) fn ask(
        &self,
        processors: &impl Processors,
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
                if slot.abandon(request) {
                    return Err(no_answer);
                }
                if slot.withdraw(request) {
                    break;
                }
            }
        }
        self.unanswered(processors, processor, request)
    }

    /// Leaves a stop that was not served to its processor. Returns the error of the request.
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
