//! The driver of PMUv3 on the model of its registers.
#![allow(missing_docs, reason = "parts of tests")]

use core::cell::Cell;
use core::convert::Infallible;

use pmu_arm::registers::Register;
use pmu_arm::{Identification, SystemRegisters};
use pmu_virt::mock::MockPmuv3;

thread_local! {
    static MODEL: Cell<Option<&'static MockPmuv3>> = const { Cell::new(None) };
}

/// Makes a model the one whose registers the test accesses.
pub fn install(model: &'static MockPmuv3) {
    MODEL.set(Some(model));
}

/// Returns the model that was installed.
pub fn model() -> &'static MockPmuv3 {
    MODEL.get().unwrap()
}

/// The registers of the model.
pub struct Registers;

impl SystemRegisters for Registers {
    type Error = Infallible;

    fn read(&self, register: Register) -> Result<u64, Infallible> {
        Ok(model().read(register.encoding()))
    }

    fn write(&self, register: Register, value: u64) -> Result<(), Infallible> {
        model().write(register.encoding(), value);
        Ok(())
    }

    fn synchronize(&self) {
        model().synchronize();
    }
}

/// Reads the identification registers, as `NativeRegisters` does. DDI 0487, "AArch64 System register encoding".
pub fn identify(processor: &MockPmuv3) -> Identification {
    const MDCR_EL2: u16 = 3 << 14 | 4 << 11 | 1 << 7 | 1 << 3 | 1;
    let of_op1_3 = |crm: u16, op2: u16| processor.read(3 << 14 | 3 << 11 | 9 << 7 | crm << 3 | op2);
    Identification {
        id_aa64dfr0_el1: processor.read(3 << 14 | 5 << 3),
        pmcr_el0: of_op1_3(12, 0),
        pmceid0_el0: of_op1_3(12, 6),
        pmceid1_el0: of_op1_3(12, 7),
        pmmir_el1: 0,
        mdcr_el2: (processor.level() == 2).then(|| processor.read(MDCR_EL2)),
    }
}
