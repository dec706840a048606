//! The formats of precise records.

/// Format of a processor's precise records.
///
/// `IA32_PERF_CAPABILITIES` numbers the formats of the Debug Store in bits 11:8. From format 4 on, the records are
/// adaptive if bit 14 of the register is set (`PEBS_BASELINE`), and otherwise consist of the basic group. CPUID leaf
/// 0x23 declares architectural PEBS. (SDM vol. 3B, "Processor Event Based Sampling (PEBS) Facility".)
///
/// ```
/// use pmu_intel::precise::PreciseFormat;
/// assert_eq!(PreciseFormat::of_number(1), Some(PreciseFormat::Nehalem));
/// assert_eq!(PreciseFormat::Nehalem.record_size(), Some(0xB0));
/// assert_eq!(PreciseFormat::Adaptive.record_size(), None); // Each record tells its own size.
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PreciseFormat {
    /// Records of 32-bit words, of a Debug Store without DTES64: flags, the next instruction's address, and registers.
    Bits32,
    /// Format 0: flags, the next instruction's address, and registers.
    Core,
    /// Format 1: as format 0, with the overflow status, and with the access to memory.
    Nehalem,
    /// Format 2: as format 1, with the instruction's own address, and with transactions.
    Haswell,
    /// Format 3: as format 2, with the time-stamp counter. In place of the overflow status, a record has the counters
    /// for which it was written.
    Skylake,
    /// Formats 4 to 6: groups that are chosen by `MSR_PEBS_DATA_CFG`.
    Adaptive,
    /// Architectural PEBS: groups that are chosen for each counter, in one or more fragments.
    Architectural,
}

impl PreciseFormat {
    /// Returns the format that has this number in bits 11:8 of `IA32_PERF_CAPABILITIES`, on a processor whose Debug
    /// Store has 64-bit words. Returns `None` if the number is not known.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseFormat;
    /// assert_eq!(PreciseFormat::of_number(3), Some(PreciseFormat::Skylake));
    /// assert_eq!(PreciseFormat::of_number(5), Some(PreciseFormat::Adaptive));
    /// assert_eq!(PreciseFormat::of_number(15), None);
    /// ```
    pub const fn of_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Core),
            1 => Some(Self::Nehalem),
            2 => Some(Self::Haswell),
            3 => Some(Self::Skylake),
            4..=6 => Some(Self::Adaptive),
            _ => None,
        }
    }

    /// Returns the size of each record in bytes, or `None` if records of the format have different sizes.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseFormat;
    /// assert_eq!(PreciseFormat::Core.record_size(), Some(144)); // 18 words
    /// assert_eq!(PreciseFormat::Architectural.record_size(), None);
    /// ```
    pub const fn record_size(self) -> Option<usize> {
        match self {
            Self::Bits32 => Some(40),
            Self::Core => Some(0x90),
            Self::Nehalem => Some(0xB0),
            Self::Haswell => Some(0xC0),
            Self::Skylake => Some(0xC8),
            Self::Adaptive | Self::Architectural => None,
        }
    }

    /// Returns whether a record has the address of the sampled instruction itself. Other records only have the address
    /// of the instruction that is executed next.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseFormat;
    /// assert!(PreciseFormat::Haswell.has_own_address() && !PreciseFormat::Nehalem.has_own_address());
    /// ```
    pub const fn has_own_address(self) -> bool {
        !matches!(self, Self::Bits32 | Self::Core | Self::Nehalem)
    }
}
