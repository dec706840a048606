//! The hardware beside the counters, as an event source has it: a facility itself, or what makes one for each call.

use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::shared::core_counters::CoreThread;

/// Yields an event source's [facility](crate::EventSource::Facility): it is the facility itself, or makes one for each
/// call. The latter saves an interrupt the making of a facility that has nothing to do.
///
/// ```
/// use pmu_core::branches::{BranchMemory, BranchUnit, Branches};
/// use pmu_core::facility::FacilitySource;
/// /// The branch records of a processor, which are known once it is up.
/// #[derive(Clone, Copy)]
/// struct OfProcessor {
///     unit: Option<&'static BranchUnit>,
///     memory: &'static BranchMemory,
/// }
/// impl FacilitySource for OfProcessor {
///     type Facility = Option<Branches<'static>>;
///     fn facility(&self) -> Self::Facility {
///         Some(Branches::new(self.unit?, self.memory))
///     }
///     fn has_idle_facility(&self) -> bool {
///         self.memory.is_idle()
///     }
/// }
/// ```
///
/// # Context
/// Any context, including NMI.
pub trait FacilitySource: Copy {
    /// The facility.
    type Facility: EventFacility;

    /// Returns the facility.
    fn facility(&self) -> Self::Facility;

    /// Returns whether the facility [is idle](crate::facility::Facility::is_idle).
    fn has_idle_facility(&self) -> bool;

    /// Returns the logical processor that executes the call, if its core's two logical processors can corrupt each
    /// other's counters: see [`OnSharedCore`](crate::shared_core::OnSharedCore). All calls on one processor return the
    /// same result. The default implementation returns `None`.
    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        None
    }
}

impl<F: EventFacility> FacilitySource for F {
    type Facility = F;

    #[inline]
    fn facility(&self) -> F {
        *self
    }

    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.is_idle()
    }
}

/// The facility of a core on which some events of one logical processor corrupt the counters of the other logical
/// processor, for [`Events::with`](crate::Events::with). This happens on Intel's Sandy Bridge to Haswell with
/// hyper-threading. The sessions of both logical processors avoid this as Linux does: while such an event is on general
/// counter *n* of one logical processor, the other logical processor does not use its own general counter *n*.
///
/// If no counter is left for an event, a [rotating](crate::Event::rotating) event waits for its turn, and a
/// non-rotating event cannot be enabled. With this facility, enable events by
/// [`enable`](crate::CounterSession::enable). [`enable_if_free`](crate::CounterSession::enable_if_free) always fails
/// with [`NoCounterForEvent`](crate::error::CounterError::NoCounterForEvent).
///
/// The sessions have no control over guests. A guest that has borrowed [lent](crate::CounterSession::lend) counters can
/// count a corrupting event at any time.
///
/// ```
/// use pmu_core::{CounterUnit, Events};
/// use pmu_core::memory::{EventEntry, EventTable};
/// use pmu_core::shared_core::{CoreCounters, CoreThread, OnSharedCore};
/// static CORE: CoreCounters = CoreCounters::new(); // one per core
/// static EVENTS: [EventTable<[EventEntry; 8]>; 2] = [const { EventTable::new() }; 2];
/// # let unit = CounterUnit::NONE;
/// // 0xD0 to 0xD3: what `pmu_intel::SiblingErratum` says of the processor.
/// let thread = |second| CoreThread::new(&CORE, second, 0xD0..=0xD3);
/// let first = Events::new(&unit, &EVENTS[0]).with(OnSharedCore::new(thread(false), ()));
/// let second = Events::new(&unit, &EVENTS[1]).with(OnSharedCore::new(thread(true), ()));
/// # let _ = (first, second);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OnSharedCore<'a, F = ()> {
    thread: CoreThread<'a>,
    facility: F,
}

impl<'a, F: FacilitySource> OnSharedCore<'a, F> {
    /// Adds the logical processor `thread` to the hardware `facility` beside its counters; `()` for none.
    pub const fn new(thread: CoreThread<'a>, facility: F) -> Self {
        Self { thread, facility }
    }
}

impl<F: FacilitySource> FacilitySource for OnSharedCore<'_, F> {
    type Facility = F::Facility;

    #[inline]
    fn facility(&self) -> F::Facility {
        self.facility.facility()
    }

    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.facility.has_idle_facility()
    }

    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        Some(self.thread)
    }
}
