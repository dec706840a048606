//! The period of an event: the events between two reports, and the part of it that is over.

/// The period of an event while the event is in no table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Period {
    /// Events between two reports, from the next report on; 0: no reports.
    pub(crate) every: u64,
    /// Period that the next report stands for.
    pub(crate) current: u64,
    /// Events of that period beyond those that the counter is loaded with.
    pub(crate) left: u64,
    /// Events that the counter is to be loaded with; 0: a period begins.
    pub(crate) resume: u64,
}

impl Period {
    /// Creates a period that has not begun.
    pub(crate) const fn new(every: u64) -> Self {
        Self { every, current: 0, left: 0, resume: 0 }
    }
}
