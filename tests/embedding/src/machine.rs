//! The embedder's three traits over memory instead of hardware.
#![allow(dead_code, reason = "no program needs all of it")]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmu_core::Platform;
use pmu_core::error::PlatformError;
use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::interval::Interval;
use pmu_core::msr::{MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, PmcIndex};

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

fn answering(number: u32) -> Result<&'static AtomicU64, MsrErrorKind> {
    let answers = FAULTY.load(Ordering::Relaxed) != number;
    register(number).filter(|_| answers).ok_or(MsrErrorKind::GeneralProtection)
}

impl MsrBackend for Msr {
    type Error = MsrErrorKind;

    fn read(&self, address: MsrAddress) -> Result<u64, MsrErrorKind> {
        Ok(answering(address.get())?.load(Ordering::Relaxed))
    }

    fn write(&self, address: MsrAddress, value: u64) -> Result<(), MsrErrorKind> {
        answering(address.get())?.store(value, Ordering::Relaxed);
        Ok(())
    }

    fn update(&self, update: MsrUpdate) -> Result<u64, MsrErrorKind> {
        let register = answering(update.register())?;
        let found = register.load(Ordering::Relaxed);
        if let Some(value) = update.apply(found) {
            register.store(value, Ordering::Relaxed);
        }
        Ok(found)
    }

    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MsrErrorKind> {
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
