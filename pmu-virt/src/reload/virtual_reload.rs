//! The counter reload of one virtual processor: creation and registers.

use crate::configuration::any_vendor::Configuration;
use crate::configuration::error::ConfigurationError;
use crate::precise::virtual_precise::VirtualPrecise;
use crate::registers::counters::{Counters, MAX_COUNTERS, from_global};
use crate::reload::configuration::ReloadConfiguration;

/// Auto counter reload of one virtual Intel processor. The processor also has a [`VirtualPmu`](crate::VirtualPmu). This
/// type is a [`GuestFacility`](crate::GuestFacility), and answers RDMSR and WRMSR of the registers CFG_B and CFG_C of
/// each counter. The embedder counts events by [`advance`](Self::advance).
///
/// Architectural PEBS also uses CFG_C. On a processor with both features, also call [`sharing`](Self::sharing).
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states.
///
/// ```
/// use pmu_virt::{
///     Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege, Read, ReloadConfiguration, VirtualPmu,
///     VirtualReload,
/// };
/// const BRANCHES: EventKey = EventKey::general(0xC4, 0);
/// let events = FedEvents::new(&[BRANCHES])?;
/// let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 4));
/// let mut pmu = VirtualPmu::new(configuration, events)?;
/// let mut reload = VirtualReload::new(&configuration, ReloadConfiguration::of(0xFF, 0))?;
/// // Counter 0 reloads itself: with −1,000 at each overflow, without an interrupt.
/// let period = 1_000u32.wrapping_neg();
/// for (register, value) in [
///     (0x1903, period.into()),
///     (0x1902, 1),
///     (0x1900, (1 << 48) - 1_000),
///     (0x1901, 0x43_00C4),
/// ] {
///     let _ = pmu.write_beside(&mut reload, register, value);
/// }
/// let mut feed = Feed::new(&events);
/// feed.add(events.find(BRANCHES).unwrap(), Privilege::User, 2_300)?;
/// let advanced = reload.advance(&mut pmu, &mut feed)?;
/// assert!(!advanced.pmi && feed.is_empty());
/// assert_eq!(pmu.read(0x1900), Read::Value((1 << 48) - 700));
/// assert_eq!(pmu.read(0x38E), Read::Value(0)); // Its status bit is never set.
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct VirtualReload {
    pub(crate) configuration: ReloadConfiguration,
    /// CFG_B of the general, then of the fixed counters.
    pub(crate) causes: [u64; MAX_COUNTERS],
    /// CFG_C, bits 31:0.
    pub(crate) values: [u32; MAX_COUNTERS],
    /// Counters whose CFG_C architectural PEBS answers.
    pub(crate) shared: Counters,
}

impl VirtualReload {
    /// Creates auto counter reload in its state after reset. `pmu` is the configuration of the guest's PMU.
    ///
    /// # Errors
    /// A processor with the PMU configuration `pmu` cannot have the auto counter reload of `configuration`.
    pub fn new(
        pmu: &Configuration,
        configuration: ReloadConfiguration,
    ) -> Result<Self, ConfigurationError> {
        configuration.check(pmu)?;
        let (causes, values) = ([0; MAX_COUNTERS], [0; MAX_COUNTERS]);
        Ok(Self { configuration, causes, values, shared: 0 })
    }

    /// Returns auto counter reload for a processor that also has the precise records `precise`. If `precise` is
    /// architectural PEBS, `precise` answers accesses to CFG_C of each counter that can write records. PEBS and auto
    /// counter reload then use the same reload value, which is in CFG_C. PEBS loads the counter with this value after
    /// each record of the counter. Auto counter reload loads the counter with this value at each overflow that CFG_B
    /// selects. The embedder passes the pair `(precise, reload)` as the facility.
    ///
    /// ```
    /// use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
    /// use pmu_virt::{
    ///     Configuration, FedEvents, IntelConfiguration, Read, ReloadConfiguration, VirtualPmu,
    ///     VirtualReload,
    /// };
    /// let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 4));
    /// let precise = VirtualPrecise::new(&configuration, PreciseConfiguration::ARCHITECTURAL)?;
    /// let reload = VirtualReload::new(&configuration, ReloadConfiguration::of(0xFF, 0))?;
    /// let mut both = (precise, reload.sharing(&precise));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// // Counter 0 writes records, and is loaded with −1,000.
    /// let control = 1 << 63 | u64::from(1_000u32.wrapping_neg());
    /// let _ = pmu.write_beside(&mut both, 0x1903, control);
    /// assert_eq!(pmu.read_beside(&both, 0x1903), Read::Value(control));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sharing(self, precise: &VirtualPrecise) -> Self {
        let counters = if precise.is_architectural() { precise.counters() } else { 0 };
        let shared = from_global(counters & self.counters());
        Self { shared, ..self }
    }

    /// Returns the configuration of auto counter reload that the guest sees.
    pub fn configuration(&self) -> ReloadConfiguration {
        self.configuration
    }

    /// Returns the counters that can be reloaded, as bits of the global status.
    pub(crate) fn counters(&self) -> u64 {
        u64::from(self.configuration.general) | u64::from(self.configuration.fixed) << 32
    }
}
