//! Precise records in the counters' interrupt.

use pmu_core::facility::{Facility, Interrupted, Recorded};
use pmu_core::msr::{MsrBackend, MsrFault};
use pmu_core::{CounterId, CounterSet};

use crate::precise::pebs::Pebs;
use crate::precise::settle::Registers;
use crate::precise::state::TAKEN;

/// Periods from here on may be parts of longer ones: at least half of what a counter can take.
pub(crate) const LEAST_PART: u64 = 1 << 30;

impl Facility for Pebs<'_> {
    const RECORDS: bool = true;

    fn status_bits(&self) -> u64 {
        if self.memory.state.is(TAKEN) { self.unit.status_bit() } else { 0 }
    }

    fn own_counters(&self) -> CounterSet {
        self.recording()
    }

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        if !self.memory.state.is(TAKEN) {
            return Ok(0);
        }
        let interrupts = match interrupted.status {
            // Another owner's interrupt, or a status that could not be read: the buffer's own threshold tells.
            0 => self.memory.interrupts(self.unit, msr)?,
            status => status & self.status_bits() != 0,
        };
        if interrupts || self.all {
            self.begin_reading(msr)?;
        }
        Ok(interrupts.into())
    }

    fn has_records(&self) -> bool {
        self.reading.is_some() && self.has_more()
    }

    fn next_record(&mut self) -> Option<Recorded> {
        self.next_recorded()
    }

    fn set_reload<M: MsrBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        events: u64,
    ) -> Result<(), MsrFault> {
        let state = &self.memory.state;
        let Some(slot) = state.slot(counter).filter(|_| self.recording().contains(counter)) else {
            return Ok(());
        };
        let registers = Registers { pebs: self, msr };
        slot.reload.store(events, core::sync::atomic::Ordering::Relaxed);
        if events >= LEAST_PART {
            // The interrupt begins the next part.
            registers.interrupt_for_each()?;
        }
        if self.unit.needs_physical_address() {
            return registers.write_control(counter, true);
        }
        if let Some(of_counter) = self.unit.counters.counter(counter) {
            registers.set_reset(counter, of_counter.preload(events));
        }
        Ok(())
    }
}
