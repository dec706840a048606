//! `/dev/cpu/N/msr`: a [`RegisterBackend`] of Linux user space. Read first: Linux, `Documentation/arch/x86` and msr(4).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Once;

use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::x86::{FaultFixup, FixupMsr};

/// The registers of one processor, by the kernel's `msr` module; RDPMC by the instruction.
///
/// An access reaches the processor that the file belongs to, on whichever processor the call executes. RDPMC reads the
/// processor that executes the call.
/// A #GP comes back as EIO, and is [`GeneralProtection`](AccessErrorKind::Fault). EPERM is the kernel's
/// refusal, not the processor's, and like any other error [`Unreachable`](AccessErrorKind::Unreachable).
///
/// # Context
/// Task only: each access is a system call.
///
/// ```no_run
/// use pmu_core::access::{RegisterBackend, RegisterUpdate};
/// use pmu_hwcheck::machine::device::LinuxMsr;
/// let processor_0 = LinuxMsr::open("/dev/cpu/0/msr".as_ref(), false)?;
/// println!("IA32_PERFEVTSEL0: {:?}", processor_0.update(RegisterUpdate::read(0x186)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct LinuxMsr {
    file: File,
    rdpmc: FixupMsr,
}

impl LinuxMsr {
    /// Opens the file of a processor, for writing too if `writes`.
    ///
    /// From the first call on, a SIGSEGV that is not RDPMC's of this type ends the process by the default action.
    ///
    /// # Errors
    /// Those of open(2): the module `msr` is not loaded, or the caller lacks CAP_SYS_RAWIO.
    pub fn open(path: &Path, writes: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(writes).open(path)?;
        Ok(Self { file, rdpmc: rdpmc() })
    }
}

/// Returns the kind of failure that an error of the `msr` file stands for.
fn kind(error: &io::Error) -> AccessErrorKind {
    match error.raw_os_error() {
        Some(libc::EIO) => AccessErrorKind::Fault,
        _ => AccessErrorKind::Unreachable,
    }
}

impl RegisterBackend for LinuxMsr {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.update(RegisterUpdate::read(address.get()))
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        let at = u64::from(address.get());
        self.file.write_all_at(&value.to_le_bytes(), at).map_err(|error| kind(&error))
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.rdpmc.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let (at, mut bytes) = (u64::from(update.register()), [0; 8]);
        self.file.read_exact_at(&mut bytes, at).map_err(|error| kind(&error))?;
        let found = u64::from_le_bytes(bytes);
        if let Some(value) = update.apply(found) {
            self.file.write_all_at(&value.to_le_bytes(), at).map_err(|error| kind(&error))?;
        }
        Ok(found)
    }
}

/// RDPMC in user mode, whose #GP, a SIGSEGV, comes back as an error.
fn rdpmc() -> FixupMsr {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: (1) a zeroed sigaction is valid, and `on_fault` has the form that SA_SIGINFO asks for; (2) the
        // handler is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut());
        }
    });
    // SAFETY: the handler above resumes at `FaultFixup::resume_at`, and changes no register but RIP.
    unsafe { FixupMsr::new() }
}

extern "C" fn on_fault(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid ucontext_t to a handler with SA_SIGINFO.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let rip = &mut registers[libc::REG_RIP as usize];
    match FaultFixup::resume_at(*rip as u64) {
        Some(resume) => *rip = resume as i64,
        // SAFETY: async-signal-safe. The instruction faults again, and the default action ends the process.
        None => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_eio_is_a_general_protection_fault() {
        let of = |code| kind(&io::Error::from_raw_os_error(code));
        assert_eq!(of(libc::EIO), AccessErrorKind::Fault);
        for code in [libc::EPERM, libc::EACCES, libc::ENXIO, libc::EBADF] {
            assert_eq!(of(code), AccessErrorKind::Unreachable);
        }
        assert_eq!(kind(&io::ErrorKind::UnexpectedEof.into()), AccessErrorKind::Unreachable);
    }

    #[test]
    fn an_access_is_eight_bytes_at_the_registers_number() {
        let path = std::env::temp_dir().join(format!("hwcheck-device-{}", std::process::id()));
        std::fs::write(&path, [0; 0x200]).unwrap();
        let msr = LinuxMsr::open(&path, true).unwrap();
        // SAFETY: an event select.
        let select = unsafe { RegisterAddress::new(0x186) };
        msr.write(select, 0x0123_4567_89AB_CDEF).unwrap();
        assert_eq!(msr.read(select), Ok(0x0123_4567_89AB_CDEF));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes[0x186..0x18E], [0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01]);
        assert_eq!(bytes.len(), 0x200);
    }

    #[test]
    fn rdpmc_of_a_counter_that_no_processor_has_is_a_general_protection_fault() {
        let index = CounterIndex::new(0x3FFF_FFFF);
        assert_eq!(rdpmc().read_counter(index), Err(AccessErrorKind::Fault));
    }
}
