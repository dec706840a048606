//! Precise records as a facility beside the PMU: RDMSR, WRMSR, CPUID, lists.

use crate::configuration::cpuid::CpuidLeaf;
use crate::pmu::facility::GuestFacility;
use crate::pmu::rows::answers_by_rows;
use crate::precise::virtual_precise::{DUE, VirtualPrecise};

impl GuestFacility for VirtualPrecise {
    answers_by_rows!();

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.declared(leaf)
    }

    fn own_counters(&self) -> u64 {
        self.enabled()
    }

    fn overflowed(&mut self, counters: u64) {
        self.words[DUE] |= counters & self.enabled();
    }

    fn reset(&mut self) {
        *self = self.after_reset();
    }
}
