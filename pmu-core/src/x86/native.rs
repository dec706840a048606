//! Backends that execute the instructions themselves: the only assembly of the library crates.

use core::arch::asm;
#[cfg(target_arch = "x86_64")]
use core::arch::naked_asm;
use core::convert::Infallible;

use crate::access::address::{CounterIndex, RegisterAddress, RegisterUpdate};
#[cfg(target_arch = "x86_64")]
use crate::access::backend::AccessErrorKind;
use crate::access::backend::RegisterBackend;

/// Backend that executes RDMSR, WRMSR and RDPMC on this processor directly.
///
/// **A #GP is not caught.** The kernel gets a #GP if it accesses a register that this processor lacks, or writes a
/// reserved bit. RDPMC raises #UD on a processor without RDPMC. If the kernel cannot tolerate these exceptions, use
/// [`FixupMsr`].
///
/// ```no_run
/// use pmu_core::x86::NativeMsr;
/// // SAFETY: this kernel runs at privilege level 0, and a #GP in its own code ends the kernel.
/// let msr = unsafe { NativeMsr::new() };
/// # let _ = msr;
/// ```
///
/// Wrong: the code runs in a user process. The process's SIGSEGV handler skips the faulting instruction.
///
/// ```no_run
/// # use pmu_core::x86::NativeMsr;
/// // SAFETY: not given. A read that faulted would return whatever was in EDX:EAX.
/// let msr = unsafe { NativeMsr::new() };
/// # let _ = msr;
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NativeMsr(());

impl NativeMsr {
    /// Creates a backend for the processor that executes each access.
    ///
    /// # Safety
    /// - The code runs at privilege level 0 whenever it uses the backend.
    /// - If a register access raises #GP, the kernel's #GP handler does not resume the code at the next instruction.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

impl RegisterBackend for NativeMsr {
    type Error = Infallible;

    #[inline]
    fn read(&self, address: RegisterAddress) -> Result<u64, Infallible> {
        // SAFETY: privilege level 0 by the promise of `new`; reading changes nothing.
        Ok(unsafe { x86::msr::rdmsr(address.get()) })
    }

    #[inline]
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), Infallible> {
        // SAFETY: privilege level 0 by the promise of `new`; no value of a register named by an
        // `RegisterAddress` breaks memory safety, by the promise of `RegisterAddress::new`.
        unsafe { x86::msr::wrmsr(address.get(), value) };
        Ok(())
    }

    #[inline]
    fn read_counter(&self, index: CounterIndex) -> Result<u64, Infallible> {
        let (low, high): (u32, u32);
        // SAFETY: RDPMC reads a counter into EDX:EAX and changes nothing else. It is not `nomem`: the drivers
        // read a counter before or after they change what an interrupt finds in memory.
        unsafe {
            asm!("rdpmc", in("ecx") index.get(), out("eax") low, out("edx") high,
                 options(nostack, preserves_flags));
        }
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    #[inline]
    fn update(&self, update: RegisterUpdate) -> Result<u64, Infallible> {
        // SAFETY: privilege level 0 by the promise of `new`; reading changes nothing.
        let found = unsafe { x86::msr::rdmsr(update.register()) };
        if let Some(value) = update.apply(found) {
            // SAFETY: privilege level 0 by the promise of `new`; the change does not break memory safety,
            // by the promise of `RegisterUpdate::new`.
            unsafe { x86::msr::wrmsr(update.register(), value) };
        }
        Ok(found)
    }
}

// Each routine begins with its one instruction that can fault, so that its address is the fault's. It takes
// ECX (and EDX:EAX) as the instruction wants them. R8D is 0 on entry, and 1 on return where the fault's
// handler resumed at `fixup_fault`. At both places the top of the stack is the return address. Naked
// functions need no directive of an object format.

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn fixup_rdmsr() {
    naked_asm!("rdmsr", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn fixup_wrmsr() {
    naked_asm!("wrmsr", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn fixup_rdpmc() {
    naked_asm!("rdpmc", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn fixup_fault() {
    naked_asm!("mov r8d, 1", "ret")
}

/// Helper for the kernel's #GP and #UD handlers: finds the address at which to resume after an access of a [`FixupMsr`]
/// failed.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FaultFixup;

#[cfg(target_arch = "x86_64")]
impl FaultFixup {
    /// Returns the address at which to resume after a #GP or #UD whose frame has the RIP `rip`. Returns `None` if the
    /// fault was not raised by an access of a [`FixupMsr`].
    ///
    /// The handler stores the returned address as the frame's RIP, and returns with all other registers unchanged. The
    /// function can be called in any context.
    #[inline]
    pub fn resume_at(rip: u64) -> Option<u64> {
        let own = [fixup_rdmsr, fixup_wrmsr, fixup_rdpmc]
            .map(|at: unsafe extern "C" fn()| at as usize as u64);
        own.contains(&rip).then_some(fixup_fault as *const () as u64)
    }
}

/// Backend that executes RDMSR, WRMSR and RDPMC on this processor, and returns a #GP or #UD as an error.
///
/// An emulator without RDPMC (QEMU's TCG) raises #UD, which becomes [`AccessErrorKind::Fault`] like a #GP. A
/// driver still finds the counters of this emulator, because the driver verifies each counter by RDMSR.
///
/// If the fault occurs in an NMI handler, the #GP or #UD handler returns by IRET, which unblocks NMIs. Another NMI may
/// then interrupt the NMI handler, even within its call of `service`. Therefore the kernel ensures at least one of
/// these conditions:
///
/// - The kernel's NMI entry code supports nesting: a nested NMI does not overwrite the stack frame of the interrupted
///   NMI handler.
/// - The backend never faults in an NMI handler.
///
/// If the #GP or #UD handler begins on the same stack of the interrupt stack table as the handler that uses the
/// backend, the fault overwrites the frame of that handler. So the two exceptions have no stack of that table, or one
/// that no handler with the backend has.
///
/// The kernel's handlers of #GP and #UD must call [`FaultFixup::resume_at`] before anything else:
///
/// ```text
/// fn general_protection_or_undefined_opcode(frame: &mut Frame) {
///     if let Some(rip) = FaultFixup::resume_at(frame.rip) {
///         frame.rip = rip;
///         return;
///     }
///     // … the exception is the kernel's own
/// }
/// ```
///
/// ```no_run
/// use pmu_core::x86::FixupMsr;
/// // SAFETY: from its start on, every processor has the handler above for both exceptions.
/// let msr = unsafe { FixupMsr::new() };
/// # let _ = msr;
/// ```
///
/// Wrong: the backend exists before the handlers call [`FaultFixup::resume_at`].
///
/// ```no_run
/// # use pmu_core::x86::FixupMsr;
/// # fn load_idt() {}
/// // SAFETY: not given until `load_idt` has returned. A fault before that ends the kernel.
/// let msr = unsafe { FixupMsr::new() };
/// load_idt();
/// # let _ = msr;
/// ```
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixupMsr(());

#[cfg(target_arch = "x86_64")]
impl FixupMsr {
    /// Creates a backend for the processor that executes each access.
    ///
    /// # Safety
    /// - On every processor that uses this backend, the #GP and #UD handlers call [`FaultFixup::resume_at`]. If
    ///   `resume_at` returns an address, the handlers resume at this address, and leave all registers except RIP
    ///   unchanged.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

#[cfg(target_arch = "x86_64")]
impl FixupMsr {
    #[inline]
    fn rdmsr(register: u32) -> Result<u64, AccessErrorKind> {
        let (low, high, fault): (u32, u32, u32);
        // SAFETY: the routine changes nothing but the registers listed; a fault ends in `fault`
        // by the promise of `new`. The stack is used for the return address, so no `nostack`.
        unsafe {
            asm!("xor r8d, r8d", "call {}", sym fixup_rdmsr, in("ecx") register,
                 lateout("eax") low, lateout("edx") high, out("r8d") fault);
        }
        checked(fault, u64::from(high) << 32 | u64::from(low))
    }

    /// # Safety
    /// Writing `value` to the register does not break memory safety.
    #[inline]
    unsafe fn wrmsr(register: u32, value: u64) -> Result<(), AccessErrorKind> {
        let fault: u32;
        // SAFETY: as of `rdmsr`; of the value, by the caller's promise. The compiler assumes that memory
        // may have changed.
        unsafe {
            asm!("xor r8d, r8d", "call {}", sym fixup_wrmsr, in("ecx") register,
                 in("eax") value as u32, in("edx") (value >> 32) as u32, out("r8d") fault);
        }
        checked(fault, ())
    }
}

#[cfg(target_arch = "x86_64")]
impl RegisterBackend for FixupMsr {
    type Error = AccessErrorKind;

    #[inline]
    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        Self::rdmsr(address.get())
    }

    #[inline]
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        // SAFETY: no value of a register named by a `RegisterAddress` breaks memory safety, by the promise of
        // `RegisterAddress::new`.
        unsafe { Self::wrmsr(address.get(), value) }
    }

    #[inline]
    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        let (low, high, fault): (u32, u32, u32);
        // SAFETY: the routine changes nothing but the registers listed; a fault ends in `fault`
        // by the promise of `new`. The stack is used for the return address, so no `nostack`.
        unsafe {
            asm!("xor r8d, r8d", "call {}", sym fixup_rdpmc, in("ecx") index.get(),
                 lateout("eax") low, lateout("edx") high, out("r8d") fault);
        }
        checked(fault, u64::from(high) << 32 | u64::from(low))
    }

    #[inline]
    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let found = Self::rdmsr(update.register())?;
        if let Some(value) = update.apply(found) {
            // SAFETY: the change does not break memory safety, by the promise of `RegisterUpdate::new`.
            unsafe { Self::wrmsr(update.register(), value) }?;
        }
        Ok(found)
    }
}

#[cfg(target_arch = "x86_64")]
fn checked<T>(fault: u32, value: T) -> Result<T, AccessErrorKind> {
    if fault == 0 { Ok(value) } else { Err(AccessErrorKind::Fault) }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Plays the #GP handler: Linux reports a user-mode #GP as SIGSEGV, an undefined opcode as
    /// SIGILL.
    extern "C" fn handler(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid context to a SA_SIGINFO handler.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let rip = &mut registers[libc::REG_RIP as usize];
        match FaultFixup::resume_at(*rip as u64) {
            Some(resume) => *rip = resume as i64,
            // SAFETY: aborting is allowed in a signal handler.
            None => unsafe { libc::abort() },
        }
    }

    fn backend() -> FixupMsr {
        // SAFETY: a zeroed sigaction with a handler of the SA_SIGINFO form is valid.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut());
            libc::sigaction(libc::SIGILL, &action, core::ptr::null_mut());
            FixupMsr::new()
        }
    }

    #[test]
    fn a_real_general_protection_fault_comes_back_as_an_error() {
        let msr = backend();
        // SAFETY: the time-stamp counter holds no pointer; user mode cannot write it anyway.
        let tsc = unsafe { RegisterAddress::new(0x10) };
        assert_eq!(msr.read(tsc), Err(AccessErrorKind::Fault));
        assert_eq!(msr.write(tsc, 0), Err(AccessErrorKind::Fault));
        // No processor has this counter, whether or not it lets user mode read others.
        assert_eq!(msr.read_counter(CounterIndex::new(0x3FFF_FFFF)), Err(AccessErrorKind::Fault));
        assert_eq!(msr.update(RegisterUpdate::read(0x10)), Err(AccessErrorKind::Fault));
    }

    #[test]
    fn foreign_faults_are_left_alone() {
        assert_eq!(FaultFixup::resume_at(0), None);
        assert_eq!(FaultFixup::resume_at(fixup_rdmsr as *const () as u64 + 2), None);
        let wrmsr = fixup_wrmsr as *const () as u64;
        assert_eq!(FaultFixup::resume_at(wrmsr), Some(fixup_fault as *const () as u64));
    }
}
