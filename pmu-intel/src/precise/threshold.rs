//! The fill level of the buffer of precise records at which the processor interrupts.

/// The fill level of the buffer of precise records at which the processor interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PreciseThreshold {
    /// The processor interrupts for each record.
    #[default]
    EachRecord,
    /// The processor interrupts when the rest of the buffer has room for only one record per counter. One interrupt
    /// then reports many records.
    NearlyFull,
}
