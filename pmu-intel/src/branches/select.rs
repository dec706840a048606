//! The filter of legacy stacks.

use pmu_core::Snapshot;
use pmu_core::branches::{BranchFilter, BranchKind, BranchKinds, BranchOffers};

use crate::registers::LbrSelect;

/// The filter of a legacy stack, by generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Select {
    /// There is no filter.
    None,
    /// Some kinds are recorded only together with others: Nehalem, Westmere, Silvermont.
    Nehalem,
    /// Each kind by itself: from Sandy Bridge on.
    SandyBridge,
}

impl Select {
    /// Returns the function that turns a selection of branches into the register's value.
    pub(crate) fn function(self) -> fn(&BranchOffers, BranchFilter) -> (u64, BranchFilter) {
        match self {
            Self::None => none,
            Self::Nehalem => nehalem,
            Self::SandyBridge => sandy_bridge,
        }
    }
}

/// Returns whether the processor has transactions: SDM vol. 2A, CPUID leaf 7, EBX bits 4 (HLE) and 11 (RTM).
pub(crate) fn has_transactions(processor: &Snapshot) -> bool {
    processor.leaf(7, 0).ebx & (1 << 4 | 1 << 11) != 0
}

/// Without a filter everything is recorded.
fn none(_: &BranchOffers, _: BranchFilter) -> (u64, BranchFilter) {
    (0, BranchFilter::ALL)
}

/// Nehalem's and Westmere's erratum: direct calls are recorded only together with near jumps of both kinds, indirect
/// calls with indirect jumps, and returns with near jumps and far branches.
fn nehalem(offers: &BranchOffers, filter: BranchFilter) -> (u64, BranchFilter) {
    let mut kinds = filter.kinds();
    let jumps = BranchKind::DirectJump.only() | BranchKind::IndirectJump.only();
    if filter.has(BranchKind::DirectCall) {
        kinds = kinds | jumps;
    }
    if filter.has(BranchKind::IndirectCall) {
        kinds = kinds | BranchKind::IndirectJump.only();
    }
    if filter.has(BranchKind::Return) {
        kinds = kinds | jumps | BranchKind::Other.only();
    }
    sandy_bridge(offers, filter.only(kinds))
}

/// Selects each kind by itself.
fn sandy_bridge(_: &BranchOffers, filter: BranchFilter) -> (u64, BranchFilter) {
    let kinds: BranchKinds = !filter.kinds();
    let suppressed = LbrSelect::new()
        .with_cpl_eq_0(!filter.kernel())
        .with_cpl_neq_0(!filter.user())
        .with_jcc(kinds.contains(BranchKind::Conditional))
        .with_near_rel_call(kinds.contains(BranchKind::DirectCall))
        .with_near_ind_call(kinds.contains(BranchKind::IndirectCall))
        .with_near_ret(kinds.contains(BranchKind::Return))
        .with_near_ind_jmp(kinds.contains(BranchKind::IndirectJump))
        .with_near_rel_jmp(kinds.contains(BranchKind::DirectJump))
        .with_far_branch(kinds.contains(BranchKind::Other));
    (suppressed.with_en_callstack(filter.is_call_stack()).into_bits(), filter)
}
