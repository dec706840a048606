//! Counts of events.

/// Count of an event, with two times: how long the event was started, and how long the event was on a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventCount {
    /// Number of occurrences that were counted after the event was opened. Only occurrences while the event was on a
    /// counter are included.
    pub value: u64,
    /// Time for which the event was started, in the units of the caller's clock.
    pub enabled: u64,
    /// Time for which the event was on a counter, in the units of the caller's clock.
    pub running: u64,
}

impl EventCount {
    /// Returns the count extrapolated to the whole time for which the event was started. Returns `None` if the event
    /// was never on a counter, or if the result exceeds 64 bits.
    ///
    /// ```
    /// # use pmu_core::EventCount;
    /// // The event was started for 300 units of time, and was on a counter for 100 of them.
    /// let count = EventCount { value: 5_000, enabled: 300, running: 100 };
    /// assert_eq!(count.scaled(), Some(15_000));
    /// assert_eq!(EventCount::default().scaled(), None); // Never on a counter.
    /// ```
    pub fn scaled(&self) -> Option<u64> {
        let scaled = u128::from(self.value) * u128::from(self.enabled);
        scaled.checked_div(self.running.into())?.try_into().ok()
    }
}
