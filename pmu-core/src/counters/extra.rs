//! Extra registers: MSRs that refine an event beyond its select, and that several events share.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::msr::MsrAccess;
use crate::{CounterError, MsrAddress, MsrBackend, MsrFault};

/// Greatest number of extra registers that the events of a processor use.
pub(crate) const MAX_REGISTERS: usize = 8;

/// Greatest number of encodings of an event: Nova Lake's off-module response has four registers.
pub(crate) const MAX_ENCODINGS: u8 = 4;

/// The extra register of an event, and its value. An event may have further registers, with other selects: one
/// encoding for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Extra {
    pub(crate) value: u64,
    /// Addresses of `MsrAddress`es, 32 bits for each encoding; 0: none.
    pub(crate) registers: [u64; 2],
    /// Bits 15:0 in which an encoding's select differs from the first one's, 16 bits for each encoding.
    pub(crate) differences: u64,
}

impl Extra {
    pub(crate) const NONE: Self = Self { value: 0, registers: [0; 2], differences: 0 };

    pub(crate) const fn new(register: MsrAddress, value: u64) -> Self {
        Self { value, registers: [register.get() as u64, 0], differences: 0 }
    }

    /// The same with one encoding more, if there is room.
    pub(crate) const fn or(mut self, difference: u16, register: MsrAddress) -> Self {
        let mut encoding = 1;
        while encoding < MAX_ENCODINGS {
            if self.register(encoding).is_none() {
                let half = 32 * (encoding as u32 % 2);
                self.registers[encoding as usize / 2] |= (register.get() as u64) << half;
                self.differences |= (difference as u64) << (16 * encoding);
                break;
            }
            encoding += 1;
        }
        self
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.registers[0] == 0
    }

    /// Returns the register of an encoding.
    pub(crate) const fn register(&self, encoding: u8) -> Option<MsrAddress> {
        let [first, second] = self.registers;
        Self::register_of(if encoding < 2 { first } else { second }, encoding)
    }

    /// Returns the register of an encoding from the word that has it.
    pub(crate) const fn register_of(pair: u64, encoding: u8) -> Option<MsrAddress> {
        match (pair >> (32 * (encoding as u32 % 2))) as u32 {
            0 => None,
            // SAFETY: the address is a `MsrAddress`'s.
            address => Some(unsafe { MsrAddress::new(address) }),
        }
    }
}

/// The extra registers that a session has written, with what they held before.
#[derive(Debug)]
pub(crate) struct ExtraRegisters {
    registers: [ExtraRegister; MAX_REGISTERS],
}

#[derive(Debug)]
struct ExtraRegister {
    /// 0: none.
    address: AtomicU32,
    /// It holds `value`, and not perhaps something else after a write that failed.
    known: AtomicBool,
    value: AtomicU64,
    before: AtomicU64,
}

impl ExtraRegister {
    const fn new() -> Self {
        let (value, before) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { address: AtomicU32::new(0), known: AtomicBool::new(false), value, before }
    }

    fn address(&self) -> Option<MsrAddress> {
        let address = self.address.load(Relaxed);
        // SAFETY: stored from a `MsrAddress`.
        (address != 0).then(|| unsafe { MsrAddress::new(address) })
    }

    fn write(
        &self,
        register: MsrAddress,
        value: u64,
        msr: &impl MsrBackend,
    ) -> Result<(), MsrFault> {
        self.known.store(false, Relaxed);
        msr.wrmsr_retrying(register, value)?;
        self.value.store(value, Relaxed);
        self.known.store(true, Relaxed);
        Ok(())
    }
}

impl ExtraRegisters {
    pub(crate) const fn new() -> Self {
        Self { registers: [const { ExtraRegister::new() }; MAX_REGISTERS] }
    }

    /// Sets a register's value, and keeps the one that it had before the session.
    #[inline(never)]
    pub(crate) fn set(
        &self,
        register: MsrAddress,
        value: u64,
        msr: &impl MsrBackend,
    ) -> Result<(), CounterError> {
        let is_it = |of: &&ExtraRegister| of.address().is_none_or(|address| address == register);
        let in_use = CounterError::ExtraRegisterInUse(register.get());
        let of = self.registers.iter().find(is_it).ok_or(in_use)?;
        if of.address().is_none() {
            let before = msr.rdmsr_retrying(register).map_err(CounterError::Access)?;
            of.before.store(before, Relaxed);
            of.value.store(before, Relaxed);
            of.known.store(true, Relaxed);
            of.address.store(register.get(), Relaxed);
        }
        if of.known.load(Relaxed) && of.value.load(Relaxed) == value {
            return Ok(());
        }
        of.write(register, value, msr).map_err(CounterError::Access)
    }

    /// Returns whether a register holds the value that it was given last.
    pub(crate) fn is_known(&self, register: MsrAddress) -> bool {
        let mut registers = self.registers.iter();
        let of = registers.find(|of| of.address() == Some(register));
        of.is_none_or(|of| of.known.load(Relaxed))
    }

    /// Writes the registers' values again, after they were lost.
    pub(crate) fn write_again(&self, msr: &impl MsrBackend) -> Result<(), MsrFault> {
        self.write(msr, |of| of.value.load(Relaxed))
    }

    /// Restores what the registers held before the session, and forgets them.
    pub(crate) fn restore(&self, msr: &impl MsrBackend) -> Result<(), MsrFault> {
        self.write(msr, |of| of.before.load(Relaxed))?;
        self.clear();
        Ok(())
    }

    fn write(
        &self,
        msr: &impl MsrBackend,
        value: impl Fn(&ExtraRegister) -> u64,
    ) -> Result<(), MsrFault> {
        let mut outcome = Ok(());
        for of in &self.registers {
            if let Some(register) = of.address() {
                outcome = outcome.and(of.write(register, value(of), msr));
            }
        }
        outcome
    }

    /// Forgets the registers.
    pub(crate) fn clear(&self) {
        for of in &self.registers {
            of.address.store(0, Relaxed);
        }
    }
}
