//! The profile interface.

use core::sync::atomic::AtomicU32;

use pmu_core::profile::{ProfileSources, SourceTable};
use pmu_core::{CounterUnit, EventSource};

use crate::counters::{Identification, unit};
use crate::sources::{SOURCES, TABLE};

/// Profile interface of a machine with PMUv3: its counters, and the [sources](crate::SOURCES) whose events the boot
/// processor declares.
///
/// A kernel with `pmu::Pmu` names `pmu::Arm` as its architecture, which detects this interface.
///
/// ```
/// use pmu_arm::{Identification, Pmuv3};
/// use pmu_core::EventSource;
/// use pmu_core::profile::KProfileSource;
/// # let boot_processor = Identification {
/// #     id_aa64dfr0_el1: 0x1_1030_5408, pmcr_el0: 0x4103_3000, pmceid0_el0: 0x0002_0101, ..Identification::NONE
/// # };
/// let pmuv3 = Pmuv3::detect(&boot_processor);
/// assert!(pmuv3.query(KProfileSource::TOTAL_CYCLES).is_supported());
/// // An event that this processor does not declare.
/// assert!(!pmuv3.query(KProfileSource::BRANCH_MISPREDICTIONS).is_supported());
/// ```
#[derive(Debug)]
pub struct Pmuv3 {
    sources: ProfileSources<[AtomicU32; SOURCES.len()]>,
    /// The event counters are taken in pairs.
    chained: bool,
    /// One bit per row of the table.
    declared: u32,
}

impl Pmuv3 {
    /// Detects the interface of a machine from its boot processor. If that processor has no PMUv3, `ProfileTime` is the
    /// only source, and a session's `take` fails with the reason that [`counters`](crate::counters) returns.
    ///
    /// # Context
    /// Task, once.
    pub fn detect(boot_processor: &Identification) -> Self {
        Self::with(boot_processor, false)
    }

    /// Detects the interface like [`detect`](Self::detect), with the counters of
    /// [`chained_counters`](crate::chained_counters). A kernel with `pmu::Pmu` calls this in `Kernel::detect`.
    ///
    /// # Context
    /// Task, once.
    pub fn detect_chained(boot_processor: &Identification) -> Self {
        Self::with(boot_processor, true)
    }

    fn with(boot_processor: &Identification, chained: bool) -> Self {
        let unit = unit(boot_processor, chained);
        let declared = SOURCES.iter().enumerate().fold(1, |rows, (row, source)| {
            let number = source.select().select_bits() as u16;
            rows | u32::from(boot_processor.has_event(number)) << row
        });
        Self { sources: ProfileSources::new("PMUv3", unit), chained, declared }
    }
}

// SAFETY: the unit is a field that nothing changes; that of another processor is what its registers declare; there are
// no opened events.
unsafe impl EventSource for Pmuv3 {
    type Processor = Identification;
    type Facility = ();

    fn facility(&self) {}

    #[inline]
    fn profile_sources(&self) -> &ProfileSources {
        &self.sources
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        &TABLE
    }

    fn unit_of(&self, processor: &Identification) -> CounterUnit {
        unit(processor, self.chained)
    }

    fn is_declared(&self, row: usize) -> bool {
        row < SOURCES.len() && self.declared >> row & 1 != 0
    }
}
