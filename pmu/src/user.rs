//! User mode's reading of an event by RDPMC: the page that a kernel shares with a thread.
//!
//! # What the kernel sets
//! - `CR4.PCE`, bit 8, on each processor (SDM vol. 3A, "Control Registers"; APM vol. 2, "CR4 Register"), while a thread
//!   that has such a page runs. Without the bit, RDPMC above privilege level 0 raises #GP. The bit opens *every*
//!   counter of the processor to that thread, except counters that RDPMC user disable hides.
//! - RDPMC user disable, if [`CounterUnit::has_user_rdpmc_control`](pmu_core::CounterUnit) returns `true` for the
//!   processor (SDM vol. 3B, "RDPMC User Disable", CPUID leaf 23H, sub-leaf 0, EBX). Counters that run for sources and
//!   events then read as 0 above privilege level 0, except for events that were opened
//!   [`with_user_rdpmc`](pmu_core::Event::with_user_rdpmc). A stopped counter keeps its last value, which user mode can
//!   read.
//! - The page, mapped for the thread read-only.
//!
//! # When the kernel publishes
//! A page is valid for one thread on one processor, while the event stays on the same counter. In each of the following
//! cases the kernel calls [`publish`](UserPage::publish) or [`hide`](UserPage::hide) before the thread next executes in
//! user mode:
//! - after it started, stopped or closed the event;
//! - after it started *another* event, or called [`rotate`](pmu_core::CounterSession::rotate): either call may move the
//!   event to another counter;
//! - after [`reprogram`](pmu_core::CounterSession::reprogram): the counter may start again from another value;
//! - after every switch to the thread, on any processor, even if the event did not move: the thread may have been in
//!   the middle of a read. A switch away from the thread requires no call, because the thread does not read while it
//!   does not run;
//! - at least once within 2ʷⁱᵈᵗʰ events. The width is that of the [`UserView`]; on old processors
//!   the width is 31, and 2³¹ cycles pass in about half a second. A call at every timer tick is often enough. The
//!   handler of the counter's interrupt need not publish.
//!
//! A thread in the middle of a read executes RDPMC once more. That RDPMC raises #GP on a processor of a hybrid machine
//! that lacks the counter, and on a processor on which the kernel hid the page and cleared CR4.PCE. In its #GP handler
//! the kernel makes the instruction return 0, and the thread then finds that the page's sequence has changed.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use pmu_core::{PmcIndex, UserView};

/// Number of attempts of [`UserPage::read`], after which the thread asks the kernel.
const ATTEMPTS: u32 = 64;

/// Page that a kernel shares with a user thread, so that the thread can read an event without a system call.
///
/// The page is a sequence lock, like Linux' `perf_event_mmap_page`: the sequence is odd while the kernel writes. In a
/// page of zeros the event is hidden: the thread then reads the event by a system call. The layout is fixed:
///
/// - at 0, 32 bits: the sequence;
/// - at 4, 32 bits: the index for RDPMC plus 1, or 0 if the event is hidden;
/// - at 8, 32 bits: the counter's width;
/// - at 16, 64 bits: the number of events counted when the page was written;
/// - at 24, 64 bits: the counter's value when the page was written.
///
/// # Examples
/// The kernel, whenever the [module](self)'s documentation says so:
///
/// ```
/// use pmu::core::{CounterSession, EventId, EventSource, MsrBackend, Platform};
/// use pmu::user::UserPage;
///
/// fn publish<S: EventSource, M: MsrBackend, P: Platform>(
///     counters: &CounterSession<'_, S, M, P>,
///     event: EventId,
///     page: &UserPage,
/// ) {
///     match counters.user_view(event) {
///         Ok(view) => page.publish(&view),
///         Err(_) => page.hide(), // on no counter at present
///     }
/// }
/// ```
///
/// The thread:
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
#[derive(Debug, Default)]
#[repr(C)]
pub struct UserPage {
    sequence: AtomicU32,
    index: AtomicU32,
    width: AtomicU32,
    reserved: AtomicU32,
    counted: AtomicU64,
    counted_to: AtomicU64,
}

impl UserPage {
    /// Creates a hidden page.
    pub const fn new() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            index: AtomicU32::new(0),
            width: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            counted: AtomicU64::new(0),
            counted_to: AtomicU64::new(0),
        }
    }

    /// Publishes the event's present counter and count, so that the thread can read the event by RDPMC.
    ///
    /// # Context
    /// The kernel's task context, on the processor on which the thread then runs. For each page, only one call runs at
    /// a time.
    ///
    /// ```
    /// use pmu::core::{PmcIndex, UserView};
    /// use pmu::user::UserPage;
    /// let page = UserPage::new();
    /// // The event had 1,000 when its counter, of which 47 bits count on, stood at 40.
    /// page.publish(&UserView { index: PmcIndex::new(2), width: 47, counted: 1_000, counted_to: 40 });
    /// assert_eq!(page.read(|index| if index == 2 { 65 } else { 0 }), Some(1_025));
    /// page.hide();
    /// assert_eq!(page.read(|_| unreachable!("the event is on no counter")), None);
    /// ```
    pub fn publish(&self, view: &UserView) {
        self.write(view.index.get().wrapping_add(1), view);
    }

    /// Hides the event, which has no counter at present. [`read`](Self::read) then returns `None`, and the thread asks
    /// the kernel.
    ///
    /// # Context
    /// The same context as that of [`publish`](Self::publish).
    pub fn hide(&self) {
        let view = UserView { index: PmcIndex::new(0), width: 0, counted: 0, counted_to: 0 };
        self.write(0, &view);
    }

    fn write(&self, index: u32, view: &UserView) {
        let sequence = self.sequence.load(Relaxed);
        self.sequence.store(sequence | 1, Relaxed);
        // A reader that sees any of what follows sees the odd sequence too.
        fence(Release);
        self.index.store(index, Relaxed);
        self.width.store(view.width, Relaxed);
        self.counted.store(view.counted, Relaxed);
        self.counted_to.store(view.counted_to, Relaxed);
        self.sequence.store((sequence | 1).wrapping_add(1), Release);
    }

    /// Reads the present total of the event. `rdpmc` executes RDPMC with its argument in ECX.
    ///
    /// Returns `None` if the event is hidden, or if the kernel changed the page during each of several attempts. The
    /// thread then asks the kernel.
    ///
    /// # Context
    /// User mode, on the thread to which the page belongs. A thread on another processor would read a counter of that
    /// other processor.
    #[inline]
    pub fn read(&self, mut rdpmc: impl FnMut(u32) -> u64) -> Option<u64> {
        for _ in 0..ATTEMPTS {
            let before = self.sequence.load(Acquire);
            let index = self.index.load(Relaxed);
            let view = UserView {
                index: PmcIndex::new(index.wrapping_sub(1)),
                width: self.width.load(Relaxed),
                counted: self.counted.load(Relaxed),
                counted_to: self.counted_to.load(Relaxed),
            };
            // No RDPMC for a value that would not be returned.
            let total =
                (before & 1 == 0 && index != 0).then(|| view.total(rdpmc(view.index.get())));
            fence(Acquire);
            if before & 1 == 0 && self.sequence.load(Relaxed) == before {
                return total;
            }
            core::hint::spin_loop();
        }
        None
    }
}
