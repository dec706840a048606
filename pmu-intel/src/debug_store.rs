//! The Debug Store: memory to which the processor itself writes branch and event records.
//!
//! Read first: Intel SDM vol. 3B, §18.4.9 "BTS and DS Save Area", §20.6.2.4 "Processor Event-Based
//! Sampling".

mod control;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pmu_core::access::{
    AccessError, AccessFault, AccessOperation, RegisterAddress, RegisterBackend, RegisterBits,
    RegisterUpdate,
};
use pmu_core::x86::Snapshot;

use crate::registers::{
    DebugCtl, IA32_DEBUGCTL, IA32_DS_AREA, IA32_MISC_ENABLE, IA32_PEBS_ENABLE, MiscEnable,
};

pub use crate::debug_store::control::{
    CallerMode, ControlAreaError, ProcessorProfileControl, ProfileControlRequest,
};

/// A processor's support for the Debug Store, from CPUID and `IA32_MISC_ENABLE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DebugStoreSupport {
    /// The vendor is Intel, and CPUID declares the Debug Store (leaf 1, EDX bit 21, DS).
    pub debug_store: bool,
    /// The DS save area has 64-bit words (CPUID leaf 1, ECX bit 2, DTES64).
    pub dtes64: bool,
    /// Value of `IA32_MISC_ENABLE`, or 0 if there is no Debug Store.
    pub misc_enable: MiscEnable,
}

impl DebugStoreSupport {
    /// Detects the Debug Store of the processor that executes the call.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterBackend, AccessFault};
    /// # use pmu_core::x86::Snapshot;
    /// use pmu_intel::debug_store::DebugStoreSupport;
    /// fn report<M: RegisterBackend>(this_processor: &Snapshot, msr: &M) -> Result<(), AccessFault> {
    ///     let support = DebugStoreSupport::detect(this_processor, msr)?;
    ///     let word = if support.dtes64 { 64 } else { 32 };
    ///     println!("BTS: {}, PEBS: {}, words of {word} bits", support.has_bts(), support.has_pebs());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The read of `IA32_MISC_ENABLE` failed. The call reads the register only if CPUID declares a Debug Store.
    pub fn detect<M: RegisterBackend>(snapshot: &Snapshot, msr: &M) -> Result<Self, AccessFault> {
        let features = snapshot.leaf(1, 0);
        let debug_store = snapshot.vendor() == *b"GenuineIntel" && features.edx >> 21 & 1 != 0;
        let misc_enable = if debug_store {
            // Only read: the register has bits that change what a page table means.
            msr.update(RegisterUpdate::read(IA32_MISC_ENABLE)).map_err(|error| AccessFault {
                operation: AccessOperation::Read,
                register: IA32_MISC_ENABLE,
                kind: error.kind(),
            })?
        } else {
            0
        };
        Ok(Self {
            debug_store,
            dtes64: debug_store && features.ecx >> 2 & 1 != 0,
            misc_enable: MiscEnable::from_bits(misc_enable),
        })
    }

    /// Returns whether branch trace storage (BTS) can be used.
    pub const fn has_bts(&self) -> bool {
        self.debug_store && !self.misc_enable.bts_unavailable()
    }

    /// Returns whether processor event-based sampling (PEBS) can be used.
    ///
    /// The result is `true` under these conditions:
    ///
    /// - The processor has a Debug Store.
    /// - `IA32_MISC_ENABLE` declares that performance monitoring is available.
    /// - `IA32_MISC_ENABLE` does not declare that PEBS is unavailable.
    ///
    /// 64-bit Windows creates a control area under the same conditions.
    pub const fn has_pebs(&self) -> bool {
        self.debug_store
            && self.misc_enable.performance_monitoring()
            && !self.misc_enable.pebs_unavailable()
    }
}

/// The DS save area, with 32-bit or 64-bit words. `RESETS` is the number of counter reset values at the end of the
/// area.
///
/// The words are atomic, because the processor changes `bts_index` and `pebs_index` while it writes records.
///
/// The number of reset values depends on the processor's counters and its PEBS format:
///
/// - 4 in the documented structure `PEBS_DS_SAVE_AREA` (four general counters);
/// - 12 in the structure of later Windows headers (eight general counters and four fixed counters);
/// - 48 in PEBS formats 5 and 6 (32 general counters and 16 fixed counters).
#[derive(Debug)]
#[repr(C)]
pub struct DsSaveArea<Word, const RESETS: usize> {
    /// Linear address of the BTS buffer's first byte.
    pub bts_buffer_base: Word,
    /// Linear address at which the processor writes the next BTS record. The processor advances the address.
    pub bts_index: Word,
    /// Linear address of the byte after the BTS buffer.
    pub bts_absolute_maximum: Word,
    /// Linear address in the BTS buffer. The processor interrupts when `bts_index` reaches this address.
    pub bts_interrupt_threshold: Word,
    /// Linear address of the PEBS buffer's first byte.
    pub pebs_buffer_base: Word,
    /// Linear address at which the processor writes the next PEBS record. The processor advances the address.
    pub pebs_index: Word,
    /// Linear address of the byte after the PEBS buffer.
    pub pebs_absolute_maximum: Word,
    /// Linear address in the PEBS buffer. The processor interrupts when `pebs_index` reaches this address.
    pub pebs_interrupt_threshold: Word,
    /// Reset values, one per counter. After each PEBS record of a counter, the processor loads the counter's reset
    /// value into the counter.
    pub pebs_counter_reset: [Word; RESETS],
}

/// `PEBS_DS_SAVE_AREA`: the 64-bit DS save area. With four reset values the structure has 0x60 bytes.
pub type PebsDsSaveArea<const RESETS: usize = 4> = DsSaveArea<AtomicU64, RESETS>;

/// The 32-bit DS save area, which a processor without DTES64 uses. With four reset values the area has 0x30 bytes.
pub type PebsDsSaveArea32<const RESETS: usize = 4> = DsSaveArea<AtomicU32, RESETS>;

/// `PROCESSOR_PROFILE_CONTROL_AREA`: Windows' structure for the DS save area of one processor. With four reset values
/// the structure has 0x60 bytes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProcessorProfileControlArea<const RESETS: usize = 4> {
    /// Save area of the Debug Store.
    pub pebs_ds_save_area: PebsDsSaveArea<RESETS>,
}

/// The 32-bit form of [`ProcessorProfileControlArea`].
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProcessorProfileControlArea32<const RESETS: usize = 4> {
    /// Save area of the Debug Store.
    pub pebs_ds_save_area: PebsDsSaveArea32<RESETS>,
}

macro_rules! zeroed {
    ($word:ident) => {
        impl<const RESETS: usize> DsSaveArea<$word, RESETS> {
            /// Creates a save area that describes no buffer. Every word of the area is 0.
            pub const fn new() -> Self {
                Self {
                    bts_buffer_base: $word::new(0),
                    bts_index: $word::new(0),
                    bts_absolute_maximum: $word::new(0),
                    bts_interrupt_threshold: $word::new(0),
                    pebs_buffer_base: $word::new(0),
                    pebs_index: $word::new(0),
                    pebs_absolute_maximum: $word::new(0),
                    pebs_interrupt_threshold: $word::new(0),
                    pebs_counter_reset: [const { $word::new(0) }; RESETS],
                }
            }
        }

        impl<const RESETS: usize> Default for DsSaveArea<$word, RESETS> {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

impl<const RESETS: usize> PebsDsSaveArea<RESETS> {
    /// Stores zero into every word. The maximum of each buffer comes first: without room, a processor that still uses
    /// the area writes nothing to the address 0 that the index then has.
    pub(crate) fn clear(&self) {
        let words = [
            &self.bts_absolute_maximum,
            &self.pebs_absolute_maximum,
            &self.bts_index,
            &self.pebs_index,
            &self.bts_buffer_base,
            &self.bts_interrupt_threshold,
            &self.pebs_buffer_base,
            &self.pebs_interrupt_threshold,
        ];
        for word in words.into_iter().chain(&self.pebs_counter_reset) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

zeroed!(AtomicU64);
zeroed!(AtomicU32);

const _: () = assert!(size_of::<ProcessorProfileControlArea>() == 0x60);

/// Memory for one processor's control area, aligned to a cache line.
///
/// While a processor uses the area, the memory must be mapped and writable in every address space in which the
/// processor runs.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ControlAreaMemory<const RESETS: usize = 4> {
    area: ProcessorProfileControlArea<RESETS>,
    /// A recorder of precise records uses the area.
    is_recording: AtomicBool,
}

impl<const RESETS: usize> ControlAreaMemory<RESETS> {
    /// Creates zeroed memory for one processor's control area.
    pub const fn new() -> Self {
        let pebs_ds_save_area = DsSaveArea::<AtomicU64, RESETS>::new();
        let area = ProcessorProfileControlArea { pebs_ds_save_area };
        Self { area, is_recording: AtomicBool::new(false) }
    }

    /// Returns the control area in this memory.
    pub const fn area(&self) -> &ProcessorProfileControlArea<RESETS> {
        &self.area
    }

    pub(crate) fn set_recording(&self, is_recording: bool) {
        self.is_recording.store(is_recording, Ordering::Release);
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Acquire)
    }
}

/// Writes `IA32_DS_AREA` on the processor that executes the call: the address of the DS save area, or 0 for no area.
///
/// # Errors
/// The access failed, for example because the address is not canonical.
///
/// # Examples
/// ```
/// # use pmu_core::access::RegisterBackend;
/// use pmu_intel::debug_store::{ControlAreaMemory, write_ds_area};
/// static MEMORY: ControlAreaMemory = ControlAreaMemory::new(); // this processor's, in pages that are never unmapped
///
/// fn begin<M: RegisterBackend>(msr: &M) -> Result<(), M::Error> {
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
/// # use pmu_core::access::RegisterBackend;
/// # use pmu_intel::debug_store::{ControlAreaMemory, write_ds_area};
/// fn begin<M: RegisterBackend>(msr: &M) -> Result<(), M::Error> {
///     let memory: ControlAreaMemory = ControlAreaMemory::new();
///     // SAFETY: not given. The area ends with this call.
///     unsafe { write_ds_area(msr, core::ptr::from_ref(memory.area()).addr() as u64) }
/// }
/// ```
///
/// # Safety
/// - `msr` writes the given value to the register exactly once. `msr` does not store the [`RegisterAddress`] of
///   `IA32_DS_AREA`, and does not pass this `RegisterAddress` to other safe code.
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
pub unsafe fn write_ds_area<M: RegisterBackend>(
    msr: &M,
    linear_address: u64,
) -> Result<(), M::Error> {
    // SAFETY: the register holds an address that the processor writes through; the caller promised
    // that it may. The backend keeps the address to itself, by the caller's promise.
    msr.write(unsafe { RegisterAddress::new(IA32_DS_AREA) }, linear_address)
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
/// # use pmu_core::access::RegisterBackend;
/// use pmu_intel::debug_store::{update_pebs_enable, write_ds_area};
/// /// The owner of all PEBS counters ends its records.
/// fn end<M: RegisterBackend>(msr: &M, counters: u64) -> Result<(), M::Error> {
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
/// # use pmu_core::access::RegisterBackend;
/// # use pmu_intel::debug_store::{update_pebs_enable, write_ds_area};
/// fn end<M: RegisterBackend>(msr: &M, counters: u64) -> Result<(), M::Error> {
///     // SAFETY: 0 is no address; but the promise of the counters that are still enabled is broken.
///     unsafe { write_ds_area(msr, 0) }?;
///     // SAFETY: cleared bits promise nothing of a save area.
///     unsafe { update_pebs_enable(msr, counters, 0) }
/// }
/// ```
///
/// # Safety
/// - `msr` meets the requirements of [`write_ds_area`], and does not keep the [`RegisterUpdate`]
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
pub unsafe fn update_pebs_enable<M: RegisterBackend>(
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
/// # use pmu_core::access::RegisterBackend;
/// use pmu_intel::debug_store::{BRANCH_TRACE, update_debugctl};
/// use pmu_intel::registers::DebugCtl;
/// fn end_branch_trace<M: RegisterBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: (1) neither `tr` nor `bts` is set; (2) `lbr` and `btf` stay; (3) this is a task.
///     unsafe { update_debugctl(msr, BRANCH_TRACE, DebugCtl::new()) }
/// }
/// ```
///
/// Wrong example: the processor stores branches, but no buffer was set up.
///
/// ```
/// # use pmu_core::access::RegisterBackend;
/// # use pmu_intel::debug_store::{BRANCH_TRACE, update_debugctl};
/// # use pmu_intel::registers::DebugCtl;
/// fn trace<M: RegisterBackend>(msr: &M) -> Result<(), M::Error> {
///     // SAFETY: not given. Nothing wrote IA32_DS_AREA before.
///     unsafe { update_debugctl(msr, BRANCH_TRACE, DebugCtl::new().with_tr(true).with_bts(true)) }
/// }
/// ```
///
/// # Safety
/// - `msr` meets the requirements of [`write_ds_area`], and does not keep the [`RegisterUpdate`]
///   that it receives.
/// - If `tr` and `bts` are both set after the call, [`write_ds_area`] has written the address of a save area with a BTS
///   buffer to `IA32_DS_AREA`. The requirements of [`write_ds_area`] are met until `tr` or `bts` is cleared on this
///   processor.
/// - If `lbr` or `btf` is set in `bits`, the kernel's debugger and the kernel's handler of debug exceptions work
///   correctly with the new values of `lbr` and `btf`.
/// - Do not call this function in an interrupt or NMI handler that may have interrupted a session's method on this
///   processor. Some methods of a session read the register, and then write it. A call between the read and the write
///   has no lasting effect, because the session's write restores the old bits.
pub unsafe fn update_debugctl<M: RegisterBackend>(
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
