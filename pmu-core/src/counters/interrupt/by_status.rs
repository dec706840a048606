//! A pass on a processor whose overflow status tells which counters overflowed.

use core::sync::atomic::Ordering;

use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::{EventSource, opens_events};
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::interrupt::pass::{GENERAL, Pass, Running};
use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::global::GlobalRegisters;
use crate::msr::access::MsrAccess;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

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

impl<'a, S, M, P, B, F> Pass<'a, S, M, P, B, F>
where
    S: EventSource,
    M: MsrBackend,
    P: Platform,
    B: Facility,
    F: FnMut(EventOverflow, &B),
{
    /// Serves the counters whose overflows the status reports. They are stopped meanwhile where the driver stops them,
    /// or where the processor reports that it froze them. Otherwise they are assumed to run.
    pub(crate) fn by_status(&mut self, global: &GlobalRegisters) {
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
        if status.is_none() {
            // A facility with a status of its own would not interrupt again.
            self.collect(0, CounterSet::NONE);
        }
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

    /// Reads the status where the processor was told to freeze counters.
    #[inline]
    fn status_of_frozen(&mut self, global: &GlobalRegisters) -> (Option<u64>, Rest) {
        if global.frozen == 0 {
            // The counters may run, and an overflow while the LVT entry is masked would be lost. To freeze them the
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
            self.raised += u32::from(self.unit().is_masked_on_delivery());
        }
        let accounted = self.collect(status, CounterSet::from_bits(overflowed));
        if S::Facility::DIVIDES {
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
        // The overflow was pending when the LVT entry was unmasked, or came later. Either way another interrupt may
        // follow.
        self.raised += u32::from(more);
        // Frozen on request, or because firmware left the freeze bit set.
        let frozen = status & global.frozen != 0 && !stopped;
        if frozen {
            self.reload_overflowed(overflowed);
            return self.wrmsr(global.acknowledge, bits);
        }
        let acknowledged = self.wrmsr(global.acknowledge, bits);
        self.reload_overflowed(overflowed);
        acknowledged
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
                Some((slot, running)) => self.reload_opened(counter, slot, running, None),
                None => self.memory.cancel_spurious(),
            }
        }
    }
}
