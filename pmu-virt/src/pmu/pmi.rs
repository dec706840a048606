//! Delivery of an overflow's interrupt to the local APIC's performance entry.

use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;

/// The local APIC's performance-counter entry (LVTPC, offset 0x340) of the virtual processor.
///
/// SDM vol. 3A, "Local Vector Table"; APM vol. 2, "Local Vector Table Registers".
///
/// # For embedders
/// - `raise` only notes the interrupt; the guest takes it when it next runs.
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
    /// Returns the entry: 7:0 vector, 10:8 delivery mode, 16 mask.
    fn entry(&self) -> u32;

    /// Changes the entry: called to set the mask bit, after the interrupt was raised.
    fn set_entry(&mut self, entry: u32);

    /// Interrupts the virtual processor.
    fn raise(&mut self, delivery: Delivery);
}

/// The delivery that the entry selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Delivery {
    /// Delivery mode 0: an interrupt with this vector. One below 16 is an error to report in the
    /// APIC's error status register.
    Fixed(u8),
    /// Delivery mode 4.
    NonMaskable,
    /// Another delivery mode, 1–7: SMI (2), INIT (5), ExtINT (7), or a reserved one.
    Other(u8),
}

/// The outcome of a [delivery](VirtualPmu::deliver_pmi).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PmiOutcome {
    /// No interrupt was pending.
    NotPending,
    /// The entry is masked: the interrupt is lost, as on hardware.
    Masked,
    /// The interrupt was raised.
    Raised(Delivery),
}

const MASKED: u32 = 1 << 16;

impl<P: EventPolicy> VirtualPmu<P> {
    /// Returns whether an interrupt waits to be delivered.
    pub fn pmi_pending(&self) -> bool {
        self.model.pmi_pending
    }

    /// Sets whether an interrupt waits to be delivered: the part of a virtual processor's state that no register
    /// holds, for an embedder that [restores registers one by one](Self::host_write).
    pub fn set_pmi_pending(&mut self, pending: bool) {
        self.model.pmi_pending = pending && self.model.layout.counters() != 0;
    }

    /// Delivers the interrupt, if one is pending, through the local APIC's entry. On Intel delivery masks the entry,
    /// so that there is one interrupt until the guest unmasks it; on AMD it does not.
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
        let entry = apic.entry();
        if entry & MASKED != 0 {
            return PmiOutcome::Masked;
        }
        let delivery = match entry >> 8 & 7 {
            0 => Delivery::Fixed(entry as u8),
            4 => Delivery::NonMaskable,
            mode => Delivery::Other(mode as u8),
        };
        apic.raise(delivery);
        if self.model.layout.masks_entry {
            apic.set_entry(entry | MASKED);
        }
        PmiOutcome::Raised(delivery)
    }
}
