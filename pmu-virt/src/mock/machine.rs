//! Several processors.

use core::cell::Cell;

use pmu_core::{MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, PmcIndex};

use super::MockMsr;

/// A machine of `N` processors, of which one executes the test: the backend means that one, as
/// RDMSR does. The platform of a processor is the processor. A driver that has wandered to another processor shows itself there.
pub struct MockMachine<'h, const N: usize, const T: usize = 64> {
    processors: [MockMsr<'h, T>; N],
    current: Cell<usize>,
}

impl<'h, const N: usize, const T: usize> MockMachine<'h, N, T> {
    /// These processors; the first one executes.
    pub const fn new(processors: [MockMsr<'h, T>; N]) -> Self {
        Self { processors, current: Cell::new(0) }
    }

    /// Goes on at another processor. Where there is none with this number, every access answers
    /// [`Unreachable`](MsrErrorKind::Unreachable).
    pub fn run_on(&self, processor: usize) {
        self.current.set(processor);
    }

    /// A processor, wherever the test executes.
    pub fn processor(&self, number: usize) -> Option<&MockMsr<'h, T>> {
        self.processors.get(number)
    }

    fn current(&self) -> Result<&MockMsr<'h, T>, MsrErrorKind> {
        self.processor(self.current.get()).ok_or(MsrErrorKind::Unreachable)
    }
}

impl<const N: usize, const T: usize> MsrBackend for MockMachine<'_, N, T> {
    type Error = MsrErrorKind;

    fn read(&self, address: MsrAddress) -> Result<u64, MsrErrorKind> {
        self.current()?.read(address)
    }

    fn write(&self, address: MsrAddress, value: u64) -> Result<(), MsrErrorKind> {
        self.current()?.write(address, value)
    }

    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MsrErrorKind> {
        self.current()?.read_pmc(index)
    }

    fn update(&self, update: MsrUpdate) -> Result<u64, MsrErrorKind> {
        self.current()?.update(update)
    }
}
