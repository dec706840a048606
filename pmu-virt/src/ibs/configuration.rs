//! Configuration of a guest's instruction-based sampling.

use crate::configuration::cpuid::{CpuidLeaf, EAX, ECX};

/// Configuration of a guest's instruction-based sampling (IBS): CPUID leaf 0x8000001B, the extended LVT entry, and the
/// behavior of particular processor families.
///
/// ```
/// use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
/// // Zen 4, whose firmware assigned the second extended entry.
/// let ibs = VirtualIbs::new(IbsConfiguration { lvt_entry: Some(1), ..IbsConfiguration::ZEN_4 });
/// assert_eq!(ibs.configuration().capabilities, 0xBFF);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsConfiguration {
    /// Leaf 0x8000001B, EAX. Bit 0 declares that the leaf is valid, bit 1 declares fetch sampling, and bit 2 declares
    /// op sampling.
    pub capabilities: u32,
    /// Number of the extended LVT entry that delivers the interrupt of a sample, 0–15. `None` means that firmware
    /// assigned no entry. The guest can read the number in `IBS_CTL`, but cannot change the number.
    pub lvt_entry: Option<u8>,
    /// A write of `IBS_FETCH_CTL` does not reset the count of fetches if fetch sampling is enabled before and after the
    /// write. Families 16h to 18h behave in this way.
    pub fetch_count_kept: bool,
    /// The guest has to set the period to 0 before the guest disables sampling (erratum 420 of family 10h).
    /// [`Written::illegal`](crate::Written::illegal) reports a write that disables sampling while the period is not 0.
    pub period_before_stop: bool,
}

impl IbsConfiguration {
    /// Instruction-based sampling of Zen 2 and Zen 3, without errata.
    pub const ZEN_3: Self = Self {
        capabilities: 0x3FF,
        lvt_entry: Some(0),
        fetch_count_kept: false,
        period_before_stop: false,
    };
    /// Instruction-based sampling of Zen 4.
    pub const ZEN_4: Self = Self { capabilities: 0xBFF, ..Self::ZEN_3 };
    /// Instruction-based sampling of Zen 5: the features of Zen 4, a filter by the latency of loads, and the size of
    /// the accessed page.
    pub const ZEN_5: Self = Self { capabilities: 0x8_1BFF, ..Self::ZEN_3 };
    /// Instruction-based sampling of Zen 6: the features of Zen 5, a second control register for fetch sampling, and a
    /// second control register for op sampling. The memory profiler (bit 18) is not modeled.
    pub const ZEN_6: Self = Self { capabilities: 0x9_FBFF, ..Self::ZEN_3 };
    /// Instruction-based sampling of family 10h.
    pub const FAMILY_10H: Self =
        Self { capabilities: 0b111, period_before_stop: true, ..Self::ZEN_3 };

    pub(crate) const fn has(&self, bit: u32) -> bool {
        self.capabilities >> bit & 1 != 0
    }

    /// Returns the value of `IBS_CTL`.
    pub(crate) fn entry(&self) -> u64 {
        self.lvt_entry.map_or(0, |entry| 1 << 8 | u64::from(entry & 0xF))
    }

    /// Returns the PMU's leaf with the bits that declare the sampling. The extended entries of the local vector table
    /// belong to the sampling, too.
    pub(crate) fn declared(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        match leaf.leaf {
            0x8000_0000 => leaf.at_least(leaf.at_least.max(0x8000_001B)),
            // ECX: 3 ExtApicSpace, 10 IBS.
            0x8000_0001 => leaf.bits(ECX, 1 << 3 | 1 << 10, 1 << 3 | 1 << 10),
            0x8000_001B => leaf.bits(EAX, u32::MAX, self.capabilities),
            _ => leaf,
        }
    }
}
