//! Bits of the shared control registers that belong to other owners.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::counter::CounterControl;
use crate::counters::registers::select::EventSelect;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Sets or clears bits of the global control register for another owner of counters, such as a watchdog. The bits
    /// in the mask `bits` are set if `enabled` is `true`, and cleared otherwise. While the session lives, other owners
    /// must not write the register themselves. [`shut_down`](Self::shut_down) does not change these bits.
    ///
    /// If the owners share the performance interrupt, its handler calls [`service`](crate::service) first, and then
    /// looks for the other owners' overflows. In the opposite order, the handler could miss an overflow: `service`
    /// unmasks the LVT entry, and an overflow from before the unmasking raises no further interrupt.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterId, CounterSession, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Enables a counter that a watchdog has programmed.
    /// fn enable_watchdog<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     watchdog: CounterId,
    /// ) -> Result<(), CounterError> {
    ///     counters.set_others_control(watchdog.only().bits(), true)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`OwnControlBits`](CounterError::OwnControlBits): some of `bits` belong to the session's counters, the
    ///   session's counters are [lent](Self::lend), or the processor has no global control register.
    /// - [`Access`](CounterError::Access): the write failed, and the register is unchanged.
    /// - [`Faulted`](CounterError::Faulted): the write failed, and so did the write of the previous value. The
    ///   session's events may no longer run.
    pub fn set_others_control(&mut self, bits: u64, enabled: bool) -> Result<(), CounterError> {
        let not_others = CounterError::OwnControlBits(bits & self.own().bits());
        let global = self.unit().global().filter(|_| self.has_own()).ok_or(not_others)?;
        if bits & self.own().bits() != 0 {
            return Err(not_others);
        }
        let change = if enabled { (0, bits) } else { (bits, 0) };
        // First in the register: a bit that it refuses must not be in the value that an interrupt restores.
        let value = self.memory.global_control.load(Relaxed) & !change.0 | change.1;
        self.wrmsr_retrying(global.control, value).map_err(CounterError::Access)?;
        self.change_global(global, change)
    }

    /// Acknowledges bits of the overflow status that do not belong to the session. Examples are the bits of counters
    /// without an owner, and bit 62, which is set if a Debug Store buffer overflowed. On Intel's processors from
    /// architectural version 3 on, each unmasking of the LVT entry raises an interrupt while one of these bits is set.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Acknowledges an earlier owner's Debug Store overflow, so that unmasking raises no interrupt.
    /// fn forget_predecessor<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    /// ) -> Result<(), CounterError> {
    ///     const DEBUG_STORE: u64 = 1 << 62;
    ///     counters.acknowledge_others(DEBUG_STORE)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`OwnControlBits`](CounterError::OwnControlBits): some of `bits` belong to the session's counters, the
    ///   session's counters are [lent](Self::lend), or the processor has no overflow status register.
    /// - [`Access`](CounterError::Access): a register access failed.
    pub fn acknowledge_others(&mut self, bits: u64) -> Result<(), CounterError> {
        let own = bits & self.own().bits();
        let global = self.unit().global().filter(|_| own == 0 && self.has_own());
        let global = global.ok_or(CounterError::OwnControlBits(own))?;
        self.wrmsr_retrying(global.acknowledge, bits).map_err(CounterError::Access)
    }

    /// Writes bits of the fixed counters' control register for other owners of fixed counters. `mask` selects the bits,
    /// and `bits` contains their new values. While the session lives, other owners must not write the register
    /// themselves.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, CounterSet, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Programs fixed counter 1 for a watchdog: at every privilege level, with an interrupt.
    /// fn program_watchdog<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
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
    /// - [`Access`](CounterError::Access): a register access failed, and the register is unchanged.
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

    /// Returns the status bits of counters without an owner: neither the session's nor enabled, so that no owner
    /// acknowledges them. From Intel's version 3 on, each unmasking raises an interrupt while one of them is set.
    pub(crate) fn unowned(&self, verified: CounterSet, control: u64) -> u64 {
        let declared = self.declared.without(self.units_of(self.declared));
        let disabled =
            declared.without(verified).retain(|counter| match self.registers(counter).control {
                CounterControl::Select(select) => {
                    let bits = self.rdmsr_retrying(select);
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
