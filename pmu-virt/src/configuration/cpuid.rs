//! CPUID of a configuration. SDM vol. 2A, CPUID; APM vol. 3, appendix E.

use crate::configuration::features::{IntelFeature, IntelFeatures};
use crate::configuration::{AmdCounters, Configuration, IntelConfiguration, Vendor};

/// Results of CPUID in EAX, EBX, ECX and EDX.
pub type CpuidRegisters = [u32; 4];

pub(crate) const EAX: usize = 0;
pub(crate) const EBX: usize = 1;
pub(crate) const ECX: usize = 2;
pub(crate) const EDX: usize = 3;

/// Bits of a CPUID leaf that describe the PMU; the embedder decides the other bits of the leaf.
///
/// ```
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let leaf = configuration.cpuid_leaves().find(|leaf| leaf.leaf == 0x0A).unwrap();
/// // Version 2, four counters of 48 bits.
/// assert_eq!(leaf.apply([0; 4])[0], 0x0730_0402);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct CpuidLeaf {
    /// Number of the leaf: the value of EAX before CPUID.
    pub leaf: u32,
    /// Number of the sub-leaf: the value of ECX before CPUID. `None` if the leaf has no sub-leaves.
    pub subleaf: Option<u32>,
    /// Bits of each register that describe the PMU; the embedder decides the other bits.
    pub mask: CpuidRegisters,
    /// Values of the bits in `mask`. All other bits are 0.
    pub value: CpuidRegisters,
    /// Minimum value of EAX in leaves 0, 7 and 0x80000000; 0 in any other leaf. In these three leaves, EAX is the
    /// number of the highest leaf or sub-leaf.
    pub at_least: u32,
}

impl CpuidLeaf {
    const fn new(leaf: u32, subleaf: Option<u32>) -> Self {
        Self { leaf, subleaf, mask: [0; 4], value: [0; 4], at_least: 0 }
    }

    /// Creates a leaf of which every bit is the PMU's.
    const fn whole(leaf: u32, subleaf: Option<u32>, value: CpuidRegisters) -> Self {
        Self { mask: [u32::MAX; 4], value, ..Self::new(leaf, subleaf) }
    }

    /// Returns the leaf with the bits of `mask` as the PMU's, and those of `value` set.
    pub(crate) const fn bits(mut self, register: usize, mask: u32, value: u32) -> Self {
        self.mask[register % 4] |= mask;
        self.value[register % 4] |= value & mask;
        self
    }

    pub(crate) const fn at_least(mut self, needed: u32) -> Self {
        self.at_least = needed;
        self
    }

    /// Replaces the PMU's bits in `given`, the embedder's answer to CPUID, and returns the result. The bits in
    /// [`mask`](Self::mask) come from [`value`](Self::value). If EAX is then below the field `at_least`, EAX becomes
    /// `at_least`.
    pub fn apply(&self, given: CpuidRegisters) -> CpuidRegisters {
        let mut answer = given;
        for ((answer, mask), value) in answer.iter_mut().zip(self.mask).zip(self.value) {
            *answer = *answer & !mask | value;
        }
        answer[EAX] = answer[EAX].max(self.at_least);
        answer
    }
}

/// Instruction-based sampling.
const IBS: u32 = 0x8000_001B;

/// The leaves that concern a PMU, with their sub-leaves.
#[rustfmt::skip]
const LEAVES: [(u32, u32); 19] = [
    (0, 0), (1, 0), (7, 0), (7, 1), (0x0A, 0), (0x0D, 1), (0x0D, 15), (0x1C, 0),
    (0x23, 0), (0x23, 1), (0x23, 2), (0x23, 3), (0x23, 4), (0x23, 5),
    (0x8000_0000, 0), (0x8000_0001, 0), (0x8000_0008, 0), (IBS, 0), (0x8000_0022, 0),
];

impl Configuration {
    /// Returns the answer to CPUID with `leaf` in EAX and `subleaf` in ECX. `given` is the embedder's own answer. The
    /// call replaces the bits of `given` that describe the PMU.
    ///
    /// In leaf 0, `given` must contain the vendor, because drivers look for `GenuineIntel` or `AuthenticAMD`. The
    /// embedder also decides whether the extended leaves (0x80000000 and above) exist.
    ///
    /// In leaves 0, 7 and 0x80000000, EAX is the number of the highest leaf or sub-leaf. The call raises EAX if the PMU
    /// needs a higher number.
    ///
    /// Without [`IntelFeature::Transactional`], the answer hides TSX. If
    /// [`guest_host`](crate::configuration::AmdConfiguration::guest_host) is `false`, the answer hides SVM. The guest's
    /// event selects lack the bits of a hidden feature.
    ///
    /// ```
    /// use pmu_virt::configuration::{Configuration, Vendor};
    /// // A host's leaf 0x0A, for a guest without a PMU.
    /// let hidden = Configuration::hidden(Vendor::Intel);
    /// assert_eq!(hidden.cpuid(0x0A, 0, [0x0730_0804, 0, 0, 0x603]), [0; 4]);
    /// ```
    pub fn cpuid(&self, leaf: u32, subleaf: u32, given: CpuidRegisters) -> CpuidRegisters {
        self.cpuid_leaf(leaf, subleaf).map_or(given, |leaf| leaf.apply(given))
    }

    /// Returns the CPUID leaves that concern the PMU, for a hypervisor that keeps a table of CPUID leaves. If the
    /// iterator does not return a sub-leaf of leaf 0x23, all four registers of that sub-leaf are 0.
    ///
    /// ```
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// /// An entry of the table that `KVM_SET_CPUID2` takes: leaf, sub-leaf, and the registers.
    /// type Entry = (u32, u32, [u32; 4]);
    /// /// Corrects a guest's table, and adds the leaves that the table lacks.
    /// fn correct(table: &mut Vec<Entry>, configuration: &Configuration) {
    ///     for leaf in configuration.cpuid_leaves() {
    ///         let subleaf = leaf.subleaf.unwrap_or(0);
    ///         match table.iter_mut().find(|entry| (entry.0, entry.1) == (leaf.leaf, subleaf)) {
    ///             Some(entry) => entry.2 = leaf.apply(entry.2),
    ///             None => table.push((leaf.leaf, subleaf, leaf.apply([0; 4]))),
    ///         }
    ///     }
    /// }
    /// let mut table = vec![(0x8000_0022, 0, [1, 16, 0, 0])]; // the host's: sixteen counters
    /// correct(&mut table, &Configuration::Amd(AmdConfiguration::perf_mon_v2(6)));
    /// assert_eq!(table[0], (0x8000_0022, 0, [1, 6, 0, 0]));
    /// ```
    pub fn cpuid_leaves(&self) -> impl Iterator<Item = CpuidLeaf> + use<'_> {
        LEAVES.into_iter().filter_map(|(leaf, subleaf)| self.cpuid_leaf(leaf, subleaf))
    }

    /// Returns the bits of one CPUID leaf that describe the PMU, for a hypervisor that intercepts each CPUID. Returns
    /// `None` if the leaf does not concern the PMU.
    ///
    /// ```
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// assert_eq!(configuration.cpuid_leaf(0x0A, 0).map(|leaf| leaf.value[0]), Some(0x0730_0402));
    /// assert_eq!(configuration.cpuid_leaf(0x15, 0), None);
    /// ```
    pub fn cpuid_leaf(&self, leaf: u32, subleaf: u32) -> Option<CpuidLeaf> {
        let (intel, amd) = match self {
            Self::Intel(intel) => (Some(intel), None),
            Self::Amd(amd) => (None, Some(amd)),
            Self::Hidden(_) => (None, None),
        };
        let extended = intel.filter(|intel| intel.has(IntelFeature::ExtendedLeaf));
        let (features, version) =
            intel.map_or((IntelFeatures::NONE, 0), |intel| (intel.features, intel.version));
        let each = CpuidLeaf::new(leaf, None);
        let this = CpuidLeaf::new(leaf, Some(subleaf));
        let described = match (leaf, subleaf) {
            (0, _) => {
                let needed = if extended.is_some() { 0x23 } else { 0x0A };
                each.at_least(if intel.is_some() { needed } else { 0 })
            }
            // ECX: 2 DTES64, 4 DS-CPL, 15 PDCM. EDX: 21 DS.
            (1, _) => each
                .bits(ECX, 1 << 2 | 1 << 4 | 1 << 15, u32::from(intel.is_some()) << 15)
                .bits(EDX, 1 << 21, 0),
            // EDX: 19 architectural LBRs.
            (7, 0) => this.bits(EDX, 1 << 19, 0).at_least(extended.is_some().into()),
            (7, 1) => this,
            (0x0A, _) => CpuidLeaf::whole(leaf, None, intel.map_or([0; 4], architectural)),
            // The XSAVE state of the architectural LBRs.
            (0x0D, 1) => this.bits(ECX, 1 << 15, 0),
            (0x0D, 15) => CpuidLeaf::whole(leaf, Some(subleaf), [0; 4]),
            (0x1C, _) => CpuidLeaf::whole(leaf, None, [0; 4]),
            (0x23, _) => {
                let value = extended.map_or([0; 4], |intel| extension(intel, subleaf));
                CpuidLeaf::whole(leaf, Some(subleaf), value)
            }
            (0x8000_0000, _) => each.at_least(match amd.map(|amd| amd.counters) {
                None | Some(AmdCounters::Legacy) => 0,
                Some(AmdCounters::CoreExtension) => 0x8000_0001,
                Some(AmdCounters::PerfMonV2 { .. }) => 0x8000_0022,
            }),
            (0x8000_0001, _) => {
                // ECX: 2 SVM, 10 IBS, 23 PerfCtrExtCore, 24 PerfCtrExtNB, 27 PerfTsc, 28 PerfCtrExtLLC.
                let core = amd.is_some_and(|amd| !matches!(amd.counters, AmdCounters::Legacy));
                let hides_svm = amd.is_some_and(|amd| !amd.guest_host);
                each.bits(ECX, u32::from(hides_svm) << 2, 0).bits(
                    ECX,
                    1 << 10 | 1 << 23 | 1 << 24 | 1 << 27 | 1 << 28,
                    u32::from(core) << 23,
                )
            }
            // EBX: 1 InstRetCntMsr, the counter at C000_00E9.
            (0x8000_0008, _) => each.bits(EBX, 1 << 1, 0),
            (IBS, _) => CpuidLeaf::whole(leaf, None, [0; 4]),
            // EAX: 0 PerfMonV2. EBX: 3:0 number of core counters.
            (0x8000_0022, _) => CpuidLeaf::whole(
                leaf,
                None,
                match amd.map(|amd| amd.counters) {
                    Some(AmdCounters::PerfMonV2 { counters }) => [1, counters.into(), 0, 0],
                    _ => [0; 4],
                },
            ),
            _ => return None,
        };
        Some(features.declare(version, described))
    }
}

/// Returns the number of counters from 0 on without a gap, for a leaf that has a number and no bitmap.
const fn contiguous(bitmap: u8) -> u32 {
    bitmap.trailing_ones()
}

/// Returns leaf 0x0A.
fn architectural(intel: &IntelConfiguration) -> CpuidRegisters {
    // Long enough for the events, but never below seven: Linux takes a shorter vector for a missing PMU.
    let length = if intel.events >> 7 != 0 { 8 } else { 7 };
    let unavailable = !u32::from(intel.events) & ((1 << length) - 1);
    let fixed = u32::from(intel.fixed);
    let fixed_width = if fixed == 0 { 0 } else { u32::from(intel.fixed_width) };
    [
        u32::from(intel.version)
            | contiguous(intel.general) << 8
            | u32::from(intel.general_width) << 16
            | length << 24,
        unavailable,
        if intel.version >= 5 { fixed } else { 0 },
        // Version 1 has no fields here.
        if intel.version >= 2 { contiguous(intel.fixed) | fixed_width << 5 } else { 0 },
    ]
}

/// Returns leaf 0x23 without its features: sub-leaves 0 (the sub-leaves that exist), 1 (counters) and 3 (events).
fn extension(intel: &IntelConfiguration, subleaf: u32) -> CpuidRegisters {
    match subleaf {
        0 => [0b1011, 0, 0, 0],
        1 => [intel.general.into(), intel.fixed.into(), 0, 0],
        3 => [intel.events.into(), 0, 0, 0],
        _ => [0; 4],
    }
}

/// Configuration of a processor without a PMU. CPUID does not declare a PMU. The fields select the result of an access
/// to a PMU register.
///
/// ```
/// use pmu_virt::{FedEvents, Read, VirtualPmu};
/// use pmu_virt::configuration::{Configuration, HiddenConfiguration, HiddenRegisters, Vendor};
/// let mut hidden = HiddenConfiguration::new(Vendor::Intel);
/// let pmu = VirtualPmu::new(Configuration::Hidden(hidden), FedEvents::NONE)?;
/// assert_eq!(pmu.read(0x186), Read::GeneralProtection);
/// hidden.registers = HiddenRegisters::Kvm;
/// let pmu = VirtualPmu::new(Configuration::Hidden(hidden), FedEvents::NONE)?;
/// assert_eq!(pmu.read(0x186), Read::Value(0));
/// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
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
