//! Creation and destruction of a processor's control area: `ZwSetSystemInformation` with the information class
//! `SystemProcessorProfileControlArea` (0x81).

use core::sync::atomic::{AtomicBool, Ordering};

use pmu_core::profile::NtStatus;
use pmu_core::windows::{PointerWidth, Rules};

use crate::debug_store::{ControlAreaMemory, DebugStoreSupport, ProcessorProfileControlArea};

/// Handles requests to create or destroy one processor's control area, as Windows does. A control area is a DS save
/// area.
///
/// Creating the area only prepares memory. The caller then fills the area, and passes the area's address to the
/// processor by [`write_ds_area`](super::write_ds_area). Each request concerns the processor that executes the call.
/// The caller must not move to another processor during a request.
///
/// A kernel with [precise](pmu_core::Event::precise) events passes the
/// [control area in their memory](crate::precise::PreciseMemory::control_area) to `new`. While a session uses this
/// memory, the processor already has a control area, so a request to create an area fails.
///
/// ```
/// use pmu_intel::debug_store::{ControlAreaMemory, ProcessorProfileControl};
/// const PROCESSORS: usize = 2;
/// static MEMORY: [ControlAreaMemory; PROCESSORS] = [const { ControlAreaMemory::new() }; PROCESSORS];
/// static CONTROL: [ProcessorProfileControl; PROCESSORS] = [
///     ProcessorProfileControl::new(Some(&MEMORY[0])),
///     ProcessorProfileControl::new(Some(&MEMORY[1])),
/// ];
/// assert_eq!(CONTROL[0].pebs_index(), None);
/// ```
#[derive(Debug)]
pub struct ProcessorProfileControl<'m, const RESETS: usize = 4> {
    memory: Option<&'m ControlAreaMemory<RESETS>>,
    created: AtomicBool,
    rules: Rules,
}

impl<'m, const RESETS: usize> ProcessorProfileControl<'m, RESETS> {
    /// Creates a handler of requests to create or destroy the control area of one processor. The processor has no
    /// control area yet. The handler follows the Windows version in [`Rules::LATEST`].
    ///
    /// The area is created in `memory`. Use each `memory` for one processor only. If `memory` is `None`, every request
    /// to create the area fails.
    pub const fn new(memory: Option<&'m ControlAreaMemory<RESETS>>) -> Self {
        Self::as_of(Rules::LATEST, memory)
    }

    /// Creates a handler of requests to create or destroy the control area of one processor. The processor has no
    /// control area yet. The handler follows the Windows version in `rules`.
    ///
    /// Windows before version 6.2 has no control area. On 32-bit Windows, a request to create the area also requires
    /// DTES64, because this area has 64-bit words.
    pub const fn as_of(rules: Rules, memory: Option<&'m ControlAreaMemory<RESETS>>) -> Self {
        Self { memory, created: AtomicBool::new(false), rules }
    }

    const fn is_64_bit(&self) -> bool {
        matches!(self.rules.width, PointerWidth::Bits64)
    }

    /// Handles a request with the information class `SystemProcessorProfileControlArea`, as Windows does.
    ///
    /// The call makes the same checks as Windows, in this order: the Windows version, the caller's mode, and the
    /// request's length. A request to create the area also requires memory for the area, a usable Debug Store, and a
    /// processor that has no area yet. A request to destroy the area also requires that a request has created the area.
    /// The call writes the address of the area into `request`, or 0 if there is no area.
    ///
    /// ```
    /// use pmu_core::profile::NtStatus;
    /// use pmu_intel::debug_store::{CallerMode, DebugStoreSupport, ProcessorProfileControl};
    /// /// `ZwSetSystemInformation` with the class 0x81, on the processor that has this control.
    /// fn set(control: &ProcessorProfileControl, support: &DebugStoreSupport, request: &mut [u8]) -> NtStatus {
    ///     match control.set(CallerMode::Kernel, support, request) {
    ///         Ok(()) => NtStatus::SUCCESS,
    ///         Err(error) => error.status(),
    ///     }
    /// }
    /// # let control = ProcessorProfileControl::new(None);
    /// # let refused = set(&control, &DebugStoreSupport::default(), &mut [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0,
    /// 0]);
    /// # assert_eq!(refused, NtStatus::INSUFFICIENT_RESOURCES);
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// [`ControlAreaError::status`] returns the status that Windows gives for each error.
    pub fn set(
        &self,
        mode: CallerMode,
        support: &DebugStoreSupport,
        request: &mut [u8],
    ) -> Result<(), ControlAreaError> {
        self.check_version()?;
        if mode == CallerMode::User {
            return Err(ControlAreaError::AccessDenied);
        }
        let mut asked = ProfileControlRequest::decode(request, self.is_64_bit())?;
        let outcome = if asked.allocate {
            self.create(support).map(core::ptr::from_ref)
        } else {
            self.destroy().map(|()| core::ptr::null())
        };
        asked.area = match outcome {
            Ok(area) => area as usize as u64,
            Err(ControlAreaError::AlreadyExists { area }) => area,
            Err(_) => 0,
        };
        asked.encode(request, self.is_64_bit())?;
        outcome.map(|_| ())
    }

    const fn check_version(&self) -> Result<(), ControlAreaError> {
        if self.rules.version.has_control_area() {
            Ok(())
        } else {
            Err(ControlAreaError::NotInVersion(self.rules))
        }
    }

    /// Creates the processor's control area. Every word is 0, so the area describes no buffer yet.
    ///
    /// ```
    /// # use pmu_core::access::RegisterBackend;
    /// use core::sync::atomic::{AtomicU64, Ordering};
    /// use pmu_intel::debug_store::{
    ///     ControlAreaError, DebugStoreSupport, ProcessorProfileControl, write_ds_area,
    /// };
    /// /// Has this processor store branches in `buffer`, as soon as IA32_DEBUGCTL says so.
    /// fn prepare<M: RegisterBackend>(
    ///     control: &ProcessorProfileControl<'static>,
    ///     support: &DebugStoreSupport,
    ///     msr: &M,
    ///     buffer: &'static [AtomicU64; 3 * 100], // of 100 records
    /// ) -> Result<(), ControlAreaError> {
    ///     let area = control.create(support)?;
    ///     let begin = buffer.as_ptr().addr() as u64;
    ///     let store = &area.pebs_ds_save_area;
    ///     for (word, value) in [
    ///         (&store.bts_buffer_base, begin),
    ///         (&store.bts_index, begin),
    ///         (&store.bts_absolute_maximum, begin + 100 * 24),
    ///         (&store.bts_interrupt_threshold, begin + 101 * 24), // beyond the end: the buffer is a ring
    ///     ] {
    ///         word.store(value, Ordering::Relaxed);
    ///     }
    ///     // SAFETY: (1) area and buffer are statics, mapped in every address space; (2) they are this processor's
    ///     // alone; (3) the maximum is the buffer's end; (4) the backend keeps no address.
    ///     let written = unsafe { write_ds_area(msr, core::ptr::from_ref(area).addr() as u64) };
    ///     written.map_err(|_| ControlAreaError::NotSupported)
    /// }
    /// ```
    ///
    /// # Errors
    /// In the order of the checks: [`NotInVersion`](ControlAreaError::NotInVersion),
    /// [`InsufficientResources`](ControlAreaError::InsufficientResources),
    /// [`NotSupported`](ControlAreaError::NotSupported), [`AlreadyExists`](ControlAreaError::AlreadyExists).
    pub fn create(
        &self,
        support: &DebugStoreSupport,
    ) -> Result<&'m ProcessorProfileControlArea<RESETS>, ControlAreaError> {
        self.check_version()?;
        let memory = self.memory.ok_or(ControlAreaError::InsufficientResources)?;
        if !support.has_pebs() || (!self.is_64_bit() && !support.dtes64) {
            return Err(ControlAreaError::NotSupported);
        }
        if self.has_area(memory) {
            let area = core::ptr::from_ref(memory.area()) as usize as u64;
            return Err(ControlAreaError::AlreadyExists { area });
        }
        // Nothing else on this processor creates meanwhile: the caller stays on it, in task context.
        memory.area().pebs_ds_save_area.clear();
        self.created.store(true, Ordering::Release);
        Ok(memory.area())
    }

    /// Destroys the processor's control area. Before this call, remove the area's address from `IA32_DS_AREA`. If a
    /// session's precise events use the area's memory, the area exists until that session is shut down.
    ///
    /// ```
    /// # use pmu_core::access::RegisterBackend;
    /// use pmu_intel::debug_store::{BRANCH_TRACE, ProcessorProfileControl, update_debugctl, write_ds_area};
    /// use pmu_intel::registers::DebugCtl;
    /// fn end<M: RegisterBackend>(control: &ProcessorProfileControl<'static>, msr: &M) -> Result<(), M::Error> {
    ///     // SAFETY: no bit is set; this is a task.
    ///     unsafe { update_debugctl(msr, BRANCH_TRACE, DebugCtl::new()) }?;
    ///     // SAFETY: 0 is no address.
    ///     unsafe { write_ds_area(msr, 0) }?;
    ///     let _ = control.destroy(); // there may have been no area
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`NotAllocated`](ControlAreaError::NotAllocated): no request created an area.
    pub fn destroy(&self) -> Result<(), ControlAreaError> {
        if self.created.swap(false, Ordering::AcqRel) {
            Ok(())
        } else {
            Err(ControlAreaError::NotAllocated)
        }
    }

    /// Returns the address at which the processor writes the next PEBS record, or `None` if the processor has no
    /// control area. A kernel can store this address in its own trace records.
    ///
    /// ```
    /// use pmu_intel::debug_store::ProcessorProfileControl;
    /// struct SwitchRecord {
    ///     thread: u32,
    ///     pebs_index: u64, // 0: no area
    /// }
    /// /// Called by the context switch; a reader orders switches and PEBS records by the index.
    /// fn switched(control: &ProcessorProfileControl, thread: u32) -> SwitchRecord {
    ///     SwitchRecord { thread, pebs_index: control.pebs_index().unwrap_or(0) }
    /// }
    /// # let record = switched(&ProcessorProfileControl::new(None), 7);
    /// # assert_eq!((record.thread, record.pebs_index), (7, 0));
    /// ```
    ///
    /// # Context
    /// Any, on the processor to which the area belongs.
    #[inline]
    pub fn pebs_index(&self) -> Option<u64> {
        let memory = self.memory.filter(|memory| self.has_area(memory))?;
        Some(memory.area().pebs_ds_save_area.pebs_index.load(Ordering::Relaxed))
    }

    /// Returns whether the area was created, or a recorder uses it.
    fn has_area(&self, memory: &ControlAreaMemory<RESETS>) -> bool {
        let is_in_version = self.rules.version.has_control_area();
        self.created.load(Ordering::Acquire) || is_in_version && memory.is_recording()
    }
}

/// `SYSTEM_PROCESSOR_PROFILE_CONTROL_AREA`: a request to create or destroy a control area, and the answer to the
/// request.
///
/// ```
/// use pmu_intel::debug_store::ProfileControlRequest;
/// let mut bytes = [0; ProfileControlRequest::SIZE];
/// bytes[8] = 1; // Allocate
/// let request = ProfileControlRequest::decode(&bytes, true)?;
/// assert!(request.allocate);
/// ProfileControlRequest { area: 0x1000, ..request }.encode(&mut bytes, true)?;
/// assert_eq!(bytes[..8], 0x1000_u64.to_le_bytes());
/// # Ok::<(), pmu_intel::debug_store::ControlAreaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ProfileControlRequest {
    /// Output `ProcessorProfileControlArea`: address of the area, or 0 if there is no area.
    pub area: u64,
    /// Input `Allocate`: `true` creates the area, and `false` destroys the area.
    pub allocate: bool,
}

impl ProfileControlRequest {
    /// Size of a 64-bit caller's request, in bytes.
    pub const SIZE: usize = 0x10;
    /// Size of a 32-bit caller's request, in bytes.
    pub const SIZE_32: usize = 0x08;

    /// Decodes a caller's request. `is_64_bit` says whether the caller is 64-bit. The request of a 32-bit caller has
    /// another layout.
    ///
    /// # Errors
    /// [`LengthMismatch`](ControlAreaError::LengthMismatch): the length of `bytes` is not the size of the caller's
    /// request.
    pub fn decode(bytes: &[u8], is_64_bit: bool) -> Result<Self, ControlAreaError> {
        let mismatch = ControlAreaError::LengthMismatch { length: bytes.len() };
        let size = if is_64_bit { Self::SIZE } else { Self::SIZE_32 };
        if bytes.len() != size {
            return Err(mismatch);
        }
        let (pointer, rest) = bytes.split_at(size / 2);
        let mut area = [0; 8];
        area.iter_mut().zip(pointer).for_each(|(to, from)| *to = *from);
        let allocate = rest.first().is_some_and(|byte| *byte != 0);
        Ok(Self { area: u64::from_le_bytes(area), allocate })
    }

    /// Writes the control area's address into a caller's request. `is_64_bit` says whether the caller is 64-bit. The
    /// request of a 32-bit caller has another layout. The other bytes of the request keep their values.
    ///
    /// # Errors
    /// [`LengthMismatch`](ControlAreaError::LengthMismatch): the length of `bytes` is not the size of the caller's
    /// request.
    pub fn encode(&self, bytes: &mut [u8], is_64_bit: bool) -> Result<(), ControlAreaError> {
        let mismatch = ControlAreaError::LengthMismatch { length: bytes.len() };
        let size = if is_64_bit { Self::SIZE } else { Self::SIZE_32 };
        if bytes.len() != size {
            return Err(mismatch);
        }
        bytes.iter_mut().zip(self.area.to_le_bytes()).take(size / 2).for_each(|(to, b)| *to = b);
        Ok(())
    }
}

/// Processor mode from which `ZwSetSystemInformation` was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CallerMode {
    /// Kernel mode.
    Kernel,
    /// User mode. Requests from user mode are always refused.
    User,
}

/// Reason why a request for a control area was refused. A refused request changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ControlAreaError {
    /// The request came from user mode.
    #[error("only kernel mode may set a control area")]
    AccessDenied,
    /// The request is shorter or longer than `SYSTEM_PROCESSOR_PROFILE_CONTROL_AREA` for the caller's pointer width.
    #[error("request of {length} bytes")]
    LengthMismatch {
        /// The request's size in bytes.
        length: usize,
    },
    /// The value names a Windows version without control areas. Windows has control areas from version 6.2 on.
    #[error("{0} has no control area")]
    NotInVersion(Rules),
    /// The embedder provided no memory for this processor's area.
    #[error("no memory for a control area")]
    InsufficientResources,
    /// The processor has no usable Debug Store.
    #[error("the processor has no usable Debug Store")]
    NotSupported,
    /// The processor already has a control area. The call also writes `area` to the caller's request buffer.
    #[error("there is a control area at {area:#X}")]
    AlreadyExists {
        /// Address of the area.
        area: u64,
    },
    /// The processor has no area to destroy.
    #[error("the processor has no control area")]
    NotAllocated,
}

impl ControlAreaError {
    /// Returns the status with which Windows reports the error.
    pub const fn status(&self) -> NtStatus {
        match self {
            Self::AccessDenied => NtStatus::ACCESS_DENIED,
            Self::LengthMismatch { .. } => NtStatus::INFO_LENGTH_MISMATCH,
            Self::NotInVersion(_) => NtStatus::INVALID_INFO_CLASS,
            Self::InsufficientResources => NtStatus::INSUFFICIENT_RESOURCES,
            Self::NotSupported => NtStatus::NOT_SUPPORTED,
            Self::AlreadyExists { .. } => NtStatus::ADDRESS_ALREADY_EXISTS,
            Self::NotAllocated => NtStatus::MEMORY_NOT_ALLOCATED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::MiscEnable;
    use pmu_core::profile::NtStatus;
    use pmu_core::windows::WindowsVersion;

    fn supported() -> DebugStoreSupport {
        DebugStoreSupport {
            debug_store: true,
            dtes64: true,
            misc_enable: MiscEnable::new().with_performance_monitoring(true),
        }
    }

    fn request(allocate: bool) -> [u8; 16] {
        let mut bytes = [0xAA; 16];
        bytes[8] = allocate.into();
        bytes
    }

    fn pointer(bytes: &[u8; 16]) -> u64 {
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    }

    #[test]
    fn create_destroy_and_every_status() {
        use CallerMode::{Kernel, User};
        let memory = ControlAreaMemory::<4>::new();
        let address = core::ptr::from_ref(memory.area()) as u64;
        let control = ProcessorProfileControl::new(Some(&memory));
        let set = |mode, allocate, support: &DebugStoreSupport| {
            let mut bytes = request(allocate);
            let status = control.set(mode, support, &mut bytes).map_err(|e| e.status());
            (status, pointer(&bytes))
        };
        let untouched = u64::from_le_bytes([0xAA; 8]);

        assert_eq!(set(User, true, &supported()), (Err(NtStatus::ACCESS_DENIED), untouched));
        assert_eq!(set(Kernel, false, &supported()), (Err(NtStatus::MEMORY_NOT_ALLOCATED), 0));
        let unsupported = DebugStoreSupport::default();
        assert_eq!(set(Kernel, true, &unsupported), (Err(NtStatus::NOT_SUPPORTED), 0));
        assert_eq!(control.pebs_index(), None);

        assert_eq!(set(Kernel, true, &supported()), (Ok(()), address));
        memory.area().pebs_ds_save_area.pebs_index.store(0x1234, Ordering::Relaxed);
        assert_eq!(control.pebs_index(), Some(0x1234));
        let again = (Err(NtStatus::ADDRESS_ALREADY_EXISTS), address);
        assert_eq!(set(Kernel, true, &supported()), again);
        assert_eq!(control.pebs_index(), Some(0x1234), "an existing area is left alone");

        assert_eq!(set(Kernel, false, &supported()), (Ok(()), 0));
        assert_eq!(control.pebs_index(), None);
        assert_eq!(set(Kernel, true, &supported()), (Ok(()), address));
        assert_eq!(control.pebs_index(), Some(0), "a new area is zeroed");

        let mut short = [0; 8];
        let mismatch = control.set(Kernel, &supported(), &mut short).unwrap_err();
        assert_eq!(mismatch.status(), NtStatus::INFO_LENGTH_MISMATCH);
    }

    /// A check of BTS in place of PEBS, or no check, would pass one of these.
    #[test]
    fn create_asks_for_performance_monitoring_and_pebs_and_not_for_bts() {
        let with = |misc_enable| DebugStoreSupport { misc_enable, ..supported() };
        let emon = MiscEnable::new().with_performance_monitoring(true);
        for (misc_enable, expected) in [
            (emon, Ok(())),
            (emon.with_bts_unavailable(true), Ok(())),
            (emon.with_pebs_unavailable(true), Err(NtStatus::NOT_SUPPORTED)),
            (
                emon.with_bts_unavailable(true).with_pebs_unavailable(true),
                Err(NtStatus::NOT_SUPPORTED),
            ),
            (MiscEnable::new(), Err(NtStatus::NOT_SUPPORTED)),
        ] {
            let memory = ControlAreaMemory::<4>::new();
            let control = ProcessorProfileControl::new(Some(&memory));
            let created = control.create(&with(misc_enable)).map(drop).map_err(|e| e.status());
            assert_eq!(created, expected, "{misc_enable:?}");
        }
    }

    #[test]
    fn without_memory_no_support_is_looked_for() {
        let control = ProcessorProfileControl::<4>::new(None);
        let error = control.create(&DebugStoreSupport::default()).unwrap_err();
        assert_eq!(error.status(), NtStatus::INSUFFICIENT_RESOURCES);
    }

    /// The document: "The PROCESSOR_PROFILE_CONTROL_AREA dates from version 6.2."
    #[test]
    fn before_version_6_2_there_is_no_control_area() {
        let memory = ControlAreaMemory::<4>::new();
        for (version, has_area) in [
            (WindowsVersion::Vista, false),
            (WindowsVersion::Windows7, false),
            (WindowsVersion::Windows8, true),
        ] {
            for width in [PointerWidth::Bits32, PointerWidth::Bits64] {
                let control =
                    ProcessorProfileControl::as_of(Rules { version, width }, Some(&memory));
                assert_eq!(control.create(&supported()).is_ok(), has_area);
                let mut bytes = request(false);
                let length = 2 * width.bytes();
                // Not even the mode is looked at: there is no such class.
                let refused = control.set(CallerMode::User, &supported(), &mut bytes[..length]);
                let status = if has_area { 0xC000_0022 } else { 0xC000_0003 };
                assert_eq!(refused.unwrap_err().status().value(), status);
                assert_eq!(bytes, request(false));
            }
        }
    }

    #[test]
    fn a_32_bit_kernel_needs_dtes64() {
        let memory = ControlAreaMemory::<4>::new();
        let windows_8 = Rules { version: WindowsVersion::Windows8, width: PointerWidth::Bits32 };
        let control = ProcessorProfileControl::as_of(windows_8, Some(&memory));
        let narrow = DebugStoreSupport { dtes64: false, ..supported() };
        assert_eq!(control.create(&narrow).unwrap_err(), ControlAreaError::NotSupported);
        let mut bytes = [0xAA, 0xAA, 0xAA, 0xAA, 1, 0xAA, 0xAA, 0xAA];
        control.set(CallerMode::Kernel, &supported(), &mut bytes).unwrap();
        let low = core::ptr::from_ref(memory.area()) as u64 as u32;
        assert_eq!(u32::from_le_bytes(bytes[..4].try_into().unwrap()), low);
        assert_eq!(bytes[4..], [1, 0xAA, 0xAA, 0xAA]);
    }
}
