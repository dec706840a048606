//! One unit that samples: fetches, or ops.

use pmu_core::Snapshot;

use crate::ibs::capabilities::IbsCapabilities;
use crate::ibs::erratum::{IbsErrata, IbsErratum};
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
    /// # use pmu_core::dump::CpuidDump;
    /// # use pmu_core::Snapshot;
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
