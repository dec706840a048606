//! The profile interface: a vendor crate's description of its counters, and the operations that follow from it.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

#[cfg(doc)]
use crate::CounterError;
use crate::{
    AddedSources, CounterId, CounterMemory, CounterSet, CounterUnit, EventId, EventOverflow,
    EventSelect, EventSource, EventTable, InterfaceError, Interval, IntervalLimits, IntervalUnit,
    KProfileSource, MsrBackend, NoInterface, Platform, ProfileSource, ServiceError, Serviced,
    Session, Snapshot, SourceIndex, SourceTable,
};

/// A family of counters and its table of profile sources, for the whole machine: the complete interface of a vendor
/// crate.
///
/// One value serves all processors: it is derived from the boot processor, is immutable except for the intervals, and
/// is shared with interrupt handlers. Per-processor state is in a [`CounterMemory`] (interrupt path) and a [`Session`]
/// (control path).
///
/// # Safety
/// - [`unit`](Self::unit) and [`opened`](Self::opened) return the same value on every call: the registers that are
///   accessed must be those that the unit vouched for when the counters were taken.
///
/// An interface of two sources, for a vendor that has no crate yet:
///
/// ```
/// use core::sync::atomic::AtomicU32;
/// use pmu_core::{
///     CounterUnit, EventSelect, KProfileSource, ProfileInterface, ProfileSource, Snapshot, SourceIndex,
///     SourceInterface, SourceTable,
/// };
///
/// static ROWS: [ProfileSource; 2] = [
///     ProfileSource::new(0, "ProfileTime", EventSelect::from_bits(0)),
///     ProfileSource::new(2, "ProfileTotalIssues", EventSelect::from_bits(0x4300C0)),
/// ];
/// static INDEX: SourceIndex<4> = SourceIndex::new(&ROWS);
/// static TABLE: SourceTable = SourceTable::new(&ROWS, &INDEX);
///
/// struct Small {
///     unit: CounterUnit,
///     intervals: [AtomicU32; ROWS.len()],
/// }
/// // SAFETY: the unit is a field that nothing changes, and there are no opened events.
/// unsafe impl SourceInterface for Small {
///     fn name(&self) -> &'static str {
///         "Small"
///     }
///     fn requires_memory(&self) -> bool {
///         false
///     }
///     fn table(&self) -> &'static SourceTable {
///         &TABLE
///     }
///     fn unit(&self) -> &CounterUnit {
///         &self.unit
///     }
///     fn unit_of(&self, _: &Snapshot) -> CounterUnit {
///         self.unit
///     }
///     fn is_declared(&self, row: usize) -> bool {
///         row < ROWS.len()
///     }
///     fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
///         self.intervals.get(row)
///     }
/// }
///
/// let small = Small { unit: CounterUnit::NONE, intervals: [10_000, 0x1_0000].map(AtomicU32::new) };
/// assert_eq!(small.query(KProfileSource::TOTAL_ISSUES).interval, 0x1_0000);
/// ```
///
/// Wrong: a [`unit`](Self::unit) that follows from where the call executes, as on a processor of two kinds of core. The
/// counters were taken on another unit's promise.
pub unsafe trait SourceInterface {
    /// Returns the interface's name.
    fn name(&self) -> &'static str;

    /// Returns whether lent memory without a slot is an error of [`initialize`](ProfileInterface::initialize);
    /// otherwise it leaves every source unsupported.
    fn requires_memory(&self) -> bool;

    /// Returns the table of sources.
    fn table(&self) -> &'static SourceTable;

    /// Returns the boot processor's counters.
    fn unit(&self) -> &CounterUnit;

    /// Returns the counters of a processor of this vendor; empty if it has none of the kind.
    fn unit_of(&self, processor: &Snapshot) -> CounterUnit;

    /// Returns whether the boot processor declares the event of a row of the table. A [`Session`] asks its own
    /// processor besides, by the row's select and [event bit](ProfileSource::event_bit).
    fn is_declared(&self, row: usize) -> bool;

    /// Returns the cell of a row's interval, for the whole machine.
    fn interval_cell(&self, row: usize) -> Option<&AtomicU32>;

    /// Returns what the machine's counters answered. Without it, [`query`](ProfileInterface::query) says of counters
    /// that never answered what CPUID declares.
    fn answer(&self) -> Option<&CounterAnswer> {
        None
    }

    /// Returns the sources beyond the table, for the whole machine.
    #[inline]
    fn added(&self) -> &'static AddedSources {
        AddedSources::none()
    }

    /// Returns the events beyond the table that are opened on the processor that executes the call.
    #[inline]
    fn opened(&self) -> &EventTable {
        EventTable::none()
    }
}

/// Makes the rows of the table the counters' events.
// SAFETY: the unit and the events are the interface's, which `SourceInterface` promises not to change.
unsafe impl<I: SourceInterface> EventSource for I {
    #[inline]
    fn unit(&self) -> &CounterUnit {
        SourceInterface::unit(self)
    }

    #[inline]
    fn row_select(&self, row: usize) -> Option<EventSelect> {
        let source = self.table().rows().get(row).filter(|_| row != 0 && self.is_declared(row))?;
        Some(source.select())
    }

    fn row_event_bit(&self, row: usize) -> Option<u8> {
        self.table().rows().get(row)?.event_bit()
    }

    #[inline]
    fn row_period(&self, row: usize) -> Option<u32> {
        Some(self.interval_cell(row)?.load(Ordering::Relaxed))
    }

    fn rows(&self) -> usize {
        core::ptr::from_ref(self.table()).addr()
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        SourceInterface::opened(self)
    }
}

// SAFETY: all are those of the interface behind the reference.
unsafe impl<I: SourceInterface + ?Sized> SourceInterface for &I {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn requires_memory(&self) -> bool {
        (**self).requires_memory()
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        (**self).table()
    }

    #[inline]
    fn unit(&self) -> &CounterUnit {
        (**self).unit()
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        (**self).unit_of(processor)
    }

    #[inline]
    fn is_declared(&self, row: usize) -> bool {
        (**self).is_declared(row)
    }

    #[inline]
    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        (**self).interval_cell(row)
    }

    fn answer(&self) -> Option<&CounterAnswer> {
        (**self).answer()
    }

    #[inline]
    fn added(&self) -> &'static AddedSources {
        (**self).added()
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        (**self).opened()
    }
}

/// The answer of a machine's counters to the sessions that took them: not known yet, none, or that of some.
///
/// ```
/// use pmu_core::CounterAnswer;
/// // A field of a `SourceInterface`, which returns it.
/// static ANSWER: CounterAnswer = CounterAnswer::new();
/// # let _ = &ANSWER;
/// ```
#[derive(Debug, Default)]
pub struct CounterAnswer(AtomicU8);

const NONE_ANSWERED: u8 = 1;
const ANSWERED: u8 = 2;

impl CounterAnswer {
    /// Creates the value for counters that were not taken yet.
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Notes that a processor's counters answered, or that none of them did.
    pub(crate) fn note(&self, answered: bool) {
        if answered {
            self.0.store(ANSWERED, Ordering::Relaxed);
        } else {
            // Another processor's may have answered.
            let silent = NONE_ANSWERED;
            let _ = self.0.compare_exchange(0, silent, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn none_answered(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NONE_ANSWERED
    }
}

/// An overflow of one source, as [`service`](ProfileInterface::service) reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Overflow {
    /// Source that the counter counts for.
    pub source: KProfileSource,
    /// Number of events that the overflow stands for: the interval that was loaded.
    pub events: u64,
    /// Counter that overflowed.
    pub counter: CounterId,
}

impl Overflow {
    /// Returns the overflow of a row's event, or of an added source's.
    #[inline]
    pub(crate) fn of(
        table: &SourceTable,
        added: &AddedSources,
        overflow: EventOverflow,
    ) -> Option<Self> {
        let EventOverflow { event, period, counter, .. } = overflow;
        let source = match event.row() {
            Some(row) => table.rows().get(row)?.source(),
            None => added.of(&overflow)?,
        };
        Some(Self { source, events: period, counter })
    }
}

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

    /// Returns the information on a source without accessing a register: at best [`Declared`](Availability::Declared).
    /// After an [`initialize`](Self::initialize) to which no counter [answered](CounterError::Unresponsive), on any
    /// processor so far, only time is supported.
    ///
    /// # Context
    /// Any.
    fn query(&self, source: KProfileSource) -> SourceInformation {
        match self.declared_interval(source) {
            Ok((cell, limits)) => SourceInformation {
                source,
                availability: Availability::Declared,
                interval: cell.load(Ordering::Relaxed),
                limits,
            },
            Err(_) => SourceInformation {
                source,
                availability: Availability::Unsupported,
                interval: 0,
                limits: IntervalLimits::of(unit_of(source)),
            },
        }
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
        let (cell, limits) = self.declared_interval(source)?;
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
        let (cell, limits) = self.declared_interval(source)?;
        let interval = limits.clamp(units);
        cell.store(interval.get(), Ordering::Relaxed);
        Ok(interval)
    }

    /// Returns the cell of the interval of a source that the processor declares, and its limits.
    #[doc(hidden)]
    fn declared_interval(
        &self,
        source: KProfileSource,
    ) -> Result<(&AtomicU32, IntervalLimits), InterfaceError> {
        let silent = self.answer().is_some_and(CounterAnswer::none_answered);
        if silent && source != KProfileSource::TIME {
            return Err(InterfaceError::UnsupportedSource(source));
        }
        let declared = match self.row(source) {
            Some(row) => self
                .interval_cell(row)
                .filter(|_| self.is_declared(row))
                .map(|cell| (cell, IntervalLimits::of(unit_of(source)))),
            None => self.added().interval(source, self.unit()),
        };
        declared.ok_or(InterfaceError::UnsupportedSource(source))
    }

    /// Takes over the general counters of the processor that executes the call, which `processor` describes, as
    /// [`Counters::take`](crate::Counters::take) does.
    ///
    /// # Context
    /// Task, on the processor on which the session then lives. An interrupt may come at any time.
    ///
    /// # Errors
    /// Those of [`Counters::take`](crate::Counters::take). If no slot was lent and the interface does not
    /// [require](SourceInterface::requires_memory) one, this is not an error: every source is unsupported.
    ///
    /// After an error no counter runs, and only time remains: see [`DefaultInterface`].
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

/// Returns the unit of a source's interval.
pub(crate) fn unit_of(source: KProfileSource) -> IntervalUnit {
    if source == KProfileSource::TIME {
        IntervalUnit::HundredNanoseconds
    } else {
        IntervalUnit::Events
    }
}

/// Degree to which a source can be relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Availability {
    /// The source is not in the table, or the processor declares its event to be unavailable.
    Unsupported,
    /// CPUID declares the source; no counter was accessed.
    Declared,
    /// The counters of this processor read back the values written to them.
    Proven,
}

/// The information on a source: `HAL_PROFILE_SOURCE_INFORMATION_EX`, with the availability in place of a boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SourceInformation {
    /// Source of the query.
    pub source: KProfileSource,
    /// Availability of the source.
    pub availability: Availability,
    /// Interval in force; 0 if the source is unsupported.
    pub interval: u32,
    /// Unit, default and limits of the interval.
    pub limits: IntervalLimits,
}

impl SourceInformation {
    /// Returns whether the source can be started.
    pub fn is_supported(&self) -> bool {
        self.availability != Availability::Unsupported
    }
}

/// The profile interface of a processor without counters: `ProfileTime` and nothing else.
#[derive(Debug)]
pub struct DefaultInterface {
    time: AtomicU32,
    unit: CounterUnit,
}

impl DefaultInterface {
    /// Creates the interface, with the default interval.
    pub const fn new() -> Self {
        Self::instead_of(NoInterface::NoPerformanceMonitoring)
    }

    /// Creates the interface of a machine that has no counters for this reason.
    pub const fn instead_of(reason: NoInterface) -> Self {
        let time = AtomicU32::new(IntervalLimits::TIME.default);
        Self { time, unit: CounterUnit::absent(reason) }
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

// SAFETY: the unit is a field.
unsafe impl SourceInterface for DefaultInterface {
    fn name(&self) -> &'static str {
        "Default"
    }

    fn requires_memory(&self) -> bool {
        false
    }

    fn table(&self) -> &'static SourceTable {
        &TABLE
    }

    fn unit(&self) -> &CounterUnit {
        &self.unit
    }

    fn unit_of(&self, _: &Snapshot) -> CounterUnit {
        self.unit
    }

    fn is_declared(&self, row: usize) -> bool {
        row == 0
    }

    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        (row == 0).then_some(&self.time)
    }
}
