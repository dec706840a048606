//! Group masks, against the data file.

use pmu_kprofile::trace::{
    EVENT_TRACE_FLAG_PROFILE, GroupMask, PERF_COMPACT_CSWITCH, PERF_CONTEXT_SWITCH,
    PERF_HV_PROFILE, PERF_MASK_INDEX, PERF_NUM_MASKS, PERF_PMC_PROFILE, PERF_PROFILE,
    PERF_PROFILING,
};
use pmu_tests::kprofile::facts::value;
use proptest::prelude::*;

/// Returns a mask as the set of its bits: (word, bit).
fn bits(mask: &GroupMask) -> Vec<(usize, u32)> {
    let of_word = |(word, bits): (usize, u32)| {
        (0..32).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| (word, bit))
    };
    mask.masks.into_iter().enumerate().flat_map(of_word).collect()
}

#[test]
fn a_flag_s_top_three_bits_are_its_word() {
    for (flag, name) in [
        (PERF_PROFILE, "PERF_PROFILE"),
        (PERF_PMC_PROFILE, "PERF_PMC_PROFILE"),
        (PERF_PROFILING, "PERF_PROFILING"),
        (PERF_CONTEXT_SWITCH, "PERF_CONTEXT_SWITCH"),
        (PERF_COMPACT_CSWITCH, "PERF_COMPACT_CSWITCH"),
        (PERF_HV_PROFILE, "PERF_HV_PROFILE"),
        (PERF_MASK_INDEX, "PERF_MASK_INDEX"),
        (EVENT_TRACE_FLAG_PROFILE, "EVENT_TRACE_FLAG_PROFILE"),
    ] {
        assert_eq!(u64::from(flag), value(name), "{name}");
    }
    assert_eq!(size_of::<GroupMask>() as u64, value("PERFINFO_GROUPMASK.total"));
    assert_eq!(PERF_NUM_MASKS as u64, value("PERF_NUM_MASKS"));
    assert_eq!(GroupMask::EMPTY.masks.len(), PERF_NUM_MASKS);
    for (flag, expected) in [
        ("PERF_PROFILE", vec![(1, 1)]),
        ("PERF_CONTEXT_SWITCH", vec![(1, 2)]),
        ("PERF_COMPACT_CSWITCH", vec![(1, 8)]),
        ("PERF_PMC_PROFILE", vec![(1, 10)]),
        ("PERF_PROFILING", vec![(1, 1), (1, 10)]),
        ("PERF_HV_PROFILE", vec![(4, 23)]),
        ("EVENT_TRACE_FLAG_PROFILE", vec![(0, 24)]),
    ] {
        let flag_value = value(flag) as u32;
        let mask = GroupMask::EMPTY.with(flag_value);
        assert_eq!(bits(&mask), expected, "{flag}");
        assert!(mask.contains(flag_value) && !GroupMask::EMPTY.contains(flag_value));
    }
    let profiling = value("PERF_PROFILING") as u32;
    assert!(!GroupMask::EMPTY.with(PERF_PROFILE).contains(profiling), "all bits, not any");
    assert_eq!(
        GroupMask::EMPTY.with(PERF_PROFILE).with(PERF_PMC_PROFILE),
        GroupMask::EMPTY.with(profiling)
    );
}

#[test]
fn enable_flags_are_the_first_word_but_for_the_profile_s() {
    let profile = GroupMask::EMPTY.with(PERF_PROFILE);
    assert_eq!(GroupMask::from_enable_flags(EVENT_TRACE_FLAG_PROFILE), profile);
    assert_eq!(GroupMask::from_enable_flags(0), GroupMask::EMPTY);
    for bit in (0..32).filter(|bit| 1 << bit != EVENT_TRACE_FLAG_PROFILE) {
        let mask = GroupMask::from_enable_flags(1 << bit);
        assert_eq!(bits(&mask), [(0, bit)]);
        assert!(!mask.contains(PERF_PROFILE) && !mask.contains(PERF_PMC_PROFILE));
    }
    assert_eq!(bits(&GroupMask::from_enable_flags(0x0100_0005)), [(0, 0), (0, 2), (1, 1)]);
}

proptest! {
    #[test]
    fn a_mask_is_the_union_of_its_flags(flags in prop::collection::vec(any::<u32>(), 0..6)) {
        let mask = flags.iter().fold(GroupMask::EMPTY, |mask, flag| mask.with(*flag));
        let mut expected: Vec<(usize, u32)> = flags
            .iter()
            .flat_map(|flag| (0..29).filter(move |bit| flag >> bit & 1 != 0).map(move |bit| {
                ((flag >> 29) as usize, bit)
            }))
            .collect();
        expected.sort_unstable();
        expected.dedup();
        prop_assert_eq!(bits(&mask), expected);
        prop_assert!(flags.iter().all(|flag| mask.contains(*flag)));
    }
}

#[test]
fn the_flags_of_the_three_traces_are_bits_of_the_second_word() {
    let mask = GroupMask::EMPTY.with(PERF_PROFILE).with(PERF_CONTEXT_SWITCH).with(PERF_PMC_PROFILE);
    assert_eq!(mask.masks, [0, 0x406, 0, 0, 0, 0, 0, 0]);
}
