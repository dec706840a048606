//! Register numbers and bit positions, against the data files.

use pmu_amd::registers::{
    self as amd, DebugExtnCtl, LastBranchFrom, LastBranchStackSelect, LastBranchTo,
};
use pmu_core::branches::{BranchFilter, BranchKind};
use pmu_intel::registers::{self as intel, LbrCtl, LbrInfo, LbrSelect};
use pmu_tests::data;

#[test]
fn register_numbers_equal_the_data_file() {
    let numbers = [
        ("intel", "MSR_LBR_SELECT", intel::MSR_LBR_SELECT),
        ("intel", "MSR_LASTBRANCH_TOS", intel::MSR_LASTBRANCH_TOS),
        ("intel", "MSR_LASTBRANCH_0_FROM_IP_CORE", intel::MSR_LASTBRANCH_0_FROM_IP_CORE),
        ("intel", "MSR_LASTBRANCH_0_TO_IP_CORE", intel::MSR_LASTBRANCH_0_TO_IP_CORE),
        ("intel", "MSR_LASTBRANCH_0_FROM_IP", intel::MSR_LASTBRANCH_0_FROM_IP),
        ("intel", "MSR_LASTBRANCH_0_TO_IP", intel::MSR_LASTBRANCH_0_TO_IP),
        ("intel", "MSR_LBR_INFO_0", intel::MSR_LBR_INFO_0),
        ("intel", "IA32_LBR_0_INFO", intel::IA32_LBR_0_INFO),
        ("intel", "IA32_LBR_CTL", intel::IA32_LBR_CTL),
        ("intel", "IA32_LBR_DEPTH", intel::IA32_LBR_DEPTH),
        ("intel", "IA32_LBR_0_FROM_IP", intel::IA32_LBR_0_FROM_IP),
        ("intel", "IA32_LBR_0_TO_IP", intel::IA32_LBR_0_TO_IP),
        ("amd", "DebugCtl", amd::DEBUG_CTL),
        ("amd", "LastBranchStackSelect", amd::LAST_BRANCH_STACK_SELECT),
        ("amd", "DebugExtnCtl", amd::DEBUG_EXTN_CTL),
        ("amd", "LastBranchStackFromIp", amd::LAST_BRANCH_STACK_FROM_IP),
        ("amd", "LastBranchStackToIp", amd::LAST_BRANCH_STACK_FROM_IP + 1),
    ];
    let rows = data!("registers.csv");
    for (vendor, name, number) in numbers {
        let row = rows
            .iter()
            .find(|row| row.text("vendor") == vendor && row.text("name") == name)
            .unwrap_or_else(|| panic!("{vendor} {name}"));
        assert_eq!(row.number("address"), u64::from(number), "{vendor} {name}");
    }
}

#[test]
fn fields_lie_where_the_data_file_says() {
    let (select, control, info) = (LbrSelect::new, LbrCtl::new, LbrInfo::new);
    let (amd_select, extension) = (LastBranchStackSelect::new, DebugExtnCtl::new);
    let (from, to) = (LastBranchFrom::new, LastBranchTo::new);
    let address = u64::MAX >> 7;
    let fields: [(&str, &str, u64); 58] = [
        ("IA32_PERF_CAPABILITIES", "LBR_FMT", intel::LBR_FORMAT),
        ("IA32_PERF_GLOBAL_STATUS", "LBR_FRZ", intel::STATUS_LBR_FRZ),
        ("PerfCntrGlobalStatus", "LBRF", amd::STATUS_LBR_FREEZE),
        ("MSR_LBR_SELECT", "CPL_EQ_0", select().with_cpl_eq_0(true).into_bits()),
        ("MSR_LBR_SELECT", "CPL_NEQ_0", select().with_cpl_neq_0(true).into_bits()),
        ("MSR_LBR_SELECT", "JCC", select().with_jcc(true).into_bits()),
        ("MSR_LBR_SELECT", "NEAR_REL_CALL", select().with_near_rel_call(true).into_bits()),
        ("MSR_LBR_SELECT", "NEAR_IND_CALL", select().with_near_ind_call(true).into_bits()),
        ("MSR_LBR_SELECT", "NEAR_RET", select().with_near_ret(true).into_bits()),
        ("MSR_LBR_SELECT", "NEAR_IND_JMP", select().with_near_ind_jmp(true).into_bits()),
        ("MSR_LBR_SELECT", "NEAR_REL_JMP", select().with_near_rel_jmp(true).into_bits()),
        ("MSR_LBR_SELECT", "FAR_BRANCH", select().with_far_branch(true).into_bits()),
        ("MSR_LBR_SELECT", "EN_CALLSTACK", select().with_en_callstack(true).into_bits()),
        ("IA32_LBR_CTL", "LBR_EN", control().with_lbr_en(true).into_bits()),
        ("IA32_LBR_CTL", "OS", control().with_os(true).into_bits()),
        ("IA32_LBR_CTL", "USR", control().with_usr(true).into_bits()),
        ("IA32_LBR_CTL", "CALL_STACK", control().with_call_stack(true).into_bits()),
        ("IA32_LBR_CTL", "JCC", control().with_jcc(true).into_bits()),
        ("IA32_LBR_CTL", "NEAR_REL_JMP", control().with_near_rel_jmp(true).into_bits()),
        ("IA32_LBR_CTL", "NEAR_IND_JMP", control().with_near_ind_jmp(true).into_bits()),
        ("IA32_LBR_CTL", "NEAR_REL_CALL", control().with_near_rel_call(true).into_bits()),
        ("IA32_LBR_CTL", "NEAR_IND_CALL", control().with_near_ind_call(true).into_bits()),
        ("IA32_LBR_CTL", "NEAR_RET", control().with_near_ret(true).into_bits()),
        ("IA32_LBR_CTL", "OTHER_BRANCH", control().with_other_branch(true).into_bits()),
        ("IA32_LBR_x_INFO", "CYC_CNT", info().with_cycle_count(u16::MAX).into_bits()),
        ("IA32_LBR_x_INFO", "PMC0_CNT", info().with_pmc0_count(3).into_bits()),
        ("IA32_LBR_x_INFO", "PMC1_CNT", info().with_pmc1_count(3).into_bits()),
        ("IA32_LBR_x_INFO", "PMC2_CNT", info().with_pmc2_count(3).into_bits()),
        ("IA32_LBR_x_INFO", "PMC3_CNT", info().with_pmc3_count(3).into_bits()),
        ("IA32_LBR_x_INFO", "BR_TYPE", info().with_branch_type(0xF).into_bits()),
        ("IA32_LBR_x_INFO", "CYC_CNT_VALID", info().with_cycle_count_valid(true).into_bits()),
        ("IA32_LBR_x_INFO", "TSX_ABORT", info().with_tsx_abort(true).into_bits()),
        ("IA32_LBR_x_INFO", "IN_TSX", info().with_in_tsx(true).into_bits()),
        ("IA32_LBR_x_INFO", "MISPRED", info().with_mispredicted(true).into_bits()),
        ("LastBranchStackSelect", "CplEq0", amd_select().with_cpl_eq_0(true).into_bits()),
        ("LastBranchStackSelect", "CplGt0", amd_select().with_cpl_neq_0(true).into_bits()),
        ("LastBranchStackSelect", "Jcc", amd_select().with_jcc(true).into_bits()),
        ("LastBranchStackSelect", "CallNearRel", amd_select().with_near_rel_call(true).into_bits()),
        ("LastBranchStackSelect", "CallNearInd", amd_select().with_near_ind_call(true).into_bits()),
        ("LastBranchStackSelect", "RetNear", amd_select().with_near_ret(true).into_bits()),
        ("LastBranchStackSelect", "JmpNearInd", amd_select().with_near_ind_jmp(true).into_bits()),
        ("LastBranchStackSelect", "JmpNearRel", amd_select().with_near_rel_jmp(true).into_bits()),
        ("LastBranchStackSelect", "FarBranch", amd_select().with_far_branch(true).into_bits()),
        ("DebugCtl", "FLBRI", amd::DEBUG_CTL_FREEZE_LBRS),
        ("DebugExtnCtl", "LBRSE", extension().with_lbrse(true).into_bits()),
        ("BRS_DebugExtnCfg", "BRSMEN", extension().with_brs_enable(true).into_bits()),
        ("BRS_DebugExtnCfg", "ALWAYS_SET", extension().with_always_set(3).into_bits()),
        ("BRS_DebugExtnCfg", "VB", extension().with_valid(true).into_bits()),
        ("BRS_DebugExtnCfg", "MSROFF", extension().with_next_record(0xF).into_bits()),
        ("BRS_DebugExtnCfg", "PMC", extension().with_counter(7).into_bits()),
        ("LastBranchStackFromIp", "BranchFromIp", from().with_address(address).into_bits()),
        ("LastBranchStackFromIp", "Mispredict", from().with_mispredicted(true).into_bits()),
        ("LastBranchStackToIp", "BranchToIp", to().with_address(address).into_bits()),
        ("LastBranchStackToIp", "RESERVED", to().with_reserved(true).into_bits()),
        ("LastBranchStackToIp", "Speculative", to().with_speculative(true).into_bits()),
        ("LastBranchStackToIp", "Valid", to().with_valid(true).into_bits()),
        ("IA32_DEBUGCTL", "LBR", intel::DebugCtl::new().with_lbr(true).into_bits()),
        (
            "IA32_DEBUGCTL",
            "FREEZE_LBRS_ON_PMI",
            intel::DebugCtl::new().with_freeze_lbrs_on_pmi(true).into_bits(),
        ),
    ];
    let rows = data!("register_fields.csv");
    for (register, name, bits) in fields {
        let row = rows
            .iter()
            .find(|row| row.text("register") == register && row.text("field") == name)
            .unwrap_or_else(|| panic!("{register} {name}"));
        let (lsb, msb) = (row.number("lsb"), row.number("msb"));
        let mask = (u64::MAX >> (63 - msb)) & (u64::MAX << lsb);
        assert_eq!(bits, mask, "{register}.{name}");
    }
}

/// The one encoding of filters, against the fields of both vendors, which the data file holds.
#[test]
fn a_filter_excludes_by_the_fields_of_both_vendors() {
    let each_kind = BranchKind::ALL.map(|kind| BranchFilter::USER.only(kind.only()));
    for filter in each_kind.into_iter().chain([BranchFilter::ALL, BranchFilter::KERNEL]) {
        let excludes = |kind| !filter.has(kind);
        let bits = filter.excluded();
        let (intel, amd) = (LbrSelect::from_bits(bits), LastBranchStackSelect::from_bits(bits));
        for (kind, of_intel, of_amd) in [
            (BranchKind::Conditional, intel.jcc(), amd.jcc()),
            (BranchKind::DirectCall, intel.near_rel_call(), amd.near_rel_call()),
            (BranchKind::IndirectCall, intel.near_ind_call(), amd.near_ind_call()),
            (BranchKind::Return, intel.near_ret(), amd.near_ret()),
            (BranchKind::IndirectJump, intel.near_ind_jmp(), amd.near_ind_jmp()),
            (BranchKind::DirectJump, intel.near_rel_jmp(), amd.near_rel_jmp()),
            (BranchKind::Other, intel.far_branch(), amd.far_branch()),
        ] {
            assert_eq!([of_intel, of_amd], [excludes(kind); 2], "{kind:?} of {filter:?}");
        }
        assert_eq!([intel.cpl_eq_0(), amd.cpl_eq_0()], [!filter.kernel(); 2], "{filter:?}");
        assert_eq!([intel.cpl_neq_0(), amd.cpl_neq_0()], [!filter.user(); 2], "{filter:?}");
        assert_eq!(bits >> 9, 0, "{filter:?}");
    }
}
