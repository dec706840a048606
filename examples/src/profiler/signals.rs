//! SIGINT, SIGTERM and SIGHUP: requests to stop, which the profiler polls. A second one asks for an end at once.

use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
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

/// The time in which senders repeat the signal that they sent, as to a process and to its group, in nanoseconds.
const REPEATED: u64 = 250_000_000;

/// The time of the first signal, in nanoseconds of the monotonic clock, and the first signal that is no repetition.
static SINCE: AtomicU64 = AtomicU64::new(0);
static SECOND: AtomicI32 = AtomicI32::new(0);

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
        // only reads a clock and stores to atomics.
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

/// Returns the signal that asks for an end at once, if there was one: it came some time after the first.
pub fn insisted() -> Option<c_int> {
    Some(SECOND.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Returns the time of the monotonic clock. (clock_gettime may be called by a handler: signal-safety(7).)
fn now() -> u64 {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut time: libc::timespec = unsafe { zeroed() };
    // SAFETY: the pointer is valid for the call, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

extern "C" fn caught(signal: c_int, information: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands a siginfo_t to a handler that was installed with SA_SIGINFO.
    let code = unsafe { (*information).si_code };
    // A terminal's SIGHUP goes to the session leader alone.
    let by_terminal = signal == libc::SIGINT && code == libc::SI_KERNEL;
    let by_terminal = if by_terminal { BY_TERMINAL } else { 0 };
    let first = signal | by_terminal;
    if CAUGHT.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        SINCE.store(now(), Ordering::Relaxed);
    } else if now().saturating_sub(SINCE.load(Ordering::Relaxed)) > REPEATED {
        SECOND.store(signal, Ordering::Relaxed);
    }
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
