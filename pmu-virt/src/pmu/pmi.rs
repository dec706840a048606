//! Delivery of an overflow's interrupt through the LVT entry of the performance counters.

use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;

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

impl<P: EventPolicy> VirtualPmu<P> {
    /// Returns whether an overflow's interrupt is pending. The interrupt stays pending until
    /// [`deliver_pmi`](Self::deliver_pmi) is called.
    pub fn pmi_pending(&self) -> bool {
        self.model.pmi_pending
    }

    /// Sets whether an overflow's interrupt is pending. No register tells whether an interrupt is pending. So an
    /// embedder that [restores registers one by one](Self::host_write) must also save the result of
    /// [`pmi_pending`](Self::pmi_pending).
    pub fn set_pmi_pending(&mut self, pending: bool) {
        self.model.pmi_pending = pending && self.model.layout.counters() != 0;
    }

    /// Delivers a pending interrupt through the LVT entry. On Intel, a delivery masks the entry. The next interrupt is
    /// then delivered only after the guest has unmasked the entry. On AMD, a delivery does not change the entry.
    ///
    /// ```
    /// # use pmu_virt::{Delivery, PerformanceEntry};
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, PmiOutcome, VirtualPmu};
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
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn deliver_pmi(&mut self, apic: &mut impl PerformanceEntry) -> PmiOutcome {
        if !core::mem::take(&mut self.model.pmi_pending) {
            return PmiOutcome::NotPending;
        }
        let outcome = PmiOutcome::through(apic);
        if self.model.layout.masks_entry && outcome != PmiOutcome::Masked {
            apic.set_entry(apic.entry() | MASKED);
        }
        outcome
    }
}

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
