//! The operations of a profile interface, the same for all vendors.

use core::sync::atomic::Ordering;

use crate::counters::error::ServiceError;
use crate::counters::interrupt::claim::Serviced;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::counters::shared::memory::CounterMemory;
use crate::interval::Interval;
use crate::msr::MsrBackend;
use crate::platform::Platform;
use crate::profile::declared::{declared_information, declared_interval};
use crate::profile::error::InterfaceError;
use crate::profile::information::SourceInformation;
use crate::profile::overflow::Overflow;
use crate::profile::session::Session;
use crate::profile::source::{KProfileSource, ProfileSource};
use crate::profile::source_interface::SourceInterface;
use crate::snapshot::Snapshot;

/// The operations of a profile interface. They are the same for all interfaces and cannot be overridden.
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
    fn row_named(&self, name: &str) -> Option<usize> {
        self.table().row_named(name)
    }

    /// Returns the information on a source without accessing a register: at best
    /// [`Declared`](crate::Availability::Declared). After an [`initialize`](Self::initialize) to which no counter
    /// [answered](crate::CounterError::Unresponsive), on any processor so far, only time is supported.
    ///
    /// # Context
    /// Any.
    fn query(&self, source: KProfileSource) -> SourceInformation {
        declared_information(self, source)
    }

    /// Sets the machine-wide interval of a source.
    ///
    /// A running counter takes up the interval at its next overflow, a running timer at [`Session::apply_interval`].
    /// The interval stays until it is set again.
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

    /// Sets the nearest interval within the limits, like [`set_interval`](Self::set_interval), and returns it.
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

    /// Takes over the general counters of the processor that executes the call, which `processor` describes, as
    /// [`CounterSession::take`](crate::CounterSession::take) does.
    ///
    /// # Context
    /// Task, on the processor on which the session then lives. An interrupt may come at any time.
    ///
    /// # Errors
    /// Those of [`CounterSession::take`](crate::CounterSession::take). If no slot was lent and the interface does not
    /// [require](SourceInterface::requires_memory) one, this is not an error: every source is unsupported.
    ///
    /// After an error no counter runs, and only time remains: see [`DefaultInterface`](crate::DefaultInterface).
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

    /// Takes over those of the processor's counters that are in `only`, fixed ones included, and leaves the others to
    /// their owners.
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

    /// Services the performance interrupt of the processor that executes the call, as
    /// [`pmu_core::service`](crate::service) does, and reports each source's overflow to `overflowed` once.
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
