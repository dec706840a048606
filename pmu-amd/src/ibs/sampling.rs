//! Requests: the samples, their period and their filters.

use core::fmt;

use crate::ibs::capabilities::IbsCapabilities;
use crate::ibs::erratum::IbsErratum;
use crate::ibs::registers::{IbsFetchCtl, IbsFetchCtl2, IbsOpCtl, IbsOpCtl2};
use crate::ibs::unit::{IbsKind, IbsUnit};

/// A request to sample fetches or ops, with a period and filters.
///
/// By default, a request includes samples of user mode and of the kernel. [`IbsUnit::check`] says whether a processor
/// supports the request.
///
/// ```
/// use pmu_amd::ibs::IbsSampling;
/// // One op of user mode in 400,000, and of these only ops that missed the third-level cache.
/// let sampling = IbsSampling::ops(400_000).at(true, false).l3_misses_only();
/// # let _ = sampling;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsSampling {
    kind: IbsKind,
    period: u32,
    count_ops: bool,
    user: bool,
    kernel: bool,
    l3_miss_only: bool,
    latency: u16,
    streaming_stores_only: bool,
    physical_addresses: bool,
}

impl IbsSampling {
    const fn new(kind: IbsKind, period: u32, count_ops: bool) -> Self {
        Self {
            kind,
            period,
            count_ops,
            user: true,
            kernel: true,
            l3_miss_only: false,
            latency: 0,
            streaming_stores_only: false,
            physical_addresses: false,
        }
    }

    /// Creates a request to sample one fetch per `period` completed fetches. The period is a multiple of 16, from 16 to
    /// 1,048,560.
    pub const fn fetches(period: u32) -> Self {
        Self::new(IbsKind::Fetch, period, false)
    }

    /// Creates a request to sample one op per `period` dispatched ops. The period is a multiple of 16, from 144 to
    /// 1,048,560. If the processor supports [wide periods](IbsCapabilities::wide_period), the longest period is
    /// 134,217,712.
    ///
    /// In each period, the processor begins to count ops at a random number from 0 to 127, not at 0. So the mean
    /// distance between two samples is about 64 ops shorter than `period`.
    pub const fn ops(period: u32) -> Self {
        Self::new(IbsKind::Op, period, true)
    }

    /// Creates a request to sample one op per `period` cycles. `period` has the same limits as in [`ops`](Self::ops).
    pub const fn cycles(period: u32) -> Self {
        Self::new(IbsKind::Op, period, false)
    }

    /// Selects the sampled privilege levels. If `user` is `true`, levels above 0 are sampled. If `kernel` is `true`,
    /// level 0 is sampled.
    ///
    /// If the processor lacks the [filter](IbsCapabilities::half_filter) for the kernel and user mode, the processor
    /// samples all levels. The driver then drops the samples that were not requested, and
    /// [counts](crate::ibs::IbsMemory::dropped) the dropped samples.
    pub const fn at(self, user: bool, kernel: bool) -> Self {
        Self { user, kernel, ..self }
    }

    /// Samples only fetches or ops that missed the third-level cache. The samples are not evenly spaced: if the op at
    /// the end of a period did not miss, the processor begins a new period without a sample.
    pub const fn l3_misses_only(self) -> Self {
        Self { l3_miss_only: true, ..self }
    }

    /// Samples only fetches or loads that took more than `cycles` cycles. `cycles` is a multiple of 128. The range is
    /// 128 to 2,048 for loads, and 128 to 1,920 for fetches.
    pub const fn slower_than(self, cycles: u16) -> Self {
        Self { latency: cycles, ..self }
    }

    /// Samples only streaming stores.
    pub const fn streaming_stores_only(self) -> Self {
        Self { streaming_stores_only: true, ..self }
    }

    /// Adds physical addresses to the samples. By default, samples have no physical addresses. So a kernel can show the
    /// samples to unprivileged readers.
    pub const fn with_physical_addresses(self) -> Self {
        Self { physical_addresses: true, ..self }
    }

    /// Returns whether physical addresses are requested for the samples.
    pub const fn physical_addresses(&self) -> bool {
        self.physical_addresses
    }

    /// Returns whether samples of privilege levels above 0 are requested.
    pub const fn user(&self) -> bool {
        self.user
    }

    /// Returns whether samples of privilege level 0 are requested.
    pub const fn kernel(&self) -> bool {
        self.kernel
    }

    /// Returns the number of cycles that a sampled load or fetch exceeds, or 0.
    pub(crate) const fn latency(&self) -> u16 {
        self.latency
    }
}

/// Reason why a processor's sampling unit refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IbsSamplingError {
    /// The request is for ops and the unit samples fetches, or the request is for fetches and the unit samples ops.
    OtherUnit,
    /// The period is not a multiple of 16 from `min` to `max`.
    Period {
        /// Shortest period.
        min: u32,
        /// Longest period.
        max: u32,
    },
    /// The unit can count cycles, but not dispatched ops.
    CountsCyclesOnly,
    /// The unit has no filter for misses of the third-level cache.
    NoL3MissFilter,
    /// The unit has no filter for latencies.
    NoLatencyFilter,
    /// The latency is not a multiple of 128 from 128 to `max`.
    Latency {
        /// Highest threshold, in cycles.
        max: u16,
    },
    /// The latency filter of this processor works only together with the filter for misses of the third-level cache
    /// ([`LatencyFilterNeedsL3Miss`](IbsErratum::LatencyFilterNeedsL3Miss)).
    LatencyNeedsL3Miss,
    /// The unit has no filter for streaming stores.
    NoStreamingStoreFilter,
    /// The request selects neither user mode nor kernel mode.
    NoPrivilegeLevel,
}

impl fmt::Display for IbsSamplingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherUnit => f.write_str("the request is for the other kind of sampling unit"),
            Self::Period { min, max } => {
                write!(f, "the period is not a multiple of 16 from {min} to {max}")
            }
            Self::CountsCyclesOnly => f.write_str("the processor counts cycles, not ops"),
            Self::NoL3MissFilter => f.write_str("the processor cannot sample L3 misses only"),
            Self::NoLatencyFilter => f.write_str("the processor cannot filter by latency"),
            Self::Latency { max } => {
                write!(f, "the latency is not a multiple of 128 from 128 to {max}")
            }
            Self::LatencyNeedsL3Miss => {
                f.write_str("the processor filters by latency only among L3 misses")
            }
            Self::NoStreamingStoreFilter => {
                f.write_str("the processor cannot sample streaming stores only")
            }
            Self::NoPrivilegeLevel => f.write_str("no privilege level is to be sampled"),
        }
    }
}

impl core::error::Error for IbsSamplingError {}

/// The values of a unit's control registers for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlValues {
    /// Value of `IBS_FETCH_CTL` or `IBS_OP_CTL`, with the enable bit set.
    pub control: u64,
    /// Value of `IBS_FETCH_CTL2` or `IBS_OP_CTL2`. The bit that disables the unit is 0. If the processor lacks the
    /// register, the whole value is 0.
    pub control2: u32,
}

/// The shortest periods. The count of ops or cycles begins at a random number below 0x80, so an op is tagged up to 0x7F
/// early (PPR, `IBS_OP_CTL`).
const SHORTEST_FETCH: u32 = 0x10;
const SHORTEST_OP: u32 = 0x90;

const LONGEST_20_BITS: u32 = 0xF_FFF0;
const LONGEST_27_BITS: u32 = 0x7FF_FFF0;

const LATENCY_STEP: u16 = 128;

impl IbsUnit {
    /// Checks that this unit supports the request `sampling`.
    ///
    /// ```
    /// use pmu_amd::ibs::{IbsKind, IbsSampling, IbsSamplingError, IbsUnit};
    /// # use pmu_core::{CpuidDump, Snapshot};
    /// # let dump = CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x00000001 0x00: eax=0x00a20f12 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    /// #         0x80000000 0x00: eax=0x8000001b ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00000400 edx=0x00000000
    /// #         0x8000001b 0x00: eax=0x000003ff ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// # )?;
    /// # let zen_3 = Snapshot::capture(&dump);
    /// let ops = IbsUnit::of(&zen_3, IbsKind::Op).ok_or("no op sampling")?;
    /// assert_eq!(ops.check(&IbsSampling::ops(400_000)), Ok(()));
    /// assert_eq!(
    ///     ops.check(&IbsSampling::ops(100)),
    ///     Err(IbsSamplingError::Period { min: 144, max: 134_217_712 }),
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Any [`IbsSamplingError`].
    pub fn check(&self, sampling: &IbsSampling) -> Result<(), IbsSamplingError> {
        self.control_values(sampling).map(drop)
    }

    /// Returns the values of the unit's control registers for a request.
    pub(crate) fn control_values(
        &self,
        sampling: &IbsSampling,
    ) -> Result<ControlValues, IbsSamplingError> {
        let can = self.capabilities();
        if sampling.kind != self.kind() {
            return Err(IbsSamplingError::OtherUnit);
        }
        if !sampling.user && !sampling.kernel {
            return Err(IbsSamplingError::NoPrivilegeLevel);
        }
        self.check_period(sampling.period)?;
        if sampling.count_ops && !can.counts_ops() {
            return Err(IbsSamplingError::CountsCyclesOnly);
        }
        if sampling.l3_miss_only && !can.l3_miss_only() {
            return Err(IbsSamplingError::NoL3MissFilter);
        }
        if sampling.latency != 0 {
            self.check_latency(sampling)?;
        }
        let stores = self.kind() == IbsKind::Op && can.control2() && can.streaming_stores();
        if sampling.streaming_stores_only && !stores {
            return Err(IbsSamplingError::NoStreamingStoreFilter);
        }
        Ok(match self.kind() {
            IbsKind::Fetch => fetch_values(sampling, can),
            IbsKind::Op => op_values(sampling, can),
        })
    }

    fn check_period(&self, period: u32) -> Result<(), IbsSamplingError> {
        let (min, max) = match self.kind() {
            IbsKind::Fetch => (SHORTEST_FETCH, LONGEST_20_BITS),
            IbsKind::Op if self.capabilities().wide_period() => (SHORTEST_OP, LONGEST_27_BITS),
            IbsKind::Op => (SHORTEST_OP, LONGEST_20_BITS),
        };
        if (min..=max).contains(&period) && period.is_multiple_of(16) {
            Ok(())
        } else {
            Err(IbsSamplingError::Period { min, max })
        }
    }

    fn check_latency(&self, sampling: &IbsSampling) -> Result<(), IbsSamplingError> {
        let can = self.capabilities();
        let (exists, max) = match self.kind() {
            IbsKind::Fetch => (can.control2() && can.fetch_latency_filter(), 15 * LATENCY_STEP),
            IbsKind::Op => (can.load_latency_filter(), 16 * LATENCY_STEP),
        };
        if !exists {
            Err(IbsSamplingError::NoLatencyFilter)
        } else if !sampling.latency.is_multiple_of(LATENCY_STEP) || sampling.latency > max {
            Err(IbsSamplingError::Latency { max })
        } else if self.has(IbsErratum::LatencyFilterNeedsL3Miss) && !sampling.l3_miss_only {
            Err(IbsSamplingError::LatencyNeedsL3Miss)
        } else {
            Ok(())
        }
    }
}

fn fetch_values(sampling: &IbsSampling, can: IbsCapabilities) -> ControlValues {
    let control = IbsFetchCtl::new()
        .with_max_count((sampling.period >> 4) as u16)
        .with_random(true)
        .with_l3_miss_only(sampling.l3_miss_only)
        .with_enable(true);
    let excludes = can.control2() && can.half_filter();
    let control2 = IbsFetchCtl2::new()
        .with_latency_filter((sampling.latency / LATENCY_STEP) as u8 & 0xF)
        .with_exclude_high_half(excludes && !sampling.kernel)
        .with_exclude_low_half(excludes && !sampling.user);
    ControlValues { control: control.into_bits(), control2: control2.into_bits() as u32 }
}

fn op_values(sampling: &IbsSampling, can: IbsCapabilities) -> ControlValues {
    let threshold = (sampling.latency / LATENCY_STEP).saturating_sub(1);
    let control = IbsOpCtl::new()
        .with_max_count((sampling.period >> 4) as u16)
        .with_max_count_high((sampling.period >> 20) as u8 & 0x7F)
        .with_count_ops(sampling.count_ops)
        .with_l3_miss_only(sampling.l3_miss_only)
        .with_latency_threshold(threshold as u8 & 0xF)
        .with_latency_filter(sampling.latency != 0)
        .with_enable(true);
    let excludes = can.control2() && can.half_filter();
    let control2 = IbsOpCtl2::new()
        .with_streaming_stores_only(sampling.streaming_stores_only)
        .with_exclude_high_half(excludes && !sampling.kernel)
        .with_exclude_low_half(excludes && !sampling.user);
    ControlValues { control: control.into_bits(), control2: control2.into_bits() as u32 }
}
