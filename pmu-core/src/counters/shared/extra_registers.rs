//! The extra registers that a session has written.

use core::hint::black_box;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

use crate::access::address::{OptionalAddress, RegisterAddress, SharedAddress};
use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::counters::error::CounterError;
use crate::counters::events::resolve::{Extra, MAX_ENCODINGS};

/// Greatest number of extra registers that one processor's events use.
pub(crate) const MAX_REGISTERS: usize = 8;

/// The extra registers that a session has written, with what they held before.
#[derive(Debug)]
pub(crate) struct ExtraRegisters {
    registers: [ExtraRegister; MAX_REGISTERS],
}

#[derive(Debug)]
struct ExtraRegister {
    address: SharedAddress,
    /// Set if the register holds `value`; clear after a failed write.
    known: AtomicBool,
    value: AtomicU64,
    before: AtomicU64,
}

impl ExtraRegister {
    pub(crate) const fn new() -> Self {
        let (value, before) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { address: SharedAddress::new(), known: AtomicBool::new(false), value, before }
    }

    fn write(
        &self,
        register: RegisterAddress,
        value: u64,
        msr: &impl RegisterBackend,
    ) -> Result<(), AccessFault> {
        // A write that fails may have reached the register: until one succeeds, the value is unknown.
        self.known.store(false, Relaxed);
        msr.write_retrying(register, value)?;
        self.value.store(value, Relaxed);
        self.known.store(true, Relaxed);
        Ok(())
    }
}

impl ExtraRegisters {
    pub(crate) const fn new() -> Self {
        Self { registers: [const { ExtraRegister::new() }; MAX_REGISTERS] }
    }

    /// Returns the place of a register, or the first free place for it.
    fn place(&self, register: RegisterAddress) -> Option<&ExtraRegister> {
        let is_it =
            |of: &&ExtraRegister| of.address.load().get().is_none_or(|address| address == register);
        // As a slice of any length, or the compiler unrolls the search.
        let registers: &[_] = black_box(&self.registers);
        registers.iter().find(is_it)
    }

    /// Sets a register's value, and keeps the value from before the session.
    #[inline(never)] // 16 bytes of stack (Mailbox::drain of a start).
    pub(crate) fn set(
        &self,
        register: RegisterAddress,
        value: u64,
        msr: &impl RegisterBackend,
    ) -> Result<(), CounterError> {
        let in_use = CounterError::ExtraRegisterInUse(register.get());
        let of = self.place(register).ok_or(in_use)?;
        if of.address.load().get().is_none() {
            let before = msr.read_retrying(register).map_err(CounterError::Unchanged)?;
            of.before.store(before, Relaxed);
            of.value.store(before, Relaxed);
            of.known.store(true, Relaxed);
            // Last: `restore` writes `before` to each register that has an address.
            of.address.store(OptionalAddress::some(register));
        }
        if of.known.load(Relaxed) && of.value.load(Relaxed) == value {
            return Ok(());
        }
        of.write(register, value, msr).map_err(CounterError::Unchanged)
    }

    /// Returns whether a register holds the value that was last given to it.
    pub(crate) fn is_known(&self, register: RegisterAddress) -> bool {
        self.place(register).is_some_and(|of| of.known.load(Relaxed))
    }

    /// Writes the registers' values again, after the registers lost them.
    pub(crate) fn write_again(&self, msr: &impl RegisterBackend) -> Result<(), AccessFault> {
        self.write(msr, |of| of.value.load(Relaxed))
    }

    /// Restores the registers' values from before the session, and forgets the registers.
    pub(crate) fn restore(&self, msr: &impl RegisterBackend) -> Result<(), AccessFault> {
        self.write(msr, |of| of.before.load(Relaxed))?;
        self.clear();
        Ok(())
    }

    fn write(
        &self,
        msr: &impl RegisterBackend,
        value: impl Fn(&ExtraRegister) -> u64,
    ) -> Result<(), AccessFault> {
        let mut outcome = Ok(());
        for of in &self.registers {
            if let Some(register) = of.address.load().get() {
                outcome = outcome.and(of.write(register, value(of), msr));
            }
        }
        outcome
    }

    /// Forgets the registers.
    pub(crate) fn clear(&self) {
        for of in &self.registers {
            of.address.store(OptionalAddress::NONE);
            of.known.store(false, Relaxed);
        }
    }
}

/// An event's [`Extra`] in a table.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedExtra {
    pub(crate) value: AtomicU64,
    pub(crate) registers: [SharedAddress; MAX_ENCODINGS as usize],
    pub(crate) differences: AtomicU64,
}

impl SharedExtra {
    pub(crate) const fn new() -> Self {
        let registers = [const { SharedAddress::new() }; MAX_ENCODINGS as usize];
        Self { value: AtomicU64::new(0), registers, differences: AtomicU64::new(0) }
    }

    pub(crate) fn store(&self, extra: &Extra) {
        self.value.store(extra.value, Relaxed);
        for (shared, register) in self.registers.iter().zip(extra.registers) {
            shared.store(register);
        }
        self.differences.store(extra.differences, Relaxed);
    }

    pub(crate) fn load(&self) -> Extra {
        let mut extra = Extra::NONE;
        extra.value = self.value.load(Relaxed);
        for (register, shared) in extra.registers.iter_mut().zip(&self.registers) {
            *register = shared.load();
        }
        extra.differences = self.differences.load(Relaxed);
        extra
    }
}
