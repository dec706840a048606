//! The counters in the hands of a guest.

use pmu_core::lending::LentCounters;
use pmu_core::profile::{InterfaceError, Report};
use pmu_core::{CounterError, CounterSet};

use crate::kernel::error::PmuError;
use crate::kernel::interrupt::PmuSample;
use crate::kernel::of_processor::OfProcessor;
use crate::kernel::pmu::Pmu;
use crate::kernel::required::Kernel;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Lends the counters of the processor that executes the call while `guest` runs, for example to a virtual
    /// processor. All events and [`Facilities`](crate::Facilities) stop meanwhile, the profiles by events and the
    /// watchdog too, and continue afterwards with the counts and periods that they had. On a processor without
    /// counters, `guest` runs with none. `sampled` gets each pending sample of an event that the kernel opened; those
    /// of profiles are lost.
    ///
    /// While `guest` runs, the handler passes an interrupt on to the guest if
    /// [`Interrupted::lent`](crate::Interrupted::lent) is set. If `guest` panics and unwinds, the counters stay lent:
    /// the kernel calls [`processor_resumed`](Self::processor_resumed).
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// fn run(enter_guest: fn(global_control: u64)) -> Result<(), PmuError> {
    ///     PMU.lend(
    ///         |_sample| (),
    ///         |lent| {
    ///             enter_guest(lent.global_control());
    ///             lent.set_programmed(true); // the guest wrote to the registers of the counters
    ///         },
    ///     )
    /// }
    /// ```
    ///
    /// # Context
    /// Task. The call, and so `guest`, is [pinned](Kernel::pinned). An interrupt may come at any time.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): `guest` was
    ///   not run.
    /// - [`Interface`](PmuError::Interface): accesses to registers failed, before `guest`, which was not run, or after
    ///   it. In the latter case all other counters are programmed again, and what was on the counters that did not
    ///   answer no longer runs. The kernel calls [`processor_resumed`](Self::processor_resumed), which starts profiles
    ///   and the watchdog again, and starts its own events whose
    ///   [`event_status`](pmu_core::CounterSession::event_status) is an error.
    pub fn lend(
        &'static self,
        sampled: impl FnMut(PmuSample<'_, K>),
        guest: impl FnOnce(&mut LentCounters),
    ) -> Result<(), PmuError> {
        K::pinned(|| {
            self.here(|here| {
                let mut window = match here.session.lend_all(K::now(), self.of_kernel(sampled)) {
                    Err(InterfaceError::Counters(CounterError::NotAvailable(_))) => {
                        guest(&mut LentCounters::unowned(CounterSet::NONE, 0));
                        return Ok(());
                    }
                    window => window?,
                };
                guest(window.lent());
                let Err(error) = window.end(K::now()) else { return Ok(()) };
                here.session.reprogram_all(|_, _| ())?;
                // A facility alone is programmed again by now.
                if error.counters.is_empty() {
                    Ok(())
                } else {
                    Err(CounterError::from(error).into())
                }
            })?
            .map_err(PmuError::Interface)
        })
    }

    /// Returns a function that passes on the samples of the events that the kernel opened.
    pub(super) fn of_kernel(
        &'static self,
        mut sampled: impl FnMut(PmuSample<'_, K>),
    ) -> impl FnMut(Report, PmuSample<'_, K>) {
        let tag = self.processors.get(K::this_processor()).map(OfProcessor::watchdog_tag);
        move |report, sample| match report {
            Report::Event(overflow) if tag != Some(overflow.tag) => sampled(sample),
            _ => {}
        }
    }
}
