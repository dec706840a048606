//! Operations of a task on hardware beside the counters.

use crate::counters::hooks::facility::Facility;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// Methods by which a task suspends a [`Facility`] and resumes it later. The facility is suspended while the session's
/// counters are [lent](crate::CounterSession::lend_with), for instance to a guest.
///
/// Implement this trait for the type through which tasks control a facility of which events cannot ask anything yet.
/// While the counters are lent, their [window](crate::CounterWindow) borrows the facility mutably. The compiler
/// therefore rejects other uses of the facility until the window ends. `()` stands for no facility. A pair of two
/// facilities is itself a facility.
///
/// This example is a fake facility with one control register. The borrower of the counters may change the register's
/// value.
///
/// ```
/// use pmu_core::{Facility, FacilityControl, MsrAccess, MsrAddress, MsrBackend, MsrFault};
///
/// struct Recorder {
///     control: MsrAddress,
///     enabled: u64,
/// }
/// impl Facility for Recorder {}
/// impl FacilityControl for Recorder {
///     fn suspend<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
///         msr.wrmsr_retrying(self.control, 0)
///     }
///     fn resume<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
///         msr.wrmsr_retrying(self.control, self.enabled)
///     }
/// }
/// ```
///
/// # Context
/// Task, on the processor of the counters. An interrupt may come at any time, and its handler then calls the methods of
/// [`Facility`].
pub trait FacilityControl: Facility {
    /// Stops the facility, and saves the facility's state for [`resume`](Self::resume). Clears all of the facility's
    /// data that the borrower of the counters could read. Does nothing if the facility is already suspended.
    ///
    /// Before this call, the session stops the counters, and reports their pending overflows with the facility's
    /// records.
    ///
    /// # Errors
    /// A register access failed. The facility is in the same state as before the call.
    fn suspend<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault>;

    /// Resumes the facility in the state that it had before [`suspend`](Self::suspend). The borrower of the counters
    /// may have changed the facility's registers, and the facility's bits of the overflow status. If the facility is
    /// not suspended, `resume` does nothing.
    ///
    /// The counters are still stopped during this call, if the processor has a global control register.
    ///
    /// # Errors
    /// A register access failed. The facility stays suspended.
    fn resume<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault>;
}

impl<F: FacilityControl + ?Sized> FacilityControl for &mut F {
    fn suspend<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        (**self).suspend(msr)
    }

    fn resume<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        (**self).resume(msr)
    }
}

impl FacilityControl for () {
    fn suspend<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        Ok(())
    }

    fn resume<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        Ok(())
    }
}

impl<A: FacilityControl, B: FacilityControl> FacilityControl for (A, B) {
    fn suspend<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        self.0.suspend(msr)?;
        self.1.suspend(msr).inspect_err(|_| {
            let _ = self.0.resume(msr);
        })
    }

    fn resume<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        let (first, second) = (self.0.resume(msr), self.1.resume(msr));
        first.and(second)
    }
}
