//! Architectural branch records, which CPUID leaf 0x1C declares.

use pmu_core::access::RegisterAddress;
use pmu_core::branches::{
    Branch, BranchEnable, BranchFilter, BranchFormat, BranchKind, BranchKinds, BranchOffers,
    BranchOrder, BranchRegisters, BranchUnit, RawBranch,
};
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;

use crate::branches::legacy::{freeze, has_transactions, of, transaction};
use crate::cpuid::ArchitecturalPerfmon;
use crate::registers::{
    IA32_LBR_0_FROM_IP, IA32_LBR_0_INFO, IA32_LBR_0_TO_IP, IA32_LBR_CTL, IA32_LBR_DEPTH, LbrCtl,
    LbrInfo,
};

/// Returns the architectural branch records of a processor, with the greatest depth that it declares; `None` if it
/// declares none.
///
/// SDM vol. 2A, CPUID leaf 7, EDX bit 19, and leaf 0x1C: EAX 7:0, depths of 8·(n + 1); EBX 0, filter by level; 1, by
/// kind; 2, call stack; ECX 0, mispredictions; 1, cycles; 2, kinds; 19:16, events of counters.
pub(crate) fn unit(processor: &Snapshot) -> Result<Option<BranchUnit>, NoFacility> {
    if processor.leaf(7, 0).edx >> 19 & 1 == 0 {
        return Ok(None);
    }
    let leaf = processor.leaf(0x1C, 0);
    // The greatest bit that is set, of eight.
    let depth = 8 * (32 - (leaf.eax & 0xFF).leading_zeros()) as u8;
    let (levels, kinds) = (leaf.ebx & 1 != 0, leaf.ebx >> 1 & 1 != 0);
    let offers = BranchOffers {
        levels,
        kinds,
        // A call stack is selected by both filters.
        call_stack: levels && kinds && leaf.ebx >> 2 & 1 != 0,
        mispredicted: leaf.ecx & 1 != 0,
        cycles: leaf.ecx >> 1 & 1 != 0,
        kind: leaf.ecx >> 2 & 1 != 0,
        transaction: has_transactions(processor),
        events: (leaf.ecx >> 16 & 0xF) as u8,
        address_bits: 64,
    };
    let version = ArchitecturalPerfmon::from_snapshot(processor).version();
    // SAFETY: the control and the depth of records, which are registers.
    let (control, depth_register) =
        unsafe { (RegisterAddress::new(IA32_LBR_CTL), RegisterAddress::new(IA32_LBR_DEPTH)) };
    let registers = BranchRegisters {
        enable: BranchEnable::Register(control),
        filter: None,
        select,
        depth: Some(depth_register),
        freeze: freeze(version),
        order: BranchOrder::NewestFirst,
        from: IA32_LBR_0_FROM_IP,
        to: Some(IA32_LBR_0_TO_IP),
        info: Some(IA32_LBR_0_INFO),
        step: 1,
    };
    // SAFETY: records of branches, which the processor writes and never follows.
    let unit = unsafe { BranchUnit::new(registers, depth, &ARCHITECTURAL, offers) };
    unit.map(Some).ok_or(NoFacility::ImplausibleDepth(depth))
}

/// The format of architectural records.
static ARCHITECTURAL: BranchFormat = of("architectural", decode);

fn decode(offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let RawBranch { from, to, info } = record;
    if from == 0 {
        return None;
    }
    let info = LbrInfo::from_bits(info);
    let counts = [info.pmc0_count(), info.pmc1_count(), info.pmc2_count(), info.pmc3_count()];
    Some(Branch {
        from,
        to,
        mispredicted: offers.mispredicted.then_some(info.mispredicted()),
        cycles: (offers.cycles && info.cycle_count_valid()).then_some(info.cycle_count()),
        kind: if offers.kind { kind(info.branch_type()) } else { None },
        path: None,
        transaction: transaction(offers, info.in_tsx(), info.tsx_abort()),
        events: (offers.events != 0).then_some(counts),
    })
}

/// SDM vol. 3B, table of the branch types in `IA32_LBR_x_INFO`; 6 and 7 are reserved.
const fn kind(branch_type: u8) -> Option<BranchKind> {
    match branch_type {
        0 => Some(BranchKind::Conditional),
        1 => Some(BranchKind::IndirectJump),
        2 => Some(BranchKind::DirectJump),
        3 => Some(BranchKind::IndirectCall),
        4 => Some(BranchKind::DirectCall),
        5 => Some(BranchKind::Return),
        8..=15 => Some(BranchKind::Other),
        _ => None,
    }
}

/// Bits of the filter that the processor lacks stay clear: they are reserved.
fn select(offers: &BranchOffers, filter: BranchFilter) -> (u64, BranchFilter) {
    let mut control = LbrCtl::new().with_lbr_en(true).with_call_stack(filter.is_call_stack());
    let mut recorded = filter;
    if offers.levels {
        control = control.with_os(filter.kernel()).with_usr(filter.user());
    } else {
        recorded = recorded.at(true, true);
    }
    if offers.kinds {
        control = control
            .with_jcc(filter.has(BranchKind::Conditional))
            .with_near_rel_jmp(filter.has(BranchKind::DirectJump))
            .with_near_ind_jmp(filter.has(BranchKind::IndirectJump))
            .with_near_rel_call(filter.has(BranchKind::DirectCall))
            .with_near_ind_call(filter.has(BranchKind::IndirectCall))
            .with_near_ret(filter.has(BranchKind::Return))
            .with_other_branch(filter.has(BranchKind::Other));
    } else {
        recorded = recorded.only(BranchKinds::ALL);
    }
    (control.into_bits(), recorded)
}
