//! Branch records beside lent counters: suspended for the borrower, such as a guest, and restored afterwards.

use crate::branch_recording::recorder::{BranchRecorder, Lent};
use crate::branches::filter::BranchFilter;
use crate::branches::memory::{FREEZING, RECORDING};
use crate::counters::hooks::facility::{Facility, Interrupted};
use crate::counters::hooks::facility_control::FacilityControl;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// While an interrupt is serviced, a recorder works like a [`Branches`](crate::Branches) that was created with the
/// recorder's memory.
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

    fn without_counters<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        self.branches.without_counters(msr)
    }
}

/// [`suspend`](FacilityControl::suspend) stops the recording, disables freezing, and clears the records, so that the
/// borrower of the counters, such as a guest, finds no records. If the records are a call stack, `suspend` first saves
/// them in the recorder's memory, and [`resume`](FacilityControl::resume) restores them. Records that are not a call
/// stack are lost. All register accesses use the recorder's own backend.
///
/// If `suspend` fails, the driver lets the processor record again. If this attempt also fails,
/// [`is_recording`](BranchRecorder::is_recording) returns `false`. If `suspend` failed to clear the records, samples
/// have no branches until the records are cleared, for example by [`clear`](BranchRecorder::clear).
///
/// If `resume` fails, the processor does not record, and the records do not freeze. The recorder's methods then return
/// [`Lent`](crate::BranchError::Lent), until [`resume`](FacilityControl::resume) succeeds or another
/// [window](crate::CounterWindow) ends without a fault.
impl<R: MsrBackend> FacilityControl for BranchRecorder<'_, R> {
    fn suspend<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        if self.lent.is_some() {
            return self.recording().leave_no_records();
        }
        if self.check_open().is_err() {
            return Ok(());
        }
        let mode = self.memory.mode();
        let recorded = mode & RECORDING != 0;
        let found = self.recording().halt()?;
        let mut lent = Lent { recorded, froze: mode & FREEZING != 0, len: 0, newest: 0 };
        match self.empty(found, &mut lent) {
            Ok(()) => {
                self.lent = Some(lent);
                Ok(())
            }
            Err(fault) => {
                let _ = self.recording().set_freeze(lent.froze);
                if recorded {
                    let _ = self.recording().go_on();
                }
                Err(fault)
            }
        }
    }

    fn resume<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let Some(lent) = self.lent else { return Ok(()) };
        self.bring_back_lent(lent).inspect_err(|_| {
            // As suspended: a borrower that comes next finds no records and no freeze.
            let _ = self.recording().clear_stopped();
            let _ = self.recording().set_freeze(false);
        })?;
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
        self.recording().set_freeze(false)?;
        self.recording().clear_stopped()
    }

    /// Programs the records as they were before they were lent.
    fn bring_back_lent(&self, lent: Lent) -> Result<(), MsrFault> {
        self.program_again(lent.froze)?;
        if lent.len != 0 {
            let slots = self.memory.slots().iter().take(lent.len.into());
            self.unit.write_records(&self.msr, lent.newest, slots.map(|slot| slot.load()))?;
        }
        if lent.recorded { self.recording().go_on() } else { Ok(()) }
    }
}
