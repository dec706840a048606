//! Auto counter reload of a virtual processor, as a facility beside the PMU. An overflow reloads counters without an
//! interrupt.

use crate::configuration::Configuration;
use crate::configuration::cpuid::{CpuidLeaf, EAX, EBX, ECX, EDX};
use crate::configuration::error::ConfigurationError;
use crate::events::feed::{FedEventsError, Feed};
use crate::model::Advanced;
use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::rows::{FacilityRow, Register, Rows, answers_by_rows};
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::precise::virtual_precise::VirtualPrecise;
use crate::registers::layout::RegisterKind;
use crate::registers::table::{Counters, MAX_COUNTERS, from_global, places, to_global};

/// Auto counter reload of one virtual Intel processor. The processor also has a [`VirtualPmu`]. This
/// type is a [`GuestFacility`], and answers RDMSR and WRMSR of the registers CFG_B and CFG_C of
/// each counter. The embedder counts events by [`advance`](Self::advance).
///
/// Architectural PEBS also uses CFG_C. On a processor with both features, also call [`sharing`](Self::sharing).
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states.
///
/// ```
/// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, Read, VirtualPmu};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
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
///
/// # Limitations
/// After 1,024 reloads in one call, the rest of the feed is counted without reloads.
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
    /// use pmu_virt::{FedEvents, Read, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
    /// use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
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

    /// Counts the events of a feed up to the first overflow that interrupts, as [`VirtualPmu::advance`] does. An
    /// overflow also reloads counters. The register CFG_B of a counter selects the overflows that reload this counter.
    ///
    /// The overflow of a counter that reloads itself does not set a bit of the status. The overflow nevertheless
    /// interrupts if the counter's interrupt is enabled. One call reloads at most 1,024 times, and counts the later
    /// events of the feed without reloads.
    ///
    /// A loop that repeats the call until the feed is empty may take long, because a counter that reloads itself may
    /// overflow at each event. In such a loop, let the guest run between two calls, or drop the remainder of the feed
    /// after some calls.
    ///
    /// # Errors
    /// The events of the feed differ from the [events](VirtualPmu::events) of `pmu`.
    pub fn advance<P: EventPolicy>(
        &self,
        pmu: &mut VirtualPmu<P>,
        feed: &mut Feed,
    ) -> Result<Advanced, FedEventsError> {
        self.advance_by(pmu, feed, |pmu, feed| pmu.advance(feed))
    }

    /// Counts the events of a feed as [`advance`](Self::advance) does, but calls `pass` instead of
    /// [`VirtualPmu::advance`]. Each call of `pass` counts up to the next overflow. This method reloads counters before
    /// it calls `pass` again. On a processor that also has top-down metrics, `pass` calls
    /// [`VirtualTopDown::observe`](crate::topdown::VirtualTopDown::observe):
    ///
    /// ```
    /// use pmu_virt::{Advanced, FedEventsError, Feed, VirtualPmu};
    /// use pmu_virt::reload::VirtualReload;
    /// use pmu_virt::topdown::{TopDownMix, VirtualTopDown};
    /// fn count(
    ///     (pmu, reload, metrics): (&mut VirtualPmu, &VirtualReload, &mut VirtualTopDown),
    ///     (feed, mix): (&mut Feed, &TopDownMix),
    /// ) -> Result<Advanced, FedEventsError> {
    ///     reload.advance_by(pmu, feed, |pmu, feed| metrics.observe(pmu, mix, |pmu| pmu.advance(feed)))
    /// }
    /// # let _ = count;
    /// ```
    ///
    /// # Errors
    /// Returns the error of `pass`.
    pub fn advance_by<P: EventPolicy, E>(
        &self,
        pmu: &mut VirtualPmu<P>,
        feed: &mut Feed,
        mut pass: impl FnMut(&mut VirtualPmu<P>, &mut Feed) -> Result<Advanced, E>,
    ) -> Result<Advanced, E> {
        let mut all = Advanced::NOTHING;
        let causes = from_global(self.causes.into_iter().fold(0, |all, causes| all | causes));
        if causes != 0 {
            // A guest chooses the values: one that reloads at each event must not keep the embedder here.
            for _ in 0..MOST_RELOADS {
                let recorded = pmu.model.recorded;
                // Such an overflow ends a span like one that is recorded.
                pmu.model.recorded |= causes;
                let advanced = pass(pmu, feed);
                // Also after an error: the mark of the counters that reload is only for this span.
                pmu.model.recorded = recorded;
                let mut advanced = advanced?;
                let caused = from_global(advanced.records) & causes;
                // An overflow that only reloads is no record.
                advanced.records &= to_global(recorded);
                advanced.pmi |= self.reload(pmu, caused, caused & !recorded);
                all = all.and(advanced);
                if all.pmi || all.records != 0 || feed.is_empty() {
                    return Ok(all);
                }
            }
        }
        Ok(all.and(pass(pmu, feed)?))
    }

    /// Reloads the counters that the overflows of `overflowed` reload, and notes the overflows of `reported`, which
    /// write no records. Returns whether an interrupt is due.
    fn reload<P: EventPolicy>(
        &self,
        pmu: &mut VirtualPmu<P>,
        overflowed: Counters,
        reported: Counters,
    ) -> bool {
        let reloads = |counter: usize, by: Counters| {
            self.causes.get(counter).is_some_and(|causes| from_global(*causes) & by != 0)
        };
        let own = places(reported).filter(|counter| reloads(*counter, 1 << counter));
        let own = own.fold(0, |own, counter| own | 1 << counter);
        for counter in (0..MAX_COUNTERS).filter(|counter| reloads(*counter, overflowed)) {
            let value = self.values.get(counter).copied().unwrap_or(0);
            // The register has the low half of a negative period.
            pmu.model.load(counter, i64::from(value as i32) as u64);
        }
        let raised = pmu.model.raise(reported & !own);
        // Such an interrupt finds no bit in the status: Linux keeps it disabled on counters that reload themselves
        // (commit 1271aecc).
        let silent = own & pmu.model.interrupting() != 0;
        if silent && !raised {
            pmu.model.interrupt();
        }
        raised || silent
    }
}

/// Configuration of a guest's auto counter reload, as in CPUID leaf 0x23, sub-leaf 2. Each field is a bitmap of
/// counters.
///
/// ```
/// use pmu_virt::reload::ReloadConfiguration;
/// // All of eight general and four fixed counters can be reloaded, and reload others.
/// let all = ReloadConfiguration { general: 0xFF, fixed: 0xF, causing_general: 0xFF, causing_fixed: 0xF };
/// assert_eq!(all, ReloadConfiguration::of(0xFF, 0xF));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReloadConfiguration {
    /// General counters that can be reloaded (EAX).
    pub general: u8,
    /// Fixed counters that can be reloaded (EBX).
    pub fixed: u8,
    /// General counters whose overflow can reload counters (ECX).
    pub causing_general: u8,
    /// Fixed counters whose overflow can reload counters (EDX).
    pub causing_fixed: u8,
}

impl ReloadConfiguration {
    /// Creates a configuration in which each given counter can be reloaded, and the overflow of each given counter can
    /// reload counters. `general` and `fixed` are bitmaps of counters.
    pub const fn of(general: u8, fixed: u8) -> Self {
        Self { general, fixed, causing_general: general, causing_fixed: fixed }
    }

    pub(crate) fn check(&self, of: &Configuration) -> Result<(), ConfigurationError> {
        let Configuration::Intel(intel) = of else { return Err(ConfigurationError::ReloadVersion) };
        if intel.version < 6 {
            return Err(ConfigurationError::ReloadVersion);
        }
        let general = (self.general | self.causing_general) & !intel.general;
        let fixed = (self.fixed | self.causing_fixed) & !intel.fixed;
        if general | fixed == 0 { Ok(()) } else { Err(ConfigurationError::ReloadCounters) }
    }

    /// Returns the bits of `CFG_B`.
    pub(crate) const fn causes(&self) -> u64 {
        self.causing_general as u64 | (self.causing_fixed as u64) << 32
    }

    /// Returns the PMU's leaf with the bits that declare the reload.
    pub(crate) fn declared(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        match (leaf.leaf, leaf.subleaf) {
            (0x23, Some(0)) => leaf.bits(EAX, 1 << 2, 1 << 2),
            (0x23, Some(2)) => leaf
                .bits(EAX, u32::MAX, self.general.into())
                .bits(EBX, u32::MAX, self.fixed.into())
                .bits(ECX, u32::MAX, self.causing_general.into())
                .bits(EDX, u32::MAX, self.causing_fixed.into()),
            _ => leaf,
        }
    }
}

/// `CFG_B` and `CFG_C` of each counter.
const CAUSES: usize = 0;
const VALUES: usize = 1;

type Row = FacilityRow<VirtualReload>;

const RELOAD: &str = "SDM vol. 3B, Auto Counter Reload";

impl Rows for VirtualReload {
    const KIND: RegisterKind = RegisterKind::CounterReload;

    #[rustfmt::skip]
    const ROWS: &'static [Row] = &[
        Row::new(0x1902, CAUSES, "IA32_PMC_GPx_CFG_B", RELOAD).each_counter("IA32_PMC_FXx_CFG_B", Self::counters)
            .legal(|own| own.configuration.causes()),
        // The facility of the records answers for their counters, and both facilities have the reload value.
        Row::new(0x1903, VALUES, "IA32_PMC_GPx_CFG_C", RELOAD).each_counter("IA32_PMC_FXx_CFG_C", Self::counters)
            .owned(|own, number| if to_global(own.shared) >> number & 1 != 0 { 0 } else { u64::MAX })
            .legal(|_| 0xFFFF_FFFF),
    ];

    fn held(&self, register: &Register<Self>) -> u64 {
        let counter = register.counter() % MAX_COUNTERS;
        match register.row.value {
            CAUSES => self.causes[counter],
            _ => self.values[counter].into(),
        }
    }

    fn hold(&mut self, _: Writer, register: &Register<Self>, value: u64) {
        let counter = register.counter() % MAX_COUNTERS;
        match register.row.value {
            CAUSES => self.causes[counter] = value,
            _ => self.values[counter] = value as u32,
        }
    }
}

impl GuestFacility for VirtualReload {
    answers_by_rows!();

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn reset(&mut self) {
        (self.causes, self.values) = ([0; MAX_COUNTERS], [0; MAX_COUNTERS]);
    }
}

/// Reloads within one call. A guest may choose any period, and a call is to end.
const MOST_RELOADS: usize = 1024;
