//! The Amd64 profile interface.

use core::sync::atomic::AtomicU32;

#[cfg(doc)]
use pmu_core::ProfileInterface;
use pmu_core::{CounterUnit, IntervalLimits, NoInterface, Snapshot, SourceInterface, SourceTable};

use crate::counters;
use crate::cpuid::Family;
use crate::sources::{SOURCES, TABLE};

/// The Amd64 interface of a machine: the sources of [`SOURCES`](crate::SOURCES), on the best counters that CPUID declares: the four
/// legacy ones, those of the core extension, or those of PerfMonV2 with their global registers.
#[derive(Debug)]
pub struct Amd64 {
    unit: CounterUnit,
    intervals: [AtomicU32; SOURCES.len()],
}

impl Amd64 {
    /// Detects the machine whose boot processor `snapshot` describes, by Windows' rule: the vendor is
    /// AMD, the processor has long mode, and no Microsoft-compatible hypervisor hides the counters.
    ///
    /// No CPUID bit says that the legacy counters exist; [`initialize`](ProfileInterface::initialize)
    /// proves whichever are used.
    ///
    /// # Errors
    /// The first of these conditions that does not hold.
    pub fn detect(snapshot: &Snapshot) -> Result<Self, NoInterface> {
        if snapshot.vendor() != *b"AuthenticAMD" {
            Err(NoInterface::OtherVendor(snapshot.vendor()))
        } else if !snapshot.has_long_mode() {
            Err(NoInterface::NoLongMode)
        } else if snapshot.hypervisor_hides_counters() {
            Err(NoInterface::HiddenByHypervisor)
        } else {
            Ok(Self::new(counters::unit(snapshot)))
        }
    }

    /// The interface as any machine that it detects would have it, with the four legacy counters: for
    /// listings of what it offers.
    pub const fn declared() -> Self {
        Self::new(counters::of_family(Family::Legacy))
    }

    const fn new(unit: CounterUnit) -> Self {
        let mut intervals = [const { AtomicU32::new(IntervalLimits::EVENTS.default) }; _];
        intervals[0] = AtomicU32::new(IntervalLimits::TIME.default);
        Self { unit, intervals }
    }
}

// SAFETY: the unit is a field, or a constant.
unsafe impl SourceInterface for Amd64 {
    fn name(&self) -> &'static str {
        "Amd64"
    }

    /// Windows without memory stops with bug check 0xAC, `HAL_MEMORY_ALLOCATION`.
    fn requires_memory(&self) -> bool {
        true
    }

    fn table(&self) -> &'static SourceTable {
        &TABLE
    }

    #[inline]
    fn unit(&self) -> &CounterUnit {
        &self.unit
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        counters::unit(processor)
    }

    fn is_declared(&self, row: usize) -> bool {
        row < SOURCES.len()
    }

    #[inline]
    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        self.intervals.get(row)
    }
}
