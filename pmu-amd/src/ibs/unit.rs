//! One unit that samples: fetches, or ops.

use pmu_core::x86::Snapshot;

use crate::counters::{AMD, HYGON};
use crate::ibs::registers::{
    IBS_FETCH_CTL, IBS_FETCH_CTL2, IBS_OP_CTL, IBS_OP_CTL2, IbsFetchCtl, IbsFetchCtl2, IbsOpCtl,
    IbsOpCtl2,
};

/// The operations that a sampling unit samples: fetches or ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IbsKind {
    /// Fetches of instruction bytes.
    Fetch,
    /// Ops: the operations into which the processor decodes instructions.
    Op,
}

/// The control registers of a unit, and the places of the bits that all units have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ControlRegisters {
    pub control: u32,
    pub enable: u64,
    pub valid: u64,
    /// Mask of the control register's period field. On a processor with erratum 420, a period of 0 means that the unit
    /// is stopped.
    pub period: u64,
    pub control2: u32,
    pub disable: u64,
}

static FETCH: ControlRegisters = ControlRegisters {
    control: IBS_FETCH_CTL,
    enable: IbsFetchCtl::new().with_enable(true).into_bits(),
    valid: IbsFetchCtl::new().with_valid(true).into_bits(),
    period: IbsFetchCtl::new().with_max_count(u16::MAX).into_bits(),
    control2: IBS_FETCH_CTL2,
    disable: IbsFetchCtl2::new().with_disable(true).into_bits(),
};

static OP: ControlRegisters = ControlRegisters {
    control: IBS_OP_CTL,
    enable: IbsOpCtl::new().with_enable(true).into_bits(),
    valid: IbsOpCtl::new().with_valid(true).into_bits(),
    period: IbsOpCtl::new().with_max_count(u16::MAX).with_max_count_high(0x7F).into_bits(),
    control2: IBS_OP_CTL2,
    disable: IbsOpCtl2::new().with_disable(true).into_bits(),
};

/// One unit of a processor's instruction-based sampling: the unit that samples fetches, or the unit that samples ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbsUnit {
    kind: IbsKind,
    capabilities: IbsCapabilities,
    errata: IbsErrata,
    /// The processor records an access's width, prefetch, second-level miss and TLB latency.
    access_details: bool,
}

impl IbsUnit {
    /// Returns the processor's sampling unit of the given kind; `None` if the processor has no such unit.
    pub(crate) fn of(processor: &Snapshot, kind: IbsKind) -> Option<Self> {
        let capabilities = IbsCapabilities::of(processor)?;
        let exists = match kind {
            IbsKind::Fetch => capabilities.fetch(),
            IbsKind::Op => capabilities.op(),
        };
        // BKDG of family 15h, models 30h–3Fh, and of family 16h: the first with these fields.
        let access_details = match processor.family() {
            ..=0x14 => false,
            0x15 => processor.model() >= 0x30,
            0x16.. => true,
        };
        exists.then(|| Self {
            kind,
            capabilities,
            errata: IbsErrata::of(processor),
            access_details,
        })
    }

    /// Returns what this unit samples: fetches or ops.
    pub const fn kind(&self) -> IbsKind {
        self.kind
    }

    /// Returns which features of instruction-based sampling the processor has.
    pub const fn capabilities(&self) -> IbsCapabilities {
        self.capabilities
    }

    /// Returns whether the unit's processor has the given erratum.
    pub const fn has(&self, erratum: IbsErratum) -> bool {
        self.errata.has(erratum)
    }

    /// Returns whether the records of accesses have a width, prefetches, misses of the second-level cache, and the
    /// latency of the TLB.
    pub(crate) const fn has_access_details(&self) -> bool {
        self.access_details
    }

    pub(crate) fn registers(&self) -> &'static ControlRegisters {
        match self.kind {
            IbsKind::Fetch => &FETCH,
            IbsKind::Op => &OP,
        }
    }
}

/// The sampling units of a processor.
///
/// A kernel stores one value per processor, for the [facility](crate::ibs::Ibs) of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbsUnits {
    fetch: Option<IbsUnit>,
    op: Option<IbsUnit>,
}

impl IbsUnits {
    /// Returns the processor's sampling units; `None` if the processor has none.
    ///
    /// ```
    /// use pmu_amd::ibs::{IbsKind, IbsUnits};
    /// # use pmu_core::x86::dump::CpuidDump;
    /// # use pmu_core::x86::Snapshot;
    /// # let dump = CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x00000001 0x00: eax=0x00a20f12 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    /// #         0x80000000 0x00: eax=0x8000001b ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00000400 edx=0x00000000
    /// #         0x8000001b 0x00: eax=0x000003ff ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// # )?;
    /// # let this_processor = Snapshot::capture(&dump);
    /// let units = IbsUnits::of(&this_processor).ok_or("no sampling units")?;
    /// assert!(units.get(IbsKind::Op).is_some_and(|ops| ops.capabilities().counts_ops()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(processor: &Snapshot) -> Option<Self> {
        let of = |kind| IbsUnit::of(processor, kind);
        let units = Self { fetch: of(IbsKind::Fetch), op: of(IbsKind::Op) };
        (units.fetch.is_some() || units.op.is_some()).then_some(units)
    }

    /// Returns the unit that samples fetches, or ops.
    pub const fn get(&self, kind: IbsKind) -> Option<&IbsUnit> {
        match kind {
            IbsKind::Fetch => self.fetch.as_ref(),
            IbsKind::Op => self.op.as_ref(),
        }
    }
}

/// The capabilities of a processor's instruction-based sampling: CPUID leaf 0x8000001B, EAX. Sources: APM vol. 3,
/// appendix E, for bits 11:0; PPR of family 1Ah and later for the higher bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsCapabilities(u32);

/// The leaf is valid.
const VALID: u32 = 1 << 0;

/// Capabilities of a processor of family 10h whose leaf is not valid: fetch and op sampling.
const FAMILY_10H: u32 = 0b111;

impl IbsCapabilities {
    /// Returns the capabilities of instruction-based sampling that CPUID declares; `None` if the processor has no
    /// instruction-based sampling (leaf 0x80000001 ECX bit 10).
    ///
    /// ```
    /// use pmu_amd::ibs::IbsCapabilities;
    /// # use pmu_core::x86::dump::CpuidDump;
    /// # use pmu_core::x86::Snapshot;
    /// let dump = CpuidDump::parse(
    ///     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    ///         0x00000001 0x00: eax=0x00a20f12 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    ///         0x80000000 0x00: eax=0x8000001b ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    ///         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00000400 edx=0x00000000
    ///         0x8000001b 0x00: eax=0x000003ff ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// )?;
    /// let capabilities = IbsCapabilities::of(&Snapshot::capture(&dump)).ok_or("no IBS")?;
    /// assert!(capabilities.op() && capabilities.wide_period() && !capabilities.l3_miss_only());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(processor: &Snapshot) -> Option<Self> {
        let is_vendor = [AMD, HYGON].contains(&processor.vendor());
        if !is_vendor || processor.leaf(0x8000_0001, 0).ecx >> 10 & 1 == 0 {
            return None;
        }
        let declared = processor.leaf(0x8000_001B, 0).eax;
        if declared & VALID != 0 {
            Some(Self(declared))
        } else {
            (processor.family() == 0x10).then_some(Self(FAMILY_10H))
        }
    }

    const fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }

    /// Returns the value of EAX of CPUID leaf 0x8000001B.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the processor can sample fetches.
    pub const fn fetch(self) -> bool {
        self.has(1)
    }

    /// Returns whether the processor can sample ops.
    pub const fn op(self) -> bool {
        self.has(2)
    }

    /// Returns whether a driver can write the current count of ops or cycles in `IBS_OP_CTL`.
    pub const fn count_writable(self) -> bool {
        self.has(3)
    }

    /// Returns whether the period of op sampling can be a number of dispatched ops. If not, the period is always a
    /// number of cycles.
    pub const fn counts_ops(self) -> bool {
        self.has(4)
    }

    /// Returns whether the sample of a branch has the branch's target.
    pub const fn branch_target(self) -> bool {
        self.has(5)
    }

    /// Returns whether the period of op sampling has 27 bits. Otherwise the period has 20 bits.
    pub const fn wide_period(self) -> bool {
        self.has(6)
    }

    /// Returns whether an op's sample has a validity bit for the address of the op's instruction.
    pub const fn rip_invalid(self) -> bool {
        self.has(7)
    }

    /// Returns whether the sample of a branch has a bit that says if the branch was fused with the preceding
    /// instruction.
    pub const fn fused(self) -> bool {
        self.has(8)
    }

    /// Returns whether a fetch's sample has the time that the processor needed to refill the instruction TLB.
    pub const fn fetch_tlb_latency(self) -> bool {
        self.has(9)
    }

    /// Returns whether `IBS_OP_DATA4` exists.
    pub const fn op_data4(self) -> bool {
        self.has(10)
    }

    /// Returns whether sampling can be restricted to ops and fetches that miss the third-level cache (from Zen 4 on).
    /// If so, the code for an op's data source has five bits. Otherwise, the code has three bits.
    pub const fn l3_miss_only(self) -> bool {
        self.has(11)
    }

    /// Returns whether op sampling can be restricted to loads of at least a given latency (from Zen 5 on).
    pub const fn load_latency_filter(self) -> bool {
        self.has(12)
    }

    /// Returns whether `IBS_OP_CTL2` and `IBS_FETCH_CTL2` exist. Each register has a disable bit. By this bit, a driver
    /// can stop the sampling without overwriting the status bits in `IBS_OP_CTL` or `IBS_FETCH_CTL`.
    pub const fn control2(self) -> bool {
        self.has(13)
    }

    /// Returns whether fetch sampling can be restricted to fetches of at least a given latency.
    pub const fn fetch_latency_filter(self) -> bool {
        self.has(14)
    }

    /// Returns whether the processor can exclude samples of the kernel or of user mode by bit 63 of the sampled
    /// address. The bit is 1 in addresses of the kernel.
    pub const fn half_filter(self) -> bool {
        self.has(15)
    }

    /// Returns whether op sampling can be restricted to streaming stores. If so, an op's sample also says whether the
    /// data came from another socket.
    pub const fn streaming_stores(self) -> bool {
        self.has(16)
    }

    /// Returns whether the processor has the memory profiler, a second unit that samples ops (from Zen 6 on). This
    /// crate does not drive the memory profiler, because the addresses of its registers are not published.
    pub const fn memory_profiler(self) -> bool {
        self.has(18)
    }

    /// Returns whether an op's sample has the size of the accessed page, in place of the bits that say which TLB had
    /// a large page (from Zen 5 on). If so, the sample's bits about data TLBs are valid only together with the physical
    /// address.
    pub const fn data_page_size(self) -> bool {
        self.has(19)
    }
}

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
