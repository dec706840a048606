//! The profile interface of a processor without counters.

use core::sync::atomic::AtomicU32;

use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::detection::NoInterface;
use crate::interval::IntervalLimits;
use crate::profile::source::ProfileSource;
use crate::profile::source_index::{SourceIndex, SourceTable};
use crate::profile::source_interface::SourceInterface;
use crate::snapshot::Snapshot;

/// The profile interface of a machine without counters. The interface's only source is `ProfileTime`.
#[derive(Debug)]
pub struct DefaultInterface {
    time: AtomicU32,
    unit: CounterUnit,
}

impl DefaultInterface {
    /// Creates the interface, in which `ProfileTime` has its default interval.
    pub const fn new() -> Self {
        Self::instead_of(NoInterface::NoPerformanceMonitoring)
    }

    /// Creates the interface of a machine on which no counters were detected. `reason` is the error that the vendor
    /// crate's detection of counters returned.
    ///
    /// ```
    /// # use pmu_core::profile::{DefaultInterface, ProfileInterface};
    /// # use pmu_core::NoInterface;
    /// let interface = DefaultInterface::instead_of(NoInterface::NoLongMode);
    /// assert_eq!(interface.sources().len(), 1); // Only `ProfileTime`.
    /// ```
    pub const fn instead_of(reason: NoInterface) -> Self {
        let time = AtomicU32::new(IntervalLimits::TIME.default);
        Self { time, unit: CounterUnit::absent(reason) }
    }
}

impl Default for DefaultInterface {
    fn default() -> Self {
        Self::new()
    }
}

static SOURCES: [ProfileSource; 1] =
    [ProfileSource::new(0, "ProfileTime", EventSelect::from_bits(0)).spelled("Timer")];

static INDEX: SourceIndex<4> = SourceIndex::new(&SOURCES);

static TABLE: SourceTable = SourceTable::new(&SOURCES, &INDEX);

// SAFETY: the unit is a field.
unsafe impl SourceInterface for DefaultInterface {
    type Facility = ();

    fn facility(&self) {}

    fn name(&self) -> &'static str {
        "Default"
    }

    fn requires_memory(&self) -> bool {
        false
    }

    fn table(&self) -> &'static SourceTable {
        &TABLE
    }

    fn unit(&self) -> &CounterUnit {
        &self.unit
    }

    fn unit_of(&self, _: &Snapshot) -> CounterUnit {
        self.unit
    }

    fn is_declared(&self, row: usize) -> bool {
        row == 0
    }

    fn intervals(&self) -> &[AtomicU32] {
        core::slice::from_ref(&self.time)
    }
}
