//! Top-down metrics and counter reload of a mock processor.

use crate::events::error::FedEventsError;
use crate::events::feed::Feed;
use crate::mock::processor::MockMsr;
use crate::model::advanced::Advanced;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::reload::virtual_reload::VirtualReload;
use crate::topdown::mix::TopDownMix;
use crate::topdown::virtual_top_down::VirtualTopDown;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Adds top-down metrics to the processor. `IA32_PERF_CAPABILITIES` declares the metrics.
    /// [`snapshot`](Self::snapshot) returns CPUID of a processor model whose metrics have level 2 only if `metrics` has
    /// level 2. The test feeds issue slots like any other event. Fixed counter 3 counts these slots.
    ///
    /// Do not call this method for an E-core, which counts the parts of level 1 as ordinary events. The PMU of an
    /// E-core has version 5 or 6. Its [`fixed`](crate::IntelConfiguration::fixed) counters are 0 to 2 and 4 to 6, that
    /// is `0b111_0111`. The test feeds the events of fixed counters 4 (bad speculation), 5 (front-end bound) and 6
    /// (retiring). For back-end bound, the test feeds the general event 0xA4 with unit mask 2.
    ///
    /// ```
    /// # use pmu_core::msr::{MsrAddress, MsrBackend};
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, VirtualPmu, VirtualTopDown};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let metrics = VirtualTopDown::new(&configuration, false)?;
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_top_down(metrics);
    /// # // SAFETY: IA32_PERF_CAPABILITIES, which is read.
    /// # let capabilities = unsafe { MsrAddress::new(0x345) };
    /// assert_eq!(mock.read(capabilities).map(|bits| bits >> 15 & 1), Ok(1));
    /// assert_eq!(mock.snapshot().model(), 0x7E); // Ice Lake: level 1 alone
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn with_top_down(mut self, metrics: VirtualTopDown) -> Self {
        self.beside.get_mut().1.0 = Some(metrics);
        self
    }

    /// Sets the [mix](TopDownMix) of the issue slots that the test feeds after this call. Before the first call, every
    /// slot retires.
    pub fn set_mix(&self, mix: TopDownMix) {
        self.mix.set(mix);
    }

    /// Calls `act` with the state of the top-down metrics. `act` reads and changes the metrics directly. The mock does
    /// not count this as an access. Returns `None` if the processor has no top-down metrics.
    ///
    /// # Panics
    /// The call panics if `act` accesses a register through the mock.
    pub fn with_metrics<R>(&self, act: impl FnOnce(&mut VirtualTopDown) -> R) -> Option<R> {
        self.beside.borrow_mut().1.0.as_mut().map(act)
    }

    /// Adds auto counter reload to the processor. [`snapshot`](Self::snapshot) declares this feature.
    ///
    /// Between two interrupts, the mock reloads counters at most 1,024 times. After that, overflows reload no counter
    /// until the next interrupt or the end of the feed. So a test must feed events in small steps, with fewer than
    /// 1,024 reloads in each call of [`advance`](Self::advance).
    ///
    /// ```
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::{
    ///     Configuration, FedEvents, IntelConfiguration, ReloadConfiguration, VirtualPmu, VirtualReload,
    /// };
    /// let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 4));
    /// let reload = VirtualReload::new(&configuration, ReloadConfiguration::of(0xFF, 0xF))?;
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_reload(reload);
    /// assert_eq!(mock.snapshot().leaf(0x23, 2).eax, 0xFF);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn with_reload(mut self, reload: VirtualReload) -> Self {
        let ((_, (_, precise)), (_, present)) = self.beside.get_mut();
        *present = Some(match precise {
            Some(precise) => reload.sharing(precise),
            None => reload,
        });
        self
    }

    /// Calls `act` with the state of auto counter reload. `act` reads and changes the state directly. The mock does not
    /// count this as an access. Returns `None` if the processor has no auto counter reload.
    ///
    /// # Panics
    /// The call panics if `act` accesses a register through the mock.
    pub fn with_reloads<R>(&self, act: impl FnOnce(&mut VirtualReload) -> R) -> Option<R> {
        self.beside.borrow_mut().1.1.as_mut().map(act)
    }

    /// Lets the PMU count a feed, with what the top-down metrics and the counter reload make of it.
    pub(super) fn count(&self, feed: &mut Feed) -> Result<Advanced, FedEventsError> {
        let pmu = &mut *self.pmu.borrow_mut();
        let (metrics, reload) = &mut self.beside.borrow_mut().1;
        let mut pass = |pmu: &mut VirtualPmu, feed: &mut Feed| match metrics {
            Some(metrics) => metrics.observe(pmu, &self.mix.get(), |pmu| pmu.advance(feed)),
            None => pmu.advance(feed),
        };
        match reload {
            Some(reload) => reload.advance_by(pmu, feed, pass),
            None => pass(pmu, feed),
        }
    }

    /// Counts the slots up to the overflow of the slots' counter, before every counter overflows.
    pub(super) fn slots_overflow(&self, pmu: &VirtualPmu) {
        let _ = self.with_metrics(|metrics| metrics.pass_to_overflow(pmu, &self.mix.get()));
    }
}
