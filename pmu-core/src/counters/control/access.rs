//! Accesses to the control registers, each with one retry. In a register with several owners, only the session's bits
//! are changed.

use core::sync::atomic::Ordering::Relaxed;

use crate::access::address::RegisterAddress;
use crate::access::backend::{AccessFault, RegisterAccess};
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::{EventFacility, UnitAccess};
use crate::counters::names::CounterSet;
use crate::counters::registers::counter::{Counter, CounterControl, EventSelect};
use crate::counters::registers::unit::GlobalRegisters;
use crate::platform::Hardware;
use crate::profile::event_source::{EventSource, read_counter};

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Writes a register, with one retry.
    pub(crate) fn write_retrying(
        &self,
        register: RegisterAddress,
        value: u64,
    ) -> Result<(), AccessFault> {
        self.hardware.write_retrying(register, value)
    }

    /// Reads a register, with one retry.
    pub(crate) fn read_retrying(&self, register: RegisterAddress) -> Result<u64, AccessFault> {
        self.hardware.read_retrying(register)
    }

    /// Reads a counter, with one retry.
    pub(crate) fn read_value(&self, registers: &Counter) -> Result<u64, AccessFault> {
        read_counter(&self.source, &self.hardware, registers)
    }

    /// Loads a counter that is stopped, with one retry.
    #[inline(always)]
    pub(crate) fn load(&self, registers: &Counter, value: u64) -> Result<(), AccessFault> {
        if S::Facility::UNITS && registers.is_unit() {
            return self.access_unit(registers, UnitAccess::WriteValue(value)).map(drop);
        }
        self.hardware.write_retrying(registers.register_for(value), value)
    }

    /// Accesses a sampling unit.
    fn access_unit(&self, registers: &Counter, access: UnitAccess) -> Result<u64, AccessFault> {
        self.source.facility().access_unit(&self.hardware, registers, access)
    }

    /// Returns those of the counters that are sampling units: no register of the counters knows them.
    #[inline(never)] // 1440 bytes of the Hermit-like glue, at `opt-level` 3.
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
    #[inline(never)] // Linked once: each start and stop writes a control. 224 bytes of the glue.
    pub(crate) fn set_control(&self, counter: &Counter, bits: u64) -> Result<(), AccessFault> {
        if S::Facility::UNITS && counter.is_unit() {
            return self.access_unit(counter, UnitAccess::WriteControl(bits)).map(drop);
        }
        match counter.control {
            CounterControl::Select(register) => self.hardware.write_retrying(register, bits),
            CounterControl::Shared { register, .. } => {
                let shadow = &self.memory.fixed_control;
                // The shadow saves a read of the register, of which this session writes all bits.
                let value = shadow.load(Relaxed) & !counter.control.mask() | bits;
                self.hardware.write_retrying(register, value)?;
                shadow.store(value, Relaxed);
                Ok(())
            }
        }
    }

    /// Returns whether the counter's control holds `bits`.
    pub(crate) fn holds(&self, counter: &Counter, bits: u64) -> Result<bool, AccessFault> {
        if S::Facility::UNITS && counter.is_unit() {
            return Ok(self.access_unit(counter, UnitAccess::ReadControl)? == bits);
        }
        let control = counter.control;
        let found = self.read_retrying(control.register())?;
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
            let found = self.read_retrying(self.unit().fixed_control());
            self.memory.fixed_control.store(found.map_err(CounterError::Unchanged)?, Relaxed);
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
        // Before the register: an interrupt in between restarts the counters by this value.
        control.store(after, Relaxed);
        self.write_retrying(global.control, after).map_err(|fault| {
            control.store(before, Relaxed);
            // An interrupt in between may have written the new value.
            match self.write_retrying(global.control, before) {
                Ok(()) => CounterError::Unchanged(fault),
                Err(fault) => {
                    // The register's value is unknown: the next start is to write it.
                    control.fetch_and(!self.own().bits(), Relaxed);
                    self.memory.mark_faulted(None, self.table());
                    CounterError::StateUnknown(fault)
                }
            }
        })
    }

    /// Acknowledges those of the bits that the global status has set. An interrupt that these overflows have already
    /// raised is then spurious.
    pub(crate) fn acknowledge(
        &self,
        global: &GlobalRegisters,
        bits: u64,
    ) -> Result<u64, AccessFault> {
        let pending = self.read_retrying(global.status)? & bits;
        if pending != 0 {
            self.memory.expect_spurious(CounterSet::from_bits(pending).len() as u32);
            self.clear_status(global, pending)?;
        }
        Ok(pending)
    }

    /// Clears bits of the global status whose counters are stopped. If the global control enables no counter, enables
    /// these meanwhile: Zhaoxin's ZX-C takes an acknowledgement only while a counter is enabled (as in Linux).
    #[inline(never)] // 160 bytes of the glue, at `opt-level` 3.
    pub(crate) fn clear_status(
        &self,
        global: &GlobalRegisters,
        bits: u64,
    ) -> Result<(), AccessFault> {
        let own = bits & self.own().bits();
        let bits = bits & !self.units_of(CounterSet::ALL).bits();
        if S::Facility::UNITS && bits == 0 {
            return Ok(());
        }
        // Processors whose counters are stopped while serviced take an acknowledgement at any time.
        let takes = global.stop_while_serviced || self.memory.global_control.load(Relaxed) != 0;
        if takes || own == 0 {
            return self.write_retrying(global.acknowledge, bits);
        }
        self.write_retrying(global.control, own)?;
        let cleared = self.write_retrying(global.acknowledge, bits);
        // Closed again even after a failure: the counters are to stay stopped.
        self.write_retrying(global.control, 0).and(cleared)
    }

    /// Sets or clears bits of the global control register for another owner of counters, such as a watchdog. The bits
    /// in the mask `bits` are set if `enabled` is `true`, and cleared otherwise. While the session lives, other owners
    /// must not write the register themselves. [`shut_down`](Self::shut_down) does not change these bits.
    ///
    /// If the owners share the performance interrupt, its handler calls [`service`](crate::service) first, and then
    /// looks for the other owners' overflows. In the opposite order, the handler could miss an overflow: `service`
    /// unmasks the interrupt, and an overflow from before the unmasking raises no further interrupt.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::registers::CounterId;
    /// /// Enables a counter that a watchdog has programmed.
    /// fn enable_watchdog<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     watchdog: CounterId,
    /// ) -> Result<(), CounterError> {
    ///     counters.set_others_control(watchdog.only().bits(), true)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`OwnControlBits`](CounterError::OwnControlBits): some of `bits` belong to the session's counters, the
    ///   session's counters are [lent](Self::lend), or the processor has no global control register.
    /// - [`Unchanged`](CounterError::Unchanged).
    /// - [`StateUnknown`](CounterError::StateUnknown): the write of the previous value failed, too. The session's
    ///   events may no longer run.
    pub fn set_others_control(&mut self, bits: u64, enabled: bool) -> Result<(), CounterError> {
        let not_others = CounterError::OwnControlBits(bits & self.own().bits());
        let global = self.unit().global().filter(|_| self.has_own()).ok_or(not_others)?;
        if bits & self.own().bits() != 0 {
            return Err(not_others);
        }
        let change = if enabled { (0, bits) } else { (bits, 0) };
        // First in the register: a bit that it refuses must not be in the value that an interrupt restores.
        let value = self.memory.global_control.load(Relaxed) & !change.0 | change.1;
        self.write_retrying(global.control, value).map_err(CounterError::Unchanged)?;
        self.change_global(global, change)
    }

    /// Acknowledges bits of the overflow status that do not belong to the session. Examples are the bits of counters
    /// without an owner, and bit 62, which is set if a Debug Store buffer overflowed. On Intel's processors from
    /// architectural version 3 on, each unmasking of the interrupt raises an interrupt while one of these bits is set.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Acknowledges an earlier owner's Debug Store overflow, so that unmasking raises no interrupt.
    /// fn forget_predecessor<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    /// ) -> Result<(), CounterError> {
    ///     const DEBUG_STORE: u64 = 1 << 62;
    ///     counters.acknowledge_others(DEBUG_STORE)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`OwnControlBits`](CounterError::OwnControlBits): some of `bits` belong to the session's counters, the
    ///   session's counters are [lent](Self::lend), or the processor has no overflow status register.
    /// - [`Unchanged`](CounterError::Unchanged).
    pub fn acknowledge_others(&mut self, bits: u64) -> Result<(), CounterError> {
        let own = bits & self.own().bits();
        let global = self.unit().global().filter(|_| own == 0 && self.has_own());
        let global = global.ok_or(CounterError::OwnControlBits(own))?;
        self.write_retrying(global.acknowledge, bits).map_err(CounterError::Unchanged)
    }

    /// Writes bits of the fixed counters' control register for other owners of fixed counters. `mask` selects the bits,
    /// and `bits` contains their new values. While the session lives, other owners must not write the register
    /// themselves.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterSet, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Programs fixed counter 1 for a watchdog: at every privilege level, with an interrupt.
    /// fn program_watchdog<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    /// ) -> Result<(), CounterError> {
    ///     counters.set_others_fixed_control(0b1111 << 4, 0b1011 << 4)?;
    ///     let watchdog = CounterSet::fixed(1 << 1);
    ///     counters.set_others_control(watchdog.bits(), true)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`OwnControlBits`](CounterError::OwnControlBits): some of `mask` belong to the session's counters, the
    ///   session's counters are [lent](Self::lend), or the processor has no fixed counters.
    /// - [`Unchanged`](CounterError::Unchanged).
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
        self.write_retrying(register, value).map_err(CounterError::Unchanged)?;
        shadow.store(value, Relaxed);
        Ok(())
    }

    /// Returns the status bits of counters without an owner: neither the session's nor enabled, so that no owner
    /// acknowledges them. From Intel's version 3 on, each unmasking raises an interrupt while one of them is set.
    pub(crate) fn unowned(&self, verified: CounterSet, control: u64) -> u64 {
        let declared = self.declared.without(self.units_of(self.declared));
        let disabled =
            declared.without(verified).retain(|counter| match self.registers(counter).control {
                CounterControl::Select(select) => {
                    let bits = self.read_retrying(select);
                    // A select that cannot be read may be enabled by its owner, who then acknowledges the bit.
                    bits.is_ok_and(|bits| !EventSelect::from_bits(bits).is_enabled())
                }
                CounterControl::Shared { counter, .. } => {
                    self.memory.fixed_control.load(Relaxed) >> (4 * (counter & 7)) & 0b11 == 0
                }
            });
        let gated = CounterSet::from_bits(!control).without(verified);
        (disabled | gated).bits()
    }
}
