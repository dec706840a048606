//! The page from which a thread learns how to read its event with RDPMC in user mode. The kernel shares this page with
//! the thread. The page has the layout of Linux' `perf_event_mmap_page`.
//!
//! # What the kernel sets
//! - `CR4.PCE`, bit 8 (SDM vol. 3A, "Control Registers"; APM vol. 2, "CR4 Register"). The bit is set on a processor
//!   while the processor runs a thread with such a page. While the bit is clear, RDPMC above privilege level 0 raises
//!   #GP. While the bit is set, the thread can read *every* counter of the processor, except counters that RDPMC user
//!   disable hides.
//! - RDPMC user disable, if [`CounterUnit::has_user_rdpmc_control`](pmu_core::CounterUnit) returns `true` for the
//!   processor (SDM vol. 3B, "RDPMC User Disable", CPUID leaf 23H, sub-leaf 0, EBX). Above privilege level 0, RDPMC
//!   then returns 0 for a running counter, unless the counter's event was opened
//!   [`with_user_rdpmc`](pmu_core::Event::with_user_rdpmc). A stopped counter keeps its last value, which user mode can
//!   read.
//! - A read-only mapping of the page in the thread's address space.
//!
//! # When the kernel publishes
//! A page is valid for one thread on one processor, while the event stays on the same counter. In each of the following
//! cases the kernel calls [`publish`](UserPage::publish) or [`hide`](UserPage::hide) before the thread next executes in
//! user mode:
//! - after it opened, started, stopped or closed the event;
//! - after it started *another* event, or called [`rotate`](pmu_core::CounterSession::rotate): either call may move the
//!   event to another counter;
//! - after [`reprogram`](pmu_core::CounterSession::reprogram), [`apply_period`](pmu_core::CounterSession::apply_period)
//!   and the end of a [window](pmu_core::lending::CounterWindow): the counter may start again from another value;
//! - after [`add_count`](pmu_core::CounterSession::add_count): the page does not include the added count;
//! - after every switch to the thread, on any processor, even if the event did not move. The thread may have been
//!   switched out while it was reading the page. A switch away from the thread requires no call, because the thread
//!   does not read while it does not run;
//! - in the handler, after [`service`](pmu_core::service()) serviced an interrupt of the processor's counters:
//!   `service` may have reloaded the event's counter;
//! - at least once per half of the counter's range: with a counter of 48 bits, once per 2⁴⁷ events. It is enough to
//!   call `publish` at every timer tick.
//!
//! If a thread is switched out while it reads the page, it may execute RDPMC after it is switched in again. On a hybrid
//! machine, the thread may then run on a processor without this counter, and RDPMC raises #GP. RDPMC also raises #GP if
//! the kernel hid the page and cleared CR4.PCE. The kernel's #GP handler must let RDPMC return 0. The thread then finds
//! that the page's sequence has changed, and reads the page again.

mod clock;
mod page;

pub use clock::UserClock;
pub use page::{RingWords, UserPage};
