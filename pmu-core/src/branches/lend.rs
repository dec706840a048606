//! Branch records beside lent counters: suspended for the borrower, such as a guest, and restored afterwards.

use crate::branches::filter::BranchFilter;
use crate::branches::memory::{FREEZING, RECORDING};
use crate::branches::recorder::{BranchRecorder, Lent};
use crate::counters::hooks::facility::{Facility, Interrupted};
use crate::counters::hooks::facility_control::FacilityControl;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// Acts as [`Branches`](crate::Branches) with the same memory.
impl<R: MsrBackend> Facility for BranchRecorder<'_, R> {
    fn status_bits(&self) -> u64 {
        self.branches.status_bits()
    }

    fn begin<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        self.branches.begin(msr)
    }

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        self.branches.collect(msr, interrupted)
    }

    fn end<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        self.branches.end(msr)
    }
}

/// The borrower finds the recording stopped, freezing disabled, and the records clear. A call stack is saved in the
/// recorder's memory, and restored afterwards. Other records are not restored. All accesses use the recorder's own
/// backend.
impl<R: MsrBackend> FacilityControl for BranchRecorder<'_, R> {
    fn suspend<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        if self.check_open().is_err() {
            return Ok(());
        }
        let mode = self.memory.mode();
        let recorded = mode & RECORDING != 0;
        let found = self.halt()?;
        let mut lent = Lent { recorded, froze: mode & FREEZING != 0, len: 0, newest: 0 };
        match self.empty(found, &mut lent) {
            Ok(()) => {
                self.lent = Some(lent);
                Ok(())
            }
            Err(fault) => {
                let _ = self.set_freeze(lent.froze);
                if recorded {
                    let _ = self.go_on();
                }
                Err(fault)
            }
        }
    }

    fn resume<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let Some(lent) = self.lent else { return Ok(()) };
        self.program_again(lent.froze)?;
        let slots = self.memory.slots().iter().take(lent.len.into());
        self.unit.write_records(&self.msr, lent.newest, slots.map(|slot| slot.load()))?;
        if lent.recorded {
            self.go_on()?;
        }
        self.lent = None;
        Ok(())
    }
}

impl<R: MsrBackend> BranchRecorder<'_, R> {
    /// Saves a call stack, and leaves nothing of the stopped recording.
    fn empty(&mut self, found: u64, lent: &mut Lent) -> Result<(), MsrFault> {
        if lent.recorded && self.filter.is_some_and(BranchFilter::is_call_stack) {
            lent.newest = self.unit.filled(&self.msr, found)?.newest;
            let (len, read) = self.unit.read_records(&self.msr, self.memory, found);
            lent.len = len;
            read?;
        }
        self.set_freeze(false)?;
        self.clear_stopped()
    }
}
