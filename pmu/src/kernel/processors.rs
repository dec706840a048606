//! Processors that come up, go down, and are suspended.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::{CounterSet, Snapshot, SourceInterface, WithOpenedEvents};

use crate::kernel::duties::Duties;
use crate::kernel::error::PmuError;
use crate::kernel::of_processor::Here;
use crate::kernel::pmu::Pmu;
use crate::kernel::reach::number;
use crate::kernel::required::Kernel;
use crate::per_processor::Busy;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Takes the counters of the processor that executes the call, and starts the sources of started profiles on the
    /// processor. `this_processor` describes the processor. The first processor that comes up decides the
    /// [`Machine`](crate::Machine).
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::raw_cpuid::native_cpuid::CpuIdReaderNative;
    /// use pmu::core::Snapshot;
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Each processor, as it comes up, and when it comes back.
    /// fn on_this_processor() -> Result<(), PmuError> {
    ///     PMU.processor_up(&Snapshot::capture(CpuIdReaderNative))
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor.
    ///
    /// # Errors
    /// - [`IsUp`](PmuError::IsUp): the processor is already up.
    /// - [`Session`](PmuError::Session): the processor's number is `P` or more.
    /// - [`Interface`](PmuError::Interface): the counters could not be taken. In an emulator, counters that CPUID
    ///   declares may be [unresponsive](pmu_core::CounterError::Unresponsive).
    /// - [`Profile`](PmuError::Profile): the processor is up, but a started profile does not run on it.
    pub fn processor_up(&'static self, this_processor: &Snapshot) -> Result<(), PmuError> {
        let this = K::pinned(|| {
            let index = K::this_processor();
            let of = self.processors.get(index).ok_or(Busy::NoPlace { processor: index })?;
            let sources = self.detect(this_processor);
            self.place(|place| {
                if place.is_some() {
                    return Err(PmuError::IsUp);
                }
                let session = WithOpenedEvents::new(sources, &of.events).initialize(
                    this_processor,
                    K::counters(),
                    K::msr(),
                    Duties::platform(),
                    &of.counters,
                )?;
                *place = Some(Here { session, unit: sources.unit_of(this_processor) });
                of.is_up.store(true, Relaxed);
                Ok(number(index))
            })?
        })?;
        self.change(|profiles, hardware| profiles.try_restart_processor(this, hardware))
    }

    /// Stops everything on the processor that executes the call, and gives its counters back. Started profiles continue
    /// on the other processors.
    ///
    /// All events of the processor are closed, and their identities end. After the next
    /// [`processor_up`](Self::processor_up), an earlier [`EventId`](pmu_core::EventId) may be that of another event,
    /// such as the watchdog's. So before this call, the kernel closes its own events, or switches them out.
    ///
    /// # Context
    /// Task, on the processor.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session): the processor is not up, or its session is in use.
    /// - [`Interface`](PmuError::Interface): accesses to a register failed. The processor is still up, and the call may
    ///   be repeated.
    /// - [`Profile`](PmuError::Profile): the processor is down, but the lists of profiles still contain it.
    pub fn processor_down(&'static self) -> Result<(), PmuError> {
        let this = K::pinned(|| {
            let index = K::this_processor();
            self.place(|place| {
                place.as_mut().ok_or(PmuError::NotUp)?.session.shut_down()?;
                *place = None;
                if let Some(of) = self.processors.get(index) {
                    of.watchdog.unwatch();
                    of.is_up.store(false, Relaxed);
                }
                Ok::<_, PmuError>(number(index))
            })?
        })?;
        self.change(|profiles, hardware| profiles.try_restart_processor(this, hardware))
    }

    /// Programs the counters of the processor that executes the call again, after their registers lost their contents
    /// in a suspend. Profiles, events and the watchdog continue. Returns the counters whose events begin new periods:
    /// see [`CounterSession::reprogram`](pmu_core::CounterSession::reprogram).
    ///
    /// The call programs neither branch records nor instruction-based sampling: see
    /// [`BranchRecorder::reprogram`](pmu_core::BranchRecorder::reprogram) and
    /// [`IbsSampler::reprogram`](pmu_amd::ibs::IbsSampler::reprogram).
    ///
    /// Overflows that were pending when the processor was suspended are not reported, because the interrupted address
    /// is unknown.
    ///
    /// What the lost counters counted since their last interrupt is lost. So the value of an event can be lower than a
    /// value that was read before the suspend. To keep the counts, the kernel stops its events before the suspend, or
    /// [switches](pmu_core::CounterSession::switch_out) them out, and starts them or switches them in after this call.
    ///
    /// # Context
    /// Task, on the processor.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session): the processor is not up, or its session is in use.
    /// - [`Interface`](PmuError::Interface): accesses to a register failed, so some profiles or events, or the
    ///   watchdog, do not run on the processor. A second call does not start them again. Instead, the kernel calls
    ///   [`processor_down`](Self::processor_down) and [`processor_up`](Self::processor_up), which starts the profiles.
    ///   Then the kernel opens its own events again, and calls [`watch`](Self::watch).
    pub fn processor_resumed(&'static self) -> Result<CounterSet, PmuError> {
        Ok(self.with(|session, _| session.reprogram_all(|_| ()))??)
    }
}
