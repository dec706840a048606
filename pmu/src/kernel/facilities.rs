//! Hardware beside the counters that a kernel's events ask for.

use core::fmt;

use pmu_core::WriteOnce;
use pmu_core::access::RegisterBackend;
use pmu_core::branches::{Branch, BranchMemory, BranchUnit, CallStackOf};
use pmu_core::error::NoFacility;
use pmu_core::facility::{EventFacility, Facility, FacilitySource};
use pmu_core::reload::{AutoCounterReload, CounterReload, ReloadMemory};
use pmu_core::shared_core::CoreThread;
use pmu_core::x86::Snapshot;
use pmu_intel::branch_trace::BranchTrace;
use pmu_intel::precise::{PreciseMemory, PreciseUnit};
use pmu_intel::topdown::TopDownUnit;

use crate::kernel::architecture::{Architecture, FacilitiesOf, FacilityOf};
use crate::kernel::required::Kernel;

/// Functions of a [`Kernel`] that hardware beside the counters calls.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct KernelFunctions {
    /// [`Kernel::physical_address`].
    pub physical_address: fn(*const (), usize) -> Option<u64>,
    /// [`Kernel::branch_traced`].
    pub branch_traced: fn(Branch),
    /// [`Kernel::call_stack`].
    pub call_stack: CallStackOf,
}

impl KernelFunctions {
    /// Returns the functions of the kernel `K`.
    pub const fn of<K: Kernel>() -> Self {
        Self {
            physical_address: K::physical_address,
            branch_traced: K::branch_traced,
            call_stack: K::call_stack,
        }
    }
}

/// Hardware beside the counters that the events of a kernel may ask for: of one processor, with its memory. A kernel
/// chooses a type as the one of [`Kernel::Architecture`](crate::Kernel::Architecture), and [`Pmu`](crate::Pmu) has one
/// value per processor. What the type does not have is not linked.
///
/// | type | events can ask for |
/// |---|---|
/// | `()` | nothing |
/// | [`CounterReloads`] | [`Event::reloaded_by`](pmu_core::Event::reloaded_by) |
/// | [`BranchRecords`](crate::facilities::BranchRecords) | [`Event::with_branches`](pmu_core::Event::with_branches) |
/// | [`PreciseRecords`](crate::facilities::PreciseRecords) | [`Event::precise`](pmu_core::Event::precise) |
/// | [`TopDownParts`](crate::facilities::TopDownParts) | [`Event::part`](pmu_core::Event::part) |
/// | [`BranchTraces`](crate::facilities::BranchTraces) | nothing: the kernel calls [`Pmu::trace_branches`](crate::Pmu::trace_branches) |
/// | [`SoftwareEvents`](crate::facilities::SoftwareEvents) | nothing; but events can be [software events](pmu_core::Event::software) |
///
/// A pair of two is both. `()` and `SoftwareEvents` are for the processors of each vendor, and the others are x86's.
///
/// # For implementers
/// The type is the memory of one processor, and [`Facility`](Self::Facility) is the value that refers to it. If some
/// processors lack the hardware, the value is an `Option`, which is `None` there: an event that asks for it is then
/// refused, and a thread's event waits for another processor. `Processor` is that of the [`Architecture`]; by default,
/// it is x86's. How the value works is in [`Facility`](pmu_core::facility::Facility) and [`EventFacility`].
///
/// # Context
/// Any context, including NMI, except for [`detect`](Self::detect).
pub trait Facilities<Processor = Snapshot>: Sized + Sync + 'static {
    /// The hardware, as a session and its interrupt handler use it.
    type Facility: EventFacility + 'static;

    /// The value for a processor that is not up yet. If it is all zeros, it takes no room in the kernel's image.
    const NEW: Self;

    /// Detects the hardware of the processor that executes the call, which `this_processor` describes.
    ///
    /// # Context
    /// Task, each time the processor comes up, before the processor's session is made.
    ///
    /// # Safety
    /// - A value is for one processor: each call for the value is on this processor, and so is each use of the
    ///   [facility](Self::facility) in a session or in an interrupt handler.
    /// - The kernel meets the requirements of the types in `Self`, such as those of
    ///   [`PreciseRecords`](crate::facilities::PreciseRecords) and [`BranchTraces`](crate::facilities::BranchTraces).
    /// - `kernel` is of a kernel that meets these requirements.
    unsafe fn detect<M: RegisterBackend>(
        &'static self,
        this_processor: &Processor,
        msr: &M,
        kernel: &KernelFunctions,
    );

    /// Returns the hardware of the processor.
    fn facility(&'static self) -> Self::Facility;

    /// Returns whether an interrupt has nothing to do for the hardware, as [`Facility::is_idle`] says. The default
    /// implementation makes the hardware's value to ask it.
    fn is_idle(&'static self) -> bool {
        self.facility().is_idle()
    }

    /// Returns the branch records of the processor, with their memory.
    ///
    /// # Errors
    /// The processor has no branch records, or the type has none.
    fn branches(&'static self) -> Result<(&'static BranchUnit, &'static BranchMemory), NoFacility> {
        Err(NoFacility::NotDeclared)
    }
}

/// Hardware that only x86 has, of one processor: see [`Pmu::precise_records`](crate::Pmu::precise_records),
/// [`Pmu::top_down`](crate::Pmu::top_down) and [`Pmu::trace_branches`](crate::Pmu::trace_branches). A type of another
/// crate that stands beside the hardware of this crate in a pair implements the trait without methods.
///
/// # Context
/// Any context, including NMI.
pub trait X86Facilities: Facilities {
    /// Returns the precise records of the processor, with their memory.
    ///
    /// # Errors
    /// The processor has no precise records, or the type has none.
    fn precise(
        &'static self,
    ) -> Result<(&'static PreciseUnit, &'static PreciseMemory), NoFacility> {
        Err(NoFacility::NotDeclared)
    }

    /// Returns the description of the processor's issue slots.
    ///
    /// # Errors
    /// The processor does not divide issue slots, or the type does not.
    fn top_down(&'static self) -> Result<&'static TopDownUnit, NoFacility> {
        Err(NoFacility::NotDeclared)
    }

    /// Returns the branch trace of the processor. From the first call on, the type's
    /// [facility](Facilities::facility) has the trace.
    ///
    /// # Errors
    /// The processor cannot trace branches, or the type does not.
    ///
    /// # Safety
    /// `beside` is the memory of [`precise`](Self::precise) of all hardware of the processor, of which this type may be
    /// a part, after [`detect`](Facilities::detect) of all of it.
    unsafe fn branch_trace(
        &'static self,
        beside: Option<&'static PreciseMemory>,
    ) -> Result<BranchTrace<fn(Branch)>, NoFacility> {
        let _ = beside;
        Err(NoFacility::NotDeclared)
    }
}

impl X86Facilities for () {}

impl X86Facilities for CounterReloads {}

/// Nothing beside the counters.
impl<Processor> Facilities<Processor> for () {
    type Facility = ();

    const NEW: Self = ();

    unsafe fn detect<M: RegisterBackend>(&'static self, _: &Processor, _: &M, _: &KernelFunctions) {
    }

    #[inline]
    fn facility(&'static self) {}
}

/// Makes the facility of one processor's events for each call.
pub struct FacilityOnDemand<K: Kernel>(pub(super) &'static FacilitiesOf<K>);

impl<K: Kernel> Clone for FacilityOnDemand<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Kernel> Copy for FacilityOnDemand<K> {}

impl<K: Kernel> fmt::Debug for FacilityOnDemand<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FacilityOnDemand")
    }
}

impl<K: Kernel> FacilityOnDemand<K> {
    // Linked once: each of the session's operations asks for it.
    #[inline(never)] // 928 bytes of the Hermit-like glue.
    fn make(self) -> FacilityOf<K> {
        self.0.facility()
    }
}

impl<K: Kernel> FacilitySource for FacilityOnDemand<K> {
    type Facility = FacilityOf<K>;

    #[inline]
    fn facility(&self) -> FacilityOf<K> {
        if size_of::<FacilityOf<K>>() == 0 { self.0.facility() } else { self.make() }
    }

    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.0.is_idle()
    }

    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        K::Architecture::shared_core()
    }
}

impl<Processor, A: Facilities<Processor>, B: Facilities<Processor>> Facilities<Processor>
    for (A, B)
{
    type Facility = (A::Facility, B::Facility);

    const NEW: Self = (A::NEW, B::NEW);

    unsafe fn detect<M: RegisterBackend>(
        &'static self,
        this_processor: &Processor,
        msr: &M,
        kernel: &KernelFunctions,
    ) {
        // SAFETY: the caller promises for both what it promises for the pair.
        unsafe {
            self.0.detect(this_processor, msr, kernel);
            self.1.detect(this_processor, msr, kernel);
        }
    }

    #[inline]
    fn facility(&'static self) -> Self::Facility {
        (self.0.facility(), self.1.facility())
    }

    #[inline]
    fn is_idle(&'static self) -> bool {
        self.0.is_idle() && self.1.is_idle()
    }

    fn branches(&'static self) -> Result<(&'static BranchUnit, &'static BranchMemory), NoFacility> {
        // Another error is the reason why the first one's records cannot be used, and the second's must not hide it.
        match self.0.branches() {
            Err(NoFacility::NotDeclared) => self.1.branches(),
            branches => branches,
        }
    }
}

impl<A: X86Facilities, B: X86Facilities> X86Facilities for (A, B) {
    fn precise(
        &'static self,
    ) -> Result<(&'static PreciseUnit, &'static PreciseMemory), NoFacility> {
        match self.0.precise() {
            Err(NoFacility::NotDeclared) => self.1.precise(),
            precise => precise,
        }
    }

    fn top_down(&'static self) -> Result<&'static TopDownUnit, NoFacility> {
        match self.0.top_down() {
            Err(NoFacility::NotDeclared) => self.1.top_down(),
            top_down => top_down,
        }
    }

    unsafe fn branch_trace(
        &'static self,
        beside: Option<&'static PreciseMemory>,
    ) -> Result<BranchTrace<fn(Branch)>, NoFacility> {
        // SAFETY: the caller promises for both, which are parts of the same hardware.
        unsafe {
            match self.0.branch_trace(beside) {
                Err(NoFacility::NotDeclared) => self.1.branch_trace(beside),
                trace => trace,
            }
        }
    }
}

/// Auto counter reload of one processor, on processors that have it (Intel's architectural version 6).
///
/// ```
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::MyKernel as Bare;
/// # use stand_in::Registers;
/// use pmu::{Event, GenericEvent, Kernel, Pmu, PmuError, PmuEvent};
/// use pmu::facilities::CounterReloads;
///
/// static PMU: Pmu<MyKernel, 8> = Pmu::new();
///
/// struct MyKernel;
/// # // SAFETY: there is one thread.
/// unsafe impl Kernel for MyKernel {
///     type Architecture = pmu::X86<CounterReloads>;
///     // … and the kernel's functions
/// #   type Registers = Registers;
/// #   fn registers() -> Registers { Bare::registers() }
/// #   fn this_processor() -> usize { 0 }
/// #   fn pinned<R>(act: impl FnOnce() -> R) -> R { act() }
/// #   fn set_interrupt_masked(_: bool) {}
/// #   fn interrupt(_: usize) {}
/// }
///
/// /// Samples the code in which 5,000 of 100,000 branches are mispredicted.
/// fn open() -> Result<[PmuEvent; 2], PmuError> {
///     let misses = Event::generic(GenericEvent::BranchMisses).every(5_000).reloaded_by(0b10);
///     let branches = Event::generic(GenericEvent::Branches).every(100_000).reloaded_by(0b10); // by itself, too
///     PMU.open_group(&[misses, branches])
/// }
/// # let _ = open;
/// ```
#[doc(alias = "acr")]
#[derive(Debug)]
pub struct CounterReloads {
    /// The processor's registers, once it came up.
    reload: WriteOnce<Option<CounterReload>>,
    memory: ReloadMemory,
}

impl Facilities for CounterReloads {
    type Facility = Option<AutoCounterReload<'static>>;

    const NEW: Self = Self { reload: WriteOnce::new(), memory: ReloadMemory::new() };

    unsafe fn detect<M: RegisterBackend>(
        &'static self,
        this_processor: &Snapshot,
        _: &M,
        _: &KernelFunctions,
    ) {
        // The same each time that the processor comes up.
        let _ = self.reload.set(pmu_intel::counter_reload(this_processor));
    }

    fn facility(&'static self) -> Option<AutoCounterReload<'static>> {
        let reload = self.reload.get()?.as_ref()?;
        Some(AutoCounterReload::new(reload, &self.memory))
    }

    #[inline]
    fn is_idle(&'static self) -> bool {
        true
    }
}
