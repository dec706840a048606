//! The watchdog of a processor.

use pmu_core::CounterError;

use crate::kernel::error::PmuError;
use crate::kernel::pmu::Pmu;
use crate::kernel::required::Kernel;
use crate::watchdog::Watchdog;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Watches the processor that executes the call. If the processor's timer tick does not call [`touch`](Self::touch)
    /// for `seconds` seconds, the watchdog's counter raises an interrupt. In the result of
    /// [`interrupt`](Self::interrupt), [`is_stuck`](crate::Interrupted::is_stuck) is then `true`. `hertz` is the
    /// highest frequency of the processor: see [`Watchdog::event`].
    ///
    /// If the processor is already watched, the call restarts its watchdog. If the watchdog's counter failed, the call
    /// gives the watchdog another counter.
    ///
    /// # Context
    /// Task, on the processor to watch.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session): the processor is not up, or its session is in use.
    /// - [`Counters`](PmuError::Counters): the processor has no event that counts cycles, or no free counter for this
    ///   event.
    pub fn watch(&'static self, hertz: u64, seconds: u32) -> Result<(), PmuError> {
        self.unwatch()?;
        K::pinned(|| {
            let Some(of) = self.processors.get(K::this_processor()) else {
                return Err(PmuError::NotUp);
            };
            self.here(|here| {
                let event = Watchdog::event(&here.unit, hertz, seconds);
                let counters = here.session.counters_mut();
                let event = event.ok_or(CounterError::NoCounterForEvent)?;
                let event = event.tagged(of.watchdog_tag()).unlisted();
                let id = counters.open_event(&here.unit, &event)?;
                of.watchdog.watch(id);
                counters.start_event(id, K::now()).or_else(|error| {
                    of.watchdog.unwatch();
                    counters.close_event(id, K::now()).and(Err(error))
                })
            })?
            .map_err(PmuError::Counters)
        })
    }

    /// Stops watching the processor that executes the call, if it is watched.
    ///
    /// # Context
    /// Task, on the processor that is watched.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session): the processor is not up, or its session is in use.
    /// - [`Counters`](PmuError::Counters): accesses to the register of the watchdog counter failed. The processor is no
    ///   longer watched.
    pub fn unwatch(&'static self) -> Result<(), PmuError> {
        K::pinned(|| {
            let Some(of) = self.processors.get(K::this_processor()) else {
                return Err(PmuError::NotUp);
            };
            self.here(|here| {
                let event = of.watched(here);
                of.watchdog.unwatch();
                let Some(event) = event else { return Ok(()) };
                let counters = here.session.counters_mut();
                counters.close_event(event, K::now()).map(drop).inspect_err(|_| {
                    // By now the event is stopped, so this accesses no register.
                    let _ = counters.close_event(event, K::now());
                })
            })?
            .map_err(PmuError::Counters)
        })
    }

    /// Tells the watchdog that the executing processor's timer tick runs. The kernel's timer tick calls this, or
    /// [`tick`](Self::tick).
    ///
    /// # Context
    /// Any.
    #[inline]
    pub fn touch(&self) {
        if let Some(of) = self.processors.get(K::this_processor()) {
            of.watchdog.touch();
        }
    }
}
