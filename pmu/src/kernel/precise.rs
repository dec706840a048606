//! The precise samples of a kernel's processors.

use core::sync::atomic::AtomicU64;

use pmu_amd::ibs::{Ibs, IbsMemory, IbsUnits};
use pmu_core::WriteOnce;
use pmu_core::access::RegisterBackend;
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};

use crate::kernel::architecture::FacilitiesOf;
use crate::kernel::facilities::{Facilities, KernelFunctions, X86Facilities};
use crate::kernel::pmu::{Pmu, PmuError};
use crate::kernel::required::Kernel;
use crate::per_processor::Busy;

/// Precise samples of one processor: Intel's precise records (PEBS), with a buffer of `WORDS` 64-bit words, and AMD's
/// instruction-based sampling (IBS). `WORDS` is at least 512 and a multiple of 512; architectural PEBS also needs a
/// power of two. IBS interrupts through an extended LVT entry, as an NMI or by the vector that the kernel set for the
/// counters. In xAPIC mode, a kernel for AMD's processors implements [`X86Kernel::apic`](crate::X86Kernel::apic).
///
/// A kernel whose [`Facilities`] have this type can open
/// [precise](pmu_core::Event::precise) events. For both precise events and branches, the kernel chooses a pair:
/// `(PreciseRecords<8192>, BranchRecords)`.
///
/// ```
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::MyKernel as Bare;
/// # use stand_in::Registers;
/// use pmu::{Event, GenericEvent};
/// use pmu::core::precise::{Precision, SampleParts};
/// use pmu::{Kernel, Pmu, PmuError, PmuEvent, PmuSample};
/// use pmu::facilities::PreciseRecords;
///
/// static PMU: Pmu<MyKernel, 8> = Pmu::new();
///
/// struct MyKernel;
/// // SAFETY: (1) the kernel's statics are mapped, writable, in each address space; (2) the kernel has no other driver
/// // of the Debug Store; (3) it makes no session of its own; …
/// unsafe impl Kernel for MyKernel {
///     type Architecture = pmu::X86<PreciseRecords<8192>>;
///     fn sampled(sample: &PmuSample<'_, Self>) {
///         let pebs = sample.facility().and_then(|(pebs, _)| pebs.as_ref());
///         let Some(record) = pebs.and_then(|pebs| pebs.record()) else { return };
///         println!("{:x?} with {:?}", record.address(), record.registers());
///     }
///     // … and the kernel's other functions
/// #   type Registers = Registers;
/// #   fn registers() -> Registers { Bare::registers() }
/// #   fn this_processor() -> usize { 0 }
/// #   fn pinned<R>(act: impl FnOnce() -> R) -> R { act() }
/// #   fn set_interrupt_masked(_: bool) {}
/// #   fn interrupt(_: usize) {}
/// }
///
/// /// Records every 10,007th branch of the kernel, with the general registers.
/// fn open() -> Result<PmuEvent, PmuError> {
///     let branches = Event::generic(GenericEvent::Branches).kernel_only().every(10_007);
///     let branches = branches.precise(Precision::ZeroSkidRequested).recording(SampleParts::REGISTERS);
///     PMU.open(&branches)
/// }
/// # let _ = open as fn() -> _;
/// ```
///
/// # Safety
/// A kernel with this type among its [`Facilities`](Kernel::Architecture) promises by its `unsafe impl Kernel`:
/// - The static that has the [`Pmu`] is mapped and writable in *every* address space in which a processor of the `Pmu`
///   runs. With kernel page-table isolation, this includes the page tables of user mode.
/// - No other code writes `IA32_DS_AREA`, `IA32_PEBS_ENABLE`, `IA32_PEBS_BASE`, or the words of the memory's
///   [area](PreciseMemory::control_area).
/// - If registers lost their contents in a suspend, the kernel calls [`Pmu::processor_resumed`] before any other
///   operation on the processor.
/// - The kernel makes no session from an event source that [`Pmu::events_of`] returned.
/// - [`Kernel::registers`] returns a backend that writes each given value to its register exactly once. The backend
///   does not keep the [`RegisterAddress`](pmu_core::access::RegisterAddress) of a register, and does not pass the
///   address to other safe code.
/// - [`Kernel::physical_address`] is right.
#[doc(alias = "pebs")]
#[doc(alias = "ibs")]
#[derive(Debug)]
pub struct PreciseRecords<const WORDS: usize> {
    unit: WriteOnce<Result<PreciseUnit, NoFacility>>,
    pebs: WriteOnce<Result<Pebs<'static>, NoFacility>>,
    memory: PreciseMemory<[AtomicU64; WORDS]>,
    sampling: WriteOnce<Option<IbsUnits>>,
    sampled: IbsMemory,
}

impl<const WORDS: usize> Facilities for PreciseRecords<WORDS> {
    type Facility = (Option<Pebs<'static>>, Option<Ibs<'static>>);

    const NEW: Self = {
        assert!(WORDS != 0 && WORDS.is_multiple_of(512), "the buffer consists of pages");
        Self {
            unit: WriteOnce::new(),
            pebs: WriteOnce::new(),
            memory: PreciseMemory::new(),
            sampling: WriteOnce::new(),
            sampled: IbsMemory::new(),
        }
    };

    unsafe fn detect<M: RegisterBackend>(
        &'static self,
        this_processor: &Snapshot,
        msr: &M,
        kernel: &KernelFunctions,
    ) {
        // The same each time that the processor comes up.
        let _ = self.sampling.set(IbsUnits::of(this_processor));
        // Detected once: a processor that comes up again has the value already.
        let Ok(Ok(unit)) = self.unit.set(PreciseUnit::detect(this_processor, msr)) else { return };
        let needs = unit.needs_physical_address();
        let physical = needs.then(|| {
            (kernel.physical_address)(self.memory.buffer_start().cast(), self.memory.capacity())
        });
        // SAFETY: (1) the caller detects the hardware of one processor with this value, and uses the facility there;
        // (2) the kernel promises the rest.
        let pebs = unsafe { Pebs::new(unit, &self.memory, physical.flatten()) };
        let _ = self.pebs.set(pebs);
    }

    fn facility(&'static self) -> Self::Facility {
        let pebs = self.pebs.get().and_then(|pebs| (*pebs).ok());
        let sampling = self.sampling.get().and_then(Option::as_ref);
        (pebs, sampling.map(|units| Ibs::new(units, &self.sampled)))
    }

    #[inline]
    fn is_idle(&'static self) -> bool {
        self.memory.is_idle() && self.sampled.is_idle()
    }
}

impl<const WORDS: usize> X86Facilities for PreciseRecords<WORDS> {
    fn precise(
        &'static self,
    ) -> Result<(&'static PreciseUnit, &'static PreciseMemory), NoFacility> {
        let unit = self.unit.get().ok_or(NoFacility::NotDeclared)?.as_ref().map_err(|why| *why)?;
        (*self.pebs.get().ok_or(NoFacility::NotDeclared)?)?;
        Ok((unit, &self.memory))
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N>
where
    FacilitiesOf<K>: X86Facilities,
{
    /// Returns the description of a processor's precise records, and their memory. The memory says how many records
    /// were [dropped](PreciseMemory::dropped), and has the [threshold](PreciseMemory::set_threshold) at which the
    /// processor interrupts.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::intel::precise::PreciseThreshold;
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Lets a processor interrupt once for many records. Returns the number of records that have been lost.
    /// fn many_records(processor: usize) -> Result<u32, PmuError> {
    ///     let (_, memory) = PMU.precise_records(processor)?;
    ///     memory.set_threshold(PreciseThreshold::NearlyFull);
    ///     Ok(memory.dropped().lost)
    /// }
    /// # let _ = many_records;
    /// ```
    ///
    /// # Context
    /// Any context, on any processor.
    ///
    /// # Errors
    /// - [`Session`](PmuError::Session): the processor's number is `P` or more.
    /// - [`Facility`](PmuError::Facility): the processor has no precise records that it can use, the kernel's
    ///   [`Facilities`] have no [`PreciseRecords`], or the processor has not been up yet.
    pub fn precise_records(
        &'static self,
        processor: usize,
    ) -> Result<(&'static PreciseUnit, &'static PreciseMemory), PmuError> {
        let of = self.processors.get(processor).ok_or(Busy::NoSlot { processor })?;
        Ok(of.facilities.precise()?)
    }
}
