//! Register numbers and bit positions, against the data file.

use pmu_amd::ibs::registers::*;
use pmu_tests::data;

fn address(register: &str) -> u32 {
    data!("registers.csv")
        .iter()
        .find(|row| row.text("name") == register)
        .unwrap_or_else(|| panic!("{register}"))
        .number("address") as u32
}

/// The fields of a register by the data file: name and mask.
fn fields(register: &str) -> Vec<(String, u64)> {
    data!("register_fields.csv")
        .iter()
        .filter(|row| row.text("register") == register)
        .map(|row| {
            let (lsb, msb) = (row.number("lsb"), row.number("msb"));
            (row.text("field").to_owned(), (u64::MAX >> (63 - msb)) & (u64::MAX << lsb))
        })
        .collect()
}

/// Compares a register's fields, in the order of their bits, with the data file.
#[track_caller]
fn compare(register: &str, masks: &[u64]) {
    let mut expected = fields(register);
    expected.sort_by_key(|(_, mask)| *mask);
    let expected: Vec<u64> = expected.into_iter().map(|(_, mask)| mask).collect();
    assert_eq!(masks, expected, "{register}");
}

#[test]
fn the_registers_have_the_numbers_that_the_data_file_says() {
    for (number, name) in [
        (IBS_FETCH_CTL, "IBS_FETCH_CTL"),
        (IBS_FETCH_LINADDR, "IBS_FETCH_LINADDR"),
        (IBS_FETCH_PHYSADDR, "IBS_FETCH_PHYSADDR"),
        (IBS_OP_CTL, "IBS_OP_CTL"),
        (IBS_OP_RIP, "IBS_OP_RIP"),
        (IBS_OP_DATA, "IBS_OP_DATA"),
        (IBS_OP_DATA2, "IBS_OP_DATA2"),
        (IBS_OP_DATA3, "IBS_OP_DATA3"),
        (IBS_DC_LINADDR, "IBS_DC_LINADDR"),
        (IBS_DC_PHYSADDR, "IBS_DC_PHYSADDR"),
        (IBS_CTL, "IBS_CTL"),
        (BP_IBSTGT_RIP, "BP_IBSTGT_RIP"),
        (IC_IBS_EXTD_CTL, "IC_IBS_EXTD_CTL"),
        (IBS_OP_DATA4, "IBS_OP_DATA4"),
        (IBS_OP_CTL2, "IBS_OP_CTL2"),
        (IBS_FETCH_CTL2, "IBS_FETCH_CTL2"),
    ] {
        assert_eq!(number, address(name), "{name}");
    }
}

#[test]
fn the_fields_of_the_control_registers_are_where_the_data_file_says() {
    let fetch = IbsFetchCtl::new;
    let fetch = [
        fetch().with_max_count(u16::MAX),
        fetch().with_count(u16::MAX),
        fetch().with_latency(u16::MAX),
        fetch().with_enable(true),
        fetch().with_valid(true),
        fetch().with_complete(true),
        fetch().with_cache_miss(true),
        fetch().with_physical_address_valid(true),
        fetch().with_page_size(3),
        fetch().with_l1_tlb_miss(true),
        fetch().with_l2_tlb_miss(true),
        fetch().with_random(true),
        fetch().with_l2_miss(true),
        fetch().with_l3_miss_only(true),
        fetch().with_op_cache_miss(true),
        fetch().with_l3_miss(true),
    ];
    compare("IBS_FETCH_CTL", &fetch.map(IbsFetchCtl::into_bits));
    let op = IbsOpCtl::new;
    let op = [
        op().with_max_count(u16::MAX),
        op().with_l3_miss_only(true),
        op().with_enable(true),
        op().with_valid(true),
        op().with_count_ops(true),
        op().with_max_count_high(0x7F),
        op().with_count(0x7FF_FFFF),
        op().with_latency_threshold(0xF),
        op().with_latency_filter(true),
    ];
    compare("IBS_OP_CTL", &op.map(IbsOpCtl::into_bits));
    let entry = [IbsCtl::new().with_lvt_offset(0xF), IbsCtl::new().with_lvt_offset_valid(true)];
    compare("IBS_CTL", &entry.map(IbsCtl::into_bits));
    let op = IbsOpCtl2::new;
    let op = [
        op().with_disable(true),
        op().with_exclude_low_half(true),
        op().with_exclude_high_half(true),
        op().with_streaming_stores_only(true),
    ];
    compare("IBS_OP_CTL2", &op.map(IbsOpCtl2::into_bits));
    let fetch = IbsFetchCtl2::new;
    let fetch = [
        fetch().with_disable(true),
        fetch().with_latency_filter(0xF),
        fetch().with_exclude_high_half(true),
        fetch().with_exclude_low_half(true),
    ];
    compare("IBS_FETCH_CTL2", &fetch.map(IbsFetchCtl2::into_bits));
}

#[test]
fn the_filters_by_bit_63_are_in_opposite_orders() {
    let mask = |register, field| {
        fields(register).into_iter().find(|(name, _)| name == field).expect("a field").1
    };
    let op = IbsOpCtl2::new().with_exclude_high_half(true).into_bits();
    let fetch = IbsFetchCtl2::new().with_exclude_high_half(true).into_bits();
    assert_eq!(op, mask("IBS_OP_CTL2", "ExclBit63Set"));
    assert_eq!(fetch, mask("IBS_FETCH_CTL2", "ExclBit63Set"));
}

#[test]
fn the_fields_of_a_record_are_where_the_data_file_says() {
    let data = IbsOpData::new;
    let data = [
        data().with_completion_to_retire(u16::MAX),
        data().with_tag_to_retire(u16::MAX),
        data().with_is_return(true),
        data().with_taken(true),
        data().with_mispredicted(true),
        data().with_branch(true),
        data().with_rip_invalid(true),
        data().with_fused(true),
        data().with_microcode(true),
    ];
    compare("IBS_OP_DATA", &data.map(IbsOpData::into_bits));
    let data = IbsOpData2::new;
    let data = [
        data().with_source_low(7),
        data().with_remote_node(true),
        data().with_line_owned(true),
        data().with_source_high(3),
        data().with_streaming_store(true),
        data().with_remote_socket(true),
    ];
    compare("IBS_OP_DATA2", &data.map(IbsOpData2::into_bits));
    let data = IbsOpData3::new;
    let data = [
        data().with_load(true),
        data().with_store(true),
        data().with_l1_tlb_miss(true),
        data().with_l2_tlb_miss(true),
        data().with_l1_tlb_hit_2m(true),
        data().with_l1_tlb_hit_1g(true),
        data().with_l2_tlb_hit_2m(true),
        data().with_cache_miss(true),
        data().with_misaligned(true),
        data().with_write_combining(true),
        data().with_uncacheable(true),
        data().with_locked(true),
        data().with_miss_buffer_hit(true),
        data().with_linear_address_valid(true),
        data().with_physical_address_valid(true),
        data().with_l2_tlb_hit_1g(true),
        data().with_l2_miss(true),
        data().with_prefetch(true),
        data().with_width(0xF),
        data().with_open_misses(0x3F),
        data().with_miss_latency(u16::MAX),
        data().with_tlb_latency(u16::MAX),
    ];
    compare("IBS_OP_DATA3", &data.map(IbsOpData3::into_bits));
}
