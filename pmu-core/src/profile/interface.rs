//! The operations of a profile interface, the same for all vendors.

use crate::counters::error::ServiceError;
use crate::counters::interrupt::claim::Serviced;
use crate::counters::interrupt::service::serve;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::counters::shared::memory::CounterMemory;
use crate::interval::Interval;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;
use crate::profile::declared::{declared_information, declared_interval, store_interval};
use crate::profile::error::InterfaceError;
use crate::profile::information::SourceInformation;
use crate::profile::overflow::Overflow;
use crate::profile::session::Session;
use crate::profile::source::{KProfileSource, ProfileSource};
use crate::profile::source_interface::SourceInterface;
use crate::snapshot::Snapshot;

/// The operations of every profile interface. A type that implements [`SourceInterface`] cannot override these
/// operations.
pub trait ProfileInterface: SourceInterface {
    /// Returns the rows of the interface's table of sources, ascending by value. The first row is `ProfileTime`.
    fn sources(&self) -> &'static [ProfileSource] {
        self.table().rows()
    }

    /// Returns the index of a source in the interface's table of sources.
    #[inline]
    fn row(&self, source: KProfileSource) -> Option<usize> {
        self.table().row(source)
    }

    /// Returns the identity of a source's event, for the methods of [`CounterSession`](crate::CounterSession).
    #[inline]
    fn event(&self, source: KProfileSource) -> Option<EventId> {
        self.row(source).map(EventId::of_row)
    }

    /// Returns the index of the source with this name in the interface's table. `name` is the documented name or the
    /// name that Windows reports. Case matters.
    ///
    /// ```
    /// # use pmu_core::profile::{DefaultInterface, KProfileSource, ProfileInterface};
    /// let interface = DefaultInterface::new();
    /// let row = interface.row_named("ProfileTime").expect("each interface has it");
    /// assert_eq!(interface.sources()[row].source(), KProfileSource::TIME);
    /// ```
    fn row_named(&self, name: &str) -> Option<usize> {
        self.table().row_named(name)
    }

    /// Returns the information on a source, and accesses no register. The source's availability is
    /// [`Unsupported`](crate::profile::Availability::Unsupported) or
    /// [`Declared`](crate::profile::Availability::Declared). It is never
    /// [`Verified`](crate::profile::Availability::Verified), because only an access to a counter verifies a source. If
    /// [`initialize`](Self::initialize) failed because all counters were
    /// [unresponsive](crate::CounterError::Unresponsive), only `ProfileTime` is supported. If `initialize` got no
    /// memory for counters, and did not [require](SourceInterface::requires_memory) it, no source is supported. In both
    /// cases all declared sources are supported again when `initialize` takes the counters of a processor.
    ///
    /// ```
    /// # use pmu_core::profile::{DefaultInterface, ProfileInterface};
    /// /// Lists the sources that a machine declares, with their intervals.
    /// fn list(interface: &impl ProfileInterface, mut line: impl FnMut(&str, u32)) {
    ///     for row in interface.sources() {
    ///         let information = interface.query(row.source());
    ///         if information.is_supported() {
    ///             line(row.name(), information.interval);
    ///         }
    ///     }
    /// }
    /// # list(&DefaultInterface::new(), |name, interval| assert_eq!((name, interval), ("ProfileTime", 10_000)));
    /// ```
    ///
    /// # Context
    /// Any.
    fn query(&self, source: KProfileSource) -> SourceInformation {
        declared_information(self, source)
    }

    /// Sets the machine-wide interval of a source. The [names](ProfileSource::another_name_of) of a source share this
    /// interval.
    ///
    /// A running counter uses the new interval from its next overflow on. A running timer uses the new interval after a
    /// call of [`Session::apply_interval`].
    ///
    /// ```
    /// # use pmu_core::profile::{DefaultInterface, InterfaceError, KProfileSource, ProfileInterface};
    /// let interface = DefaultInterface::new();
    /// // `ProfileTime`, in units of 100 ns: every 2 ms.
    /// let interval = interface.set_interval(KProfileSource::TIME, 20_000)?;
    /// assert_eq!(interval.get(), interface.query(KProfileSource::TIME).interval);
    /// # Ok::<(), pmu_core::profile::InterfaceError>(())
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// - [`UnsupportedSource`](InterfaceError::UnsupportedSource).
    /// - [`Interval`](InterfaceError::Interval): `units` is outside the source's limits.
    fn set_interval(&self, source: KProfileSource, units: u64) -> Result<Interval, InterfaceError> {
        let (cell, limits) = declared_interval(self, source)?;
        let interval = limits.check(units)?;
        store_interval(self, source, cell, interval);
        Ok(interval)
    }

    /// Sets the machine-wide interval of a source to `units`, or to the nearest interval within the source's limits.
    /// Returns the new interval.
    ///
    /// ```
    /// # use pmu_core::profile::{DefaultInterface, InterfaceError, KProfileSource, ProfileInterface};
    /// let interface = DefaultInterface::new();
    /// // Windows, too, replaces an interval that is too short by the shortest one.
    /// let interval = interface.set_interval_clamped(KProfileSource::TIME, 1)?;
    /// assert_eq!(interval.get(), 1_221);
    /// # Ok::<(), pmu_core::profile::InterfaceError>(())
    /// ```
    fn set_interval_clamped(
        &self,
        source: KProfileSource,
        units: u64,
    ) -> Result<Interval, InterfaceError> {
        let (cell, limits) = declared_interval(self, source)?;
        let interval = limits.clamp(units);
        store_interval(self, source, cell, interval);
        Ok(interval)
    }

    /// Takes ownership of the general counters of the processor that executes the call, and returns a session that
    /// starts sources on these counters. `processor` is a snapshot of this processor. The call clears the event selects
    /// of all these counters, even of a counter that the session does not use because `memory` has no slot for it.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterMemory, CounterSlot, Platform, Snapshot};
    /// # use pmu_core::profile::{InterfaceError, ProfileInterface, Session, SourceInterface};
    /// # use pmu_core::registers::MAX_COUNTERS;
    /// # use pmu_core::msr::MsrBackend;
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
    /// Task. The session stays on the processor that executes the call. An interrupt may come at any time.
    ///
    /// # Errors
    /// The errors of [`CounterSession::take`](crate::CounterSession::take). If `memory` has no slots for counters, the
    /// method [`requires_memory`](SourceInterface::requires_memory) decides. If `requires_memory` returns `true`, the
    /// call fails. If `requires_memory` returns `false`, the session supports no source.
    ///
    /// After an error, no counter runs. The kernel can still profile by time: see
    /// [`DefaultInterface`](crate::profile::DefaultInterface).
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

    /// Takes ownership of those counters in `only` that the processor has, and returns a session. `only` may include
    /// fixed counters. Counters outside `only` stay with their owners. If `only` is empty, the session takes no
    /// counter, and supports only `ProfileTime`.
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, CounterSet, Platform, Snapshot};
    /// # use pmu_core::profile::{InterfaceError, ProfileInterface, Session, SourceInterface};
    /// # use pmu_core::msr::MsrBackend;
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
    /// The errors of [`initialize`](Self::initialize).
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

    /// Services the performance interrupt of the processor that executes the call, and calls `overflowed` once for each
    /// source that overflowed. This method calls [`pmu_core::service`](crate::service).
    ///
    /// The samples of [`WithOpenedEvents::service_samples`](crate::profile::WithOpenedEvents::service_samples) contain
    /// the records of a [facility](SourceInterface::Facility), such as branches.
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, Platform, ServiceError};
    /// # use pmu_core::profile::{KProfileSource, ProfileInterface};
    /// # use pmu_core::msr::MsrBackend;
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
    /// Any context: task, interrupt or NMI.
    ///
    /// # Errors
    /// The errors of [`pmu_core::service`](crate::service).
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
        let facility = SourceInterface::facility(self);
        serve(self, msr, platform, memory, facility, move |overflow, _| {
            self.added().take_up_interval(SourceInterface::opened(self), &overflow);
            if let Some(overflow) = Overflow::of(self.table(), self.added(), overflow) {
                overflowed(overflow);
            }
        })
    }
}

impl<I: SourceInterface> ProfileInterface for I {}
