//! Several processors.

use core::cell::Cell;

use pmu_core::{MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, PmcIndex};

use crate::mock::processor::MockMsr;

/// A machine of `N` processors, one of which executes the test. The backend accesses that one, as RDMSR does; each
/// processor is its own platform. This reveals a driver that has moved to another processor.
pub struct MockMachine<'h, const N: usize, const T: usize = 64> {
    processors: [MockMsr<'h, T>; N],
    current: Cell<usize>,
}

impl<'h, const N: usize, const T: usize> MockMachine<'h, N, T> {
    /// Creates a machine of these processors; the first one executes.
    pub const fn new(processors: [MockMsr<'h, T>; N]) -> Self {
        Self { processors, current: Cell::new(0) }
    }

    /// Continues on another processor. If none has this number, every access fails with
    /// [`Unreachable`](MsrErrorKind::Unreachable).
    pub fn run_on(&self, processor: usize) {
        self.current.set(processor);
    }

    /// Returns a processor, independent of the one that executes.
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
