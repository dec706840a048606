//! The configuration of a processor without a PMU.

use crate::configuration::vendor::Vendor;

/// Configuration of a processor without a PMU. CPUID does not declare a PMU. The fields select the result of an access
/// to a PMU register.
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
    /// Vendor of the processor. The vendor determines the addresses of the absent registers.
    pub vendor: Vendor,
    /// Result of RDMSR and WRMSR of a PMU register.
    pub registers: HiddenRegisters,
    /// Result of RDPMC, if CPL and CR4.PCE allow the instruction.
    pub rdpmc: HiddenRdpmc,
}

/// Result of RDMSR and WRMSR of a PMU register, on a processor without a PMU.
///
/// On AMD, guests assume that every processor has four event selects and four counters, at C001_0000–7. With every
/// variant of this type, these eight registers read 0 and ignore writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HiddenRegisters {
    /// An access raises #GP, as on hardware.
    Fault,
    /// Registers 0xC1, 0xC2, 0x186 and 0x187 read 0 and ignore writes. An access to any other register of the absent
    /// PMU raises #GP. KVM answers in this way.
    Kvm,
}

/// Result of RDPMC on a processor without a PMU, if CPL and CR4.PCE allow the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HiddenRdpmc {
    /// RDPMC raises #GP.
    Fault,
    /// RDPMC returns 0 if ECX is 0–3, and raises #GP with any other ECX. Some paravisors of SVM guests answer in this
    /// way.
    Zero,
}

impl HiddenConfiguration {
    /// Creates the configuration of a processor on which an access to a PMU register raises #GP. Only AMD's legacy
    /// registers do not raise #GP: they read 0 and ignore writes.
    pub const fn new(vendor: Vendor) -> Self {
        Self { vendor, registers: HiddenRegisters::Fault, rdpmc: HiddenRdpmc::Fault }
    }
}
