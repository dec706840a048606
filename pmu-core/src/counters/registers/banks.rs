//! Addresses of a processor's counters: banks of general counters, and fixed counters with a shared control register.

use crate::counters::names::counter_id::MAX_FIXED;

/// Registers of general counters, at regular distances from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterBank {
    /// Address of the first counter's event select.
    pub select: u32,
    /// Address of the first counter's value register.
    pub value: u32,
    /// Difference between the register addresses of adjacent counters.
    pub step: u32,
    /// Number of counters, from the first on, that RDPMC can read. For RDPMC, ECX contains the counter's number.
    pub rdpmc: u8,
    /// Set if a write to a value register takes only the low 32 bits of the value, and sign-extends them.
    pub sign_extended: bool,
}

/// Full-width addresses of the general counters' value registers: a write to such an address takes all bits of the
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FullWidth {
    /// Full-width address of the first counter's value register, such as 0x4C1 (`IA32_A_PMC0`).
    pub value: u32,
    /// Address of the read-only register that declares whether the full-width addresses exist.
    pub capabilities: u32,
    /// The bit of `capabilities` that is set if the full-width addresses exist.
    pub declared: u64,
}

/// Registers of fixed counters. Each fixed counter counts one event. A fixed counter has no event select. Instead, each
/// has four bits of a control register that all fixed counters share.
///
/// From the lowest bit, the four bits enable: counting at privilege level 0, counting above level 0, counting for all
/// threads of the core, and interrupting. To read a fixed counter, RDPMC needs bit 30 of ECX set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedCounters {
    /// Address of the control register that all fixed counters share.
    pub control: u32,
    /// Address of the first counter's value register.
    pub value: u32,
    /// Difference between the addresses of adjacent counters' value registers.
    pub step: u32,
    /// Each counter's event, as bits 15:0 of an event select. 0 stands for an event that no event select names.
    pub events: [u16; MAX_FIXED],
}
