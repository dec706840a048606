//! The fill level of the buffer of precise records at which the processor interrupts.

/// The fill level of the buffer of precise records at which the processor interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PreciseThreshold {
    /// The processor interrupts for each record.
    #[default]
    EachRecord,
    /// The processor interrupts when the rest of the buffer has room for only one record per counter. One interrupt
    /// then reports many records, so the size of the buffer limits the time of the interrupt. After an event has left
    /// its counter while its records wait, each record interrupts until a precise event next starts, stops or takes its
    /// turn. A task reports records that wait by [`report_samples`](pmu_core::CounterSession::report_samples).
    NearlyFull,
}
