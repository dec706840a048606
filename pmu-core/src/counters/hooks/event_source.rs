//! The source of a processor's events: a table of rows, and those opened.

use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::table::EventTable;

/// Events of a processor's counters: rows of a table that is the same for all processors, and those opened on this
/// one.
///
/// The interrupt path calls it in any context: no method takes a lock, allocates or panics.
///
/// # Safety
/// - [`unit`](Self::unit) and [`opened`](Self::opened) return the same on each call: the counters were taken on the
///   unit's promise about its registers.
///
/// A source that owns its unit, and can be returned from where the processor was detected:
///
/// ```
/// use pmu_core::{CounterUnit, EventSelect, EventSource, EventTable};
/// struct Detected {
///     unit: CounterUnit,
///     events: &'static EventTable,
/// }
/// // SAFETY: both are fields that nothing changes.
/// unsafe impl EventSource for Detected {
///     fn unit(&self) -> &CounterUnit {
///         &self.unit
///     }
///     fn row_select(&self, _: usize) -> Option<EventSelect> {
///         None
///     }
///     fn row_period(&self, _: usize) -> Option<u32> {
///         None
///     }
///     fn table_id(&self) -> usize {
///         0
///     }
///     fn opened(&self) -> &EventTable {
///         self.events
///     }
/// }
/// ```
///
/// Wrong: the unit of the kind of core that executes the call. The counters were taken on another one's promise.
///
/// ```
/// # use pmu_core::{CounterUnit, EventSelect, EventSource, EventTable};
/// # fn kind_of_this_core() -> usize { 0 }
/// struct Hybrid([CounterUnit; 2]);
/// // SAFETY: not given. One kind has counters at addresses at which the other has different registers.
/// unsafe impl EventSource for Hybrid {
///     fn unit(&self) -> &CounterUnit {
///         &self.0[kind_of_this_core()]
///     }
/// #     fn row_select(&self, _: usize) -> Option<EventSelect> { None }
/// #     fn row_period(&self, _: usize) -> Option<u32> { None }
/// #     fn table_id(&self) -> usize { 0 }
/// #     fn opened(&self) -> &EventTable { EventTable::none() }
/// }
/// ```
pub unsafe trait EventSource {
    /// Returns the counters.
    fn unit(&self) -> &CounterUnit;

    /// Returns the event of a row, if there is such a row.
    fn row_select(&self, row: usize) -> Option<EventSelect>;

    /// Returns the number of the architectural event that a row's processor must have (its bit in EBX of CPUID leaf
    /// 0x0A): on a hybrid machine a core without it does not count the row. `None`: every processor counts it.
    fn row_event_bit(&self, _: usize) -> Option<u8> {
        None
    }

    /// Returns the period of a row, if there is such a row: the next that its counter is loaded with, below 2³¹.
    fn row_period(&self, row: usize) -> Option<u32>;

    /// Returns the identity of the rows: saved counters of others are not restored.
    fn table_id(&self) -> usize;

    /// Returns the events that were opened.
    fn opened(&self) -> &EventTable;
}

/// Returns whether events can be opened beside the rows. Without a table for them, which the compiler sees, what only
/// opened events need is not linked.
#[inline]
pub(crate) fn opens_events(source: &impl EventSource) -> bool {
    !source.opened().is_empty()
}
