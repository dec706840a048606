// A kernel of one processor whose registers cannot be reached: the examples of `Pmu` are compiled with it.
#[derive(Clone, Copy)]
pub struct Registers;
impl pmu::core::msr::MsrBackend for Registers {
    type Error = pmu::core::msr::MsrErrorKind;
    fn read(&self, _: pmu::core::msr::MsrAddress) -> Result<u64, Self::Error> {
        Err(pmu::core::msr::MsrErrorKind::Unreachable)
    }
    fn write(&self, _: pmu::core::msr::MsrAddress, _: u64) -> Result<(), Self::Error> {
        Err(pmu::core::msr::MsrErrorKind::Unreachable)
    }
    fn read_pmc(&self, _: pmu::core::msr::PmcIndex) -> Result<u64, Self::Error> {
        Err(pmu::core::msr::MsrErrorKind::Unreachable)
    }
    fn update(&self, _: pmu::core::msr::MsrUpdate) -> Result<u64, Self::Error> {
        Err(pmu::core::msr::MsrErrorKind::Unreachable)
    }
}
pub struct MyKernel;
// SAFETY: there is one thread.
unsafe impl pmu::Kernel for MyKernel {
    type Msr = Registers;
    type Architecture = pmu::X86;
    fn msr() -> Registers {
        Registers
    }
    fn this_processor() -> usize {
        0
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    fn set_interrupt_masked(_: bool) {}
    fn interrupt(_: usize) {}
}
#[derive(Clone, Copy)]
pub struct Apic;
impl pmu::core::Platform for Apic {
    fn unmask_performance_interrupt(&self) {}
    fn mask_performance_interrupt(&self) {}
}
