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

use crate::counter::{COUNTERS, SlotState, counters_in};
use crate::msr::{MsrAccess, retry_once};
use crate::{
    Counter, CounterMemory, CounterUnit, GlobalRegisters, KProfileSource, MsrAddress, MsrBackend,
    MsrFault, Platform, SourceInterface,
};

/// One counter's overflow, as the interrupt path reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Overflow {
    /// The source that the counter counts for.
    pub source: KProfileSource,
    /// The events that this overflow stands for: the interval it was loaded with.
    pub events: u32,
    /// The counter's number.
    pub counter: u8,
}

/// Result of servicing an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Serviced {
    /// Number of overflows that were reported.
    pub overflows: u32,
    /// Claim of the interrupt, for a handler that shares it.
    pub claim: Claim,
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

/// See [`ProfileInterface::service`].
#[inline]
pub(crate) fn service<I: SourceInterface, M: MsrBackend, P: Platform>(
    interface: &I,
    msr: &M,
    platform: &P,
    memory: &CounterMemory,
    overflowed: impl FnMut(Overflow),
) -> Result<Serviced, MsrFault> {
    let own = memory.proven.load(Ordering::Acquire);
    if own == 0 {
        return Ok(Serviced { overflows: 0, claim: memory.claim_empty() });
    }
    if !memory.begin_service() {
        return Ok(Serviced { overflows: 0, claim: Claim::Ours });
    }
    let mut pass = Pass {
        interface,
        unit: interface.unit(),
        msr,
        platform,
        memory,
        own,
        overflowed,
        overflows: 0,
        found: 0,
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
    Ok(Serviced { overflows: pass.overflows, claim })
}

/// One pass of the interrupt path over the counters.
struct Pass<'a, I, M, P, F> {
    interface: &'a I,
    unit: &'a CounterUnit,
    msr: &'a M,
    platform: &'a P,
    memory: &'a CounterMemory,
    /// The session's counters.
    own: u64,
    overflowed: F,
    overflows: u32,
    /// Counters found overflowed, reported or not: each may have raised an interrupt.
    found: u32,
    claim: Claim,
    /// The first fault; the pass goes on, so that nothing else is lost.
    fault: Option<MsrFault>,
}

impl<I: SourceInterface, M: MsrBackend, P: Platform, F: FnMut(Overflow)> Pass<'_, I, M, P, F> {
    fn note<T>(&mut self, result: Result<T, MsrFault>) -> Option<T> {
        result.map_err(|fault| self.fault.get_or_insert(fault).register).ok()
    }

    fn wrmsr(&mut self, register: MsrAddress, value: u64) -> bool {
        let written = retry_once(|| self.msr.wrmsr(register, value));
        self.note(written).is_some()
    }

    /// Marks the running ones of these counters as faulted: they may no longer count or interrupt.
    fn mark_faulted(&self, counters: u64) {
        for (number, slot) in (0..64).zip(&self.memory.slots) {
            if counters >> number & 1 != 0 && matches!(slot.load(), SlotState::Running { .. }) {
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
        if status.is_none() {
            self.mark_faulted(self.own);
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
        for number in counters_in(overflowed) {
            self.reload(number, |_, _| true);
        }
    }

    /// Serves counters of which the processor tells nothing: reads each that runs.
    fn by_value(&mut self) {
        // The counters run meanwhile.
        self.unmask();
        for number in counters_in(self.own) {
            self.reload(number, |pass, counter| {
                let value = retry_once(|| counter.read(pass.msr));
                let value = pass.note(value);
                if value.is_none() {
                    pass.mark_faulted(1 << number);
                }
                let overflowed = value.is_some_and(|value| counter.has_overflowed(value));
                pass.found += u32::from(overflowed);
                overflowed
            });
        }
    }

    /// If the counter runs and `has_overflowed`, loads it again and reports the overflow.
    fn reload(&mut self, number: u8, has_overflowed: impl Fn(&mut Self, &Counter) -> bool) {
        let (interface, memory) = (self.interface, self.memory);
        let Some(slot) = memory.slots.get(usize::from(number)) else { return };
        let SlotState::Running { row, events } = slot.load() else { return };
        let counter = self.unit.registers(number);
        let Some(source) = interface.table().rows().get(usize::from(row)) else { return };
        if !has_overflowed(self, &counter) {
            return;
        }
        let next = interface
            .interval_cell(usize::from(row))
            .map_or(events, |cell| cell.load(Ordering::Relaxed));
        if !self.wrmsr(counter.value_register(), counter.preload(next)) {
            // It overflowed, and will not again for long.
            self.mark_faulted(1 << number);
        } else if next != events {
            slot.store(SlotState::Running { row, events: next });
        }
        self.overflows += 1;
        (self.overflowed)(Overflow { source: source.source(), events, counter: number });
    }
}
