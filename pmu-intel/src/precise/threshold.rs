//! The fill of the buffer at which the processor interrupts.

/// The fill of the buffer at which the processor interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PreciseThreshold {
    /// One record: each record interrupts.
    #[default]
    EachRecord,
    /// The buffer has room for only one more record of each counter. One interrupt then reports many records. Events
    /// that are [loaded by the handler](crate::precise::PreciseEvent::loaded_by_handler) are refused with this
    /// threshold.
    NearlyFull,
}
