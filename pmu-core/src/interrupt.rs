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

use crate::counter::{SlotState, counters_in};
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
    /// Whether the interrupt was the session's.
    pub claim: Claim,
}

/// What a handler that shares its interrupt with others (an NMI) needs to know of one.
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
    /// How many interrupts it stands for: 0, 1, or 2 where another may follow.
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
        match pass.unit.global() {
            Some(global) => pass.by_status(global),
            None => pass.by_value(),
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

    fn status(&mut self, global: &GlobalRegisters) -> Option<u64> {
        let status = retry_once(|| self.msr.rdmsr(global.status));
        self.note(status)
    }

    /// Serves counters whose overflows the processor tells in a status register.
    fn by_status(&mut self, global: &GlobalRegisters) {
        let own = self.own;
        let control = self.memory.global_control.load(Ordering::Relaxed);
        let freezes = self.memory.freezes.load(Ordering::Relaxed);
        let stops = global.stop_while_serviced && !freezes;
        let stopped = stops && self.wrmsr(global.control, control & !own);
        let may_be_frozen = freezes && global.frozen != 0;
        let mut unmasked = !stopped && !may_be_frozen;
        if unmasked {
            self.unmask();
        }
        let mut status = self.status(global);
        if may_be_frozen && status.is_some_and(|status| status & global.frozen == 0) {
            // They run after all: another's interrupt, or a processor that does not freeze.
            self.unmask();
            unmasked = true;
            status = self.status(global);
        }
        if freezes && unmasked && status.is_some_and(|status| status & own != 0) {
            // The entry was unmasked while the status was set, or they overflowed since.
            self.claim = Claim::OursAndMore;
        }
        match status {
            Some(status) => self.serve(global, status, stopped, unmasked),
            None => {
                // An overflow that was not seen will not interrupt again.
                self.mark_faulted(own);
                if !unmasked {
                    self.unmask();
                }
            }
        }
        let restart = stops || freezes && global.frozen == 0;
        if restart && !self.wrmsr(global.control, control) && (stopped || freezes) {
            // They stand still. The next start tries again.
            self.memory.global_control.store(control & !own, Ordering::Relaxed);
            self.mark_faulted(own);
        }
    }

    /// Acknowledges what the status tells, loads the overflowed counters again, and unmasks.
    fn serve(&mut self, global: &GlobalRegisters, status: u64, stopped: bool, unmasked: bool) {
        let (overflowed, frozen) = (status & self.own, status & global.frozen);
        let bits = overflowed | frozen;
        self.found += overflowed.count_ones();
        if frozen != 0 {
            self.claim = self.claim.max(Claim::Ours);
        }
        let releases = frozen != 0 && !stopped;
        let mut acknowledged = bits == 0 || releases || self.wrmsr(global.acknowledge, bits);
        for number in counters_in(overflowed) {
            self.reload(number, |_, _| true);
        }
        if !unmasked {
            self.unmask();
        }
        if releases {
            if self.unit.is_masked_on_delivery() {
                // Unmasking may have raised an interrupt, for the status was still set.
                self.claim = Claim::OursAndMore;
            }
            acknowledged = self.wrmsr(global.acknowledge, bits);
        }
        if !acknowledged {
            self.mark_faulted(if releases { self.own } else { overflowed });
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
        let Some(counter) = self.unit.counter(number) else { return };
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
