//! Top-down metrics of a mock processor.

use crate::mock::processor::MockMsr;
use crate::model::advanced::Advanced;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::topdown::mix::TopDownMix;
use crate::topdown::virtual_top_down::VirtualTopDown;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Gives the processor top-down metrics beside the PMU. `IA32_PERF_CAPABILITIES` declares the metrics, and the
    /// model in [`snapshot`](Self::snapshot) tells whether they have level 2. The test feeds slots, the event of fixed
    /// counter 3, like any event.
    ///
    /// ```
    /// # use pmu_core::{MsrAddress, MsrBackend};
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
        self.beside.get_mut().1 = Some(metrics);
        self
    }

    /// Sets the mix of the slots that are fed from now on. A new processor's slots all retire.
    pub fn set_mix(&self, mix: TopDownMix) {
        self.mix.set(mix);
    }

    /// Calls `act` with the top-down metrics, to read or change them unseen by the driver; `None` if the processor has
    /// none. The call does not count as an access.
    ///
    /// # Panics
    /// `act` accesses a register through the mock.
    pub fn with_metrics<R>(&self, act: impl FnOnce(&mut VirtualTopDown) -> R) -> Option<R> {
        self.beside.borrow_mut().1.as_mut().map(act)
    }

    /// Lets the PMU count by `pass`, observed by the top-down metrics.
    pub(super) fn observed<E>(
        &self,
        pass: impl FnOnce(&mut VirtualPmu) -> Result<Advanced, E>,
    ) -> Result<Advanced, E> {
        let pmu = &mut *self.pmu.borrow_mut();
        match &mut self.beside.borrow_mut().1 {
            Some(metrics) => metrics.observe(pmu, &self.mix.get(), pass),
            None => pass(pmu),
        }
    }

    /// Counts the slots up to the overflow of the slots' counter, before every counter overflows.
    pub(super) fn slots_overflow(&self, pmu: &VirtualPmu) {
        let _ = self.with_metrics(|metrics| metrics.pass_to_overflow(pmu, &self.mix.get()));
    }
}
