// A kernel of one processor whose registers cannot be reached: the examples of `Pmu` are compiled with it.
#[derive(Clone, Copy)]
pub struct Registers;
impl pmu::core::access::RegisterBackend for Registers {
    type Error = pmu::core::access::AccessErrorKind;
    fn read(&self, _: pmu::core::access::RegisterAddress) -> Result<u64, Self::Error> {
        Err(pmu::core::access::AccessErrorKind::Unreachable)
    }
    fn write(&self, _: pmu::core::access::RegisterAddress, _: u64) -> Result<(), Self::Error> {
        Err(pmu::core::access::AccessErrorKind::Unreachable)
    }
    fn read_counter(&self, _: pmu::core::access::CounterIndex) -> Result<u64, Self::Error> {
        Err(pmu::core::access::AccessErrorKind::Unreachable)
    }
    fn update(&self, _: pmu::core::access::RegisterUpdate) -> Result<u64, Self::Error> {
        Err(pmu::core::access::AccessErrorKind::Unreachable)
    }
}
pub struct MyKernel;
// SAFETY: there is one thread.
unsafe impl pmu::Kernel for MyKernel {
    type Registers = Registers;
    type Architecture = pmu::X86;
    fn registers() -> Registers {
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
