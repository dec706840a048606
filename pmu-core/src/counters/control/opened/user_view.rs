//! An opened event as user mode sees it: the counter to read by RDPMC, and the count to add.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::event_id::EventId;
use crate::counters::registers::select::EventSelect;
use crate::counters::shared::entry::EventEntry;
use crate::msr::address::PmcIndex;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

/// Data by which user mode computes an event's total from the value that RDPMC reads. The kernel shares this plain data
/// with user mode.
///
/// The event's total is `counted`, plus the number of events by which the counter has advanced from `counted_to`.
///
/// ```
/// use pmu_core::{PmcIndex, UserView};
/// let view = UserView { index: PmcIndex::new(1), width: 47, counted: 100, counted_to: 0xFFFF_FFFF_FFF0 };
/// // The counter wrapped in between, and its interrupt loaded it again.
/// assert_eq!(view.total(0x8000_0000_0010), 132);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UserView {
    /// The counter's index, which RDPMC takes in ECX.
    pub index: PmcIndex,
    /// Number of the counter's low bits that continue without a jump when the handler of the counter's interrupt
    /// reloads the counter. If the processor sign-extends values written to the counter from 32 bits, `width` is 31.
    /// Otherwise `width` is the counter's width less 1.
    pub width: u32,
    /// Event's total when the view was made.
    pub counted: u64,
    /// Counter's value when the view was made.
    pub counted_to: u64,
}

impl UserView {
    /// Returns the event's total, given that RDPMC has read `value`.
    #[inline]
    pub const fn total(&self, value: u64) -> u64 {
        // An invalid width leaves the counter out.
        let mask = match self.width {
            1..=64 => u64::MAX >> (64 - self.width),
            _ => 0,
        };
        self.counted.wrapping_add(value.wrapping_sub(self.counted_to) & mask)
    }
}

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Returns the view by which user mode reads an opened event that has no period. This costs one RDPMC.
    ///
    /// The view is valid while the event stays on its counter, and for at most 2^`width` occurrences of the event.
    /// Interrupts of the counter leave the view valid. Each operation that starts, stops, moves or closes an event may
    /// move this event, too. Such operations include [`start_event`](Self::start_event) of *another* event, and
    /// [`rotate`](Self::rotate).
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventId, EventSource, MsrBackend, Platform, UserView};
    /// /// Returns the view for the page that user mode reads; without one, user mode asks by a system call.
    /// fn view<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &CounterSession<'_, S, M, P>,
    ///     event: EventId,
    /// ) -> Result<Option<UserView>, CounterError> {
    ///     match counters.user_view(event) {
    ///         Err(CounterError::NotStarted(_) | CounterError::NotAvailable(_)) => Ok(None),
    ///         view => view.map(Some),
    ///     }
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor of the session's counters.
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    /// - [`HasPeriod`](CounterError::HasPeriod): the event interrupts. The event's next interrupt would reload the
    ///   counter, and the view would be wrong.
    /// - [`NotStarted`](CounterError::NotStarted): the event is on no counter at present.
    /// - [`NotAvailable`](CounterError::NotAvailable): RDPMC cannot read the counter, or user mode is not permitted to
    ///   read it; see [`Event::with_user_rdpmc`](crate::Event::with_user_rdpmc).
    /// - [`RegistersLost`](CounterError::RegistersLost): the counter's registers lost their contents.
    /// - [`Access`](CounterError::Access): the counter could not be read.
    pub fn user_view(&self, event: EventId) -> Result<UserView, CounterError> {
        let entry = self.entry(event)?;
        if entry.period.reports() {
            return Err(CounterError::HasPeriod(event));
        }
        let counter = self.counter_of(event).ok_or(CounterError::NotStarted(event))?;
        let registers = self.registers(counter);
        let index = registers.rdpmc_index().filter(|_| may_be_read(entry));
        let index = index.ok_or(CounterError::NotAvailable(counter.only()))?;
        let full_width = self.memory.full_width.load(Relaxed);
        let width = registers.max_load(full_width).count_ones();
        let (counted, counted_to) = self.read_total(counter, event, entry)?;
        Ok(UserView { index, width, counted, counted_to })
    }
}

/// Returns whether the counter of an event answers RDPMC above privilege level 0.
fn may_be_read(entry: &EventEntry) -> bool {
    entry.select().select_bits() & EventSelect::NO_USER_RDPMC == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_counts_on_over_the_counters_wrap() {
        let view = |width| UserView {
            index: PmcIndex::new(0),
            width,
            counted: 7,
            counted_to: 0xFFFF_FFF0,
        };
        assert_eq!(view(32).total(0xFFFF_FFF0), 7);
        assert_eq!(view(32).total(0x0000_0005), 7 + 0x15);
        assert_eq!(view(40).total(0x1_0000_0005), 7 + 0x15);
        assert_eq!(view(64).total(0xFFFF_FFEF), 6);
        assert_eq!([view(0).total(9), view(65).total(9)], [7, 7]);
    }
}
