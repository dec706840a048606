//! The signals that ask the profiler to end. They are noted, and looked at now and then.

use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, Ordering};
use std::io;

use libc::{c_int, c_void, siginfo_t};

/// A request to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The signal.
    pub signal: c_int,
    /// Whether a terminal sent it: then it went to the whole process group.
    pub by_terminal: bool,
}

impl Ask {
    /// Returns the signal's name.
    pub fn name(self) -> &'static str {
        match self.signal {
            libc::SIGINT => "SIGINT",
            libc::SIGHUP => "SIGHUP",
            _ => "SIGTERM",
        }
    }

    /// Returns the exit status of what the signal ended, as a shell has it.
    pub fn exit_code(self) -> u8 {
        128 + self.signal as u8
    }
}

/// The first signal that was noted; 0 is none, and a bit beyond all signals says that a terminal sent it.
static NOTED: AtomicI32 = AtomicI32::new(0);
const BY_TERMINAL: c_int = 1 << 16;

/// Notes SIGINT, SIGTERM and SIGHUP from now on, instead of being ended by them. A hangup that is ignored,
/// as `nohup` has it, stays ignored. A program that is executed does not inherit this.
///
/// # Errors
/// The kernel's.
pub fn note() -> io::Result<()> {
    act(noted as *const () as libc::sighandler_t)
}

/// Lets the signals end this process again.
///
/// # Errors
/// The kernel's.
pub fn note_no_more() -> io::Result<()> {
    act(libc::SIG_DFL)
}

fn act(handler: libc::sighandler_t) -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both are plain data, for which zero is a valid value of every field.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (zeroed(), zeroed()) };
        // SAFETY: the pointer is valid for the call; a null pointer changes nothing.
        check(unsafe { libc::sigaction(signal, null_mut(), &mut before) })?;
        if signal == libc::SIGHUP && before.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: the handler is SIG_DFL, or `noted`, which has the signature that SA_SIGINFO asks for and
        // stores to an atomic only.
        check(unsafe { libc::sigaction(signal, &action, null_mut()) })?;
    }
    Ok(())
}

/// Returns the first request to end, if there was one.
pub fn asked() -> Option<Ask> {
    match NOTED.load(Ordering::Relaxed) {
        0 => None,
        noted => Some(Ask { signal: noted & !BY_TERMINAL, by_terminal: noted & BY_TERMINAL != 0 }),
    }
}

extern "C" fn noted(signal: c_int, information: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands a siginfo_t to a handler that was installed with SA_SIGINFO.
    let code = unsafe { (*information).si_code };
    let by_terminal = if code == libc::SI_KERNEL { BY_TERMINAL } else { 0 };
    // Only the first one counts: who sends one often sends another.
    let _ = NOTED.compare_exchange(0, signal | by_terminal, Ordering::Relaxed, Ordering::Relaxed);
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
