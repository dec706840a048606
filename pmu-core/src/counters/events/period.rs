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
    /// Shortest period, unless a table has another minimum.
    pub(crate) const DEFAULT_MIN: u64 = 0x1000;

    /// Longest period.
    pub(crate) const MAX: u64 = i64::MAX as u64;

    /// Bit of `every`, above any period: the event does not report until it is started again. No counter ever gets to
    /// the end of such a period.
    pub(crate) const SILENT: u64 = 1 << 63;

    /// Creates a period that has not begun.
    pub(crate) const fn new(every: u64) -> Self {
        Self { every, current: 0, left: 0, resume: 0 }
    }

    /// Returns the period of an event that reports again, if it had stopped reporting: a whole one.
    pub(crate) const fn reporting(self) -> Self {
        if self.every & Self::SILENT == 0 { self } else { Self::new(self.every & !Self::SILENT) }
    }
}
