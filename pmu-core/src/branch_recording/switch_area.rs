//! Branch records that follow a thread in an XSAVE area.

use raw_cpuid::CpuIdReader;

use crate::branch_recording::area::{BranchArea, SaveBranches};
use crate::branch_recording::error::BranchError;
use crate::branch_recording::recorder::BranchRecorder;
use crate::branches::memory::STALE;
use crate::branches::unit::BranchEnable;
use crate::msr::backend::MsrBackend;

/// The control register of the records in state component 15.
const IA32_LBR_CTL: u32 = 0x14CE;

/// Component 15 without records: five registers.
const REGISTERS: u32 = 40;

/// FROM, TO and INFO.
const RECORD: u32 = 24;

impl<M: MsrBackend> BranchRecorder<'_, M> {
    /// Checks that this processor's XSAVES saves the branch records. Call this once after [`take`](Self::take), before
    /// the first [`switch_out_to`](Self::switch_out_to) or [`switch_in_from`](Self::switch_in_from).
    ///
    /// `cpuid` must execute CPUID on this processor. The call accesses no MSR. A hypervisor may declare a wrong size of
    /// the XSAVE component in CPUID. The call therefore checks that this size fits the number of records.
    ///
    /// Source: SDM vol. 1, "Managing State Using the XSAVE Feature Set"; SDM vol. 2A, CPUID leaf 0x0D.
    ///
    /// # Errors
    /// - [`XsavesUnsupported`](BranchError::XsavesUnsupported): the records are not Intel's architectural records, or
    ///   CPUID does not declare that XSAVES saves the records.
    /// - [`XsavesSize`](BranchError::XsavesSize): the declared size is not the size of the processor's records.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn use_xsaves(&mut self, cpuid: impl CpuIdReader) -> Result<(), BranchError> {
        self.check_open()?;
        self.uses_xsaves = false;
        let is_architectural = matches!(
            self.unit.registers().enable,
            BranchEnable::Register(control) if control.get() == IA32_LBR_CTL
        );
        let declares = || {
            let features = cpuid.cpuid2(0x0D, 1);
            // EAX bit 3: XSAVES. ECX bit 15: `IA32_XSS` can enable component 15.
            cpuid.cpuid1(0).eax >= 0x0D && features.eax >> 3 & 1 != 0 && features.ecx >> 15 & 1 != 0
        };
        if !is_architectural || !declares() {
            return Err(BranchError::XsavesUnsupported);
        }
        let declared = cpuid.cpuid2(0x0D, 15).eax;
        let needed = REGISTERS + RECORD * u32::from(self.unit.depth());
        if declared != needed {
            return Err(BranchError::XsavesSize { declared, needed });
        }
        self.uses_xsaves = true;
        Ok(())
    }

    /// Does the same as [`switch_out`](Self::switch_out), but saves all records into `saved` by one XSAVES instruction.
    ///
    /// ```
    /// # use pmu_core::branch_recording::{BranchArea, BranchError, BranchRecorder, SaveBranches};
    /// # use pmu_core::msr::MsrBackend;
    /// /// The scheduler, between two threads whose call stacks are recorded, after `use_xsaves`.
    /// fn switch<M: MsrBackend, A: SaveBranches>(
    ///     recorder: &mut BranchRecorder<'_, M>,
    ///     (old, new): (&mut BranchArea<A>, &mut BranchArea<A>),
    /// ) -> Result<(), BranchError> {
    ///     recorder.switch_out_to(old)?;
    ///     recorder.switch_in_from(new)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`XsavesUnsupported`](BranchError::XsavesUnsupported): [`use_xsaves`](Self::use_xsaves) was not called, or
    ///   failed. Nothing was changed.
    /// - [`Faulted`](BranchError::Faulted): the recording could not be stopped, and continues.
    /// - [`Xsaves`](BranchError::Xsaves): XSAVES failed. The processor does not record, and `saved` has no records.
    /// - [`Access`](BranchError::Access): the records could not be cleared, and the processor does not record. The next
    ///   call that starts the recording clears the records beforehand.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn switch_out_to<A: SaveBranches>(
        &mut self,
        saved: &mut BranchArea<A>,
    ) -> Result<(), BranchError> {
        self.check_xsaves()?;
        self.recording().halt_for_another().map_err(|fault| self.error(fault))?;
        saved.clear();
        let mut done = Ok(());
        if !self.recording().is_stale() {
            // The recording is stopped, so the area has a control register of 0.
            done = saved.area.save().map_err(BranchError::Xsaves);
            if done.is_ok() {
                saved.depth = self.unit.depth();
            }
        }
        self.recording().clear_stopped().map_err(BranchError::Access).and(done)
    }

    /// Does the same as [`switch_in`](Self::switch_in), but restores all records from `saved` by one XRSTORS
    /// instruction.
    ///
    /// # Errors
    /// - [`XsavesUnsupported`](BranchError::XsavesUnsupported): [`use_xsaves`](Self::use_xsaves) was not called, or
    ///   failed. Nothing was changed.
    /// - [`SavedElsewhere`](BranchError::SavedElsewhere): `saved` comes from a processor with another number of
    ///   records; nothing was changed.
    /// - [`NotStarted`](BranchError::NotStarted): no recording was started.
    /// - [`Xsaves`](BranchError::Xsaves): XRSTORS failed. The processor does not record, and its registers contain none
    ///   of the thread's records.
    /// - [`Access`](BranchError::Access): a register access failed, and the processor does not record. The next call
    ///   that starts the recording clears the records beforehand.
    /// - [`Faulted`](BranchError::Faulted): an earlier recording could not be stopped.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn switch_in_from<A: SaveBranches>(
        &mut self,
        saved: &mut BranchArea<A>,
    ) -> Result<(), BranchError> {
        self.check_xsaves()?;
        if self.filter.is_none() {
            return Err(BranchError::NotStarted);
        }
        if saved.depth != 0 && saved.depth != self.unit.depth() {
            return Err(BranchError::SavedElsewhere);
        }
        let recording = self.recording();
        let emptied = recording.leave_no_records();
        let programmed = emptied.and_then(|()| recording.program(recording.of_recorder()));
        programmed.map_err(|fault| self.error(fault))?;
        if saved.depth != 0 {
            // Until the recording continues, the registers have records of a thread that may not run.
            self.memory.set_mode(STALE);
            let restored = saved.area.restore();
            if let Err(fault) = restored {
                let cleared = self.recording().clear_stopped().map_err(BranchError::Access);
                return cleared.and(Err(BranchError::Xsaves(fault)));
            }
        }
        self.recording().go_on().map_err(|fault| self.error(fault))?;
        self.memory.clear_mode(STALE);
        Ok(())
    }

    fn check_xsaves(&self) -> Result<(), BranchError> {
        self.check_open()?;
        if self.uses_xsaves { Ok(()) } else { Err(BranchError::XsavesUnsupported) }
    }
}
