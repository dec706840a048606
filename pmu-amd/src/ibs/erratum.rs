//! Deviations of single families of processors.

use pmu_core::Snapshot;

/// An erratum of instruction-based sampling (IBS): a difference between the processor and the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum IbsErratum {
    /// Stopping op sampling needs two writes: the first sets the period to 0 while the unit is still enabled (erratum
    /// 420 of family 10h).
    PeriodBeforeStop,
    /// A write of `IBS_FETCH_CTL` that enables the unit does not reset the count of fetches (families 16h, 17h and
    /// 18h). So the driver first writes the register without the enable bit.
    FetchCountKept,
    /// A fetch sample may have the address 0. The sample is dropped (erratum 1197 of family 19h).
    FetchWithoutAddress,
    /// `IBS_OP_DATA2` and the bit for a miss of the second-level cache are invalid in two cases (erratum 1293 of family
    /// 19h): the op is a software prefetch, or the access hit a miss address buffer that was already allocated.
    PrefetchWithoutSource,
    /// The recorded state of a cache line is invalid if another cache delivered the line (family 19h, models 00h–0Fh
    /// and 20h–5Fh).
    LineStateInvalid,
    /// The latency filter works only together with the filter for misses of the third-level cache (erratum 1606 of
    /// family 1Ah). The revision guide of models 00h–0Fh lists the erratum. Linux perf applies it to all models of
    /// Zen 5, and so does this crate.
    LatencyFilterNeedsL3Miss,
}

impl IbsErratum {
    /// All errata of this type.
    pub const ALL: [Self; 6] = [
        Self::PeriodBeforeStop,
        Self::FetchCountKept,
        Self::FetchWithoutAddress,
        Self::PrefetchWithoutSource,
        Self::LineStateInvalid,
        Self::LatencyFilterNeedsL3Miss,
    ];
}

/// The models of a family that have an erratum: family, first model, last model.
type Row = (u16, u8, u8, IbsErratum);

const ROWS: [Row; 11] = [
    (0x10, 0x00, 0xFF, IbsErratum::PeriodBeforeStop),
    (0x16, 0x00, 0xFF, IbsErratum::FetchCountKept),
    (0x17, 0x00, 0xFF, IbsErratum::FetchCountKept),
    (0x18, 0x00, 0xFF, IbsErratum::FetchCountKept),
    (0x19, 0x00, 0x0F, IbsErratum::FetchWithoutAddress),
    (0x19, 0x00, 0x0F, IbsErratum::PrefetchWithoutSource),
    (0x19, 0x00, 0x0F, IbsErratum::LineStateInvalid),
    (0x19, 0x20, 0x5F, IbsErratum::LineStateInvalid),
    (0x1A, 0x00, 0x2F, IbsErratum::LatencyFilterNeedsL3Miss),
    (0x1A, 0x40, 0x4F, IbsErratum::LatencyFilterNeedsL3Miss),
    (0x1A, 0x60, 0x7F, IbsErratum::LatencyFilterNeedsL3Miss),
];

/// The errata of one processor's instruction-based sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsErrata(u8);

impl IbsErrata {
    /// No erratum.
    pub const NONE: Self = Self(0);

    /// Returns the errata of a processor's instruction-based sampling.
    pub fn of(processor: &Snapshot) -> Self {
        let (family, model) = (processor.family(), processor.model());
        let has = |row: &&Row| row.0 == family && (row.1..=row.2).contains(&model);
        ROWS.iter().filter(has).fold(Self::NONE, |errata, row| errata.with(row.3))
    }

    /// Returns a copy of this set of errata, with `erratum` added.
    pub const fn with(self, erratum: IbsErratum) -> Self {
        Self(self.0 | 1 << erratum as u8)
    }

    /// Returns whether this set of errata contains `erratum`.
    pub const fn has(self, erratum: IbsErratum) -> bool {
        self.0 >> erratum as u8 & 1 != 0
    }
}
