//! The part of a profile interface that a vendor crate implements: its counters, and its table of sources.

use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::hooks::facility::Facility;
use crate::counters::registers::counter::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::core_counters::CoreThread;
use crate::counters::shared::table::EventTable;
use crate::interval::{Interval, IntervalLimits, IntervalUnit};
use crate::profile::added::AddedSources;
use crate::profile::interface::InterfaceError;
use crate::profile::source::{Availability, KProfileSource, SourceInformation, SourceTable};

/// A vendor crate's description of a whole machine: the counters of its processors, and the table of profile sources
/// that run on these counters.
///
/// The kernel makes one value of an implementing type, on the boot processor, and uses this value on all processors.
/// Tasks and interrupt handlers share the value. The value is constant, except for the intervals of the sources. Each
/// processor's state is in a [`CounterMemory`](crate::CounterMemory), which the interrupt handler uses, and in a
/// [`Session`](crate::profile::Session), which the kernel's tasks use.
///
/// # Safety
/// - Each call of [`unit`](Self::unit) returns the same unit, which may be that of
///   [`profile_sources`](Self::profile_sources). If the unit changed, the driver could access registers that the
///   session does not own.
/// - The registers of the counters that [`unit_of`](Self::unit_of) returns exist on the processor that its argument
///   describes.
/// - Each call of [`opened`](Self::opened) returns a reference to the same object. The object's contents may change.
///
/// This example is an interface with two sources, for a vendor without a crate:
///
/// ```
/// use core::sync::atomic::AtomicU32;
/// use pmu_core::{CounterUnit, EventSelect};
/// use pmu_core::profile::{
///     KProfileSource, ProfileInterface, ProfileSource, ProfileSources, SourceIndex, SourceInterface, SourceTable,
/// };
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
/// unsafe impl SourceInterface for Small {
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
pub unsafe trait SourceInterface {
    /// Description of one processor, by which the interface knows the processor's counters: on x86, the
    /// [`Snapshot`](crate::Snapshot) of its CPUID.
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

    /// Returns whether [`initialize`](crate::profile::ProfileInterface::initialize) requires memory for counter slots.
    /// If the result is `true`, `initialize` fails without this memory. If the result is `false`, `initialize` succeeds
    /// without this memory, and the session supports no source. The default implementation returns `false`.
    fn requires_memory(&self) -> bool {
        false
    }

    /// Returns the interface's name.
    fn name(&self) -> &'static str {
        self.profile_sources().name
    }

    /// Returns a value that identifies the table: its address. An interface without rows may return 0.
    #[inline]
    fn rows_id(&self) -> usize {
        ptr::from_ref(self.table()).addr()
    }

    /// Returns the description of the boot processor's counters.
    #[inline]
    fn unit(&self) -> &CounterUnit {
        &self.profile_sources().unit
    }

    /// Returns the variables with the machine-wide intervals of the table's rows, in the order of the rows. The rows of
    /// one source's [names](crate::profile::ProfileSource::another_name_of) hold one value.
    #[inline]
    fn intervals(&self) -> &[AtomicU32] {
        &self.profile_sources().intervals
    }

    /// Returns the sources that the kernel has added to the sources in the table. A vendor's interface has none:
    /// [`Events::adding`](crate::Events::adding) adds them.
    #[inline]
    fn added(&self) -> &'static AddedSources {
        AddedSources::none()
    }

    /// Returns the table of [opened](crate::CounterSession::open) events of the processor that executes the call.
    #[inline]
    fn opened(&self) -> &EventTable {
        EventTable::none()
    }

    /// Returns the logical processor that executes the call, if the processor's facility is
    /// [`OnSharedCore`](crate::shared_core::OnSharedCore).
    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        None
    }

    /// Hardware beside the counters that [opened](crate::CounterSession::open) events can ask for. A vendor's
    /// interface has none: [`Events::with`](crate::Events::with) adds that of one
    /// processor.
    type Facility: EventFacility;

    /// Returns the hardware beside the counters of the processor that executes the call.
    fn facility(&self) -> Self::Facility;

    /// Returns whether that hardware [is idle](crate::facility::Facility::is_idle).
    #[inline]
    fn has_idle_facility(&self) -> bool {
        self.facility().is_idle()
    }
}

/// Makes every profile interface an event source: the rows of the interface's table are the events that the counters
/// count.
// SAFETY: the unit and the events are the interface's, which `SourceInterface` promises not to change.
unsafe impl<I: SourceInterface> EventSource for I {
    type Facility = I::Facility;

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
        Some(self.intervals().get(row)?.load(Ordering::Relaxed))
    }

    #[inline]
    fn table_id(&self) -> usize {
        self.rows_id()
    }

    #[inline]
    fn opened(&self) -> &EventTable {
        SourceInterface::opened(self)
    }

    #[inline]
    fn core_thread(&self) -> Option<CoreThread<'_>> {
        SourceInterface::core_thread(self)
    }

    #[inline]
    fn facility(&self) -> I::Facility {
        SourceInterface::facility(self)
    }

    #[inline]
    fn has_idle_facility(&self) -> bool {
        SourceInterface::has_idle_facility(self)
    }
}

/// Forwards what of a [`SourceInterface`] is the interface's own, `$inner`.
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
        fn rows_id(&$self) -> usize {
            $inner.rows_id()
        }

        #[inline]
        fn unit(&$self) -> &CounterUnit {
            $inner.unit()
        }

        #[inline]
        fn intervals(&$self) -> &[AtomicU32] {
            $inner.intervals()
        }
    };
}
pub(crate) use forward_interface;

// SAFETY: all are those of the interface behind the reference.
unsafe impl<I: SourceInterface + ?Sized> SourceInterface for &I {
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

// From the worst result to the best.
const NO_MEMORY: u8 = 1;
const NONE_ANSWERED: u8 = 2;
const ANSWERED: u8 = 3;

/// The intervals of a machine's profile sources, the counters of the boot processor, and a record of whether the
/// machine's counters answered. A session makes this record when it takes a processor's counters; afterwards
/// [`query`](crate::profile::ProfileInterface::query) does not report a source as supported if no processor's counters
/// answered, and no source at all, time included, if no processor had memory for them.
///
/// ```
/// use core::sync::atomic::AtomicU32;
/// use pmu_core::CounterUnit;
/// use pmu_core::profile::ProfileSources;
/// // What an interface of four sources has. The intervals have their defaults.
/// let sources: ProfileSources<[AtomicU32; 4]> = ProfileSources::new("Four", CounterUnit::NONE);
/// # let _ = sources;
/// ```
#[derive(Debug)]
pub struct ProfileSources<I: ?Sized = [AtomicU32]> {
    name: &'static str,
    unit: CounterUnit,
    pub(crate) answer: CounterAnswer,
    intervals: I,
}

impl<const N: usize> ProfileSources<[AtomicU32; N]> {
    /// Creates the data of the interface `name`, with a variable for the interval of each row of its table. `unit`
    /// describes the boot processor's counters.
    pub const fn new(name: &'static str, unit: CounterUnit) -> Self {
        let mut intervals = [const { AtomicU32::new(IntervalLimits::EVENTS.default) }; N];
        if let Some(time) = intervals.first_mut() {
            *time = AtomicU32::new(IntervalLimits::TIME.default);
        }
        Self { name, unit, answer: CounterAnswer::new(), intervals }
    }

    /// Returns the sources with other counters.
    pub const fn with_unit(self, unit: CounterUnit) -> Self {
        Self { unit, ..self }
    }
}

impl<I: ?Sized> ProfileSources<I> {
    /// Returns the description of the boot processor's counters.
    #[inline]
    pub const fn unit(&self) -> &CounterUnit {
        &self.unit
    }
}

/// Record of whether the counters of a machine work, and have memory. A counter works if it keeps a value that was
/// written to it. A session records the result when it takes ownership of a processor's counters, or lacks the memory
/// for this.
#[derive(Debug)]
pub(crate) struct CounterAnswer(AtomicU8);

impl CounterAnswer {
    const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Notes that a processor's counters answered, or that none of them did.
    pub(crate) fn note(&self, answered: bool) {
        self.note_result(if answered { ANSWERED } else { NONE_ANSWERED });
    }

    /// Notes that the kernel had no memory for a processor's counters.
    pub(crate) fn note_no_memory(&self) {
        self.note_result(NO_MEMORY);
    }

    /// Notes a processor's result. Of the results of all processors, the best is kept.
    fn note_result(&self, result: u8) {
        self.0.fetch_max(result, Ordering::Relaxed);
    }

    /// Returns whether the record makes a source unsupported. Without memory, all sources are.
    pub(crate) fn excludes(&self, source: KProfileSource) -> bool {
        match self.0.load(Ordering::Relaxed) {
            NONE_ANSWERED => source != KProfileSource::TIME,
            result => result == NO_MEMORY,
        }
    }
}

/// Returns the cell of the interval of a source that the boot processor declares, and its limits.
pub(crate) fn declared_interval<I: SourceInterface + ?Sized>(
    interface: &I,
    source: KProfileSource,
) -> Result<(&AtomicU32, IntervalLimits), InterfaceError> {
    if interface.profile_sources().answer.excludes(source) {
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
pub(crate) fn store_interval<I: SourceInterface + ?Sized>(
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
pub(crate) fn declared_information<I: SourceInterface + ?Sized>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_result_of_all_processors_stays() {
        let (time, other) = (KProfileSource::TIME, KProfileSource::TOTAL_CYCLES);
        let answer = CounterAnswer::new();
        let excluded = || [time, other].map(|source| answer.excludes(source));
        assert_eq!(excluded(), [false, false]);
        answer.note_no_memory();
        assert_eq!(excluded(), [true, true]);
        answer.note(false);
        answer.note_no_memory();
        assert_eq!(excluded(), [false, true]);
        answer.note(true);
        answer.note(false);
        assert_eq!(excluded(), [false, false]);
    }
}
