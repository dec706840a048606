//! The trait of what counters count: the sources of a profile interface's table, and opened events.

use core::ptr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::access::backend::{AccessFault, RegisterBackend};
use crate::counters::error::CounterError;
use crate::counters::events::count::EventOverflow;
use crate::counters::hooks::event_facility::{EventFacility, UnitAccess};
use crate::counters::hooks::facility::Facility;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::{Counter, EventSelect};
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::CoreThread;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::table::EventTable;
use crate::interval::{Interval, IntervalLimits, IntervalUnit};
use crate::profile::added::{AddedSources, Overflow};
use crate::profile::error::InterfaceError;
use crate::profile::interface::ProfileSources;
use crate::profile::source::{
    Availability, KProfileSource, ProfileSource, SourceInformation, SourceTable,
};

/// Describes what the counters of a machine's processors count: the profile sources of a table, which all processors
/// share, and events that are [opened](crate::CounterSession::open) on one processor.
///
/// A vendor crate's profile interface describes a whole machine: the counters of its processors, and the table of
/// sources that run on these counters. The kernel makes one value of it, on the boot processor, and uses this value on
/// all processors. A [`CounterUnit`] has no sources. [`Events`](crate::Events) adds to either what is one processor's:
/// its opened events, and the hardware beside its counters. Tasks and interrupt handlers share the value. The value is
/// constant, except for the intervals of the sources. Each processor's state is in a
/// [`CounterMemory`](crate::memory::CounterMemory), which the interrupt handler uses, and in a session, which the
/// kernel's tasks use.
///
/// An implementation has the required methods, and of the others those that its processors need. It leaves the
/// operations as they are, those from [`sources`](Self::sources) on: sessions and [`Events`](crate::Events) would not
/// see another one.
///
/// # Context
/// Any context, including NMI, for the methods up to [`has_idle_facility`](Self::has_idle_facility) but
/// [`unit_of`](Self::unit_of) and [`requires_memory`](Self::requires_memory), which tasks call. No method that an
/// interrupt calls takes a lock, allocates or panics.
///
/// # Safety
/// - Each call of [`unit`](Self::unit) returns the same unit, which may be that of
///   [`profile_sources`](Self::profile_sources). The session accesses the registers that this unit names.
/// - The registers of the counters that [`unit_of`](Self::unit_of) returns exist on the processor that its argument
///   describes.
/// - Each call of [`opened`](Self::opened) returns a reference to the same object. The object's contents may change.
///
/// This example is an interface with two sources, for a vendor without a crate:
///
/// ```
/// use core::sync::atomic::AtomicU32;
/// use pmu_core::{CounterUnit, EventSource};
/// use pmu_core::profile::{KProfileSource, ProfileSource, ProfileSources, SourceIndex, SourceTable};
/// use pmu_core::registers::EventSelect;
///
/// static ROWS: [ProfileSource; 2] = [
///     ProfileSource::new(0, "ProfileTime", EventSelect::from_bits(0)),
///     ProfileSource::new(2, "ProfileTotalIssues", EventSelect::from_bits(0x3_00C0)),
/// ];
/// static INDEX: SourceIndex<4> = SourceIndex::new(&ROWS);
/// static TABLE: SourceTable = SourceTable::new(&ROWS, &INDEX);
///
/// struct Small(ProfileSources<[AtomicU32; ROWS.len()]>);
/// // SAFETY: nothing changes the field, all processors are alike, and there are no opened events.
/// unsafe impl EventSource for Small {
///     type Processor = ();
///     fn profile_sources(&self) -> &ProfileSources {
///         &self.0
///     }
///     fn table(&self) -> &'static SourceTable {
///         &TABLE
///     }
///     fn unit_of(&self, _: &()) -> CounterUnit {
///         *self.unit()
///     }
///     type Facility = ();
///     fn facility(&self) {}
/// }
///
/// let small = Small(ProfileSources::new("Small", CounterUnit::NONE));
/// assert_eq!(small.query(KProfileSource::TOTAL_ISSUES).interval, 0x1_0000);
/// ```
///
/// Wrong: on a machine with two core types, [`unit`](Self::unit) returns the unit of the core that executes the call. A
/// session on a core of one type may then get the unit of the other type. The two units may have different register
/// addresses.
pub unsafe trait EventSource {
    /// Description of one processor, by which the interface knows the processor's counters: on x86, the
    /// [`Snapshot`](crate::x86::Snapshot) of its CPUID.
    type Processor;

    /// Returns the intervals of the sources, and the boot processor's counters.
    fn profile_sources(&self) -> &ProfileSources;

    /// Returns the table of sources. It is not part of [`ProfileSources`], so that the table is not linked if nothing
    /// uses sources.
    fn table(&self) -> &'static SourceTable;

    /// Returns the counters of the processor that `processor` describes. There are none if that processor
    /// has no counters of the interface's vendor.
    fn unit_of(&self, processor: &Self::Processor) -> CounterUnit;

    /// Returns whether the boot processor declares the event of a row of the table. The default implementation returns
    /// `true` for each row. A [`Session`](crate::profile::Session) makes the same check for the processor on which the
    /// session runs. This check uses the row's event select and
    /// [event bit](crate::profile::ProfileSource::event_bit).
    #[inline]
    fn is_declared(&self, row: usize) -> bool {
        row < self.table().rows().len()
    }

    /// Returns whether [`Session::take`](crate::profile::Session::take) requires memory for counter slots. If the
    /// result is `true`, `take` fails without this memory. If the result is `false`, `take` succeeds without this
    /// memory, and the session supports no source. The default implementation returns `false`.
    fn requires_memory(&self) -> bool {
        false
    }

    /// Returns the interface's name.
    fn name(&self) -> &'static str {
        self.profile_sources().name
    }

    /// Returns a value that identifies the table: its address, or 0 if it has no rows. A session
    /// [saves](crate::CounterSession::save) this value with the counters, and restores them only where the value is the
    /// same.
    #[inline]
    fn table_id(&self) -> usize {
        ptr::from_ref(self.table()).addr()
    }

    /// Returns the description of the boot processor's counters.
    #[inline]
    fn unit(&self) -> &CounterUnit {
        &self.profile_sources().unit
    }

    /// Returns the sources that the kernel has added to the sources in the table. A vendor's interface has none:
    /// [`Events::adding`](crate::Events::adding) adds them.
    #[inline]
    fn added(&self) -> &'static AddedSources {
        AddedSources::none()
    }

    /// Returns the table of [opened](crate::CounterSession::open) events: that of one processor, whose events these
    /// are. A machine's interface has none.
    #[inline]
    fn opened(&self) -> &EventTable {
        EventTable::none()
    }

    /// Returns the logical processor whose events these are, if its facility is
    /// [`OnSharedCore`](crate::shared_core::OnSharedCore).
    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        None
    }

    /// Hardware beside the counters that [opened](crate::CounterSession::open) events can ask for, such as [counter
    /// reload](crate::reload::AutoCounterReload). A vendor's interface has none, which is `()`:
    /// [`Events::with`](crate::Events::with) adds that of one processor.
    type Facility: EventFacility;

    /// Returns the hardware beside the counters of the processor whose events these are.
    fn facility(&self) -> Self::Facility;

    /// Returns whether that hardware [is idle](crate::facility::Facility::is_idle). An interrupt then does not call
    /// [`facility`](Self::facility).
    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.facility().is_idle()
    }

    /// Returns the rows of the interface's table of sources, ascending by value. The first row is `ProfileTime`.
    fn sources(&self) -> &'static [ProfileSource] {
        self.table().rows()
    }

    /// Returns the variables with the machine-wide intervals of the table's rows, in the order of the rows; there may
    /// be more. Each interval is from 1 to 2³¹ − 1, as [`set_interval`](Self::set_interval) stores it. The rows of one
    /// source's [names](crate::profile::ProfileSource::another_name_of) hold one value.
    #[inline]
    fn intervals(&self) -> &[AtomicU32] {
        &self.profile_sources().intervals
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
    /// # use pmu_core::EventSource;
    /// # use pmu_core::profile::{DefaultInterface, KProfileSource};
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
    /// [`Session::take`](crate::profile::Session::take) failed because all counters were
    /// [unresponsive](crate::error::CounterError::Unresponsive), only `ProfileTime` is supported. If `take` got no
    /// memory for counters, and did not [require](Self::requires_memory) it, no source is supported. In both cases all
    /// declared sources are supported again when a session takes the counters of a processor.
    ///
    /// ```
    /// # use pmu_core::EventSource;
    /// # use pmu_core::profile::DefaultInterface;
    /// /// Lists the sources that a machine declares, with their intervals.
    /// fn list(interface: &impl EventSource, mut line: impl FnMut(&str, u32)) {
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
        information(self, source)
    }

    /// Sets the machine-wide interval of a source. The [names](ProfileSource::another_name_of) of a source share this
    /// interval.
    ///
    /// A running counter uses the new interval from its next overflow on. A running timer uses the new interval after a
    /// call of [`Session::apply_interval`](crate::profile::Session::apply_interval).
    ///
    /// ```
    /// # use pmu_core::EventSource;
    /// # use pmu_core::profile::{DefaultInterface, InterfaceError, KProfileSource};
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
    /// - [`Counters`](InterfaceError::Counters): the source is of a [software event](crate::Event::software), which
    ///   cannot have this period.
    fn set_interval(&self, source: KProfileSource, units: u64) -> Result<Interval, InterfaceError> {
        let (cell, limits) = declared_interval(self, source)?;
        let interval = limits.check(units).map_err(|error| match self.added().event(source) {
            // An error of intervals has the limits of all other events.
            Some((of, _)) if of.is_software() => {
                InterfaceError::Counters(CounterError::Period(units))
            }
            _ => InterfaceError::from(error),
        })?;
        store_interval(self, source, cell, interval);
        Ok(interval)
    }

    /// Sets the machine-wide interval of a source to `units`, or to the nearest interval within the source's limits.
    /// Returns the new interval.
    ///
    /// ```
    /// # use pmu_core::EventSource;
    /// # use pmu_core::profile::{DefaultInterface, InterfaceError, KProfileSource};
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

    /// Returns the overflow of a source: of a row of the table, or of an added source. Returns `None` if the kernel
    /// opened the event itself.
    ///
    /// ```
    /// # use pmu_core::{EventSource, Hardware, service};
    /// # use pmu_core::error::ServiceError;
    /// # use pmu_core::memory::CounterMemory;
    /// # use pmu_core::profile::KProfileSource;
    /// # fn source_hit(_: KProfileSource) {}
    /// # fn sample(_tag: u64) {}
    /// /// The handler of sources and opened events on the same counters.
    /// fn performance_interrupt<S: EventSource, H: Hardware>(
    ///     events: &S,
    ///     hardware: &H,
    ///     memory: &CounterMemory, // this processor's
    /// ) -> Result<(), ServiceError> {
    ///     let serviced = service(events, hardware, memory, |overflow| match events.overflow(&overflow) {
    ///         Some(overflow) => source_hit(overflow.source),
    ///         None => sample(overflow.tag),
    ///     });
    ///     serviced.map(|_| ())
    /// }
    /// ```
    ///
    /// # Context
    /// Any context, including NMI.
    #[inline]
    fn overflow(&self, overflow: &EventOverflow) -> Option<Overflow> {
        Overflow::of(self.table(), self.added(), overflow)
    }
}

/// Forwards what of an [`EventSource`] is the interface's own, `$inner`.
macro_rules! forward_interface {
    ($self:ident => $inner:expr) => {
        #[inline]
        fn profile_sources(&$self) -> &ProfileSources {
            $inner.profile_sources()
        }

        fn unit_of(&$self, processor: &Self::Processor) -> CounterUnit {
            $inner.unit_of(processor)
        }

        #[inline]
        fn is_declared(&$self, row: usize) -> bool {
            $inner.is_declared(row)
        }

        fn requires_memory(&$self) -> bool {
            $inner.requires_memory()
        }

        fn name(&$self) -> &'static str {
            $inner.name()
        }

        #[inline]
        fn table(&$self) -> &'static SourceTable {
            $inner.table()
        }

        #[inline]
        fn table_id(&$self) -> usize {
            $inner.table_id()
        }

        #[inline]
        fn unit(&$self) -> &CounterUnit {
            $inner.unit()
        }
    };
}
pub(crate) use forward_interface;

// SAFETY: all are those of the interface behind the reference.
unsafe impl<I: EventSource + ?Sized> EventSource for &I {
    type Processor = I::Processor;
    type Facility = I::Facility;

    forward_interface!(self => **self);

    #[inline]
    fn facility(&self) -> I::Facility {
        (**self).facility()
    }

    #[inline]
    fn has_idle_facility(&self) -> bool {
        (**self).has_idle_facility()
    }

    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        (**self).core_thread()
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

/// Returns the cell of the interval of a source that the boot processor declares, and its limits.
pub(crate) fn declared_interval<I: EventSource + ?Sized>(
    interface: &I,
    source: KProfileSource,
) -> Result<(&AtomicU32, IntervalLimits), InterfaceError> {
    let excludes = interface.profile_sources().answer.excludes(source);
    // No counter is to answer for a software event.
    let is_software = || interface.added().event(source).is_some_and(|(of, _)| of.is_software());
    if excludes && !is_software() {
        return Err(InterfaceError::UnsupportedSource(source));
    }
    let declared = match interface.table().row_by_call(source) {
        Some(row) => interface
            .intervals()
            .get(row)
            .filter(|_| interface.is_declared(row))
            .map(|cell| (cell, IntervalLimits::of(unit_of(source)))),
        None => interface.added().interval(source, interface.unit()),
    };
    declared.ok_or(InterfaceError::UnsupportedSource(source))
}

/// Sets a source's interval for all names of the source. Each name has a variable, so that the interrupt does not look
/// for the source that the name stands for.
pub(crate) fn store_interval<I: EventSource + ?Sized>(
    interface: &I,
    source: KProfileSource,
    cell: &AtomicU32,
    interval: Interval,
) {
    let names = || interface.table().rows().iter().zip(interface.intervals());
    let known = names().find(|(_, own)| ptr::eq(*own, cell));
    let shared = known.and_then(|(row, _)| row.canonical()).unwrap_or(source);
    // The variable that all names copy.
    let row = interface.table().row_by_call(shared);
    let canonical = row.and_then(|row| interface.intervals().get(row)).unwrap_or(cell);
    canonical.store(interval.get(), SeqCst);
    for (_, name) in names().filter(|(row, _)| row.canonical() == Some(shared)) {
        // Another task may set the interval by another name. Whoever comes last copies the interval that stays.
        loop {
            let copied = canonical.load(SeqCst);
            name.store(copied, SeqCst);
            if canonical.load(SeqCst) == copied {
                break;
            }
        }
    }
}

/// Returns the information on a source: at best [`Declared`](Availability::Declared).
pub(crate) fn information<I: EventSource + ?Sized>(
    interface: &I,
    source: KProfileSource,
) -> SourceInformation {
    match declared_interval(interface, source) {
        Ok((cell, limits)) => SourceInformation {
            source,
            availability: Availability::Declared,
            interval: cell.load(Relaxed),
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

/// Returns the unit of a source's interval.
fn unit_of(source: KProfileSource) -> IntervalUnit {
    if source == KProfileSource::TIME {
        IntervalUnit::HundredNanoseconds
    } else {
        IntervalUnit::Events
    }
}

/// Returns the event select of the row at this index of a source's table, if the boot processor declares it. Row 0 is
/// time, which is no counter's.
#[inline]
pub(crate) fn row_select<S: EventSource>(source: &S, row: usize) -> Option<EventSelect> {
    let of_row = source.table().rows().get(row).filter(|_| row != 0 && source.is_declared(row))?;
    Some(of_row.select())
}

/// Returns the number of the bit in EBX of CPUID leaf 0x0A that says whether a processor has the event of a row; `None`
/// if every processor has it.
pub(crate) fn row_event_bit<S: EventSource>(source: &S, row: usize) -> Option<u8> {
    source.table().rows().get(row)?.event_bit()
}

/// Returns the period of a row, with which its counter is loaded next. It is below 2³¹.
#[inline]
pub(crate) fn row_period<S: EventSource>(source: &S, row: usize) -> Option<u32> {
    Some(source.intervals().get(row)?.load(Relaxed))
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
pub(crate) fn read_counter<S: EventSource, M: RegisterBackend>(
    source: &S,
    msr: &M,
    registers: &Counter,
) -> Result<u64, AccessFault> {
    if S::Facility::UNITS && registers.is_unit() {
        source.facility().access_unit(msr, registers, UnitAccess::ReadValue)
    } else {
        registers.read(msr)
    }
}
