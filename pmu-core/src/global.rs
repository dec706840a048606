//! The registers of all counters together, and those that a session shares with other owners.

use core::sync::atomic::Ordering;

use crate::counter::{COUNTERS, SlotState};
use crate::msr::{MsrAccess, retry_once};
use crate::session::retain;
use crate::{
    EventSelect, GlobalRegisters, InterfaceError, MsrBackend, MsrFault, Platform, ProfileInterface,
    Session,
};

impl<I: ProfileInterface, M: MsrBackend, P: Platform> Session<'_, I, M, P> {
    /// Lets the processor stop all its counters as it raises the performance interrupt, until the
    /// interrupt path has acknowledged it. Servicing then needs fewer register accesses, and none of
    /// its own events are counted.
    ///
    /// **Every** counter of the processor stands still meanwhile, whoever owns it: between the raise
    /// and the acknowledgement nothing is counted anywhere.
    ///
    /// Call it before the first source is started, with the performance interrupt not yet expected.
    ///
    /// # Errors
    /// [`FreezeUnsupported`](InterfaceError::FreezeUnsupported), also where the processor, or a hypervisor,
    /// does not keep the bit; [`Access`](InterfaceError::Access).
    pub fn freeze_on_interrupt(&mut self) -> Result<(), InterfaceError> {
        let freeze = self.unit().global().and_then(|global| global.freeze);
        let freeze = freeze.filter(|_| self.usable).ok_or(InterfaceError::FreezeUnsupported)?;
        if self.freeze_before.is_some() {
            return Ok(());
        }
        // First the interrupt path, which else would leave the counters frozen.
        self.memory.freezes.store(true, Ordering::Relaxed);
        let set = self.msr.change(freeze.set(true)).and_then(|before| {
            let kept = self.msr.change(freeze.read()).inspect_err(|_| {
                if before & freeze.bit == 0 {
                    let _ = retry_once(|| self.msr.change(freeze.set(false)));
                }
            })?;
            Ok((before, kept))
        });
        match set {
            Ok((before, kept)) if kept & freeze.bit != 0 => {
                self.freeze_before = Some(before & freeze.bit != 0);
                Ok(())
            }
            Ok(_) => {
                self.memory.freezes.store(false, Ordering::Relaxed);
                Err(InterfaceError::FreezeUnsupported)
            }
            Err(fault) => {
                self.memory.freezes.store(false, Ordering::Relaxed);
                Err(InterfaceError::Access(fault))
            }
        }
    }

    /// Gives the freezing bit back as it was found, and leaves the register's other bits.
    pub(crate) fn stop_freezing(&mut self) -> Result<(), MsrFault> {
        let Some(global) = self.unit().global() else { return Ok(()) };
        let Some((freeze, before)) = global.freeze.zip(self.freeze_before) else { return Ok(()) };
        retry_once(|| self.msr.change(freeze.set(before)))?;
        self.freeze_before = None;
        self.memory.freezes.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Sets or clears bits of the global control register for the other owners of counters, a watchdog for
    /// instance. They do not write the register while the session lives; what they set through it stays at
    /// [`shut_down`](Self::shut_down). Of a shared interrupt the handler calls
    /// [`service`](ProfileInterface::service) first, and then looks for the others' overflows: one that comes
    /// before `service` unmasked the local APIC's entry has no interrupt of its own.
    ///
    /// # Errors
    /// [`OwnControlBits`](InterfaceError::OwnControlBits): some of `bits` are the session's counters', or
    /// the processor has no such register. [`Access`](InterfaceError::Access): the register is as it was.
    /// [`Faulted`](InterfaceError::Faulted): it does not answer; no source is known to run any more.
    pub fn set_others_control(&mut self, bits: u64, enabled: bool) -> Result<(), InterfaceError> {
        let not_others = InterfaceError::OwnControlBits(bits & self.own());
        let global = self.unit().global().filter(|_| self.usable).ok_or(not_others)?;
        if bits & self.own() != 0 {
            return Err(not_others);
        }
        let change = if enabled { (0, bits) } else { (bits, 0) };
        self.change_control(global, change)
    }

    /// Clears and sets bits of the global control register: first in what the interrupt path leaves behind,
    /// then in the register. Where it fails, both are as they were.
    pub(crate) fn change_control(
        &self,
        global: &GlobalRegisters,
        (clear, set): (u64, u64),
    ) -> Result<(), InterfaceError> {
        let control = &self.memory.global_control;
        let before = control.load(Ordering::Relaxed);
        let after = before & !clear | set;
        control.store(after, Ordering::Relaxed);
        retry_once(|| self.msr.wrmsr(global.control, after)).map_err(|fault| {
            control.store(before, Ordering::Relaxed);
            // An interrupt in between may have written the new value.
            match retry_once(|| self.msr.wrmsr(global.control, before)) {
                Ok(()) => InterfaceError::Access(fault),
                Err(fault) => {
                    // Whatever it holds, the next start is to write it.
                    control.fetch_and(!self.own(), Ordering::Relaxed);
                    self.mark_running_faulted();
                    InterfaceError::Faulted(fault)
                }
            }
        })
    }

    /// Of no counter it is known any more that it runs.
    pub(crate) fn mark_running_faulted(&self) {
        for (_, slot) in self.slots() {
            if matches!(slot.load(), SlotState::Running { .. }) {
                slot.store(SlotState::Faulted);
            }
        }
    }

    /// Status bits of counters that have no owner who would acknowledge them: neither the session's nor enabled
    /// by anyone. From Intel's version 3 on, each unmasking raises an interrupt while one of them is set.
    pub(crate) fn unowned(&self, proven: u64, control: u64) -> u64 {
        let declared = u64::from(self.declared);
        let disabled = retain(declared & !proven, |number| {
            let select = self.unit().registers(number).select_register();
            let bits = retry_once(|| self.msr.rdmsr(select));
            bits.is_ok_and(|bits| !EventSelect::from_bits(bits).is_enabled())
        });
        disabled | COUNTERS & !proven & !control
    }

    /// Acknowledges those of the bits that the global status shows. An interrupt of theirs that still comes
    /// finds nothing.
    pub(crate) fn acknowledge(&self, global: &GlobalRegisters, bits: u64) -> Result<u64, MsrFault> {
        let pending = retry_once(|| self.msr.rdmsr(global.status))? & bits;
        if pending != 0 {
            self.memory.expect_late((pending & COUNTERS).count_ones());
            retry_once(|| self.msr.wrmsr(global.acknowledge, pending))?;
        }
        Ok(pending)
    }
}
