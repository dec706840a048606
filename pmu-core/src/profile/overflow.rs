//! An overflow of one source.

use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::names::counter_id::CounterId;
use crate::profile::added::AddedSources;
use crate::profile::source::KProfileSource;
use crate::profile::source_index::SourceTable;

/// An overflow of one source. [`service`](crate::profile::ProfileInterface::service) reports overflows in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Overflow {
    /// Source whose counter overflowed.
    pub source: KProfileSource,
    /// Number of events counted up to this overflow: the interval with which the driver loaded the counter.
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
