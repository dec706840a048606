//! The register writes that make the processor write to memory.

use pmu_core::{MsrAddress, MsrBackend};

use crate::registers::{DebugCtl, IA32_DEBUGCTL, IA32_DS_AREA, IA32_PEBS_ENABLE};

/// Writes `IA32_DS_AREA`, the address of the DS save area, on the processor that executes the call; 0 for none.
///
/// # Errors
/// The access failed, as it does with a non-canonical address.
///
/// # Examples
/// ```
/// # use pmu_core::MsrBackend;
/// use pmu_intel::debug_store::{ControlAreaMemory, write_ds_area};
/// static MEMORY: ControlAreaMemory = ControlAreaMemory::new(); // this processor's, in pages that are never unmapped
///
/// fn begin<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: (1) the area is a static of this processor's alone, mapped in the kernel's half of every address
///     // space; (2) its buffers are empty, so each maximum is at its end; (3) the backend keeps no address.
///     unsafe { write_ds_area(msr, core::ptr::from_ref(MEMORY.area()).addr() as u64) }
/// }
/// ```
///
/// Wrong: an area on the stack, which the processor goes on writing to after the function has returned.
///
/// ```
/// # use pmu_core::MsrBackend;
/// # use pmu_intel::debug_store::{ControlAreaMemory, write_ds_area};
/// fn begin<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     let memory: ControlAreaMemory = ControlAreaMemory::new();
///     // SAFETY: not given. The area ends with this call.
///     unsafe { write_ds_area(msr, core::ptr::from_ref(memory.area()).addr() as u64) }
/// }
/// ```
///
/// # Safety
/// `msr` writes the given value, once, and neither keeps the register's [`MsrAddress`] nor passes it on to
/// other safe code. Unless `linear_address` is 0, until another value was written on this processor:
/// - a DS save area of the form that this processor uses (DTES64, number of counter resets by its
///   PEBS format) is mapped, writable, at `linear_address` in *every* address space that the
///   processor runs in, and nothing frees or moves it;
/// - each buffer that the save area names is mapped in the same way, belongs to this processor's
///   tracing alone, and its maximum lies at or below its end;
/// - no other processor uses the same save area.
pub unsafe fn write_ds_area<M: MsrBackend>(msr: &M, linear_address: u64) -> Result<(), M::Error> {
    // SAFETY: the register holds an address that the processor writes through; the caller promised
    // that it may. The backend keeps the address to itself, by the caller's promise.
    msr.write(unsafe { MsrAddress::new(IA32_DS_AREA) }, linear_address)
}

/// Writes `IA32_PEBS_ENABLE` on the processor that executes the call: an overflow of a counter whose bit is set writes
/// a record through the DS save area. 0 disables PEBS.
///
/// # Errors
/// The access failed, as it does with a bit of a counter without PEBS.
///
/// # Examples
/// ```
/// # use pmu_core::MsrBackend;
/// use pmu_intel::debug_store::{write_ds_area, write_pebs_enable};
/// fn end<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: 0 promises nothing of a save area; no session's operation is interrupted: this is a task.
///     unsafe { write_pebs_enable(msr, 0) }?;
///     // SAFETY: 0 is no address.
///     unsafe { write_ds_area(msr, 0) }
/// }
/// ```
///
/// Wrong: in the other order, so that the processor may write a record where there is no area any more.
///
/// ```
/// # use pmu_core::MsrBackend;
/// # use pmu_intel::debug_store::{write_ds_area, write_pebs_enable};
/// fn end<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: 0 is no address; but the promise of the counters that are still enabled is broken.
///     unsafe { write_ds_area(msr, 0) }?;
///     // SAFETY: 0 promises nothing of a save area.
///     unsafe { write_pebs_enable(msr, 0) }
/// }
/// ```
///
/// # Safety
/// `msr` does as [`write_ds_area`] says of it. Unless `counters` is 0, until 0 was written on this processor:
/// - the promises of [`write_ds_area`] hold for a save area that was written, with a PEBS buffer;
/// - the save area has a counter reset for each counter whose bit is set, at the offset that the
///   processor's PEBS format gives it.
///
/// Whatever `counters` is, do not call this from code that may have interrupted an operation of a session on this
/// processor: the session changes other bits of the register, and would write the old value of these bits back.
pub unsafe fn write_pebs_enable<M: MsrBackend>(msr: &M, counters: u64) -> Result<(), M::Error> {
    // SAFETY: the caller promised a save area and a buffer that the processor may write. The
    // backend keeps the address to itself, by the caller's promise.
    msr.write(unsafe { MsrAddress::new(IA32_PEBS_ENABLE) }, counters)
}

/// Writes `IA32_DEBUGCTL` on the processor that executes the call.
///
/// All bits are replaced: read the register first where others use it.
///
/// # Errors
/// The access failed, as it does with a reserved bit or one that the processor lacks.
///
/// # Examples
/// ```
/// # use pmu_core::MsrBackend;
/// use pmu_intel::debug_store::write_debugctl;
/// use pmu_intel::registers::DebugCtl;
/// fn record_last_branches<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: (1) neither `tr` nor `bts` is set; (2) this kernel's debugger knows of last-branch records.
///     unsafe { write_debugctl(msr, DebugCtl::new().with_lbr(true)) }
/// }
/// ```
///
/// Wrong: branches stored without a buffer to store them in.
///
/// ```
/// # use pmu_core::MsrBackend;
/// # use pmu_intel::debug_store::write_debugctl;
/// # use pmu_intel::registers::DebugCtl;
/// fn trace<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: not given. Nothing wrote IA32_DS_AREA before.
///     unsafe { write_debugctl(msr, DebugCtl::new().with_tr(true).with_bts(true)) }
/// }
/// ```
///
/// # Safety
/// - `msr` does as [`write_ds_area`] says of it.
/// - If `value` has both `tr` and `bts` set, then until one of them was cleared on this processor
///   the promises of [`write_ds_area`] hold for a save area that was written, with a BTS buffer.
/// - The kernel's debugger and debug-exception handler can live with `lbr` and `btf` as given.
/// - It is not called from code that may have interrupted an operation of a session on this processor: the session
///   changes another bit of the register, and would write the old value of the others back.
pub unsafe fn write_debugctl<M: MsrBackend>(msr: &M, value: DebugCtl) -> Result<(), M::Error> {
    // SAFETY: the caller promised that the processor may store branch records. The
    // backend keeps the address to itself, by the caller's promise.
    msr.write(unsafe { MsrAddress::new(IA32_DEBUGCTL) }, value.into_bits())
}
