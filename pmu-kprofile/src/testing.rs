//! Hardware for tests of lists and callbacks, for which it does not matter what a processor counts.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};

use crate::affinity::Affinity;
use crate::hardware::profile_hardware::ProfileHardware;

/// Hardware that has every source, and ignores starts and stops.
///
/// ```
/// use pmu_kprofile::ProfileHardware;
/// use pmu_kprofile::testing::AnySource;
/// let processor_1_of_4 = AnySource { this: 1, active: 4 };
/// assert_eq!(processor_1_of_4.this_processor().index(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AnySource {
    /// Number of the processor that executes the calls.
    pub this: u16,
    /// Number of active processors, from processor 0 on.
    pub active: usize,
}

impl ProfileHardware for AnySource {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(self.this)
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        Affinity::first(self.active)
    }
    fn supports(&self, _: KProfileSource) -> bool {
        true
    }
    fn start(&mut self, _: ProcessorNumber, _: KProfileSource) -> Result<(), InterfaceError> {
        Ok(())
    }
    fn stop(&mut self, _: ProcessorNumber, _: KProfileSource) -> Result<(), InterfaceError> {
        Ok(())
    }
}
