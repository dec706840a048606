//! The extra register of an opened event, and its encodings.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::counters::events::extra::{Extra, MAX_ENCODINGS};
use crate::msr::optional::SharedAddress;

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
        Extra {
            value: self.value.load(Relaxed),
            registers: self.registers.each_ref().map(SharedAddress::load),
            differences: self.differences.load(Relaxed),
        }
    }
}
