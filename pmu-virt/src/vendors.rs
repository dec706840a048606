//! The vendors' PMUs, each as data.

mod amd;
mod intel;

use crate::configuration::{HiddenConfiguration, HiddenRdpmc, HiddenRegisters};
use crate::layout::Layout;
use crate::{Configuration, Vendor};

/// Returns the PMU of a configuration that has passed its check.
pub(crate) const fn layout(configuration: &Configuration) -> Layout {
    match configuration {
        Configuration::Intel(intel) => intel::layout(intel),
        Configuration::Amd(amd) => amd::layout(amd),
        Configuration::Hidden(hidden) => hidden_layout(hidden),
    }
}

const fn hidden_layout(hidden: &HiddenConfiguration) -> Layout {
    let mut layout = match hidden.vendor {
        Vendor::Intel => intel::hidden(),
        Vendor::Amd => amd::hidden(),
    };
    layout.hidden_as_zero |= matches!(hidden.registers, HiddenRegisters::Kvm);
    layout.absent_counters_read_zero = matches!(hidden.rdpmc, HiddenRdpmc::Zero);
    layout
}
