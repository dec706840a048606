//! The quantities that sources count.

use pmu_virt::EventKey;
use pmu_virt::configuration::Vendor;

/// A quantity that a source counts, with its names of both vendors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Cycles,
    Instructions,
    ReferenceCycles,
    CacheReferences,
    CacheMisses,
    Branches,
    BranchMisses,
    TakenBranches,
    Slots,
    Loads,
    Stores,
}

impl Quantity {
    pub(crate) const ALL: [Self; 11] = [
        Self::Cycles,
        Self::Instructions,
        Self::ReferenceCycles,
        Self::CacheReferences,
        Self::CacheMisses,
        Self::Branches,
        Self::BranchMisses,
        Self::TakenBranches,
        Self::Slots,
        Self::Loads,
        Self::Stores,
    ];

    /// Returns the quantity's bit in leaf 0x0A's EBX. SDM vol. 3B, "Pre-defined Architectural Performance Events".
    pub(crate) const fn architectural(self) -> u8 {
        match self {
            Self::Cycles => 1 << 0,
            Self::Instructions => 1 << 1,
            Self::ReferenceCycles => 1 << 2,
            Self::CacheReferences => 1 << 3,
            Self::CacheMisses => 1 << 4,
            Self::Branches => 1 << 5,
            Self::BranchMisses => 1 << 6,
            Self::Slots => 1 << 7,
            Self::TakenBranches | Self::Loads | Self::Stores => 0,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::Instructions => "instructions",
            Self::ReferenceCycles => "reference cycles",
            Self::CacheReferences => "cache references",
            Self::CacheMisses => "cache misses",
            Self::Branches => "branches",
            Self::BranchMisses => "mispredicted branches",
            Self::TakenBranches => "taken branches",
            Self::Slots => "issue slots",
            Self::Loads => "loads",
            Self::Stores => "stores",
        }
    }

    /// Returns the events by which a guest selects the quantity. Intel: the architectural events, and the fixed counter
    /// of reference cycles; the other fixed counters have the same keys as the events. AMD: "Core Performance Monitor
    /// Counters" in the processor programming references, PMCx076, x0C0, x0C2, x0C3 and x0C4.
    ///
    /// Before Ice Lake, Intel writes no precise records of cycles. Drivers sample there an event of which fewer than 16
    /// happen in each cycle: retired instructions on Core 2 and Nehalem, retired micro-operations on Sandy Bridge, and
    /// precisely distributed retired instructions from Ivy Bridge on, with counter mask 16, inverted.
    ///
    /// Intel's loads and stores are those of `perf mem record`: MEM_INST_RETIRED.ALL_LOADS and ALL_STORES, and
    /// MEM_TRANS_RETIRED.LOAD_LATENCY and STORE_SAMPLE.
    pub(crate) fn keys(self, vendor: Vendor) -> &'static [EventKey] {
        const fn key(event: u16, unit_mask: u8) -> EventKey {
            EventKey::general(event, unit_mask)
        }
        match (vendor, self) {
            (Vendor::Intel, Self::Cycles) => {
                const {
                    &[
                        key(0x3C, 0),
                        key(0xC0, 0).counter_mask(16, true),
                        key(0xC2, 1).counter_mask(16, true),
                        key(0xC0, 1).counter_mask(16, true),
                    ]
                }
            }
            (Vendor::Intel, Self::Instructions) => const { &[key(0xC0, 0)] },
            (Vendor::Intel, Self::ReferenceCycles) => {
                const { &[key(0x3C, 1), EventKey::fixed(2).unwrap()] }
            }
            (Vendor::Intel, Self::CacheReferences) => const { &[key(0x2E, 0x4F)] },
            (Vendor::Intel, Self::CacheMisses) => const { &[key(0x2E, 0x41)] },
            (Vendor::Intel, Self::Branches) => const { &[key(0xC4, 0)] },
            (Vendor::Intel, Self::Slots) => const { &[key(0xA4, 1)] },
            (Vendor::Intel, Self::Loads) => const { &[key(0xD0, 0x81), key(0xCD, 1)] },
            (Vendor::Intel, Self::Stores) => const { &[key(0xD0, 0x82), key(0xCD, 2)] },
            (Vendor::Intel, Self::BranchMisses) => const { &[key(0xC5, 0)] },
            (Vendor::Amd, Self::Cycles) => const { &[key(0x76, 0)] },
            (Vendor::Amd, Self::Instructions) => const { &[key(0xC0, 0)] },
            (Vendor::Amd, Self::Branches) => const { &[key(0xC2, 0)] },
            (Vendor::Amd, Self::BranchMisses) => const { &[key(0xC3, 0)] },
            (Vendor::Amd, Self::TakenBranches) => const { &[key(0xC4, 0)] },
            _ => &[],
        }
    }
}
