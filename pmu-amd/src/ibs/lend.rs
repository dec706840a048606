//! A unit beside lent counters: suspended for the borrower, such as a guest, and brought back.

use pmu_core::{Facility, FacilityControl, Interrupted, MsrBackend, MsrFault};

use crate::ibs::record::IbsRecord;
use crate::ibs::sampler::IbsSampler;

/// A sampling unit beside counters that are lent: made by [`IbsSampler::lent`], for
/// [`lend_with`](pmu_core::CounterSession::lend_with).
///
/// The borrower finds the unit stopped and without a sample. The registers of the last sample keep their values, so a
/// hypervisor intercepts a guest's accesses to them.
#[derive(Debug)]
pub struct LentIbs<'s, 'a, M, F> {
    pub(crate) sampler: &'s mut IbsSampler<'a, M>,
    pub(crate) report: F,
}

impl<'a, M: MsrBackend> IbsSampler<'a, M> {
    /// Returns the unit beside counters that are lent, to a guest for instance: an argument of
    /// [`lend_with`](pmu_core::CounterSession::lend_with), whose window suspends the unit. `report` is called with each
    /// sample that is found meanwhile, as by [`Ibs::new`](crate::ibs::Ibs::new).
    ///
    /// ```
    /// use pmu_amd::ibs::IbsSampler;
    /// use pmu_core::{CounterError, CounterSession, EventSource, MsrBackend, Platform};
    /// # fn enter_guest() {}
    /// /// Samples neither the guest, nor shows it that the host samples.
    /// fn run_guest<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     ops: &mut IbsSampler<'_, M>,
    ///     clock: impl Fn() -> u64,
    /// ) -> Result<(), CounterError> {
    ///     let window = counters.lend_with(clock(), ops.lent(|_| ()), |_, _| ())?;
    ///     enter_guest();
    ///     Ok(window.end(clock())?)
    /// }
    /// ```
    pub fn lent<F: FnMut(&IbsRecord)>(&mut self, report: F) -> LentIbs<'_, 'a, M, F> {
        LentIbs { sampler: self, report }
    }
}

/// As [`Ibs`](crate::ibs::Ibs) of the same memory.
impl<R: MsrBackend, F: FnMut(&IbsRecord)> Facility for LentIbs<'_, '_, R, F> {
    const ALONE: bool = true;

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        self.sampler.facility(&mut self.report).collect(msr, interrupted)
    }
}

/// The accesses are those of the sampler's own backend.
impl<R: MsrBackend, F: FnMut(&IbsRecord)> FacilityControl for LentIbs<'_, '_, R, F> {
    fn suspend<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let sampler = &mut *self.sampler;
        if sampler.lent.is_some() || !sampler.is_open() {
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
                    sampler.memory.publish_again();
                    let _ = sampler.enable();
                }
                Err(fault)
            }
        }
    }

    fn resume<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let sampler = &mut *self.sampler;
        let Some(sampled) = sampler.lent else { return Ok(()) };
        let found = sampler.unit.disable(&sampler.msr)?;
        sampler.unit.clear(&sampler.msr, found)?;
        if sampled {
            sampler.memory.publish_again();
            sampler.enable()?;
        }
        sampler.lent = None;
        Ok(())
    }
}
