//! Description of the registers by which overflows reload counters.

use crate::counters::names::counter_id::CounterSet;

/// Description of the registers of Intel's auto counter reload. With auto counter reload, an overflow of a counter
/// reloads other counters, or the counter itself, without an interrupt. Each counter has two registers, at fixed
/// distances from its value register. The first register is a bitmap of the counters whose overflows reload this
/// counter. The second register contains the value that is loaded into this counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterReload {
    pub(crate) causes: u32,
    pub(crate) value: u32,
    pub(crate) reloaded: CounterSet,
    pub(crate) causing: CounterSet,
}

impl CounterReload {
    /// Describes the reload registers of a processor's counters. Each counter in `reloaded` has two reload registers.
    /// `causes` and `value` are the distances of their addresses from the address of the counter's value register. The
    /// overflow of a counter in `causing` can reload other counters.
    ///
    /// # Safety
    /// - Each counter in `reloaded` has two registers with these contents. The register at the distance `causes`
    ///   contains a bitmap of counters. The register at the distance `value` contains bits 31:0 of the value that an
    ///   overflow loads. No value of these registers makes the processor write to memory.
    ///
    /// ```
    /// use pmu_core::{CounterReload, CounterSet};
    /// let counters = CounterSet::from_bits(0xFF);
    /// // SAFETY: CFG_B and CFG_C are IA32_PMC_GP0_CTR + 2 and + 3. Bits 31:0 of CFG_C are the reload value.
    /// let reload = unsafe { CounterReload::new(2, 3, counters, counters) };
    /// assert_eq!(reload.reloaded(), counters);
    /// ```
    ///
    /// Wrong: distances of registers that hold addresses.
    ///
    /// ```
    /// # use pmu_core::{CounterReload, CounterSet};
    /// // SAFETY: not given. 0x3F4 is IA32_PEBS_BASE, the address of a buffer that the processor writes.
    /// let other = unsafe { CounterReload::new(0x3F4 - 0xC1, 3, CounterSet::from_bits(1), CounterSet::NONE) };
    /// # let _ = other;
    /// ```
    pub const unsafe fn new(
        causes: u32,
        value: u32,
        reloaded: CounterSet,
        causing: CounterSet,
    ) -> Self {
        Self { causes, value, reloaded, causing }
    }

    /// Returns the counters that have reload registers. An overflow can reload each of these counters.
    pub const fn reloaded(&self) -> CounterSet {
        self.reloaded
    }

    /// Returns the counters whose overflow can reload other counters.
    pub const fn causing(&self) -> CounterSet {
        self.causing
    }
}
