//! The distance to the next sample.

/// Result of [`VirtualIbs::next_sample`](crate::VirtualIbs::next_sample): numbers of events until the next sample. For
/// example, 1 means that the next event is sampled. A number is `None` in two cases: the guest does not sample by the
/// events that the number counts, or the guest has not yet read the last sample.
///
/// An embedder that does not feed each op or fetch can use these numbers to set a timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NextSample {
    /// Number of ops until the next sample, if the period of op sampling counts ops.
    pub ops: Option<u64>,
    /// Number of cycles until the next sample, if the period of op sampling counts cycles.
    pub cycles: Option<u64>,
    /// Number of fetches until the next sample.
    pub fetches: Option<u64>,
}
