//! Conversion of a configuration into its layout.

use crate::configuration::any_vendor::Configuration;
use crate::configuration::hidden::{HiddenConfiguration, HiddenRdpmc, HiddenRegisters};
use crate::configuration::vendor::Vendor;
use crate::registers::layout::Layout;
use crate::registers::vendors::{amd, intel};

impl Layout {
    /// Returns the layout of a configuration that has passed its [check](Configuration::check).
    pub(crate) const fn of(configuration: &Configuration) -> Self {
        match configuration {
            Configuration::Intel(intel) => intel::layout(intel),
            Configuration::Amd(amd) => amd::layout(amd),
            Configuration::Hidden(hidden) => of_hidden(hidden),
        }
    }
}

const fn of_hidden(hidden: &HiddenConfiguration) -> Layout {
    let mut layout = match hidden.vendor {
        Vendor::Intel => intel::hidden(),
        Vendor::Amd => amd::hidden(),
    };
    layout.hidden_as_zero |= matches!(hidden.registers, HiddenRegisters::Kvm);
    layout.absent_counters_read_zero = matches!(hidden.rdpmc, HiddenRdpmc::Zero);
    layout
}
