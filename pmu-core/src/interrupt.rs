//! The interrupt path: which counters overflowed, and that they go on.
//!
//! It finds everything in the processor's [`CounterMemory`] and in the registers, and may come between
//! any two instructions of the control path.

use core::sync::atomic::Ordering;

use crate::counter::Use;
use crate::msr::{MsrAccess, insist};
use crate::{
    Counter, CounterMemory, GlobalRegisters, KProfileSource, MsrAddress, MsrBackend, MsrFault,
    Platform, ProfileInterface, ProfileSource,
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

/// What servicing an interrupt came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Serviced {
    /// How many overflows were reported. 0: the interrupt was spurious, or another's.
    pub overflows: u32,
}

/// The bits of `count` counters in a global register.
#[inline]
pub(crate) fn own_bits(count: u8) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// See [`ProfileInterface::service`].
#[inline]
pub(crate) fn service<I: ProfileInterface, M: MsrBackend, P: Platform>(
    interface: &I,
    msr: &M,
    platform: &P,
    memory: &CounterMemory,
    overflowed: impl FnMut(Overflow),
) -> Result<Serviced, MsrFault> {
    let mut pass = Pass { interface, msr, platform, memory, overflowed, overflows: 0, fault: None };
    match interface.global() {
        Some(global) => pass.by_status(&global),
        None => pass.by_value(),
    }
    match pass.fault {
        None => Ok(Serviced { overflows: pass.overflows }),
        Some(fault) => Err(fault),
    }
}

/// One pass of the interrupt path over the counters.
struct Pass<'a, I, M, P, F> {
    interface: &'a I,
    msr: &'a M,
    platform: &'a P,
    memory: &'a CounterMemory,
    overflowed: F,
    overflows: u32,
    /// The first fault; the pass goes on, so that nothing else is lost.
    fault: Option<MsrFault>,
}

impl<I: ProfileInterface, M: MsrBackend, P: Platform, F: FnMut(Overflow)> Pass<'_, I, M, P, F> {
    fn note<T>(&mut self, result: Result<T, MsrFault>) -> Option<T> {
        result.map_err(|fault| self.fault.get_or_insert(fault).register).ok()
    }

    fn put(&mut self, register: MsrAddress, value: u64) -> bool {
        let written = insist(|| self.msr.put(register, value));
        self.note(written).is_some()
    }

    /// Of these counters it can not be said any more that they count and interrupt: they are nobody's,
    /// until shut-down.
    fn give_up(&self, counters: u64) {
        for (number, slot) in (0..64).zip(&self.memory.slots) {
            if counters >> number & 1 != 0 && matches!(slot.load(), Use::Running { .. }) {
                slot.store(Use::Faulted);
            }
        }
    }

    /// Lets the interrupt recur. An overflow while the entry is masked interrupts nobody, then or
    /// later: so this comes before the counters go on.
    fn unmask(&self) {
        if self.interface.entry_masked_on_delivery() {
            self.platform.unmask_performance_interrupt();
        }
    }

    /// The processor says which counters overflowed.
    fn by_status(&mut self, global: &GlobalRegisters) {
        let own = own_bits(self.interface.counters());
        let control = self.memory.global_control.load(Ordering::Relaxed);
        let freeze = global.freeze.as_ref();
        let freeze = freeze.filter(|_| self.memory.freezes.load(Ordering::Relaxed));
        let stops = freeze.is_none() && global.stop_while_serviced;
        let stopped = stops && self.put(global.control, control & !own);
        let found = self.acknowledge(global);
        // The interrupt was not a counter's, so nothing froze them. One that overflowed since the
        // status was read, and froze them then, had no interrupt.
        if freeze.is_some() && !found {
            self.acknowledge(global);
        }
        let restart = freeze.map_or(global.stop_while_serviced, |f| f.frozen_status == 0);
        if restart && !self.put(global.control, control) && (stopped || freeze.is_some()) {
            // They stand still. The next start tries again.
            self.memory.global_control.store(control & !own, Ordering::Relaxed);
            self.give_up(own);
        }
    }

    /// Reloads what overflowed, lets the interrupt recur, and acknowledges. `false`: nothing was found.
    fn acknowledge(&mut self, global: &GlobalRegisters) -> bool {
        let own = own_bits(self.interface.counters());
        let status = insist(|| self.msr.get(global.status));
        let Some(status) = self.note(status) else {
            // Whichever overflowed will not interrupt again.
            self.give_up(own);
            self.unmask();
            return true;
        };
        let overflowed = status & own;
        let mut left = overflowed;
        while left != 0 {
            let number = left.trailing_zeros() as u8;
            left &= left - 1;
            self.reload(number, |_, _, _| true);
        }
        self.unmask();
        // What froze the counters is acknowledged last and with the rest: that releases them.
        // They may freeze though nobody asked: the bit that makes them may have been found set.
        let frozen = global.freeze.as_ref().map_or(0, |freeze| status & freeze.frozen_status);
        if overflowed | frozen != 0 && !self.put(global.acknowledge, overflowed | frozen) {
            self.give_up(if frozen != 0 { own } else { overflowed });
        }
        overflowed | frozen != 0
    }

    /// The processor says nothing: each running counter is read.
    fn by_value(&mut self) {
        // The counters run meanwhile.
        self.unmask();
        for number in 0..self.interface.counters() {
            self.reload(number, |pass, counter, _| {
                let value = insist(|| pass.msr.get_pmc(counter.rdpmc_index()));
                let value = pass.note(value);
                if value.is_none() {
                    pass.give_up(1 << number);
                }
                value.is_some_and(|value| counter.has_overflowed(value))
            });
        }
    }

    /// If the counter runs and `has_overflowed`, loads it again and reports the overflow.
    fn reload(&mut self, number: u8, has_overflowed: impl Fn(&mut Self, &I::Counter, u8) -> bool) {
        let (interface, memory) = (self.interface, self.memory);
        let Some(slot) = memory.slots.get(usize::from(number)) else { return };
        let Use::Running { row, events } = slot.load() else { return };
        let Some(counter) = interface.counter(number) else { return };
        let Some(source) = interface.sources().get(usize::from(row)) else { return };
        if !has_overflowed(self, &counter, number) {
            return;
        }
        let next = interface
            .interval_cell(usize::from(row))
            .map_or(events, |cell| cell.load(Ordering::Relaxed));
        if !self.put(counter.value_register(), counter.preload(next)) {
            // It overflowed, and will not again for long.
            self.give_up(1 << number);
        } else if next != events {
            slot.store(Use::Running { row, events: next });
        }
        self.overflows += 1;
        (self.overflowed)(Overflow { source: source.source(), events, counter: number });
    }
}
