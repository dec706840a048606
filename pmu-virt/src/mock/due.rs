//! Records of a mock processor that stay due while its counters are frozen.

use crate::mock::processor::MockMsr;
use crate::model::advanced::Advanced;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::registers::counters::{Counters, MAX_COUNTERS, from_global, places};

/// Counters that are armed: their overflow came while another counter's interrupt froze them, and their record is
/// written at the next event that they count. SDM vol. 3B, "Processor Event Based Sampling (PEBS)".
pub(super) struct Armed {
    counters: Counters,
    /// The value of each of them.
    values: [u64; MAX_COUNTERS],
}

impl Armed {
    /// Lets the next event of each armed counter overflow it, so that a feed ends there.
    pub(super) fn arm<const T: usize>(mock: &MockMsr<'_, T>, pmu: &mut VirtualPmu) -> Self {
        let due = mock.with_precise_records(|precise| precise.due() & precise.enabled());
        let counters = from_global(due.unwrap_or(0)) & pmu.model.running();
        let mut values = [0; MAX_COUNTERS];
        for counter in places(counters) {
            values[counter % MAX_COUNTERS] = pmu.model.registers.counter(counter);
            pmu.model.load(counter, u64::MAX);
        }
        Self { counters, values }
    }

    /// Gives each of the counters its value back, with the event that it counted, if it did. Auto counter reload may
    /// have loaded a counter meanwhile. `advanced` keeps the records of these counters, and not their overflows.
    pub(super) fn disarm(self, pmu: &mut VirtualPmu, advanced: &mut Advanced) {
        *advanced = advanced.without_overflows(self.counters);
        for counter in places(self.counters) {
            let value = self.values[counter % MAX_COUNTERS];
            match pmu.model.registers.counter(counter) {
                0 => pmu.model.load(counter, value.wrapping_add(1)),
                full if full == pmu.model.layout.mask(counter) => pmu.model.load(counter, value),
                _ => {}
            }
        }
    }
}
