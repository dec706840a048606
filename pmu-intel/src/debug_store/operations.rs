//! Register writes after which the processor writes to memory.

use pmu_core::msr::{MsrAddress, MsrBackend, RegisterBits};

use crate::registers::{DebugCtl, IA32_DEBUGCTL, IA32_DS_AREA, IA32_PEBS_ENABLE};

/// Writes `IA32_DS_AREA` on the processor that executes the call: the address of the DS save area, or 0 for no area.
///
/// # Errors
/// The access failed, for example because the address is not canonical.
///
/// # Examples
/// ```
/// # use pmu_core::msr::MsrBackend;
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
/// Wrong example, in which the area is on the stack: the processor still writes to the area after the function has
/// returned.
///
/// ```
/// # use pmu_core::msr::MsrBackend;
/// # use pmu_intel::debug_store::{ControlAreaMemory, write_ds_area};
/// fn begin<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     let memory: ControlAreaMemory = ControlAreaMemory::new();
///     // SAFETY: not given. The area ends with this call.
///     unsafe { write_ds_area(msr, core::ptr::from_ref(memory.area()).addr() as u64) }
/// }
/// ```
///
/// # Safety
/// - `msr` writes the given value to the register exactly once. `msr` does not store the [`MsrAddress`] of
///   `IA32_DS_AREA`, and does not pass this `MsrAddress` to other safe code.
///
/// If `linear_address` is not 0, the following conditions hold until this processor's `IA32_DS_AREA` gets another
/// value:
///
/// - A DS save area is at `linear_address`, in the form that this processor uses. DTES64 determines the width of the
///   words, and the PEBS format determines the number of counter reset values. The area is mapped and writable in
///   *every* address space in which the processor runs, and nothing frees or moves the area.
/// - Each buffer that the save area describes is also mapped and writable in *every* address space in which the
///   processor runs, nothing frees or moves the buffer, and only this processor's tracing uses the buffer. The save
///   area's field `bts_absolute_maximum` or `pebs_absolute_maximum` is not above the end of the buffer's memory.
/// - No other processor uses the same save area.
pub unsafe fn write_ds_area<M: MsrBackend>(msr: &M, linear_address: u64) -> Result<(), M::Error> {
    // SAFETY: the register holds an address that the processor writes through; the caller promised
    // that it may. The backend keeps the address to itself, by the caller's promise.
    msr.write(unsafe { MsrAddress::new(IA32_DS_AREA) }, linear_address)
}

/// Copies the bits in the mask `bits` from `value` to `IA32_PEBS_ENABLE`, on the processor that executes the call. The
/// register's other bits keep their values.
///
/// While a counter's bit is set, the processor writes a PEBS record after the counter overflows. The processor writes
/// the record at `pebs_index` of the DS save area.
///
/// # Errors
/// The access failed, for example because the bit of a counter without PEBS is set.
///
/// # Examples
/// ```
/// # use pmu_core::msr::MsrBackend;
/// use pmu_intel::debug_store::{update_pebs_enable, write_ds_area};
/// /// The owner of all PEBS counters ends its records.
/// fn end<M: MsrBackend>(msr: &M, counters: u64) -> Result<(), M::Error> {
///     // SAFETY: cleared bits promise nothing of a save area; no session's operation is interrupted: this is a task.
///     unsafe { update_pebs_enable(msr, counters, 0) }?;
///     // SAFETY: 0 is no address.
///     unsafe { write_ds_area(msr, 0) }
/// }
/// ```
///
/// Wrong example, in which the area is removed before PEBS is disabled: the processor may still write a record through
/// the area.
///
/// ```
/// # use pmu_core::msr::MsrBackend;
/// # use pmu_intel::debug_store::{update_pebs_enable, write_ds_area};
/// fn end<M: MsrBackend>(msr: &M, counters: u64) -> Result<(), M::Error> {
///     // SAFETY: 0 is no address; but the promise of the counters that are still enabled is broken.
///     unsafe { write_ds_area(msr, 0) }?;
///     // SAFETY: cleared bits promise nothing of a save area.
///     unsafe { update_pebs_enable(msr, counters, 0) }
/// }
/// ```
///
/// # Safety
/// - `msr` meets the requirements of [`write_ds_area`], and does not keep the [`MsrUpdate`](pmu_core::msr::MsrUpdate)
///   that it receives.
///
/// If a bit is set in both `bits` and `value`, the following conditions hold until the bit is cleared on this
/// processor:
///
/// - [`write_ds_area`] has written the address of a save area with a PEBS buffer to `IA32_DS_AREA`. The requirements of
///   [`write_ds_area`] are met.
/// - The save area has a counter reset value for each counter with a set bit, at the offset that the processor's PEBS
///   format defines.
///
/// Even if `value` is 0, do not call this function in an interrupt or NMI handler that may have interrupted a session's
/// method on this processor. Some methods of a session read the register, and then write it. A call between the read
/// and the write has no lasting effect, because the session's write restores the old bits.
pub unsafe fn update_pebs_enable<M: MsrBackend>(
    msr: &M,
    bits: u64,
    value: u64,
) -> Result<(), M::Error> {
    // SAFETY: the caller promised a save area and a buffer that the processor may write. The
    // backend keeps no change to itself, by the caller's promise.
    let own = unsafe { RegisterBits::new(IA32_PEBS_ENABLE, bits) };
    msr.update(own.set_to(value)).map(|_| ())
}

/// Copies the bits in the mask `bits` from `value` to `IA32_DEBUGCTL`, on the processor that executes the call. The
/// register's other bits keep their values. Sessions and recorders control the register's freeze bits. A
/// [`BranchRecorder`](pmu_core::branch_recording::BranchRecorder) controls the LBR bit.
///
/// # Errors
/// The access failed, for example because a reserved bit is set.
///
/// # Examples
/// ```
/// # use pmu_core::msr::MsrBackend;
/// use pmu_intel::debug_store::{BRANCH_TRACE, update_debugctl};
/// use pmu_intel::registers::DebugCtl;
/// fn end_branch_trace<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: (1) neither `tr` nor `bts` is set; (2) `lbr` and `btf` stay; (3) this is a task.
///     unsafe { update_debugctl(msr, BRANCH_TRACE, DebugCtl::new()) }
/// }
/// ```
///
/// Wrong example: the processor stores branches, but no buffer was set up.
///
/// ```
/// # use pmu_core::msr::MsrBackend;
/// # use pmu_intel::debug_store::{BRANCH_TRACE, update_debugctl};
/// # use pmu_intel::registers::DebugCtl;
/// fn trace<M: MsrBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: not given. Nothing wrote IA32_DS_AREA before.
///     unsafe { update_debugctl(msr, BRANCH_TRACE, DebugCtl::new().with_tr(true).with_bts(true)) }
/// }
/// ```
///
/// # Safety
/// - `msr` meets the requirements of [`write_ds_area`], and does not keep the [`MsrUpdate`](pmu_core::msr::MsrUpdate)
///   that it receives.
/// - If `tr` and `bts` are both set after the call, [`write_ds_area`] has written the address of a save area with a BTS
///   buffer to `IA32_DS_AREA`. The requirements of [`write_ds_area`] are met until `tr` or `bts` is cleared on this
///   processor.
/// - If `lbr` or `btf` is set in `bits`, the kernel's debugger and the kernel's handler of debug exceptions work
///   correctly with the new values of `lbr` and `btf`.
/// - Do not call this function in an interrupt or NMI handler that may have interrupted a session's method on this
///   processor. Some methods of a session read the register, and then write it. A call between the read and the write
///   has no lasting effect, because the session's write restores the old bits.
pub unsafe fn update_debugctl<M: MsrBackend>(
    msr: &M,
    bits: DebugCtl,
    value: DebugCtl,
) -> Result<(), M::Error> {
    // SAFETY: the caller promised that the processor may store branch records. The
    // backend keeps no change to itself, by the caller's promise.
    let own = unsafe { RegisterBits::new(IA32_DEBUGCTL, bits.into_bits()) };
    msr.update(own.set_to(value.into_bits())).map(|_| ())
}

/// The bits of `IA32_DEBUGCTL` that control the branch trace store (SDM vol. 3B, "Branch Trace Store (BTS)").
pub const BRANCH_TRACE: DebugCtl = DebugCtl::new()
    .with_tr(true)
    .with_bts(true)
    .with_bt_int(true)
    .with_bts_off_os(true)
    .with_bts_off_usr(true);
