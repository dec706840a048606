//! The profile sources and the opened events of one processor, which share its counters.

use core::sync::atomic::AtomicU32;

use crate::counters::control::window::CounterWindow;
use crate::counters::error::{EventsError, ServiceError};
use crate::counters::events::saved::ThreadEvent;
use crate::counters::hooks::event_source::FacilitySource;
use crate::counters::interrupt::sample::{EventOverflow, Sample};
use crate::counters::interrupt::service::{Serviced, serve_interrupt};
use crate::counters::names::CounterSet;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::CoreThread;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::table::EventTable;
use crate::platform::Hardware;
use crate::profile::added::AddedSources;
use crate::profile::interface::InterfaceError;
use crate::profile::session::{Overflow, Session};
use crate::profile::source::{SourceIndex, SourceTable};
use crate::profile::source_interface::{ProfileSources, SourceInterface, forward_interface};

/// Everything that one processor's counters count: the profile sources of `S`, the events in the processor's table,
/// the hardware `F` beside the counters that these events can ask for, and the sources `A` that the kernel adds.
///
/// `S` is a profile interface, such as `Emon`, or a [`CounterUnit`], which has no sources. The session and the
/// interrupt's handler each have a copy: the value consists of references.
///
/// ```
/// use pmu_core::{CounterUnit, EventEntry, EventTable, Events};
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
/// The session starts sources, and [`counters_mut`](Session::counters_mut) opens events:
///
/// ```
/// use pmu_core::{CounterMemory, CounterSet, Event, Events, GenericEvent, Hardware};
/// use pmu_core::profile::{InterfaceError, KProfileSource, Report, SourceInterface};
/// fn both<S: SourceInterface>(
///     events: Events<'static, S>,
///     this_processor: &S::Processor,
///     hardware: impl Hardware,
///     memory: &'static CounterMemory,
/// ) -> Result<(), InterfaceError> {
///     let mut session = events.initialize(this_processor, CounterSet::ALL, hardware, memory)?;
///     session.start(KProfileSource::BRANCH_MISPREDICTIONS)?;
///     let (unit, counters) = (events.unit_of(this_processor), session.counters_mut());
///     let id = counters.open(&unit, &[Event::generic(GenericEvent::Cycles).every(1_000_000_000)])?;
///     counters.start(id, 0)?;
///     Ok(())
/// }
///
/// /// The interrupt handler calls the same value's `service`: the interface alone knows no opened events.
/// fn interrupt<S: SourceInterface>(events: &Events<'static, S>, hardware: &impl Hardware, memory: &CounterMemory) {
///     let serviced = events.service(hardware, memory, |report| match report {
///         Report::Source(overflow) => { /* pmu_kprofile::Profiles::interrupt(&frame, overflow.source) */ }
///         Report::Event(overflow) => { /* overflow.event, overflow.tag */ }
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

/// One overflow, either of a source or of an [opened](crate::CounterSession::open) event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Report {
    /// Overflow of a source: the source's interval has passed.
    Source(Overflow),
    /// Overflow of an [opened](crate::CounterSession::open) event: the event's period has passed.
    Event(EventOverflow),
}

impl Report {
    #[inline]
    fn of(table: &SourceTable, added: &AddedSources, overflow: EventOverflow) -> Self {
        match Overflow::of(table, added, overflow) {
            Some(overflow) => Self::Source(overflow),
            None => Self::Event(overflow),
        }
    }
}

impl<'a, S: SourceInterface> Events<'a, S> {
    /// Creates the events of one processor. `sources` describes the machine's counters, and `opened` is the table of
    /// this processor's [opened](crate::CounterSession::open) events.
    pub const fn new(sources: &'a S, opened: &'a EventTable) -> Self {
        Self { sources, opened, facility: (), added: () }
    }
}

impl<'a, S: SourceInterface, F: Copy, A: Copy> Events<'a, S, F, A> {
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

impl<'a, S: SourceInterface, F: FacilitySource, A: Added> Events<'a, S, F, A> {
    /// Takes ownership of the processor's counters that are in `only`, and returns the session. Profile sources run on
    /// general counters. [Opened](crate::CounterSession::open) events run on general and fixed counters.
    ///
    /// # Errors
    /// The errors of [`ProfileInterface::initialize`](crate::profile::ProfileInterface::initialize).
    pub fn initialize<H: Hardware>(
        self,
        processor: &S::Processor,
        only: CounterSet,
        hardware: H,
        memory: &'a CounterMemory,
    ) -> Result<Session<'a, Self, H>, InterfaceError> {
        Session::initialize(self, processor, only, hardware, memory)
    }

    /// Services the performance interrupt, and calls `overflowed` once for each overflow of a source or an
    /// [opened](crate::CounterSession::open) event. This method calls [`pmu_core::service`](crate::service).
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, Event, EventTable, Events, Hardware, ServiceError};
    /// # use pmu_core::profile::{KProfileSource, Report, SourceInterface};
    /// # fn source_hit(_: KProfileSource) {}
    /// # fn sample(_tag: u64) {}
    /// /// The handler of sources and opened events on the same counters.
    /// fn performance_interrupt<I: SourceInterface>(
    ///     interface: &I,
    ///     events: &EventTable, // this processor's
    ///     hardware: &impl Hardware,
    ///     memory: &CounterMemory, // this processor's
    /// ) -> Result<(), ServiceError> {
    ///     let both = Events::new(interface, events);
    ///     let serviced = both.service(hardware, memory, |report| match report {
    ///         Report::Source(overflow) => source_hit(overflow.source),
    ///         Report::Event(overflow) => sample(overflow.tag),
    ///     });
    ///     serviced.map(|_| ())
    /// }
    /// ```
    ///
    /// # Context
    /// Any context: task, interrupt or NMI.
    ///
    /// # Errors
    /// The errors of [`pmu_core::service`](crate::service).
    #[inline]
    pub fn service<H: Hardware>(
        &self,
        hardware: &H,
        memory: &CounterMemory,
        mut overflowed: impl FnMut(Report),
    ) -> Result<Serviced, ServiceError> {
        self.service_samples(hardware, memory, move |report, _| overflowed(report))
    }

    /// Services the performance interrupt like [`service`](Self::service), and passes each overflow also as a
    /// [`Sample`], with what the source's own facility recorded.
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, Events, Hardware, ServiceError};
    /// # use pmu_core::facility::FacilitySource;
    /// # use pmu_core::profile::{Report, SourceInterface};
    /// # fn push(_: Report, _from: u64) {}
    /// /// The handler of sources and opened events, whose samples have branches.
    /// fn performance_interrupt<S: SourceInterface, F: FacilitySource>(
    ///     both: &Events<'_, S, F>,
    ///     hardware: &impl Hardware,
    ///     memory: &CounterMemory, // this processor's
    /// ) -> Result<(), ServiceError> {
    ///     let serviced = both.service_samples(hardware, memory, |report, sample| {
    ///         sample.branches().for_each(|branch| push(report, branch.from));
    ///     });
    ///     serviced.map(|_| ())
    /// }
    /// ```
    ///
    /// # Context
    /// Any context: task, interrupt or NMI.
    ///
    /// # Errors
    /// The errors of [`pmu_core::service`](crate::service). If register accesses of a facility fail, the error contains
    /// the first failed access. All overflows are still reported.
    #[inline]
    pub fn service_samples<H: Hardware>(
        &self,
        hardware: &H,
        memory: &CounterMemory,
        mut sampled: impl FnMut(Report, Sample<'_, F::Facility>),
    ) -> Result<Serviced, ServiceError> {
        serve_interrupt(self, hardware, memory, move |overflow, facility| {
            self.added().take_up_interval(self.opened, &overflow);
            let report = Report::of(self.table(), self.added(), overflow);
            sampled(report, Sample::new(self, overflow, facility));
        })
    }
}

/// A window in which the counters of sources and opened events are lent.
type Window<'s, 'a, S, F, A, H> = CounterWindow<'s, 'a, Events<'a, S, F, A>, H>;

impl<'a, S: SourceInterface, F: FacilitySource, A: Added, H: Hardware>
    Session<'a, Events<'a, S, F, A>, H>
{
    /// Returns a function that tells the overflows of sources from those of events.
    fn reporting<R: FnMut(Report, Sample<'_, F::Facility>)>(
        &self,
        mut overflowed: R,
    ) -> impl FnMut(Sample<'_, F::Facility>) + use<'a, S, F, A, H, R> {
        let (table, added) = (self.interface().table(), self.interface().added());
        move |sample| overflowed(Report::of(table, added, *sample), sample)
    }

    /// Programs this processor's counters again, as [`reprogram`](Session::reprogram) does, and passes the pending
    /// overflows of [opened](crate::CounterSession::open) events to `overflowed`.
    ///
    /// # Errors
    /// The errors of [`reprogram`](Session::reprogram).
    pub fn reprogram_all(
        &mut self,
        overflowed: impl FnMut(Report, Sample<'_, F::Facility>),
    ) -> Result<CounterSet, InterfaceError> {
        let report = self.reporting(overflowed);
        self.program_again(|counters| counters.reprogram(report))
    }

    /// Stops this processor's counters before a suspend, and keeps the counts in memory. This method calls
    /// [`CounterSession::suspend`](crate::CounterSession::suspend). `overflowed` receives the pending overflows. The
    /// profile timer keeps running.
    ///
    /// # Errors
    /// The errors of [`CounterSession::suspend`](crate::CounterSession::suspend).
    pub fn suspend_all(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Report, Sample<'_, F::Facility>),
    ) -> Result<(), InterfaceError> {
        let report = self.reporting(overflowed);
        Ok(self.counters_mut().suspend(now, report)?)
    }

    /// Lends this processor's counters, as [`lend`](Session::lend) does, and passes the pending overflows of
    /// [opened](crate::CounterSession::open) events to `overflowed`, too.
    ///
    /// # Errors
    /// The errors of [`CounterSession::lend`](crate::CounterSession::lend).
    pub fn lend_all(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Report, Sample<'_, F::Facility>),
    ) -> Result<Window<'_, 'a, S, F, A, H>, InterfaceError> {
        let report = self.reporting(overflowed);
        Ok(self.counters_mut().lend(now, report)?)
    }

    /// Switches the events of a thread out, as [`CounterSession::switch_out`](crate::CounterSession::switch_out) does,
    /// and tells the pending overflows of sources from those of events.
    ///
    /// # Errors
    /// The errors of [`CounterSession::switch_out`](crate::CounterSession::switch_out).
    pub fn switch_out_all(
        &mut self,
        events: &mut [ThreadEvent],
        now: u64,
        overflowed: impl FnMut(Report, Sample<'_, F::Facility>),
    ) -> Result<(), EventsError> {
        let report = self.reporting(overflowed);
        self.counters_mut().switch_out(events, now, report)
    }

    /// Programs this processor's counters again after [`suspend_all`](Self::suspend_all). This method calls
    /// [`CounterSession::resume`](crate::CounterSession::resume). The sources run again. Each source of the interface's
    /// table begins a new interval. Each [added](crate::profile::AddedSources) source continues the interval that the
    /// suspend interrupted. The platform's timer is started again if it was running.
    ///
    /// # Errors
    /// The errors of [`reprogram`](Session::reprogram).
    pub fn resume_all(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Report, Sample<'_, F::Facility>),
    ) -> Result<CounterSet, InterfaceError> {
        let report = self.reporting(overflowed);
        self.program_again(|counters| counters.resume(now, report))
    }
}

// SAFETY: the units are those of the sources, and the table a field.
unsafe impl<S: SourceInterface, F: FacilitySource, A: Added> SourceInterface
    for Events<'_, S, F, A>
{
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
unsafe impl SourceInterface for CounterUnit {
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
    fn rows_id(&self) -> usize {
        0
    }

    #[inline]
    fn unit(&self) -> &CounterUnit {
        self
    }

    #[inline]
    fn intervals(&self) -> &[AtomicU32] {
        &[]
    }
}
