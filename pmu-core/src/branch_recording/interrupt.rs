//! Branch records in the counters' interrupt.

use core::sync::atomic::Ordering::Relaxed;

use crate::branches::memory::{CLEAR, FREEZING, LOST, RECORDING};
use crate::branches::sampled::Branches;
use crate::branches::unit::BranchFreeze;
use crate::counters::hooks::facility::{Facility, Interrupted};
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

impl Facility for Branches<'_> {
    /// Returns the bit of the overflow status that reports frozen records. A recorder that records without freezing
    /// also returns this bit, because another owner may have enabled freezing.
    #[inline]
    fn status_bits(&self) -> u64 {
        if self.memory.mode_of(self.unit) & (FREEZING | RECORDING) == 0 {
            return 0;
        }
        let status = self.unit.registers().freeze.and_then(|freeze| freeze.status);
        status.map_or(0, |(frozen, _)| frozen)
    }

    /// Stops the recording if the interrupt does not freeze the records.
    fn begin<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        *self = Self::new(self.unit, self.memory);
        if self.memory.mode_of(self.unit) & (RECORDING | FREEZING) == RECORDING {
            self.found = self.unit.stop(msr)?;
            self.stopped = true;
        }
        Ok(())
    }

    /// Reads the records if a counter overflowed. If the processor freezes the records by stopping the recording, this
    /// method also restarts the recording.
    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        let mode = self.memory.mode_of(self.unit);
        let freeze = self.unit.registers().freeze.filter(|_| mode & FREEZING != 0);
        let overflowed = !interrupted.overflowed.is_empty() || interrupted.recorded;
        match freeze.map(|freeze| freeze.status) {
            _ if mode & RECORDING == 0 => {}
            None if overflowed && self.stopped => self.read(msr, self.found)?,
            None => {}
            Some(Some((frozen, _))) if overflowed => {
                self.is_frozen = interrupted.status & frozen != 0;
                if !self.is_frozen {
                    // The processor did not freeze them after all.
                    self.found = self.unit.stop(msr)?;
                    self.stopped = true;
                }
                self.read(msr, self.found)?;
            }
            Some(Some(_)) => {}
            // To freeze them the processor stopped the recording, whichever owner's interrupt it is.
            Some(None) if !overflowed => _ = self.restart(msr)?,
            Some(None) => {
                // It is stopped here if the processor did not: while it records, the registers of one record may hold
                // parts of two branches.
                self.stopped = true;
                self.found = self.unit.stop(msr)?;
                self.is_frozen = !self.unit.is_on(self.found);
                self.read(msr, self.found)?;
            }
        }
        Ok(0)
    }

    /// Restarts the recording if [`begin`](Facility::begin) or [`collect`](Facility::collect) stopped it.
    fn end<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        if core::mem::take(&mut self.stopped) { self.restart(msr).map(|_| ()) } else { Ok(()) }
    }

    /// Ends the freeze that the interrupt began.
    #[cold]
    #[inline(never)]
    fn without_counters<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        const FROZEN: u8 = FREEZING | RECORDING;
        let freeze = self.unit.registers().freeze;
        match freeze.filter(|_| self.memory.mode_of(self.unit) & FROZEN == FROZEN) {
            None => Ok(()),
            Some(BranchFreeze { status: Some(_), .. }) => self.unit.release(msr),
            Some(BranchFreeze { status: None, .. }) => self.restart(msr).map(|_| ()),
        }
    }
}

impl Branches<'_> {
    /// Starts the recording again, unless a task has stopped it. Notes if that failed.
    #[inline(never)]
    pub(crate) fn restart<M: MsrBackend>(&self, msr: &M) -> Result<u64, MsrFault> {
        if self.memory.mode() & CLEAR != 0 {
            return Ok(0);
        }
        let started = self.unit.start(msr, self.memory.control.load(Relaxed));
        match started {
            Err(_) => self.memory.set_mode(LOST),
            Ok(_) if self.memory.mode() & LOST != 0 => self.memory.clear_mode(LOST),
            Ok(_) => {}
        }
        started
    }
}
