//! The budget of events until the next interrupt.

use crate::model::budget::OverflowBudget;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;

impl<P: EventPolicy> VirtualPmu<P> {
    /// Returns, for each event, how many times the event must happen to cause an interrupt. The embedder can use these
    /// numbers to set a timer. A call computes the numbers only if the PMU has changed since the last call.
    ///
    /// ```
    /// use pmu_virt::{Configuration, EventKey, FedEvents, IntelConfiguration, Privilege, VirtualPmu};
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let cycles = events.find(CYCLES).unwrap();
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// // The guest's kernel counts its cycles, and asks for an interrupt in a thousand of them.
    /// let _ = pmu.write(0xC1, 1000u64.wrapping_neg());
    /// let _ = pmu.write(0x186, 0x52_003C);
    /// assert_eq!(pmu.next_overflow().of(cycles, Privilege::Kernel), Some(1000));
    /// assert_eq!(pmu.next_overflow().of(cycles, Privilege::User), None);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline]
    pub fn next_overflow(&mut self) -> &OverflowBudget {
        if self.model.budget_is_stale {
            self.model.refresh_budget();
        }
        &self.model.budget
    }
}
