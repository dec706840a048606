//! The top-down counts of a kernel's processors: the parts of their issue slots.

use pmu_core::access::RegisterBackend;
use pmu_core::error::NoFacility;
use pmu_core::facility::DivisionMemory;
use pmu_core::x86::Snapshot;
use pmu_core::{Event, WriteOnce};
use pmu_intel::topdown::{TopDown, TopDownCounts, TopDownEvents, TopDownUnit};

use crate::kernel::architecture::FacilitiesOf;
use crate::kernel::facilities::{Facilities, KernelFunctions, X86Facilities};
use crate::kernel::pmu::{Pmu, PmuError};
use crate::kernel::required::Kernel;
use crate::per_processor::Busy;

/// The issue slots of one processor and their parts, on Intel's processors that divide them. A kernel whose
/// [`Facilities`] have this type counts the [events of the slots](TopDownUnit::events) as it counts other events: of
/// the processor and of threads, in groups, by turns.
///
/// ```
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::MyKernel as Bare;
/// # use stand_in::Registers;
/// use pmu::intel::topdown::TopDownPart;
/// use pmu::{Kernel, Pmu, PmuError};
/// use pmu::facilities::TopDownParts;
///
/// static PMU: Pmu<MyKernel, 8> = Pmu::new();
///
/// struct MyKernel;
/// # // SAFETY: there is one thread.
/// unsafe impl Kernel for MyKernel {
///     type Architecture = pmu::X86<TopDownParts>;
///     // … and the kernel's functions
/// #   type Registers = Registers;
/// #   fn registers() -> Registers { Bare::registers() }
/// #   fn this_processor() -> usize { 0 }
/// #   fn pinned<R>(act: impl FnOnce() -> R) -> R { act() }
/// #   fn set_interrupt_masked(_: bool) {}
/// #   fn interrupt(_: usize) {}
/// }
///
/// fn where_slots_go(workload: fn()) -> Result<(), PmuError> {
///     let counts = PMU.count_slots(|event| event, workload)?;
///     for part in TopDownPart::LEVEL_1.into_iter().chain(TopDownPart::LEVEL_2) {
///         counts.per_mille(part).map(|share| println!("{share:4} of 1,000 slots: {part}"));
///     }
///     Ok(())
/// }
/// ```
#[doc(alias = "topdown")]
#[derive(Debug)]
pub struct TopDownParts {
    unit: WriteOnce<Result<TopDownUnit, NoFacility>>,
    memory: DivisionMemory,
}

impl Facilities for TopDownParts {
    type Facility = Option<TopDown<'static>>;

    const NEW: Self = Self { unit: WriteOnce::new(), memory: DivisionMemory::new() };

    unsafe fn detect<M: RegisterBackend>(
        &'static self,
        this_processor: &Snapshot,
        msr: &M,
        _: &KernelFunctions,
    ) {
        if self.unit.get().is_none() {
            // The same each time that the processor comes up.
            let _ = self.unit.set(TopDownUnit::of(this_processor, msr));
        }
    }

    fn facility(&'static self) -> Option<TopDown<'static>> {
        Some(TopDown::new(self.unit.get()?.as_ref().ok()?, &self.memory))
    }

    #[inline]
    fn is_idle(&'static self) -> bool {
        self.memory.is_idle()
    }
}

impl X86Facilities for TopDownParts {
    fn top_down(&'static self) -> Result<&'static TopDownUnit, NoFacility> {
        self.unit.get().ok_or(NoFacility::NotDeclared)?.as_ref().map_err(|why| *why)
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N>
where
    FacilitiesOf<K>: X86Facilities,
{
    /// Returns the description of a processor's issue slots: the events to open, and what their counts stand for. On a
    /// hybrid machine, the types of core differ.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::EventId;
    /// use pmu::core::thread::{SavedEvent, ThreadEvent};
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Makes the events of a new thread's slots of user mode, which count on this type of core. They follow the
    /// /// thread in the switch of its events.
    /// fn slots_of_thread(processor: usize) -> Result<[ThreadEvent; 9], PmuError> {
    ///     let unit = PMU.top_down(processor)?;
    ///     PMU.with(|session, this_unit| {
    ///         let usable = session.counters_mut().counters().usable;
    ///         let events = unit.events(usable).each(|event| event.user_only().rotating());
    ///         let mut saved = [None; 9];
    ///         for (place, event) in saved.iter_mut().zip(&*events) {
    ///             *place = Some(SavedEvent::new(this_unit, event)?.to_be_enabled(true));
    ///         }
    ///         let mut group: Vec<_> = saved.into_iter().flatten().collect();
    ///         SavedEvent::make_group(&mut group)?;
    ///         let mut thread = [ThreadEvent::Unused; 9];
    ///         for (place, event) in thread.iter_mut().zip(group) {
    ///             *place = ThreadEvent::SwitchedOut(event);
    ///         }
    ///         Ok(thread)
    ///     })?
    /// }
    /// # let _ = slots_of_thread;
    /// ```
    ///
    /// # Context
    /// Any context, on any processor.
    ///
    /// # Errors
    /// - [`Session`](PmuError::Session): the processor's number is `P` or more.
    /// - [`Facility`](PmuError::Facility): the processor does not divide issue slots, the kernel's [`Facilities`] have
    ///   no [`TopDownParts`], or the processor has not been up yet.
    pub fn top_down(&'static self, processor: usize) -> Result<&'static TopDownUnit, PmuError> {
        let of = self.processors.get(processor).ok_or(Busy::NoSlot { processor })?;
        Ok(of.facilities.top_down()?)
    }

    /// Counts where this processor's issue slots go while `work` runs. The counts divide the slots into four categories
    /// of level 1: retiring, bad speculation, front-end bound and back-end bound. If the processor has top-down level
    /// 2, the counts also have one [subcategory](crate::intel::topdown::TopDownPart) of each category, such as the
    /// slots that are memory bound. `change` changes each of the events, for example to those of
    /// [user mode](Event::user_only).
    ///
    /// This is [`count`](Self::count) of the [events](TopDownUnit::events) of the slots. They are among the `E` events
    /// that can be open on the processor: four on an E-core; five on a P-core, or nine with level 2.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// - [`Facility`](PmuError::Facility): see [`top_down`](Self::top_down).
    /// - The errors of [`count`](Self::count). If an event that does not [rotate](Event::rotating) is on the counter of
    ///   the slots, the error is [`NoFreeCounter`](pmu_core::error::CounterError::NoFreeCounter).
    pub fn count_slots(
        &'static self,
        change: fn(Event) -> Event,
        work: impl FnOnce(),
    ) -> Result<TopDownCounts, PmuError> {
        K::pinned(|| {
            let usable = self.with_local(|local| local.session.counters_mut().counters().usable)?;
            let unit = self.top_down(K::this_processor())?;
            let events = unit.events(usable).each(change);
            let counts = self.count_up_to::<{ TopDownEvents::MAX }>(&events, work)?;
            Ok(unit.counts(&counts))
        })
    }
}
