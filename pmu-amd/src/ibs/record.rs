//! The record of a sample, as it is read from the unit's registers.

use pmu_core::access::{AccessFault, RegisterAccess, RegisterAddress, RegisterBackend};
use pmu_core::precise::{
    AccessType, BranchOutcome, DataAccess, DataSource, InstructionFetch, LineState, PageSize,
    PreciseSample, Translation,
};

use crate::ibs::registers::{
    BP_IBSTGT_RIP, IBS_DC_LINADDR, IBS_DC_PHYSADDR, IBS_FETCH_LINADDR, IBS_FETCH_PHYSADDR,
    IBS_OP_DATA, IBS_OP_DATA2, IBS_OP_DATA3, IBS_OP_RIP, IC_IBS_EXTD_CTL, IbsFetchCtl, IbsOpData,
    IbsOpData2, IbsOpData3,
};
use crate::ibs::unit::{IbsErratum, IbsKind, IbsUnit};

/// Number of words that hold the registers of a sample.
pub(crate) const WORDS: usize = 8;

/// The registers of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IbsRecord {
    /// A sampled fetch.
    Fetch(IbsFetchRecord),
    /// A sampled op.
    Op(IbsOpRecord),
}

impl IbsRecord {
    /// Converts the sample's registers to a [`PreciseSample`], the form that is common to all vendors.
    pub fn sample(&self, unit: &IbsUnit) -> PreciseSample {
        match self {
            Self::Fetch(fetch) => fetch.sample(unit),
            Self::Op(op) => op.sample(unit),
        }
    }

    /// Returns the address of the sampled fetch, or of the sampled op's instruction; `None` if the address is not
    /// valid.
    pub fn address(&self, unit: &IbsUnit) -> Option<u64> {
        match self {
            Self::Fetch(fetch) => fetch.address(unit),
            Self::Op(op) => op.address(unit),
        }
    }

    /// Returns the registers as words, of which the first is the control register.
    pub(crate) fn words(&self, control: u64) -> [u64; WORDS] {
        let physical = |address: Option<u64>| address.unwrap_or(0);
        match self {
            Self::Fetch(fetch) => [
                control,
                fetch.linear_address,
                physical(fetch.physical_address),
                fetch.tlb_latency.into(),
                0,
                0,
                0,
                0,
            ],
            Self::Op(op) => [
                control,
                op.linear_address,
                physical(op.physical_address),
                op.rip,
                op.data.into_bits(),
                op.data2.into_bits(),
                op.data3.into_bits(),
                op.target,
            ],
        }
    }

    /// Returns the record with these [words](Self::words). `physical`: the sample has its physical address if the
    /// processor knows it.
    pub(crate) fn from_words(kind: IbsKind, words: [u64; WORDS], physical: bool) -> Self {
        let [control, linear_address, address, fourth, data, data2, data3, target] = words;
        match kind {
            IbsKind::Fetch => {
                let control = IbsFetchCtl::from_bits(control);
                let has_address = physical && control.physical_address_valid();
                Self::Fetch(IbsFetchRecord {
                    control,
                    linear_address,
                    physical_address: has_address.then_some(address),
                    tlb_latency: fourth as u16,
                })
            }
            IbsKind::Op => {
                let data3 = IbsOpData3::from_bits(data3);
                let has_address = physical && data3.physical_address_valid();
                Self::Op(IbsOpRecord {
                    rip: fourth,
                    data: IbsOpData::from_bits(data),
                    data2: IbsOpData2::from_bits(data2),
                    data3,
                    linear_address,
                    physical_address: has_address.then_some(address),
                    target,
                })
            }
        }
    }

    /// Returns whether the record tells nothing: erratum 1197.
    pub(crate) fn is_void(&self, unit: &IbsUnit) -> bool {
        matches!(self, Self::Fetch(fetch) if fetch.address(unit).is_none())
    }

    /// Returns whether a latency filter that selects loads or fetches above `latency` cycles wanted the sample. The
    /// processor's filter also lets through ops that are no loads, loads that did not miss, and fetches of exactly this
    /// latency.
    pub(crate) fn exceeds(&self, latency: u32) -> bool {
        match self {
            _ if latency == 0 => true,
            Self::Op(op) => {
                let data3 = op.data3;
                data3.load() && data3.cache_miss() && u32::from(data3.miss_latency()) > latency
            }
            Self::Fetch(fetch) => u32::from(fetch.control.latency()) > latency,
        }
    }

    /// Reads the registers of a unit's sample, but those that have no meaning in it. `control` is the value of the
    /// control register.
    pub(crate) fn read<M: RegisterBackend>(
        unit: &IbsUnit,
        msr: &M,
        control: u64,
        physical: bool,
    ) -> Result<Self, AccessFault> {
        match unit.kind() {
            IbsKind::Fetch => {
                let control = IbsFetchCtl::from_bits(control);
                read_fetch(unit, msr, control, physical).map(Self::Fetch)
            }
            IbsKind::Op => read_op(unit, msr, physical).map(Self::Op),
        }
    }
}

/// Reads a register of the record; 0 if it is not `needed`.
fn read<M: RegisterBackend>(msr: &M, register: u32, needed: bool) -> Result<u64, AccessFault> {
    // Each RDMSR in the interrupt costs more than the test.
    if !needed {
        return Ok(0);
    }
    // SAFETY: the registers of a record hold what the processor found; no value of them makes it write to memory.
    msr.read_retrying(unsafe { RegisterAddress::new(register) })
}

fn read_fetch<M: RegisterBackend>(
    unit: &IbsUnit,
    msr: &M,
    control: IbsFetchCtl,
    physical: bool,
) -> Result<IbsFetchRecord, AccessFault> {
    let physical = physical && control.physical_address_valid();
    let refilled = unit.capabilities().fetch_tlb_latency() && control.l1_tlb_miss();
    Ok(IbsFetchRecord {
        control,
        linear_address: read(msr, IBS_FETCH_LINADDR, true)?,
        physical_address: physical.then(|| read(msr, IBS_FETCH_PHYSADDR, true)).transpose()?,
        tlb_latency: read(msr, IC_IBS_EXTD_CTL, refilled)? as u16,
    })
}

fn read_op<M: RegisterBackend>(
    unit: &IbsUnit,
    msr: &M,
    physical: bool,
) -> Result<IbsOpRecord, AccessFault> {
    let data = IbsOpData::from_bits(read(msr, IBS_OP_DATA, true)?);
    let data3 = IbsOpData3::from_bits(read(msr, IBS_OP_DATA3, true)?);
    let target = unit.capabilities().branch_target() && data.branch() && data.taken();
    let physical = physical && data3.physical_address_valid();
    Ok(IbsOpRecord {
        rip: read(msr, IBS_OP_RIP, true)?,
        data,
        data2: IbsOpData2::from_bits(read(msr, IBS_OP_DATA2, data3.load() && data3.cache_miss())?),
        data3,
        linear_address: read(msr, IBS_DC_LINADDR, data3.linear_address_valid())?,
        physical_address: physical.then(|| read(msr, IBS_DC_PHYSADDR, true)).transpose()?,
        target: read(msr, BP_IBSTGT_RIP, target)?,
    })
}

/// The registers of one sampled op, as the processor left them. A field is 0 if the processor lacks the register, or if
/// the register has no meaning in this sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsOpRecord {
    /// `IBS_OP_RIP`.
    pub rip: u64,
    /// `IBS_OP_DATA`.
    pub data: IbsOpData,
    /// `IBS_OP_DATA2`.
    pub data2: IbsOpData2,
    /// `IBS_OP_DATA3`.
    pub data3: IbsOpData3,
    /// `IBS_DC_LINADDR`.
    pub linear_address: u64,
    /// `IBS_DC_PHYSADDR`, if the address is valid and was
    /// [requested](crate::ibs::IbsSampling::with_physical_addresses).
    pub physical_address: Option<u64>,
    /// `BP_IBSTGT_RIP`.
    pub target: u64,
}

impl IbsOpRecord {
    /// Converts the registers to a [`PreciseSample`], the form that is common to all vendors. A field is `None` if the
    /// processor does not record the field. A field is also `None` if a validity bit or an erratum makes the field
    /// invalid.
    pub fn sample(&self, unit: &IbsUnit) -> PreciseSample {
        PreciseSample {
            address: self.address(unit),
            branch: self.branch(unit),
            access: self.access(unit),
            fetch: None,
            latency: Some(self.data.tag_to_retire()),
            retire_latency: Some(self.data.completion_to_retire()),
        }
    }

    /// Returns the address of the sampled op's instruction; `None` if the address is not valid.
    pub fn address(&self, unit: &IbsUnit) -> Option<u64> {
        (!unit.capabilities().rip_invalid() || !self.data.rip_invalid()).then_some(self.rip)
    }

    /// Returns the outcome of a branch that retired.
    fn branch(&self, unit: &IbsUnit) -> Option<BranchOutcome> {
        let taken = self.data.taken();
        self.data.branch().then_some(BranchOutcome {
            taken,
            mispredicted: self.data.mispredicted(),
            is_return: self.data.is_return(),
            target: (taken && unit.capabilities().branch_target()).then_some(self.target),
        })
    }

    /// Returns the access of a load or of a store.
    fn access(&self, unit: &IbsUnit) -> Option<DataAccess> {
        let data3 = self.data3;
        if !data3.load() && !data3.store() {
            return None;
        }
        let recent = unit.has_access_details();
        let translated = self.has_translation(unit);
        let width = data3.width();
        Some(DataAccess {
            load: data3.load(),
            store: data3.store(),
            prefetch: recent && data3.prefetch(),
            address: data3.linear_address_valid().then_some(self.linear_address),
            physical_address: self.physical_address,
            bytes: (recent && matches!(width, 1..=7)).then(|| 1 << (width - 1)),
            source: self.source(unit),
            remote: self.remote(unit),
            line: self.line(unit),
            latency: self.missed().then(|| data3.miss_latency()),
            translation: (translated && data3.linear_address_valid()).then(|| translation(data3)),
            page: self.page(unit).filter(|_| translated && data3.linear_address_valid()),
            tlb_latency: (recent && translated && data3.l1_tlb_miss()).then(|| data3.tlb_latency()),
            locked: Some(data3.locked()),
            misaligned: Some(data3.misaligned()),
            memory_type: if data3.uncacheable() {
                Some(AccessType::Uncacheable)
            } else {
                data3.write_combining().then_some(AccessType::WriteCombining)
            },
        })
    }

    /// Returns whether the bits of the data TLBs are valid. From Zen 5 on, they are valid together with the physical
    /// address.
    fn has_translation(&self, unit: &IbsUnit) -> bool {
        !unit.capabilities().data_page_size() || self.data3.physical_address_valid()
    }

    /// Returns the size of the accessed page. Before Zen 5, the size is known only if a data TLB had the page.
    fn page(&self, unit: &IbsUnit) -> Option<PageSize> {
        let data3 = self.data3;
        let (huge, large) = if unit.capabilities().data_page_size() {
            return match data3.page_size() {
                0 => Some(PageSize::Small),
                1 => Some(PageSize::Large),
                2 => Some(PageSize::Huge),
                _ => None,
            };
        } else if !data3.l1_tlb_miss() {
            (data3.l1_tlb_hit_1g(), data3.l1_tlb_hit_2m())
        } else if !data3.l2_tlb_miss() {
            (data3.l2_tlb_hit_1g(), data3.l2_tlb_hit_2m())
        } else {
            return None;
        };
        Some(match (huge, large) {
            (true, _) => PageSize::Huge,
            (false, true) => PageSize::Large,
            (false, false) => PageSize::Small,
        })
    }

    /// Returns whether the op is a load that missed the data cache.
    fn missed(&self) -> bool {
        self.data3.load() && self.data3.cache_miss()
    }

    /// Returns whether `IBS_OP_DATA2` and the second-level cache's bit are valid: erratum 1293.
    fn knows_beyond_l1(&self, unit: &IbsUnit) -> bool {
        let prefetch = self.data3.prefetch() || self.data3.miss_buffer_hit();
        !(unit.has(IbsErratum::PrefetchWithoutSource) && prefetch)
    }

    /// Returns whether `IBS_OP_DATA2` says where the op's data came from.
    fn came_from_beyond_l2(&self, unit: &IbsUnit) -> bool {
        let l2_hit = unit.has_access_details() && !self.data3.l2_miss();
        self.missed() && self.knows_beyond_l1(unit) && !l2_hit && !self.data3.miss_buffer_hit()
    }

    /// Returns where a load's data came from.
    fn source(&self, unit: &IbsUnit) -> Option<DataSource> {
        if !self.data3.load() {
            None
        } else if !self.data3.cache_miss() {
            Some(DataSource::L1)
        } else if self.data3.miss_buffer_hit() {
            Some(DataSource::FillBuffer)
        } else if !self.knows_beyond_l1(unit) {
            None
        } else if self.came_from_beyond_l2(unit) {
            self.source_beyond_l2(unit)
        } else {
            Some(DataSource::L2)
        }
    }

    /// Decodes the source of `IBS_OP_DATA2`: three bits, and five from Zen 4 on.
    fn source_beyond_l2(&self, unit: &IbsUnit) -> Option<DataSource> {
        let low = self.data2.source_low();
        if !unit.capabilities().l3_miss_only() {
            return match low {
                2 => Some(DataSource::L3),
                3 => Some(DataSource::Memory),
                4 => Some(DataSource::OtherCache),
                7 => Some(DataSource::Io),
                _ => None,
            };
        }
        match self.data2.source_high() << 3 | low {
            1 => Some(DataSource::L3),
            2 => Some(DataSource::NearCache),
            3 => Some(DataSource::Memory),
            5 => Some(DataSource::FarCache),
            6 => Some(DataSource::PersistentMemory),
            7 => Some(DataSource::Io),
            8 => Some(DataSource::ExtensionMemory),
            12 => Some(DataSource::PeerMemory),
            _ => None,
        }
    }

    /// Returns whether the data came from another node. The bit is valid for sources that are memory.
    fn remote(&self, unit: &IbsUnit) -> Option<bool> {
        let of_memory = matches!(
            self.source(unit)?,
            DataSource::Memory | DataSource::PersistentMemory | DataSource::ExtensionMemory
        );
        of_memory.then(|| self.data2.remote_node())
    }

    /// Returns the state of the line in another cache.
    fn line(&self, unit: &IbsUnit) -> Option<LineState> {
        let of_cache = matches!(
            self.source(unit)?,
            DataSource::L3 | DataSource::NearCache | DataSource::FarCache | DataSource::OtherCache
        );
        let valid = of_cache && !unit.has(IbsErratum::LineStateInvalid);
        let state = if self.data2.line_owned() { LineState::Owned } else { LineState::Modified };
        valid.then_some(state)
    }
}

/// Returns how the access was translated.
fn translation(data3: IbsOpData3) -> Translation {
    if !data3.l1_tlb_miss() {
        Translation::L1Tlb
    } else if !data3.l2_tlb_miss() {
        Translation::L2Tlb
    } else {
        Translation::PageWalk
    }
}

/// The registers of one sampled fetch, as the processor left them. A field is 0 if the processor lacks the register, or
/// if the register has no meaning in this sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsFetchRecord {
    /// `IBS_FETCH_CTL`.
    pub control: IbsFetchCtl,
    /// `IBS_FETCH_LINADDR`.
    pub linear_address: u64,
    /// `IBS_FETCH_PHYSADDR`, if the address is valid and was
    /// [requested](crate::ibs::IbsSampling::with_physical_addresses).
    pub physical_address: Option<u64>,
    /// `IC_IBS_EXTD_CTL`, bits 15:0.
    pub tlb_latency: u16,
}

impl IbsFetchRecord {
    /// Converts the registers to a [`PreciseSample`], the form that is common to all vendors. A field is `None` if the
    /// processor does not record the field, or if a validity bit marks the field as invalid.
    pub fn sample(&self, unit: &IbsUnit) -> PreciseSample {
        PreciseSample {
            address: self.address(unit),
            fetch: Some(self.fetch(unit)),
            ..PreciseSample::default()
        }
    }

    /// Returns the linear address of the sampled fetch; `None` if [an erratum](IbsErratum::FetchWithoutAddress) made
    /// the address 0.
    pub fn address(&self, unit: &IbsUnit) -> Option<u64> {
        let lacks = unit.has(IbsErratum::FetchWithoutAddress) && self.linear_address == 0;
        (!lacks).then_some(self.linear_address)
    }

    fn fetch(&self, unit: &IbsUnit) -> InstructionFetch {
        let control = self.control;
        let recent = unit.capabilities().l3_miss_only();
        let translation = match (control.l1_tlb_miss(), control.l2_tlb_miss()) {
            (false, _) => Translation::L1Tlb,
            (true, false) => Translation::L2Tlb,
            (true, true) => Translation::PageWalk,
        };
        let page = match control.page_size() {
            0 => PageSize::Small,
            1 => PageSize::Large,
            2 => PageSize::Huge,
            _ => PageSize::Coalesced,
        };
        // The page size belongs to a translation, and so does the physical address.
        let translated = control.physical_address_valid();
        let tlb_latency = unit.capabilities().fetch_tlb_latency() && control.l1_tlb_miss();
        InstructionFetch {
            completed: control.complete(),
            physical_address: self.physical_address,
            latency: Some(control.latency()),
            cache_miss: Some(control.cache_miss()),
            l2_miss: Some(control.l2_miss()),
            l3_miss: recent.then(|| control.l3_miss()),
            op_cache_miss: recent.then(|| control.op_cache_miss()),
            translation: Some(translation),
            page: translated.then_some(page),
            tlb_latency: tlb_latency.then_some(self.tlb_latency),
        }
    }
}
