//! The record of a sampled fetch.

use pmu_core::precise::{InstructionFetch, PageSize, PreciseSample, Translation};

use crate::ibs::erratum::IbsErratum;
use crate::ibs::registers::IbsFetchCtl;
use crate::ibs::unit::IbsUnit;

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
