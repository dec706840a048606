//! The world around the processors: time, the timer of the clocks, pages of user mode, and the number of the processor
//! that executes the test.

use core::any::Any;
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pmu::frame::PlainFrame;
use pmu::user::UserPage;
use pmu::{Kernel, SoftwareEvent};
use pmu_tests::linux_page::LinuxPage;

use crate::subsystem::{Errno, Perf};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1) };
    static THIS_PROCESSOR: Cell<usize> = const { Cell::new(0) };
    /// The time for which the timer of the clocks is set.
    static TIMER: Cell<Option<u64>> = const { Cell::new(None) };
    static PAGES: RefCell<BTreeMap<u64, &'static UserPage>> = RefCell::default();
    /// The kernel's static.
    static PERF: Cell<Option<&'static dyn Any>> = const { Cell::new(None) };
}

/// Linux' numbers of errors.
pub(crate) const ENOENT: Errno = Errno(2);
pub(crate) const EINVAL: Errno = Errno(22);
pub(crate) const ENOSPC: Errno = Errno(28);
pub(crate) const EOPNOTSUPP: Errno = Errno(95);

/// The physical address of the buffer of precise records, whose page follows that of the Debug Store area.
pub(crate) const PHYSICAL: u64 = 0x10_0000;

/// The address at which interrupts come.
pub(crate) const INTERRUPTED: u64 = 0x50_0000;

pub(crate) fn now() -> u64 {
    NOW.set(NOW.get() + 50); // Time passes in a handler, too.
    NOW.get()
}

pub(crate) fn this_processor() -> usize {
    THIS_PROCESSOR.get()
}

/// Lets another processor execute the test from now on.
pub(crate) fn go_to(processor: usize) {
    THIS_PROCESSOR.set(processor);
}

pub(crate) fn set_timer(at: Option<u64>) {
    TIMER.set(at);
}

pub(crate) fn page(tag: u64) -> Option<&'static UserPage> {
    PAGES.with_borrow(|pages| pages.get(&tag).copied())
}

/// Makes a subsystem that of the machine under test.
pub(crate) fn boot<K: Kernel>(perf: &'static Perf<K>) {
    PERF.set(Some(perf));
}

/// The subsystem of the machine under test.
pub(crate) fn perf<K: Kernel>() -> &'static Perf<K> {
    PERF.get().and_then(|perf| perf.downcast_ref()).unwrap()
}

/// Maps the page of the events with this tag.
pub(crate) fn map(tag: u64) -> &'static UserPage {
    let new = || &*Box::leak(Box::new(UserPage::new()));
    PAGES.with_borrow_mut(|pages| *pages.entry(tag).or_insert_with(new))
}

/// The abilities of a machine beside plain counts.
#[derive(Clone, Copy)]
pub(crate) struct Has {
    /// The most events that count instructions at a time.
    pub(crate) counters: usize,
    /// The number with which Linux refuses branches, if it does.
    pub(crate) branches: Result<(), Errno>,
    /// The number with which Linux refuses precise cycles, if it does.
    pub(crate) precise: Result<(), Errno>,
    /// The number with which Linux refuses a part of the slots without the slots, if the configuration stands for one.
    pub(crate) part: Result<(), Errno>,
}

impl Has {
    /// Every facility.
    pub(crate) const ALL: Self =
        Self { counters: 5, branches: Ok(()), precise: Ok(()), part: Err(EINVAL) };
}

/// A machine of any architecture, in the hands of a test.
pub(crate) trait System {
    type Kernel: Kernel;
    fn name(&self) -> String;
    fn has(&self) -> Has;
    fn perf(&self) -> &'static Perf<Self::Kernel>;
    /// User mode executes this many instructions, each of a cycle, after a branch from this address.
    fn work(&self, count: u64, branch: u64);
    fn lose_registers(&self);
    /// Reads a counter in user mode, by its number for the instruction.
    fn read_counter(&self, number: u32) -> u64;
    /// Nothing is left on the processor.
    fn end(self);

    /// Reads a count in user mode, by the program that the comments of Linux' header show.
    fn read_page(&self, page: &UserPage) -> Option<u64> {
        LinuxPage::of(page).read(|number| self.read_counter(number), || 0).map(|read| read.value)
    }

    /// Time passes.
    fn pass(&self, nanoseconds: u64) {
        NOW.set(NOW.get() + nanoseconds);
    }

    /// Reports a software event to the kernel, as having happened in user mode.
    fn happen_in_software(&self, what: SoftwareEvent) {
        self.perf().pmu.happened(what, &PlainFrame::new(INTERRUPTED, 0x33, 2, 0));
    }

    /// Lets time pass. The clock timer interrupts whenever it expires.
    fn pass_with_clocks(&self, nanoseconds: u64) {
        let end = NOW.get() + nanoseconds;
        while let Some(at) = TIMER.get().filter(|at| *at < end) {
            NOW.set(NOW.get().max(at));
            self.perf().pmu.clock_interrupt(&PlainFrame::new(INTERRUPTED, 0x33, 2, 0));
        }
        NOW.set(end);
    }

    fn suspend(&self) {
        self.perf().pmu.processor_suspended().unwrap();
        self.lose_registers();
        self.perf().pmu.processor_resumed().unwrap();
    }
}
