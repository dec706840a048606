//! A harvest reads both registers, sets both to 0, and adds the values to the totals.
//!
//! Regular harvests keep the counts accurate, because the metrics are 255ths of the slots since the previous harvest.

use pmu_core::{MsrAccess, MsrBackend, MsrFault};

use crate::topdown::access::{NotWritten, Pair, SLOTS_BIT};
use crate::topdown::counts::TopDownCounts;
use crate::topdown::memory::TopDownMemory;
use crate::topdown::unit::TopDownUnit;

/// A wrap of the slots' counter is serviced before the counter has counted this many slots more.
const SERVICED_WITHIN: u64 = 1 << 31;

/// Failure of a harvest.
pub(crate) enum NotHarvested {
    /// Nothing was changed.
    Unchanged(MsrFault),
    /// Everything was added to the totals, but the registers could not be set back.
    Stale(MsrFault),
}

impl TopDownUnit {
    /// Harvests in a task, while the slots' counter is stopped. The caller has [begun](TopDownMemory::begin) the
    /// harvest, so that an interrupt leaves the registers alone.
    pub(crate) fn harvest(
        &self,
        msr: &impl MsrBackend,
        memory: &TopDownMemory,
    ) -> Result<(), NotHarvested> {
        let pair = self.read_pair(msr).map_err(NotHarvested::Unchanged)?;
        if pair.slots < SERVICED_WITHIN {
            // An overflow may be pending, whose interrupt has not come yet.
            let pending = self.pending(msr).map_err(NotHarvested::Unchanged)?;
            if pending != 0 {
                self.acknowledge(msr, pending).map_err(NotHarvested::Unchanged)?;
                memory.expect_late();
            }
            if pending & SLOTS_BIT != 0 {
                memory.note_wrap();
            }
        }
        self.set_back(msr, memory, pair)
    }

    /// Harvests in an interrupt, which stops the slots' counter meanwhile. `wrapped`: the slots' counter did.
    pub(crate) fn harvest_in_interrupt(
        &self,
        msr: &impl MsrBackend,
        memory: &TopDownMemory,
        wrapped: bool,
    ) -> Result<(), MsrFault> {
        if wrapped {
            memory.note_wrap();
        }
        if !memory.begin() {
            // A task harvests, and finds the wrap.
            return Ok(());
        }
        let control = self.control();
        let harvested = msr.update_retrying(control.set_to(0)).and_then(|found| {
            let harvested = self.read_pair(msr).map_err(NotHarvested::Unchanged);
            let harvested = harvested.and_then(|pair| self.set_back(msr, memory, pair));
            let harvested = harvested.map_err(|failure| match failure {
                NotHarvested::Unchanged(fault) => fault,
                NotHarvested::Stale(fault) => {
                    memory.set_stale(true);
                    fault
                }
            });
            // Its own bits only: the interrupted task may be about to write the others.
            let restarted = msr.update_retrying(control.set_to(found));
            let restarted = restarted.inspect_err(|_| memory.set_halted(true));
            harvested.and(restarted.map(|_| ()))
        });
        memory.end();
        harvested
    }

    /// Sets both registers back to 0, and adds what they held.
    fn set_back(
        &self,
        msr: &impl MsrBackend,
        memory: &TopDownMemory,
        pair: Pair,
    ) -> Result<(), NotHarvested> {
        let cleared = self.clear_pair(msr);
        if let Err(NotWritten::Slots(fault)) = cleared {
            return Err(NotHarvested::Unchanged(fault));
        }
        let wrapped = if memory.take_wrap() { self.range() } else { 0 };
        // Stale registers hold slots that are in the totals already.
        if !memory.is_stale() {
            memory.add(&self.counts(pair, wrapped));
        }
        match cleared {
            Err(unwritten) => Err(NotHarvested::Stale(unwritten.fault())),
            Ok(()) => {
                memory.set_stale(false);
                Ok(())
            }
        }
    }

    /// Returns the counts that both registers stand for, after a wrap of this many slots.
    pub(crate) fn counts(&self, pair: Pair, wrapped: u64) -> TopDownCounts {
        TopDownCounts::of_registers(
            pair.slots.wrapping_add(wrapped),
            pair.metrics,
            self.has_level_2(),
        )
    }
}
