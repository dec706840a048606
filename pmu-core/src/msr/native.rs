//! The instructions themselves: the only assembly of the library crates.

use core::arch::asm;
#[cfg(target_arch = "x86_64")]
use core::arch::global_asm;
use core::convert::Infallible;

#[cfg(target_arch = "x86_64")]
use super::MsrErrorKind;
use super::{MsrAddress, MsrBackend, PmcIndex};

/// RDMSR, WRMSR and RDPMC on this processor, with nothing in between.
///
/// **A #GP is not caught.** An access to a register that this processor lacks, or a reserved bit,
/// raises #GP in the kernel that embeds it. Where that is not acceptable, use [`FixupMsr`].
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NativeMsr(());

impl NativeMsr {
    /// The registers of the processor that executes each access.
    ///
    /// # Safety
    /// - The code runs at privilege level 0 whenever it uses the backend.
    /// - The kernel's #GP handler does not return to code whose register access failed as if it
    ///   had succeeded.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

impl MsrBackend for NativeMsr {
    type Error = Infallible;

    #[inline]
    fn read(&self, address: MsrAddress) -> Result<u64, Infallible> {
        // SAFETY: privilege level 0 by the promise of `new`; reading changes nothing.
        Ok(unsafe { x86::msr::rdmsr(address.get()) })
    }

    #[inline]
    fn write(&self, address: MsrAddress, value: u64) -> Result<(), Infallible> {
        // SAFETY: privilege level 0 by the promise of `new`; no value of a register named by an
        // `MsrAddress` breaks memory safety, by the promise of `MsrAddress::new`.
        unsafe { x86::msr::wrmsr(address.get(), value) };
        Ok(())
    }

    #[inline]
    fn read_pmc(&self, index: PmcIndex) -> Result<u64, Infallible> {
        let (low, high): (u32, u32);
        // SAFETY: RDPMC reads a counter into EDX:EAX and changes nothing else. It is not `pure`:
        // the counter moves.
        unsafe {
            asm!("rdpmc", in("ecx") index.get(), out("eax") low, out("edx") high,
                 options(nomem, nostack, preserves_flags));
        }
        Ok(u64::from(high) << 32 | u64::from(low))
    }
}

// Three routines whose one faulting instruction has a name. Each takes ECX (and EDX:EAX) as the
// instruction wants them and answers in R8D: 0, or 1 when the fault handler resumed it at
// `pmu_core_fixup_fault`. At both places the top of the stack is the return address.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.pmu_core_fixup, \"ax\", @progbits",
    ".p2align 4",
    ".hidden pmu_core_fixup_rdmsr",
    ".globl pmu_core_fixup_rdmsr",
    "pmu_core_fixup_rdmsr:",
    "xor r8d, r8d",
    ".hidden pmu_core_fixup_rdmsr_at",
    ".globl pmu_core_fixup_rdmsr_at",
    "pmu_core_fixup_rdmsr_at:",
    "rdmsr",
    "ret",
    ".hidden pmu_core_fixup_wrmsr",
    ".globl pmu_core_fixup_wrmsr",
    "pmu_core_fixup_wrmsr:",
    "xor r8d, r8d",
    ".hidden pmu_core_fixup_wrmsr_at",
    ".globl pmu_core_fixup_wrmsr_at",
    "pmu_core_fixup_wrmsr_at:",
    "wrmsr",
    "ret",
    ".hidden pmu_core_fixup_rdpmc",
    ".globl pmu_core_fixup_rdpmc",
    "pmu_core_fixup_rdpmc:",
    "xor r8d, r8d",
    ".hidden pmu_core_fixup_rdpmc_at",
    ".globl pmu_core_fixup_rdpmc_at",
    "pmu_core_fixup_rdpmc_at:",
    "rdpmc",
    "ret",
    ".hidden pmu_core_fixup_fault",
    ".globl pmu_core_fixup_fault",
    "pmu_core_fixup_fault:",
    "mov r8d, 1",
    "ret",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn pmu_core_fixup_rdmsr();
    fn pmu_core_fixup_rdmsr_at();
    fn pmu_core_fixup_wrmsr();
    fn pmu_core_fixup_wrmsr_at();
    fn pmu_core_fixup_rdpmc();
    fn pmu_core_fixup_rdpmc_at();
    fn pmu_core_fixup_fault();
}

/// The part of the embedder's #GP handler that belongs to [`FixupMsr`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FaultFixup;

#[cfg(target_arch = "x86_64")]
impl FaultFixup {
    /// For a #GP whose return address is `rip`: where to resume if the fault was one of
    /// [`FixupMsr`]'s accesses, or `None` if it is somebody else's.
    ///
    /// The handler stores the answer as the frame's RIP and returns with all other registers as
    /// they were. Callable in any context.
    #[inline]
    pub fn resume_at(rip: u64) -> Option<u64> {
        let mine = [pmu_core_fixup_rdmsr_at, pmu_core_fixup_wrmsr_at, pmu_core_fixup_rdpmc_at]
            .map(|at: unsafe extern "C" fn()| at as usize as u64);
        mine.contains(&rip).then_some(pmu_core_fixup_fault as *const () as u64)
    }
}

/// RDMSR, WRMSR and RDPMC on this processor, whose #GP comes back as an error.
///
/// Needs a #GP handler that consults [`FaultFixup::resume_at`] before anything else:
///
/// ```text
/// fn general_protection(frame: &mut Frame) {
///     if let Some(rip) = FaultFixup::resume_at(frame.rip) {
///         frame.rip = rip;
///         return;
///     }
///     // … whatever this kernel does with a real one
/// }
/// ```
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixupMsr(());

#[cfg(target_arch = "x86_64")]
impl FixupMsr {
    /// The registers of the processor that executes each access.
    ///
    /// # Safety
    /// - Whatever handles #GP (and, where RDPMC is undefined, #UD) on every processor that uses
    ///   this backend resumes at [`FaultFixup::resume_at`] when that answers `Some`, with all
    ///   other registers unchanged.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

#[cfg(target_arch = "x86_64")]
impl MsrBackend for FixupMsr {
    type Error = MsrErrorKind;

    #[inline]
    fn read(&self, address: MsrAddress) -> Result<u64, MsrErrorKind> {
        let (low, high, fault): (u32, u32, u32);
        // SAFETY: the routine changes nothing but the registers listed; a fault ends in `fault`
        // by the promise of `new`. The stack is used for the return address, so no `nostack`.
        unsafe {
            asm!("call {}", sym pmu_core_fixup_rdmsr, in("ecx") address.get(),
                 lateout("eax") low, lateout("edx") high, lateout("r8d") fault);
        }
        checked(fault, u64::from(high) << 32 | u64::from(low))
    }

    #[inline]
    fn write(&self, address: MsrAddress, value: u64) -> Result<(), MsrErrorKind> {
        let fault: u32;
        // SAFETY: as for `read`; no value of a register named by an `MsrAddress` breaks memory
        // safety. The compiler assumes that memory may have changed.
        unsafe {
            asm!("call {}", sym pmu_core_fixup_wrmsr, in("ecx") address.get(),
                 in("eax") value as u32, in("edx") (value >> 32) as u32, lateout("r8d") fault);
        }
        checked(fault, ())
    }

    #[inline]
    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MsrErrorKind> {
        let (low, high, fault): (u32, u32, u32);
        // SAFETY: as for `read`.
        unsafe {
            asm!("call {}", sym pmu_core_fixup_rdpmc, in("ecx") index.get(),
                 lateout("eax") low, lateout("edx") high, lateout("r8d") fault);
        }
        checked(fault, u64::from(high) << 32 | u64::from(low))
    }
}

#[cfg(target_arch = "x86_64")]
fn checked<T>(fault: u32, value: T) -> Result<T, MsrErrorKind> {
    if fault == 0 { Ok(value) } else { Err(MsrErrorKind::GeneralProtection) }
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
        // SAFETY: the time-stamp counter holds no pointer; user mode can not write it anyway.
        let tsc = unsafe { MsrAddress::new(0x10) };
        assert_eq!(msr.read(tsc), Err(MsrErrorKind::GeneralProtection));
        assert_eq!(msr.write(tsc, 0), Err(MsrErrorKind::GeneralProtection));
        // No processor has this counter, whether or not it lets user mode read others.
        assert_eq!(msr.read_pmc(PmcIndex::new(0x3FFF_FFFF)), Err(MsrErrorKind::GeneralProtection));
    }

    #[test]
    fn foreign_faults_are_left_alone() {
        assert_eq!(FaultFixup::resume_at(0), None);
        assert_eq!(FaultFixup::resume_at(pmu_core_fixup_rdmsr as *const () as u64), None);
        let wrmsr = pmu_core_fixup_wrmsr_at as *const () as u64;
        assert_eq!(FaultFixup::resume_at(wrmsr), Some(pmu_core_fixup_fault as *const () as u64));
    }
}
