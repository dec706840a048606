//! Profile sources and opened events on the same counters.

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
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;
use crate::profile::added::AddedSources;
use crate::profile::interface::InterfaceError;
use crate::profile::session::{Overflow, Session, SessionPlatform};
use crate::profile::source::SourceTable;
use crate::profile::source_interface::{CounterAnswer, SourceInterface, forward_interface};

/// A profile interface, and one processor's table of [opened](crate::CounterSession::open) events. With this
/// type, the processor's counters count both profile sources and opened events.
///
/// The type holds two references and is `Copy`. The session and the interrupt handler each use their own copy.
///
/// ```
/// # use pmu_core::profile::{DefaultInterface, WithOpenedEvents};
/// # use pmu_core::{EventEntry, EventTable};
/// # static MACHINE: DefaultInterface = DefaultInterface::new();
/// static EVENTS: [EventTable<[EventEntry; 8]>; 2] = [const { EventTable::new() }; 2];
/// let of_processor_0 = WithOpenedEvents::new(&MACHINE, &EVENTS[0]);
/// # let _ = of_processor_0;
/// ```
///
/// The session starts sources, and [`counters_mut`](Session::counters_mut) opens events:
///
/// ```
/// use pmu_core::{CounterMemory, CounterSet, Event, GenericEvent, Platform};
/// use pmu_core::profile::{InterfaceError, KProfileSource, Report, SourceInterface, WithOpenedEvents};
/// use pmu_core::msr::MsrBackend;
/// fn both<I: SourceInterface>(
///     with_opened_events: WithOpenedEvents<'static, I>,
///     this_processor: &I::Processor,
///     msr: impl MsrBackend,
///     platform: impl Platform,
///     memory: &'static CounterMemory,
/// ) -> Result<(), InterfaceError> {
///     let mut session = with_opened_events.initialize(this_processor, CounterSet::ALL, msr, platform, memory)?;
///     session.start(KProfileSource::BRANCH_MISPREDICTIONS)?;
///     let (unit, counters) = (with_opened_events.unit_of(this_processor), session.counters_mut());
///     let id = counters.open(&unit, &[Event::generic(GenericEvent::Cycles).every(1_000_000_000)])?;
///     counters.start(id, 0)?;
///     Ok(())
/// }
///
/// /// The interrupt handler calls the pair's `service`: the interface alone knows no opened events.
/// fn interrupt<I: SourceInterface>(
///     with_opened_events: &WithOpenedEvents<'static, I>,
///     msr: &impl MsrBackend,
///     platform: &impl Platform,
///     memory: &CounterMemory,
/// ) {
///     let serviced = with_opened_events.service(msr, platform, memory, |report| match report {
///         Report::Source(overflow) => { /* pmu_kprofile::Profiles::interrupt(&frame, overflow.source) */ }
///         Report::Event(overflow) => { /* overflow.event, overflow.tag */ }
///     });
///     # let _ = serviced;
/// }
/// ```
#[derive(Debug)]
pub struct WithOpenedEvents<'a, I, F = ()> {
    interface: &'a I,
    events: &'a EventTable,
    facility: F,
}

impl<I, F: Copy> Clone for WithOpenedEvents<'_, I, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, F: Copy> Copy for WithOpenedEvents<'_, I, F> {}

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

impl<'a, I: SourceInterface> WithOpenedEvents<'a, I> {
    /// Combines the sources of `interface` with `events`, the table of this processor's
    /// [opened](crate::CounterSession::open) events.
    pub const fn new(interface: &'a I, events: &'a EventTable) -> Self {
        Self { interface, events, facility: () }
    }

    /// Returns the same with hardware of this processor that the opened events can ask for beside a counter, such as
    /// [counter reload](crate::reload::AutoCounterReload). The session and the interrupt handler have the same
    /// facility.
    pub const fn with<F: FacilitySource>(self, facility: F) -> WithOpenedEvents<'a, I, F> {
        WithOpenedEvents { interface: self.interface, events: self.events, facility }
    }
}

impl<'a, I: SourceInterface, F: FacilitySource> WithOpenedEvents<'a, I, F> {
    /// Takes ownership of the processor's counters that are in `only`, and returns the session. Profile sources run on
    /// general counters. [Opened](crate::CounterSession::open) events run on general and fixed counters.
    ///
    /// # Errors
    /// The errors of [`ProfileInterface::initialize`](crate::profile::ProfileInterface::initialize).
    pub fn initialize<M: MsrBackend, P: Platform>(
        self,
        processor: &I::Processor,
        only: CounterSet,
        msr: M,
        platform: P,
        memory: &'a CounterMemory,
    ) -> Result<Session<'a, Self, M, P>, InterfaceError> {
        Session::initialize(self, processor, only, msr, platform, memory)
    }

    /// Services the performance interrupt, and calls `overflowed` once for each overflow of a source or an
    /// [opened](crate::CounterSession::open) event. This method calls [`pmu_core::service`](crate::service).
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, Event, EventTable, Platform, ServiceError};
    /// # use pmu_core::profile::{KProfileSource, Report, SourceInterface, WithOpenedEvents};
    /// # use pmu_core::msr::MsrBackend;
    /// # fn source_hit(_: KProfileSource) {}
    /// # fn sample(_tag: u64) {}
    /// /// The handler of sources and opened events on the same counters.
    /// fn performance_interrupt<I: SourceInterface>(
    ///     interface: &I,
    ///     events: &EventTable, // this processor's
    ///     (msr, platform): (&impl MsrBackend, &impl Platform),
    ///     memory: &CounterMemory, // this processor's
    /// ) -> Result<(), ServiceError> {
    ///     let both = WithOpenedEvents::new(interface, events);
    ///     let serviced = both.service(msr, platform, memory, |report| match report {
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
    pub fn service<M: MsrBackend, P: Platform>(
        &self,
        msr: &M,
        platform: &P,
        memory: &CounterMemory,
        mut overflowed: impl FnMut(Report),
    ) -> Result<Serviced, ServiceError> {
        self.service_samples(msr, platform, memory, move |report, _| overflowed(report))
    }

    /// Services the performance interrupt like [`service`](Self::service), and passes each overflow also as a
    /// [`Sample`], with what the source's own facility recorded.
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, Platform, ServiceError};
    /// # use pmu_core::facility::FacilitySource;
    /// # use pmu_core::msr::MsrBackend;
    /// # use pmu_core::profile::{Report, SourceInterface, WithOpenedEvents};
    /// # fn push(_: Report, _from: u64) {}
    /// /// The handler of sources and opened events, whose samples have branches.
    /// fn performance_interrupt<I: SourceInterface, F: FacilitySource>(
    ///     both: &WithOpenedEvents<I, F>,
    ///     (msr, platform): (&impl MsrBackend, &impl Platform),
    ///     memory: &CounterMemory, // this processor's
    /// ) -> Result<(), ServiceError> {
    ///     let serviced = both.service_samples(msr, platform, memory, |report, sample| {
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
    pub fn service_samples<M: MsrBackend, P: Platform>(
        &self,
        msr: &M,
        platform: &P,
        memory: &CounterMemory,
        mut sampled: impl FnMut(Report, Sample<'_, F::Facility>),
    ) -> Result<Serviced, ServiceError> {
        serve_interrupt(self, msr, platform, memory, move |overflow, facility| {
            self.added().take_up_interval(self.events, &overflow);
            let report = Report::of(self.table(), self.added(), overflow);
            sampled(report, Sample::new(self, overflow, facility));
        })
    }
}

/// A window in which the counters of sources and opened events are lent.
type Window<'s, 'a, I, F, M, P> =
    CounterWindow<'s, 'a, WithOpenedEvents<'a, I, F>, M, SessionPlatform<P>>;

impl<'a, I: SourceInterface, F: FacilitySource, M: MsrBackend, P: Platform>
    Session<'a, WithOpenedEvents<'a, I, F>, M, P>
{
    /// Returns a function that tells the overflows of sources from those of events.
    fn reporting<R: FnMut(Report, Sample<'_, F::Facility>)>(
        &self,
        mut overflowed: R,
    ) -> impl FnMut(Sample<'_, F::Facility>) + use<'a, I, F, M, P, R> {
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
    ) -> Result<Window<'_, 'a, I, F, M, P>, InterfaceError> {
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

// SAFETY: the units are the interface's, and the table a field.
unsafe impl<I: SourceInterface, F: FacilitySource> SourceInterface for WithOpenedEvents<'_, I, F> {
    type Processor = I::Processor;
    type Facility = F::Facility;

    forward_interface!(self => self.interface);

    #[inline]
    fn added(&self) -> &'static AddedSources {
        self.interface.added()
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        self.events
    }

    #[inline]
    fn facility(&self) -> F::Facility {
        self.facility.facility()
    }

    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.facility.has_idle_facility()
    }
}

/// A profile interface for a core with two logical processors and the following erratum: while one logical processor
/// counts certain events, the other logical processor's counters count wrong.
/// [`OnSharedCore`](crate::shared_core::OnSharedCore) describes how sources and events are scheduled on this core.
///
/// ```
/// use pmu_core::shared_core::{CoreCounters, CoreThread, WithSharedCore};
/// use pmu_core::{EventEntry, EventTable};
/// use pmu_core::profile::WithOpenedEvents;
/// # use pmu_core::profile::DefaultInterface;
/// # static MACHINE: DefaultInterface = DefaultInterface::new();
/// static CORE: CoreCounters = CoreCounters::new(); // one per core
/// static EVENTS: [EventTable<[EventEntry; 8]>; 2] = [const { EventTable::new() }; 2];
///
/// // Of the core's second logical processor. 0xD0 to 0xD3: what `pmu_intel::SiblingErratum` says of the processor.
/// let second = WithSharedCore::new(&MACHINE, CoreThread::new(&CORE, true, 0xD0..=0xD3));
/// let events = WithOpenedEvents::new(&second, &EVENTS[1]);
/// # let _ = events;
/// ```
#[derive(Debug)]
pub struct WithSharedCore<'a, I> {
    interface: &'a I,
    thread: CoreThread<'a>,
}

impl<I> Clone for WithSharedCore<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for WithSharedCore<'_, I> {}

impl<'a, I: SourceInterface> WithSharedCore<'a, I> {
    /// Creates the profile interface for the logical processor `thread`. The created interface has the sources of
    /// `interface`.
    pub const fn new(interface: &'a I, thread: CoreThread<'a>) -> Self {
        Self { interface, thread }
    }
}

// SAFETY: the units and the table of events are the interface's.
unsafe impl<I: SourceInterface> SourceInterface for WithSharedCore<'_, I> {
    type Processor = I::Processor;
    type Facility = I::Facility;

    forward_interface!(self => self.interface; Some(self.thread));

    #[inline]
    fn facility(&self) -> I::Facility {
        self.interface.facility()
    }

    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.interface.has_idle_facility()
    }

    #[inline]
    fn added(&self) -> &'static AddedSources {
        self.interface.added()
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        self.interface.opened()
    }
}
