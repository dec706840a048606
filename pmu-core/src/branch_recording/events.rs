//! Branch records of a session's events: settled on what the running events ask for. The records of a recorder leave and
//! return with the counters.

use core::sync::atomic::Ordering::Relaxed;

use crate::branches::memory::{
    CLEAR, FREEZING, LENT, LOST, RECORDING, STACK, STALE, Taken, UNFREEZABLE, UNKNOWN,
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

/// Selection of the branches that the running events or a recorder ask for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Value of the register of the filter.
    pub(crate) value: u64,
    pub(crate) is_call_stack: bool,
    /// The records are to freeze. A freeze close to a call or return instruction would corrupt a call stack.
    pub(crate) freezes: bool,
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
        if self.memory.is_of_recorder() {
            let settled = recording.settle_recorder(running);
            return settled.map_err(|fault| Unsettled { counters: CounterSet::NONE, fault });
        }
        let asked = running.with_branches();
        let wanted = asked.and_then(|(_, filter)| {
            let (value, _) = self.unit.selection(filter)?;
            let is_call_stack = filter.is_call_stack();
            let freezes = self.unit.can_freeze() && !is_call_stack;
            Some(Wanted { value, is_call_stack, freezes })
        });
        let settled = match wanted {
            Some(wanted) => recording.record(wanted, running),
            None if running.are_lent() => recording.end_for_borrower(!running.are_given_up()),
            None => {
                recording.end();
                Ok(())
            }
        };
        let counters = asked.map_or(CounterSet::NONE, |(counters, _)| counters);
        settled.map_err(|fault| Unsettled { counters, fault })
    }

    fn lose(&self) {
        if self.memory.was_of_events() || self.memory.has(LENT) {
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
    pub(crate) fn record_anew(&self, wanted: Wanted, is_returned: bool) -> Result<(), MsrFault> {
        let kept = self.memory.kept.swap(0, Relaxed);
        let is_same = self.memory.control.load(Relaxed) == wanted.value;
        if self.memory.mode() & (UNKNOWN | RECORDING | CLEAR) != CLEAR {
            self.halt_and_clear()?;
        }
        self.program(wanted)?;
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

    /// Writes the filter and the freeze bit of a stopped recording, as far as they are others or unknown.
    pub(crate) fn program(&self, wanted: Wanted) -> Result<(), MsrFault> {
        let is_unknown = self.memory.mode() & UNKNOWN != 0;
        let is_filter = is_unknown || self.memory.control.load(Relaxed) != wanted.value;
        let is_freeze = is_unknown || wanted.freezes != (self.memory.mode() & FREEZING != 0);
        if is_filter || is_freeze {
            self.memory.set_mode(UNKNOWN);
        }
        if is_filter {
            self.memory.control.store(wanted.value, Relaxed);
            self.write_filter()?;
        }
        if is_freeze {
            self.set_freeze(wanted.freezes)?;
        }
        self.memory.clear_mode(UNKNOWN | STACK);
        if wanted.is_call_stack {
            self.memory.set_mode(STACK);
        }
        Ok(())
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

    /// Ends what was recorded for events, before the counters are another owner's.
    fn end_for_borrower(&self, keeps: bool) -> Result<(), MsrFault> {
        if self.memory.was_of_events() {
            self.leave_nothing(keeps)?;
            self.memory.lose();
            self.memory.leave_to_others();
        }
        Ok(())
    }

    /// Leaves nothing that another owner may see, and no freeze. Keeps a call stack if it is to return.
    #[inline(never)]
    pub(crate) fn leave_nothing(&self, keeps: bool) -> Result<(), MsrFault> {
        let mode = self.memory.mode();
        if mode & (RECORDING | STALE | FREEZING | CLEAR) == CLEAR {
            return Ok(());
        }
        let found = self.halt_for_another()?;
        if keeps && mode & (RECORDING | LOST | STALE | UNKNOWN | STACK) == RECORDING | STACK {
            self.keep(found);
        }
        // Until they are cleared.
        self.memory.set_mode(STALE);
        self.set_freeze(false)?;
        self.clear_stopped()
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
