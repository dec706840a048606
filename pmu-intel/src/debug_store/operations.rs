//! The register writes that make the processor write to memory.

use pmu_core::{MsrAddress, MsrBackend};

use crate::registers::{DebugCtl, IA32_DEBUGCTL, IA32_DS_AREA, IA32_PEBS_ENABLE};

/// Writes `IA32_DS_AREA`: the address of the DS save area of the processor that executes the call; 0 for none.
///
/// # Errors
/// The access failed, as it does with a non-canonical address.
///
/// # Safety
/// `msr` writes the value that it is given, once, and neither keeps the register's [`MsrAddress`] nor passes it on to
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

/// Writes `IA32_PEBS_ENABLE`: from now on an overflow of the counters whose bits are set makes the
/// processor that executes the call write a record through its DS save area. 0 ends it.
///
/// # Errors
/// The access failed, as it does with a bit of a counter without PEBS.
///
/// # Safety
/// `msr` does as [`write_ds_area`] says of it. Unless `counters` is 0, until 0 was written on this processor:
/// - the promises of [`write_ds_area`] hold for a save area that was written, with a PEBS buffer;
/// - the save area has a counter reset for each counter whose bit is set, at the offset that the
///   processor's PEBS format gives it.
///
/// Whatever `counters` is, do not call this from code that may have interrupted an operation of a session on this
/// processor: the session changes other bits of the register, and would write these back.
pub unsafe fn write_pebs_enable<M: MsrBackend>(msr: &M, counters: u64) -> Result<(), M::Error> {
    // SAFETY: the caller promised a save area and a buffer that the processor may write. The
    // backend keeps the address to itself, by the caller's promise.
    msr.write(unsafe { MsrAddress::new(IA32_PEBS_ENABLE) }, counters)
}

/// Writes `IA32_DEBUGCTL` of the processor that executes the call. All bits are replaced: read the
/// register first where others use it.
///
/// # Errors
/// The access failed, as it does with a reserved bit or one that the processor lacks.
///
/// # Safety
/// - `msr` does as [`write_ds_area`] says of it.
/// - If `value` has both `tr` and `bts` set, then until one of them was cleared on this processor
///   the promises of [`write_ds_area`] hold for a save area that was written, with a BTS buffer.
/// - The kernel's debugger and debug-exception handler can live with `lbr` and `btf` as given.
/// - It is not called from code that may have interrupted an operation of a session on this processor: the session
///   changes another bit of the register, and would write these back.
pub unsafe fn write_debugctl<M: MsrBackend>(msr: &M, value: DebugCtl) -> Result<(), M::Error> {
    // SAFETY: the caller promised that the processor may store branch records. The
    // backend keeps the address to itself, by the caller's promise.
    msr.write(unsafe { MsrAddress::new(IA32_DEBUGCTL) }, value.into_bits())
}
