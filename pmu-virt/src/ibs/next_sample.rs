//! The distance to the next sample.

/// Numbers of events until the next sample, as [`VirtualIbs::next_sample`](crate::VirtualIbs::next_sample) returns
/// them. With 1, the next event ends the period. `None`: the guest does not sample by these events, or has not yet
/// read the last sample.
///
/// An embedder that lets the guest run freely sets a timer by these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NextSample {
    /// Ops, if the guest samples one op in so many.
    pub ops: Option<u64>,
    /// Cycles, if the guest samples one op in so many cycles.
    pub cycles: Option<u64>,
    /// Fetches.
    pub fetches: Option<u64>,
}
