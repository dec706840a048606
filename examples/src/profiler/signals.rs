//! SIGINT, SIGTERM and SIGHUP: requests to stop, which the profiler polls.

use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, Ordering};
use std::io;

use libc::{c_int, c_void, siginfo_t};

/// A request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// The signal.
    pub signal: c_int,
    /// Set if the terminal sent the signal, and so to the whole process group.
    pub by_terminal: bool,
}

impl StopRequest {
    /// Returns the signal's name.
    pub fn name(self) -> &'static str {
        match self.signal {
            libc::SIGINT => "SIGINT",
            libc::SIGHUP => "SIGHUP",
            _ => "SIGTERM",
        }
    }

    /// Returns the exit status of a program that the signal ended, as a shell reports it.
    pub fn exit_code(self) -> u8 {
        128 + self.signal as u8
    }
}

/// The first signal that was caught, or 0, with [`BY_TERMINAL`].
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// A bit beyond all signal numbers.
const BY_TERMINAL: c_int = 1 << 16;

/// Catches the signals from now on. SIGHUP stays ignored where it is, as under `nohup`. Executed programs
/// do not inherit the handlers.
///
/// # Errors
/// The kernel's.
pub fn catch() -> io::Result<()> {
    set(caught as *const () as libc::sighandler_t)
}

/// Restores the signals' default action, which ends this process.
///
/// # Errors
/// The kernel's.
pub fn restore() -> io::Result<()> {
    set(libc::SIG_DFL)
}

fn set(handler: libc::sighandler_t) -> io::Result<()> {
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
        // SAFETY: the handler is SIG_DFL, or `caught`, which has the signature that SA_SIGINFO asks for and
        // only stores to an atomic.
        check(unsafe { libc::sigaction(signal, &action, null_mut()) })?;
    }
    Ok(())
}

/// Returns the first request to stop, if there was one.
pub fn requested() -> Option<StopRequest> {
    let caught = CAUGHT.load(Ordering::Relaxed);
    let by_terminal = caught & BY_TERMINAL != 0;
    (caught != 0).then_some(StopRequest { signal: caught & !BY_TERMINAL, by_terminal })
}

extern "C" fn caught(signal: c_int, information: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands a siginfo_t to a handler that was installed with SA_SIGINFO.
    let code = unsafe { (*information).si_code };
    // A terminal's SIGHUP goes to the session leader alone.
    let by_terminal = signal == libc::SIGINT && code == libc::SI_KERNEL;
    let by_terminal = if by_terminal { BY_TERMINAL } else { 0 };
    // Only the first one counts: many senders repeat theirs.
    let _ = CAUGHT.compare_exchange(0, signal | by_terminal, Ordering::Relaxed, Ordering::Relaxed);
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
