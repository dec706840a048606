//! A unit beside lent counters: suspended for the borrower, such as a guest, and brought back.

use pmu_core::{Facility, FacilityControl, Interrupted, MsrBackend, MsrFault};

use crate::ibs::record::IbsRecord;
use crate::ibs::sampler::IbsSampler;

/// Argument for [`lend_with`](pmu_core::CounterSession::lend_with): suspends the sampling unit of an [`IbsSampler`]
/// while a borrower of the counters, such as a guest, runs. [`IbsSampler::lent`] creates the argument.
///
/// While the borrower runs, the sampling unit is stopped, and its valid bit is clear. The unit's data registers still
/// hold the host's last sample, so a hypervisor must intercept a guest's accesses to these registers.
#[derive(Debug)]
pub struct LentIbs<'s, 'a, M, F> {
    pub(crate) sampler: &'s mut IbsSampler<'a, M>,
    pub(crate) report: F,
}

impl<'a, M: MsrBackend> IbsSampler<'a, M> {
    /// Returns the argument with which [`lend_with`](pmu_core::CounterSession::lend_with) suspends the sampler's unit,
    /// for instance while a guest runs. `lend_with` returns a [window](pmu_core::CounterWindow). When the window ends,
    /// the unit is resumed. If the unit has a sample that was not reported yet, `lend_with` passes the sample to
    /// `report`.
    ///
    /// The interrupt of this sample may still come, during the window or later. [`Ibs`](crate::ibs::Ibs) then
    /// [claims](pmu_core::Claim) the interrupt. During the window, [`service_with`](pmu_core::service_with) accesses no
    /// register. It sets [`Serviced::lent`](pmu_core::Serviced::lent), because the interrupt may also belong to the
    /// borrower of the counters, such as the guest.
    ///
    /// ```
    /// use pmu_amd::ibs::IbsSampler;
    /// use pmu_core::{CounterError, CounterSession, EventSource, MsrBackend, Platform};
    /// # fn enter_guest() {}
    /// /// Does not sample the guest. The guest's accesses to the sampling registers are intercepted.
    /// fn run_guest<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     ops: &mut IbsSampler<'_, M>,
    ///     clock: impl Fn() -> u64,
    /// ) -> Result<(), CounterError> {
    ///     let window = counters.lend_with(clock(), ops.lent(|_| ()), |_, _| ())?;
    ///     enter_guest(); // No early return between `lend_with` and `end`.
    ///     Ok(window.end(clock())?)
    /// }
    /// ```
    pub fn lent<F: FnMut(&IbsRecord)>(&mut self, report: F) -> LentIbs<'_, 'a, M, F> {
        LentIbs { sampler: self, report }
    }
}

/// Services the unit's interrupts like an [`Ibs`](crate::ibs::Ibs) that was created with the sampler's memory.
impl<R: MsrBackend, F: FnMut(&IbsRecord)> Facility for LentIbs<'_, '_, R, F> {
    const ALONE: bool = true;

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        self.sampler.facility(&mut self.report).collect(msr, interrupted)
    }

    fn while_lent(&mut self) -> u32 {
        self.sampler.facility(&mut self.report).while_lent()
    }
}

impl<M: MsrBackend> IbsSampler<'_, M> {
    /// Lets the unit sample again, after its suspension has failed. If the unit has a sample that was not reported, the
    /// interrupt of this sample is under way, and lets the unit sample again.
    fn go_on_as_before(&self) {
        let before = self.memory.publish_again();
        let served = match self.unit.read_control(&self.msr) {
            Ok(found) if self.unit.is_valid(found) && !before.is_waiting() => true,
            Ok(_) => self.enable(before).is_ok(),
            Err(_) => false,
        };
        if !served {
            // The unit may run: an interrupt serves it.
            self.memory.presume_running(before);
        }
    }

    /// Stops what a borrower left, and discards its sample.
    fn end_borrowed(&self) -> Result<(), MsrFault> {
        let found = self.unit.disable(&self.msr)?;
        self.unit.clear(&self.msr, found)
    }
}

/// All register accesses use the sampler's own backend.
///
/// If the unit cannot be suspended, the driver lets the unit sample again. If this attempt also fails,
/// [`is_sampling`](IbsSampler::is_sampling) returns `false`. If the unit cannot be resumed at the end of a
/// [window](pmu_core::CounterWindow), the unit stays stopped. The sampler's operations then return
/// [`Lent`](crate::ibs::IbsError::Lent), until the unit is resumed at the end of a later window.
impl<R: MsrBackend, F: FnMut(&IbsRecord)> FacilityControl for LentIbs<'_, '_, R, F> {
    fn suspend<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let sampler = &mut *self.sampler;
        if sampler.lent.is_some() {
            // The unit was not resumed: the next borrower finds it stopped, too.
            return sampler.end_borrowed();
        }
        if !sampler.is_open() {
            return Ok(());
        }
        let state = sampler.memory.state();
        let sampled = state.is_sampling();
        let halted = sampler.halt().and_then(|()| {
            // While the counters are lent, no interrupt serves the unit.
            sampler.facility(&mut self.report).take_pending(&sampler.msr)
        });
        match halted {
            Ok(()) => {
                sampler.lent = Some(sampled);
                Ok(())
            }
            Err(fault) => {
                if sampled {
                    sampler.go_on_as_before();
                }
                Err(fault)
            }
        }
    }

    fn resume<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let sampler = &mut *self.sampler;
        let Some(sampled) = sampler.lent else { return Ok(()) };
        sampler.end_borrowed()?;
        if sampled {
            sampler.go_on()?;
        }
        sampler.lent = None;
        Ok(())
    }
}
