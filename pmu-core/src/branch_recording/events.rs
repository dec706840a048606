//! Branch records of a session's events: settled on what the running events ask for.

use core::sync::atomic::Ordering::Relaxed;

use crate::branches::memory::{
    CLEAR, FREEZING, LOST, RECORDING, STACK, STALE, Taken, UNFREEZABLE, UNKNOWN,
};
use crate::branches::recording::Recording;
use crate::branches::sampled::Branches;
use crate::branches::unit::{BranchEnable, BranchOrder};
use crate::counters::error::CounterError;
use crate::counters::hooks::asked::Asked;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::running::{Running, Unsettled};
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::registers::select::EventSelect;
use crate::msr::access::MsrAccess;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::{MsrErrorKind, MsrFault, MsrOperation};

/// Selection of the branches that the running events ask for.
#[derive(Clone, Copy)]
struct Wanted {
    /// Value of the register of the filter.
    value: u64,
    is_call_stack: bool,
}

impl EventFacility for Branches<'_> {
    const OFFERS: bool = true;

    /// Meets a request for branches that the processor can record, if the memory has room for all records. A sampling
    /// that [delays interrupts](crate::BranchUnit::holds_interrupt) is for one event, on its counters.
    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let has_room = self.memory.capacity() >= self.unit.depth().into();
        let Some(filter) = asked.branches.filter(|_| has_room) else { return Ok(counters) };
        let (mut capable, mut is_event) = (counters, true);
        if let BranchOrder::Filled { event, counters: of, .. } = self.unit.registers().order {
            capable = counters & CounterSet::from_bits(of.into());
            let select = asked.select.select_bits() & EventSelect::EVENT;
            is_event = asked.samples && select == event.into();
        }
        if is_event && self.unit.recorded(filter).is_some() {
            asked.branches = None;
        }
        Ok(capable)
    }

    fn settle<M: MsrBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let recording = Recording { unit: self.unit, msr, memory: self.memory };
        let asked = running.with_branches();
        let wanted = asked.and_then(|(_, filter)| {
            let (value, _) = self.unit.selection(filter)?;
            Some(Wanted { value, is_call_stack: filter.is_call_stack() })
        });
        let settled = match wanted {
            Some(wanted) => recording.record(wanted, running),
            None if running.are_lent() => recording.end_for_borrower(),
            None => {
                recording.end();
                Ok(())
            }
        };
        let counters = asked.map_or(CounterSet::NONE, |(counters, _)| counters);
        settled.map_err(|fault| Unsettled { counters, fault })
    }

    fn lose(&self) {
        if self.memory.was_of_events() {
            self.memory.lose();
        }
    }

    #[inline]
    fn before_stop<M: MsrBackend>(&self, msr: &M, counter: CounterId) {
        // If that fails, the next change tries again.
        let _ = self.suspend_sampling(msr, counter.only());
    }

    #[inline]
    fn branches(&self) -> Option<&Branches<'_>> {
        Some(self)
    }
}

impl<M: MsrBackend> Recording<'_, M> {
    /// Records branches for events. While a recorder has the records, nothing is changed: the events' samples have its
    /// branches if it selects the same.
    fn record(&self, wanted: Wanted, running: &Running<'_>) -> Result<(), MsrFault> {
        match self.memory.take_for_events(self.unit) {
            Taken::Refused => return Ok(()),
            Taken::Unverified => {
                self.verify().inspect_err(|_| self.memory.give_back_untaken())?;
            }
            Taken::Verified => {}
        }
        let mode = self.memory.mode();
        let is_same = self.memory.control.load(Relaxed) == wanted.value;
        let goes_on = mode & (RECORDING | LOST | STALE | UNKNOWN | CLEAR) == RECORDING && is_same;
        match (goes_on, running.are_switched()) {
            (true, false) => Ok(()),
            // Each write to the register of the depth clears all records, also while the processor records.
            (true, true) if self.unit.registers().depth.is_some() => self.clear_stopped(),
            _ => self.record_anew(wanted, running.are_returned()),
        }
    }

    /// Starts to record, with empty records, or with the call stack that was kept while the counters were lent.
    fn record_anew(&self, wanted: Wanted, is_returned: bool) -> Result<(), MsrFault> {
        let kept = self.memory.kept.swap(0, Relaxed);
        let is_same = self.memory.control.load(Relaxed) == wanted.value;
        if !is_same {
            self.memory.set_mode(UNKNOWN);
        }
        let is_unknown = self.memory.mode() & UNKNOWN != 0;
        if self.memory.mode() & (UNKNOWN | RECORDING | CLEAR) != CLEAR {
            self.halt_and_clear()?;
        }
        let freezes = self.unit.can_freeze() && !wanted.is_call_stack;
        if is_unknown {
            self.memory.control.store(wanted.value, Relaxed);
            self.write_filter()?;
        }
        if is_unknown || freezes != (self.memory.mode() & FREEZING != 0) {
            self.set_freeze(freezes)?;
        }
        self.memory.clear_mode(UNKNOWN | STACK);
        if wanted.is_call_stack {
            self.memory.set_mode(STACK);
        }
        if kept != 0 && is_same && is_returned {
            let slots = self.memory.slots().iter().take(kept.into());
            let newest = self.memory.newest.load(Relaxed);
            self.memory.clear_mode(CLEAR);
            let written = self.unit.write_records(self.msr, newest, slots.map(|slot| slot.load()));
            // A part of the call stack may be in the registers.
            written.inspect_err(|_| self.memory.set_mode(STALE))?;
        }
        self.go_on()
    }

    /// Ends what was recorded for events. An access that fails is no error of the events that still run: it is tried
    /// again with the next change, and until then the records are not read.
    fn end(&self) {
        let mode = self.memory.mode();
        if !self.memory.was_of_events() {
            return;
        }
        if mode & (RECORDING | STALE | CLEAR) == CLEAR {
            // The start of a recording may have failed.
            return self.memory.leave_to_others();
        }
        self.memory.kept.store(0, Relaxed);
        let is_unknown = mode & UNKNOWN != 0;
        let ended = if is_unknown { self.end_unknown(mode) } else { self.halt_and_clear() };
        if ended.is_ok() {
            self.memory.leave_to_others();
        }
    }

    /// Ends what a borrower may have left, or what goes on although the registers were said to be lost.
    fn end_unknown(&self, mode: u8) -> Result<(), MsrFault> {
        let found = self.halt_for_another()?;
        if mode & RECORDING != 0 {
            self.memory.set_mode(STALE);
        }
        if mode & FREEZING != 0 {
            self.set_freeze(false)?;
        }
        let tells = matches!(self.unit.registers().enable, BranchEnable::Bits { .. });
        if tells && mode & (RECORDING | STALE) == 0 && !self.unit.is_on(found) {
            self.memory.set_mode(CLEAR);
            return Ok(());
        }
        self.clear_stopped()
    }

    /// Leaves nothing that the borrower of the counters may see, and no freeze. Keeps a call stack.
    #[inline(never)]
    fn end_for_borrower(&self) -> Result<(), MsrFault> {
        if !self.memory.was_of_events() {
            return Ok(());
        }
        let mode = self.memory.mode();
        if mode & (RECORDING | STALE | FREEZING | CLEAR) != CLEAR {
            let found = self.halt_for_another()?;
            if mode & (RECORDING | LOST | STALE | UNKNOWN | STACK) == RECORDING | STACK {
                self.keep(found);
            }
            // Until they are cleared.
            self.memory.set_mode(STALE);
            self.set_freeze(false)?;
            self.clear_stopped()?;
        }
        self.memory.lose();
        self.memory.leave_to_others();
        Ok(())
    }

    /// Keeps the records in the memory. If one cannot be read, the call stack begins anew.
    fn keep(&self, found: u64) {
        let Ok(filled) = self.unit.filled(self.msr, found) else { return };
        if let (kept, Ok(())) = self.unit.read_records(self.msr, self.memory, found) {
            self.memory.newest.store(filled.newest, Relaxed);
            self.memory.kept.store(kept, Relaxed);
        }
    }

    /// Ends what a predecessor left, and proves that the processor has the records. Finds whether it freezes them.
    #[inline(never)]
    fn verify(&self) -> Result<(), MsrFault> {
        if !self.end_left_over()? {
            let (operation, register) = (MsrOperation::Write, self.unit.registers().from);
            return Err(MsrFault { operation, register, kind: MsrErrorKind::Other });
        }
        if let Some(freeze) = self.unit.registers().freeze {
            let set = self.set_freeze(true);
            let found = set.and_then(|()| self.msr.update_retrying(freeze.bit.read()));
            if !found.is_ok_and(|value| value & freeze.bit.bits() != 0) {
                // The bit may be set although it was not read.
                self.set_freeze(false)?;
                self.memory.set_mode(UNFREEZABLE);
            }
        }
        self.memory.set_mode(UNKNOWN);
        Ok(())
    }
}
