//! The operations of a profile interface, the same for all vendors.

use core::sync::atomic::Ordering;

use crate::counters::error::ServiceError;
use crate::counters::interrupt::claim::Serviced;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::counters::shared::memory::CounterMemory;
use crate::interval::Interval;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;
use crate::profile::declared::{declared_information, declared_interval};
use crate::profile::error::InterfaceError;
use crate::profile::information::SourceInformation;
use crate::profile::overflow::Overflow;
use crate::profile::session::Session;
use crate::profile::source::{KProfileSource, ProfileSource};
use crate::profile::source_interface::SourceInterface;
use crate::snapshot::Snapshot;

/// The operations of a profile interface, the same for all interfaces. They cannot be overridden.
pub trait ProfileInterface: SourceInterface {
    /// Returns the rows of the table, ascending by value; the first is `ProfileTime`.
    fn sources(&self) -> &'static [ProfileSource] {
        self.table().rows()
    }

    /// Returns the index of a source in the table.
    #[inline]
    fn row(&self, source: KProfileSource) -> Option<usize> {
        self.table().row(source)
    }

    /// Returns the event of a source, as the counters identify it.
    #[inline]
    fn event(&self, source: KProfileSource) -> Option<EventId> {
        self.row(source).map(EventId::of_row)
    }

    /// Returns the index of the source with this name, in the documented spelling or Windows' own; case matters.
    ///
    /// ```
    /// # use pmu_core::{DefaultInterface, KProfileSource, ProfileInterface};
    /// let interface = DefaultInterface::new();
    /// let row = interface.row_named("ProfileTime").expect("each interface has it");
    /// assert_eq!(interface.sources()[row].source(), KProfileSource::TIME);
    /// ```
    fn row_named(&self, name: &str) -> Option<usize> {
        self.table().row_named(name)
    }

    /// Returns the information on a source without accessing a register: at best
    /// [`Declared`](crate::Availability::Declared). If no counter [answered](crate::CounterError::Unresponsive) to an
    /// [`initialize`](Self::initialize) on any processor so far, only time is supported.
    ///
    /// ```
    /// # use pmu_core::{DefaultInterface, ProfileInterface};
    /// /// Lists the sources that a machine declares, with their intervals.
    /// fn list(interface: &impl ProfileInterface, mut line: impl FnMut(&str, u32)) {
    ///     for row in interface.sources() {
    ///         let information = interface.query(row.source());
    ///         if information.is_supported() {
    ///             line(row.name(), information.interval);
    ///         }
    ///     }
    /// }
    /// # list(&pmu_core::DefaultInterface::new(), |name, interval| assert_eq!((name, interval), ("ProfileTime", 10_000)));
    /// ```
    ///
    /// # Context
    /// Any.
    fn query(&self, source: KProfileSource) -> SourceInformation {
        declared_information(self, source)
    }

    /// Sets the machine-wide interval of a source.
    ///
    /// A running counter takes up the interval at its next overflow, a running timer at [`Session::apply_interval`].
    /// The interval stays in force until the next call.
    ///
    /// ```
    /// # use pmu_core::{DefaultInterface, InterfaceError, KProfileSource, ProfileInterface};
    /// let interface = DefaultInterface::new();
    /// // `ProfileTime` in units of 100 ns: each 2 ms.
    /// let interval = interface.set_interval(KProfileSource::TIME, 20_000)?;
    /// assert_eq!(interval.get(), interface.query(KProfileSource::TIME).interval);
    /// # Ok::<(), pmu_core::InterfaceError>(())
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// [`UnsupportedSource`](InterfaceError::UnsupportedSource), or [`Interval`](InterfaceError::Interval) with the
    /// limits.
    fn set_interval(&self, source: KProfileSource, units: u64) -> Result<Interval, InterfaceError> {
        let (cell, limits) = declared_interval(self, source)?;
        let interval = limits.check(units)?;
        cell.store(interval.get(), Ordering::Relaxed);
        Ok(interval)
    }

    /// Sets the interval nearest to `units` within the limits, like [`set_interval`](Self::set_interval), and returns
    /// it.
    ///
    /// ```
    /// # use pmu_core::{DefaultInterface, InterfaceError, KProfileSource, ProfileInterface};
    /// let interface = DefaultInterface::new();
    /// // As Windows does with an interval that is too short.
    /// let interval = interface.set_interval_clamped(KProfileSource::TIME, 1)?;
    /// assert_eq!(interval.get(), 1_221);
    /// # Ok::<(), pmu_core::InterfaceError>(())
    /// ```
    fn set_interval_clamped(
        &self,
        source: KProfileSource,
        units: u64,
    ) -> Result<Interval, InterfaceError> {
        let (cell, limits) = declared_interval(self, source)?;
        let interval = limits.clamp(units);
        cell.store(interval.get(), Ordering::Relaxed);
        Ok(interval)
    }

    /// Takes the general counters of the processor that executes the call, and returns the session that starts sources
    /// on them. `processor` describes this processor, as for [`CounterSession::take`](crate::CounterSession::take).
    ///
    /// ```
    /// # use pmu_core::{
    /// #     CounterError, CounterMemory, CounterSlot, InterfaceError, MAX_COUNTERS, MsrBackend, Platform,
    /// #     ProfileInterface, Session, Snapshot, SourceInterface,
    /// # };
    /// static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new(); // one per processor
    ///
    /// /// Each processor, as it comes up. Without counters, profiling by time remains.
    /// fn processor_up<I: SourceInterface, M: MsrBackend, P: Platform>(
    ///     interface: &'static I,
    ///     this_processor: &Snapshot,
    ///     (msr, platform): (M, P),
    /// ) -> Result<Option<Session<'static, &'static I, M, P>>, InterfaceError> {
    ///     match interface.initialize(this_processor, msr, platform, &COUNTERS) {
    ///         Err(InterfaceError::Counters(CounterError::Unresponsive)) => Ok(None),
    ///         session => session.map(Some),
    ///     }
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor on which the session then lives. An interrupt may come at any time.
    ///
    /// # Errors
    /// Those of [`CounterSession::take`](crate::CounterSession::take). A memory without slots is an error only if the
    /// interface [requires](SourceInterface::requires_memory) slots; otherwise every source is unsupported.
    ///
    /// After an error no counter runs, and only time can be profiled: see
    /// [`DefaultInterface`](crate::DefaultInterface).
    fn initialize<'a, M: MsrBackend, P: Platform>(
        &'a self,
        processor: &Snapshot,
        msr: M,
        platform: P,
        memory: &'a CounterMemory,
    ) -> Result<Session<'a, &'a Self, M, P>, InterfaceError>
    where
        Self: Sized,
    {
        Session::initialize(self, processor, CounterSet::GENERAL, msr, platform, memory)
    }

    /// Takes those of the processor's counters that are in `only`, fixed ones included, like
    /// [`initialize`](Self::initialize). The other counters are left to their owners.
    ///
    /// ```
    /// # use pmu_core::{
    /// #     CounterMemory, CounterSet, InterfaceError, MsrBackend, Platform, ProfileInterface, Session,
    /// #     Snapshot, SourceInterface,
    /// # };
    /// /// Takes all counters but fixed counter 1, which is a watchdog's.
    /// fn processor_up<'a, I: SourceInterface, M: MsrBackend, P: Platform>(
    ///     interface: &'a I,
    ///     this_processor: &Snapshot,
    ///     (msr, platform): (M, P),
    ///     memory: &'a CounterMemory,
    /// ) -> Result<Session<'a, &'a I, M, P>, InterfaceError> {
    ///     let own = CounterSet::ALL.without(CounterSet::fixed(1 << 1));
    ///     interface.initialize_only(this_processor, own, msr, platform, memory)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`initialize`](Self::initialize).
    fn initialize_only<'a, M: MsrBackend, P: Platform>(
        &'a self,
        processor: &Snapshot,
        only: CounterSet,
        msr: M,
        platform: P,
        memory: &'a CounterMemory,
    ) -> Result<Session<'a, &'a Self, M, P>, InterfaceError>
    where
        Self: Sized,
    {
        Session::initialize(self, processor, only, msr, platform, memory)
    }

    /// Services the performance interrupt of the processor that executes the call, and reports each source's overflow
    /// to `overflowed` once: [`pmu_core::service`](crate::service).
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, KProfileSource, MsrBackend, Platform, ProfileInterface, ServiceError};
    /// # fn count(_: KProfileSource, _events: u64) {}
    /// /// The performance interrupt's handler, which is not an NMI.
    /// fn performance_interrupt(
    ///     interface: &impl ProfileInterface,
    ///     (msr, platform): (&impl MsrBackend, &impl Platform),
    ///     memory: &CounterMemory, // this processor's
    /// ) -> Result<(), ServiceError> {
    ///     let serviced = interface.service(msr, platform, memory, |overflow| {
    ///         count(overflow.source, overflow.events);
    ///     });
    ///     serviced.map(|_| ())
    /// }
    /// ```
    ///
    /// # Context
    /// Interrupt or NMI, and any other.
    ///
    /// # Errors
    /// Those of [`pmu_core::service`](crate::service).
    #[inline]
    fn service<M: MsrBackend, P: Platform>(
        &self,
        msr: &M,
        platform: &P,
        memory: &CounterMemory,
        mut overflowed: impl FnMut(Overflow),
    ) -> Result<Serviced, ServiceError>
    where
        Self: Sized,
    {
        crate::service(self, msr, platform, memory, |overflow| {
            self.added().take_up_interval(SourceInterface::opened(self), &overflow);
            if let Some(overflow) = Overflow::of(self.table(), self.added(), overflow) {
                overflowed(overflow);
            }
        })
    }
}

impl<I: SourceInterface> ProfileInterface for I {}
