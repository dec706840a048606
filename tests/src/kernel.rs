//! A kernel whose registers cannot be reached: the READMEs' examples are compiled with it.

pub use std::sync::OnceLock as Once;

use pmu::core::{
    InterruptFrame, MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, Platform, PmcIndex, ProcessId,
    ProcessorNumber,
};
use pmu::{ApicRegisters, Processors};

/// The processor's registers.
#[derive(Clone, Copy, Debug)]
pub struct Msr;

impl MsrBackend for Msr {
    type Error = MsrErrorKind;

    fn read(&self, _: MsrAddress) -> Result<u64, MsrErrorKind> {
        Err(MsrErrorKind::Unreachable)
    }

    fn write(&self, _: MsrAddress, _: u64) -> Result<(), MsrErrorKind> {
        Err(MsrErrorKind::Unreachable)
    }

    fn read_pmc(&self, _: PmcIndex) -> Result<u64, MsrErrorKind> {
        Err(MsrErrorKind::Unreachable)
    }

    fn update(&self, _: MsrUpdate) -> Result<u64, MsrErrorKind> {
        Err(MsrErrorKind::Unreachable)
    }
}

/// The local APIC.
#[derive(Clone, Copy, Debug)]
pub struct Apic;

impl Platform for Apic {
    fn unmask_performance_interrupt(&self) {}
    fn mask_performance_interrupt(&self) {}
}

/// The registers of the local APIC, in x2APIC mode.
#[derive(Clone, Copy, Debug)]
pub struct X2Apic;

impl ApicRegisters for X2Apic {
    fn write_performance_entry(&self, _: u32) {}
}

/// Tells the local APIC that the handler of an interrupt by vector has ended.
pub fn end_of_interrupt() {}

/// The kernel, of which this is one processor.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Kernel {
    /// Runs a part of a task on the processor where it is: with preemption off, or bound to it.
    pub fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
}

// SAFETY: there is one thread.
unsafe impl Processors for Kernel {
    fn this_processor() -> usize {
        0
    }
}

/// The frame that an interrupt pushed.
#[derive(Clone, Copy, Debug)]
pub struct Frame;

impl InterruptFrame for Frame {
    fn pc(&self) -> u64 {
        0
    }

    fn cs(&self) -> u16 {
        8
    }

    fn flags(&self) -> u64 {
        2
    }

    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(0)
    }

    fn process(&self) -> Option<ProcessId> {
        None
    }
}
