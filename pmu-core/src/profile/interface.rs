//! The operations of a profile interface, the same for all vendors.

use core::fmt;
use core::sync::atomic::AtomicU32;

use crate::counters::error::{CounterError, EventsError, ServiceError};
use crate::counters::interrupt::service::{Serviced, serve_interrupt};
use crate::counters::names::{CounterSet, EventId};
use crate::counters::registers::counter::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::memory::CounterMemory;
use crate::detection::NoInterface;
use crate::frame::ProcessorNumber;
use crate::interval::{Interval, IntervalError};
use crate::platform::{Hardware, PlatformError};
use crate::profile::session::{Overflow, Session};
use crate::profile::source::{
    KProfileSource, ProfileSource, SourceIndex, SourceInformation, SourceTable,
};
use crate::profile::source_interface::{
    ProfileSources, SourceInterface, declared_information, declared_interval, store_interval,
};
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
    /// # use pmu_core::{CounterError, CounterMemory, CounterSlot, Hardware};
    /// # use pmu_core::profile::{InterfaceError, ProfileInterface, Session, SourceInterface};
    /// # use pmu_core::registers::MAX_COUNTERS;
    /// static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new(); // one per processor
    ///
    /// /// Each processor, as it comes up. Without counters, profiling by time remains.
    /// fn processor_up<I: SourceInterface, H: Hardware>(
    ///     interface: &'static I,
    ///     this_processor: &I::Processor,
    ///     hardware: H,
    /// ) -> Result<Option<Session<'static, &'static I, H>>, InterfaceError> {
    ///     match interface.initialize(this_processor, hardware, &COUNTERS) {
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
    fn initialize<'a, H: Hardware>(
        &'a self,
        processor: &Self::Processor,
        hardware: H,
        memory: &'a CounterMemory,
    ) -> Result<Session<'a, &'a Self, H>, InterfaceError>
    where
        Self: Sized,
    {
        Session::initialize(self, processor, CounterSet::GENERAL, hardware, memory)
    }

    /// Takes ownership of those counters in `only` that the processor has, and returns a session. `only` may include
    /// fixed counters. Counters outside `only` stay with their owners. If `only` is empty, the session takes no
    /// counter, and supports only `ProfileTime`.
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, CounterSet, Hardware};
    /// # use pmu_core::profile::{InterfaceError, ProfileInterface, Session, SourceInterface};
    /// /// Takes all counters but fixed counter 1, which is a watchdog's.
    /// fn processor_up<'a, I: SourceInterface, H: Hardware>(
    ///     interface: &'a I,
    ///     this_processor: &I::Processor,
    ///     hardware: H,
    ///     memory: &'a CounterMemory,
    /// ) -> Result<Session<'a, &'a I, H>, InterfaceError> {
    ///     let own = CounterSet::ALL.without(CounterSet::fixed(1 << 1));
    ///     interface.initialize_only(this_processor, own, hardware, memory)
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`initialize`](Self::initialize).
    fn initialize_only<'a, H: Hardware>(
        &'a self,
        processor: &Self::Processor,
        only: CounterSet,
        hardware: H,
        memory: &'a CounterMemory,
    ) -> Result<Session<'a, &'a Self, H>, InterfaceError>
    where
        Self: Sized,
    {
        Session::initialize(self, processor, only, hardware, memory)
    }

    /// Services the performance interrupt of the processor that executes the call, and calls `overflowed` once for each
    /// source that overflowed. This method calls [`pmu_core::service`](crate::service).
    ///
    /// The samples of [`Events::service_samples`](crate::Events::service_samples) contain the records of a
    /// [facility](SourceInterface::Facility), such as branches.
    ///
    /// ```
    /// # use pmu_core::{CounterMemory, Hardware, ServiceError};
    /// # use pmu_core::profile::{KProfileSource, ProfileInterface};
    /// # fn count(_: KProfileSource, _events: u64) {}
    /// /// The performance interrupt's handler, which is not an NMI.
    /// fn performance_interrupt(
    ///     interface: &impl ProfileInterface,
    ///     hardware: &impl Hardware,
    ///     memory: &CounterMemory, // this processor's
    /// ) -> Result<(), ServiceError> {
    ///     let serviced = interface.service(hardware, memory, |overflow| {
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
    fn service<H: Hardware>(
        &self,
        hardware: &H,
        memory: &CounterMemory,
        mut overflowed: impl FnMut(Overflow),
    ) -> Result<Serviced, ServiceError>
    where
        Self: Sized,
    {
        serve_interrupt(self, hardware, memory, move |overflow, _| {
            self.added().take_up_interval(SourceInterface::opened(self), &overflow);
            if let Some(overflow) = Overflow::of(self.table(), self.added(), overflow) {
                overflowed(overflow);
            }
        })
    }
}

impl<I: SourceInterface> ProfileInterface for I {}

/// The profile interface of a machine without profile sources on counters. The interface's only source is
/// `ProfileTime`.
#[derive(Debug)]
pub struct DefaultInterface(ProfileSources<[AtomicU32; 1]>);

impl DefaultInterface {
    /// Creates the interface, in which `ProfileTime` has its default interval.
    pub const fn new() -> Self {
        Self::instead_of(NoInterface::NoPerformanceMonitoring)
    }

    /// Creates the interface of a machine on which no counters were detected. `reason` is the error that the vendor
    /// crate's detection of counters returned.
    ///
    /// ```
    /// # use pmu_core::profile::{DefaultInterface, ProfileInterface};
    /// # use pmu_core::NoInterface;
    /// let interface = DefaultInterface::instead_of(NoInterface::NoLongMode);
    /// assert_eq!(interface.sources().len(), 1); // Only `ProfileTime`.
    /// ```
    pub const fn instead_of(reason: NoInterface) -> Self {
        Self::beside(CounterUnit::absent(reason))
    }

    /// Creates the interface of a machine that has counters, but no profile sources on them. `unit` describes the boot
    /// processor's counters. The interface does not know those of other processors, so that its
    /// [`unit_of`](SourceInterface::unit_of) has none: an interface that contains this one asks each processor.
    pub const fn beside(unit: CounterUnit) -> Self {
        Self(ProfileSources::new("Default", unit))
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
unsafe impl SourceInterface for DefaultInterface {
    type Processor = Snapshot;
    type Facility = ();

    fn facility(&self) {}

    #[inline]
    fn profile_sources(&self) -> &ProfileSources {
        &self.0
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        &TABLE
    }

    fn unit_of(&self, _: &Snapshot) -> CounterUnit {
        let unit = self.unit();
        if unit.counters().is_empty() { *unit } else { CounterUnit::NONE }
    }
}

/// Error of an operation on a profile interface.
///
/// A failed operation changes nothing. The only exception is the error [`CounterError::StateUnknown`]. After an error
/// of [`initialize`](crate::profile::ProfileInterface::initialize), no counter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum InterfaceError {
    /// The interface or this processor does not support the source.
    #[error("{0} is not supported")]
    UnsupportedSource(KProfileSource),
    /// Every counter that could count the source is in use.
    #[error("no free counter for {0}")]
    NoFreeCounter(KProfileSource),
    /// The source already runs on this processor.
    #[error("{0} is already started")]
    AlreadyStarted(KProfileSource),
    /// The source does not run on this processor.
    #[error("{0} is not started")]
    NotStarted(KProfileSource),
    /// The interval is outside the source's limits.
    #[error("{0}")]
    Interval(IntervalError),
    /// The platform has no profile timer, or the timer cannot run at the interval.
    #[error("{0}")]
    Platform(PlatformError),
    /// Within the time that the embedder waits, the processor did not answer a request to start or stop a source. After
    /// an unanswered start, the source does not run on that processor. If the processor handles the request later, the
    /// source is stopped again. After an unanswered stop, the source stops when the processor handles the request.
    #[error("processor {0} does not answer")]
    NoAnswer(ProcessorNumber),
    /// The processor has no session, because the kernel has not taken the processor's counters, or has released them.
    #[error("processor {0} has no session")]
    NoSession(ProcessorNumber),
    /// An operation on the processor's counters failed, or the processor cannot count the event of an added source.
    #[error(transparent)]
    Counters(CounterError),
    /// A source with this value exists already.
    #[error("{0} was added before")]
    Exists(KProfileSource),
    /// The [`AddedSources`](crate::profile::AddedSources) have no free slot.
    #[error("room for {room} added sources, and no more")]
    Full {
        /// Number of sources for which the [`AddedSources`](crate::profile::AddedSources) have room.
        room: usize,
    },
    /// The event of an added source does not interrupt, because it has no period.
    #[error("an event without a period does not interrupt")]
    NoPeriod,
}

impl InterfaceError {
    /// Returns the status with which Windows reports this error; `None` if Windows has no status for this error.
    ///
    /// ```
    /// # use pmu_core::profile::{InterfaceError, NtStatus};
    /// /// The result of a system service.
    /// fn result(outcome: Result<(), InterfaceError>) -> NtStatus {
    ///     match outcome {
    ///         Ok(()) => NtStatus::SUCCESS,
    ///         Err(error) => error.status().unwrap_or(NtStatus::NOT_SUPPORTED),
    ///     }
    /// }
    /// # let _ = result;
    /// ```
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::UnsupportedSource(_) => Some(NtStatus::NOT_SUPPORTED),
            Self::NoFreeCounter(_)
            | Self::Counters(
                CounterError::NoFreeCounter | CounterError::InsufficientMemory { .. },
            ) => Some(NtStatus::INSUFFICIENT_RESOURCES),
            Self::AlreadyStarted(_) => Some(NtStatus::PROFILING_NOT_STOPPED),
            Self::NotStarted(_) => Some(NtStatus::PROFILING_NOT_STARTED),
            // Windows' call to set an interval always succeeds, and Windows does not have the other errors.
            Self::Interval(_)
            | Self::Platform(_)
            | Self::NoAnswer(_)
            | Self::NoSession(_)
            | Self::Counters(_)
            | Self::Exists(_)
            | Self::Full { .. }
            | Self::NoPeriod => None,
        }
    }
}

impl From<IntervalError> for InterfaceError {
    fn from(error: IntervalError) -> Self {
        Self::Interval(error)
    }
}

impl From<PlatformError> for InterfaceError {
    fn from(error: PlatformError) -> Self {
        Self::Platform(error)
    }
}

impl From<CounterError> for InterfaceError {
    fn from(error: CounterError) -> Self {
        Self::Counters(error)
    }
}

impl From<EventsError> for InterfaceError {
    fn from(error: EventsError) -> Self {
        Self::Counters(error.reason)
    }
}

/// An `NTSTATUS` value, with its name. Source: [MS-ERREF] §2.3.1.
///
/// ```
/// use pmu_core::profile::NtStatus;
/// let status = NtStatus::PROFILING_AT_LIMIT;
/// assert_eq!((status.value(), status.name()), (0xC000_00D3, "STATUS_PROFILING_AT_LIMIT"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NtStatus(u32);

macro_rules! statuses {
    ($($constant:ident = $value:literal $name:literal;)*) => {
        impl NtStatus {
            $(#[doc = concat!("`", $name, "`, ", stringify!($value), ".")]
            pub const $constant: Self = Self($value);)*

            /// All status values that have a constant here. Windows' profiling calls return these values.
            pub const ALL: &[Self] = &[$(Self::$constant),*];

            /// Returns the name of the status in NTSTATUS.H.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $name,)*
                    _ => "(unnamed)",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x0000_0000 "STATUS_SUCCESS";
    DATATYPE_MISALIGNMENT = 0x8000_0002 "STATUS_DATATYPE_MISALIGNMENT";
    BUFFER_OVERFLOW = 0x8000_0005 "STATUS_BUFFER_OVERFLOW";
    NOT_IMPLEMENTED = 0xC000_0002 "STATUS_NOT_IMPLEMENTED";
    INVALID_INFO_CLASS = 0xC000_0003 "STATUS_INVALID_INFO_CLASS";
    INFO_LENGTH_MISMATCH = 0xC000_0004 "STATUS_INFO_LENGTH_MISMATCH";
    ACCESS_VIOLATION = 0xC000_0005 "STATUS_ACCESS_VIOLATION";
    INVALID_HANDLE = 0xC000_0008 "STATUS_INVALID_HANDLE";
    INVALID_PARAMETER = 0xC000_000D "STATUS_INVALID_PARAMETER";
    NO_MEMORY = 0xC000_0017 "STATUS_NO_MEMORY";
    INVALID_SYSTEM_SERVICE = 0xC000_001C "STATUS_INVALID_SYSTEM_SERVICE";
    ACCESS_DENIED = 0xC000_0022 "STATUS_ACCESS_DENIED";
    BUFFER_TOO_SMALL = 0xC000_0023 "STATUS_BUFFER_TOO_SMALL";
    OBJECT_TYPE_MISMATCH = 0xC000_0024 "STATUS_OBJECT_TYPE_MISMATCH";
    PRIVILEGE_NOT_HELD = 0xC000_0061 "STATUS_PRIVILEGE_NOT_HELD";
    INSUFFICIENT_RESOURCES = 0xC000_009A "STATUS_INSUFFICIENT_RESOURCES";
    MEMORY_NOT_ALLOCATED = 0xC000_00A0 "STATUS_MEMORY_NOT_ALLOCATED";
    PROFILING_NOT_STARTED = 0xC000_00B7 "STATUS_PROFILING_NOT_STARTED";
    PROFILING_NOT_STOPPED = 0xC000_00B8 "STATUS_PROFILING_NOT_STOPPED";
    NOT_SUPPORTED = 0xC000_00BB "STATUS_NOT_SUPPORTED";
    PROFILING_AT_LIMIT = 0xC000_00D3 "STATUS_PROFILING_AT_LIMIT";
    INVALID_PARAMETER_7 = 0xC000_00F5 "STATUS_INVALID_PARAMETER_7";
    ADDRESS_ALREADY_EXISTS = 0xC000_020A "STATUS_ADDRESS_ALREADY_EXISTS";
    WMI_INSTANCE_NOT_FOUND = 0xC000_0296 "STATUS_WMI_INSTANCE_NOT_FOUND";
    WMI_ALREADY_ENABLED = 0xC000_0303 "STATUS_WMI_ALREADY_ENABLED";
}

impl NtStatus {
    /// Returns the status as a number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns whether the status has the severity success or informational, as `NT_SUCCESS` does. For a warning such
    /// as [`BUFFER_OVERFLOW`](Self::BUFFER_OVERFLOW) the result is `false`.
    ///
    /// ```
    /// # use pmu_core::profile::NtStatus;
    /// assert!(NtStatus::SUCCESS.is_success());
    /// assert!(!NtStatus::BUFFER_OVERFLOW.is_success()); // a warning
    /// ```
    pub const fn is_success(self) -> bool {
        self.0 < 0x8000_0000
    }
}

impl fmt::Debug for NtStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#010X})", self.name(), self.0)
    }
}
