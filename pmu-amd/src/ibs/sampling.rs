//! Requests for sampled fetches and ops, as events.

use pmu_core::Event;
use pmu_core::precise::Precision;
use pmu_core::registers::EventSelect;

use crate::ibs::registers::{IbsFetchCtl, IbsFetchCtl2, IbsOpCtl, IbsOpCtl2};
use crate::ibs::unit::{IbsErratum, IbsKind, IbsUnit, IbsUnits};

/// Fetches or ops to sample, with filters: the request of an [`Event`] for a sampling unit.
///
/// The [event](Self::event) is an ordinary one: it has a [period](Event::every) and privilege levels, is grouped,
/// rotates, and belongs to a processor or to a thread. Its count is the number of fetches, ops or cycles.
/// It asks for precise samples: [`Sample::instruction`](pmu_core::Sample::instruction) has what the processor recorded.
///
/// ```
/// use pmu_amd::ibs::IbsSampling;
/// // One op of user mode in 400,000, and of these only ops that missed the third-level cache.
/// let misses = IbsSampling::ops().l3_misses_only().event().user_only().every(400_000);
/// # let _ = misses;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsSampling {
    kind: IbsKind,
    count_ops: bool,
    l3_miss_only: bool,
    latency: u16,
    streaming_stores_only: bool,
    physical_addresses: bool,
}

const LATENCY_STEP: u16 = 128;

// Bits of the event's select.
const OP: u64 = 1 << 0;
const COUNT_OPS: u64 = 1 << 1;
const L3_MISS_ONLY: u64 = 1 << 2;
const STREAMING_STORES_ONLY: u64 = 1 << 3;
const PHYSICAL: u64 = 1 << 4;
/// The latency in steps, in the bits of a unit mask.
const LATENCY: u32 = 8;

impl IbsSampling {
    const fn new(kind: IbsKind, count_ops: bool) -> Self {
        Self {
            kind,
            count_ops,
            l3_miss_only: false,
            latency: 0,
            streaming_stores_only: false,
            physical_addresses: false,
        }
    }

    /// Samples completed fetches. The processor counts fetches in sixteens, and begins at a random one of the first
    /// sixteen: each sample comes up to 15 fetches early or late, and so does the next one after each stop.
    pub const fn fetches() -> Self {
        Self::new(IbsKind::Fetch, false)
    }

    /// Samples dispatched ops. In each period of more than 143 ops, the processor begins to count at a random number
    /// from 0 to 127, not at 0: the mean distance between two samples is about 64 ops shorter than the period.
    pub const fn ops() -> Self {
        Self::new(IbsKind::Op, true)
    }

    /// Samples ops, with a period in cycles.
    pub const fn cycles() -> Self {
        Self::new(IbsKind::Op, false)
    }

    /// Samples only fetches or ops that missed the third-level cache. The samples are not evenly spaced: if the op at
    /// the end of a period did not miss, the processor begins a new period without a sample, which the event's count
    /// lacks.
    #[must_use]
    pub const fn l3_misses_only(self) -> Self {
        Self { l3_miss_only: true, ..self }
    }

    /// Samples only fetches or loads that took more than `cycles` cycles. `cycles` is a multiple of 128. The range is
    /// 128 to 2,048 for loads, and 128 to 1,920 for fetches.
    #[must_use]
    pub const fn slower_than(self, cycles: u16) -> Self {
        Self { latency: cycles, ..self }
    }

    /// Samples only streaming stores.
    #[must_use]
    pub const fn streaming_stores_only(self) -> Self {
        Self { streaming_stores_only: true, ..self }
    }

    /// Adds physical addresses to the samples. By default, samples have no physical addresses. So a kernel can show the
    /// samples to unprivileged readers.
    #[must_use]
    pub const fn with_physical_addresses(self) -> Self {
        Self { physical_addresses: true, ..self }
    }

    /// Returns the event. It has no period yet, and cannot be opened without one. A latency that is not a multiple of
    /// 128, or above 2,048, is refused as the event is opened.
    pub const fn event(self) -> Event {
        Event::raw(self.select()).precise(Precision::ZeroSkidRequested)
    }

    /// Returns the select that stands for the request.
    pub(crate) const fn select(self) -> EventSelect {
        const fn when(set: bool, bit: u64) -> u64 {
            if set { bit } else { 0 }
        }
        let steps = if self.latency.is_multiple_of(LATENCY_STEP) && self.latency <= 0x800 {
            self.latency / LATENCY_STEP
        } else {
            0xFF // No processor has this threshold.
        };
        EventSelect::from_bits(
            EventSelect::OF_UNIT
                | when(matches!(self.kind, IbsKind::Op), OP)
                | when(self.count_ops, COUNT_OPS)
                | when(self.l3_miss_only, L3_MISS_ONLY)
                | when(self.streaming_stores_only, STREAMING_STORES_ONLY)
                | when(self.physical_addresses, PHYSICAL)
                | (steps as u64) << LATENCY,
        )
    }

    /// Returns the request for which a select stands.
    pub(crate) const fn of_select(select: u32) -> Self {
        Self {
            kind: if select as u64 & OP != 0 { IbsKind::Op } else { IbsKind::Fetch },
            count_ops: select as u64 & COUNT_OPS != 0,
            l3_miss_only: select as u64 & L3_MISS_ONLY != 0,
            latency: (select >> LATENCY & 0xFF) as u16 * LATENCY_STEP,
            streaming_stores_only: select as u64 & STREAMING_STORES_ONLY != 0,
            physical_addresses: select as u64 & PHYSICAL != 0,
        }
    }

    /// Returns the kind of unit that is to sample.
    pub const fn kind(self) -> IbsKind {
        self.kind
    }

    /// Returns whether a unit samples by a number of ops, and not of cycles or fetches.
    pub(crate) const fn counts_ops(self) -> bool {
        self.count_ops
    }

    pub(crate) const fn physical_addresses(self) -> bool {
        self.physical_addresses
    }

    /// Returns the number of cycles that a sampled load or fetch exceeds, or 0.
    pub(crate) const fn latency(self) -> u16 {
        self.latency
    }
}

/// Reason why a processor's sampling units refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum IbsSamplingError {
    /// The processor has no such unit.
    #[error("the processor lacks the sampling unit")]
    NoUnit,
    /// The unit can count cycles, but not dispatched ops.
    #[error("the processor counts cycles, not ops")]
    CountsCyclesOnly,
    /// The unit has no filter for misses of the third-level cache.
    #[error("the processor cannot sample L3 misses only")]
    NoL3MissFilter,
    /// The unit has no filter for latencies.
    #[error("the processor cannot filter by latency")]
    NoLatencyFilter,
    /// The latency is not a multiple of 128 from 128 to `max`.
    #[error("the latency is not a multiple of 128 from 128 to {max}")]
    Latency {
        /// Highest threshold, in cycles.
        max: u16,
    },
    /// The latency filter of this processor works only together with the filter for misses of the third-level cache
    /// ([`LatencyFilterNeedsL3Miss`](IbsErratum::LatencyFilterNeedsL3Miss)).
    #[error("the processor filters by latency only among L3 misses")]
    LatencyNeedsL3Miss,
    /// The unit has no filter for streaming stores.
    #[error("the processor cannot sample streaming stores only")]
    NoStreamingStoreFilter,
}

/// The values of a unit's control registers for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlValues {
    /// Value of `IBS_FETCH_CTL` or `IBS_OP_CTL`, with the enable bit set, and without a period.
    pub control: u64,
    /// Value of `IBS_FETCH_CTL2` or `IBS_OP_CTL2`. The bit that disables the unit is 0. If the processor lacks the
    /// register, the whole value is 0.
    pub control2: u32,
}

impl IbsUnits {
    /// Checks that the processor's units support a request. An event whose request they refuse cannot be opened.
    ///
    /// ```
    /// use pmu_amd::ibs::{IbsSampling, IbsSamplingError, IbsUnits};
    /// # use pmu_core::x86::dump::CpuidDump;
    /// # use pmu_core::x86::Snapshot;
    /// # let dump = CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x00000001 0x00: eax=0x00a20f12 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    /// #         0x80000000 0x00: eax=0x8000001b ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00000400 edx=0x00000000
    /// #         0x8000001b 0x00: eax=0x000003ff ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// # )?;
    /// # let zen_3 = Snapshot::capture(&dump);
    /// let units = IbsUnits::of(&zen_3).ok_or("no sampling units")?;
    /// assert_eq!(units.check(&IbsSampling::ops()), Ok(()));
    /// let misses = units.check(&IbsSampling::ops().l3_misses_only());
    /// assert_eq!(misses, Err(IbsSamplingError::NoL3MissFilter));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Any [`IbsSamplingError`].
    pub fn check(&self, sampling: &IbsSampling) -> Result<(), IbsSamplingError> {
        self.get(sampling.kind).ok_or(IbsSamplingError::NoUnit)?.check(sampling)
    }
}

impl IbsUnit {
    fn check(&self, sampling: &IbsSampling) -> Result<(), IbsSamplingError> {
        let can = self.capabilities();
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
        Ok(())
    }

    fn check_latency(&self, sampling: &IbsSampling) -> Result<(), IbsSamplingError> {
        let can = self.capabilities();
        let (exists, max) = match self.kind() {
            // The field of fetches has the number of steps, that of ops one less.
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

    /// Returns the values of the unit's control registers for a request that the unit supports, at the privilege levels
    /// of the select.
    pub(crate) fn control_values(&self, select: u32) -> ControlValues {
        let (sampling, can) = (IbsSampling::of_select(select), self.capabilities());
        let levels = Levels::of(select);
        let excludes = can.control2() && can.half_filter();
        let (no_user, no_kernel) = (excludes && !levels.user, excludes && !levels.kernel);
        match self.kind() {
            IbsKind::Fetch => fetch_values(sampling, no_user, no_kernel),
            IbsKind::Op => op_values(sampling, no_user, no_kernel),
        }
    }

    /// Returns how the unit is programmed such that the sample comes after `remaining` events: exactly then where the
    /// count can be written, and otherwise up to 15 events later, or at the end of the shortest period. `whole` is the
    /// event's period: a filter that leaves a sample out lets the unit begin the programmed period again.
    pub(crate) fn programmed(&self, remaining: u32, whole: u32) -> Programmed {
        let shortest = match self.kind() {
            IbsKind::Fetch => SHORTEST_FETCH,
            IbsKind::Op => SHORTEST_OP,
        };
        if self.kind() == IbsKind::Op && self.capabilities().count_writable() {
            // The register holds the period in sixteens. The count, which has all bits, makes up for the rounding.
            let target = remaining.max(whole).max(shortest).next_multiple_of(16);
            Programmed { target, count: target - remaining }
        } else {
            Programmed { target: remaining.max(shortest).next_multiple_of(16), count: 0 }
        }
    }

    /// Returns the bits of the control register for a period and a count.
    pub(crate) fn period_bits(&self, Programmed { target, count }: Programmed) -> u64 {
        match self.kind() {
            IbsKind::Fetch => IbsFetchCtl::new()
                .with_max_count((target >> 4) as u16)
                .with_count((count >> 4) as u16)
                .into_bits(),
            IbsKind::Op => IbsOpCtl::new()
                .with_max_count((target >> 4) as u16)
                .with_max_count_high((target >> 20) as u8 & 0x7F)
                .with_count(count & 0x7FF_FFFF)
                .into_bits(),
        }
    }

    /// Returns the number of bits that count the events until a sample.
    pub(crate) const fn width(&self) -> u8 {
        match self.kind() {
            IbsKind::Op if self.capabilities().wide_period() => 27,
            IbsKind::Fetch | IbsKind::Op => 20,
        }
    }

    /// Returns the count in the control register. Ops and cycles are counted exactly, fetches in steps of 16.
    pub(crate) fn count(&self, control: u64) -> u32 {
        match self.kind() {
            IbsKind::Fetch => u32::from(IbsFetchCtl::from_bits(control).count()) << 4,
            IbsKind::Op => IbsOpCtl::from_bits(control).count(),
        }
    }
}

/// The privilege levels of a select.
#[derive(Clone, Copy)]
pub(crate) struct Levels {
    pub(crate) user: bool,
    pub(crate) kernel: bool,
}

impl Levels {
    pub(crate) const fn of(select: u32) -> Self {
        Self { user: select >> 16 & 1 != 0, kernel: select >> 17 & 1 != 0 }
    }

    /// Returns whether a sample at this address is of the levels. An unknown address is of both.
    pub(crate) const fn has(self, address: Option<u64>) -> bool {
        match address {
            // Without an address the level is unknown.
            None => self.user && self.kernel,
            Some(address) if address >> 63 != 0 => self.kernel,
            Some(_) => self.user,
        }
    }
}

fn fetch_values(sampling: IbsSampling, no_user: bool, no_kernel: bool) -> ControlValues {
    let control = IbsFetchCtl::new()
        .with_random(true)
        .with_l3_miss_only(sampling.l3_miss_only)
        .with_enable(true);
    let control2 = IbsFetchCtl2::new()
        .with_latency_filter((sampling.latency / LATENCY_STEP) as u8 & 0xF)
        .with_exclude_high_half(no_kernel)
        .with_exclude_low_half(no_user);
    ControlValues { control: control.into_bits(), control2: control2.into_bits() as u32 }
}

fn op_values(sampling: IbsSampling, no_user: bool, no_kernel: bool) -> ControlValues {
    // A value n of the field stands for 128 (n + 1) cycles.
    let threshold = (sampling.latency / LATENCY_STEP).saturating_sub(1);
    let control = IbsOpCtl::new()
        .with_count_ops(sampling.count_ops)
        .with_l3_miss_only(sampling.l3_miss_only)
        .with_latency_threshold(threshold as u8 & 0xF)
        .with_latency_filter(sampling.latency != 0)
        .with_enable(true);
    let control2 = IbsOpCtl2::new()
        .with_streaming_stores_only(sampling.streaming_stores_only)
        .with_exclude_high_half(no_kernel)
        .with_exclude_low_half(no_user);
    ControlValues { control: control.into_bits(), control2: control2.into_bits() as u32 }
}

/// The period of a unit, and the count with which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Programmed {
    pub(crate) target: u32,
    pub(crate) count: u32,
}

/// The shortest periods. The count of ops or cycles begins at a random number below 0x80, so an op is tagged up to 0x7F
/// early (PPR, `IBS_OP_CTL`).
const SHORTEST_FETCH: u32 = 0x10;
pub(crate) const SHORTEST_OP: u32 = 0x90;
