//! The PMU of one virtual processor: creation, reset and policy.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::configuration::error::ConfigurationError;
use crate::configuration::{Configuration, Vendor};
use crate::events::feed::FedEvents;
use crate::model::Model;
use crate::policy::{AllowAll, EventPolicy};
use crate::registers::layout::Layout;

/// Software PMU of one virtual processor. The PMU answers the guest's RDMSR, WRMSR and RDPMC, counts the events that
/// the embedder feeds, and raises an interrupt when a counter overflows.
///
/// The embedder feeds events by [`advance`](Self::advance), and delivers the interrupt by
/// [`deliver_pmi`](Self::deliver_pmi). No method allocates or panics. Whatever the guest does, a loop in a method takes
/// at most as many steps as the PMU has counters.
///
/// ```
/// use pmu_virt::{FedEvents, Read, VirtualPmu, Write};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
/// // The guest programs IA32_PERFEVTSEL0; then something that is not the PMU's.
/// assert_eq!(pmu.write(0x186, 0x53_00C0).answer, Write::Done);
/// assert_eq!(pmu.read(0x186), Read::Value(0x53_00C0));
/// assert_eq!(pmu.read(0x10), Read::Unhandled);
/// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
/// ```
#[derive(Clone, Debug)]
pub struct VirtualPmu<P = AllowAll> {
    pub(crate) configuration: Configuration,
    pub(crate) policy: P,
    pub(crate) model: Model,
    /// The load onto real counters that the guest is in.
    pub(crate) load: LoadNumber,
}

// The README promises embedders that a virtual processor takes less than 1 KiB.
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
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// use pmu_virt::policy::{EventFilter, FilterAction, FilterEntry};
    /// // AMD's retired instructions, and nothing else.
    /// let entries = [FilterEntry::new(0xC0, 0)];
    /// let filter = EventFilter::<1>::compile(FilterAction::Allow, 0, &entries).unwrap();
    /// let configuration = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
    /// let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, filter)?;
    /// // Core cycles can be programmed, and do not count.
    /// let _ = pmu.write(0xC001_0200, 0x53_0076);
    /// assert_eq!(pmu.running().count(), 0);
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
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
    /// use pmu_virt::{FedEvents, Read, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let _ = pmu.write(0x186, 0x53_00C0);
    /// pmu.set_pmi_pending(true);
    /// pmu.init();
    /// assert_eq!((pmu.read(0x186), pmu.pmi_pending()), (Read::Value(0x53_00C0), false));
    /// pmu.reset();
    /// assert_eq!(pmu.read(0x186), Read::Value(0));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn init(&mut self) {
        self.model.pmi_pending = false;
    }

    /// Replaces the policy. The new policy applies to running counters at once. Registers do not change.
    ///
    /// ```
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::policy::{EventFilter, FilterAction, FilterEntry};
    /// let deny = |entries: &[FilterEntry]| {
    ///     EventFilter::<4>::compile(FilterAction::Deny, 0, entries).unwrap()
    /// };
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, deny(&[]))?;
    /// let _ = pmu.write(0x186, 0x53_00C0);
    /// assert_eq!(pmu.running().count(), 1);
    /// pmu.set_policy(deny(&[FilterEntry::new(0xC0, 0)]));
    /// assert_eq!(pmu.running().count(), 0);
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn set_policy(&mut self, policy: P) {
        self.policy = policy;
        self.model.derive(&self.policy);
    }

    /// Returns whether an overflow's interrupt is pending. The interrupt stays pending until
    /// [`deliver_pmi`](Self::deliver_pmi) is called.
    pub fn pmi_pending(&self) -> bool {
        self.model.pmi_pending
    }

    /// Sets whether an overflow's interrupt is pending. No register says whether an interrupt is pending. So an
    /// embedder that [restores registers one by one](Self::host_write) must also save the result of
    /// [`pmi_pending`](Self::pmi_pending).
    pub fn set_pmi_pending(&mut self, pending: bool) {
        // Without counters there is no interrupt, and no saved state may have one.
        self.model.pmi_pending = pending && self.model.layout.counters() != 0;
    }

    /// Delivers a pending interrupt through the LVT entry. On Intel, a delivery masks the entry. The next interrupt is
    /// then delivered only after the guest has unmasked the entry. On AMD, a delivery does not change the entry.
    ///
    /// ```
    /// # use pmu_virt::{Delivery, PerformanceEntry};
    /// use pmu_virt::{FedEvents, PmiOutcome, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// # struct Apic { entry: u32, nmi: bool }
    /// # impl PerformanceEntry for Apic {
    /// #     fn entry(&self) -> u32 { self.entry }
    /// #     fn set_entry(&mut self, entry: u32) { self.entry = entry; }
    /// #     fn raise(&mut self, delivery: Delivery) { self.nmi |= delivery == Delivery::NonMaskable; }
    /// # }
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// // The guest has asked for NMIs, and a counter has overflowed.
    /// let mut apic = Apic { entry: 4 << 8, nmi: false };
    /// pmu.set_pmi_pending(true);
    /// assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::Raised(Delivery::NonMaskable));
    /// assert!(apic.nmi && apic.entry == 1 << 16 | 4 << 8 && !pmu.pmi_pending());
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn deliver_pmi(&mut self, apic: &mut impl PerformanceEntry) -> PmiOutcome {
        if !core::mem::take(&mut self.model.pmi_pending) {
            return PmiOutcome::NotPending;
        }
        let outcome = PmiOutcome::through(apic);
        // After the delivery. SDM vol. 3B: an Intel processor sets the mask of the entry as it delivers the interrupt.
        if self.model.layout.masks_entry && outcome != PmiOutcome::Masked {
            apic.set_entry(apic.entry() | MASKED);
        }
        outcome
    }
}

/// Number of the load onto real counters that a guest is in; 0 is none. A copy of the guest is in none.
#[derive(Debug, Default)]
pub(crate) struct LoadNumber {
    pub(crate) number: u64,
    /// The guest was reset since the load.
    pub(crate) reset: bool,
}

impl Clone for LoadNumber {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl LoadNumber {
    /// Notes that the guest was reset: what the counters hold is not the guest's state any more.
    pub(crate) const fn reset(&mut self) {
        self.reset = true;
    }

    /// Returns the number of a new load.
    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // The number has to be unique, and orders no other access. The first one is 1, because 0 is no load.
        Self { number: LAST.fetch_add(1, Relaxed).wrapping_add(1), reset: false }
    }
}

/// Access to the virtual processor's LVT entry for performance counters (LVTPC, offset 0x340 of the local APIC). The
/// embedder implements this trait.
///
/// SDM vol. 3A, "Local Vector Table"; APM vol. 2, "Local Vector Table Registers".
///
/// # For embedders
/// - In `raise`, only mark the interrupt as pending. Inject the interrupt into the guest when the guest next runs.
///
/// ```
/// use pmu_virt::{Delivery, PerformanceEntry};
/// struct Apic { entry: u32, nmi: bool, vector: Option<u8> }
///
/// impl PerformanceEntry for Apic {
///     fn entry(&self) -> u32 {
///         self.entry
///     }
///     fn set_entry(&mut self, entry: u32) {
///         self.entry = entry;
///     }
///     fn raise(&mut self, delivery: Delivery) {
///         match delivery {
///             Delivery::NonMaskable => self.nmi = true,
///             Delivery::Fixed(vector) => self.vector = Some(vector),
///             Delivery::Other(_) => {} // Reserved for this entry, or as rare.
///         }
///     }
/// }
/// ```
pub trait PerformanceEntry {
    /// Returns the value of the LVT entry. Bits 7:0 are the vector, bits 10:8 are the delivery mode, and bit 16 is the
    /// mask.
    fn entry(&self) -> u32;

    /// Stores the LVT entry. On Intel, [`VirtualPmu::deliver_pmi`] calls this method after [`raise`](Self::raise), to
    /// set the mask bit.
    fn set_entry(&mut self, entry: u32);

    /// Marks an interrupt with this delivery mode as pending. The embedder injects the interrupt when the guest next
    /// runs.
    fn raise(&mut self, delivery: Delivery);
}

/// Delivery mode of the LVT entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Delivery {
    /// Mode 0: an interrupt with this vector. If the vector is below 16, the local APIC reports an error in its error
    /// status register.
    Fixed(u8),
    /// Mode 4: an NMI.
    NonMaskable,
    /// Any other mode: SMI (2), INIT (5), ExtINT (7), or a reserved mode.
    Other(u8),
}

/// Result of [`VirtualPmu::deliver_pmi`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PmiOutcome {
    /// No interrupt was pending.
    NotPending,
    /// The LVT entry is masked. The interrupt is lost, as on hardware.
    Masked,
    /// The interrupt was raised with this delivery mode.
    Raised(Delivery),
}

const MASKED: u32 = 1 << 16;

impl PmiOutcome {
    /// Delivers an interrupt through an entry of the local vector table.
    pub(crate) fn through(apic: &mut impl PerformanceEntry) -> Self {
        let entry = apic.entry();
        if entry & MASKED != 0 {
            return Self::Masked;
        }
        let delivery = match entry >> 8 & 7 {
            0 => Delivery::Fixed(entry as u8),
            4 => Delivery::NonMaskable,
            mode => Delivery::Other(mode as u8),
        };
        apic.raise(delivery);
        Self::Raised(delivery)
    }
}
