//! The distance to the next sample.

/// Numbers of events until the next sample, as [`VirtualIbs::next_sample`](crate::VirtualIbs::next_sample) returns
/// them. If a number is 1, the next event is sampled. A number is `None` if the guest does not sample by these events,
/// or has not yet read the last sample.
///
/// An embedder that lets the guest run freely sets a timer by these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NextSample {
    /// Number of ops, if the period of op sampling counts ops.
    pub ops: Option<u64>,
    /// Number of cycles, if the period of op sampling counts cycles.
    pub cycles: Option<u64>,
    /// Number of fetches.
    pub fetches: Option<u64>,
}
