//! The PMU of one virtual processor: creation, reset and policy.

use crate::configuration::any_vendor::Configuration;
use crate::configuration::error::ConfigurationError;
use crate::configuration::vendor::Vendor;
use crate::events::fed::FedEvents;
use crate::model::state::Model;
use crate::pmu::load_number::LoadNumber;
use crate::policy::event_policy::{AllowAll, EventPolicy};
use crate::registers::layout::Layout;

/// Software PMU of one virtual processor. The PMU answers the guest's RDMSR, WRMSR and RDPMC, counts the events that
/// the embedder feeds, and raises an interrupt when a counter overflows.
///
/// The embedder feeds events by [`advance`](Self::advance), and delivers the interrupt by
/// [`deliver_pmi`](Self::deliver_pmi). No method allocates or panics. Whatever the guest does, a loop in a method takes
/// at most as many steps as the PMU has counters.
///
/// ```
/// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Read, VirtualPmu, Write};
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
/// // The guest programs IA32_PERFEVTSEL0; then something that is not the PMU's.
/// assert_eq!(pmu.write(0x186, 0x53_00C0).answer, Write::Done);
/// assert_eq!(pmu.read(0x186), Read::Value(0x53_00C0));
/// assert_eq!(pmu.read(0x10), Read::Unhandled);
/// # Ok::<(), pmu_virt::ConfigurationError>(())
/// ```
#[derive(Clone, Debug)]
pub struct VirtualPmu<P = AllowAll> {
    pub(crate) configuration: Configuration,
    pub(crate) policy: P,
    pub(crate) model: Model,
    /// The load onto real counters that the guest is in.
    pub(crate) load: LoadNumber,
}

// One virtual processor is to fit in 1 KiB.
const _: () = assert!(size_of::<VirtualPmu>() < 1024);

impl VirtualPmu {
    /// Creates a PMU in the state after reset, under the policy that allows every event. `events` is the set of events
    /// that the embedder can feed.
    ///
    /// # Errors
    /// The configuration contradicts itself.
    pub fn new(
        configuration: Configuration,
        events: FedEvents,
    ) -> Result<Self, ConfigurationError> {
        Self::with_policy(configuration, events, AllowAll)
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// Creates a PMU in the state after reset, under a policy that may forbid events.
    ///
    /// # Errors
    /// The configuration contradicts itself.
    ///
    /// ```
    /// use pmu_virt::{AmdConfiguration, Configuration, EventFilter, FedEvents, FilterAction};
    /// use pmu_virt::{FilterEntry, VirtualPmu};
    /// // AMD's retired instructions, and nothing else.
    /// let entries = [FilterEntry::new(0xC0, 0)];
    /// let filter = EventFilter::<1>::compile(FilterAction::Allow, 0, &entries).unwrap();
    /// let configuration = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
    /// let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, filter)?;
    /// // Core cycles can be programmed, and do not count.
    /// let _ = pmu.write(0xC001_0200, 0x53_0076);
    /// assert_eq!(pmu.running().count(), 0);
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn with_policy(
        configuration: Configuration,
        events: FedEvents,
        policy: P,
    ) -> Result<Self, ConfigurationError> {
        configuration.check()?;
        let model = Model::new(Layout::of(&configuration), events, &policy);
        Ok(Self { configuration, policy, model, load: LoadNumber::default() })
    }

    /// Returns the configuration that the guest sees.
    pub fn configuration(&self) -> Configuration {
        self.configuration
    }

    /// Returns the vendor whose registers the PMU has.
    pub fn vendor(&self) -> Vendor {
        self.configuration.vendor()
    }

    /// Performs RESET or power-up. The call clears every register except the global control. The reset value of the
    /// global control enables all general counters. For Intel, SDM vol. 3A specifies these values in the table
    /// "Processor States Following Power-up, Reset, or INIT". For AMD, the call sets the same values as KVM.
    pub fn reset(&mut self) {
        self.model = Model::new(self.model.layout, self.model.events, &self.policy);
        self.load.reset();
    }

    /// Performs INIT. INIT does not change the PMU's registers. INIT masks the LVT entry, so a pending interrupt is
    /// lost. SDM vol. 3A, table "Processor States Following Power-up, Reset, or INIT".
    ///
    /// ```
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Read, VirtualPmu};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let _ = pmu.write(0x186, 0x53_00C0);
    /// pmu.set_pmi_pending(true);
    /// pmu.init();
    /// assert_eq!((pmu.read(0x186), pmu.pmi_pending()), (Read::Value(0x53_00C0), false));
    /// pmu.reset();
    /// assert_eq!(pmu.read(0x186), Read::Value(0));
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn init(&mut self) {
        self.model.pmi_pending = false;
    }

    /// Replaces the policy. The new policy applies to running counters at once. Registers do not change.
    ///
    /// ```
    /// use pmu_virt::{Configuration, EventFilter, FedEvents, FilterAction, FilterEntry};
    /// use pmu_virt::{IntelConfiguration, VirtualPmu};
    /// let deny = |entries: &[FilterEntry]| {
    ///     EventFilter::<4>::compile(FilterAction::Deny, 0, entries).unwrap()
    /// };
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, deny(&[]))?;
    /// let _ = pmu.write(0x186, 0x53_00C0);
    /// assert_eq!(pmu.running().count(), 1);
    /// pmu.set_policy(deny(&[FilterEntry::new(0xC0, 0)]));
    /// assert_eq!(pmu.running().count(), 0);
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn set_policy(&mut self, policy: P) {
        self.policy = policy;
        self.model.derive(&self.policy);
    }
}
