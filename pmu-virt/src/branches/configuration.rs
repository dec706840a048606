//! Configuration of a guest's branch records.

use crate::configuration::cpuid::{CpuidLeaf, EAX, EBX, ECX, EDX};
use crate::configuration::error::ConfigurationError;
use crate::configuration::{AmdCounters, Configuration};

/// Most records of a processor.
pub(crate) const MAX_RECORDS: usize = 32;

/// Configuration of the branch records that a guest sees. The [`Configuration`] of the guest's PMU is separate.
///
/// ```
/// use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// let fifth = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
/// assert!(VirtualBranches::new(&fifth, BranchConfiguration::ARCHITECTURAL).is_ok());
/// // Before leaf 0x1C the format is in IA32_PERF_CAPABILITIES: Skylake's.
/// let fourth = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
/// assert!(VirtualBranches::new(&fourth, BranchConfiguration::Legacy { format: 5 }).is_ok());
/// assert!(VirtualBranches::new(&fourth, BranchConfiguration::AMD).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BranchConfiguration {
    /// Intel's architectural last-branch records. SDM vol. 3B, "Last Branch Records".
    Architectural(ArchitecturalBranches),
    /// Last-branch records of an Intel processor without CPUID leaf 0x1C. `IA32_PERF_CAPABILITIES[5:0]` gives the
    /// format of the records. Formats 3 (Nehalem to Ivy Bridge) and 4 (Haswell, Broadwell) have 16 records. Formats 5
    /// (Skylake), 6 (Goldmont) and 7 (Goldmont Plus) have 32 records. SDM vol. 3B, "LBR Format".
    Legacy {
        /// Format of the records, 3–7.
        format: u8,
    },
    /// AMD's last-branch records, version 2. APM vol. 2, "Last Branch Stack".
    Amd(AmdBranches),
}

/// Intel's architectural last-branch records, with the features that CPUID leaf 0x1C declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct ArchitecturalBranches {
    /// Supported depths, as in EAX bits 7:0 of the leaf: if bit *n* is set, the guest may choose 8·(*n* + 1) records.
    /// Only bits 0–3 may be set.
    pub depths: u8,
    /// A deep sleep (C-state) may clear the records (EAX bit 30).
    pub resets_in_deep_sleep: bool,
    /// The guest can filter branches by privilege level (EBX bit 0).
    pub privilege_filter: bool,
    /// The guest can filter branches by their kind (EBX bit 1).
    pub kind_filter: bool,
    /// The guest can record a call stack (EBX bit 2).
    pub call_stack: bool,
    /// A record says whether the branch was mispredicted (ECX bit 0).
    pub mispredictions: bool,
    /// A record tells the number of cycles since the previous record (ECX bit 1).
    pub cycles: bool,
    /// A record tells the kind of the branch (ECX bit 2).
    pub kinds: bool,
    /// Bitmap of counters 0–3 (ECX bits 19:16): if bit *n* is set, each record has the number of events of counter *n*
    /// since the previous record.
    pub counters: u8,
}

/// AMD's last-branch records, with the features that CPUID leaf 0x80000022 declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct AmdBranches {
    /// Number of records, 1–16 (EBX bits 9:4).
    pub depth: u8,
    /// A counter's interrupt can freeze the records (EAX bit 2). The guest enables the freeze by bit 11 of `DebugCtl`.
    ///
    /// EAX bit 2 also declares bit 12 of `DebugCtl`. On a real processor, bit 12 lets an interrupt freeze the counters.
    /// A [`VirtualPmu`](crate::VirtualPmu) does not implement this freeze on AMD, and ignores writes of bit 12.
    pub freeze: bool,
}

impl BranchConfiguration {
    /// Architectural records with every feature, and with every depth up to 32 records.
    pub const ARCHITECTURAL: Self = Self::Architectural(ArchitecturalBranches {
        depths: 0b1111,
        resets_in_deep_sleep: false,
        privilege_filter: true,
        kind_filter: true,
        call_stack: true,
        mispredictions: true,
        cycles: true,
        kinds: true,
        counters: 0b1111,
    });
    /// AMD's branch records: 16 records, which a counter's interrupt can freeze.
    pub const AMD: Self = Self::Amd(AmdBranches { depth: 16, freeze: true });

    /// Applies `change` to an architectural configuration, and returns the result. Returns any other configuration
    /// unchanged.
    ///
    /// ```
    /// use pmu_virt::branches::BranchConfiguration;
    /// let untimed = BranchConfiguration::ARCHITECTURAL.with_architectural(|branches| branches.cycles = false);
    /// assert_ne!(untimed, BranchConfiguration::ARCHITECTURAL);
    /// ```
    pub fn with_architectural(self, change: impl FnOnce(&mut ArchitecturalBranches)) -> Self {
        match self {
            Self::Architectural(mut branches) => {
                change(&mut branches);
                Self::Architectural(branches)
            }
            other => other,
        }
    }

    /// Creates the configuration of AMD's branch records. `depth` is the number of records, 1–16. `freeze` tells
    /// whether a counter's interrupt can freeze the records.
    pub const fn amd(depth: u8, freeze: bool) -> Self {
        Self::Amd(AmdBranches { depth, freeze })
    }

    /// Returns the greatest number of branch records that the guest can have.
    pub const fn max_depth(&self) -> u8 {
        match self {
            Self::Architectural(branches) => 8 * (8 - branches.depths.leading_zeros() as u8),
            Self::Legacy { format: 3 | 4 } => 16,
            Self::Legacy { .. } => MAX_RECORDS as u8,
            Self::Amd(branches) => branches.depth,
        }
    }

    pub(crate) const fn check(&self, pmu: &Configuration) -> Result<(), ConfigurationError> {
        use ConfigurationError as E;
        Err(match (*self, pmu) {
            (Self::Architectural(branches), Configuration::Intel(intel)) => match branches {
                _ if intel.version < 4 => E::BranchVersion(intel.version),
                ArchitecturalBranches { depths: depths @ (0 | 0x10..), .. } => {
                    E::BranchDepth(depths)
                }
                ArchitecturalBranches {
                    call_stack: true, privilege_filter, kind_filter, ..
                } if !(privilege_filter && kind_filter) => E::CallStackWithoutFilters,
                ArchitecturalBranches { counters, .. }
                    if counters & !(intel.general & 0b1111) != 0 =>
                {
                    E::LoggedCounters(counters)
                }
                _ => return Ok(()),
            },
            (Self::Legacy { format: 3..=7 }, Configuration::Intel(_)) => return Ok(()),
            (Self::Legacy { format }, Configuration::Intel(_)) => E::BranchFormat(format),
            (Self::Amd(AmdBranches { depth, .. }), Configuration::Amd(amd)) => match amd.counters {
                AmdCounters::PerfMonV2 { .. } if matches!(depth, 1..=16) => return Ok(()),
                AmdCounters::PerfMonV2 { .. } => E::BranchDepth(depth),
                _ => E::NoPerfMonV2,
            },
            _ => E::OtherVendor,
        })
    }

    /// Returns the PMU's leaf with the bits that declare these records. A legacy stack has none: its format is in
    /// `IA32_PERF_CAPABILITIES`. XSAVE does not save the records of a guest.
    pub(crate) const fn declared(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        match (self, leaf.leaf, leaf.subleaf) {
            (Self::Architectural(_), 0, _) => {
                // Software reads no leaf above the highest one, which leaf 0 names.
                let needed = if leaf.at_least < 0x1C { 0x1C } else { leaf.at_least };
                leaf.at_least(needed)
            }
            // Drivers look for architectural records by this bit, and then read leaf 0x1C (SDM vol. 2A, CPUID: EDX bit
            // 19).
            (Self::Architectural(_), 7, Some(0)) => leaf.bits(EDX, 1 << 19, 1 << 19),
            (Self::Architectural(branches), 0x1C, _) => {
                let eax = branches.depths as u32
                    | (branches.resets_in_deep_sleep as u32) << 30
                    // A `FedBranch` has linear addresses, not offsets in a segment.
                    | 1 << 31;
                let ebx = branches.privilege_filter as u32
                    | (branches.kind_filter as u32) << 1
                    | (branches.call_stack as u32) << 2;
                let ecx = branches.mispredictions as u32
                    | (branches.cycles as u32) << 1
                    | (branches.kinds as u32) << 2
                    | (branches.counters as u32) << 16;
                leaf.bits(EAX, u32::MAX, eax).bits(EBX, u32::MAX, ebx).bits(ECX, u32::MAX, ecx)
            }
            // The freeze has a bit of its own: some of Zen 4 have the records without it (Linux commit 598c2fafc06f).
            // APM vol. 3, leaf 0x80000022: EAX 1 LbrStack, 2 LbrAndPmcFreeze; EBX 9:4 LbrStackSize.
            (Self::Amd(branches), 0x8000_0022, _) => {
                let eax = 1 << 1 | (branches.freeze as u32) << 2;
                leaf.bits(EAX, 0b110, eax).bits(EBX, 0x3F << 4, (branches.depth as u32) << 4)
            }
            _ => leaf,
        }
    }
}
