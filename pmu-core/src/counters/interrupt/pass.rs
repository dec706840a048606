//! One pass over a processor's counters: what its steps share.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;

use crate::access::address::RegisterAddress;
use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::counters::error::ServiceError;
use crate::counters::events::count::EventOverflow;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::{Facility, Interrupted};
use crate::counters::interrupt::service::Serviced;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::unit::{CounterUnit, GlobalRegisters};
use crate::counters::registers::x86::INTERRUPTING;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::{EventSource, opens_events};

/// One pass of the interrupt path over the counters, with what its steps share.
pub(crate) struct Pass<'a, S, H, B, F> {
    pub(crate) shared: Shared<'a, S, H>,
    /// The source's facility; `()` if this interrupt has nothing to do for it.
    pub(crate) facility: B,
    pub(crate) overflowed: F,
}

/// The part of a [`Pass`] without facility and report. Its steps are linked once, whatever facility a pass serves.
pub(crate) struct Shared<'a, S, H> {
    pub(crate) source: &'a S,
    /// The source's. A machine of any vendor would be asked for each use which one it is.
    pub(crate) unit: &'a CounterUnit,
    pub(crate) hardware: &'a H,
    pub(crate) memory: &'a CounterMemory,
    /// The session's counters, one bit each.
    pub(crate) own: u64,
    pub(crate) overflows: u32,
    /// Interrupts that may have been raised: by overflows that were found, reported or not, by unmasking, and by the
    /// facility.
    pub(crate) raised: u32,
    /// Other owners' bits of the status.
    pub(crate) others: u64,
    /// First fault; the pass continues, so that no other overflow is lost.
    pub(crate) fault: Option<AccessFault>,
    /// Counters that faulted.
    pub(crate) fallen: CounterSet,
}

impl<'a, S, H, B, F> Deref for Pass<'a, S, H, B, F> {
    type Target = Shared<'a, S, H>;

    #[inline(always)]
    fn deref(&self) -> &Shared<'a, S, H> {
        &self.shared
    }
}

impl<S, H, B, F> DerefMut for Pass<'_, S, H, B, F> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.shared
    }
}

pub(crate) const GENERAL: u64 = CounterSet::GENERAL.bits();

impl<'a, S: EventSource, H: Hardware> Shared<'a, S, H> {
    #[inline]
    pub(crate) fn note<T>(&mut self, result: Result<T, AccessFault>) -> Option<T> {
        result.map_err(|fault| self.note_fault(fault)).ok()
    }

    #[cold]
    #[inline(never)] // 79 bytes of events alone.
    fn note_fault(&mut self, fault: AccessFault) {
        self.fault.get_or_insert(fault);
    }

    /// Marks the counter of an event as faulted, or all counters, after an access that failed.
    #[cold]
    #[inline(never)] // 91 bytes of counters with branches.
    pub(crate) fn mark_faulted(&mut self, event: Option<EventId>) {
        self.fallen = self.fallen | self.memory.mark_faulted(event, self.source.opened());
        if S::Facility::SOFTWARE {
            self.source.opened().stop_followers(event);
        }
    }

    /// Masks the interrupt: the status stays set, and could raise the interrupt again forever.
    #[cold]
    #[inline(never)] // 60 bytes of counters with branches.
    pub(crate) fn mask(&mut self) {
        self.hardware.mask_performance_interrupt();
        self.memory.serving.mask();
        self.mark_faulted(None);
    }

    pub(crate) fn wrmsr(&mut self, register: RegisterAddress, value: u64) -> bool {
        let written = self.hardware.write_retrying(register, value);
        self.note(written).is_some()
    }

    /// Returns whether the interrupt may be masked: by its delivery, or by an embedder that could not serve a level.
    fn may_be_masked(&self) -> bool {
        self.unit.is_masked_on_delivery() || self.hardware.is_level_interrupt()
    }

    /// Unmasks the interrupt where it may be masked.
    pub(crate) fn unmask(&self) {
        if self.may_be_masked() {
            self.hardware.unmask_performance_interrupt();
        }
    }

    /// Returns a running general counter with its event.
    #[inline]
    pub(crate) fn running_general(&self, counter: CounterId) -> Option<(&'a CounterSlot, Running)> {
        let slot = self.memory.general_slot(counter)?;
        Some((slot, Running::of(slot)?))
    }

    /// Reads the status where the processor was told to freeze counters.
    #[inline]
    fn status_of_frozen(&mut self, global: &GlobalRegisters) -> (Option<u64>, Rest) {
        if global.frozen == 0 {
            // The counters may run, and an overflow while the interrupt is masked would be lost. To freeze them the
            // processor clears the control register, which is not read back.
            self.unmask();
            return (self.status(global), Rest::Restart);
        }
        let Some(status) = self.status(global) else { return (None, Rest::Nothing) };
        // Unmasked before the counters are released. That may raise an interrupt, because the status is still set.
        self.unmask();
        if status & global.frozen == 0 {
            // The counters run after all: another owner's interrupt, or a processor that does not freeze.
            return (self.status(global), Rest::Nothing);
        }
        (Some(status), Rest::Nothing)
    }

    /// Writes the global control register: those bits of `mask` that it has while the counters run.
    #[inline]
    fn set_control(&mut self, global: &GlobalRegisters, mask: u64) -> bool {
        let control = self.memory.global_control.load(Ordering::Relaxed);
        self.wrmsr(global.control, control & mask)
    }

    fn restart(&mut self, global: &GlobalRegisters) {
        if !self.set_control(global, u64::MAX) {
            // On failure the counters stay stopped; the next start tries again.
            self.memory.global_control.fetch_and(!self.own, Ordering::Relaxed);
            self.mark_faulted(None);
        }
    }

    #[inline]
    fn status(&mut self, global: &GlobalRegisters) -> Option<u64> {
        let status = self.hardware.read_retrying(global.status);
        self.note(status)
    }
}

impl<'a, S, H, B, F> Pass<'a, S, H, B, F>
where
    S: EventSource,
    H: Hardware,
    B: EventFacility,
    F: FnMut(EventOverflow, &B),
{
    #[inline]
    pub(crate) fn report(&mut self, overflow: EventOverflow) {
        self.overflows += 1;
        (self.overflowed)(overflow, &self.facility);
    }

    /// Serves the counters whose overflows the status reports. They are stopped meanwhile where the driver stops them,
    /// or where the processor reports that it froze them. Otherwise they are assumed to run.
    pub(crate) fn by_status(&mut self, global: &GlobalRegisters) {
        let freezes = self.memory.freezes.load(Ordering::Relaxed);
        let others = !self.own;
        let (status, rest) = if freezes {
            self.status_of_frozen(global)
        } else if global.stop_while_serviced && self.set_control(global, others) {
            // Stopped counters cannot overflow, so the interrupt may stay masked until the status is clear.
            (self.status(global), Rest::UnmaskAndRestart)
        } else {
            // The counters run. An overflow while the interrupt is masked is lost, so it is unmasked before the status
            // is read.
            self.unmask();
            (self.status(global), Rest::Nothing)
        };
        let stopped = rest == Rest::UnmaskAndRestart;
        if status.is_none() {
            // A facility with a status of its own would not interrupt again.
            self.collect(0, CounterSet::NONE);
        }
        let cleared = status.is_some_and(|status| self.serve(global, status, freezes, stopped));
        match rest {
            _ if !cleared => self.mask(),
            Rest::UnmaskAndRestart => self.unmask(),
            Rest::Restart | Rest::Nothing => {}
        }
        // After unmasking: an overflow of a restarted counter must find the interrupt unmasked.
        if rest != Rest::Nothing {
            self.restart(global);
        }
    }

    /// Acknowledges the overflows that the status reports, then loads their counters again. If the acknowledgement
    /// releases frozen counters, it comes last. Returns whether the status was cleared.
    // Inlined at its only call, where most of its conditions are constant.
    #[inline(always)]
    pub(crate) fn serve(
        &mut self,
        global: &GlobalRegisters,
        status: u64,
        freezes: bool,
        stopped: bool,
    ) -> bool {
        let (shared, reported) = (self.facility.status_bits(), self.facility.own_counters().bits());
        let bits = status & (self.own | global.frozen | shared);
        let (overflowed, others) = (bits & self.own & !reported, status ^ bits);
        self.others |= others;
        // While a bit of another owner's counter is set, unmasking may raise a spurious interrupt: one is expected,
        // beside those of the session's own counters.
        if others & INTERRUPTING != 0 {
            self.raised += u32::from(self.may_be_masked());
        }
        let accounted = self.collect(status, CounterSet::from_bits(overflowed));
        if S::Facility::DIVIDES && !self.facility.is_idle() {
            self.divide(status);
        }
        let mut more = freezes;
        if overflowed == 0 {
            if bits == 0 {
                return true;
            }
            if bits & !(shared | reported) != 0 && accounted == 0 {
                // Frozen for a counter that was stopped meanwhile: this is the spurious interrupt expected of it.
                self.memory.cancel_spurious();
                self.raised += 1;
            }
            // That branch records are frozen raises no interrupt.
            more &= shared == 0 || bits & !(shared & !INTERRUPTING) != 0;
        }
        // The overflow was pending when the interrupt was unmasked, or came later. Either way another interrupt may
        // follow.
        self.raised += u32::from(more);
        // Frozen on request, or because firmware left the freeze bit set.
        let frozen = status & global.frozen != 0 && !stopped;
        if frozen {
            self.reload_overflowed(overflowed);
            return self.wrmsr(global.acknowledge, bits);
        }
        // The counters may run. Acknowledged after the load, a new overflow would be cleared with the old one.
        let acknowledged = self.wrmsr(global.acknowledge, bits);
        self.reload_overflowed(overflowed);
        acknowledged
    }

    #[inline]
    fn reload_overflowed(&mut self, overflowed: u64) {
        for counter in CounterSet::from_bits(overflowed & GENERAL).iter() {
            self.raised += 1;
            match self.running_general(counter) {
                Some((slot, running)) => self.reload(counter, slot, running, None),
                // The counter was stopped meanwhile: this is the spurious interrupt expected of it.
                None => self.memory.cancel_spurious(),
            }
        }
        if opens_events(self.source) && overflowed & !GENERAL != 0 {
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
                Some((slot, running)) => self.reload(counter, slot, running, None),
                None => self.memory.cancel_spurious(),
            }
        }
    }

    /// Serves counters without an overflow status: reads each running counter.
    pub(crate) fn by_value(&mut self) {
        // The counters run meanwhile.
        self.unmask();
        // Fixed counters exist only beside global registers, so here all counters are general.
        let own = CounterSet::from_bits(self.own & GENERAL).without(self.facility.own_counters());
        self.collect(0, own);
        let unit = self.unit;
        for counter in own.iter() {
            let Some((slot, running)) = self.running_general(counter) else { continue };
            let registers = unit.general(counter);
            let value = registers.read(self.hardware);
            let Some(value) = self.note(value) else {
                self.mark_faulted(Some(running.event));
                continue;
            };
            // A preload is in the upper half of the range. A value in the lower half has wrapped.
            if registers.has_overflowed(value) {
                self.raised += 1;
                self.reload(counter, slot, running, Some(value));
            }
        }
    }

    #[inline(always)]
    pub(crate) fn begin_facility(&mut self) {
        let begun = self.facility.begin(self.hardware);
        self.note(begun);
    }

    /// Lets the facility read what it recorded. Returns the number of interrupts that the facility accounts for, which
    /// are added to those of the pass.
    #[inline(always)]
    pub(crate) fn collect(&mut self, status: u64, overflowed: CounterSet) -> u32 {
        let interrupted = Interrupted { status, overflowed, recorded: false, memory: self.memory };
        let collected = self.facility.collect(self.hardware, interrupted);
        let accounted = self.note(collected).unwrap_or(0);
        self.raised += accounted;
        if B::RECORDS && opens_events(self.source) {
            self.report_records();
        }
        accounted
    }

    #[inline(always)]
    pub(crate) fn end_facility(&mut self) {
        let ended = self.facility.end(self.hardware);
        self.note(ended);
    }
}

/// The event for which a counter runs, and its period.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) event: EventId,
    pub(crate) period: u64,
}

impl Running {
    #[inline]
    pub(crate) fn of(slot: &CounterSlot) -> Option<Self> {
        match slot.load() {
            SlotState::Running { event, period } => Some(Self { event, period }),
            SlotState::Free | SlotState::Parked { .. } | SlotState::Faulted => None,
        }
    }
}

/// Access that remains once the overflows are served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    Restart,
    UnmaskAndRestart,
}

/// Serves a facility where no counter can be served: no session has taken the counters, the interrupt is masked, or a
/// task services the counters without the facility. The facility's interrupt comes nevertheless.
pub(crate) fn serve_alone<M: RegisterBackend, B: Facility>(
    msr: &M,
    memory: &CounterMemory,
    mut facility: B,
) -> Result<Serviced, ServiceError> {
    let (mut accounted, mut outcome) = (0, Ok(()));
    let served = memory.serving.serve_alone(|| {
        let begun = facility.begin(msr);
        let interrupted =
            Interrupted { status: 0, overflowed: CounterSet::NONE, recorded: false, memory };
        let collected = facility.collect(msr, interrupted).map(|more| accounted += more);
        let ended = facility.end(msr);
        let unserved = facility.without_counters(msr);
        outcome = outcome.and(begun).and(collected).and(ended).and(unserved);
    });
    let Some(is_nested) = served else {
        let (claim, lent) = memory.unserved(true);
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    };
    let (counters, masked) = (CounterSet::NONE, memory.serving.is_masked());
    outcome.map_err(|fault| ServiceError { fault, counters, masked })?;
    Ok(Serviced {
        overflows: 0,
        // The service that this one interrupted makes another pass, so the interrupt is the session's in any case.
        claim: memory.claim(accounted.max(is_nested.into())),
        others: 0,
        lent: false,
    })
}
