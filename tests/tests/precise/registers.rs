//! Numbers and fields of the registers, against the data files.

use pmu_intel::precise::registers::{
    IA32_PEBS_BASE, IA32_PEBS_INDEX, MSR_PEBS_DATA_CFG, MSR_PEBS_FRONTEND,
    MSR_PEBS_LD_LAT_THRESHOLD, PEBS_BASELINE, PEBS_TIMING_INFO, PebsDataCfg, PebsIndex, PmcCfgC,
    STATUS_ARCH_PEBS, STATUS_OVF_BUFFER,
};
use pmu_tests::{data, field};

#[test]
fn register_numbers_equal_the_data_file() {
    for (number, name) in [
        (MSR_PEBS_DATA_CFG, "MSR_PEBS_DATA_CFG"),
        (IA32_PEBS_BASE, "IA32_PEBS_BASE"),
        (IA32_PEBS_INDEX, "IA32_PEBS_INDEX"),
        (MSR_PEBS_LD_LAT_THRESHOLD, "MSR_PEBS_LD_LAT_THRESHOLD"),
        (MSR_PEBS_FRONTEND, "MSR_PEBS_FRONTEND"),
    ] {
        let rows = data!("registers.csv");
        let row = rows.iter().find(|row| row.text("vendor") == "intel" && row.text("name") == name);
        assert_eq!(u64::from(number), row.expect(name).number("address"), "{name}");
    }
}

#[test]
fn fields_are_where_the_data_file_says() {
    let groups = PebsDataCfg::new;
    let index = PebsIndex::new;
    let control = PmcCfgC::new;
    for (value, register, name) in [
        (groups().with_memory(true).into_bits(), "MSR_PEBS_DATA_CFG", "MEMORY"),
        (groups().with_registers(true).into_bits(), "MSR_PEBS_DATA_CFG", "GPRS"),
        (groups().with_vectors(true).into_bits(), "MSR_PEBS_DATA_CFG", "XMM"),
        (groups().with_branches(true).into_bits(), "MSR_PEBS_DATA_CFG", "LBRS"),
        (groups().with_counters(true).into_bits(), "MSR_PEBS_DATA_CFG", "COUNTERS"),
        (groups().with_metrics(true).into_bits(), "MSR_PEBS_DATA_CFG", "METRICS"),
        (groups().with_branch_count(!0).into_bits(), "MSR_PEBS_DATA_CFG", "LBR_ENTRIES"),
        (groups().with_general_counters(!0).into_bits(), "MSR_PEBS_DATA_CFG", "GENERAL_COUNTERS"),
        (groups().with_fixed_counters(!0).into_bits(), "MSR_PEBS_DATA_CFG", "FIXED_COUNTERS"),
        (index().with_write(0x7F_FFFF).into_bits(), "IA32_PEBS_INDEX", "WRITE"),
        (index().with_full(true).into_bits(), "IA32_PEBS_INDEX", "FULL"),
        (index().with_enable(true).into_bits(), "IA32_PEBS_INDEX", "ENABLE"),
        (index().with_threshold(0x7F_FFFF).into_bits(), "IA32_PEBS_INDEX", "THRESHOLD"),
        (control().with_reload(!0).into_bits(), "IA32_PMC_CFG_C", "RELOAD"),
        (control().with_counters(true).into_bits(), "IA32_PMC_CFG_C", "ALLOW_COUNTERS"),
        (control().with_general_counters(true).into_bits(), "IA32_PMC_CFG_C", "GENERAL_COUNTERS"),
        (control().with_fixed_counters(true).into_bits(), "IA32_PMC_CFG_C", "FIXED_COUNTERS"),
        (control().with_metrics(true).into_bits(), "IA32_PMC_CFG_C", "METRICS"),
        (control().with_branches(3).into_bits(), "IA32_PMC_CFG_C", "LBRS"),
        (control().with_xmm(true).into_bits(), "IA32_PMC_CFG_C", "XMM"),
        (control().with_ymm_high(true).into_bits(), "IA32_PMC_CFG_C", "YMMH"),
        (control().with_opmask(true).into_bits(), "IA32_PMC_CFG_C", "OPMASK"),
        (control().with_zmm_high(true).into_bits(), "IA32_PMC_CFG_C", "ZMMH"),
        (control().with_high_zmm(true).into_bits(), "IA32_PMC_CFG_C", "H16ZMM"),
        (control().with_registers(true).into_bits(), "IA32_PMC_CFG_C", "GPRS"),
        (control().with_memory(true).into_bits(), "IA32_PMC_CFG_C", "AUX"),
        (control().with_enable(true).into_bits(), "IA32_PMC_CFG_C", "ENABLE"),
        (PEBS_BASELINE, "IA32_PERF_CAPABILITIES", "PEBS_BASELINE"),
        (PEBS_TIMING_INFO, "IA32_PERF_CAPABILITIES", "PEBS_TIMING_INFO"),
        (STATUS_ARCH_PEBS, "IA32_PERF_GLOBAL_STATUS", "ARCH_PEBS_THRESHOLD"),
        (STATUS_OVF_BUFFER, "IA32_PERF_GLOBAL_STATUS", "OVF_BUFFER"),
    ] {
        assert_eq!(value, field(register, name), "{register} {name}");
    }
}
