//! One pass over a processor's counters: what its steps share.

use crate::counters::hooks::event_source::EventSource;
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::names::event_id::EventId;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::msr::access::MsrAccess;
use crate::msr::address::MsrAddress;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::platform::Platform;

/// One pass of the interrupt path over the counters.
pub(crate) struct Pass<'a, S, M, P, B, F> {
    pub(crate) source: &'a S,
    pub(crate) msr: &'a M,
    pub(crate) platform: &'a P,
    pub(crate) memory: &'a CounterMemory,
    /// The session's counters, one bit each.
    pub(crate) own: u64,
    pub(crate) facility: B,
    pub(crate) overflowed: F,
    pub(crate) overflows: u32,
    /// Interrupts that may have been raised: by overflows that were found, reported or not, by unmasking, and by the
    /// facility.
    pub(crate) raised: u32,
    /// Other owners' bits of the status.
    pub(crate) others: u64,
    /// First fault; the pass continues, so that no other overflow is lost.
    pub(crate) fault: Option<MsrFault>,
    /// Counters that faulted.
    pub(crate) fallen: CounterSet,
}

pub(crate) const GENERAL: u64 = CounterSet::GENERAL.bits();

impl<'a, S, M, P, B, F> Pass<'a, S, M, P, B, F>
where
    S: EventSource,
    M: MsrBackend,
    P: Platform,
    B: Facility,
    F: FnMut(EventOverflow, &B),
{
    pub(crate) fn unit(&self) -> &'a CounterUnit {
        self.source.unit()
    }

    #[inline]
    pub(crate) fn note<T>(&mut self, result: Result<T, MsrFault>) -> Option<T> {
        result.map_err(|fault| self.note_fault(fault)).ok()
    }

    #[cold]
    #[inline(never)]
    fn note_fault(&mut self, fault: MsrFault) {
        self.fault.get_or_insert(fault);
    }

    /// Marks the counter of an event as faulted, or all counters, after an access that failed.
    #[cold]
    #[inline(never)]
    pub(crate) fn fall_out(&mut self, event: Option<EventId>) {
        self.fallen = self.fallen | self.memory.mark_faulted(event, self.source.opened());
    }

    /// Masks the LVT entry: the status stays set, and could raise the interrupt again forever.
    #[cold]
    #[inline(never)]
    pub(crate) fn mute(&mut self) {
        self.platform.mask_performance_interrupt();
        self.memory.mute();
        self.fall_out(None);
    }

    pub(crate) fn wrmsr(&mut self, register: MsrAddress, value: u64) -> bool {
        let written = self.msr.wrmsr_retrying(register, value);
        self.note(written).is_some()
    }

    /// Unmasks the LVT entry where its delivery masked it.
    pub(crate) fn unmask(&self) {
        if self.unit().is_masked_on_delivery() {
            self.platform.unmask_performance_interrupt();
        }
    }

    /// Returns a running general counter with its event.
    #[inline]
    pub(crate) fn at_work(&self, counter: CounterId) -> Option<(&'a CounterSlot, Running)> {
        let slot = self.memory.general_slot(counter)?;
        Some((slot, Running::of(slot)?))
    }

    #[inline]
    pub(crate) fn report(&mut self, overflow: EventOverflow) {
        self.overflows += 1;
        (self.overflowed)(overflow, &self.facility);
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
