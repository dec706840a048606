//! Branch records that follow a thread; Intel's architectural ones by XSAVES, too.

use core::fmt;

use raw_cpuid::CpuIdReader;

use crate::access::backend::{AccessFault, RegisterBackend};
use crate::branch_recording::error::BranchError;
use crate::branch_recording::recorder::BranchRecorder;
use crate::branches::memory::{STALE, SavedBranches};
use crate::branches::unit::BranchEnable;

impl<M: RegisterBackend> BranchRecorder<'_, M> {
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
    /// # use pmu_core::access::RegisterBackend;
    /// # use pmu_core::branches::SavedBranches;
    /// /// The scheduler, between two threads whose call stacks are recorded.
    /// fn switch<M: RegisterBackend>(
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
    /// - [`StateUnknown`](BranchError::StateUnknown): the recording could not be stopped, and continues. Samples
    ///   contain no branches until the records are cleared, the recording is restarted, or the next thread switch
    ///   succeeds.
    /// - [`NotRecording`](BranchError::NotRecording): if a record could not be read, `saved` contains only the newer
    ///   records.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn switch_out<const N: usize>(
        &mut self,
        saved: Option<&mut SavedBranches<N>>,
    ) -> Result<(), BranchError> {
        self.check_open()?;
        if saved.is_some() && N < self.unit.depth().into() {
            return Err(BranchError::SavedElsewhere);
        }
        let found = self.recording().pause_for_another().map_err(|fault| self.error(fault))?;
        let read = match saved {
            Some(saved) if !self.recording().is_stale() => self.save(saved, found),
            Some(saved) => {
                saved.clear();
                Ok(())
            }
            None => Ok(()),
        };
        // Cleared even if the records could not be saved: the next thread must not see them.
        self.recording().clear_stopped().and(read).map_err(BranchError::NotRecording)
    }

    /// Reads the records of a stopped recording.
    fn save<const N: usize>(
        &self,
        saved: &mut SavedBranches<N>,
        found: u64,
    ) -> Result<(), AccessFault> {
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
    /// - [`NotStarted`](BranchError::NotStarted).
    /// - [`NotRecording`](BranchError::NotRecording): the processor's registers contain none of the thread's records.
    /// - [`StateUnknown`](BranchError::StateUnknown): an earlier recording could not be stopped.
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
    ) -> Result<(), AccessFault> {
        self.recording().leave_no_records()?;
        self.recording().program(self.recording().of_recorder())?;
        if let Some(saved) = saved {
            let records = saved.records().iter().copied();
            // If a write fails, the records are cleared: a part of them beside stale ones would be read as one history.
            let written = self.unit.write_records(&self.msr, saved.newest, records);
            written.or_else(|fault| self.recording().clear_stopped().and(Err(fault)))?;
        }
        self.recording().resume()
    }

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
    /// # use pmu_core::access::RegisterBackend;
    /// /// The scheduler, between two threads whose call stacks are recorded, after `use_xsaves`.
    /// fn switch<M: RegisterBackend, A: SaveBranches>(
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
    /// - [`StateUnknown`](BranchError::StateUnknown): the recording could not be stopped, and continues.
    /// - [`Xsaves`](BranchError::Xsaves): XSAVES failed. The processor does not record, and `saved` has no records.
    /// - [`NotRecording`](BranchError::NotRecording): the records could not be cleared, and the processor does not
    ///   record. The next call that starts the recording clears the records beforehand.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn switch_out_to<A: SaveBranches>(
        &mut self,
        saved: &mut BranchArea<A>,
    ) -> Result<(), BranchError> {
        self.check_xsaves()?;
        self.recording().pause_for_another().map_err(|fault| self.error(fault))?;
        saved.clear();
        let mut done = Ok(());
        if !self.recording().is_stale() {
            // The recording is stopped, so the area has a control register of 0.
            done = saved.area.save().map_err(BranchError::Xsaves);
            if done.is_ok() {
                saved.depth = self.unit.depth();
            }
        }
        self.recording().clear_stopped().map_err(BranchError::NotRecording).and(done)
    }

    /// Does the same as [`switch_in`](Self::switch_in), but restores all records from `saved` by one XRSTORS
    /// instruction.
    ///
    /// # Errors
    /// - [`XsavesUnsupported`](BranchError::XsavesUnsupported): [`use_xsaves`](Self::use_xsaves) was not called, or
    ///   failed. Nothing was changed.
    /// - [`SavedElsewhere`](BranchError::SavedElsewhere): `saved` comes from a processor with another number of
    ///   records; nothing was changed.
    /// - [`NotStarted`](BranchError::NotStarted).
    /// - [`Xsaves`](BranchError::Xsaves): XRSTORS failed. The processor does not record, and its registers contain none
    ///   of the thread's records.
    /// - [`NotRecording`](BranchError::NotRecording): the next call that starts the recording clears the records
    ///   beforehand.
    /// - [`StateUnknown`](BranchError::StateUnknown): an earlier recording could not be stopped.
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
                let cleared = self.recording().clear_stopped().map_err(BranchError::NotRecording);
                return cleared.and(Err(BranchError::Xsaves(fault)));
            }
        }
        self.recording().resume().map_err(|fault| self.error(fault))?;
        self.memory.clear_mode(STALE);
        Ok(())
    }

    fn check_xsaves(&self) -> Result<(), BranchError> {
        self.check_open()?;
        if self.uses_xsaves { Ok(()) } else { Err(BranchError::XsavesUnsupported) }
    }
}

/// The control register of the records in state component 15.
const IA32_LBR_CTL: u32 = 0x14CE;

/// Component 15 without records: five registers.
const REGISTERS: u32 = 40;

/// FROM, TO and INFO.
const RECORD: u32 = 24;

/// The XSAVE area in which the kernel keeps a thread's architectural branch records.
///
/// The kernel allocates and initializes the area. The area has XSAVES' compacted format.
/// [`BranchRecorder::switch_out_to`](crate::branch_recording::BranchRecorder::switch_out_to) copies the records into
/// the area, and [`switch_in_from`](crate::branch_recording::BranchRecorder::switch_in_from) copies the records back.
///
/// Source: SDM vol. 1, "Managing State Using the XSAVE Feature Set", state component 15: `IA32_LBR_CTL`,
/// `IA32_LBR_DEPTH`, `IA32_LER_FROM_IP`, `IA32_LER_TO_IP`, `IA32_LER_INFO`, and then FROM, TO and INFO of each record.
///
/// # Context
/// The recorder calls both methods in task context, on the processor that it controls. The recording is then stopped.
/// The performance interrupt may come at any time, but its handler does not use the area.
///
/// # Safety
/// - The methods execute XSAVES and XRSTORS for state component 15 (bit 15 of EDX:EAX) and for no other component.
///   XRSTORS for another component would replace registers that the compiler uses.
/// - Nothing but this value uses the area. The area is aligned to 64 bytes. For each processor on which the thread
///   runs, the area has room for that processor's component 15 (CPUID leaf 0x0D, subleaf 15).
/// - On each of these processors, the kernel has set bit 15 of `IA32_XSS`.
/// - After the area's initialization, only these methods write to the area. User mode cannot access the area.
///
/// This area has room for 32 records:
///
/// ```
/// use core::arch::asm;
/// use pmu_core::branch_recording::{SaveBranches, XsaveFault};
///
/// #[repr(C, align(64))]
/// struct Area([u64; (512 + 64 + 40 + 24 * 32) / 8]);
///
/// impl Area {
///     fn new() -> Self {
///         let mut area = Self([0; 173]);
///         area.0[65] = 1 << 63 | 1 << 15; // XCOMP_BV: compacted, component 15
///         area
///     }
/// }
///
/// // SAFETY: (1) EAX is bit 15 alone, and EDX is 0. (2) The area is a field, is aligned to 64 bytes, and has room for
/// // component 15 of 32 records, which is the most that this kernel's processors have. (3) Each processor set
/// // `IA32_XSS` as it started. (4) The field is private, and the kernel's memory is not mapped for user mode.
/// unsafe impl SaveBranches for Area {
///     fn save(&mut self) -> Result<(), XsaveFault> {
///         // SAFETY: XSAVES writes to the area alone, which has room.
///         unsafe { asm!("xsaves64 [{}]", in(reg) &mut self.0, in("eax") 1 << 15, in("edx") 0) };
///         Ok(())
///     }
///     fn restore(&mut self) -> Result<(), XsaveFault> {
///         // SAFETY: `new` or XSAVES wrote the area, so XRSTORS does not fault, and loads the records alone.
///         unsafe { asm!("xrstors64 [{}]", in(reg) &self.0, in("eax") 1 << 15, in("edx") 0) };
///         Ok(())
///     }
/// }
/// # let _ = Area::new();
/// ```
///
/// Wrong: all bits of EDX:EAX are set. XRSTORS then also replaces the registers of SSE and AVX, which the compiler
/// uses.
pub unsafe trait SaveBranches {
    /// Executes XSAVES for component 15: copies the registers of the records into the area.
    ///
    /// # Errors
    /// XSAVES raised an exception, and the area's records are not valid.
    fn save(&mut self) -> Result<(), XsaveFault>;

    /// Executes XRSTORS for component 15: copies the area into the registers of the records. If bit 15 of the area's
    /// `XSTATE_BV` is clear, XRSTORS clears the records.
    ///
    /// # Errors
    /// XRSTORS raised an exception.
    fn restore(&mut self) -> Result<(), XsaveFault>;
}

/// Error of [`SaveBranches`]: XSAVES or XRSTORS raised an exception.
///
/// ```
/// assert_eq!(pmu_core::branch_recording::XsaveFault.to_string(), "XSAVES or XRSTORS raised an exception");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct XsaveFault;

impl fmt::Display for XsaveFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("XSAVES or XRSTORS raised an exception")
    }
}

impl core::error::Error for XsaveFault {}

/// A thread's call stack, saved in an XSAVE area of the kernel while the thread does not run. When the thread runs
/// again, the processor continues to record this call stack.
///
/// [`SavedBranches`](crate::branches::SavedBranches) is the type for kernels that do not use XSAVES for the records.
/// The kernel commonly stores the value with the thread's registers.
///
/// ```
/// use pmu_core::branch_recording::{BranchArea, SaveBranches};
/// struct Thread<A: SaveBranches> {
///     call_stack: BranchArea<A>,
/// }
/// fn thread<A: SaveBranches>(area: A) -> Thread<A> {
///     Thread { call_stack: BranchArea::new(area) }
/// }
/// ```
#[derive(Debug)]
pub struct BranchArea<A> {
    pub(crate) area: A,
    /// Number of records of the processor that saved the area; 0 if the area has no records.
    pub(crate) depth: u8,
}

impl<A: SaveBranches> BranchArea<A> {
    /// Creates an empty saved call stack. The kernel's `area` provides the room for the records.
    pub const fn new(area: A) -> Self {
        Self { area, depth: 0 }
    }

    /// Discards the saved records, for example when the thread begins a new program.
    pub const fn clear(&mut self) {
        self.depth = 0;
    }
}
