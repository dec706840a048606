//! Branch records as a facility beside the PMU: RDMSR, WRMSR, CPUID, lists.

use crate::branches::virtual_branches::VirtualBranches;
use crate::configuration::cpuid::CpuidLeaf;
use crate::pmu::facility::GuestFacility;
use crate::pmu::rows::answers_by_rows;

impl GuestFacility for VirtualBranches {
    answers_by_rows!();

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn pmi_raised(&mut self) {
        self.freeze();
    }

    fn reset(&mut self) {
        *self = self.after_reset();
    }
}
