//! Configuration of a guest's precise records.

use crate::configuration::Configuration;
use crate::configuration::cpuid::{CpuidLeaf, EAX, EBX, ECX, EDX};
use crate::configuration::error::ConfigurationError;
use crate::precise::virtual_precise::VirtualPrecise;

/// Configuration of a guest's precise records and branch trace store. The [`Configuration`] of the guest's PMU is
/// separate.
///
/// ```
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
/// let fifth = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
/// assert!(VirtualPrecise::new(&fifth, PreciseConfiguration::debug_store(4)).is_ok());
/// // Architectural PEBS comes with version 6.
/// assert!(VirtualPrecise::new(&fifth, PreciseConfiguration::ARCHITECTURAL).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseConfiguration {
    /// Kind of the guest's precise records.
    pub records: PreciseRecords,
    /// The guest has the branch trace store, which writes branches to memory. SDM vol. 3B, "Branch Trace Store (BTS)".
    pub branch_trace: bool,
}

/// The kind of a guest's precise records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PreciseRecords {
    /// No precise records.
    None,
    /// PEBS: records in the Debug Store.
    DebugStore(DebugStoreRecords),
    /// Architectural PEBS: records in a physically contiguous buffer.
    Architectural(ArchitecturalRecords),
}

/// PEBS, with records in the Debug Store. SDM vol. 3B, "Processor Event Based Sampling (PEBS)".
///
/// The DS save area and the records have the 64-bit format. [`general`](Self::general) and [`fixed`](Self::fixed) may
/// have set bits for counters that the PMU lacks. These bits are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct DebugStoreRecords {
    /// Format of the records, 0–6 (`IA32_PERF_CAPABILITIES[11:8]`).
    pub format: u8,
    /// The guest has PEBS baseline (`IA32_PERF_CAPABILITIES[14]`): the guest can choose the groups of a record, and
    /// every counter can write records. PEBS baseline needs format 4 or later. Without PEBS baseline, a record of
    /// format 4 or later has only the basic group.
    pub baseline: bool,
    /// Bitmap of the general counters that can write records. In formats 0–2, only the first four counters can write
    /// records.
    pub general: u8,
    /// Bitmap of the fixed counters that can write records. Without [`baseline`](Self::baseline), the bitmap must be 0.
    pub fixed: u8,
    /// The guest has `MSR_PEBS_LD_LAT_THRESHOLD`. Without [`baseline`](Self::baseline), the guest also has the
    /// load-latency bits of `IA32_PEBS_ENABLE`.
    pub load_latency: bool,
    /// The guest has `MSR_PEBS_FRONTEND`.
    pub frontend: bool,
    /// The basic group of a record has the retire latency (`IA32_PERF_CAPABILITIES[17]`).
    pub timing: bool,
    /// Records can have the top-down metrics. The metrics need format 6.
    pub metrics: bool,
}

/// Architectural PEBS, which sub-leaves 4 and 5 of CPUID leaf 0x23 declare. SDM vol. 3B, "Architectural PEBS".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct ArchitecturalRecords {
    /// Bitmap of the groups that the guest can request in a record (sub-leaf 4, EBX). The bits are those of the upper
    /// half of `IA32_PMC_GPx_CFG_C`: bits 6:3 counters, bits 9:8 branch records, bits 17, 18 and 23:21 vector
    /// registers, bit 29 general registers, bit 30 the access to memory.
    pub groups: u32,
    /// Bitmap of the general counters that can write records (sub-leaf 5, EAX).
    pub general: u8,
    /// Bitmap of the fixed counters that can write records (sub-leaf 5, ECX).
    pub fixed: u8,
    /// Bitmap of the general counters with precise distribution (sub-leaf 5, EBX). The record of such a counter
    /// describes exactly the instruction at which the counter overflowed.
    pub general_exact: u8,
    /// Bitmap of the fixed counters with precise distribution (sub-leaf 5, EDX). The record of such a counter describes
    /// exactly the instruction at which the counter overflowed.
    pub fixed_exact: u8,
    /// The processor writes each group of a record as a separate fragment.
    pub fragments: bool,
    /// The guest has `MSR_PEBS_LD_LAT_THRESHOLD`. No bit of CPUID declares it: Intel's event lists name the register
    /// for the load-latency events of Panther Lake and Clearwater Forest, which have architectural PEBS.
    pub load_latency: bool,
    /// The guest has `MSR_PEBS_FRONTEND`, which Intel's event list of Panther Lake's P-cores names.
    pub frontend: bool,
}

impl PreciseConfiguration {
    /// No precise records, only the branch trace store.
    pub const BRANCH_TRACE: Self = Self { records: PreciseRecords::None, branch_trace: true };
    /// Architectural PEBS: every counter can write records with every group.
    pub const ARCHITECTURAL: Self = Self {
        records: PreciseRecords::Architectural(ArchitecturalRecords {
            groups: ArchitecturalRecords::GROUPS,
            general: 0xFF,
            fixed: 0xFF,
            general_exact: 1,
            fixed_exact: 1,
            fragments: false,
            load_latency: true,
            frontend: true,
        }),
        branch_trace: false,
    };

    /// Creates the configuration of a typical processor with this format of the Debug Store. In format 0, only counter
    /// 0 can write records. In formats 1–3, four general counters can write records. From format 4 on,
    /// [`baseline`](DebugStoreRecords::baseline) is set.
    ///
    /// ```
    /// use pmu_virt::precise::PreciseConfiguration;
    /// let exact = PreciseConfiguration::debug_store(4).with_debug_store(|records| records.timing = true);
    /// assert_ne!(exact, PreciseConfiguration::debug_store(4));
    /// ```
    pub const fn debug_store(format: u8) -> Self {
        let baseline = format >= 4;
        Self {
            records: PreciseRecords::DebugStore(DebugStoreRecords {
                format,
                baseline,
                general: match format {
                    0 => 1,
                    1..=3 => 0xF,
                    _ => 0xFF,
                },
                fixed: if baseline { 0xFF } else { 0 },
                load_latency: format >= 1,
                frontend: format >= 3,
                timing: format >= 5,
                metrics: format >= 6,
            }),
            branch_trace: false,
        }
    }

    /// Applies `change` to the Debug Store records of this configuration. If the records are not in the Debug Store,
    /// the call changes nothing.
    ///
    /// ```
    /// use pmu_virt::precise::PreciseConfiguration;
    /// // Skylake's records, of two counters alone.
    /// let two = PreciseConfiguration::debug_store(3).with_debug_store(|records| records.general = 0b11);
    /// assert_ne!(two, PreciseConfiguration::debug_store(3));
    /// ```
    pub fn with_debug_store(mut self, change: impl FnOnce(&mut DebugStoreRecords)) -> Self {
        if let PreciseRecords::DebugStore(records) = &mut self.records {
            change(records);
        }
        self
    }

    /// Applies `change` to the architectural PEBS of this configuration. If the configuration does not have
    /// architectural PEBS, the call changes nothing.
    ///
    /// ```
    /// use pmu_virt::precise::PreciseConfiguration;
    /// // Each group of a record is a fragment of its own.
    /// let parts = PreciseConfiguration::ARCHITECTURAL.with_architectural(|records| records.fragments = true);
    /// assert_ne!(parts, PreciseConfiguration::ARCHITECTURAL);
    /// ```
    pub fn with_architectural(mut self, change: impl FnOnce(&mut ArchitecturalRecords)) -> Self {
        if let PreciseRecords::Architectural(records) = &mut self.records {
            change(records);
        }
        self
    }

    /// Returns the counters of the PMU that can write records: the general and the fixed ones.
    pub(crate) const fn counters_of(&self, pmu: &Configuration) -> (u8, u8) {
        let Configuration::Intel(intel) = pmu else { return (0, 0) };
        match self.records {
            PreciseRecords::None => (0, 0),
            PreciseRecords::DebugStore(DebugStoreRecords { general, fixed, .. })
            | PreciseRecords::Architectural(ArchitecturalRecords { general, fixed, .. }) => {
                (general & intel.general, fixed & intel.fixed)
            }
        }
    }

    pub(crate) const fn check(&self, pmu: &Configuration) -> Result<(), ConfigurationError> {
        use ConfigurationError as E;
        let Configuration::Intel(intel) = pmu else { return Err(E::OtherVendor) };
        Err(match self.records {
            _ if intel.version < 2 => E::RecordVersion(intel.version),
            PreciseRecords::None => return Ok(()),
            PreciseRecords::DebugStore(records) => match records {
                DebugStoreRecords { format: format @ 7.., .. } => E::RecordFormat(format),
                DebugStoreRecords { format: format @ ..4, baseline: true, .. } => {
                    E::RecordBaseline(format)
                }
                // The save area of these formats has reset values for four counters.
                DebugStoreRecords { format: ..3, general: general @ 0x10.., .. } => {
                    E::RecordCounters(general)
                }
                DebugStoreRecords { fixed: fixed @ 1.., baseline: false, .. } => {
                    E::RecordCounters(fixed)
                }
                DebugStoreRecords { format, metrics: true, baseline, .. }
                    if !baseline || format < 6 =>
                {
                    E::RecordMetrics(format)
                }
                _ => return Ok(()),
            },
            PreciseRecords::Architectural(records) => {
                match records.groups & !ArchitecturalRecords::GROUPS {
                    _ if intel.version < 6 => E::RecordVersion(intel.version),
                    0 => return Ok(()),
                    unknown => E::RecordGroups(unknown),
                }
            }
        })
    }
}

impl ArchitecturalRecords {
    /// Every group that a record can have.
    pub const GROUPS: u32 = 0xF << 3 | 0b11 << 8 | 0b11 << 17 | 0b111 << 21 | 0b11 << 29;
}

impl VirtualPrecise {
    /// Returns the PMU's leaf with the bits that declare the records and the trace.
    pub(crate) fn declared(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        match (leaf.leaf, leaf.subleaf) {
            // DTES64 (ECX bit 2), because the area and the records have the 64-bit form; DS-CPL (bit 4), because the
            // trace has a filter by privilege. EDX bit 21 is DS.
            (1, _) if self.has_debug_store() => {
                let by_privilege = u32::from(self.configuration.branch_trace) << 4;
                leaf.bits(ECX, 1 << 2 | 1 << 4, 1 << 2 | by_privilege).bits(EDX, 1 << 21, 1 << 21)
            }
            (0x23, Some(subleaf)) => {
                let PreciseRecords::Architectural(records) = self.configuration.records else {
                    return leaf;
                };
                let [a, b, c, d] = match subleaf {
                    // Drivers look for both sub-leaves, 4 and 5: one without the other declares nothing.
                    0 => [0b11 << 4, 0, 0, 0],
                    4 => [0, records.groups, 0, 0],
                    5 => [
                        self.general.into(),
                        (records.general_exact & self.general).into(),
                        self.fixed.into(),
                        (records.fixed_exact & self.fixed).into(),
                    ],
                    _ => [0; 4],
                };
                leaf.bits(EAX, a, a).bits(EBX, b, b).bits(ECX, c, c).bits(EDX, d, d)
            }
            _ => leaf,
        }
    }
}
