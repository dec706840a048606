//! The profile timer of a thread: a POSIX timer whose signal is the profile interrupt.

use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;
use std::io;

use libc::{c_int, c_void, siginfo_t, ucontext_t};
use pmu_core::Platform;
use pmu_core::error::PlatformError;
use pmu_core::frame::InterruptFrame;
use pmu_core::interval::Interval;

use super::call_walk::{self, Ring};
use super::counters::Counters;
use super::processor::{PROFILES, SignalFrame, clock};

/// The call stacks of the samples.
pub static STACKS: Ring = Ring::new();

/// The profile timer of the thread that made it.
///
/// It follows the monotonic clock: a timer on the thread's processor time would be looked at by the
/// kernel's tick only, at 100 to 250 Hz on most systems. What fires while the thread waits for its
/// turn is left out.
#[derive(Debug)]
pub struct ThreadTimer {
    timer: libc::timer_t,
}

impl ThreadTimer {
    /// A stopped timer.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        // SAFETY: both are plain data, for which zero is a valid value of every field.
        let (mut action, mut event): (libc::sigaction, libc::sigevent) =
            unsafe { (zeroed(), zeroed()) };
        action.sa_sigaction = interrupt as *const () as usize;
        // The interrupted system call goes on as if nothing had been.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: `interrupt` has the signature that SA_SIGINFO asks for, and does only what a signal
        // handler may: it takes no lock and does not allocate.
        check(unsafe { libc::sigaction(libc::SIGPROF, &action, null_mut()) })?;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        // SAFETY: no preconditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = null_mut();
        // SAFETY: both pointers are valid for the call.
        check(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) })?;
        Ok(Self { timer })
    }

    /// Fires first at `first`, and then each `every`; never, if `first` is zero.
    fn set(&self, first: Duration, every: Duration) -> io::Result<()> {
        let setting = libc::itimerspec { it_interval: timespec(every), it_value: timespec(first) };
        // SAFETY: the timer exists until this is dropped; the setting is valid for the call.
        check(unsafe { libc::timer_settime(self.timer, libc::TIMER_ABSTIME, &setting, null_mut()) })
    }
}

impl ThreadTimer {
    /// Moves `counters` on at every tick from now on, each `every`, until the timer is
    /// [stopped](Platform::stop_profile_timer).
    ///
    /// # Errors
    /// The kernel's.
    pub fn move_on(&self, counters: &'static Counters, every: Interval) -> io::Result<()> {
        COUNTERS.store(core::ptr::from_ref(counters).cast_mut(), Ordering::Release);
        (&self).start_profile_timer(every).map_err(|_| io::Error::last_os_error())
    }
}

impl Platform for &ThreadTimer {
    /// No counter interrupts here.
    fn unmask_performance_interrupt(&self) {}
    fn mask_performance_interrupt(&self) {}

    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        let every = Duration::from_nanos(u64::from(interval.get()) * 100);
        let now = clock(libc::CLOCK_MONOTONIC);
        TIMER.store(self.timer, Ordering::Relaxed);
        EVERY.store(every.as_nanos() as u64, Ordering::Relaxed);
        START.store(now.as_nanos() as u64, Ordering::Relaxed);
        self.set(now + every, every).map_err(|_| PlatformError::NoTimer)
    }

    fn stop_profile_timer(&self) {
        // The timer exists, and zero is a valid setting: nothing can fail.
        let _ = self.set(Duration::ZERO, Duration::ZERO);
        COUNTERS.store(null_mut(), Ordering::Release);
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and is used no more.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// The timer, when it was started, and how often it fires, in nanoseconds of the monotonic clock.
static TIMER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static START: AtomicU64 = AtomicU64::new(0);
static EVERY: AtomicU64 = AtomicU64::new(1);

/// The counters that the timer's ticks move on; null: the timer itself is the source.
static COUNTERS: AtomicPtr<Counters> = AtomicPtr::new(null_mut());

/// Signals that were left out.
static LATE: AtomicU64 = AtomicU64::new(0);

/// A signal that comes later than this did not interrupt the thread, but waited for its turn.
const PROMPT: Duration = Duration::from_micros(100);

/// The number of signals that were left out so far because they came late.
pub fn late() -> u64 {
    LATE.load(Ordering::Relaxed)
}

/// The profile interrupt.
///
/// Where a thread is when its turn ends says more of the scheduler than of the thread: it is often
/// at the end of a system call. A signal from then is delivered when the next turn begins; by then
/// the timer has fired again, or it is no time at which it fires.
extern "C" fn interrupt(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    let since_start = clock(libc::CLOCK_MONOTONIC).as_nanos() as u64;
    let since_start = since_start.wrapping_sub(START.load(Ordering::Relaxed));
    let every = EVERY.load(Ordering::Relaxed).max(1);
    let prompt = since_start % every <= (every / 4).min(PROMPT.as_nanos() as u64);
    if !prompt || fired_again() {
        LATE.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // SAFETY: the kernel hands a ucontext_t to a handler that was installed with SA_SIGINFO, valid
    // until it returns.
    let frame = SignalFrame(unsafe { &*context.cast::<ucontext_t>() });
    let before = PROFILES.statistics().seen;
    // SAFETY: what is stored here lives forever.
    match unsafe { COUNTERS.load(Ordering::Acquire).as_ref() } {
        None => _ = PROFILES.timer_interrupt(&frame),
        Some(counters) => counters.tick(&frame),
    }
    let interrupts = (PROFILES.statistics().seen - before) as u32;
    if interrupts > 0 {
        let (sp, bp) = (frame.register(libc::REG_RSP), frame.register(libc::REG_RBP));
        // SAFETY: the registers are this thread's, which the timer's maker called `begin` on.
        let walked = unsafe { call_walk::walk(frame.pc(), sp, bp, since_start, interrupts) };
        // SAFETY: one thread is profiled at a time, and the signal is blocked in its own handler.
        unsafe { STACKS.push(walked) };
    }
}

/// Returns true if the timer fired again before its signal was delivered.
fn fired_again() -> bool {
    // SAFETY: of the interrupted code, errno must stay as it is; the pointer is valid in any thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    // SAFETY: a number that is no timer's any more is an error and nothing worse.
    let overruns = unsafe { libc::timer_getoverrun(TIMER.load(Ordering::Relaxed)) };
    // SAFETY: as above.
    unsafe { errno.write(before) };
    overruns != 0
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() }
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
