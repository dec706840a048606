//! Branch records that follow a thread.

use crate::branch_recording::error::BranchError;
use crate::branch_recording::recorder::BranchRecorder;
use crate::branches::saved::SavedBranches;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

impl<M: MsrBackend> BranchRecorder<'_, M> {
    /// Stops the recording when a thread leaves the processor. If `saved` is not `None`, the call copies the thread's
    /// records into `saved`. The call then clears the records, so that no other thread, guest or driver can read the
    /// records.
    ///
    /// Only a [call stack](crate::branches::BranchFilter::call_stack) is worth saving. With any other filter, the
    /// records merely describe the last branches before the thread left the processor. If the processor cannot record
    /// call stacks, pass `None`.
    ///
    /// ```
    /// # use pmu_core::branch_recording::{BranchError, BranchRecorder};
    /// # use pmu_core::msr::MsrBackend;
    /// # use pmu_core::branches::SavedBranches;
    /// /// The scheduler, between two threads whose call stacks are recorded.
    /// fn switch<M: MsrBackend>(
    ///     recorder: &mut BranchRecorder<'_, M>,
    ///     (old, new): (&mut SavedBranches<32>, &SavedBranches<32>),
    /// ) -> Result<(), BranchError> {
    ///     recorder.switch_out(Some(old))?;
    ///     recorder.switch_in(Some(new))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`SavedElsewhere`](BranchError::SavedElsewhere): `saved` has no room for the records; nothing was changed.
    /// - [`Faulted`](BranchError::Faulted): the recording could not be stopped, and continues. Samples contain no
    ///   branches until the records are cleared, the recording is restarted, or the next thread switch succeeds.
    /// - [`Access`](BranchError::Access): a register access failed, and the processor does not record. If a record
    ///   could not be read, `saved` contains only the newer records.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn switch_out<const N: usize>(
        &mut self,
        saved: Option<&mut SavedBranches<N>>,
    ) -> Result<(), BranchError> {
        self.check_open()?;
        if saved.is_some() && N < self.unit.depth().into() {
            return Err(BranchError::SavedElsewhere);
        }
        let found = self.recording().halt_for_another().map_err(|fault| self.error(fault))?;
        let read = match saved {
            Some(saved) if !self.recording().is_stale() => self.save(saved, found),
            Some(saved) => {
                saved.clear();
                Ok(())
            }
            None => Ok(()),
        };
        self.recording().clear_stopped().and(read).map_err(BranchError::Access)
    }

    /// Reads the records of a stopped recording.
    fn save<const N: usize>(
        &self,
        saved: &mut SavedBranches<N>,
        found: u64,
    ) -> Result<(), MsrFault> {
        saved.clear();
        let filled = self.unit.filled(&self.msr, found)?;
        let (len, read) = self.unit.read_from(&self.msr, filled, |age, record| {
            if let Some(place) = saved.records.get_mut(usize::from(age)) {
                *place = record;
            }
        });
        *saved = SavedBranches {
            len,
            newest: filled.newest,
            format: Some(self.unit.format()),
            records: saved.records,
        };
        read
    }

    /// Begins the recording of a thread that is about to run. The call restores the thread's records if `saved` is not
    /// `None`. Then the recording starts with the filter of the last [`start`](Self::start).
    ///
    /// # Errors
    /// - [`SavedElsewhere`](BranchError::SavedElsewhere): `saved` comes from a processor with another record format, or
    ///   with another number of records. Nothing was changed.
    /// - [`NotStarted`](BranchError::NotStarted): no recording was started.
    /// - [`Access`](BranchError::Access): a register access failed. The processor does not record, and its registers
    ///   contain none of the thread's records.
    /// - [`Faulted`](BranchError::Faulted): an earlier recording could not be stopped.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn switch_in<const N: usize>(
        &mut self,
        saved: Option<&SavedBranches<N>>,
    ) -> Result<(), BranchError> {
        self.check_open()?;
        if self.filter.is_none() {
            return Err(BranchError::NotStarted);
        }
        let saved = saved.filter(|saved| saved.len != 0);
        let is_elsewhere = |saved: &SavedBranches<N>| {
            let same = saved.format.is_some_and(|of| core::ptr::eq(of, self.unit.format()));
            !same || saved.len > self.unit.depth() || saved.newest >= self.unit.depth()
        };
        if saved.is_some_and(is_elsewhere) {
            return Err(BranchError::SavedElsewhere);
        }
        self.bring_back(saved).map_err(|fault| self.error(fault))
    }

    fn bring_back<const N: usize>(
        &mut self,
        saved: Option<&SavedBranches<N>>,
    ) -> Result<(), MsrFault> {
        self.recording().leave_no_records()?;
        self.recording().program(self.recording().of_recorder())?;
        if let Some(saved) = saved {
            let records = saved.records().iter().copied();
            let written = self.unit.write_records(&self.msr, saved.newest, records);
            written.or_else(|fault| self.recording().clear_stopped().and(Err(fault)))?;
        }
        self.recording().go_on()
    }
}
