//! The formats of precise records.

/// Format of a processor's precise records.
///
/// For PEBS with a Debug Store, bits 11:8 of `IA32_PERF_CAPABILITIES` give the number of the format. In formats 4 and
/// later, bit 14 (`PEBS_BASELINE`) tells whether the records are adaptive. If bit 14 is clear, each record consists of
/// the basic group only. CPUID leaf 0x23 declares architectural PEBS. See SDM vol. 3B, "Processor Event Based Sampling
/// (PEBS) Facility".
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
    /// Records in 32-bit words, on a processor without DTES64: flags, the next instruction's address, and registers.
    Bits32,
    /// Format 0: flags, the next instruction's address, and registers.
    Core,
    /// Format 1: the contents of format 0, the overflow status, and the address, source and latency of a memory access.
    Nehalem,
    /// Format 2: the contents of format 1, the sampled instruction's own address, and the transaction's state (TSX).
    Haswell,
    /// Format 3: the contents of format 2, and the time-stamp counter. Instead of the overflow status, a record has the
    /// counters that caused the record.
    Skylake,
    /// Formats 4 to 6: `MSR_PEBS_DATA_CFG` selects the groups of fields for the records of all counters.
    Adaptive,
    /// Architectural PEBS: each counter's CFG_C register selects the groups of fields for the records of this counter.
    /// A record has one or more fragments.
    Architectural,
}

impl PreciseFormat {
    /// Returns the format that has this number in bits 11:8 of `IA32_PERF_CAPABILITIES`, for a Debug Store with 64-bit
    /// words. Returns `None` if this crate does not know the number.
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

    /// Returns the size of a precise record of this format in bytes, or `None` if the size varies between records.
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

    /// Returns whether precise records of this format have the address of the sampled instruction itself. Records of
    /// other formats only have the address of the next instruction.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseFormat;
    /// assert!(PreciseFormat::Haswell.has_own_address() && !PreciseFormat::Nehalem.has_own_address());
    /// ```
    pub const fn has_own_address(self) -> bool {
        !matches!(self, Self::Bits32 | Self::Core | Self::Nehalem)
    }
}
