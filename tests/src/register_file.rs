//! The plainest fake of a processor's registers: reads return what was written, and counters hold what a test stores.
//! For tests of single operations and of their faults.

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pmu_core::Platform;
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::error::PlatformError;
use pmu_core::interval::Interval;

/// Accesses that fail with #GP. Accesses are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Never.
    Never,
    /// The access with this number, once.
    Once(usize),
    /// This access and every later one.
    From(usize),
    /// Every access to this register.
    Register(u32),
    /// Every write to this register.
    WritesTo(u32),
}

/// Registers by number; absent ones fault.
#[derive(Debug)]
pub struct RegisterFile {
    registers: RefCell<BTreeMap<u32, u64>>,
    /// Register that RDPMC's index 0 reads; 1 reads the one a step further.
    first_counter: u32,
    rdpmc_step: u32,
    /// Intel's fixed counter 0, which RDPMC's index 2³⁰ reads.
    first_fixed: u32,
    /// Bits that a register keeps of what is written.
    masks: BTreeMap<u32, u64>,
    fault: Cell<Fault>,
    accesses: Cell<usize>,
    writes: RefCell<Vec<(u32, u64)>>,
}

impl RegisterFile {
    /// RDPMC's index of Intel's fixed counter 0.
    const FIXED_INDEX: u32 = 1 << 30;

    /// Creates registers that hold zero.
    pub fn new(numbers: impl IntoIterator<Item = u32>, first_counter: u32) -> Self {
        Self {
            registers: RefCell::new(numbers.into_iter().map(|number| (number, 0)).collect()),
            first_counter,
            rdpmc_step: 1,
            first_fixed: 0x309,
            masks: BTreeMap::new(),
            fault: Cell::new(Fault::Never),
            accesses: Cell::new(0),
            writes: RefCell::default(),
        }
    }

    /// Creates a processor with Intel's registers of `counters` counters, and with the global ones if `global`.
    pub fn intel(counters: u32, global: bool) -> Self {
        let global = if global { 0x38E..0x391 } else { 0..0 };
        Self::new((0xC1..0xC1 + counters).chain(0x186..0x186 + counters).chain(global), 0xC1)
    }

    /// Creates a processor with AMD's four legacy counters.
    pub fn amd() -> Self {
        Self::new(0xC001_0000..0xC001_0008, 0xC001_0004)
    }

    /// Puts the counters `step` registers apart.
    pub fn rdpmc_step(mut self, step: u32) -> Self {
        self.rdpmc_step = step;
        self
    }

    /// Adds the addresses of Intel's version 6: general counters from 0x1900 on and fixed ones from 0x1980 on, each
    /// four registers further.
    pub fn version_6(mut self) -> Self {
        (self.first_counter, self.rdpmc_step, self.first_fixed) = (0x1900, 4, 0x1980);
        self
    }

    /// Makes a register keep only the bits of `mask`.
    pub fn keeping(mut self, register: u32, mask: u64) -> Self {
        self.masks.insert(register, mask);
        self
    }

    /// Makes later accesses, counted from 0 again, fail.
    pub fn fail(&self, fault: Fault) {
        self.fault.set(fault);
        self.accesses.set(0);
    }

    /// Returns the number of accesses since [`fail`](Self::fail).
    pub fn accesses(&self) -> usize {
        self.accesses.get()
    }

    /// Returns a register's value.
    pub fn get(&self, register: u32) -> u64 {
        self.registers.borrow()[&register]
    }

    /// Stores a value, as the hardware would.
    pub fn set(&self, register: u32, value: u64) {
        self.registers.borrow_mut().insert(register, value);
    }

    /// Returns the writes since the last call.
    pub fn take_writes(&self) -> Vec<(u32, u64)> {
        self.writes.take()
    }

    fn fixed_step(&self) -> u32 {
        if self.first_fixed == 0x1980 { 4 } else { 1 }
    }

    fn access(&self, register: u32, write: Option<u64>) -> Result<u64, AccessErrorKind> {
        let number = self.accesses.replace(self.accesses.get() + 1);
        let fails = match self.fault.get() {
            Fault::Never => false,
            Fault::Once(at) => number == at,
            Fault::From(at) => number >= at,
            Fault::Register(bad) => register == bad,
            Fault::WritesTo(bad) => register == bad && write.is_some(),
        };
        let mut registers = self.registers.borrow_mut();
        let value = registers.get_mut(&register).ok_or(AccessErrorKind::Fault)?;
        if fails {
            return Err(AccessErrorKind::Fault);
        }
        if let Some(written) = write {
            *value = written & self.masks.get(&register).unwrap_or(&u64::MAX);
            self.writes.borrow_mut().push((register, written));
        }
        Ok(*value)
    }
}

impl RegisterBackend for RegisterFile {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.access(address.get(), None)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.access(address.get(), Some(value)).map(|_| ())
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        let register = match index.get().checked_sub(Self::FIXED_INDEX) {
            Some(number) => self.first_fixed + self.fixed_step() * number,
            None => self.first_counter + self.rdpmc_step * index.get(),
        };
        self.access(register, None)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let found = self.access(update.register(), None)?;
        if let Some(value) = update.apply(found) {
            self.access(update.register(), Some(value))?;
        }
        Ok(found)
    }
}

/// A platform that records its calls.
#[derive(Debug, Default)]
pub struct FakePlatform {
    /// Number of unmaskings of the performance interrupt.
    pub unmasked: Cell<u32>,
    /// The timer's interval while it runs.
    pub timer: Cell<Option<Interval>>,
    /// There is no timer.
    pub timerless: Cell<bool>,
}

impl Platform for FakePlatform {
    fn unmask_performance_interrupt(&self) {
        self.unmasked.set(self.unmasked.get() + 1);
    }

    fn mask_performance_interrupt(&self) {}

    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        if self.timerless.get() {
            return Err(PlatformError::NoTimer);
        }
        self.timer.set(Some(interval));
        Ok(())
    }

    fn stop_profile_timer(&self) {
        self.timer.set(None);
    }
}
