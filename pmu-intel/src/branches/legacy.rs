//! The legacy last-branch stacks.

use pmu_core::branches::{
    BranchEnable, BranchFreeze, BranchOffers, BranchOrder, BranchRegisters, BranchUnit,
};
use pmu_core::msr::{MsrAddress, RegisterBits};
use pmu_core::{NoFacility, Snapshot};

use crate::branches::format::{LbrFormat, WITH_DOUBLED_ABORTS, WITHOUT_TSX};
use crate::branches::model::{HASWELL, KNIGHTS, Stack, never_freezes};
use crate::branches::select::{Select, has_transactions};
use crate::cpuid::ArchitecturalPerfmon;
use crate::registers::{
    DebugCtl, IA32_DEBUGCTL, IA32_PERF_GLOBAL_OVF_CTRL, MSR_LASTBRANCH_0_FROM_IP,
    MSR_LASTBRANCH_0_FROM_IP_CORE, MSR_LASTBRANCH_0_TO_IP, MSR_LASTBRANCH_0_TO_IP_CORE,
    MSR_LASTBRANCH_TOS, MSR_LBR_INFO_0, MSR_LBR_SELECT, STATUS_LBR_FRZ,
};

/// `IA32_DEBUGCTL.LBR`.
const LBR: u64 = DebugCtl::new().with_lbr(true).into_bits();

/// `IA32_DEBUGCTL.FREEZE_LBRS_ON_PMI`.
const FREEZE: u64 = DebugCtl::new().with_freeze_lbrs_on_pmi(true).into_bits();

/// Returns the legacy stack of a processor whose `IA32_PERF_CAPABILITIES` has this format.
pub(crate) fn unit(processor: &Snapshot, format: u8) -> Result<BranchUnit, NoFacility> {
    let (family, model) = (processor.family(), processor.model());
    // No known model has format 0: hypervisors hide the stack by it.
    let format = match LbrFormat::of_number(format) {
        None | Some(LbrFormat::Bits32) => return Err(NoFacility::NotDeclared),
        Some(LbrFormat::Linear) if family == 6 && KNIGHTS.contains(&model) => LbrFormat::FromFlags,
        Some(format) => format,
    };
    let stack = Stack::of(processor).ok_or(NoFacility::UnknownModel { family, model })?;
    if never_freezes(processor) {
        return Err(NoFacility::Erratum);
    }
    let transactions = has_transactions(processor);
    let has_tsx_bits = matches!(format, LbrFormat::FromTsxFlags | LbrFormat::Info);
    let mispredicted = !matches!(format, LbrFormat::Linear | LbrFormat::Effective);
    let offers = BranchOffers {
        levels: stack.select != Select::None,
        kinds: stack.select == Select::SandyBridge,
        call_stack: stack.call_stack,
        mispredicted,
        cycles: format.has_info() || format == LbrFormat::ToCycles,
        kind: false,
        transaction: transactions && has_tsx_bits,
        events: 0,
        address_bits: 64,
    };
    let (from, to) = if stack.core_addresses {
        (MSR_LASTBRANCH_0_FROM_IP_CORE, MSR_LASTBRANCH_0_TO_IP_CORE)
    } else {
        (MSR_LASTBRANCH_0_FROM_IP, MSR_LASTBRANCH_0_TO_IP)
    };
    // SAFETY: (1) the bit records branches in registers; (2) a filter and an index.
    let (bits, filter, top) = unsafe {
        let bits = RegisterBits::new(IA32_DEBUGCTL, LBR);
        (bits, MsrAddress::new(MSR_LBR_SELECT), MsrAddress::new(MSR_LASTBRANCH_TOS))
    };
    let registers = BranchRegisters {
        enable: BranchEnable::Bits { bits, on: LBR, off: 0 },
        filter: (stack.select != Select::None).then_some(filter),
        select: stack.select.function(),
        depth: None,
        freeze: freeze(ArchitecturalPerfmon::from_snapshot(processor).version()),
        order: BranchOrder::Ring(top),
        from,
        to: Some(to),
        info: format.has_info().then_some(MSR_LBR_INFO_0),
        step: 1,
    };
    let is_haswell = family == 6 && HASWELL.contains(&model);
    let functions = match format {
        LbrFormat::FromTsxFlags if !transactions => &WITHOUT_TSX,
        LbrFormat::FromTsxFlags if is_haswell => &WITH_DOUBLED_ABORTS,
        format => format.format(),
    };
    // SAFETY: records of branches, which the processor writes and never follows.
    let unit = unsafe { BranchUnit::new(registers, stack.depth, functions, offers) };
    unit.ok_or(NoFacility::ImplausibleDepth(stack.depth))
}

/// Returns how a version of architectural performance monitoring freezes the records. Versions 2 and 3 clear the enable
/// bit instead of setting a status (SDM vol. 3B, "Freezing LBR and Performance Counters on PMI").
pub(crate) fn freeze(version: u8) -> Option<BranchFreeze> {
    if version < 2 {
        return None;
    }
    // SAFETY: (1) the bit freezes the records, and no more; (2) the register clears bits of a status.
    let (bit, release) = unsafe {
        (RegisterBits::new(IA32_DEBUGCTL, FREEZE), MsrAddress::new(IA32_PERF_GLOBAL_OVF_CTRL))
    };
    Some(BranchFreeze { bit, status: (version >= 4).then_some((STATUS_LBR_FRZ, release)) })
}
