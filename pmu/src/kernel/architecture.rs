//! The processors of a kernel, of any vendor: Arm's, x86's, and what a kernel on x86 provides beside its other duties.

use core::fmt;
use core::marker::PhantomData;

use pmu_arm::{Identification, Pmuv3};
use pmu_core::access::RegisterBackend;
use pmu_core::error::PlatformError;
use pmu_core::registers::EventSelect;
use pmu_core::shared_core::CoreThread;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, Event, EventSource, Platform};

use crate::kernel::facilities::Facilities;
use crate::kernel::required::Kernel;
use crate::local_apic::{ApicRegisters, Delivery, LocalApic, NoTimer};
use crate::machine::Machine;
use crate::native_apic::NativeApic;

/// The processors of a kernel, and the hardware beside their counters that the kernel's events may ask for:
/// [`X86`](crate::X86), [`Arm`], or a type of another vendor's crate.
///
/// # For implementers
/// The vendor's crate describes a processor's counters by a [`CounterUnit`](pmu_core::CounterUnit), and its profile
/// sources by an [`EventSource`]. Where registers are laid out otherwise than the unit can say, the vendor's
/// [`RegisterBackend`](pmu_core::access::RegisterBackend) translates them: a register's address is any number that the
/// unit and the backend agree on. A processor whose counters are those of x86 in all but the way to find them:
///
/// ```
/// use core::sync::atomic::AtomicU32;
/// use pmu::Architecture;
/// use pmu::core::{CounterUnit, EventSource};
/// use pmu::core::profile::{ProfileSources, SourceTable};
/// use pmu::core::registers::EventSelect;
/// # use pmu::core::profile::{ProfileSource, SourceIndex};
/// # static SOURCES: [ProfileSource; 1] = [ProfileSource::new(0, "ProfileTime", EventSelect::from_bits(0))];
/// # static INDEX: SourceIndex<4> = SourceIndex::new(&SOURCES);
/// # static TABLE: SourceTable = SourceTable::new(&SOURCES, &INDEX);
///
/// /// Counters and profile sources of the machine, as firmware describes them.
/// #[derive(Debug)]
/// struct Board(ProfileSources<[AtomicU32; 1]>);
///
/// // SAFETY: nothing changes the field, all processors are alike, and there are no opened events.
/// unsafe impl EventSource for Board {
///     type Processor = (); // all processors are alike
///     fn profile_sources(&self) -> &ProfileSources {
///         &self.0
///     }
///     fn table(&self) -> &'static SourceTable {
///         &TABLE
///     }
///     fn unit_of(&self, _: &()) -> CounterUnit {
///         *self.unit()
///     }
///     type Facility = ();
///     fn facility(&self) {}
/// }
///
/// enum Boards {}
///
/// impl Architecture for Boards {
///     type Processor = ();
///     type Machine = Board;
///     type Facilities = (); // counters alone
///     fn detect(_first: &()) -> Board {
///         Board(ProfileSources::new("Board", CounterUnit::NONE))
///     }
/// }
/// # let _ = Boards::detect(&());
/// ```
pub trait Architecture: 'static {
    /// Description of one processor, by which its counters and its other hardware are known. The kernel passes it to
    /// [`Pmu::processor_up`](crate::Pmu::processor_up).
    type Processor;

    /// The counters and profile sources of a machine. The [`Pmu`](crate::Pmu) itself has the sources that are added,
    /// the opened events, and the [shared cores](Self::shared_core): those of the machine are not asked for.
    type Machine: EventSource<Processor = Self::Processor, Facility = ()> + fmt::Debug + Send + Sync;

    /// The hardware beside the counters.
    type Facilities: Facilities<Self::Processor>;

    /// Set if the counters' interrupt is a level, active until the overflow is acknowledged. [`Pmu`](crate::Pmu) then
    /// masks an interrupt that it cannot serve at the moment: one that comes while its counters are lent, or a task
    /// programs or serves them. Otherwise, the interrupt would come again at once, and the task would never go on. Each
    /// service then unmasks it again. On x86, the interrupt is an edge.
    const LEVEL_INTERRUPT: bool = false;

    /// Detects the machine from the first processor that comes up. If several processors come up at the same time, each
    /// of them may call this, and one result stays.
    ///
    /// # Context
    /// Task.
    fn detect(first: &Self::Processor) -> Self::Machine;

    /// Unmasks the interrupt of a facility: see
    /// [`Platform::unmask_facility_interrupt`](pmu_core::Platform::unmask_facility_interrupt). The default
    /// implementation is for an architecture without such interrupts.
    ///
    /// # Errors
    /// Those of `Platform::unmask_facility_interrupt`.
    fn unmask_facility_interrupt<M: RegisterBackend>(
        msr: M,
        entry: u8,
    ) -> Result<(), PlatformError> {
        let _ = (msr, entry);
        Err(PlatformError::NoFacilityInterrupt)
    }

    /// Returns which of two logical processors that share counters executes the call: see
    /// [`X86Kernel::shared_core`](crate::X86Kernel::shared_core). The default implementation returns `None`.
    fn shared_core() -> Option<CoreThread<'static>> {
        None
    }

    /// Returns the counters for an event select of perf, if Linux gives this select another meaning on this machine
    /// than the processor does; otherwise `None`.
    ///
    /// # Context
    /// Any.
    fn perf_counters(machine: &Self::Machine, select: EventSelect) -> Option<CounterSet> {
        let _ = (machine, select);
        None
    }
}

/// Arm's processors with PMUv3, in AArch64 state. No hardware beside their counters is supported: `F` is `()`, or
/// [`SoftwareEvents`](crate::facilities::SoftwareEvents), or what another crate has for Arm.
///
/// The kernel's [`Registers`](Kernel::Registers) is an [`ArmRegisters`](pmu_arm::ArmRegisters) of the registers'
/// accesses, such as `NativeRegisters` (feature `native`). The counters' interrupt is a private peripheral interrupt:
/// [`set_interrupt_masked`](Kernel::set_interrupt_masked) disables or enables it at the interrupt controller.
///
/// Event counters of 32 bits are counted on by an interrupt per 2³¹ events. A kernel that prefers half as many counters
/// of 64 bits calls [`Pmuv3::detect_chained`] in [`Kernel::detect`].
///
/// ```
/// use pmu::arm::registers::Register;
/// use pmu::arm::{ArmRegisters, Identification, SystemRegisters, frame};
/// use pmu::core::access::AccessErrorKind;
/// use pmu::{Arm, Interrupted, Kernel, Pmu, PmuError};
/// # #[derive(Clone, Copy)]
/// # struct Registers; // stands for `NativeRegisters`
/// # impl SystemRegisters for Registers {
/// #     type Error = AccessErrorKind;
/// #     fn read(&self, _: Register) -> Result<u64, AccessErrorKind> { Err(AccessErrorKind::Unreachable) }
/// #     fn write(&self, _: Register, _: u64) -> Result<(), AccessErrorKind> { Err(AccessErrorKind::Unreachable) }
/// #     fn synchronize(&self) {}
/// # }
/// # impl Registers { fn identify(&self) -> Identification { Identification::NONE } }
/// # mod gic {
/// #     pub fn set_enabled(_: u32, _: bool) {}
/// #     pub fn send_software_interrupt(_: usize) {}
/// # }
/// # fn processor_number() -> usize { 0 }
///
/// const REGISTERS: Registers = Registers; // or `unsafe { NativeRegisters::new() }`
/// const COUNTERS_INTERRUPT: u32 = 23; // PPI 7, on most boards
///
/// static PMU: Pmu<MyKernel, 8> = Pmu::new();
/// struct MyKernel;
///
/// // SAFETY: (1) each processor keeps its number; (2) this kernel is cooperative, and no handler switches tasks.
/// unsafe impl Kernel for MyKernel {
///     type Registers = ArmRegisters<Registers>;
///     type Architecture = Arm;
///     fn registers() -> Self::Registers {
///         ArmRegisters::new(REGISTERS)
///     }
///     fn this_processor() -> usize {
///         processor_number()
///     }
///     fn pinned<R>(act: impl FnOnce() -> R) -> R {
///         act()
///     }
///     fn set_interrupt_masked(masked: bool) {
///         gic::set_enabled(COUNTERS_INTERRUPT, !masked);
///     }
///     fn interrupt(processor: usize) {
///         gic::send_software_interrupt(processor); // its handler calls `PMU.serve_call()`
///     }
/// }
///
/// fn processor_up() -> Result<(), PmuError> {
///     PMU.processor_up(&REGISTERS.identify()).map(drop)
/// }
///
/// fn counters_interrupt(elr: u64, spsr: u64) -> Interrupted {
///     PMU.interrupt(&frame(elr, spsr, processor_number()))
/// }
/// # processor_up()?; // no PMUv3: no counters
/// # let _ = counters_interrupt;
/// # Ok::<(), PmuError>(())
/// ```
pub struct Arm<F = ()>(PhantomData<fn() -> F>);

impl<F> fmt::Debug for Arm<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Arm")
    }
}

impl<F: Facilities<Identification>> Architecture for Arm<F> {
    type Processor = Identification;
    type Machine = Pmuv3;
    type Facilities = F;

    const LEVEL_INTERRUPT: bool = true;

    fn detect(first: &Identification) -> Pmuv3 {
        Pmuv3::detect(first)
    }
}

/// Description of one processor of a kernel.
pub(super) type ProcessorOf<K> = <<K as Kernel>::Architecture as Architecture>::Processor;

/// A kernel's machine.
pub(super) type MachineOf<K> = <<K as Kernel>::Architecture as Architecture>::Machine;

/// A kernel's hardware beside the counters.
pub(super) type FacilitiesOf<K> = <<K as Kernel>::Architecture as Architecture>::Facilities;

/// The facility of a kernel's events.
pub(super) type FacilityOf<K> = <FacilitiesOf<K> as Facilities<ProcessorOf<K>>>::Facility;

/// Processors of Intel and AMD, and others with their counters. `F` is the hardware beside the counters that the
/// kernel's events may ask for: `()` for none, [`BranchRecords`](crate::facilities::BranchRecords), or a pair such as
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

    fn unmask_facility_interrupt<M: RegisterBackend>(
        msr: M,
        entry: u8,
    ) -> Result<(), PlatformError> {
        let apic = K::apic(msr).ok_or(PlatformError::NoFacilityInterrupt)?;
        let delivery = apic.read_performance_entry().and_then(Delivery::of_entry);
        let delivery = delivery.ok_or(PlatformError::NoDelivery)?;
        LocalApic::new(apic, delivery, NoTimer).unmask_facility_interrupt(entry)
    }

    fn shared_core() -> Option<CoreThread<'static>> {
        K::shared_core()
    }

    /// A part of a sample or of the issue slots has the select that Linux has for it, on no counter.
    fn perf_counters(machine: &Machine, select: EventSelect) -> Option<CounterSet> {
        let is_part = || Event::raw(select).on(CounterSet::NONE).is_part();
        (machine.perfmon().is_some() && is_part()).then_some(CounterSet::NONE)
    }
}

/// Functions that a kernel on x86 may provide beside its [`Kernel`](crate::Kernel). A kernel for which the defaults are
/// right names `()` in [`X86`]. Any other kernel names its own type.
///
/// # For implementers
/// `shared_core` is called in task, interrupt and NMI context, and takes no lock that the interrupted code may hold.
/// `apic` is called in task context.
///
/// ```
/// use pmu::{X86, X86Kernel};
/// use pmu::facilities::PreciseRecords;
/// struct MyKernel; // also a `Kernel`, whose `Architecture` this is:
/// type Processors = X86<PreciseRecords<8192>, MyKernel>;
/// # use pmu::apic::{ApicRegisters, NativeApic};
/// # use pmu::core::access::RegisterBackend;
///
/// impl X86Kernel for MyKernel {
///     fn apic<M: RegisterBackend>(_: M) -> Option<impl ApicRegisters> {
///         None::<NativeApic<M>> // no samples by IBS
///     }
/// }
/// # let _: Option<Processors> = None;
/// ```
pub trait X86Kernel: 'static {
    /// Returns the local APIC of the processor that executes the call. AMD's sampled ops and fetches interrupt through
    /// one of its [extended entries](ApicRegisters::read_extended_entry), which gets the NMI or the vector that the
    /// [entry for counters](ApicRegisters::read_performance_entry) has after
    /// [`set_interrupt_masked`](crate::Kernel::set_interrupt_masked): one handler serves both. The default
    /// implementation returns the local APIC in x2APIC mode, and `None` in xAPIC mode: the processor then has no
    /// sampled ops and fetches. The function is called on processors that declare IBS and an extended entry for it. On
    /// a virtual one that then lacks the registers, an access faults, as
    /// [`registers`](crate::Kernel::registers) treats a fault.
    ///
    /// ```
    /// use pmu::X86Kernel;
    /// use pmu::apic::{ApicRegisters, NativeApic};
    /// use pmu::core::access::RegisterBackend;
    /// struct MyKernel;
    /// const APIC_PAGE: usize = 0xFFFF_FFFF_FEE0_0000;
    ///
    /// impl X86Kernel for MyKernel {
    ///     fn apic<M: RegisterBackend>(msr: M) -> Option<impl ApicRegisters> {
    ///         // SAFETY: the kernel maps the page there for good, and puts every processor into the same mode.
    ///         unsafe { NativeApic::detect(msr, Some(APIC_PAGE)) }.ok()
    ///     }
    /// }
    /// ```
    fn apic<M: RegisterBackend>(msr: M) -> Option<impl ApicRegisters> {
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

#[cfg(test)]
mod tests {
    use pmu_core::testing::ScriptedRegisters;

    use super::*;
    use crate::local_apic::LvtEntry;

    /// The entry for counters is as after a reset, and the extended one is masked.
    struct AfterReset;

    impl ApicRegisters for AfterReset {
        fn write_performance_entry(&self, _: LvtEntry) {}
        fn read_performance_entry(&self) -> Option<u32> {
            Some(0x1_0000)
        }
        fn read_extended_entry(&self, _: u8) -> Option<u32> {
            Some(0x1_0000)
        }
        fn write_extended_entry(&self, _: u8, entry: u32) {
            panic!("{entry:#x}: the entry for counters is not written yet");
        }
    }

    impl X86Kernel for AfterReset {
        fn apic<M: RegisterBackend>(_: M) -> Option<impl ApicRegisters> {
            Some(Self)
        }
    }

    #[test]
    fn an_extended_entry_gets_no_delivery_that_the_counters_entry_has_not() {
        let msr = ScriptedRegisters::new(&[]);
        let outcome = X86::<(), AfterReset>::unmask_facility_interrupt(&msr, 0);
        assert_eq!(outcome, Err(PlatformError::NoDelivery));
        msr.finish();
    }
}
