//! The record of a sample, as it is read from the unit's registers.

use pmu_core::msr::{MsrAccess, MsrAddress, MsrBackend, MsrFault};
use pmu_core::precise::PreciseSample;

use crate::ibs::fetch::IbsFetchRecord;
use crate::ibs::op::IbsOpRecord;
use crate::ibs::registers::{
    BP_IBSTGT_RIP, IBS_DC_LINADDR, IBS_DC_PHYSADDR, IBS_FETCH_LINADDR, IBS_FETCH_PHYSADDR,
    IBS_OP_DATA, IBS_OP_DATA2, IBS_OP_DATA3, IBS_OP_RIP, IC_IBS_EXTD_CTL, IbsFetchCtl, IbsOpData,
    IbsOpData2, IbsOpData3,
};
use crate::ibs::unit::{IbsKind, IbsUnit};

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
    pub(crate) fn read<M: MsrBackend>(
        unit: &IbsUnit,
        msr: &M,
        control: u64,
        physical: bool,
    ) -> Result<Self, MsrFault> {
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
fn read<M: MsrBackend>(msr: &M, register: u32, needed: bool) -> Result<u64, MsrFault> {
    if !needed {
        return Ok(0);
    }
    // SAFETY: the registers of a record hold what the processor found; no value of them makes it write to memory.
    msr.rdmsr_retrying(unsafe { MsrAddress::new(register) })
}

fn read_fetch<M: MsrBackend>(
    unit: &IbsUnit,
    msr: &M,
    control: IbsFetchCtl,
    physical: bool,
) -> Result<IbsFetchRecord, MsrFault> {
    let physical = physical && control.physical_address_valid();
    let refilled = unit.capabilities().fetch_tlb_latency() && control.l1_tlb_miss();
    Ok(IbsFetchRecord {
        control,
        linear_address: read(msr, IBS_FETCH_LINADDR, true)?,
        physical_address: physical.then(|| read(msr, IBS_FETCH_PHYSADDR, true)).transpose()?,
        tlb_latency: read(msr, IC_IBS_EXTD_CTL, refilled)? as u16,
    })
}

fn read_op<M: MsrBackend>(
    unit: &IbsUnit,
    msr: &M,
    physical: bool,
) -> Result<IbsOpRecord, MsrFault> {
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
