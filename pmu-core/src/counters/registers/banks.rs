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
    /// Number of counters that RDPMC can read. These are the counters with the lowest numbers. For RDPMC, ECX contains
    /// the counter's number.
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

/// Registers of fixed counters. Each fixed counter counts one event, and has no event select. All fixed counters share
/// a control register, in which each counter has four bits.
///
/// The lowest of the four bits enables counting at privilege level 0. The next bits enable counting above level 0,
/// counting for all threads of the core, and interrupts on overflow. To read a fixed counter, RDPMC needs bit 30 of ECX
/// set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedCounters {
    /// Address of the control register that all fixed counters share.
    pub control: u32,
    /// Address of the first counter's value register.
    pub value: u32,
    /// Difference between the addresses of adjacent counters' value registers.
    pub step: u32,
    /// Each counter's event: the event number and unit mask, as in bits 15:0 of an event select. The value is 0 if no
    /// event number and unit mask stand for the counter's event.
    pub events: [u16; MAX_FIXED],
}
