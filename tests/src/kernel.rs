//! A kernel whose registers cannot be reached: the READMEs' examples are compiled with it.

use pmu::core::{
    InterruptFrame, MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, PmcIndex, ProcessId,
    ProcessorNumber,
};

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

/// The kernel, of which this is one processor.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

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

// SAFETY: there is one thread.
unsafe impl pmu::Kernel for Kernel {
    type Msr = Msr;
    type Facilities = ();

    fn msr() -> Msr {
        Msr
    }

    fn this_processor() -> usize {
        0
    }

    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }

    fn write_performance_entry(_: u32) {}

    fn end_of_interrupt() {}

    fn interrupt(_: usize) {}
}
