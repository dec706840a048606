//! The distance to the next sample.

/// Result of [`VirtualIbs::next_sample`](crate::ibs::VirtualIbs::next_sample): numbers of events until the next sample.
/// For example, 1 means that the next event is sampled. A field is `None` if no sampling period of the guest is
/// measured in the field's events. After a sample, a field is also `None` until the guest clears the valid bit of the
/// sample in `IBS_OP_CTL` or `IBS_FETCH_CTL`.
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
