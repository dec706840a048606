//! The duties of a kernel.

use core::fmt;
use core::marker::PhantomData;

use pmu_core::access::RegisterBackend;
use pmu_core::branches::{Branch, BranchMemory};
use pmu_core::error::PlatformError;
use pmu_core::interval::Interval;
use pmu_core::thread::Tick;
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
use pmu_core::x86::NativeMsr;
use pmu_core::{CounterSet, Platform};

use crate::kernel::architecture::{Architecture, MachineOf, ProcessorOf};
use crate::kernel::sample::PmuSample;
use crate::per_processor::Processors;
use crate::user::{UserClock, UserPage};

/// Functions that a kernel provides for [`Pmu`](crate::Pmu): register access, processor number, pinning, the mask of
/// the performance interrupt, and an interrupt to another processor. The requirements of one architecture alone are in
/// its own trait: see [`X86Kernel`](crate::X86Kernel).
///
/// # For implementers
/// - `registers`, `this_processor`, `set_interrupt_masked`, `sampled`, `now`, `user_page`, `user_clock` and
///   `branch_traced` are called in task, interrupt and NMI context. These functions take no lock that the interrupted
///   code may hold.
/// - `interrupt` is called in task context, and in the handler of the interrupt that `interrupt` sends.
/// - The other functions are called in task context. `pinned`, `call_stack`, `set_clock_timer`, `start_timer` and
///   `stop_timer` are also called in the handlers that call [`serve_call`](crate::Pmu::serve_call),
///   [`tick`](crate::Pmu::tick) and [`switch`](crate::Pmu::switch).
///
/// Example of a kernel in x2APIC mode, which keeps preemption off in interrupt handlers:
///
/// ```
/// use pmu::{Kernel, PmuSample};
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::*;
/// # use Registers as NativeMsr;
/// # macro_rules! log_in_nmi { ($($text:tt)*) => { println!($($text)*) } }
/// # fn native_msr<K>() -> Registers { Registers }
/// # fn rdmsr(_: u32) -> u64 { 0 }
/// # fn wrmsr(_: u32, _: u64) {}
/// # fn preemption_off() {}
/// # fn preemption_on() {}
///
/// const CALL_VECTOR: u64 = 0xF0; // its handler calls `Pmu::serve_call`
///
/// struct Bare;
///
/// // SAFETY: (1) a processor's number is that of its local APIC, which does not change; (2) with preemption off, the
/// // task stays on its processor, and no other task runs there; (3) all of it runs at privilege level 0.
/// unsafe impl Kernel for Bare {
///     type Registers = NativeMsr;
///     type Architecture = pmu::X86;
///     fn registers() -> NativeMsr {
///         native_msr::<Self>()
///     }
///     fn this_processor() -> usize {
///         rdmsr(0x802) as usize // x2APIC ID
///     }
///     fn pinned<R>(act: impl FnOnce() -> R) -> R {
///         preemption_off();
///         let result = act();
///         preemption_on();
///         result
///     }
///     fn set_interrupt_masked(masked: bool) {
///         wrmsr(0x834, u64::from(masked) << 16 | 0x400); // LVTPC: an NMI
///     }
///     fn interrupt(processor: usize) {
///         wrmsr(0x830, (processor as u64) << 32 | CALL_VECTOR);
///     }
///     fn sampled(sample: &PmuSample<'_, Self>) {
///         log_in_nmi!("{:?} at {:x?}", sample.event, sample.address());
///     }
/// }
/// ```
///
/// # Safety
/// - [`this_processor`](Self::this_processor) returns the number of the processor that executes the call, in every
///   context. A number always means one and the same processor.
/// - [`pinned`](Self::pinned) runs `act` on one processor, and no other task runs on that processor until `act`
///   returns.
/// - A handler that calls [`Pmu::interrupt`](crate::Pmu::interrupt), [`Pmu::serve_call`](crate::Pmu::serve_call),
///   [`Pmu::tick`](crate::Pmu::tick) or [`Pmu::switch`](crate::Pmu::switch) stays on its processor during the call, and
///   no other task runs on that processor during the call.
/// - If the kernel calls `native_msr` (feature `native`), the kernel meets the requirements of `NativeMsr::new`: all of
///   its code runs at privilege level 0, and its #GP handler does not resume the code at the next instruction.
/// - If [`Architecture`](Self::Architecture) has [`PreciseRecords`](crate::facilities::PreciseRecords) or
///   [`BranchTraces`](crate::facilities::BranchTraces), the kernel meets the requirements in the type's Safety section.
///
/// Wrong: `pinned` leaves preemption on, so another task may use the processor's session at the same time.
///
/// ```
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::*;
/// # use pmu::Kernel;
/// struct Careless;
/// // SAFETY: not given. The scheduler may run another task in the middle of `act`.
/// unsafe impl Kernel for Careless {
///     fn pinned<R>(act: impl FnOnce() -> R) -> R {
///         act()
///     }
/// #     type Registers = Registers;
/// #     type Architecture = pmu::X86;
/// #     fn registers() -> Registers { Registers }
/// #     fn this_processor() -> usize { 0 }
/// #     fn set_interrupt_masked(_: bool) {}
/// #     fn interrupt(_: usize) {}
/// }
/// ```
pub unsafe trait Kernel: Sized + 'static {
    /// Backend that accesses the processor's registers:
    /// [`NativeMsr`](https://docs.rs/pmu-core/latest/pmu_core/x86/struct.NativeMsr.html) (feature `native`), or a type of
    /// the kernel.
    type Registers: RegisterBackend + Send;

    /// The kernel's processors, and the hardware beside their counters that its events may ask for:
    /// [`X86<()>`](crate::X86) for the counters alone. Other hardware is not linked.
    type Architecture: Architecture;

    /// The timer tick, in which the kernel calls [`Pmu::tick`](crate::Pmu::tick), and the limit on an event's samples.
    /// The default is a tick of 4 ms, and at most 100,000 samples per second, as in Linux.
    const TICK: Tick = Tick::new(250, 100_000);

    /// Tells whether threads read their events in user mode, from pages that [`user_page`](Self::user_page) returns.
    const USER_PAGES: bool = false;

    /// Tells whether the kernel has a timer for the samples of clocks, which are
    /// [software events](pmu_core::SoftwareEvent::is_clock). It also has a clock, [`now`](Self::now).
    const CLOCK_TIMER: bool = false;

    /// Returns the backend that accesses the registers of the processor that executes the call.
    fn registers() -> Self::Registers;

    /// Returns the number of the processor that executes the call, from 0.
    fn this_processor() -> usize;

    /// Runs `act` with preemption off, so that the task stays on its processor and no other task runs there. Calls may
    /// be nested. Interrupts may stay on.
    ///
    /// A cooperative kernel has no preemption to turn off. But `act` contains the functions that a caller passes to
    /// [`count`](crate::Pmu::count), [`with`](crate::Pmu::with) or [`lend`](crate::Pmu::lend), and such a function may
    /// wait for another task. So `pinned` counts its calls per processor, and the scheduler does not switch while the
    /// number is not 0. To turn interrupts off is not enough.
    fn pinned<R>(act: impl FnOnce() -> R) -> R;

    /// Masks or unmasks the performance interrupt of the processor that executes the call, as
    /// [`Platform`](pmu_core::Platform) says. On x86, the function writes the LVT entry for performance counters
    /// (LVTPC), with the kernel's vector or as an NMI. [`LvtEntry`](crate::apic::LvtEntry) is the entry's value. A
    /// kernel without its own code for the local APIC writes it by [`NativeApic`](crate::apic::NativeApic).
    ///
    /// After [`Pmu::interrupt`](crate::Pmu::interrupt), the kernel's handler ends an interrupt by a vector: it writes
    /// EOI. An NMI needs no end.
    ///
    /// ```
    /// use pmu::apic::{ApicRegisters, Delivery, LvtEntry, NativeApic};
    /// use pmu::core::WriteOnce;
    /// use pmu::core::access::RegisterBackend;
    /// const DELIVERY: Delivery = match Delivery::vector(0xE1) {
    ///     Ok(delivery) => delivery,
    ///     Err(_) => panic!("a vector of an exception"),
    /// };
    ///
    /// /// The function of a kernel that finds its local APIC at boot, in xAPIC or in x2APIC mode.
    /// fn set_interrupt_masked<M: RegisterBackend>(apic: &WriteOnce<NativeApic<M>>, masked: bool) {
    ///     if let Some(apic) = apic.get() {
    ///         apic.write_performance_entry(LvtEntry::new(DELIVERY, masked));
    ///     }
    /// }
    /// ```
    fn set_interrupt_masked(masked: bool);

    /// Sends an interrupt to another processor, and does not wait until the interrupt is handled. (The local APIC's two
    /// writes in xAPIC mode are not to be interrupted by another sender.) The interrupt's
    /// handler calls [`Pmu::serve_call`](crate::Pmu::serve_call).
    fn interrupt(processor: usize);

    /// Takes a sample: of an event that the kernel opened ([`open`](crate::Pmu::open),
    /// [`thread_event`](crate::Pmu::thread_event)), or of a profiles' source, which [`PmuSample::source`] tells. A
    /// [precise](pmu_core::Event::precise) event has one for each record that waited in memory. The
    /// [tag](pmu_core::Event::tagged) tells the kernel's events apart; that of a source is an arbitrary number. The
    /// default implementation drops the sample; profiles have counted it already.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Kernel, PmuSample};
    ///
    /// /// The function of a kernel that prints the samples of its own events.
    /// fn sampled<K: Kernel>(sample: &PmuSample<'_, K>) {
    ///     if sample.source().is_some() {
    ///         return;
    ///     }
    ///     println!("event {} at {:x?}", sample.tag, sample.address());
    ///     for branch in sample.branches() {
    ///         println!("after a branch from {:#x}", branch.from);
    ///     }
    /// }
    /// # let _ = sampled::<MyKernel>;
    /// ```
    ///
    /// # Context
    /// - With a [frame](PmuSample::frame): [`Pmu::interrupt`](crate::Pmu::interrupt), which may be an NMI's,
    ///   [`happened`](crate::Pmu::happened) and [`clock_interrupt`](crate::Pmu::clock_interrupt).
    /// - Without a frame: [`switch`](crate::Pmu::switch), [`with_thread`](crate::Pmu::with_thread),
    ///   [`report_samples`](crate::Pmu::report_samples), [`set_period`](crate::Pmu::set_period),
    ///   [`tick`](crate::Pmu::tick), [`lend`](crate::Pmu::lend) and
    ///   [`processor_suspended`](crate::Pmu::processor_suspended). These do not report samples of profiles' sources.
    ///
    /// An NMI may interrupt a call, and call the function itself. If the NMI interrupts a call that reports samples,
    /// that call may report the samples of the NMI in its place: without a frame, and not to profiles.
    ///
    /// # For implementers
    /// The function is wait-free and short, as the handler of an NMI. Of the [`Pmu`](crate::Pmu), it calls only
    /// [`sample_read`](crate::Pmu::sample_read), if the sample has a frame,
    /// [`stop_reporting`](crate::Pmu::stop_reporting) and [`events_of`](crate::Pmu::events_of).
    #[inline]
    fn sampled(sample: &PmuSample<'_, Self>) {
        let _ = sample;
    }

    /// Returns the physical address of memory of the `Pmu`'s static, which begins at `first` and has a size of `bytes`,
    /// if the memory is physically contiguous. Only architectural PEBS needs the address: without it, a processor with
    /// architectural PEBS has no [`PreciseRecords`](crate::facilities::PreciseRecords). The default implementation
    /// returns `None`.
    ///
    /// # Context
    /// Task, pinned.
    ///
    /// # For implementers
    /// The processor writes records to the physical address. So a result other than `None` must be the address of the
    /// first byte, and the memory must be contiguous and stay where it is.
    fn physical_address(first: *const (), bytes: usize) -> Option<u64> {
        let _ = (first, bytes);
        None
    }

    /// Takes a branch that the executing processor [traced](crate::Pmu::trace_branches). The default implementation
    /// drops it.
    ///
    /// # Context
    /// Task, pinned, and wherever the kernel calls [`Pmu::interrupt`](crate::Pmu::interrupt), including NMI. No call on
    /// a processor interrupts another one there.
    ///
    /// # For implementers
    /// The function is wait-free and short: an interrupt calls it for as many branches as the buffer has. It calls no
    /// operation of the [`Pmu`](crate::Pmu). Its own branches are not traced.
    fn branch_traced(branch: Branch) {
        let _ = branch;
    }

    /// Returns the page from which a thread reads an event that permits [RDPMC in user
    /// mode](pmu_core::Event::with_user_reads), by the event's tag, which no other such event has. [`Pmu`](crate::Pmu)
    /// publishes the page whenever the event's counter may have moved, and hides it when the event leaves the
    /// processor. The kernel maps the page, and sets `CR4.PCE`, or bits of `PMUSERENR_EL0`: see [`user`](crate::user).
    /// The function is called if [`USER_PAGES`](Self::USER_PAGES) is set.
    ///
    /// # Context
    /// Any context, including NMI.
    fn user_page(tag: u64) -> Option<&'static UserPage> {
        let _ = tag;
        None
    }

    /// Returns the memory that keeps a thread's [call stack](pmu_core::branches::BranchFilter::call_stack) while the
    /// thread does not run, by the tag of an event of the thread whose samples have the call stack. So the call stack
    /// follows the thread, also to another processor, as [`BranchMemory::set_call_stacks`] says. With `None`, the
    /// default, and for an event of the processor, the call stack begins anew at each [`switch`](crate::Pmu::switch).
    /// The function is called if the kernel's [`Facilities`](crate::facilities::Facilities) have
    /// [`BranchRecords`](crate::facilities::BranchRecords).
    ///
    /// # For implementers
    /// Each thread has a memory of its own, which its events may share. No event of another thread has their tags; what
    /// a thread [inherits](crate::ThreadEvent::inherit) has tags of its own, or no memory. Otherwise a sample may have
    /// the other thread's call stack. A memory need not be cleared before it is a new thread's, and stays the memory of
    /// a thread that is switched out.
    ///
    /// # Context
    /// Task, pinned, or the interrupt in which the scheduler switches.
    fn call_stack(tag: u64) -> Option<&'static BranchMemory> {
        let _ = tag;
        None
    }

    /// Sets a timer of this processor, for one interrupt at the time `at` of [`now`](Self::now), or at once if that has
    /// passed. Its handler calls [`Pmu::clock_interrupt`](crate::Pmu::clock_interrupt). A time that was set before is
    /// forgotten; `None` sets none. The function is called if [`CLOCK_TIMER`](Self::CLOCK_TIMER) is set.
    ///
    /// # Context
    /// Task, pinned, or the timer's interrupt.
    fn set_clock_timer(at: Option<u64>) {
        let _ = at;
    }

    /// Returns the clock by which threads convert the time-stamp counter into the time of [`now`](Self::now); `None`,
    /// the default: their pages have no times.
    fn user_clock() -> Option<UserClock> {
        None
    }

    /// Returns whether the processor that executes the call is handling an interrupt. If the result is `true`, profiles
    /// cannot be started or stopped. The default implementation returns `false`, for a kernel whose handlers never
    /// start or stop profiles.
    fn in_interrupt() -> bool {
        false
    }

    /// Returns whether to keep waiting for another processor, or for another task that starts or stops a profile.
    /// `turns` is the number of iterations of the waiting loop so far. The default implementation gives up after
    /// 10,000,000 iterations.
    fn keep_waiting(turns: u64) -> bool {
        turns < 10_000_000
    }

    /// Returns the present time of the kernel's clock, in nanoseconds. With this clock, `Pmu` measures for how long an
    /// event was enabled, and for how long it was on a counter, and keeps an event's
    /// [frequency](pmu_core::Event::at_frequency). The default implementation, for a kernel without a clock, returns 0:
    /// the period of an event with a frequency then follows its count per [`TICK`](Self::TICK) alone.
    ///
    /// # Context
    /// Any context, including NMI.
    fn now() -> u64 {
        0
    }

    /// Detects the machine from the first processor that comes up. The default implementation is that of the
    /// [`Architecture`](Self::Architecture). On a Zen processor, the profile sources of [`X86`](crate::X86) count the
    /// events in their names. A kernel that needs the sources exactly as in Windows calls
    /// [`Machine::detect`](crate::Machine::detect).
    fn detect(first: &ProcessorOf<Self>) -> MachineOf<Self> {
        Self::Architecture::detect(first)
    }

    /// Returns the counters that `Pmu` takes ownership of. The default implementation returns all counters.
    fn counters() -> CounterSet {
        CounterSet::ALL
    }

    /// Starts the interrupts of this processor's profile timer, or changes their interval: see
    /// [`ProfileTimer`](crate::apic::ProfileTimer). The default implementation, for a kernel without a profile timer,
    /// returns an error.
    ///
    /// # Errors
    /// There is no profile timer, or the timer cannot run at the interval.
    fn start_timer(interval: Interval) -> Result<(), PlatformError> {
        let _ = interval;
        Err(PlatformError::NoTimer)
    }

    /// Stops the profile timer's interrupts.
    fn stop_timer() {}
}

/// Returns the backend that executes RDMSR, WRMSR and RDPMC, for a kernel's [`registers`](Kernel::registers). What
/// [`NativeMsr::new`] requires is part of what the kernel promises as a [`Kernel`].
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
#[inline]
pub fn native_msr<K: Kernel<Registers = NativeMsr>>() -> NativeMsr {
    // SAFETY: by the promise of `Kernel`.
    unsafe { NativeMsr::new() }
}

/// A kernel's functions as a [`Platform`] and as [`Processors`]. A kernel passes this value to drivers of hardware that
/// [`Pmu`](crate::Pmu) does not drive.
///
/// ```
/// use pmu::processors::Processors;
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::*;
/// assert_eq!(pmu::processors::KernelHooks::<MyKernel>::this_processor(), 0); // by the kernel
/// ```
pub struct KernelHooks<K>(PhantomData<fn() -> K>);

impl<K> KernelHooks<K> {
    /// Creates the value.
    #[inline]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<K> Default for KernelHooks<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> fmt::Debug for KernelHooks<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KernelHooks")
    }
}

// SAFETY: (1) the number is right in every context, by the promise of `Kernel`; (2) `Pmu` calls `PerProcessor::with`
// in `Kernel::pinned`, or in a handler, where no task moves or comes in between, by the same promise.
unsafe impl<K: Kernel> Processors for KernelHooks<K> {
    fn this_processor() -> usize {
        K::this_processor()
    }
}

impl<K: Kernel> Platform for KernelHooks<K> {
    #[inline]
    fn unmask_performance_interrupt(&self) {
        K::set_interrupt_masked(false);
    }

    fn mask_performance_interrupt(&self) {
        K::set_interrupt_masked(true);
    }

    #[inline]
    fn is_level_interrupt(&self) -> bool {
        K::Architecture::LEVEL_INTERRUPT
    }

    fn unmask_facility_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
        // So that the entry for counters, which the kernel may not have written yet, has its delivery. The session
        // unmasks it once it has programmed the counters.
        K::set_interrupt_masked(true);
        K::Architecture::unmask_facility_interrupt(K::registers(), entry)
    }

    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        K::start_timer(interval)
    }

    fn stop_profile_timer(&self) {
        K::stop_timer();
    }
}
