//! Addresses of a processor's counters: general ones in banks, fixed ones with a shared control.

use crate::counters::names::counter_id::MAX_FIXED;

/// Registers of general counters, which lie at regular distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterBank {
    /// First counter's event select.
    pub select: u32,
    /// First counter's value register.
    pub value: u32,
    /// Distance from one counter's registers to the next one's.
    pub step: u32,
    /// Number of the counters that RDPMC reads; ECX is then a counter's number.
    pub rdpmc: u8,
    /// A write takes the low 32 bits of the value, and extends their sign.
    pub sign_extended: bool,
}

/// Second addresses of the general counters, at which a write takes the whole value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FullWidth {
    /// First counter's second address.
    pub value: u32,
    /// The read-only register that declares these addresses.
    pub capabilities: u32,
    /// The bit of `capabilities` that declares them.
    pub declared: u64,
}

/// Registers of fixed counters, each of which counts one event. Instead of an event select, each has four bits of a
/// shared register.
///
/// The four bits are: counts at privilege level 0, counts above it, counts for all threads, interrupts. RDPMC
/// reads them with bit 30 of ECX set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedCounters {
    /// The control register that all fixed counters share.
    pub control: u32,
    /// First counter's value register.
    pub value: u32,
    /// Distance from one counter to the next.
    pub step: u32,
    /// Each counter's event, as bits 15:0 of an event select; 0: no event select names it.
    pub events: [u16; MAX_FIXED],
}
