//! The mailbox: requests to other processors, drained by the handler of an inter-processor interrupt.
//!
//! A request is posted to the other processor's slot, and that processor is interrupted. Its handler drains the slot
//! with its own session. While a caller waits for an answer, it drains its own slot, so two requests that cross do not
//! deadlock. A slot holds one request, and nothing is allocated. A processor that does not answer within the embedder's
//! bound is an error. An unanswered start is withdrawn or undone; an unanswered stop stays in the slot, and is done
//! before any later request.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::InterfaceError;

use crate::hardware::processors::RemoteProcessors;
use crate::hardware::request::SourceRequest;
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
    #[inline(never)] // Linked once: a handler and each use of a session serve requests.
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
    #[inline(never)]
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
    #[inline(never)] // Linked once: a request fails at several points.
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
