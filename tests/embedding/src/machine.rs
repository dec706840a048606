//! The embedder's three traits over memory instead of hardware.
#![allow(dead_code, reason = "no program needs all of it")]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmu_core::Platform;
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::error::PlatformError;
use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::interval::Interval;

/// 64 registers, by the low bits of their numbers. Selects, counters and the global registers of either
/// vendor fall into places of their own.
static REGISTERS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// The number of the first counter's register, for RDPMC.
pub static FIRST_COUNTER: AtomicU32 = AtomicU32::new(0xC1);
/// The number of a register that faults.
pub static FAULTY: AtomicU32 = AtomicU32::new(0);

/// A register.
pub fn register(number: u32) -> Option<&'static AtomicU64> {
    REGISTERS.get((number & 0x3F) as usize)
}

pub struct Msr;

fn answering(number: u32) -> Result<&'static AtomicU64, AccessErrorKind> {
    let answers = FAULTY.load(Ordering::Relaxed) != number;
    register(number).filter(|_| answers).ok_or(AccessErrorKind::Fault)
}

impl RegisterBackend for Msr {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        Ok(answering(address.get())?.load(Ordering::Relaxed))
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        answering(address.get())?.store(value, Ordering::Relaxed);
        Ok(())
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let register = answering(update.register())?;
        let found = register.load(Ordering::Relaxed);
        if let Some(value) = update.apply(found) {
            register.store(value, Ordering::Relaxed);
        }
        Ok(found)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        // Fixed counters have bit 30.
        let fixed = index.get() >> 30 & 1 != 0;
        let first = if fixed { 0x309 } else { FIRST_COUNTER.load(Ordering::Relaxed) };
        let number = first + (index.get() & 0xFF);
        Ok(answering(number)?.load(Ordering::Relaxed))
    }
}

pub struct Apic;

impl Platform for Apic {
    fn unmask_performance_interrupt(&self) {}
    fn mask_performance_interrupt(&self) {}
    fn start_profile_timer(&self, _: Interval) -> Result<(), PlatformError> {
        Ok(())
    }
    fn stop_profile_timer(&self) {}
}

pub struct Frame {
    pub pc: u64,
    pub process: Option<ProcessId>,
}

impl InterruptFrame for Frame {
    fn pc(&self) -> u64 {
        self.pc
    }
    fn cs(&self) -> u16 {
        0x10
    }
    fn flags(&self) -> u64 {
        0x202
    }
    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(0)
    }
    fn process(&self) -> Option<ProcessId> {
        self.process
    }
}
