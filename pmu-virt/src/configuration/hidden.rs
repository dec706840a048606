//! The configuration of a processor without a PMU.

use crate::configuration::vendor::Vendor;

/// A processor without a PMU. CPUID says so; the answer to a guest that accesses its registers nevertheless differs
/// among platforms.
///
/// ```
/// use pmu_virt::{Configuration, FedEvents, HiddenConfiguration, HiddenRegisters, Read, Vendor};
/// use pmu_virt::VirtualPmu;
/// let mut hidden = HiddenConfiguration::new(Vendor::Intel);
/// let pmu = VirtualPmu::new(Configuration::Hidden(hidden), FedEvents::NONE)?;
/// assert_eq!(pmu.read(0x186), Read::GeneralProtection);
/// hidden.registers = HiddenRegisters::Kvm;
/// let pmu = VirtualPmu::new(Configuration::Hidden(hidden), FedEvents::NONE)?;
/// assert_eq!(pmu.read(0x186), Read::Value(0));
/// # Ok::<(), pmu_virt::ConfigurationError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct HiddenConfiguration {
    /// Vendor of the processor.
    pub vendor: Vendor,
    /// Answer to RDMSR and WRMSR of its registers.
    pub registers: HiddenRegisters,
    /// Answer to RDPMC, where the privilege allows it.
    pub rdpmc: HiddenRdpmc,
}

/// Answer to RDMSR and WRMSR of the registers of an absent PMU. AMD's four selects and counters at
/// C001_0000–7, which guests take to be on every processor, read 0 and ignore writes in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HiddenRegisters {
    /// #GP, as on hardware.
    Fault,
    /// As in KVM: 0xC1, 0xC2, 0x186 and 0x187 read 0 and ignore writes; the others are #GP.
    Kvm,
}

/// Answer to RDPMC without a PMU, where the privilege allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HiddenRdpmc {
    /// #GP.
    Fault,
    /// With 0–3 in ECX, 0, as some paravisors of SVM guests answer; anything else is #GP.
    Zero,
}

impl HiddenConfiguration {
    /// Creates a processor whose every PMU access faults, except of AMD's legacy registers.
    pub const fn new(vendor: Vendor) -> Self {
        Self { vendor, registers: HiddenRegisters::Fault, rdpmc: HiddenRdpmc::Fault }
    }
}
