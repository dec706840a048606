//! The page from which a thread learns how to read its event in user mode: with RDPMC, or on Arm with MRS. The kernel
//! shares this page with the thread. The page has the layout of Linux' `perf_event_mmap_page`.
//!
//! # What the kernel sets
//! A read-only mapping of the page in the thread's address space. On x86 also:
//! - `CR4.PCE`, bit 8 (SDM vol. 3A, "Control Registers"; APM vol. 2, "CR4 Register"). The bit is set on a processor
//!   while the processor runs a thread with such a page. While the bit is clear, RDPMC above privilege level 0 raises
//!   #GP. While the bit is set, the thread can read *every* counter of the processor, except counters that RDPMC user
//!   disable hides.
//! - RDPMC user disable, if [`CounterUnit::can_deny_user_reads`](pmu_core::CounterUnit) returns `true` for the
//!   processor (SDM vol. 3B, "RDPMC User Disable", CPUID leaf 23H, sub-leaf 0, EBX). Above privilege level 0, RDPMC
//!   then returns 0 for a running counter, unless the counter's event was opened
//!   [`with_user_reads`](pmu_core::Event::with_user_reads). A stopped counter keeps its last value, which user mode can
//!   read.
//!
//! On Arm, the bits CR and ER of `PMUSERENR_EL0` are what `CR4.PCE` is on x86: the kernel sets them by
//! [`UserEnable`](crate::arm::registers::UserEnable) at a switch to a thread with such a page, and writes 0 at a
//! switch to another thread (DDI 0487, `PMUSERENR_EL0`). The page's `index`, less 1, is the number of an event
//! counter, or 31 for the cycle counter, as in Linux. `read_at_el0` of [`pmu_arm`](crate::arm), feature `native`,
//! reads the counter. Below, RDPMC stands for MRS of this register, and #GP for the exception to EL1 of an access that
//! `PMUSERENR_EL0` does not permit (`ESR_EL1.EC` 0x18): its handler writes 0 to the instruction's register, and
//! returns behind it.
//!
//! # When the kernel publishes
//! If [`Kernel::USER_PAGES`](crate::Kernel::USER_PAGES) is set, a [`Pmu`](crate::Pmu) publishes and hides the pages
//! that [`Kernel::user_page`](crate::Kernel::user_page) returns. The rest of this section is for other kernels.
//!
//! A page is valid for one thread on one processor, while the event stays on the same counter. In each of the following
//! cases the kernel calls [`publish`](UserPage::publish) or [`hide`](UserPage::hide) before the thread next executes in
//! user mode:
//! - after it opened, enabled, disabled or closed the event;
//! - after it enabled *another* event, or called [`rotate`](pmu_core::CounterSession::rotate): either call may move the
//!   event to another counter;
//! - after [`reprogram`](pmu_core::CounterSession::reprogram), [`apply_period`](pmu_core::CounterSession::apply_period)
//!   and the end of a [window](pmu_core::lending::CounterWindow): the counter may start again from another value;
//! - after [`add_count`](pmu_core::CounterSession::add_count): the page does not include the added count;
//! - after every switch to the thread, on any processor, even if the event did not move. The thread may have been
//!   switched out while it was reading the page. A switch away from the thread requires no call, because the thread
//!   does not read while it does not run. If its events cannot be switched in, the kernel hides their pages;
//! - in the handler, after [`service`](pmu_core::service()) serviced an interrupt of the processor's counters:
//!   `service` may have reloaded the event's counter;
//! - at least once per half of the counter's range: with a counter of 48 bits, once per 2⁴⁷ events. It is enough to
//!   call `publish` at every timer tick.
//!
//! If a thread is switched out while it reads the page, it may execute RDPMC after it is switched in again. On a hybrid
//! machine, the thread may then run on a processor without this counter, and RDPMC raises #GP. RDPMC also raises #GP if
//! the kernel hid the page and cleared CR4.PCE. The kernel's #GP handler must let RDPMC return 0. The thread then finds
//! that the page's sequence has changed, and reads the page again.
//!
//! # Limitations
//! - A stopped counter keeps its last value. If CR4.PCE is set, user mode can read this value by RDPMC.
//! - On Arm, all counters are readable, or none: `PMUACR_EL1` (FEAT_PMUv3p9) is not used.
//! - RDPMC user disable was tried in the monitor alone, by a guest that was written for the test.
//! - [`UserPage`] was read by the loop of Linux' header in tests, and by our own reader at ring 3. No library that is
//!   written for Linux was run on it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};

use pmu_core::EventCount;
use pmu_core::access::CounterIndex;
use pmu_core::reading::UserView;

/// Number of attempts of [`UserPage::read`], after which the thread asks the kernel.
const ATTEMPTS: u32 = 64;

/// Bits of `capabilities`: `cap_bit0_is_deprecated`, `cap_user_rdpmc`, `cap_user_time`, `cap_user_time_zero`. The TSC
/// has 64 bits, so `cap_user_time_short` stays 0.
const BIT_0_IS_DEPRECATED: u64 = 1 << 1;
const USER_READS: u64 = 1 << 2;
const USER_TIME: u64 = 1 << 3;
const USER_TIME_ZERO: u64 = 1 << 4;

/// Length of the page up to its reserved bytes: `size`.
const HEADER: u32 = 96;

/// Page that a kernel shares with a user thread, so that the thread can read an event without a system call.
///
/// The page has the layout and meaning of `perf_event_mmap_page` in `linux/perf_event.h`, version 0. So libraries that
/// read Linux' page can also read a `UserPage`. The field `lock` is a sequence lock: its value is odd while the kernel
/// writes the page.
///
/// A page of zeros *hides* the event: the page has no data for RDPMC, so the thread reads the event by a system call.
///
/// `pmc_width` is the counter's width, or the counter's width plus 1: see [`UserView::width`]. The fields `index`,
/// `offset` and `pmc_width` may change with each [`publish`](Self::publish). So a reader reads these three fields again
/// in each pass of the sequence lock.
///
/// # Examples
/// The kernel publishes the page in each of the cases that the [module](crate::user) lists:
///
/// ```
/// use pmu::core::{CounterSession, EventId, EventSource, Hardware};
/// use pmu::core::error::CounterError;
/// use pmu::user::{UserClock, UserPage};
///
/// fn publish<S: EventSource, H: Hardware>(
///     counters: &CounterSession<'_, S, H>,
///     event: EventId,
///     page: &UserPage,
///     (clock, tsc): (&UserClock, u64),
/// ) -> Result<(), CounterError> {
///     page.publish(Some(clock), || counters.user_view(event, clock.time(tsc)))
/// }
/// ```
///
/// The thread reads the event:
///
/// ```
/// use pmu::user::UserPage;
/// # fn read_by_system_call() -> u64 { 0 }
/// # #[cfg(target_arch = "x86_64")]
/// fn events(page: &UserPage) -> u64 {
///     let rdpmc = |index: u32| {
///         let (low, high): (u32, u32);
///         // SAFETY: the kernel set CR4.PCE, and an index of the page is a counter's.
///         unsafe { core::arch::asm!("rdpmc", in("ecx") index, out("eax") low, out("edx") high) };
///         u64::from(high) << 32 | u64::from(low)
///     };
///     page.read(rdpmc).unwrap_or_else(read_by_system_call)
/// }
/// # #[cfg(target_arch = "x86_64")]
/// # assert_eq!(events(&UserPage::new()), 0);
/// ```
///
/// The same on Arm, and what the kernel does at a switch:
///
/// ```
/// use pmu::arm::SystemRegisters;
/// use pmu::arm::registers::{Register, UserEnable};
/// use pmu::user::UserPage;
///
/// # #[cfg(all(target_arch = "aarch64", feature = "native"))]
/// fn events(page: &UserPage) -> Option<u64> {
///     // SAFETY: the kernel set PMUSERENR_EL0, and an index of the page is a counter's.
///     page.read(|index| unsafe { pmu::arm::read_at_el0(index) })
/// }
///
/// /// Opens the counters to the thread that runs next, if it has pages, or closes them.
/// fn switched<R: SystemRegisters>(registers: &R, has_pages: bool) -> Result<(), R::Error> {
///     let open = UserEnable::new().with_cycle_counter(has_pages).with_event_counters(has_pages);
///     registers.write(Register::Pmuserenr, open.into_bits())
/// }
/// # let _ = switched::<&'static dyn SystemRegisters<Error = core::convert::Infallible>>;
/// ```
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct UserPage {
    version: AtomicU32,
    compat_version: AtomicU32,
    lock: AtomicU32,
    index: AtomicU32,
    offset: AtomicU64,
    time_enabled: AtomicU64,
    time_running: AtomicU64,
    capabilities: AtomicU64,
    pmc_width: AtomicU16,
    time_shift: AtomicU16,
    time_mult: AtomicU32,
    time_offset: AtomicU64,
    time_zero: AtomicU64,
    size: AtomicU32,
    reserved_1: AtomicU32,
    time_cycles: AtomicU64,
    time_mask: AtomicU64,
    reserved: [AtomicU64; 116],
    /// `data_head`, `data_tail`, `data_offset`, `data_size`: the kernel's buffer of samples, if there is one.
    pub data: RingWords,
    /// `aux_head`, `aux_tail`, `aux_offset`, `aux_size`: the kernel's buffer of AUX trace data, if there is one.
    pub aux: RingWords,
    rest: [AtomicU64; 376],
}

/// Position and size of a ring buffer that the thread maps behind its [`UserPage`]. The kernel sets the fields. This
/// crate neither reads nor writes them.
///
/// ```
/// use core::sync::atomic::Ordering;
/// use pmu::user::UserPage;
/// let page = UserPage::new();
/// // The kernel wrote a sample of 40 bytes into the buffer, before it moves the head.
/// page.data.head.fetch_add(40, Ordering::Release);
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct RingWords {
    /// Total number of bytes that the kernel has written.
    pub head: AtomicU64,
    /// Total number of bytes that the thread has read. The thread can set this field only if the page is mapped
    /// writable.
    pub tail: AtomicU64,
    /// Offset of the buffer from the start of the page, in bytes.
    pub offset: AtomicU64,
    /// Size of the buffer, in bytes.
    pub size: AtomicU64,
}

impl RingWords {
    const fn new() -> Self {
        let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { head, tail, offset: AtomicU64::new(0), size: AtomicU64::new(0) }
    }
}

impl Default for UserPage {
    fn default() -> Self {
        Self::new()
    }
}

impl UserPage {
    /// Creates a page without an event. In the thread, [`read`](Self::read) returns `None`, so the thread uses a system
    /// call instead.
    pub const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            compat_version: AtomicU32::new(0),
            lock: AtomicU32::new(0),
            index: AtomicU32::new(0),
            offset: AtomicU64::new(0),
            time_enabled: AtomicU64::new(0),
            time_running: AtomicU64::new(0),
            capabilities: AtomicU64::new(0),
            pmc_width: AtomicU16::new(0),
            time_shift: AtomicU16::new(0),
            time_mult: AtomicU32::new(0),
            time_offset: AtomicU64::new(0),
            time_zero: AtomicU64::new(0),
            size: AtomicU32::new(0),
            reserved_1: AtomicU32::new(0),
            time_cycles: AtomicU64::new(0),
            time_mask: AtomicU64::new(0),
            reserved: [const { AtomicU64::new(0) }; 116],
            data: RingWords::new(),
            aux: RingWords::new(),
            rest: [const { AtomicU64::new(0) }; 376],
        }
    }

    /// Writes into the page the data with which the user thread reads the event by RDPMC. The closure `view` returns
    /// the data, usually from [`CounterSession::user_view`](pmu_core::CounterSession::user_view). If `view` fails, the
    /// page [hides](Self::hide) the event.
    ///
    /// With a `clock`, the thread can also compute how long the event has been enabled and running by now. `view` must
    /// return times of this clock. Without a `clock`, the thread gets the times that `view` returned.
    ///
    /// Both a task and an interrupt handler may call this for the same page. If the handler interrupted a `publish` of
    /// the page, the handler's call writes nothing. The interrupted `publish` then calls `view` again, and writes the
    /// page again.
    ///
    /// ```
    /// use pmu::core::error::CounterError;
    /// use pmu::core::access::CounterIndex;
    /// use pmu::core::reading::UserView;
    /// use pmu::user::UserPage;
    /// let page = UserPage::new();
    /// // The event had 1,000 when its counter, of 48 bits, stood at 40.
    /// let view = UserView {
    ///     index: Some(CounterIndex::new(2)),
    ///     readable: true,
    ///     width: 49,
    ///     offset: 960,
    ///     is_enabled: true,
    ///     enabled: 0,
    ///     running: 0,
    ///     now: 0,
    /// };
    /// page.publish(None, || Ok::<_, CounterError>(view))?;
    /// assert_eq!(page.read(|index| if index == 2 { 65 } else { 0 }), Some(1_025));
    /// page.hide();
    /// assert_eq!(page.read(|_| unreachable!("the event is hidden")), None);
    /// # Ok::<(), CounterError>(())
    /// ```
    ///
    /// # Context
    /// Task, interrupt or NMI, on the processor on which the thread runs next. Two processors must not publish the same
    /// page at the same time.
    ///
    /// # Errors
    /// The error of `view`. If a handler's call interrupted a `publish` of the same page, the handler's call returns
    /// `Ok`.
    pub fn publish<E>(
        &self,
        clock: Option<&UserClock>,
        mut view: impl FnMut() -> Result<UserView, E>,
    ) -> Result<(), E> {
        if self.lock.fetch_or(1, Acquire) & 1 != 0 {
            // This handler interrupted a call, which finds that the lock has changed, and asks for the view again.
            self.lock.fetch_add(2, Relaxed);
            return Ok(());
        }
        loop {
            let writing = self.lock.load(Relaxed);
            // A reader that sees any of what follows sees the odd sequence too.
            fence(Release);
            let view = view();
            self.write(clock, view.as_ref().ok());
            let written = writing.wrapping_add(1);
            if self.lock.compare_exchange(writing, written, Release, Relaxed).is_ok() {
                return view.map(|_| ());
            }
        }
    }

    /// Removes the data for RDPMC from the page. [`read`](Self::read) then returns `None`, and the thread reads the
    /// event by a system call.
    ///
    /// # Context
    /// Task, on the processor on which the thread runs next.
    pub fn hide(&self) {
        // The error is the closure's own: a page without a view has no data.
        let _ = self.publish(None, || Err(()));
    }

    fn write(&self, clock: Option<&UserClock>, view: Option<&UserView>) {
        let is_readable = view.is_some_and(|view| view.readable);
        // As in Linux, 0 stands for no counter.
        let index = view.and_then(|view| view.index).map_or(0, |index| index.get().wrapping_add(1));
        // The thread adds the time since the view to the enabled time, and with a counter to the running time, too.
        let has_time = clock.is_some() && view.is_some_and(|view| view.is_enabled && view.readable);
        let zero = clock.map_or(0, |clock| clock.zero);
        self.index.store(index, Relaxed);
        self.offset.store(view.map_or(0, |view| view.offset), Relaxed);
        self.time_enabled.store(view.map_or(0, |view| view.enabled), Relaxed);
        self.time_running.store(view.map_or(0, |view| view.running), Relaxed);
        let capabilities = BIT_0_IS_DEPRECATED
            | if is_readable { USER_READS } else { 0 }
            | if has_time { USER_TIME } else { 0 }
            | if clock.is_some() { USER_TIME_ZERO } else { 0 };
        self.capabilities.store(capabilities, Relaxed);
        self.pmc_width.store(view.map_or(0, |view| view.width as u16), Relaxed);
        self.time_shift.store(clock.map_or(0, |clock| clock.shift), Relaxed);
        self.time_mult.store(clock.map_or(0, |clock| clock.mult), Relaxed);
        self.time_offset.store(zero.wrapping_sub(view.map_or(0, |view| view.now)), Relaxed);
        self.time_zero.store(zero, Relaxed);
        self.size.store(HEADER, Relaxed);
    }

    /// Reads the present count of the page's event. `rdpmc` executes RDPMC. The argument of `rdpmc` is the value for
    /// ECX; on Arm, it is the number of the counter that MRS reads, with 31 for the cycle counter.
    ///
    /// Returns `None` if the page [hides](Self::hide) the event, or if the kernel wrote to the page during each of 64
    /// attempts. The thread then reads the event by a system call.
    ///
    /// # Context
    /// User mode, on the thread to which the page belongs. A different thread must not call this: it may run on another
    /// processor, where RDPMC reads a different counter.
    #[inline]
    pub fn read(&self, rdpmc: impl FnMut(u32) -> u64) -> Option<u64> {
        // Without the TSC the times are not of now, and the compiler leaves them out.
        self.read_with_times(rdpmc, || 0).map(|count| count.value)
    }

    /// Reads the present count and the times of the page's event. `rdtsc` reads the counter of the kernel's
    /// [clock](UserClock), by RDTSC. If the kernel called [`publish`](Self::publish) without a clock, the returned
    /// times are the times of the last `publish`.
    ///
    /// ```
    /// use pmu::user::UserPage;
    /// /// Returns the count as if the event had never waited for a counter.
    /// fn scaled(page: &UserPage, rdpmc: fn(u32) -> u64, rdtsc: fn() -> u64) -> Option<u64> {
    ///     page.read_with_times(rdpmc, rdtsc)?.scaled()
    /// }
    /// # assert_eq!(scaled(&UserPage::new(), |_| 0, || 0), None);
    /// ```
    ///
    /// Returns `None` in the same cases as [`read`](Self::read).
    ///
    /// # Context
    /// User mode, on the thread to which the page belongs: see [`read`](Self::read).
    #[inline]
    pub fn read_with_times(
        &self,
        mut rdpmc: impl FnMut(u32) -> u64,
        mut rdtsc: impl FnMut() -> u64,
    ) -> Option<EventCount> {
        for _ in 0..ATTEMPTS {
            let before = self.lock.load(Acquire);
            let capabilities = self.capabilities.load(Relaxed);
            let index = self.index.load(Relaxed).checked_sub(1);
            let view = UserView {
                index: index.map(CounterIndex::new),
                readable: capabilities & USER_READS != 0,
                width: self.pmc_width.load(Relaxed).into(),
                offset: self.offset.load(Relaxed),
                is_enabled: capabilities & USER_TIME != 0,
                enabled: self.time_enabled.load(Relaxed),
                running: self.time_running.load(Relaxed),
                now: 0,
            };
            // No RDPMC for a value that would not be returned.
            let count = (before & 1 == 0 && view.readable).then(|| {
                let passed = if view.is_enabled { self.time_since(rdtsc()) } else { 0 };
                EventCount {
                    value: index.map_or(view.offset, |index| view.total(rdpmc(index))),
                    enabled: view.enabled.wrapping_add(passed),
                    running: view.running.wrapping_add(index.map_or(0, |_| passed)),
                }
            });
            // The reads above must not move behind the second look at the lock.
            fence(Acquire);
            if before & 1 == 0 && self.lock.load(Relaxed) == before {
                return count;
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Returns the time from the view to the time at which the TSC reads `tsc`.
    fn time_since(&self, tsc: u64) -> u64 {
        let (mult, shift) = (self.time_mult.load(Relaxed), self.time_shift.load(Relaxed));
        scaled(tsc, mult, shift).wrapping_add(self.time_offset.load(Relaxed))
    }
}

/// Clock that derives a kernel's time, in nanoseconds, from the TSC: the time is `zero` + ((TSC · `mult`) >> `shift`).
/// `perf_event_mmap_page` describes a clock in the same way.
///
/// The kernel must pass times of this clock to all operations on events. User mode can then compute an event's present
/// times from the [page](crate::user::UserPage) and the TSC.
///
/// The TSC must tick at a constant rate (CPUID leaf 80000007H, EDX bit 8). The TSC must also have the same value on all
/// processors on which a thread reads the page. Sources: SDM vol. 3B, "Invariant TSC"; APM vol. 3, appendix E. On Arm,
/// `CNTVCT_EL0` takes the place of the TSC, with the frequency of `CNTFRQ_EL0`.
///
/// ```
/// use pmu::user::UserClock;
/// // A TSC of 2.5 GHz, which read 5,000,000,000 when the kernel's clock was at 7 seconds.
/// let clock = UserClock::new(2_500_000_000, 5_000_000_000, 7_000_000_000).unwrap();
/// let second_later = clock.time(7_500_000_000);
/// assert!(second_later.abs_diff(8_000_000_000) <= 4, "{second_later}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UserClock {
    /// `time_mult`: nanoseconds per 2^`shift` ticks of the TSC.
    pub mult: u32,
    /// `time_shift`: at most 31.
    pub shift: u16,
    /// `time_zero`: time at which the TSC was 0, modulo 2⁶⁴.
    pub zero: u64,
}

impl UserClock {
    /// Creates a clock from the TSC's frequency and one pair of readings. `tsc_hertz` is the frequency. When the TSC
    /// read `tsc`, the kernel's time was `now` nanoseconds. The clock is exact to 1 part in 2²⁹ for a TSC of 250 MHz to
    /// 4 GHz. Returns `None` if the frequency is 0 or above 2·10¹⁸ Hz.
    ///
    /// ```
    /// use pmu::user::UserClock;
    /// assert_eq!(UserClock::new(1_000_000_000, 0, 0).map(|clock| clock.time(123)), Some(123));
    /// assert_eq!(UserClock::new(0, 0, 0), None);
    /// ```
    pub const fn new(tsc_hertz: u64, tsc: u64, now: u64) -> Option<Self> {
        let mut shift = 31;
        loop {
            let mult = match (1_000_000_000_u64 << shift).checked_div(tsc_hertz) {
                None | Some(0) => return None,
                Some(mult) => mult,
            };
            // The greatest shift whose multiplier fits 32 bits is the most exact.
            if mult <= u32::MAX as u64 || shift == 0 {
                let clock = Self { mult: mult as u32, shift, zero: 0 };
                return Some(Self { zero: now.wrapping_sub(clock.time(tsc)), ..clock });
            }
            shift -= 1;
        }
    }

    /// Returns the time at which the TSC reads `tsc`.
    #[inline]
    pub const fn time(&self, tsc: u64) -> u64 {
        scaled(tsc, self.mult, self.shift).wrapping_add(self.zero)
    }
}

/// Returns `tsc * mult >> shift` modulo 2⁶⁴, in the steps that `linux/perf_event.h` gives for the page's fields.
#[inline]
pub(crate) const fn scaled(tsc: u64, mult: u32, shift: u16) -> u64 {
    let (shift, mult) = (shift as u32 & 63, mult as u64);
    // In two parts, as in Linux' header: the product of the whole TSC would overflow.
    let (quotient, rest) = (tsc >> shift, tsc & ((1 << shift) - 1));
    quotient.wrapping_mul(mult).wrapping_add(rest.wrapping_mul(mult) >> shift)
}
