//! Branch records of a session's events: settled on what the running events ask for. A recorder's records leave with
//! the counters, and return with them.

use core::sync::atomic::Ordering::Relaxed;

use crate::access::backend::{
    AccessErrorKind, AccessFault, AccessOperation, RegisterAccess, RegisterBackend,
};
use crate::branches::filter::BranchFilter;
use crate::branches::memory::{
    CLEAR, FREEZING, LENT, LOST, RECORDING, STACK, STALE, Taken, UNFREEZABLE, UNKNOWN,
};
use crate::branches::recording::{Recording, Stacks, Wanted};
use crate::branches::sampled::Branches;
use crate::branches::unit::{BranchEnable, BranchFreeze, BranchOrder};
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::{Facility, Interrupted};
use crate::counters::hooks::running::{Asked, Running, Unsettled};
use crate::counters::names::{CounterId, CounterSet};
use crate::counters::registers::counter::EventSelect;

impl EventFacility for Branches<'_> {
    const OFFERS: bool = true;
    const KEEPS: bool = true;

    /// Meets a request for branches that the processor can record, if the memory has room for all records. A sampling
    /// that [delays interrupts](crate::branches::BranchUnit::holds_interrupt) is for one event, on its counters: for
    /// any other request there is no counter.
    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let has_room = self.memory.capacity() >= self.unit.depth().into();
        let Some(filter) = asked.branches.filter(|_| has_room) else { return Ok(counters) };
        let records = self.unit.recorded(filter).is_some();
        if let BranchOrder::Filled { event, counters: of, .. } = self.unit.registers().order {
            asked.branches = None;
            let select = asked.select.select_bits() & EventSelect::EVENT;
            let samples = records && asked.samples && select == event.into();
            let capable = if samples { CounterSet::from_bits(of.into()) } else { CounterSet::NONE };
            return Ok(counters & capable);
        }
        if records {
            asked.branches = None;
        }
        Ok(counters)
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let recording = Recording { unit: self.unit, msr, memory: self.memory };
        let is_of_recorder = self.memory.is_of_recorder();
        if is_of_recorder && !running.are_lent() {
            if !running.are_returned() {
                // Neither events nor threads change what a recorder records.
                return Ok(());
            }
            self.memory.note(LENT, false);
        }
        let asked = if is_of_recorder { None } else { running.with_branches() };
        let counters = asked.map_or(CounterSet::NONE, |(counters, _)| counters);
        let wanted = match asked {
            Some((_, filter)) => self.wanted(filter),
            None if is_of_recorder => recording.going_on(),
            None => None,
        };
        let stacks = self.stacks(running, wanted);
        let settled = match wanted {
            _ if running.are_lent() => recording.end_for_borrower(!running.are_given_up()),
            Some(wanted) => recording.record(wanted, running, stacks, is_of_recorder),
            None => recording.end(stacks, is_of_recorder),
        };
        settled.map_err(|fault| Unsettled { counters, fault })
    }

    fn lose(&self) {
        self.memory.lose();
    }

    fn claim(&self, tag: u64, number: u32) -> u32 {
        self.memory_of(tag).map_or(0, |memory| memory.claim(number))
    }

    #[inline]
    fn before_stop<M: RegisterBackend>(&self, msr: &M, counter: CounterId) {
        // If that fails, the next change tries again.
        let _ = self.suspend_sampling(msr, counter.only());
    }

    #[inline]
    fn branches(&self) -> Option<&Branches<'_>> {
        Some(self)
    }
}

impl Branches<'_> {
    /// Returns the selection of the branches that an event asks for.
    fn wanted(&self, filter: BranchFilter) -> Option<Wanted> {
        let (value, _) = self.unit.selection(filter)?;
        let is_call_stack = filter.is_call_stack();
        let freezes = self.unit.can_freeze() && !is_call_stack;
        Some(Wanted { value, is_call_stack, freezes })
    }

    /// Starts the recording again, unless a task has stopped it. Notes if that failed.
    #[inline(never)] // 368 bytes of counters with branches, at `opt-level` 3.
    pub(crate) fn restart<M: RegisterBackend>(&self, msr: &M) -> Result<u64, AccessFault> {
        if self.memory.mode() & CLEAR != 0 {
            return Ok(0);
        }
        // A call stack begins anew if an interrupt could not start its recording again.
        if self.memory.mode() & (STACK | STALE) == STACK | STALE
            && self.unit.clear_records(msr).is_ok()
        {
            self.memory.clear_mode(STALE);
        }
        let started = self.unit.start(msr, self.memory.control.load(Relaxed));
        match started {
            Err(_) => {
                self.memory.set_mode(LOST);
                // Calls and returns that are not recorded are missing in a call stack for good.
                if self.memory.mode() & STACK != 0 {
                    self.memory.set_mode(STALE);
                }
            }
            Ok(_) if self.memory.mode() & LOST != 0 => self.memory.clear_mode(LOST),
            Ok(_) => {}
        }
        started
    }
}

impl<'r, M: RegisterBackend> Recording<'r, M> {
    /// Records branches for events, or again for a recorder.
    fn record(
        &self,
        wanted: Wanted,
        running: &Running<'_>,
        mut stacks: Stacks<'r>,
        is_of_recorder: bool,
    ) -> Result<(), AccessFault> {
        if !is_of_recorder {
            match self.memory.take_for_events(self.unit) {
                Taken::Refused => return Ok(()),
                Taken::Unverified => {
                    self.verify().inspect_err(|_| self.memory.give_back_untaken())?;
                }
                Taken::Verified => {}
            }
        }
        let changes = stacks.leaving.is_some() || stacks.coming.is_some();
        match (self.goes_on(wanted) && !changes, running.are_switched()) {
            (true, false) => return Ok(()),
            // Each write to the register of the depth clears all records, also while the processor records.
            (true, true) if self.unit.registers().depth.is_some() => return self.clear_stopped(),
            _ => {}
        }
        if running.are_returned() {
            stacks.coming = Some(self.memory);
        }
        self.record_anew(wanted, stacks)
    }

    /// Ends what was recorded for events. An access that fails is no error of the events that still run: it is tried
    /// again with the next change, and until then the records are not read.
    fn end(&self, stacks: Stacks<'_>, is_of_recorder: bool) -> Result<(), AccessFault> {
        let mode = self.memory.mode();
        if is_of_recorder {
            return self.leave_nothing(false);
        }
        if !self.memory.was_of_events() {
            return Ok(());
        }
        if mode & (RECORDING | STALE | CLEAR) != CLEAR {
            self.memory.kept.store(0, Relaxed);
            let is_unknown = mode & UNKNOWN != 0;
            // Another owner, or a suspend, may have changed the registers: what they hold is looked at first.
            let ended = match is_unknown {
                true => self.end_unknown(mode),
                false => self.pause_and_clear(stacks.leaving),
            };
            if ended.is_err() {
                return Ok(());
            }
        }
        // Otherwise the start of a recording may have failed.
        self.memory.leave_to_others();
        Ok(())
    }

    /// Ends what a borrower may have left, or what goes on although the registers were said to be lost.
    fn end_unknown(&self, mode: u8) -> Result<(), AccessFault> {
        let found = self.pause_for_another()?;
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

    /// Ends what was recorded, before the counters are another owner's.
    fn end_for_borrower(&self, is_to_return: bool) -> Result<(), AccessFault> {
        if self.memory.leave() {
            self.leave_nothing(is_to_return)?;
            self.memory.lose();
            self.memory.left(is_to_return);
        }
        Ok(())
    }

    /// Ends what a predecessor left, and proves that the processor has the records. Finds whether it freezes them.
    #[inline(never)] // 182 bytes of counters with branches.
    fn verify(&self) -> Result<(), AccessFault> {
        if !self.end_left_over()? {
            let (operation, register) = (AccessOperation::Write, self.unit.registers().from);
            return Err(AccessFault { operation, register, kind: AccessErrorKind::Other });
        }
        // A hypervisor may have the records, and not the register that freezes them.
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

impl Facility for Branches<'_> {
    #[inline]
    fn is_idle(&self) -> bool {
        self.memory.is_idle()
    }

    /// Returns the bit of the overflow status that reports frozen records. A recorder that records without freezing
    /// also returns this bit, because another owner may have enabled freezing.
    #[inline]
    fn status_bits(&self) -> u64 {
        if self.memory.mode_of(self.unit) & (FREEZING | RECORDING) == 0 {
            return 0;
        }
        let status = self.unit.registers().freeze.and_then(|freeze| freeze.status);
        status.map_or(0, |(frozen, _)| frozen)
    }

    /// Stops the recording if the interrupt does not freeze the records.
    fn begin<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        // Records of an earlier pass do not belong to this interrupt.
        *self = Self::new(self.unit, self.memory);
        if self.memory.mode_of(self.unit) & (RECORDING | FREEZING) == RECORDING {
            self.found = self.unit.stop(msr)?;
            self.stopped = true;
        }
        Ok(())
    }

    /// Reads the records if a counter overflowed. If the processor freezes the records by stopping the recording, this
    /// method also restarts the recording.
    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        let mode = self.memory.mode_of(self.unit);
        let freeze = self.unit.registers().freeze.filter(|_| mode & FREEZING != 0);
        let overflowed = !interrupted.overflowed.is_empty() || interrupted.recorded;
        match freeze.map(|freeze| freeze.status) {
            _ if mode & RECORDING == 0 => {}
            None if overflowed && self.stopped => self.read(msr, self.found)?,
            None => {}
            Some(Some((frozen, _))) if overflowed => {
                self.is_frozen = interrupted.status & frozen != 0;
                if !self.is_frozen {
                    // The processor did not freeze them after all.
                    self.found = self.unit.stop(msr)?;
                    self.stopped = true;
                }
                self.read(msr, self.found)?;
            }
            Some(Some(_)) => {}
            // To freeze them the processor stopped the recording, whichever owner's interrupt it is.
            Some(None) if !overflowed => _ = self.restart(msr)?,
            Some(None) => {
                // It is stopped here if the processor did not: while it records, the registers of one record may hold
                // parts of two branches.
                self.stopped = true;
                self.found = self.unit.stop(msr)?;
                self.is_frozen = !self.unit.is_on(self.found);
                self.read(msr, self.found)?;
            }
        }
        Ok(0)
    }

    /// Restarts the recording if [`begin`](Facility::begin) or [`collect`](Facility::collect) stopped it.
    fn end<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        if core::mem::take(&mut self.stopped) { self.restart(msr).map(|_| ()) } else { Ok(()) }
    }

    /// Ends the freeze that the interrupt began.
    #[cold]
    fn without_counters<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        const FROZEN: u8 = FREEZING | RECORDING;
        let freeze = self.unit.registers().freeze;
        match freeze.filter(|_| self.memory.mode_of(self.unit) & FROZEN == FROZEN) {
            None => Ok(()),
            Some(BranchFreeze { status: Some(_), .. }) => self.unit.unfreeze(msr),
            Some(BranchFreeze { status: None, .. }) => self.restart(msr).map(|_| ()),
        }
    }
}
