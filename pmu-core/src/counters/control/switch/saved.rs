//! Counters of a process or a thread, saved and restored by the context switch.
//!
//! With a global control register, one write stops all counters, and one write starts them; the event selects are not
//! changed. If the next thread counts the same events, only the counters' values are written.

use crate::access::backend::RegisterAccess;
use crate::counters::control::handle::{CounterSession, too_little_memory};
use crate::counters::error::CounterError;
use crate::counters::events::count::EventOverflow;
use crate::counters::names::{CounterSet, EventId};
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::{EventSource, row_period};

/// Saved state of one counter of a thread that is switched out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SavedCounter {
    in_use: bool,
    row: u16,
    period: u64,
    value: u64,
}

/// Save area for a thread's counters while the thread does not run. The area has one element per counter.
///
/// `&mut SavedCounters<[SavedCounter; N]>` coerces to `&mut SavedCounters`. A new area holds no saved counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedCounters<S: ?Sized = [SavedCounter]> {
    /// The identity of the rows; 0: none.
    rows: usize,
    counters: S,
}

impl<const N: usize> SavedCounters<[SavedCounter; N]> {
    /// Creates an empty area for `N` counters.
    pub const fn new() -> Self {
        let unused = SavedCounter { in_use: false, row: 0, period: 0, value: 0 };
        Self { rows: 0, counters: [unused; N] }
    }
}

#[cfg(feature = "defmt")]
impl<const N: usize> defmt::Format for SavedCounters<[SavedCounter; N]> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{}", self.counters);
    }
}

impl<const N: usize> Default for SavedCounters<[SavedCounter; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: ?Sized + AsRef<[SavedCounter]>> SavedCounters<S> {
    /// Returns the number of saved counters.
    ///
    /// ```
    /// # use pmu_core::thread::{SavedCounter, SavedCounters};
    /// const NEW: SavedCounters<[SavedCounter; 4]> = SavedCounters::new();
    /// assert_eq!(NEW.len(), 0); // Restoring an empty area starts no counter.
    /// ```
    pub fn len(&self) -> usize {
        self.counters.as_ref().iter().filter(|counter| counter.in_use).count()
    }

    /// Returns whether no counter is saved.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Stops each counter whose event is a row of the [`EventSource`]'s table, and saves the counter's state in `area`.
    /// The old contents of `area` are replaced. Events opened by [`open`](Self::open) continue. If an
    /// overflow is pending, the call itself reports the overflow to `overflowed`. If the overflow's interrupt still
    /// comes, [`service`](crate::service) claims the interrupt, and does not report the overflow again.
    ///
    /// A kernel usually calls this with preemption off.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::thread::SavedCounters;
    /// /// The context switch of a kernel that counts the events of a table's rows per process.
    /// fn switch<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     (old, new): (&mut SavedCounters, &SavedCounters),
    /// ) -> Result<(), CounterError> {
    ///     counters.save(old, |_overflow| { /* a sample of the old process's */ })?;
    ///     counters.restore(new)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): `area` has too few elements. Nothing was changed.
    /// - [`Unchanged`](CounterError::Unchanged).
    /// - [`StateUnknown`](CounterError::StateUnknown): the counter's count is lost. The other counters were saved.
    /// - [`RegistersLost`](CounterError::RegistersLost), only with a global control register: a counter's registers
    ///   lost their contents. The counter's count is lost. When [`restore`](Self::restore) starts this counter, a new
    ///   period begins.
    ///
    /// # Limitations
    /// On a processor without an overflow status (AMD before PerfMonV2, Intel's version 1) that lost its registers,
    /// each counter looks as if it had overflowed: this call reports such overflows. So does an interrupt that comes
    /// before `reprogram`.
    pub fn save(
        &mut self,
        area: &mut SavedCounters,
        mut overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        let (needed, lent) = (self.unit().slots_needed(self.own()), area.counters.len());
        if lent < needed {
            return Err(too_little_memory(needed, lent));
        }
        let gated = self.clear_global_enable()?;
        area.rows = self.source.table_id();
        area.counters.fill(SavedCounter::default());
        let (mut pending, mut outcome) = (CounterSet::NONE, Ok(()));
        for (counter, slot) in self.slots() {
            let SlotState::Running { event, .. } = slot.load() else { continue };
            let Some(row) = event.row() else { continue };
            let registers = self.registers(counter);
            let left = if gated { SlotState::Parked { event } } else { SlotState::Free };
            let stopped = self.stop_and_read(slot, &registers, left, || Ok(()));
            let (period, mut value) = match stopped {
                Ok((period, value, ())) => (period, value),
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    continue;
                }
            };
            let mut next = period;
            if !registers.has_overflowed(value) {
                self.memory.cancel_spurious();
            } else {
                next = row_period(&self.source, row).map_or(period, u64::from);
                let bits = self.running_bits(&registers, event).unwrap_or(0);
                if gated && self.holds(&registers, bits) == Ok(false) {
                    // Its count is lost, and it did not overflow.
                    outcome = outcome.and(Err(CounterError::RegistersLost));
                    value = registers.preload(next);
                } else {
                    pending = pending | counter.only();
                    // The events since the overflow stay counted, less the periods that are over.
                    let since = value.checked_rem(next).unwrap_or(0);
                    value = registers.preload(next).wrapping_add(since) & registers.mask();
                    overflowed(EventOverflow { event, period, counter, tag: 0 });
                }
            }
            if let Some(place) = area.counters.get_mut(self.memory.slot_index(counter)) {
                *place = SavedCounter { in_use: true, row: row as u16, period: next, value };
            }
        }
        if let Some(global) = self.unit().global().filter(|_| !pending.is_empty()) {
            let acknowledged = self.write_retrying(global.acknowledge, pending.bits());
            if acknowledged.is_err() {
                // If they stayed set, these overflows would be reported for the next events there.
                self.slots_of(pending).for_each(|(_, slot)| slot.store(SlotState::Faulted));
            }
            outcome = outcome.and(acknowledged.map_err(CounterError::StateUnknown));
        }
        outcome
    }

    /// Loads and starts the counters that [`save`](Self::save) saved. The saved state of a counter is loaded into the
    /// counter with the same [`CounterId`](crate::registers::CounterId). If this counter is not free any more, the
    /// state is loaded into a free counter. `area` stays unchanged.
    ///
    /// This call and [`save`](Self::save) may be made on different processors. On a hybrid machine, if this processor
    /// lacks the event of a saved counter, no counter is restored.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::thread::SavedCounters;
    /// /// Restores a process's counters; if there is no room beside the opened events, the process runs uncounted.
    /// fn try_restore<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     area: &SavedCounters,
    /// ) -> Result<bool, CounterError> {
    ///     match counters.restore(area) {
    ///         Err(CounterError::NotRestorable) => Ok(false),
    ///         restored => restored.map(|()| true),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NotRestorable`](CounterError::NotRestorable): `area` does not fit this processor or this session. None of
    ///   the saved counters runs.
    /// - [`Unchanged`](CounterError::Unchanged): none of the saved counters runs.
    /// - [`StateUnknown`](CounterError::StateUnknown): a counter that the call had started could not be stopped.
    pub fn restore(&mut self, area: &SavedCounters) -> Result<(), CounterError> {
        if area.is_empty() {
            return Ok(());
        }
        let own = self.own();
        let at = |counter| {
            let place = area.counters.get(self.memory.slot_index(counter)).copied();
            place.unwrap_or_default()
        };
        let fits = area.rows == self.source.table_id()
            && area.counters.len() >= self.unit().slots_needed(own);
        let usable = (own & CounterSet::GENERAL).retain(|counter| {
            let state = self.slot(counter).map(CounterSlot::load);
            matches!(state, Some(SlotState::Free | SlotState::Parked { .. }))
        });
        let at_home = usable.retain(|counter| at(counter).in_use);
        let taken = self.slots().any(|(counter, slot)| match slot.load() {
            // Another thread's, or it was restored already.
            SlotState::Running { event, .. } => match event.row() {
                Some(row) => {
                    let is_row =
                        |saved: &SavedCounter| saved.in_use && usize::from(saved.row) == row;
                    at(counter).in_use || area.counters.iter().any(is_row)
                }
                None => self.table().entry(event).is_some_and(EventEntry::is_exclusive),
            },
            SlotState::Faulted | SlotState::Free | SlotState::Parked { .. } => false,
        });
        let strange = area
            .counters
            .iter()
            .any(|saved| saved.in_use && self.row_select(saved.row.into()).is_none());
        if !fits || self.memory.serving.is_masked() || taken || strange || area.len() > usable.len()
        {
            return Err(CounterError::NotRestorable);
        }
        let rows = area.counters.iter().filter(|saved| saved.in_use);
        if !self.claim_rows(usable, rows.map(|saved| saved.row.into())) {
            return Err(CounterError::NotRestorable);
        }
        let is_at_home =
            |place: usize| at_home.iter().any(|counter| self.memory.slot_index(counter) == place);
        let displaced = area.counters.iter().enumerate();
        let mut displaced = displaced.filter(|(place, saved)| saved.in_use && !is_at_home(*place));
        let (mut loaded, mut outcome) = (CounterSet::NONE, Ok(()));
        for (counter, slot) in self.slots_of(usable) {
            let registers = self.registers(counter);
            let saved = if at_home.contains(counter) {
                at(counter)
            } else {
                displaced.next().map(|(_, saved)| *saved).unwrap_or_default()
            };
            let (before, event) = (slot.load(), EventId::of_row(saved.row.into()));
            let done = if saved.in_use {
                loaded = loaded | counter.only();
                let bits = self.running_bits(&registers, event).unwrap_or(0);
                let register = registers.register_for(saved.value);
                self.hardware.write_retrying(register, saved.value).and_then(|()| {
                    slot.store(SlotState::Running { event, period: saved.period });
                    // Its select still has this event: only the global control register stopped the counter.
                    if before == (SlotState::Parked { event }) {
                        return Ok(());
                    }
                    self.set_control(&registers, bits)
                })
            } else if matches!(before, SlotState::Parked { .. }) {
                // Another thread's event would run there.
                let cleared = self.set_control(&registers, 0);
                cleared.map(|()| slot.store(SlotState::Free))
            } else {
                Ok(())
            };
            outcome = outcome.and(done.map_err(CounterError::Unchanged));
        }
        // Last, so that all counters start together.
        outcome = outcome.and_then(|()| self.set_global_enable(self.outside_guests(own)));
        if outcome.is_err() {
            for counter in loaded.iter() {
                if let Err(fault) = self.stop_and_free(counter) {
                    outcome = Err(CounterError::StateUnknown(fault));
                }
            }
        }
        self.settle_core();
        outcome
    }
}
