//! Setting the period of an event that is on no processor.

use crate::counters::error::CounterError;
use crate::counters::events::period::Period;
use crate::counters::events::saved::SavedEvent;
use crate::counters::shared::table::EventTable;

impl SavedEvent {
    /// Sets the period of an event that interrupts. When the event is next on a counter, a whole period of this length
    /// begins. The remainder of the old period is discarded. `table` gives the
    /// [shortest accepted period](EventTable::set_min_period). Pass [`EventTable::none`] for the default.
    ///
    /// # Errors
    /// [`Period`](CounterError::Period): the period is below the shortest accepted period, the period does not fit in
    /// 63 bits, or the event does not interrupt.
    pub fn set_period(&mut self, table: &EventTable, period: u64) -> Result<(), CounterError> {
        table.check_period(period)?;
        if self.period.every == 0 {
            return Err(CounterError::Period(period));
        }
        self.period = Period::new(period);
        Ok(())
    }
}
