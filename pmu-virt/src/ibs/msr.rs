//! Instruction-based sampling as a facility beside the PMU: RDMSR, WRMSR, CPUID, lists. A register that the
//! configuration lacks is unhandled: the PMU then answers #GP.

use crate::configuration::cpuid::CpuidLeaf;
use crate::ibs::virtual_ibs::VirtualIbs;
use crate::pmu::facility::GuestFacility;
use crate::pmu::rows::answers_by_rows;

impl GuestFacility for VirtualIbs {
    answers_by_rows!();

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn reset(&mut self) {
        *self = Self::new(self.configuration);
    }
}
