//! A kernel whose registers cannot be reached: the READMEs' examples are compiled with it.

use pmu::core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu::core::msr::{MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, PmcIndex};

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
    type Architecture = pmu::X86;

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

/// Implements `MsrBackend` for a type without fields, by the mock that the function returns. A kernel's backend is
/// `Sync`, and a reference to a mock is not.
#[macro_export]
macro_rules! delegate_registers {
    ($registers:ty, $mock:path) => {
        impl ::pmu_core::msr::MsrBackend for $registers {
            type Error = ::pmu_core::msr::MsrErrorKind;
            fn read(&self, address: ::pmu_core::msr::MsrAddress) -> Result<u64, Self::Error> {
                $mock().read(address)
            }
            fn write(
                &self,
                address: ::pmu_core::msr::MsrAddress,
                value: u64,
            ) -> Result<(), Self::Error> {
                $mock().write(address, value)
            }
            fn read_pmc(&self, index: ::pmu_core::msr::PmcIndex) -> Result<u64, Self::Error> {
                $mock().read_pmc(index)
            }
            fn update(&self, update: ::pmu_core::msr::MsrUpdate) -> Result<u64, Self::Error> {
                $mock().update(update)
            }
        }
    };
}
