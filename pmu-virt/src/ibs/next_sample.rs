//! The distance to the next sample.

/// Result of [`VirtualIbs::next_sample`](crate::VirtualIbs::next_sample): numbers of events until the next sample. For
/// example, 1 means that the next event is sampled. A field is `None` if the guest's sampling period does not count
/// this field's events. A field is also `None` until the guest has read the last sample.
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
