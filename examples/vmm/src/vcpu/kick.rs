//! Kicks, which end a virtual processor's KVM_RUN: a signal to its thread, now or by a timer.

use core::cell::Cell;
use core::mem::zeroed;
use core::ptr::null_mut;
use core::time::Duration;
use std::io;
use std::time::Instant;

use libc::{c_int, timer_t};

thread_local! {
    /// `immediate_exit` in this thread's `kvm_run`. KVM looks at it when it is about to enter the
    /// guest, so a signal just before KVM_RUN is not lost.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(null_mut()) };
}

fn signal() -> c_int {
    libc::SIGRTMIN()
}

/// Handles the signal.
extern "C" fn kicked(_: c_int) {
    IMMEDIATE_EXIT.with(|place| {
        let place = place.get();
        if !place.is_null() {
            // SAFETY: set by this thread, which clears it before the mapping goes.
            unsafe { place.write_volatile(1) };
        }
    });
}

/// Installs the signal's handler, for all threads.
pub(crate) fn install() -> io::Result<()> {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = kicked as *const () as usize;
    // Without SA_RESTART, so that KVM_RUN ends. A write to a file continues all the same. SAFETY: the handler has the
    // signature of one without SA_SIGINFO, and does nothing but write a byte that belongs to its thread.
    check(unsafe { libc::sigaction(signal(), &action, null_mut()) })
}

/// A thread of this process.
pub(crate) type Thread = libc::pthread_t;

/// Returns this thread.
pub(crate) fn this_thread() -> Thread {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() }
}

/// Kicks a thread that was not joined yet. A thread that has ended is not an error.
pub(crate) fn kick(thread: Thread) {
    // SAFETY: the thread's name is valid until it is joined.
    unsafe { libc::pthread_kill(thread, signal()) };
}

/// Longest delay of a kick: an early one finds nothing.
const LONGEST: Duration = Duration::from_secs(3600);

/// This thread's kicks, while it lives.
pub(crate) struct Kicks {
    timer: timer_t,
    /// The time of the kick that the timer was set for, which may be past.
    at: Option<Instant>,
}

impl Kicks {
    /// Makes kicks of this thread set the byte at `immediate_exit`, which must stay valid until this is dropped.
    ///
    /// # Safety
    /// Nothing but this thread's KVM_RUN and `kvm_run` uses the byte.
    pub(crate) unsafe fn new(immediate_exit: *mut u8) -> io::Result<Self> {
        // SAFETY: plain data, for which zero is a valid value of every field.
        let mut event: libc::sigevent = unsafe { zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal();
        // SAFETY: no preconditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = null_mut();
        // SAFETY: both pointers are valid for the call.
        check(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) })?;
        IMMEDIATE_EXIT.set(immediate_exit);
        Ok(Self { timer, at: None })
    }

    /// Kicks this thread after `delay` at the latest, or not at all. It does not put off an earlier kick: a guest that
    /// exits more often than that would never be kicked.
    pub(crate) fn after(&mut self, delay: Option<Duration>) -> io::Result<()> {
        let now = Instant::now();
        let at = delay.map(|delay| now + delay.min(LONGEST));
        let waits = self.at.is_some_and(|before| before > now && at.is_some_and(|at| before <= at));
        if waits || at.is_none() && self.at.is_none() {
            return Ok(());
        }
        self.at = at;
        let delay = delay.unwrap_or_default().min(LONGEST);
        let setting = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: delay.as_secs() as i64,
                tv_nsec: delay.subsec_nanos().into(),
            },
        };
        // SAFETY: the timer exists until this is dropped; the setting is valid for the call.
        check(unsafe { libc::timer_settime(self.timer, 0, &setting, null_mut()) })
    }
}

impl Drop for Kicks {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(null_mut());
        // SAFETY: the timer exists, and is not used afterwards.
        unsafe { libc::timer_delete(self.timer) };
    }
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
