//! Intel's configurations of the matrix, and their counters.

use super::*;
use pmu_virt::configuration::{Configuration, IntelConfiguration};

pub fn each(mut test: impl FnMut(IntelConfiguration, pmu_virt::VirtualPmu)) {
    for intel in intel_matrix() {
        test(intel, pmu(Configuration::Intel(intel)));
    }
}

pub fn general(intel: &IntelConfiguration) -> u32 {
    intel.general.count_ones()
}

pub fn fixed(intel: &IntelConfiguration) -> u32 {
    intel.fixed.count_ones()
}

/// Enables everything in the global register, where there is one.
pub fn enable_globally(intel: &IntelConfiguration, pmu: &mut pmu_virt::VirtualPmu) {
    if intel.version >= 2 {
        set(pmu, 0x38F, low(general(intel)) | low(fixed(intel)) << 32);
    }
}
