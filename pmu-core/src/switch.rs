//! Counters that belong to a process or a thread: saved on its way out, restored on its way in.
//!
//! With a global control register all counters are stopped and started by one write each, and their
//! selects stay as they are: between two threads that count the same, only values move.

use core::sync::atomic::Ordering;

use crate::counter::SlotState;
use crate::msr::{MsrAccess, retry_once};
use crate::{
    InterfaceError, MsrBackend, MsrErrorKind, MsrFault, MsrOperation, Overflow, Platform,
    ProfileInterface, ProfileSource, Session,
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
    /// The address of the table whose rows these are; 0: none.
    table: usize,
    counters: S,
}

impl<const N: usize> SavedCounters<[SavedCounter; N]> {
    /// Room for `N` counters, none of them saved.
    pub const fn new() -> Self {
        let unused = SavedCounter { in_use: false, row: 0, events: 0, value: 0 };
        Self { table: 0, counters: [unused; N] }
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
    /// counted is lost; the others were saved. [`RegistersLost`](InterfaceError::RegistersLost), where
    /// there is a global control register: what a counter had counted is lost, and it was saved at the
    /// beginning of its interval.
    pub fn save(
        &mut self,
        area: &mut SavedCounters,
        mut overflowed: impl FnMut(Overflow),
    ) -> Result<(), InterfaceError> {
        let (needed, lent) = (self.places(), area.counters.len());
        if lent < needed {
            return Err(InterfaceError::InsufficientMemory { needed, lent });
        }
        let gated = self.close_gate()?;
        area.table = self.table();
        area.counters.fill(SavedCounter::default());
        let (mut pending, mut outcome) = (0u64, Ok(()));
        for (number, slot) in self.slots() {
            let SlotState::Running { row, .. } = slot.load() else { continue };
            let Some(counter) = self.unit().counter(number) else { continue };
            // Once the slot is free, the interrupt path leaves the counter as it is, and an overflow is
            // this function's to tell.
            let (stopped, next) = if gated {
                (Ok(()), SlotState::Parked { row })
            } else {
                let stopped = retry_once(|| self.msr.wrmsr(counter.select_register(), 0));
                let next = if stopped.is_ok() { SlotState::Free } else { SlotState::Faulted };
                (stopped, next)
            };
            // An interrupt of the counter that comes from here on finds nothing.
            self.memory.expect_late(1);
            // Until here it may have loaded the counter for another interval.
            let SlotState::Running { events, .. } = slot.replace(next) else {
                // An interrupt marked it meanwhile.
                slot.store(SlotState::Faulted);
                outcome = outcome.and(Err(InterfaceError::Faulted(MsrFault {
                    operation: MsrOperation::Write,
                    register: counter.value_register().get(),
                    kind: MsrErrorKind::Other,
                })));
                continue;
            };
            let read = stopped.and_then(|()| retry_once(|| counter.read(&self.msr)));
            let mut value = match read {
                Ok(value) => value,
                Err(fault) => {
                    slot.store(SlotState::Faulted);
                    outcome = outcome.and(Err(InterfaceError::Faulted(fault)));
                    continue;
                }
            };
            let mut next = events;
            if !counter.has_overflowed(value) {
                self.memory.expect_one_fewer();
            } else {
                let row = usize::from(row);
                let cell = self.interface.interval_cell(row);
                next = cell.map_or(events, |cell| cell.load(Ordering::Relaxed));
                if gated && self.holds(&counter, row) == Ok(false) {
                    // What it had counted is lost, and it did not overflow.
                    outcome = outcome.and(Err(InterfaceError::RegistersLost));
                    value = counter.preload(next);
                } else {
                    pending |= 1 << number;
                    // What was counted since the overflow stays counted, less the intervals that are over.
                    let since = value.checked_rem(next.into()).unwrap_or(0);
                    value = counter.preload(next).wrapping_add(since) & counter.mask();
                    let source = self.interface.sources().get(row).map(ProfileSource::source);
                    if let Some(source) = source {
                        overflowed(Overflow { source, events, counter: number });
                    }
                }
            }
            if let Some(place) = area.counters.get_mut(usize::from(number)) {
                *place = SavedCounter { in_use: true, row, events: next, value };
            }
        }
        if let Some(global) = self.unit().global().filter(|_| pending != 0) {
            let acknowledged = retry_once(|| self.msr.wrmsr(global.acknowledge, pending));
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
        let fits = area.table == self.table() && area.counters.len() >= self.places();
        let saved =
            |number: u8| area.counters.get(usize::from(number)).copied().unwrap_or_default();
        if area.is_empty() {
            return Ok(());
        }
        let own = self.slots().fold(0u64, |own, (number, _)| own | 1 << number);
        let elsewhere = area.counters.iter().zip(0u32..).any(|(saved, number)| {
            saved.in_use && own.checked_shr(number).is_none_or(|own| own & 1 == 0)
        });
        let taken = self.slots().any(|(number, slot)| {
            let busy = matches!(slot.load(), SlotState::Running { .. } | SlotState::Faulted);
            saved(number).in_use && busy
        });
        let strange = area.counters.iter().any(|saved| {
            let row = usize::from(saved.row);
            let select = self.interface.sources().get(row).map(ProfileSource::select);
            let legal = select.is_some_and(|select| self.unit().illegal_bits(select) == 0);
            saved.in_use && !(legal && self.interface.is_declared(row))
        });
        if !fits || taken || elsewhere || strange || !self.usable {
            return Err(InterfaceError::NotRestorable);
        }
        let mut outcome = Ok(());
        for (number, slot) in self.slots() {
            let Some(counter) = self.unit().counter(number) else { continue };
            let (before, saved) = (slot.load(), saved(number));
            let loaded = if saved.in_use {
                let bits = self.running_bits(saved.row.into()).unwrap_or(0);
                self.msr.wrmsr(counter.value_register(), saved.value).and_then(|()| {
                    slot.store(SlotState::Running { row: saved.row, events: saved.events });
                    if before == (SlotState::Parked { row: saved.row }) {
                        return Ok(());
                    }
                    self.msr.wrmsr(counter.select_register(), bits)
                })
            } else if matches!(before, SlotState::Parked { .. }) {
                // Another thread's event would run for nothing.
                let cleared = self.msr.wrmsr(counter.select_register(), 0);
                cleared.map(|()| slot.store(SlotState::Free))
            } else {
                Ok(())
            };
            outcome = outcome.and(loaded.map_err(InterfaceError::Access));
        }
        outcome = outcome.and_then(|()| self.open_gate());
        if outcome.is_err() {
            for (number, _) in self.slots().filter(|(number, _)| saved(*number).in_use) {
                if let faulted @ Err(_) = self.release(number) {
                    outcome = faulted;
                }
            }
        }
        outcome
    }

    /// The address of the interface's table: interfaces are told apart by it.
    fn table(&self) -> usize {
        core::ptr::from_ref(self.interface.table()).addr()
    }

    /// Places that an area needs: one for each counter up to the session's last.
    fn places(&self) -> usize {
        (u64::BITS - self.own().leading_zeros()) as usize
    }

    /// Stops all counters by the global control register. `false`: there is none.
    fn close_gate(&self) -> Result<bool, InterfaceError> {
        let Some(global) = self.unit().global().filter(|_| self.usable) else {
            return Ok(false);
        };
        self.change_control(global, (self.own(), 0)).map(|()| true)
    }

    /// Lets the counters go on, if they are [stopped](Self::close_gate).
    fn open_gate(&self) -> Result<(), InterfaceError> {
        let own = self.own();
        let closed = self.memory.global_control.load(Ordering::Relaxed);
        match self.unit().global().filter(|_| closed & own != own) {
            Some(global) => self.change_control(global, (0, own)),
            None => Ok(()),
        }
    }

    /// Makes a session whose counters were saved ready to start others: nothing parked, gate open.
    pub(crate) fn leave_switch(&self) -> Result<(), InterfaceError> {
        for (number, slot) in self.slots() {
            if let (SlotState::Parked { .. }, Some(counter)) =
                (slot.load(), self.unit().counter(number))
            {
                self.msr.wrmsr(counter.select_register(), 0).map_err(InterfaceError::Access)?;
                slot.store(SlotState::Free);
            }
        }
        self.open_gate()
    }
}
