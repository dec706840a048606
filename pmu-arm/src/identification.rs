//! Identification registers, and the counters that they declare.

use crate::registers::{DebugFeatures, EVENT_COUNTERS, Mdcr, Pmcr, Pmmir};

/// The registers by which a processor declares its counters, as plain values: a test, or a kernel with register
/// accesses of its own, fills them in. `NativeRegisters::identify` (feature `native`) reads them.
///
/// ```
/// use pmu_arm::Identification;
/// // Neoverse N1 in QEMU, with the kernel at EL1.
/// let processor = Identification {
///     id_aa64dfr0_el1: 0x1_1030_5408,
///     pmcr_el0: 0x4103_3000,
///     pmceid0_el0: 0x0002_0101,
///     ..Identification::NONE
/// };
/// assert_eq!((processor.version(), processor.event_counters()), (4, 6));
/// assert!(processor.has_event(0x08) && !processor.has_event(0x21)); // INST_RETIRED, and no BR_RETIRED
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Identification {
    /// `ID_AA64DFR0_EL1`.
    pub id_aa64dfr0_el1: u64,
    /// `PMCR_EL0`.
    pub pmcr_el0: u64,
    /// `PMCEID0_EL0`.
    pub pmceid0_el0: u64,
    /// `PMCEID1_EL0`.
    pub pmceid1_el0: u64,
    /// `PMMIR_EL1`; 0 before FEAT_PMUv3p4, where the register does not exist.
    pub pmmir_el1: u64,
    /// `MDCR_EL2` of a kernel at EL2; `None` of a kernel at EL1.
    pub mdcr_el2: Option<u64>,
}

/// PMUVer: an implementation defined extension, which has none of the registers.
const IMPLEMENTATION_DEFINED: u8 = 0xF;

// PMUVer from which on a feature is mandatory, or possible.
const V3P1: u8 = 4;
const V3P4: u8 = 5;
const V3P5: u8 = 6;
const V3P8: u8 = 8;

impl Identification {
    /// A processor that declares nothing.
    pub const NONE: Self = Self {
        id_aa64dfr0_el1: 0,
        pmcr_el0: 0,
        pmceid0_el0: 0,
        pmceid1_el0: 0,
        pmmir_el1: 0,
        mdcr_el2: None,
    };

    /// Returns `ID_AA64DFR0_EL1.PMUVer`: 1 for Armv8.0, 4 for 8.1, 5 for 8.4, 6 for 8.5, 7 for 8.7, 8 for 8.8, 9 for
    /// 8.9. 0 stands for no counters, and 0xF for counters that the architecture does not define.
    pub const fn version(&self) -> u8 {
        DebugFeatures::from_bits(self.id_aa64dfr0_el1).pmu_version()
    }

    /// Returns whether the processor has the registers of PMUv3, in any version.
    pub const fn has_counters(&self) -> bool {
        !matches!(self.version(), 0 | IMPLEMENTATION_DEFINED)
    }

    /// Returns the number of event counters that the kernel can use, of the [first 16](EVENT_COUNTERS). On a kernel at
    /// EL2, these are the counters below `MDCR_EL2.HPMN`: `PMCR_EL0.E` does not enable the others.
    ///
    /// ```
    /// # use pmu_arm::Identification;
    /// let guest = Identification { id_aa64dfr0_el1: 0x100, pmcr_el0: 6 << 11, ..Identification::NONE };
    /// let host = Identification { mdcr_el2: Some(4), ..guest }; // two counters are enabled by MDCR_EL2.HPME
    /// assert_eq!([guest.event_counters(), host.event_counters()], [6, 4]);
    /// ```
    pub const fn event_counters(&self) -> usize {
        let declared = Pmcr::from_bits(self.pmcr_el0).event_counters();
        let usable = match self.mdcr_el2 {
            Some(mdcr) => Mdcr::from_bits(mdcr).guest_counters(),
            None => declared,
        };
        let count = if usable < declared { usable } else { declared } as usize;
        if count < EVENT_COUNTERS { count } else { EVENT_COUNTERS }
    }

    /// Returns whether the event counters have 64 bits (FEAT_PMUv3p5). They have 32 bits otherwise.
    pub const fn has_long_counters(&self) -> bool {
        self.has_counters() && self.version() >= V3P5
    }

    /// Returns whether the processor has `PMMIR_EL1` (FEAT_PMUv3p4).
    pub const fn has_pmmir(&self) -> bool {
        self.has_counters() && self.version() >= V3P4
    }

    /// Returns whether an event's number can have 16 bits (FEAT_PMUv3p1). It has ten bits otherwise.
    pub(crate) const fn has_long_numbers(&self) -> bool {
        self.version() >= V3P1
    }

    /// Returns the number of bits of an event's threshold (FEAT_PMUv3_TH); 0: there are no thresholds.
    pub(crate) const fn threshold_width(&self) -> u8 {
        if self.version() < V3P8 { 0 } else { Pmmir::from_bits(self.pmmir_el1).threshold_width() }
    }

    /// Returns whether `PMCEID0_EL0` and `PMCEID1_EL0` declare a common event. They have bits for the numbers 0 to 0x3F
    /// and 0x4000 to 0x403F. For any other number, the result is `false`.
    ///
    /// ```
    /// # use pmu_arm::Identification;
    /// /// Returns the best event of cache misses that a processor declares: LL_CACHE_MISS_RD, or L2D_CACHE_REFILL.
    /// fn misses(processor: &Identification) -> Option<u16> {
    ///     [0x37, 0x17].into_iter().find(|number| processor.has_event(*number))
    /// }
    /// # assert_eq!(misses(&Identification::NONE), None);
    /// ```
    pub const fn has_event(&self, number: u16) -> bool {
        let word = if number & 0x20 == 0 { self.pmceid0_el0 } else { self.pmceid1_el0 };
        let half = match number {
            0..0x40 => word,
            0x4000..0x4040 if self.has_long_numbers() => word >> 32,
            _ => 0,
        };
        self.has_counters() && half >> (number & 0x1F) & 1 != 0
    }
}
