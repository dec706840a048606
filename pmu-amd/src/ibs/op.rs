//! The record of a sampled op.

use pmu_core::precise::{
    AccessType, BranchOutcome, DataAccess, DataSource, LineState, PageSize, PreciseSample,
    Translation,
};

use crate::ibs::erratum::IbsErratum;
use crate::ibs::registers::{IbsOpData, IbsOpData2, IbsOpData3};
use crate::ibs::unit::IbsUnit;

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

    /// Returns whether `IBS_OP_DATA2` tells where the op's data came from.
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
