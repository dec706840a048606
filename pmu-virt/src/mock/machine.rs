//! Several processors.

use core::cell::Cell;

use pmu_core::msr::{MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, PmcIndex};

use crate::mock::processor::MockMsr;

/// Mock of a machine with `N` processors. The test runs on one processor at a time, and RDMSR and WRMSR access that
/// processor. So a test can move the driver to another processor, and detect accesses to the wrong processor.
///
/// The [`Platform`](pmu_core::Platform) of a processor is the processor's [`MockMsr`](super::MockMsr).
///
/// ```
/// # use pmu_core::msr::{MsrAddress, MsrBackend};
/// use pmu_virt::mock::{MockMachine, MockMsr};
/// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, VirtualPmu};
/// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
/// let processor = || VirtualPmu::new(configuration, FedEvents::NONE).map(MockMsr::<8>::new);
/// let machine = MockMachine::new([processor()?, processor()?]);
/// # // SAFETY: an event select.
/// # let select = unsafe { MsrAddress::new(0x186) };
/// machine.write(select, 0x53_003C).unwrap();
/// machine.run_on(1); // the scheduler moves the task
/// assert_eq!(machine.read(select), Ok(0));
/// assert_eq!(machine.processor(0).unwrap().read(select), Ok(0x53_003C));
/// # Ok::<(), pmu_virt::ConfigurationError>(())
/// ```
pub struct MockMachine<'h, const N: usize, const T: usize = 64> {
    processors: [MockMsr<'h, T>; N],
    current: Cell<usize>,
}

impl<'h, const N: usize, const T: usize> MockMachine<'h, N, T> {
    /// Creates a machine with these processors. The test starts on the first processor.
    pub const fn new(processors: [MockMsr<'h, T>; N]) -> Self {
        Self { processors, current: Cell::new(0) }
    }

    /// Continues the test on the processor with this number, counted from 0. If the machine has no such processor,
    /// every later access fails with [`Unreachable`](MsrErrorKind::Unreachable).
    pub fn run_on(&self, processor: usize) {
        self.current.set(processor);
    }

    /// Returns the processor with this number, counted from 0. The test need not run on that processor.
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
