//! The XSAVE area of a thread that does not run.

use core::fmt;

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
