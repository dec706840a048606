//! The session of a processor, used on the processor, and reached from other processors.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::frame::ProcessorNumber;
use pmu_core::memory::EventTable;
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_core::{CounterUnit, EventSource, Events};
use pmu_kprofile::hardware::{Remote, RemoteProcessors, SourceRequest};
use pmu_kprofile::{Affinity, ProfileError, Profiles};

use crate::kernel::pmu::{LocalState, Pmu, PmuError, PmuSession};
use crate::kernel::required::Kernel;
use crate::kernel::thread_events::Pages;
use crate::per_processor::Busy;

/// A slot that is used. At the end, also if the use unwinds, the pages of user mode and the timer of the clocks are
/// brought up to date.
struct Used<'s, K: Kernel, const P: usize, const E: usize, const N: usize> {
    pmu: &'static Pmu<K, P, E, N>,
    before: Pages<E>,
    slot: &'s mut Option<LocalState<K>>,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Drop for Used<'_, K, P, E, N> {
    #[inline]
    fn drop(&mut self) {
        // On unwinding, too: a page must not show a counter that another event has by now.
        let is_suspended = is_suspended(self.slot);
        self.pmu.publish(self.slot.as_mut().filter(|_| !is_suspended), &self.before);
        self.pmu.settle_clock_timer();
    }
}

/// Sends requests to the processors of a [`Pmu`]: to start or to stop the source of a profile.
#[derive(Debug)]
pub struct CrossCalls<K: Kernel, const P: usize, const E: usize, const N: usize>(
    &'static Pmu<K, P, E, N>,
);

/// The counters and timers of all processors of a [`Pmu`], for profile objects.
pub type PmuHardware<K, const P: usize, const E: usize, const N: usize> =
    Remote<'static, CrossCalls<K, P, E, N>, P>;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Returns the profile hardware of all processors that are up, for profile objects that the kernel creates itself.
    ///
    /// The kernel must be [pinned](Kernel::pinned) while it starts or stops a profile object with this hardware.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Kernel, Pmu};
    /// use pmu_kprofile::{ProfileError, ProfileObject};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// fn start(object: &'static ProfileObject<'static>) -> Result<(), ProfileError> {
    ///     MyKernel::pinned(|| PMU.profiles().try_start(object, &mut PMU.hardware()))
    /// }
    /// ```
    pub const fn hardware(&'static self) -> PmuHardware<K, P, E, N> {
        Remote::new(&self.mailbox, CrossCalls(self))
    }

    /// Calls `act` with the session of the processor that executes the call, and with the description of the
    /// processor's counters.
    ///
    /// Use this for operations that `Pmu` itself does not have, such as those of
    /// [profile sources](pmu_core::profile::Session::start).
    ///
    /// For the [watchdog](Self::watch) and for profiles, `Pmu` itself opens events in the session. The method
    /// [`events`](pmu_core::CounterSession::events) of the session does not list these events. A new event can get the
    /// `EventId` of a closed event. If a kernel may still hold the `EventId`s of closed events, the kernel gives each
    /// event a different [tag](pmu_core::Event::tagged). Before the kernel uses an `EventId`, it compares the event's
    /// tag with the result of [`event_tag`](pmu_core::CounterSession::event_tag).
    ///
    /// Between two calls of `with`, the task may move to another processor, where the same
    /// [`EventId`](pmu_core::EventId) means another event. So operations that use the same `EventId` belong in one call
    /// of `with`.
    ///
    /// During the call, no profile starts or stops on this processor: see [`profile`](Self::profile).
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Stops the counters by themselves at each interrupt, on this processor.
    /// fn freeze() -> Result<(), PmuError> {
    ///     Ok(PMU.with(|session, _| session.freeze_on_interrupt())??)
    /// }
    /// # let _ = freeze();
    /// ```
    ///
    /// # Context
    /// Task. The call is [pinned](Kernel::pinned). If `act` calls `with`, that call fails.
    ///
    /// # Errors
    /// [`NotUp`](PmuError::NotUp), or [`Session`](PmuError::Session): `act` was not called.
    pub fn with<R>(
        &'static self,
        act: impl FnOnce(&mut PmuSession<K>, &CounterUnit) -> R,
    ) -> Result<R, PmuError> {
        K::pinned(|| self.with_local(|local| act(&mut local.session, &local.unit)))
    }

    /// Handles the interrupt by which other processors request that this processor start or stop profile sources. The
    /// call carries out the requests. The handler ends the interrupt itself.
    ///
    /// If the handler interrupted a task that uses the processor's session, that task carries out the requests when it
    /// has finished with the session. A suspended processor carries out the requests when it resumes.
    ///
    /// # Context
    /// The handler of the interrupt that [`Kernel::interrupt`] sends. That interrupt is not an NMI.
    pub fn serve_call(&'static self) {
        match self.sessions.with(|slot| is_suspended(slot)) {
            Ok(false) => self.mailbox.drain(&CrossCalls(self)),
            // The interrupted task serves the request when it is done with the session, and a resume does after a
            // suspend.
            Ok(true) | Err(_) => {
                if let Some(of) = self.processors.get(K::this_processor()) {
                    of.is_asked.store(true, Relaxed);
                }
            }
        }
    }

    /// Uses the session of this processor, in a task that is pinned or in a handler.
    pub(super) fn with_local<R>(
        &'static self,
        act: impl FnOnce(&mut LocalState<K>) -> R,
    ) -> Result<R, PmuError> {
        self.session_slot(|slot| match slot {
            Some(local) if local.is_suspended => Err(PmuError::Suspended),
            Some(local) => Ok(act(local)),
            None => Err(PmuError::NotUp),
        })?
    }

    /// Uses the slot of this processor's session, in a task that is pinned or in a handler.
    pub(super) fn session_slot<R>(
        &'static self,
        act: impl FnOnce(&mut Option<LocalState<K>>) -> R,
    ) -> Result<R, Busy> {
        let (result, is_suspended) = self.sessions.with(|slot| {
            let used = Used { pmu: self, before: self.pages(), slot };
            let result = act(used.slot);
            (result, is_suspended(used.slot))
        })?;
        // Interrupts that met the session in use have left their requests.
        if !is_suspended {
            self.serve_postponed();
        }
        Ok(result)
    }

    /// Serves the requests that came while the session was in use.
    // Linked once: each use of the session ends so.
    #[inline(never)] // 96 bytes of the glue, at `opt-level` 3.
    fn serve_postponed(&'static self) {
        if let Some(of) = self.processors.get(K::this_processor())
            // Relaxed: only interrupts and tasks of this processor leave requests here.
            && of.is_asked.swap(false, Relaxed)
        {
            self.mailbox.drain(&CrossCalls(self));
        }
    }

    /// Changes the lists of profiles, and waits for other tasks that do.
    pub(super) fn change(
        &'static self,
        mut attempt: impl FnMut(
            &Profiles<N, P>,
            &mut PmuHardware<K, P, E, N>,
        ) -> Result<(), ProfileError>,
    ) -> Result<(), PmuError> {
        let mut turns = 0;
        loop {
            // Pinned for the attempt alone: the scheduler may run the task that is waited for between two attempts.
            let outcome = K::pinned(|| attempt(&self.profiles, &mut self.hardware()));
            turns += 1;
            if outcome != Err(ProfileError::Busy) || !K::keep_waiting(turns) {
                return Ok(outcome?);
            }
            core::hint::spin_loop();
        }
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> RemoteProcessors
    for CrossCalls<K, P, E, N>
{
    fn this_processor(&self) -> ProcessorNumber {
        number(K::this_processor())
    }

    fn in_interrupt(&self) -> bool {
        K::in_interrupt()
    }

    #[inline(never)] // 240 bytes of the Hermit-like glue, at `opt-level` 3.
    fn active_processors(&self) -> Affinity {
        let up = self.0.processors.iter().enumerate().filter(|(_, of)| of.is_up.load(Relaxed));
        up.map(|(index, _)| number(index)).collect()
    }

    fn supports(&self, source: KProfileSource) -> bool {
        let queried =
            |machine| Events::new(machine, EventTable::none()).adding(&self.0.added).query(source);
        self.0.machine().is_some_and(|machine| queried(machine).is_supported())
    }

    #[inline(never)] // 656 bytes of the glue, at `opt-level` 3.
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
        let mut served = Ok(());
        let reached = self.0.with_local(|local| {
            served = match request {
                SourceRequest::Start(source) => local.session.start_at(source, K::now()),
                SourceRequest::Stop(source) => local.session.stop(source),
            };
        });
        let this = RemoteProcessors::this_processor(self);
        match reached {
            Ok(()) => served,
            // The task that has the session serves the request when it is done.
            Err(PmuError::Session(Busy::InUse) | PmuError::Suspended) => {
                // A stop stays for then, also one that this processor asked of itself.
                if let Some(of) = self.0.processors.get(this.index()) {
                    of.is_asked.store(true, Relaxed);
                }
                Err(InterfaceError::NoAnswer(this))
            }
            Err(_) => Err(InterfaceError::NoSession(this)),
        }
    }

    fn interrupt(&self, processor: ProcessorNumber) {
        K::interrupt(processor.index());
    }

    fn keep_waiting(&self, turns: u64) -> bool {
        K::keep_waiting(turns)
    }
}

fn is_suspended<K: Kernel>(slot: &Option<LocalState<K>>) -> bool {
    slot.as_ref().is_some_and(|local| local.is_suspended)
}

/// Returns the number of a processor whose index is below the number of processors of a [`Pmu`].
pub(super) fn number(index: usize) -> ProcessorNumber {
    ProcessorNumber::from_index(index as u16)
}
