//! Addresses of a processor's counters: general ones in banks, fixed ones with a shared control.

use crate::counters::names::counter_id::MAX_FIXED;

/// Registers of general counters, which lie at regular distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterBank {
    /// The first counter's event select.
    pub select: u32,
    /// The first counter.
    pub value: u32,
    /// The distance from one counter's registers to the next one's.
    pub step: u32,
    /// Number of them that RDPMC reads, with their number in ECX.
    pub rdpmc: u8,
    /// A write takes the value's low 32 bits and extends their sign.
    pub sign_extended: bool,
}

/// Other addresses of the general counters, at which a write takes the whole value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FullWidth {
    /// The first counter's.
    pub value: u32,
    /// The read-only register that declares them.
    pub capabilities: u32,
    /// Its bit that does.
    pub declared: u64,
}

/// Registers of fixed counters, which count one event each: instead of an event select, each has four bits of a
/// shared register.
///
/// The four bits are: counts at privilege level 0, counts above it, counts for all threads, interrupts. RDPMC
/// reads them with bit 30 of ECX set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedCounters {
    /// The register that controls them.
    pub control: u32,
    /// The first counter.
    pub value: u32,
    /// The distance from one counter to the next.
    pub step: u32,
    /// The event of each, as an event select's bits 15:0 name it; 0: no event select does.
    pub events: [u16; MAX_FIXED],
}
