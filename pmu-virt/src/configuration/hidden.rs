//! The configuration of a processor without a PMU.

use crate::configuration::vendor::Vendor;

/// Configuration of a processor without a PMU. CPUID declares none; platforms differ in what they answer to a guest
/// that accesses the registers nevertheless.
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
    /// Vendor of the processor, which decides the addresses of the absent registers.
    pub vendor: Vendor,
    /// Answer to RDMSR and WRMSR of the absent registers.
    pub registers: HiddenRegisters,
    /// Answer to RDPMC, where CPL and CR4.PCE allow the instruction.
    pub rdpmc: HiddenRdpmc,
}

/// Answer to RDMSR and WRMSR of the registers of an absent PMU.
///
/// AMD's four selects and counters at C001_0000–7 read 0 and ignore writes in either case: guests take them to be on
/// every processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HiddenRegisters {
    /// #GP, as on hardware.
    Fault,
    /// As in KVM: 0xC1, 0xC2, 0x186 and 0x187 read 0 and ignore writes; any other register is #GP.
    Kvm,
}

/// Answer to RDPMC without a PMU, where CPL and CR4.PCE allow the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HiddenRdpmc {
    /// #GP.
    Fault,
    /// 0 with 0–3 in ECX, as some paravisors of SVM guests answer; #GP with any other ECX.
    Zero,
}

impl HiddenConfiguration {
    /// Creates a processor on which every access to a PMU register is #GP, except of AMD's legacy registers.
    pub const fn new(vendor: Vendor) -> Self {
        Self { vendor, registers: HiddenRegisters::Fault, rdpmc: HiddenRdpmc::Fault }
    }
}
