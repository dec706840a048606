//! The timer tick of a processor.

use crate::kernel::error::PmuError;
use crate::kernel::pmu::Pmu;
use crate::kernel::required::Kernel;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Gives other [rotating](pmu_core::Event::rotating) events the counters of the processor that executes the call,
    /// and tells the [watchdog](Self::watch) that the timer tick runs. The kernel's timer tick calls this, for instance
    /// each 4 milliseconds, on every processor.
    ///
    /// If the interrupted task uses the processor's session, the events take turns at the next tick. On a processor
    /// that is not up, or is suspended, the call does nothing.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// static PMU: pmu::Pmu<MyKernel, 8> = pmu::Pmu::new();
    ///
    /// fn timer_interrupt() {
    ///     if let Err(error) = PMU.tick() {
    ///         println!("events that take turns: {error}");
    ///     }
    /// }
    /// ```
    ///
    /// # Context
    /// The handler of the timer tick, or task. Not an NMI. The call is [pinned](Kernel::pinned).
    ///
    /// # Errors
    /// [`Counters`](PmuError::Counters): an access to a register failed. The other events took turns.
    pub fn tick(&'static self) -> Result<(), PmuError> {
        K::pinned(|| {
            self.touch();
            match self.here(|here| here.session.counters_mut().rotate(K::now())) {
                Ok(rotated) => Ok(rotated?),
                Err(PmuError::Session(_) | PmuError::NotUp | PmuError::Suspended) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }
}
