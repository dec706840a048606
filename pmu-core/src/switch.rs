//! Counters that belong to a process or a thread: saved on its way out, restored on its way in.
//!
//! With a global control register all counters are stopped and started by one write each, and their
//! selects stay as they are: between two threads that count the same, only values move.

use core::sync::atomic::Ordering;

use crate::counter::Use;
use crate::interrupt::own_bits;
use crate::msr::{MsrAccess, insist};
use crate::{
    Counter, EventSelect, InterfaceError, MsrBackend, Overflow, Platform, ProfileInterface,
    ProfileSource, Session,
};

/// One counter's state while it is not on a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SavedCounter {
    in_use: bool,
    row: u16,
    events: u32,
    value: u64,
}

/// Where a thread's counters are while it does not run: a place a counter.
///
/// `&mut SavedCounters<[SavedCounter; N]>` coerces to `&mut SavedCounters`. A new one holds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedCounters<S: ?Sized = [SavedCounter]> {
    /// Whose rows these are; empty: nobody's.
    interface: &'static str,
    counters: S,
}

impl<const N: usize> SavedCounters<[SavedCounter; N]> {
    /// Room for `N` counters, none of them saved.
    pub const fn new() -> Self {
        let unused = SavedCounter { in_use: false, row: 0, events: 0, value: 0 };
        Self { interface: "", counters: [unused; N] }
    }
}

impl<const N: usize> Default for SavedCounters<[SavedCounter; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: ?Sized + AsRef<[SavedCounter]>> SavedCounters<S> {
    /// How many counters are saved.
    pub fn len(&self) -> usize {
        self.counters.as_ref().iter().filter(|counter| counter.in_use).count()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<I: ProfileInterface, M: MsrBackend, P: Platform> Session<'_, I, M, P> {
    /// Stops every running counter and keeps its state in `area`, in place of what was there. An
    /// overflow that became pending on the way is told to `overflowed`, once, as the interrupt would
    /// have; the interrupt, if it still comes, finds nothing.
    ///
    /// Task context, on the session's processor; usually with preemption off.
    ///
    /// # Errors
    /// [`InsufficientMemory`](InterfaceError::InsufficientMemory) or
    /// [`Access`](InterfaceError::Access): nothing was changed.
    /// [`Faulted`](InterfaceError::Faulted): one counter's register did not answer, and what it had
    /// counted is lost; the others were saved.
    pub fn save(
        &mut self,
        area: &mut SavedCounters,
        mut overflowed: impl FnMut(Overflow),
    ) -> Result<(), InterfaceError> {
        let (needed, lent) = (usize::from(self.interface.counters()), area.counters.len());
        if lent < needed {
            return Err(InterfaceError::InsufficientMemory { needed, lent });
        }
        let gated = self.close_gate()?;
        area.interface = I::NAME;
        area.counters.fill(SavedCounter::default());
        let (mut pending, mut outcome) = (0, Ok(()));
        for (number, (slot, saved)) in (0..).zip(self.memory.slots.iter().zip(&mut area.counters)) {
            let Use::Running { row, .. } = slot.load() else { continue };
            let Some(counter) = self.interface.counter(number) else { continue };
            // Once the slot is nobody's, the interrupt path leaves the counter as it is, and an
            // overflow is ours to tell.
            let (stopped, next) = if gated {
                (Ok(()), Use::Parked { row })
            } else {
                let stopped = insist(|| self.msr.put(counter.select_register(), 0));
                let next = if stopped.is_ok() { Use::Free } else { Use::Faulted };
                (stopped, next)
            };
            // Until here it may have loaded the counter for another interval.
            let Use::Running { events, .. } = slot.replace(next) else { continue };
            let read = stopped.and_then(|()| insist(|| self.msr.get_pmc(counter.rdpmc_index())));
            let mut value = match read {
                Ok(value) => value,
                Err(fault) => {
                    slot.store(Use::Faulted);
                    outcome = outcome.and(Err(InterfaceError::Faulted(fault)));
                    continue;
                }
            };
            let mut next = events;
            if counter.has_overflowed(value) {
                pending |= 1 << number;
                let (row, cell) = (usize::from(row), self.interface.interval_cell(row.into()));
                next = cell.map_or(events, |cell| cell.load(Ordering::Relaxed));
                // What was counted since the overflow stays counted.
                value = counter.preload(next).wrapping_add(value) & counter.mask();
                if let Some(source) = self.interface.sources().get(row).map(ProfileSource::source) {
                    overflowed(Overflow { source, events, counter: number });
                }
            }
            *saved = SavedCounter { in_use: true, row, events: next, value };
        }
        if let Some(global) = self.interface.global().filter(|_| pending != 0) {
            let acknowledged = insist(|| self.msr.put(global.acknowledge, pending));
            outcome = outcome.and(acknowledged.map_err(InterfaceError::Faulted));
        }
        outcome
    }

    /// Loads the counters that [`save`](Self::save) kept, and lets them go on. `area` stays as it is.
    ///
    /// Task context, on the session's processor, which need not be the one where they were saved.
    ///
    /// # Errors
    /// [`NotRestorable`](InterfaceError::NotRestorable) or [`Access`](InterfaceError::Access): none
    /// of them runs. [`Faulted`](InterfaceError::Faulted): as at
    /// [`start`](Self::start).
    pub fn restore(&mut self, area: &SavedCounters) -> Result<(), InterfaceError> {
        let needed = usize::from(self.interface.counters());
        let mine = area.interface == I::NAME && area.counters.len() >= needed;
        let counters = || self.memory.slots.iter().zip(&area.counters).zip(0..);
        let blocked = |slot: Use| matches!(slot, Use::Running { .. } | Use::Faulted);
        let taken = counters().any(|((slot, saved), _)| saved.in_use && blocked(slot.load()));
        if area.is_empty() {
            return Ok(());
        }
        if !mine || taken || !self.usable {
            return Err(InterfaceError::NotRestorable);
        }
        let mut outcome = Ok(());
        for ((slot, saved), number) in counters() {
            let Some(counter) = self.interface.counter(number) else { continue };
            let before = slot.load();
            let loaded = if saved.in_use {
                let row = usize::from(saved.row);
                let select = self.interface.sources().get(row).map(ProfileSource::select);
                let bits = select.map_or(0, |select| select.running().select_bits());
                self.msr.put(counter.value_register(), saved.value).and_then(|()| {
                    slot.store(Use::Running { row: saved.row, events: saved.events });
                    if before == (Use::Parked { row: saved.row }) {
                        return Ok(());
                    }
                    self.msr.put(counter.select_register(), bits)
                })
            } else if matches!(before, Use::Parked { .. }) {
                // Another thread's event would run for nobody.
                let cleared = self.msr.put(counter.select_register(), 0);
                cleared.map(|()| slot.store(Use::Free))
            } else {
                Ok(())
            };
            outcome = outcome.and(loaded.map_err(InterfaceError::Access));
        }
        outcome = outcome.and_then(|()| self.open_gate());
        if outcome.is_err() {
            for number in counters().filter(|((_, saved), _)| saved.in_use).map(|(_, n)| n) {
                if let faulted @ Err(_) = self.release(number) {
                    outcome = faulted;
                }
            }
        }
        outcome
    }

    /// Stops all counters by the global control register. `false`: there is none.
    fn close_gate(&self) -> Result<bool, InterfaceError> {
        let Some(global) = self.interface.global().filter(|_| self.usable) else {
            return Ok(false);
        };
        let open = self.memory.global_control.load(Ordering::Relaxed);
        let closed = open & !own_bits(self.interface.counters());
        // First what the interrupt path leaves behind, then the register.
        self.memory.global_control.store(closed, Ordering::Relaxed);
        self.msr.put(global.control, closed).map_err(|fault| {
            self.memory.global_control.store(open, Ordering::Relaxed);
            InterfaceError::Access(fault)
        })?;
        Ok(true)
    }

    /// Lets the counters go on, if they are [stopped](Self::close_gate).
    fn open_gate(&self) -> Result<(), InterfaceError> {
        let own = own_bits(self.interface.counters());
        let closed = self.memory.global_control.load(Ordering::Relaxed);
        let Some(global) = self.interface.global().filter(|_| closed & own == 0) else {
            return Ok(());
        };
        self.memory.global_control.store(closed | own, Ordering::Relaxed);
        self.msr.put(global.control, closed | own).map_err(|fault| {
            self.memory.global_control.store(closed, Ordering::Relaxed);
            InterfaceError::Access(fault)
        })
    }

    /// Makes a session whose counters were saved ready to start others: nothing parked, gate open.
    pub(crate) fn leave_switch(&self) -> Result<(), InterfaceError> {
        for (number, slot) in (0..).zip(&self.memory.slots) {
            if let (Use::Parked { .. }, Some(counter)) =
                (slot.load(), self.interface.counter(number))
            {
                self.msr.put(counter.select_register(), 0).map_err(InterfaceError::Access)?;
                slot.store(Use::Free);
            }
        }
        self.open_gate()
    }
}
