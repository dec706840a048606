//! Accesses to the control registers, each with one retry. In a register with several owners, only the session's bits
//! are changed.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::{EventFacility, UnitAccess};
use crate::counters::hooks::event_source::{EventSource, read_counter};
use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::counter::{Counter, CounterControl};
use crate::counters::registers::global::GlobalRegisters;
use crate::msr::access::MsrAccess;
use crate::msr::address::MsrAddress;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Writes a register, with one retry.
    pub(crate) fn wrmsr_retrying(&self, register: MsrAddress, value: u64) -> Result<(), MsrFault> {
        self.msr.wrmsr_retrying(register, value)
    }

    /// Reads a register, with one retry.
    pub(crate) fn rdmsr_retrying(&self, register: MsrAddress) -> Result<u64, MsrFault> {
        self.msr.rdmsr_retrying(register)
    }

    /// Reads a counter, with one retry.
    pub(crate) fn read(&self, registers: &Counter) -> Result<u64, MsrFault> {
        read_counter(&self.source, &self.msr, registers)
    }

    /// Loads a counter that is stopped, with one retry.
    #[inline(always)]
    pub(crate) fn load(&self, registers: &Counter, value: u64) -> Result<(), MsrFault> {
        if S::Facility::UNITS && registers.is_unit() {
            return self.access_unit(registers, UnitAccess::WriteValue(value)).map(drop);
        }
        self.msr.wrmsr_retrying(registers.register_for(value), value)
    }

    /// Accesses a sampling unit.
    fn access_unit(&self, registers: &Counter, access: UnitAccess) -> Result<u64, MsrFault> {
        self.source.facility().access_unit(&self.msr, registers, access)
    }

    /// Returns those of the counters that are sampling units: no register of the counters knows them.
    #[inline]
    pub(crate) fn units_of(&self, counters: CounterSet) -> CounterSet {
        if S::Facility::UNITS {
            counters & self.source.facility().units()
        } else {
            CounterSet::NONE
        }
    }

    /// Returns the bits of the global registers for these counters.
    #[inline]
    pub(crate) fn global_bits(&self, counters: CounterSet) -> u64 {
        counters.without(self.units_of(counters)).bits()
    }

    /// Returns those of the counters that have bits in the fixed counters' control register.
    #[inline]
    pub(crate) fn fixed_of(&self, counters: CounterSet) -> CounterSet {
        let fixed = counters & CounterSet::FIXED;
        fixed.without(self.units_of(fixed))
    }

    /// Programs a counter's control with `bits`, which are the counter's own; 0 stops it.
    #[inline(never)] // Linked once: each start and stop writes a control.
    pub(crate) fn set_control(&self, counter: &Counter, bits: u64) -> Result<(), MsrFault> {
        if S::Facility::UNITS && counter.is_unit() {
            return self.access_unit(counter, UnitAccess::WriteControl(bits)).map(drop);
        }
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
        if S::Facility::UNITS && counter.is_unit() {
            return Ok(self.access_unit(counter, UnitAccess::ReadControl)? == bits);
        }
        let control = counter.control;
        let found = self.rdmsr_retrying(control.register())?;
        Ok(found & control.mask() == bits)
    }

    /// Returns whether the session is open and has its counters: while they are lent, it has none.
    pub(crate) fn has_own(&self) -> bool {
        self.is_open() && !self.memory.is_lent()
    }

    /// Returns the bits of the fixed counters' control register that belong to these counters.
    pub(crate) fn fixed_control_of(&self, counters: CounterSet) -> u64 {
        let fixed = self.fixed_of(counters).iter();
        fixed.fold(0, |all, counter| all | self.registers(counter).control.mask())
    }

    /// Reads the other owners' bits of the fixed counters' control register if they are not known yet: while no fixed
    /// counter is the session's.
    pub(crate) fn find_fixed_control(&self) -> Result<(), CounterError> {
        if self.fixed_of(self.own()).is_empty() {
            let found = self.rdmsr_retrying(self.unit().fixed_control());
            self.memory.fixed_control.store(found.map_err(CounterError::Access)?, Relaxed);
        }
        Ok(())
    }

    /// Clears and sets bits of the global control register: first in the value that the interrupt path restores, then
    /// in the register. On failure, both are as they were.
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
                    // The register's value is unknown: the next start is to write it.
                    control.fetch_and(!self.own().bits(), Relaxed);
                    self.memory.mark_faulted(None, self.table());
                    CounterError::Faulted(fault)
                }
            }
        })
    }

    /// Acknowledges those of the bits that the global status has set. An interrupt that these overflows have already
    /// raised is then spurious.
    pub(crate) fn acknowledge(&self, global: &GlobalRegisters, bits: u64) -> Result<u64, MsrFault> {
        let pending = self.rdmsr_retrying(global.status)? & bits;
        if pending != 0 {
            self.memory.expect_spurious(CounterSet::from_bits(pending).len() as u32);
            self.clear_status(global, pending)?;
        }
        Ok(pending)
    }

    /// Clears bits of the global status whose counters are stopped. If the global control enables no counter, enables
    /// these meanwhile: Zhaoxin's ZX-C takes an acknowledgement only while a counter is enabled (as in Linux).
    #[inline(never)]
    pub(crate) fn clear_status(&self, global: &GlobalRegisters, bits: u64) -> Result<(), MsrFault> {
        let own = bits & self.own().bits();
        let bits = bits & !self.units_of(CounterSet::ALL).bits();
        if S::Facility::UNITS && bits == 0 {
            return Ok(());
        }
        // Processors whose counters are stopped while serviced take an acknowledgement at any time.
        let takes = global.stop_while_serviced || self.memory.global_control.load(Relaxed) != 0;
        if takes || own == 0 {
            return self.wrmsr_retrying(global.acknowledge, bits);
        }
        self.wrmsr_retrying(global.control, own)?;
        let cleared = self.wrmsr_retrying(global.acknowledge, bits);
        self.wrmsr_retrying(global.control, 0).and(cleared)
    }
}
