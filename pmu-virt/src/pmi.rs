//! The interrupt of an overflow, as far as the local APIC's performance entry.

use crate::{EventPolicy, Vendor, VirtualPmu};

/// The local APIC's performance-counter entry (LVTPC, offset 0x340) of the virtual processor.
///
/// SDM vol. 3A, "Local Vector Table"; APM vol. 2, "Local Vector Table Registers".
///
/// # For embedders
/// - `raise` only notes the interrupt; the guest takes it when it next runs.
pub trait PerformanceEntry {
    /// The entry: 7:0 vector, 10:8 delivery mode, 16 mask.
    fn entry(&self) -> u32;

    /// Changes the entry: called to set the mask bit, after the interrupt was raised.
    fn set_entry(&mut self, entry: u32);

    /// Interrupts the virtual processor.
    fn raise(&mut self, delivery: Delivery);
}

/// How the entry says that the interrupt is delivered.
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

/// What became of the interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PmiOutcome {
    /// There was none.
    NotPending,
    /// The entry is masked: the interrupt is lost, as on hardware.
    Masked,
    /// It was raised.
    Raised(Delivery),
}

const MASKED: u32 = 1 << 16;

impl<P: EventPolicy> VirtualPmu<P> {
    /// Returns whether an interrupt waits to be delivered.
    pub fn pmi_pending(&self) -> bool {
        self.model.pmi_pending
    }

    /// Delivers the interrupt, if one is pending, through the local APIC's entry. On Intel that masks
    /// the entry, so that there is one interrupt until the guest unmasks; on AMD it does not.
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
        if self.vendor() == Vendor::Intel {
            apic.set_entry(entry | MASKED);
        }
        PmiOutcome::Raised(delivery)
    }
}
