//! The last-branch stack, version 2.

use pmu_core::access::{RegisterAddress, RegisterBits};
use pmu_core::branches::{
    Branch, BranchEnable, BranchFilter, BranchFormat, BranchFreeze, BranchOffers, BranchOrder,
    BranchPath, BranchRegisters, BranchUnit, RawBranch,
};
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;

use crate::branches::{address_bits, extended};
use crate::registers::{
    DEBUG_CTL, DEBUG_CTL_FREEZE_LBRS, DEBUG_EXTN_CTL, DebugExtnCtl, LAST_BRANCH_STACK_FROM_IP,
    LAST_BRANCH_STACK_SELECT, LastBranchFrom, LastBranchTo, PERF_CNTR_GLOBAL_STATUS_CLR,
    STATUS_LBR_FREEZE,
};

/// `DebugExtnCtl.LBRSE`.
const ENABLE: u64 = DebugExtnCtl::new().with_lbrse(true).into_bits();

/// Returns the last-branch stack of a processor; `None` if the processor declares none.
///
/// APM vol. 3, appendix E: CPUID 0x80000022, EAX bits 1 (the stack) and 2 (freezing), EBX 9:4 (depth).
pub(crate) fn unit(processor: &Snapshot) -> Option<Result<BranchUnit, NoFacility>> {
    let leaf = processor.leaf(0x8000_0022, 0);
    if leaf.eax >> 1 & 1 == 0 {
        return None;
    }
    let depth = (leaf.ebx >> 4 & 0x3F) as u8;
    let offers = BranchOffers {
        levels: true,
        kinds: true,
        mispredicted: true,
        address_bits: address_bits(processor),
        ..BranchOffers::default()
    };
    // SAFETY: (1) the bit records branches in registers; (2) the bit freezes these registers; (3) a filter, and a
    // register that clears bits of a status.
    let (bits, bit, filter, release) = unsafe {
        (
            RegisterBits::new(DEBUG_EXTN_CTL, ENABLE),
            RegisterBits::new(DEBUG_CTL, DEBUG_CTL_FREEZE_LBRS),
            RegisterAddress::new(LAST_BRANCH_STACK_SELECT),
            RegisterAddress::new(PERF_CNTR_GLOBAL_STATUS_CLR),
        )
    };
    let freeze = BranchFreeze { bit, status: Some((STATUS_LBR_FREEZE, release)) };
    let registers = BranchRegisters {
        enable: BranchEnable::Bits { bits, on: ENABLE, off: 0 },
        filter: Some(filter),
        select,
        depth: None,
        // Without the bit in CPUID, DebugCtl has no such bit.
        freeze: (leaf.eax >> 2 & 1 != 0).then_some(freeze),
        order: BranchOrder::NewestFirst,
        from: LAST_BRANCH_STACK_FROM_IP,
        to: Some(LAST_BRANCH_STACK_FROM_IP + 1),
        info: None,
        step: 2,
    };
    // SAFETY: records of branches, which the processor writes and never follows.
    let unit = unsafe { BranchUnit::new(registers, depth, &STACK, offers) };
    Some(unit.ok_or(NoFacility::ImplausibleDepth(depth)))
}

/// The format of the last-branch stack. An empty record, or one of a wrong path, does not end the records.
static STACK: BranchFormat = BranchFormat {
    name: "LBR v2",
    decode,
    is_end: |_| false,
    writable: |record| record,
    doubles_aborts: false,
};

fn decode(offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let (from, to) = (LastBranchFrom::from_bits(record.from), LastBranchTo::from_bits(record.to));
    // Erratum 1452 of family 19h: the reserved bit is set in erroneous records.
    let path = match (to.valid(), to.speculative()) {
        _ if to.reserved() => return None,
        (false, false) => return None,
        (false, true) => BranchPath::Wrong,
        (true, false) => BranchPath::Correct,
        (true, true) => BranchPath::Speculative,
    };
    Some(Branch {
        from: extended(from.address(), offers.address_bits),
        to: extended(to.address(), offers.address_bits),
        mispredicted: Some(from.mispredicted()),
        path: Some(path),
        ..Branch::default()
    })
}

/// Each kind is excluded by itself.
fn select(_: &BranchOffers, filter: BranchFilter) -> (u64, BranchFilter) {
    (filter.excluded(), filter)
}
