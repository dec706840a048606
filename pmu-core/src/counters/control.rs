//! The control registers: a counter's own, those that fixed counters share, and those of all counters together.

use core::sync::atomic::Ordering::Relaxed;

use crate::msr::MsrAccess;
use crate::{
    Counter, CounterControl, CounterError, CounterId, CounterSet, CounterSlot, Counters,
    EventSelect, EventSource, GlobalRegisters, MsrAddress, MsrBackend, MsrFault, Platform,
};

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    /// Writes a register.
    pub(crate) fn wrmsr_retrying(&self, register: MsrAddress, value: u64) -> Result<(), MsrFault> {
        self.msr.wrmsr_retrying(register, value)
    }

    /// Reads a register.
    pub(crate) fn rdmsr_retrying(&self, register: MsrAddress) -> Result<u64, MsrFault> {
        self.msr.rdmsr_retrying(register)
    }

    /// Reads a counter.
    pub(crate) fn read(&self, registers: &Counter) -> Result<u64, MsrFault> {
        registers.read(&self.msr)
    }

    /// Programs a counter's control with `bits`, which are the counter's own; 0 stops it.
    pub(crate) fn set_control(&self, counter: &Counter, bits: u64) -> Result<(), MsrFault> {
        match counter.control {
            CounterControl::Select(register) => self.msr.wrmsr_retrying(register, bits),
            CounterControl::Shared { register, .. } => {
                let shadow = &self.memory.fixed_control;
                let value = shadow.load(Relaxed) & !counter.control.mask() | bits;
                self.msr.wrmsr_retrying(register, value)?;
                shadow.store(value, Relaxed);
                Ok(())
            }
        }
    }

    /// Returns whether the counter's control holds `bits`.
    pub(crate) fn holds(&self, counter: &Counter, bits: u64) -> Result<bool, MsrFault> {
        let control = counter.control;
        let found = self.rdmsr_retrying(control.register())?;
        Ok(found & control.mask() == bits)
    }

    /// Lets the processor stop all its counters as it raises the performance interrupt, until the
    /// interrupt path has acknowledged it. Servicing then needs fewer register accesses, and none of
    /// its own events are counted.
    ///
    /// **Every** counter of the processor stands still meanwhile, whoever owns it: between the raise
    /// and the acknowledgement nothing is counted anywhere.
    ///
    /// Call it before the first event is started, with the performance interrupt not yet expected.
    ///
    /// # Errors
    /// [`FreezeUnsupported`](CounterError::FreezeUnsupported), also where the processor, or a hypervisor,
    /// does not keep the bit; [`Access`](CounterError::Access).
    pub fn freeze_on_interrupt(&mut self) -> Result<(), CounterError> {
        let freeze = self.unit().global().and_then(|global| global.freeze);
        let freeze = freeze.filter(|_| self.is_open()).ok_or(CounterError::FreezeUnsupported)?;
        let freezes = &self.memory.freezes;
        // The interrupt path first: otherwise it would leave the counters frozen.
        if freezes.swap(true, Relaxed) {
            return Ok(());
        }
        let set = self.msr.change_retrying(freeze.set(true)).and_then(|before| {
            let kept = self.msr.change_retrying(freeze.read()).inspect_err(|_| {
                if before & freeze.bit == 0 {
                    let _ = self.msr.change_retrying(freeze.set(false));
                }
            })?;
            Ok((before, kept))
        });
        match set {
            Ok((before, kept)) if kept & freeze.bit != 0 => {
                self.memory.froze_before.store(before & freeze.bit != 0, Relaxed);
                Ok(())
            }
            Ok(_) => {
                freezes.store(false, Relaxed);
                Err(CounterError::FreezeUnsupported)
            }
            Err(fault) => {
                freezes.store(false, Relaxed);
                Err(CounterError::Access(fault))
            }
        }
    }

    /// Restores the freeze bit as it was found, and leaves the register's other bits.
    pub(crate) fn stop_freezing(&mut self) -> Result<(), MsrFault> {
        let freeze = self.unit().global().and_then(|global| global.freeze);
        let Some(freeze) = freeze.filter(|_| self.memory.freezes.load(Relaxed)) else {
            return Ok(());
        };
        let before = self.memory.froze_before.load(Relaxed);
        self.msr.change_retrying(freeze.set(before))?;
        self.memory.freezes.store(false, Relaxed);
        Ok(())
    }

    /// Sets or clears bits of the global control register for the other owners of counters, a watchdog for
    /// instance. They do not write the register while the session lives; what they set through it stays at
    /// [`shut_down`](Self::shut_down). Of a shared interrupt the handler calls [`service`](crate::service)
    /// first, and then looks for the others' overflows: one that comes before `service` unmasked the local
    /// APIC's entry has no interrupt of its own.
    ///
    /// # Errors
    /// [`OwnControlBits`](CounterError::OwnControlBits): some of `bits` are the session's counters', the session's are
    /// [lent](Self::lend), or the processor has no such register. [`Access`](CounterError::Access): the register is as
    /// it was. [`Faulted`](CounterError::Faulted): it does not answer; no event is known to run any more.
    pub fn set_others_control(&mut self, bits: u64, enabled: bool) -> Result<(), CounterError> {
        let not_others = CounterError::OwnControlBits(bits & self.own().bits());
        let global = self.unit().global().filter(|_| self.has_own()).ok_or(not_others)?;
        if bits & self.own().bits() != 0 {
            return Err(not_others);
        }
        let change = if enabled { (0, bits) } else { (bits, 0) };
        // First in the register: bits that it refuses must not be what an interrupt leaves behind.
        let value = self.memory.global_control.load(Relaxed) & !change.0 | change.1;
        self.wrmsr_retrying(global.control, value).map_err(CounterError::Access)?;
        self.change_global(global, change)
    }

    /// Acknowledges bits of the overflow status that are not the session's: what a predecessor left of a Debug
    /// Store's buffer (62) for instance, or of counters that have no owner. Each unmasking of the local APIC's entry
    /// raises an interrupt while one of them is set, on Intel's processors from version 3 on.
    ///
    /// # Errors
    /// [`OwnControlBits`](CounterError::OwnControlBits): some of `bits` are the session's counters', the session's are
    /// [lent](Self::lend), or there is no such register. [`Access`](CounterError::Access).
    pub fn acknowledge_others(&mut self, bits: u64) -> Result<(), CounterError> {
        let own = bits & self.own().bits();
        let global = self.unit().global().filter(|_| own == 0 && self.has_own());
        let global = global.ok_or(CounterError::OwnControlBits(own))?;
        self.wrmsr_retrying(global.acknowledge, bits).map_err(CounterError::Access)
    }

    /// Sets the bits of `mask` in the fixed counters' control to those of `bits`, for the other owners of fixed
    /// counters. They do not write the register while the session lives.
    ///
    /// # Errors
    /// [`OwnControlBits`](CounterError::OwnControlBits): some of `mask` are the session's counters', the session's are
    /// [lent](Self::lend), or the processor has no such register. [`Access`](CounterError::Access): the register is as
    /// it was.
    pub fn set_others_fixed_control(&mut self, mask: u64, bits: u64) -> Result<(), CounterError> {
        let own = self.fixed_control_of(self.own());
        let has_fixed = !(self.unit().counters() & CounterSet::FIXED).is_empty();
        if mask & own != 0 || !has_fixed || !self.has_own() {
            return Err(CounterError::OwnControlBits(mask & own));
        }
        self.find_fixed_control()?;
        let shadow = &self.memory.fixed_control;
        let value = shadow.load(Relaxed) & !mask | bits & mask;
        let register = self.unit().fixed_control();
        self.wrmsr_retrying(register, value).map_err(CounterError::Access)?;
        shadow.store(value, Relaxed);
        Ok(())
    }

    /// Returns whether the session is open, and knows its counters from others': while they are lent, it has none.
    fn has_own(&self) -> bool {
        self.is_open() && !self.memory.is_lent()
    }

    /// Returns the bits of the fixed counters' control that are these counters'.
    pub(crate) fn fixed_control_of(&self, counters: CounterSet) -> u64 {
        let fixed = (counters & CounterSet::FIXED).iter();
        fixed.fold(0, |all, counter| all | self.registers(counter).control.mask())
    }

    /// Sees what the other owners have in the fixed counters' control, where it is not known yet: while none of
    /// these is the session's.
    pub(crate) fn find_fixed_control(&self) -> Result<(), CounterError> {
        if (self.own() & CounterSet::FIXED).is_empty() {
            let found = self.rdmsr_retrying(self.unit().fixed_control());
            self.memory.fixed_control.store(found.map_err(CounterError::Access)?, Relaxed);
        }
        Ok(())
    }

    /// Clears and sets bits of the global control register: first in what the interrupt path leaves behind,
    /// then in the register. Where it fails, both are as they were.
    pub(crate) fn change_global(
        &self,
        global: &GlobalRegisters,
        (clear, set): (u64, u64),
    ) -> Result<(), CounterError> {
        let control = &self.memory.global_control;
        let before = control.load(Relaxed);
        let after = before & !clear | set;
        control.store(after, Relaxed);
        self.wrmsr_retrying(global.control, after).map_err(|fault| {
            control.store(before, Relaxed);
            // An interrupt in between may have written the new value.
            match self.wrmsr_retrying(global.control, before) {
                Ok(()) => CounterError::Access(fault),
                Err(fault) => {
                    // Whatever it holds, the next start is to write it.
                    control.fetch_and(!self.own().bits(), Relaxed);
                    self.memory.mark_faulted(None, self.table());
                    CounterError::Faulted(fault)
                }
            }
        })
    }

    /// Returns the status bits of counters that have no owner who would acknowledge them: neither the session's
    /// nor enabled by anyone. From Intel's version 3 on, each unmasking raises an interrupt while one of them is
    /// set.
    pub(crate) fn unowned(&self, proven: CounterSet, control: u64) -> u64 {
        let disabled = self.declared().without(proven).retain(|counter| {
            match self.registers(counter).control {
                CounterControl::Select(select) => {
                    let bits = self.rdmsr_retrying(select);
                    bits.is_ok_and(|bits| !EventSelect::from_bits(bits).is_enabled())
                }
                CounterControl::Shared { counter, .. } => {
                    self.memory.fixed_control.load(Relaxed) >> (4 * (counter & 7)) & 0b11 == 0
                }
            }
        });
        let gated = CounterSet::from_bits(!control).without(proven);
        (disabled | gated).bits()
    }

    /// Acknowledges those of the bits that the global status shows. An interrupt of theirs that still comes
    /// finds nothing.
    pub(crate) fn acknowledge(&self, global: &GlobalRegisters, bits: u64) -> Result<u64, MsrFault> {
        let pending = self.rdmsr_retrying(global.status)? & bits;
        if pending != 0 {
            self.memory.expect_late(CounterSet::from_bits(pending).len() as u32);
            self.clear_status(global, pending)?;
        }
        Ok(pending)
    }

    /// Clears bits of the status, of counters that are stopped. Where the global control enables no counter, it enables
    /// these meanwhile: Zhaoxin's ZX-C takes an acknowledgement only then (as in Linux).
    #[inline(never)]
    pub(crate) fn clear_status(&self, global: &GlobalRegisters, bits: u64) -> Result<(), MsrFault> {
        let own = bits & self.own().bits();
        // Those that are stopped while they are serviced take it at any time.
        let takes = global.stop_while_serviced || self.memory.global_control.load(Relaxed) != 0;
        if takes || own == 0 {
            return self.wrmsr_retrying(global.acknowledge, bits);
        }
        self.wrmsr_retrying(global.control, own)?;
        let cleared = self.wrmsr_retrying(global.acknowledge, bits);
        self.wrmsr_retrying(global.control, 0).and(cleared)
    }

    /// Returns the registers of a counter, and its slot.
    pub(crate) fn place(&self, counter: CounterId) -> Option<(&CounterSlot, Counter)> {
        Some((self.slot(counter)?, self.registers(counter)))
    }
}
