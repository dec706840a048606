//! The source of a processor's events: the rows of a table, and opened events.

use crate::counters::hooks::event_facility::{EventFacility, UnitAccess};
use crate::counters::hooks::facility::Facility;
use crate::counters::names::{CounterId, CounterSet};
use crate::counters::registers::counter::{Counter, EventSelect};
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::CoreThread;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::table::EventTable;
use crate::msr::backend::{MsrBackend, MsrFault};

/// The events that a processor's counters count. Some events are rows of the source's table, which all processors
/// share. The other events were opened on the processor.
///
/// The interrupt path calls these methods in any context, including NMI. No method may take a lock, allocate or panic.
///
/// # Safety
/// - Each call of [`unit`](Self::unit) returns the same unit. The session accesses the registers that this unit names.
/// - Each call of [`opened`](Self::opened) returns a reference to the same table. The table's contents may change.
///
/// The source in this example owns its unit, so a function that detects the processor can return the source:
///
/// ```
/// use pmu_core::{CounterUnit, EventSelect, EventSource, EventTable};
/// struct Detected {
///     unit: CounterUnit,
///     events: &'static EventTable,
/// }
/// // SAFETY: both are fields that nothing changes.
/// unsafe impl EventSource for Detected {
///     fn unit(&self) -> &CounterUnit {
///         &self.unit
///     }
///     fn row_select(&self, _: usize) -> Option<EventSelect> {
///         None
///     }
///     fn row_period(&self, _: usize) -> Option<u32> {
///         None
///     }
///     fn table_id(&self) -> usize {
///         0
///     }
///     fn opened(&self) -> &EventTable {
///         self.events
///     }
///     type Facility = ();
///     fn facility(&self) {}
/// }
/// ```
///
/// Wrong: returning the unit of the core that executes the call. On a hybrid machine, the session would then access the
/// registers of another type of core, which may have other addresses.
///
/// ```
/// # use pmu_core::{CounterUnit, EventSelect, EventSource, EventTable};
/// # fn kind_of_this_core() -> usize { 0 }
/// struct Hybrid([CounterUnit; 2]);
/// // SAFETY: not given. Where one type of core has a counter, another type may have a different register.
/// unsafe impl EventSource for Hybrid {
///     fn unit(&self) -> &CounterUnit {
///         &self.0[kind_of_this_core()]
///     }
/// #     fn row_select(&self, _: usize) -> Option<EventSelect> { None }
/// #     fn row_period(&self, _: usize) -> Option<u32> { None }
/// #     fn table_id(&self) -> usize { 0 }
/// #     fn opened(&self) -> &EventTable { EventTable::none() }
/// #     type Facility = ();
/// #     fn facility(&self) {}
/// }
/// ```
pub unsafe trait EventSource {
    /// Returns the description of the processor's counters.
    fn unit(&self) -> &CounterUnit;

    /// Returns the event select of the row at this index of the source's table, or `None` if the table has no such row.
    fn row_select(&self, row: usize) -> Option<EventSelect>;

    /// Returns the number of a bit in EBX of CPUID leaf 0x0A. The bit says whether a processor has the event of the
    /// row at the given index. Returns `None` if every processor can count the row's event. The session uses the bit on
    /// a hybrid machine, where one type of core may lack an event that another type has.
    fn row_event_bit(&self, _: usize) -> Option<u8> {
        None
    }

    /// Returns the period of the row at this index of the source's table, or `None` if the table has no such row. The
    /// row's counter gets this period when it is loaded next. The period is below 2³¹.
    fn row_period(&self, row: usize) -> Option<u32>;

    /// Returns a value that identifies the table whose rows [`row_select`](Self::row_select) describes.
    /// [`save`](crate::CounterSession::save) stores this value. [`restore`](crate::CounterSession::restore) loads the
    /// saved counters only if the source of the restoring session returns the stored value.
    fn table_id(&self) -> usize;

    /// Returns the table that contains the opened events of the processor.
    fn opened(&self) -> &EventTable;

    /// Returns the logical processor that executes the call, if the core's two logical processors can corrupt each
    /// other's counters. The default implementation returns `None`.
    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        None
    }

    /// Hardware beside the counters that events of this source can ask for, such as [counter
    /// reload](crate::reload::AutoCounterReload); `()` for none.
    type Facility: EventFacility;

    /// Returns the hardware beside the counters of the processor whose events these are.
    fn facility(&self) -> Self::Facility;

    /// Returns whether the facility [is idle](crate::facility::Facility::is_idle). An interrupt then does not call
    /// [`facility`](Self::facility).
    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.facility().is_idle()
    }
}

/// Yields an event source's [facility](EventSource::Facility): it is the facility itself, or makes one for each call.
/// The latter saves an interrupt the making of a facility that has nothing to do.
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

/// Returns whether events can be opened beside the rows. If the compiler sees that there is no table for them, the
/// code that only opened events need is not linked.
#[inline]
pub(crate) fn opens_events(source: &impl EventSource) -> bool {
    !source.opened().is_empty()
}

/// Returns the registers of a counter of a source's session.
#[inline]
pub(crate) fn registers_of<S: EventSource>(source: &S, counter: CounterId) -> Counter {
    let of_facility = if S::Facility::UNITS { source.facility().unit(counter) } else { None };
    of_facility.unwrap_or_else(|| source.unit().registers(counter))
}

/// Returns the counters that a session of the source may have: those of its unit, the facility's units, and the counter
/// that is divided on this processor. On a hybrid machine, the first processor's unit may lack that counter.
#[inline(always)]
pub(crate) fn counters_of<S: EventSource>(source: &S) -> CounterSet {
    let counters = source.unit().counters();
    let counters = if S::Facility::UNITS { counters | source.facility().units() } else { counters };
    if S::Facility::DIVIDES { counters | divided_by(source) } else { counters }
}

/// Returns the session's counters that the source describes. Of an interrupt: the facility is asked only if the unit
/// lacks one of them.
#[inline(always)]
pub(crate) fn verified_of<S: EventSource>(source: &S, memory: &CounterMemory) -> CounterSet {
    // Only a session that drives the units has verified them.
    let units = if S::Facility::UNITS { CounterSet::UNITS } else { CounterSet::NONE };
    let described = source.unit().counters() | units;
    if S::Facility::DIVIDES && !memory.verified(!described).is_empty() {
        return memory.verified(counters_of(source));
    }
    memory.verified(described)
}

/// Returns the counter of a source's facility that is divided on this processor.
pub(crate) fn divided_by<S: EventSource>(source: &S) -> CounterSet {
    let facility = source.facility();
    facility.division().map_or(CounterSet::NONE, |division| division.counter.only())
}

/// Reads a counter, with one retry.
#[inline]
pub(crate) fn read_counter<S: EventSource, M: MsrBackend>(
    source: &S,
    msr: &M,
    registers: &Counter,
) -> Result<u64, MsrFault> {
    if S::Facility::UNITS && registers.is_unit() {
        source.facility().access_unit(msr, registers, UnitAccess::ReadValue)
    } else {
        registers.read(msr)
    }
}

/// The facility of a core on which some events of one logical processor corrupt the counters of the other logical
/// processor, for [`Events::with`](crate::Events::with). This happens on Intel's Sandy Bridge to Haswell with
/// hyper-threading. The sessions of both logical processors avoid this as Linux does: while such an event is on general
/// counter *n* of one logical processor, the other logical processor does not use its own general counter *n*.
///
/// If no counter is left for an event, a [rotating](crate::Event::rotating) event waits for its turn, and a
/// non-rotating event fails to start. With this facility, start events by [`start`](crate::CounterSession::start).
/// [`start_if_free`](crate::CounterSession::start_if_free) always fails with
/// [`NoCounterForEvent`](crate::CounterError::NoCounterForEvent).
///
/// The sessions have no control over guests. A guest that has borrowed [lent](crate::CounterSession::lend) counters can
/// count a corrupting event at any time.
///
/// ```
/// use pmu_core::shared_core::{CoreCounters, CoreThread, OnSharedCore};
/// use pmu_core::{CounterUnit, EventEntry, EventTable, Events};
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
