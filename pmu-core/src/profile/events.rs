//! The event sources: one processor's events, counters alone, and a machine without sources on counters.

use core::sync::atomic::AtomicU32;

use crate::counters::hooks::facility_source::FacilitySource;
use crate::counters::registers::counter::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::CoreThread;
use crate::counters::shared::table::EventTable;
use crate::detection::NoInterface;
use crate::profile::added::AddedSources;
use crate::profile::event_source::{EventSource, forward_interface};
use crate::profile::interface::ProfileSources;
use crate::profile::source::{ProfileSource, SourceIndex, SourceTable};
use crate::x86::snapshot::Snapshot;

/// Everything that one processor's counters count: the profile sources of `S`, the events in the processor's table,
/// the hardware `F` beside the counters that these events can ask for, and the sources `A` that the kernel adds.
///
/// `S` is a profile interface, such as `Emon`, or a [`CounterUnit`], which has no sources. The session and the
/// interrupt's handler each have a copy: the value consists of references.
///
/// ```
/// use pmu_core::{CounterUnit, Events};
/// use pmu_core::memory::{EventEntry, EventTable};
/// # use pmu_core::profile::{AddedSlot, AddedSources, DefaultInterface};
/// # static MACHINE: DefaultInterface = DefaultInterface::new();
/// # static ADDED: AddedSources<[AddedSlot; 8]> = AddedSources::new();
/// static EVENTS: [EventTable<[EventEntry; 4]>; 2] = [const { EventTable::new() }; 2];
/// let unit = CounterUnit::NONE; // or what a vendor crate detects
/// let of_processor_0 = Events::new(&unit, &EVENTS[0]);
/// // With the sources of a profile interface, and those that the kernel adds.
/// let of_processor_1 = Events::new(&MACHINE, &EVENTS[1]).adding(&ADDED);
/// # let _ = (of_processor_0, of_processor_1);
/// ```
///
/// The session starts sources, and [`counters_mut`](crate::profile::Session::counters_mut) opens events:
///
/// ```
/// use pmu_core::{CounterSet, Event, EventSource, Events, GenericEvent, Hardware, service};
/// use pmu_core::memory::CounterMemory;
/// use pmu_core::profile::{InterfaceError, KProfileSource, Session};
/// fn both<S: EventSource>(
///     events: Events<'static, S>,
///     this_processor: &S::Processor,
///     hardware: impl Hardware,
///     memory: &'static CounterMemory,
/// ) -> Result<(), InterfaceError> {
///     let mut session = Session::take(events, this_processor, CounterSet::ALL, hardware, memory)?;
///     session.start(KProfileSource::BRANCH_MISPREDICTIONS)?;
///     let (unit, counters) = (events.unit_of(this_processor), session.counters_mut());
///     counters.start(&unit, &[Event::generic(GenericEvent::Cycles).every(1_000_000_000)], 0)?;
///     Ok(())
/// }
///
/// /// The interrupt handler passes the same value: the interface alone knows no opened events.
/// fn interrupt<S: EventSource>(events: &Events<'static, S>, hardware: &impl Hardware, memory: &CounterMemory) {
///     let serviced = service(events, hardware, memory, |sample| match events.overflow(&sample) {
///         Some(overflow) => { /* pmu_kprofile::Profiles::interrupt(&frame, overflow.source) */ }
///         None => { /* sample.event, sample.tag */ }
///     });
///     # let _ = serviced;
/// }
/// ```
#[derive(Debug)]
pub struct Events<'a, S = CounterUnit, F = (), A = ()> {
    sources: &'a S,
    opened: &'a EventTable,
    facility: F,
    added: A,
}

impl<S, F: Copy, A: Copy> Clone for Events<'_, S, F, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, F: Copy, A: Copy> Copy for Events<'_, S, F, A> {}

/// The sources that the kernel adds: `()` for none, whose code is not linked.
pub trait Added: Copy {
    /// Returns the sources: those of an interface, if there are none beside.
    fn or(self, of_interface: &'static AddedSources) -> &'static AddedSources;
}

impl Added for () {
    #[inline]
    fn or(self, of_interface: &'static AddedSources) -> &'static AddedSources {
        of_interface
    }
}

impl Added for &'static AddedSources {
    #[inline]
    fn or(self, _: &'static AddedSources) -> &'static AddedSources {
        self
    }
}

impl<'a, S: EventSource> Events<'a, S> {
    /// Creates the events of one processor. `sources` describes the machine's counters, and `opened` is the table of
    /// this processor's [opened](crate::CounterSession::open) events.
    pub const fn new(sources: &'a S, opened: &'a EventTable) -> Self {
        Self { sources, opened, facility: (), added: () }
    }
}

impl<'a, S: EventSource, F: Copy, A: Copy> Events<'a, S, F, A> {
    /// Returns the same with the sources in `added`, which all processors of the machine share. An added source runs as
    /// an [opened](crate::CounterSession::open) event.
    pub const fn adding(
        self,
        added: &'static AddedSources,
    ) -> Events<'a, S, F, &'static AddedSources> {
        Events { sources: self.sources, opened: self.opened, facility: self.facility, added }
    }

    /// Returns the same with hardware of this processor that the opened events can ask for beside a counter, such as
    /// [counter reload](crate::reload::AutoCounterReload). The session and the interrupt handler have the same
    /// facility.
    pub const fn with<G: FacilitySource>(self, facility: G) -> Events<'a, S, G, A> {
        Events { sources: self.sources, opened: self.opened, facility, added: self.added }
    }
}

// SAFETY: the units are those of the sources, and the table a field.
unsafe impl<S: EventSource, F: FacilitySource, A: Added> EventSource for Events<'_, S, F, A> {
    type Processor = S::Processor;
    type Facility = F::Facility;

    forward_interface!(self => self.sources);

    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        self.facility.core_thread().or_else(|| self.sources.core_thread())
    }

    #[inline]
    fn facility(&self) -> F::Facility {
        self.facility.facility()
    }

    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.facility.has_idle_facility()
    }

    #[inline]
    fn added(&self) -> &'static AddedSources {
        self.added.or(self.sources.added())
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        self.opened
    }
}

static NO_ROWS: SourceIndex<1> = SourceIndex::new(&[]);

static NO_TABLE: SourceTable = SourceTable::new(&[], &NO_ROWS);

// All units share it, and with it the record of whether counters answered.
static NO_SOURCES: ProfileSources<[AtomicU32; 0]> =
    ProfileSources::new("counters", CounterUnit::NONE);

/// A processor's counters alone have no profile sources, not even `ProfileTime`. The description of a processor is the
/// processor's own unit.
// SAFETY: the unit is this value. (The functions return constants, so that nothing of sources is linked.)
unsafe impl EventSource for CounterUnit {
    type Processor = Self;
    type Facility = ();

    fn facility(&self) {}

    #[inline]
    fn profile_sources(&self) -> &ProfileSources {
        &NO_SOURCES
    }

    fn unit_of(&self, processor: &Self) -> CounterUnit {
        *processor
    }

    #[inline]
    fn is_declared(&self, _: usize) -> bool {
        false
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        &NO_TABLE
    }

    #[inline]
    fn table_id(&self) -> usize {
        0
    }

    #[inline]
    fn unit(&self) -> &CounterUnit {
        self
    }
}

/// The profile interface of a machine without profile sources on counters. The interface's only source is
/// `ProfileTime`.
#[derive(Debug)]
pub struct DefaultInterface(ProfileSources<[AtomicU32; 1]>);

impl DefaultInterface {
    /// The table whose only row is `ProfileTime`.
    pub const TABLE: &'static SourceTable = &TABLE;

    /// Creates the interface, in which `ProfileTime` has its default interval.
    pub const fn new() -> Self {
        Self::instead_of(NoInterface::NoPerformanceMonitoring)
    }

    /// Creates the interface of a machine on which no counters were detected. `reason` is what the vendor crate's unit
    /// [says](CounterUnit::why_absent).
    ///
    /// ```
    /// # use pmu_core::EventSource;
    /// # use pmu_core::error::NoInterface;
    /// # use pmu_core::profile::DefaultInterface;
    /// let interface = DefaultInterface::instead_of(NoInterface::NoLongMode);
    /// assert_eq!(interface.sources().len(), 1); // Only `ProfileTime`.
    /// ```
    pub const fn instead_of(reason: NoInterface) -> Self {
        Self(ProfileSources::new("Default", CounterUnit::absent(reason)))
    }
}

impl Default for DefaultInterface {
    fn default() -> Self {
        Self::new()
    }
}

static SOURCES: [ProfileSource; 1] =
    [ProfileSource::new(0, "ProfileTime", EventSelect::from_bits(0)).spelled("Timer")];

static INDEX: SourceIndex<4> = SourceIndex::new(&SOURCES);

static TABLE: SourceTable = SourceTable::new(&SOURCES, &INDEX);

// SAFETY: the unit is a field, and that of any processor has no counters.
unsafe impl EventSource for DefaultInterface {
    type Processor = Snapshot;
    type Facility = ();

    fn facility(&self) {}

    #[inline]
    fn profile_sources(&self) -> &ProfileSources {
        &self.0
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        Self::TABLE
    }

    fn unit_of(&self, _: &Snapshot) -> CounterUnit {
        *self.unit()
    }
}
