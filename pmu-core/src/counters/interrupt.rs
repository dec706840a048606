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
//! - The local APIC's entry is unmasked before counters can overflow again: an overflow while it is masked is lost.
//!   Running counters are read after it. Where the counters stand still, unmasking comes after the acknowledgement,
//!   because from Intel's version 3 on unmasking raises an interrupt while a bit of the status is set; only frozen
//!   counters leave no choice, and that interrupt is claimed.

use core::sync::atomic::Ordering;

use crate::counters::slot::SlotState;
use crate::msr::MsrAccess;
use crate::{
    Counter, CounterId, CounterMemory, CounterSet, CounterSlot, CounterUnit, EventEntry, EventId,
    EventSource, GlobalRegisters, MsrAddress, MsrBackend, MsrFault, Platform, ServiceError,
};

/// One overflow, as the interrupt path reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventOverflow {
    /// The event.
    pub event: EventId,
    /// Its period: the number of events that this overflow stands for.
    pub period: u64,
    /// The counter that it is on.
    pub counter: CounterId,
    /// The event's own [tag](crate::Event::tagged), if it was opened with one. At
    /// [`switch_in`](crate::Counters::switch_in), for instance, an interrupt may come before the caller knows the
    /// event's identity.
    pub tag: u64,
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
    /// The counters are [lent](crate::Counters::lend): no register was accessed, and the interrupt may be the
    /// borrower's, whatever the claim says: the handler asks the borrower. The local APIC's entry stays masked where
    /// delivery masked it. After the window's end the borrower is asked only where the claim is
    /// [`NotOurs`](Claim::NotOurs).
    pub lent: bool,
}

/// Claim of one interrupt, for a handler that shares it with others: an NMI's.
///
/// An NMI that no handler claims is unknown, and may mean failing hardware. An NMI of a performance counter may find
/// no overflow, because the NMI before it already served the counter. So a shared handler adds up the claims. If the
/// sum exceeds 1, the next unclaimed NMI on this processor within 100 ms is a counter's.
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
    /// No overflow of the session was found: the interrupt is another source's, or unknown.
    NotOurs,
    /// The session's.
    Ours,
    /// The session's, and another interrupt may follow that finds nothing.
    OursAndMore,
}

impl Claim {
    /// Returns the number of interrupts that it stands for: 0 or 1, or 2 where another may follow.
    pub const fn interrupts(self) -> u32 {
        self as u32
    }
}

/// Services the performance interrupt of the processor that executes the call: finds the overflowed counters,
/// re-arms them, reports each period that is over to `overflowed` once, and lets the interrupt recur.
///
/// `memory` is the processor's. Without a session it accesses no register and returns [`NotOurs`](Claim::NotOurs),
/// but claims one interrupt that comes late, after [`shut_down`](crate::Counters::shut_down). A nested call, from an
/// interrupt that interrupted this one, returns [`Ours`](Claim::Ours) at once, and the outer call makes another pass.
///
/// # Context
/// Interrupt or NMI, and any other. Bounded by the number of counters, once more for each nested interrupt;
/// takes no lock, does not allocate and does not panic unless `overflowed` does. If that unwinds, later
/// interrupts are only noted, until [`reprogram`](crate::Counters::reprogram).
///
/// # Errors
/// Returns the first access that failed after one retry, and the counters that fell out: those that may no longer count
/// or interrupt, and those of the other events of their groups. Their events do not run. The remaining accesses are
/// still attempted. The interrupt is to be counted as [`OursAndMore`](Claim::OursAndMore).
///
/// Where the overflow status can be neither read nor cleared, the local APIC's entry is left
/// [masked](ServiceError::masked). Until [`reprogram`](crate::Counters::reprogram), calls access no register.
#[inline]
pub fn service<S: EventSource, M: MsrBackend, P: Platform>(
    source: &S,
    msr: &M,
    platform: &P,
    memory: &CounterMemory,
    overflowed: impl FnMut(EventOverflow),
) -> Result<Serviced, ServiceError> {
    let unit = source.unit();
    // This source's unit does not describe counters that another source's session has taken.
    let own = memory.proven(unit.counters());
    if own.is_empty() {
        let (claim, lent) = memory.unserved(own);
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    }
    let mut pass = Pass {
        source,
        msr,
        platform,
        memory,
        own: own.bits(),
        overflowed,
        overflows: 0,
        raised: 0,
        others: 0,
        fault: None,
        fallen: CounterSet::NONE,
    };
    let served = memory.serve(|| match unit.global() {
        None => pass.by_value(),
        Some(global) => pass.by_status(global),
    });
    if !served {
        let (claim, lent) = memory.unserved(own);
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    }
    if let Some(fault) = pass.fault {
        return Err(ServiceError { fault, counters: pass.fallen, masked: memory.is_muted() });
    }
    let claim = match pass.raised {
        0 => memory.claim_empty(),
        1 => Claim::Ours,
        2.. => Claim::OursAndMore,
    };
    Ok(Serviced { overflows: pass.overflows, claim, others: pass.others, lent: false })
}

/// One pass of the interrupt path over the counters.
struct Pass<'a, S, M, P, F> {
    source: &'a S,
    msr: &'a M,
    platform: &'a P,
    memory: &'a CounterMemory,
    /// The session's counters, one bit each.
    own: u64,
    overflowed: F,
    overflows: u32,
    /// Interrupts that may have been raised: of counters found overflowed, reported or not, and by unmasking.
    raised: u32,
    /// Other owners' bits of the status.
    others: u64,
    /// First fault; the pass continues, so that no other overflow is lost.
    fault: Option<MsrFault>,
    /// Counters that fell out.
    fallen: CounterSet,
}

/// Access that remains once the overflows are served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    Restart,
    UnmaskAndRestart,
}

/// The bits of the status that raise the interrupt (SDM vol. 4, table 2-2, IA32_PERF_GLOBAL_STATUS): those of the
/// counters, `PERF_METRICS` (48), architectural PEBS (54), a trace's table (55), the uncore (61) and the Debug Store's
/// buffer (62).
const INTERRUPTING: u64 = CounterSet::ALL.bits() | 1 << 48 | 1 << 54 | 1 << 55 | 1 << 61 | 1 << 62;
const GENERAL: u64 = CounterSet::GENERAL.bits();

impl<'a, S, M, P, F> Pass<'a, S, M, P, F>
where
    S: EventSource,
    M: MsrBackend,
    P: Platform,
    F: FnMut(EventOverflow),
{
    fn unit(&self) -> &'a CounterUnit {
        self.source.unit()
    }

    #[inline]
    fn note<T>(&mut self, result: Result<T, MsrFault>) -> Option<T> {
        result.map_err(|fault| self.note_fault(fault)).ok()
    }

    #[cold]
    #[inline(never)]
    fn note_fault(&mut self, fault: MsrFault) {
        self.fault.get_or_insert(fault);
    }

    /// Marks the counter of an event, or all, after an access that failed.
    #[cold]
    #[inline(never)]
    fn fall_out(&mut self, event: Option<EventId>) {
        self.fallen = self.fallen | self.memory.mark_faulted(event, self.source.opened());
    }

    /// Masks the entry: the status stays set, and could raise the interrupt again for ever.
    #[cold]
    #[inline(never)]
    fn mute(&mut self) {
        self.platform.mask_performance_interrupt();
        self.memory.mute();
        self.fall_out(None);
    }

    fn wrmsr(&mut self, register: MsrAddress, value: u64) -> bool {
        let written = self.msr.wrmsr_retrying(register, value);
        self.note(written).is_some()
    }

    /// Unmasks the local APIC's entry where its delivery masked it.
    fn unmask(&self) {
        if self.unit().is_masked_on_delivery() {
            self.platform.unmask_performance_interrupt();
        }
    }

    /// Serves the counters whose overflows the status reports. They stand still meanwhile where the driver stops
    /// them, or where the processor reports that it froze them; otherwise they are assumed to run.
    fn by_status(&mut self, global: &GlobalRegisters) {
        let freezes = self.memory.freezes.load(Ordering::Relaxed);
        let (status, rest) = if freezes {
            self.status_of_frozen(global)
        } else if global.stop_while_serviced && self.set_control(global, !self.own) {
            (self.status(global), Rest::UnmaskAndRestart)
        } else {
            self.unmask();
            (self.status(global), Rest::Nothing)
        };
        let stopped = rest == Rest::UnmaskAndRestart;
        let cleared = status.is_some_and(|status| self.serve(global, status, freezes, stopped));
        match rest {
            _ if !cleared => self.mute(),
            Rest::UnmaskAndRestart => self.unmask(),
            Rest::Restart | Rest::Nothing => {}
        }
        if rest != Rest::Nothing {
            self.restart(global);
        }
    }

    /// Reads the status of counters that the processor was told to freeze.
    #[inline]
    fn status_of_frozen(&mut self, global: &GlobalRegisters) -> (Option<u64>, Rest) {
        if global.frozen == 0 {
            // They may run, and an overflow while the entry is masked would be lost. To freeze them the processor
            // clears the control register, which is not read back.
            self.unmask();
            return (self.status(global), Rest::Restart);
        }
        let Some(status) = self.status(global) else { return (None, Rest::Nothing) };
        // Before the release, and it may raise an interrupt, for the status is still set.
        self.unmask();
        if status & global.frozen == 0 {
            // They run after all: another's interrupt, or a processor that does not freeze.
            return (self.status(global), Rest::Nothing);
        }
        (Some(status), Rest::Nothing)
    }

    /// Acknowledges the overflows that the status reports, and loads their counters again: in this order, unless the
    /// acknowledgement releases frozen counters. Returns whether the status was cleared.
    // Inlined at its only call, where most of its conditions are constant.
    #[inline(always)]
    fn serve(
        &mut self,
        global: &GlobalRegisters,
        status: u64,
        freezes: bool,
        stopped: bool,
    ) -> bool {
        let bits = status & (self.own | global.frozen);
        let (overflowed, others) = (bits & self.own, status ^ bits);
        self.others |= others;
        // While a bit of another owner's counter is set, unmasking may raise an interrupt that then finds
        // nothing: one is claimed ahead, beside the session's own.
        if others & INTERRUPTING != 0 {
            self.raised += u32::from(self.unit().is_masked_on_delivery());
        }
        if overflowed == 0 {
            if bits == 0 {
                return true;
            }
            // They are frozen for a counter that was stopped meanwhile: this is the interrupt expected of it.
            self.memory.expect_one_fewer();
            self.raised += 1;
        }
        // Found overflowed when the entry was unmasked, or since: either may have raised another interrupt.
        self.raised += u32::from(freezes);
        // Frozen on request, or because firmware left the bit set that freezes them.
        let frozen = status & global.frozen != 0 && !stopped;
        if frozen {
            self.reload_overflowed(overflowed);
            return self.wrmsr(global.acknowledge, bits);
        }
        let acknowledged = self.wrmsr(global.acknowledge, bits);
        self.reload_overflowed(overflowed);
        acknowledged
    }

    /// Writes the counters' control: those bits of `mask` that it holds while they run.
    #[inline]
    fn set_control(&mut self, global: &GlobalRegisters, mask: u64) -> bool {
        let control = self.memory.global_control.load(Ordering::Relaxed);
        self.wrmsr(global.control, control & mask)
    }

    fn restart(&mut self, global: &GlobalRegisters) {
        if !self.set_control(global, u64::MAX) {
            // They stand still; the next start tries again.
            self.memory.global_control.fetch_and(!self.own, Ordering::Relaxed);
            self.fall_out(None);
        }
    }

    #[inline]
    fn status(&mut self, global: &GlobalRegisters) -> Option<u64> {
        let status = self.msr.rdmsr_retrying(global.status);
        self.note(status)
    }

    #[inline]
    fn reload_overflowed(&mut self, overflowed: u64) {
        for counter in CounterSet::from_bits(overflowed & GENERAL).iter() {
            self.raised += 1;
            match self.at_work(counter) {
                Some((slot, running)) => self.reload(counter, slot, running, None),
                // It was stopped meanwhile, and this is the interrupt that was expected of it.
                None => self.memory.expect_one_fewer(),
            }
        }
        // Without opened events this call is not linked.
        if !self.source.opened().is_empty() && overflowed & !GENERAL != 0 {
            self.reload_fixed(CounterSet::from_bits(overflowed & !GENERAL));
        }
    }

    /// Serves the fixed counters, which only opened events use.
    #[cold]
    fn reload_fixed(&mut self, overflowed: CounterSet) {
        for counter in overflowed.iter() {
            self.raised += 1;
            let slot = self.memory.slot(counter);
            match slot.and_then(|slot| Some((slot, Running::of(slot)?))) {
                Some((slot, running)) => self.reload_opened(counter, slot, running, None),
                None => self.memory.expect_one_fewer(),
            }
        }
    }

    /// Serves counters without an overflow status: reads each that runs.
    fn by_value(&mut self) {
        // The counters run meanwhile.
        self.unmask();
        for counter in CounterSet::from_bits(self.own & GENERAL).iter() {
            let Some((slot, running)) = self.at_work(counter) else { continue };
            let registers = self.unit().general(counter);
            let value = registers.read(self.msr);
            let Some(value) = self.note(value) else {
                self.fall_out(Some(running.event));
                continue;
            };
            if registers.has_overflowed(value) {
                self.raised += 1;
                self.reload(counter, slot, running, Some(value));
            }
        }
    }

    /// Returns a running general counter with its event.
    #[inline]
    fn at_work(&self, counter: CounterId) -> Option<(&'a CounterSlot, Running)> {
        let slot = self.memory.slots().get(usize::from(counter.bit()))?;
        Some((slot, Running::of(slot)?))
    }

    /// Loads an overflowed general counter again, and reports the overflow. `value` is its value, if it was read.
    fn reload(
        &mut self,
        counter: CounterId,
        slot: &CounterSlot,
        running: Running,
        value: Option<u64>,
    ) {
        let Running { event, period } = running;
        // An opened event's number exceeds the number of rows of any table.
        match self.source.row_period(event.bits().into()) {
            Some(next) => {
                let (next, registers) = (u64::from(next), self.unit().general(counter));
                let preload = registers.preload(next);
                self.load(slot, registers.value_register(), preload, running, next);
                self.report(EventOverflow { event, period, counter, tag: 0 });
            }
            None if self.source.opened().is_empty() => {}
            None => self.reload_opened(counter, slot, running, value),
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
            // Not loaded again, it will not overflow for a long time.
            self.fall_out(Some(event));
        } else if next != period {
            slot.store(SlotState::Running { event, period: next });
        }
    }

    #[inline]
    fn report(&mut self, overflow: EventOverflow) {
        self.overflows += 1;
        (self.overflowed)(overflow);
    }

    /// Serves an opened event's overflow: adds to its total, and loads the next piece of its period.
    ///
    /// The counter of an event without a period is not loaded where the status reported its wrap; it simply
    /// continues.
    #[inline(never)]
    fn reload_opened(
        &mut self,
        counter: CounterId,
        slot: &CounterSlot,
        running: Running,
        value: Option<u64>,
    ) {
        let (source, registers) = (self.source, self.unit().registers(counter));
        let Some(entry) = source.opened().entry(running.event) else { return };
        if !entry.has_period() {
            return match value {
                None => entry.book_wrap(registers.mask()),
                Some(_) => self.set_back(running.event, &registers, entry),
            };
        }
        let (event, tag) = (running.event, entry.tag());
        if let Some(period) = entry.period_over() {
            // Before the counter is loaded, so that a period that the handler sets is the next one.
            self.report(EventOverflow { event, period, counter, tag });
        }
        if entry.wants_total() {
            let read = value.map_or_else(|| registers.read(self.msr), Ok);
            let Some(read) = self.note(read) else { return self.fall_out(Some(running.event)) };
            entry.book(read, registers.mask());
        }
        let full_width = self.memory.full_width.load(Ordering::Relaxed);
        let piece = entry.next_piece(registers.reach(full_width));
        let preload = registers.preload(piece);
        entry.loaded(preload);
        self.load(slot, registers.register_for(preload), preload, running, piece);
    }

    /// Sets the counter of an event without a period as far back from its next wrap as it reaches.
    ///
    /// Without a status only the value shows a wrap, and only if the counter was past half its range before. It
    /// stands still meanwhile, so that the total misses none of its events. Its select is left as it was found: the
    /// interrupted operation may have stopped it.
    fn set_back(&mut self, event: EventId, registers: &Counter, entry: &EventEntry) {
        let select = registers.control.register();
        let full_width = self.memory.full_width.load(Ordering::Relaxed);
        let write = |register, value| self.msr.wrmsr_retrying(register, value);
        let done = self.msr.rdmsr_retrying(select).and_then(|found| {
            write(select, 0)?;
            let value = registers.read(self.msr)?;
            entry.book(value, registers.mask());
            let value = registers.counted_on(value, full_width);
            entry.loaded(value);
            write(registers.register_for(value), value)?;
            write(select, found)
        });
        if self.note(done).is_none() {
            self.fall_out(Some(event));
        }
    }
}

/// The event that a counter runs for, and its period.
#[derive(Clone, Copy)]
struct Running {
    event: EventId,
    period: u64,
}

impl Running {
    #[inline]
    fn of(slot: &CounterSlot) -> Option<Self> {
        match slot.load() {
            SlotState::Running { event, period } => Some(Self { event, period }),
            SlotState::Free | SlotState::Parked { .. } | SlotState::Faulted => None,
        }
    }
}
