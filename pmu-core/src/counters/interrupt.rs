//! The interrupt path: finds the overflowed counters and re-arms them.
//!
//! It finds everything in the processor's [`CounterMemory`] and in the registers. It may come between
//! any two instructions of the control path, and between any two of its own: then it leaves a note for
//! the service under way.
//!
//! Order of the accesses, so that no overflow is lost on any platform:
//! - The overflow status is acknowledged before a counter is loaded again, wherever counters run
//!   meanwhile: an overflow after the acknowledgement sets the status, and interrupts, anew. Where the
//!   status says that the processor froze the counters, its acknowledgement releases them, and comes last.
//! - The local APIC's entry is unmasked before counters can overflow again: an overflow while it is masked
//!   interrupts neither then nor later. Counters that run are looked at after it. Where the counters stand
//!   still it comes after the acknowledgement, because from Intel's version 3 on unmasking raises an
//!   interrupt while a bit of the status is set; only frozen counters leave no choice, and that interrupt
//!   is claimed.

use core::sync::atomic::Ordering;

use crate::counters::slot::SlotState;
use crate::msr::{MsrAccess, retry_once};
use crate::{
    Counter, CounterId, CounterMemory, CounterSet, CounterSlot, CounterUnit, EventId, EventSource,
    GlobalRegisters, MsrAddress, MsrBackend, MsrFault, Platform,
};

/// One event's overflow, as the interrupt path reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventOverflow {
    /// The event.
    pub event: EventId,
    /// Number of its occurrences that this overflow stands for: its period.
    pub period: u64,
    /// The counter that it is on.
    pub counter: CounterId,
}

/// Result of servicing an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Serviced {
    /// Number of overflows that were reported.
    pub overflows: u32,
    /// Claim of the interrupt, for a handler that shares it.
    pub claim: Claim,
    /// Bits of the global status that were set and are not the session's to acknowledge: another owner's
    /// counters, and whatever else raises this interrupt (a branch or trace buffer). They are left set.
    pub others: u64,
}

/// Claim of one interrupt, for a handler that shares it with others: an NMI's.
///
/// An NMI that no handler claims is unknown, and may be a failing machine. One that a performance counter
/// raised may find nothing, because the NMI before it already served the counter. So a shared handler adds
/// up what its handlers claim. More than 1: the next NMI on this processor within 100 ms that no handler
/// claims is a counter's.
///
/// ```
/// use pmu_core::Claim;
/// /// The part of a kernel's NMI handler that comes after all sources were asked. `true`: unknown NMI.
/// fn unknown(pmu: Claim, others: u32, swallow_until: &mut u64, now_ms: u64) -> bool {
///     let claimed = pmu.interrupts() + others;
///     if claimed > 1 {
///         *swallow_until = now_ms + 100;
///     }
///     claimed == 0 && now_ms >= core::mem::take(swallow_until)
/// }
/// let mut swallow = 0;
/// assert!(!unknown(Claim::OursAndMore, 0, &mut swallow, 1000));
/// assert!(!unknown(Claim::NotOurs, 0, &mut swallow, 1001));
/// assert!(unknown(Claim::NotOurs, 0, &mut swallow, 1002));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Claim {
    /// Nothing of the session's was found: another source's, or unknown.
    NotOurs,
    /// The session's.
    Ours,
    /// The session's, and another interrupt may follow that finds nothing.
    OursAndMore,
}

impl Claim {
    /// Returns the number of interrupts that it stands for: 0, 1, or 2 where another may follow.
    pub const fn interrupts(self) -> u32 {
        self as u32
    }
}

/// Services the performance interrupt of the processor that executes the call: finds the overflowed counters,
/// re-arms them, reports each period that is over to `overflowed` once, and lets the interrupt recur.
///
/// `memory` is the processor's. Where no session has it, nothing is touched and the answer is
/// [`NotOurs`](Claim::NotOurs); but one interrupt that comes late, after
/// [`shut_down`](crate::Counters::shut_down), is claimed. A nested call, from an interrupt that interrupted this
/// one, returns [`Ours`](Claim::Ours) at once, and the call under way looks once more.
///
/// # Context
/// Interrupt or NMI, and any other. Bounded by the number of counters, once more for each nested interrupt;
/// takes no lock, does not allocate and does not panic unless `overflowed` does. If that unwinds, later
/// interrupts are only noted, until [`reprogram`](crate::Counters::reprogram).
///
/// # Errors
/// Returns the first access that failed after one retry; the remaining accesses are still attempted.
/// The interrupt is then to be counted as [`OursAndMore`](Claim::OursAndMore). A counter that may no longer
/// count or interrupt is marked as faulted: its event does not run.
#[inline]
pub fn service<S: EventSource, M: MsrBackend, P: Platform>(
    source: &S,
    msr: &M,
    platform: &P,
    memory: &CounterMemory,
    overflowed: impl FnMut(EventOverflow),
) -> Result<Serviced, MsrFault> {
    let own = memory.proven();
    if own.is_empty() {
        return Ok(Serviced { overflows: 0, claim: memory.claim_empty(), others: 0 });
    }
    if !memory.begin_service() {
        return Ok(Serviced { overflows: 0, claim: Claim::Ours, others: 0 });
    }
    let mut pass = Pass {
        source,
        unit: source.unit(),
        msr,
        platform,
        memory,
        own: own.bits(),
        overflowed,
        overflows: 0,
        found: 0,
        others: 0,
        claim: Claim::NotOurs,
        fault: None,
    };
    loop {
        let freezes = memory.freezes.load(Ordering::Relaxed);
        match pass.unit.global() {
            None => pass.by_value(),
            Some(global) if freezes && global.frozen != 0 => pass.freezing(global),
            Some(global) if freezes => pass.cleared(global),
            Some(global) if global.stop_while_serviced => pass.stopping(global),
            Some(global) => _ = pass.running(global),
        }
        if memory.end_service() {
            break;
        }
    }
    if let Some(fault) = pass.fault {
        return Err(fault);
    }
    let claim = match pass.found {
        0 if pass.claim == Claim::NotOurs => memory.claim_empty(),
        0 => pass.claim,
        1 => pass.claim.max(Claim::Ours),
        2.. => Claim::OursAndMore,
    };
    Ok(Serviced { overflows: pass.overflows, claim, others: pass.others })
}

/// One pass of the interrupt path over the counters.
struct Pass<'a, S, M, P, F> {
    source: &'a S,
    unit: &'a CounterUnit,
    msr: &'a M,
    platform: &'a P,
    memory: &'a CounterMemory,
    /// The session's counters, one bit each.
    own: u64,
    overflowed: F,
    overflows: u32,
    /// Counters found overflowed, reported or not: each may have raised an interrupt.
    found: u32,
    /// Other owners' bits of the status.
    others: u64,
    claim: Claim,
    /// The first fault; the pass goes on, so that nothing else is lost.
    fault: Option<MsrFault>,
}

/// The counters' bits in the global registers.
const COUNTERS: u64 = CounterSet::ALL.bits();

impl<'a, S, M, P, F> Pass<'a, S, M, P, F>
where
    S: EventSource,
    M: MsrBackend,
    P: Platform,
    F: FnMut(EventOverflow),
{
    fn note<T>(&mut self, result: Result<T, MsrFault>) -> Option<T> {
        result.map_err(|fault| self.fault.get_or_insert(fault).register).ok()
    }

    fn wrmsr(&mut self, register: MsrAddress, value: u64) -> bool {
        let written = retry_once(|| self.msr.wrmsr(register, value));
        self.note(written).is_some()
    }

    /// Marks the running ones of these counters as faulted: they may no longer count or interrupt.
    fn mark_faulted(&self, counters: u64) {
        for counter in CounterSet::from_bits(counters).iter() {
            if let Some(slot) = self.memory.slot(self.unit, counter)
                && matches!(slot.load(), SlotState::Running { .. })
            {
                slot.store(SlotState::Faulted);
            }
        }
    }

    /// Unmasks the local APIC's entry where its delivery masked it.
    fn unmask(&self) {
        if self.unit.is_masked_on_delivery() {
            self.platform.unmask_performance_interrupt();
        }
    }

    /// Counters that the processor does not stop, and that the driver does.
    fn stopping(&mut self, global: &GlobalRegisters) {
        let control = self.memory.global_control.load(Ordering::Relaxed);
        if !self.wrmsr(global.control, control & !self.own) {
            _ = self.running(global);
            return;
        }
        if let Some(status) = self.status(global) {
            // Released by the restart alone.
            self.acknowledge_and_reload(global, status & (self.own | global.frozen));
            self.expect_of_others(status);
        }
        self.unmask();
        self.restart(global, control);
    }

    /// Counters that run meanwhile. Returns the session's overflows.
    fn running(&mut self, global: &GlobalRegisters) -> u64 {
        self.unmask();
        let Some(status) = self.status(global) else { return 0 };
        self.expect_of_others(status);
        if status & global.frozen == 0 {
            self.acknowledge_and_reload(global, status & self.own);
        } else {
            // They do not run: firmware left the bit set that freezes them.
            self.reload_and_release(global, status);
        }
        status & self.own
    }

    /// Counters that the processor stops, until a bit of the status is acknowledged.
    fn freezing(&mut self, global: &GlobalRegisters) {
        match self.status(global) {
            None => self.unmask(),
            Some(status) if status & global.frozen != 0 => {
                // An overflow while the entry is masked may be lost: unmask before the release.
                self.unmask();
                // That may have raised an interrupt, for the status is still set.
                self.claim = Claim::OursAndMore;
                self.reload_and_release(global, status);
            }
            // They run after all: another's interrupt, or a processor that does not freeze.
            Some(_) => self.claim_more(|pass| pass.running(global)),
        }
    }

    /// Counters that the processor stops by clearing the control register: whether it did is not asked.
    fn cleared(&mut self, global: &GlobalRegisters) {
        let control = self.memory.global_control.load(Ordering::Relaxed);
        self.claim_more(|pass| pass.running(global));
        self.restart(global, control);
    }

    /// While a bit of another owner's counter is set, unmasking may raise an interrupt that then finds nothing: one is
    /// claimed ahead, beside the session's own.
    fn expect_of_others(&mut self, status: u64) {
        let others = status & COUNTERS & !self.own != 0;
        self.found += u32::from(others && self.unit.is_masked_on_delivery());
    }

    /// Where overflows are found, their status was set when the entry was unmasked, or they came since: either
    /// may have raised another interrupt.
    fn claim_more(&mut self, serve: impl FnOnce(&mut Self) -> u64) {
        if serve(self) != 0 {
            self.claim = Claim::OursAndMore;
        }
    }

    fn restart(&mut self, global: &GlobalRegisters, control: u64) {
        if !self.wrmsr(global.control, control) {
            // They stand still. The next start tries again.
            self.memory.global_control.fetch_and(!self.own, Ordering::Relaxed);
            self.mark_faulted(self.own);
        }
    }

    /// The status; where it cannot be read, an overflow that was not seen will not interrupt again.
    fn status(&mut self, global: &GlobalRegisters) -> Option<u64> {
        let status = retry_once(|| self.msr.rdmsr(global.status));
        let status = self.note(status);
        match status {
            Some(status) => self.others |= status & !(self.own | global.frozen),
            None => self.mark_faulted(self.own),
        }
        status
    }

    /// Acknowledges these bits of the status, and loads their counters again: an overflow that comes after the
    /// acknowledgement sets the status anew.
    fn acknowledge_and_reload(&mut self, global: &GlobalRegisters, bits: u64) {
        if bits == 0 {
            return;
        }
        let acknowledged = self.wrmsr(global.acknowledge, bits);
        self.reload_overflowed(bits);
        if !acknowledged {
            self.mark_faulted(bits & self.own);
        }
    }

    /// Loads the overflowed counters again, and acknowledges, which releases all that are frozen.
    fn reload_and_release(&mut self, global: &GlobalRegisters, status: u64) {
        let bits = status & (self.own | global.frozen);
        self.reload_overflowed(bits);
        if !self.wrmsr(global.acknowledge, bits) {
            self.mark_faulted(self.own);
        }
    }

    fn reload_overflowed(&mut self, bits: u64) {
        let overflowed = bits & self.own;
        self.claim = self.claim.max(Claim::Ours);
        self.found += overflowed.count_ones();
        for counter in CounterSet::from_bits(overflowed).iter() {
            if let Some((slot, registers, running)) = self.at_work(counter) {
                self.reload(counter, slot, &registers, running, None);
            }
        }
    }

    /// Serves counters of which the processor tells nothing: reads each that runs.
    fn by_value(&mut self) {
        // The counters run meanwhile.
        self.unmask();
        for counter in CounterSet::from_bits(self.own).iter() {
            let Some((slot, registers, running)) = self.at_work(counter) else { continue };
            let value = retry_once(|| registers.read(self.msr));
            let Some(value) = self.note(value) else {
                self.mark_faulted(counter.only().bits());
                continue;
            };
            // What is only counted is never loaded, and its value alone tells nothing.
            if running.period == 0 || registers.has_overflowed(value) {
                self.found += u32::from(running.period != 0);
                self.reload(counter, slot, &registers, running, Some(value));
            }
        }
    }

    /// A counter that runs, and what for.
    #[inline]
    fn at_work(&self, counter: CounterId) -> Option<(&'a CounterSlot, Counter, Running)> {
        let slot = self.memory.slot(self.unit, counter)?;
        let SlotState::Running { event, period } = slot.load() else { return None };
        Some((slot, self.unit.registers(counter), Running { event, period }))
    }

    /// Loads a counter that overflowed again, and reports the overflow. `value` is what it was read as, where
    /// it was.
    #[inline]
    fn reload(
        &mut self,
        counter: CounterId,
        slot: &CounterSlot,
        registers: &Counter,
        running: Running,
        value: Option<u64>,
    ) {
        let Running { event, period } = running;
        match event.row().and_then(|row| self.source.row_period(row)) {
            Some(next) => {
                let next = u64::from(next);
                let preload = registers.preload(next);
                self.load(slot, registers.value_register(), preload, running, next);
                self.report(event, period, counter);
            }
            None => self.reload_opened(counter, slot, registers, running, value),
        }
    }

    #[inline]
    fn load(
        &mut self,
        slot: &CounterSlot,
        register: MsrAddress,
        preload: u64,
        Running { event, period }: Running,
        next: u64,
    ) {
        if !self.wrmsr(register, preload) {
            // It overflowed, and will not again for long.
            slot.store(SlotState::Faulted);
        } else if next != period {
            slot.store(SlotState::Running { event, period: next });
        }
    }

    #[inline]
    fn report(&mut self, event: EventId, period: u64, counter: CounterId) {
        self.overflows += 1;
        (self.overflowed)(EventOverflow { event, period, counter });
    }

    /// The same of an opened event: books its total, and loads the next piece of its period. One that is only
    /// counted counts on from where it is.
    #[inline(never)]
    fn reload_opened(
        &mut self,
        counter: CounterId,
        slot: &CounterSlot,
        registers: &Counter,
        running: Running,
        value: Option<u64>,
    ) {
        let source = self.source;
        let Some(entry) = source.opened().entry(running.event) else { return };
        let counted_only = running.period == 0;
        if counted_only || entry.wants_total() {
            let read = value.map_or_else(|| retry_once(|| registers.read(self.msr)), Ok);
            let Some(now) = self.note(read) else { return slot.store(SlotState::Faulted) };
            let wrapped = entry.book(now, registers.mask());
            if counted_only {
                // A bit of the status was counted where it was found.
                self.found += u32::from(wrapped && value.is_some());
                return;
            }
        }
        let full_width = self.memory.full_width.load(Ordering::Relaxed);
        let (piece, over) = entry.next_piece(registers.reach(full_width));
        let preload = registers.preload(piece);
        entry.loaded(preload);
        self.load(slot, registers.register_for(preload), preload, running, piece);
        if let Some(period) = over {
            self.report(running.event, period, counter);
        }
    }
}

/// What a counter runs for.
#[derive(Clone, Copy)]
struct Running {
    event: EventId,
    period: u64,
}
