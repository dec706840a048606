//! The processors of kernels on x86, and what such a kernel provides beside the duties of every kernel.

use core::fmt;
use core::marker::PhantomData;

use pmu_core::msr::MsrBackend;
use pmu_core::shared_core::CoreThread;
use pmu_core::{CounterSet, Event, EventSelect, Platform, PlatformError, Snapshot};

use crate::kernel::architecture::Architecture;
use crate::kernel::facilities::Facilities;
use crate::local_apic::{ApicRegisters, Delivery, LocalApic, NoTimer};
use crate::machine::Machine;
use crate::native_apic::NativeApic;

/// Processors of Intel and AMD, and others with their counters. `F` is the hardware beside the counters that the
/// kernel's events may ask for: `()` for none, [`BranchRecords`](crate::BranchRecords), or a pair such as
/// `(BranchRecords, PreciseRecords<8192>)`. Other hardware is not linked.
///
/// `K` is what the kernel provides for x86 alone, an [`X86Kernel`]; `()` are the defaults.
///
/// The machine is found by [`Machine::detect_zen`]. A kernel that needs the profile sources exactly as in Windows
/// implements [`Kernel::detect`](crate::Kernel::detect).
pub struct X86<F = (), K = ()>(PhantomData<fn() -> (F, K)>);

impl<F, K> fmt::Debug for X86<F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("X86")
    }
}

impl<F: Facilities<Snapshot>, K: X86Kernel> Architecture for X86<F, K> {
    type Processor = Snapshot;
    type Machine = Machine;
    type Facilities = F;

    fn detect(first: &Snapshot) -> Machine {
        Machine::detect_zen(first)
    }

    fn unmask_extended_interrupt<M: MsrBackend>(msr: M, entry: u8) -> Result<(), PlatformError> {
        let apic = K::apic(msr).ok_or(PlatformError::NoExtendedEntry)?;
        LocalApic::new(apic, K::delivery(), NoTimer).unmask_extended_interrupt(entry)
    }

    fn shared_core() -> Option<CoreThread<'static>> {
        K::shared_core()
    }

    /// A part of a sample or of the issue slots has the select that Linux has for it, on no counter.
    fn perf_counters(machine: &Machine, select: EventSelect) -> Option<CounterSet> {
        let is_part = || Event::raw(select).on(CounterSet::NONE).is_part();
        (matches!(machine, Machine::Intel(_)) && is_part()).then_some(CounterSet::NONE)
    }
}

/// Functions that a kernel on x86 may provide beside its [`Kernel`](crate::Kernel), for hardware that few processors
/// have. A kernel for which the defaults are right names `()` in [`X86`]. Any other kernel names its own type.
///
/// # For implementers
/// `shared_core` is called in task, interrupt and NMI context, and takes no lock that the interrupted code may hold.
/// The other functions are called in task context.
///
/// ```
/// use pmu::apic::Delivery;
/// use pmu::{PreciseRecords, X86, X86Kernel};
/// struct MyKernel; // also a `Kernel`, whose `Architecture` this is:
/// type Processors = X86<PreciseRecords<8192>, MyKernel>;
///
/// impl X86Kernel for MyKernel {
///     fn delivery() -> Delivery {
///         const { Delivery::vector(0xE1) }.unwrap_or(Delivery::NON_MASKABLE)
///     }
/// }
/// # let _: Option<Processors> = None;
/// ```
pub trait X86Kernel: 'static {
    /// Returns how AMD's sampled ops and fetches interrupt: as the counters do, by the same handler. The default
    /// implementation selects an NMI.
    fn delivery() -> Delivery {
        Delivery::NON_MASKABLE
    }

    /// Returns the local APIC of the processor that executes the call. AMD's sampled ops and fetches interrupt through
    /// one of its [extended entries](ApicRegisters::read_extended_entry). The default implementation returns the local
    /// APIC in x2APIC mode, and `None` in xAPIC mode. The function is called on processors that declare IBS and an
    /// extended entry for it. On a virtual one that then lacks the registers, an access faults, as `msr` treats a
    /// fault.
    ///
    /// ```
    /// use pmu::X86Kernel;
    /// use pmu::apic::{ApicRegisters, NativeApic};
    /// use pmu::core::msr::MsrBackend;
    /// struct MyKernel;
    /// const APIC_PAGE: usize = 0xFFFF_FFFF_FEE0_0000;
    ///
    /// impl X86Kernel for MyKernel {
    ///     fn apic<M: MsrBackend>(msr: M) -> Option<impl ApicRegisters> {
    ///         // SAFETY: the kernel maps the page there for good, and puts every processor into the same mode.
    ///         unsafe { NativeApic::detect(msr, Some(APIC_PAGE)) }.ok()
    ///     }
    /// }
    /// ```
    fn apic<M: MsrBackend>(msr: M) -> Option<impl ApicRegisters> {
        // SAFETY: (1) no page is given; (2) the value is used for one operation at once.
        unsafe { NativeApic::detect(msr, None) }.ok()
    }

    /// Returns which of a core's two logical processors executes the call. Only a kernel for Intel's processors from
    /// Sandy Bridge to Haswell with hyper-threading implements this. On these processors, some events corrupt counters
    /// of the core's other logical processor, so [`Pmu`](crate::Pmu) schedules these events exclusively: see
    /// [`OnSharedCore`](pmu_core::shared_core::OnSharedCore). The result must never change on a processor. The default
    /// implementation returns `None`, which is right for all other processors.
    ///
    /// ```
    /// use pmu::core::shared_core::{CoreCounters, CoreThread};
    /// use pmu::core::WriteOnce;
    /// use pmu::intel::SiblingErratum;
    /// static CORES: [CoreCounters; 4] = [const { CoreCounters::new() }; 4];
    /// static ERRATUM: WriteOnce<Option<SiblingErratum>> = WriteOnce::new(); // `SiblingErratum::detect`
    ///
    /// /// Processors 0 and 1 are those of core 0.
    /// fn shared_core(this_processor: usize) -> Option<CoreThread<'static>> {
    ///     let core = CORES.get(this_processor / 2)?;
    ///     let is_second = this_processor % 2 == 1;
    ///     ERRATUM.get()?.map(|_| CoreThread::new(core, is_second, SiblingErratum::EVENTS))
    /// }
    /// # let _ = shared_core;
    /// ```
    fn shared_core() -> Option<CoreThread<'static>> {
        None
    }
}

impl X86Kernel for () {}
