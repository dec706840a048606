//! Clearing the values that a guest left in the counters.

use pmu_core::msr::MsrBackend;

use crate::mediated::error::MediationError;
use crate::mediated::host_counters::HostCounters;
use crate::mediated::loaded::Loaded;
use crate::mediated::registers::{Access, Registers};
use crate::registers::counters::{MAX_PER_KIND, places};

impl HostCounters {
    /// Disarms and clears the counters, acknowledges their overflows, and restores the host's bits of the status.
    pub(super) fn take_away<M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let Registers { status, status_clear, status_set, fixed_control, .. } = self.registers;
        for counter in places(loaded.programmed & 0xFF) {
            msr.write_retrying(self.registers.select(counter), 0)?;
        }
        if loaded.programmed >> MAX_PER_KIND != 0 {
            msr.write_retrying(fixed_control, 0)?;
        }
        for counter in places(loaded.dirty) {
            msr.write_retrying(self.registers.counter(counter), 0)?;
        }
        let found = match loaded.saved {
            Some((_, found)) => found,
            None => msr.read(status)?,
        };
        let [hosts, guests] = loaded.others;
        let left = found & (self.counter_bits() | guests & !hosts);
        if left != 0 {
            msr.write_retrying(status_clear, left)?;
        }
        if hosts & !found != 0 {
            msr.write_retrying(status_set, hosts & !found)?;
        }
        Ok(())
    }
}
