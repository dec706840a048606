//! `KPROFILE` as untrusted bytes: decoded or refused.

use super::layouts::{distinctive, groups, kinds, members};
use pmu_core::profile::KProfileSource;
use pmu_kprofile::compat::LayoutError;
use pmu_kprofile::compat::kprofile::{KProfile, ListEntry, ObjectType, Role};
use pmu_kprofile::compat::layout::Layout;
use pmu_kprofile::{Affinity, PointerWidth};
use pmu_tests::kprofile::{self, source};
use proptest::prelude::*;

#[test]
fn an_extended_affinity_has_the_groups_that_it_counts() {
    for (layout, places) in [
        (Layout::X86_WIN7, 1),
        (Layout::X64_WIN7, 4),
        (Layout::X64_WIN8, 20),
        (Layout::X64_WIN11, 32),
    ] {
        let (members, pointer, total) = members(layout, false);
        let at = members.iter().find(|m| m.name == "Affinity").unwrap().offset;
        let word = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let mut bytes = vec![0; total];
        for highest in 0..places {
            let affinity = Affinity::of_group(highest, 1);
            let profile = KProfile { affinity, ..distinctive(layout, false) };
            profile.encode(layout, &mut bytes).unwrap();
            assert_eq!((word(&bytes, at), word(&bytes, at + 2)), (highest + 1, places));
        }
        let empty = KProfile { affinity: Affinity::EMPTY, ..distinctive(layout, false) };
        empty.encode(layout, &mut bytes).unwrap();
        assert_eq!((word(&bytes, at), word(&bytes, at + 2)), (1, places));
        assert_eq!(KProfile::decode(layout, &bytes), Ok(empty));

        distinctive(layout, false).encode(layout, &mut bytes).unwrap();
        for count in 0..=places + 1 {
            bytes[at..at + 2].copy_from_slice(&count.to_le_bytes());
            let decoded = KProfile::decode(layout, &bytes);
            if count > places {
                assert_eq!(decoded, Err(LayoutError::Affinity));
                continue;
            }
            let affinity = decoded.unwrap().affinity;
            for group in 0..places.into() {
                let place = at + 8 + group * pointer;
                let mask = bytes[place..place + pointer].iter().rev();
                let mask = mask.fold(0, |mask, byte| mask << 8 | u64::from(*byte));
                let expected = if group < count.into() { mask } else { 0 };
                assert_eq!(affinity.mask(group), expected, "{layout:?} {count} {group}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error_and_leaves_the_bytes_alone() {
    let wide = |value| Err(LayoutError::Address(value));
    let basic = |layout| match distinctive(layout, false).role {
        Role::Basic { range_base, range_limit, bucket_shift, buffer, segment } => {
            (range_base, range_limit, bucket_shift, buffer, segment)
        }
        Role::Callback { .. } => unreachable!(),
    };
    for layout in Layout::ALL {
        let good = distinctive(layout, false);
        let (range_base, range_limit, bucket_shift, buffer, segment) = basic(layout);
        let role = |bucket_shift, segment| Role::Basic {
            range_base,
            range_limit,
            bucket_shift,
            buffer,
            segment,
        };
        let mut cases = vec![
            (KProfile { role: role(30, segment), ..good }, Err(LayoutError::BucketShift(30))),
            (
                KProfile { role: role(29, 0xFFFF), ..good },
                match layout.width() {
                    PointerWidth::Bits32 => Ok(layout.size()),
                    // Only x86 has virtual-8086 execution.
                    PointerWidth::Bits64 => Err(LayoutError::Segment(0xFFFF)),
                },
            ),
            (KProfile { role: role(29, 0), ..good }, Ok(layout.size())),
            (
                KProfile { role: role(bucket_shift, 0x1_0000), ..good },
                Err(LayoutError::Segment(0x1_0000)),
            ),
            (
                KProfile { object_type: ObjectType::Callback, ..good },
                Err(LayoutError::ObjectType(0x11)),
            ),
            (
                KProfile { role: Role::Callback { callback: 0, context: 0 }, ..good },
                Err(LayoutError::ObjectType(good.object_type.value())),
            ),
        ];
        let beyond = Affinity::of_group(groups(layout) as u16, 1);
        let error = match layout {
            Layout::X86_NT310 => LayoutError::NoSourceOrAffinity,
            _ => LayoutError::Affinity,
        };
        if groups(layout) < pmu_kprofile::MAX_GROUPS {
            cases.push((KProfile { affinity: beyond, ..good }, Err(error)));
        }
        if layout == Layout::X86_NT310 {
            cases.push((KProfile { source: source(2), ..good }, Err(error)));
        }
        if layout.width() == PointerWidth::Bits32 {
            let over = 0x1_0000_0000;
            let link = ListEntry { flink: over, ..good.link };
            cases.push((KProfile { link, ..good }, wide(over)));
            let link = ListEntry { blink: u64::MAX, ..good.link };
            cases.push((KProfile { link, ..good }, wide(u64::MAX)));
            cases.push((KProfile { process: over, ..good }, wide(over)));
            for index in 0..3 {
                let mut addresses = [0; 3];
                addresses[index] = over;
                let [range_base, range_limit, buffer] = addresses;
                let role = Role::Basic { range_base, range_limit, bucket_shift, buffer, segment };
                cases.push((KProfile { role, ..good }, wide(over)));
            }
            if layout != Layout::X86_NT310 {
                let affinity = Affinity::of_group(0, over);
                cases.push((KProfile { affinity, ..good }, Err(LayoutError::Affinity)));
            }
        }
        for (profile, expected) in cases {
            let mut bytes = [0xEE; Layout::MAX_SIZE];
            assert_eq!(profile.encode(layout, &mut bytes), expected, "{layout:?} {profile:x?}");
            assert_eq!(bytes == [0xEE; Layout::MAX_SIZE], expected.is_err());
        }
        let (needed, given) = (layout.size(), layout.size() - 1);
        let too_short = LayoutError::TooShort { needed, given };
        let mut short = vec![0xEE; given];
        assert_eq!(good.encode(layout, &mut short), Err(too_short));
        assert!(short.iter().all(|byte| *byte == 0xEE));
        assert_eq!(KProfile::decode(layout, &short), Err(too_short));
    }
}

/// Generates any profile that a layout can hold.
fn a_profile() -> impl Strategy<Value = (Layout, KProfile)> {
    let kind = prop::sample::select(kinds().collect::<Vec<_>>());
    let source = prop_oneof![0u32..0x18, 0x19u32..0x8000, 0xFFFF_8000u32..=u32::MAX];
    let numbers = prop::collection::vec(any::<u64>(), 6);
    let masks = prop::collection::vec(prop_oneof![Just(0), any::<u64>()], 32);
    let rest = (0u32..30, 0u32..0x1_0000, any::<(bool, bool)>());
    (kind, source, numbers, masks, rest).prop_map(
        |((layout, callback), value, numbers, masks, (bucket_shift, segment, (old, started)))| {
            let max = layout.width().max_address();
            let number = |index: usize| numbers[index] & max;
            let (range_base, range_limit) = (number(3), number(4));
            let in_groups = (0..).zip(masks).take(groups(layout));
            let profile = KProfile {
                object_type: match (layout, old) {
                    _ if callback => ObjectType::Callback,
                    (Layout::X86_NT310, _) | (Layout::X86_NT351, true) => ObjectType::BasicNt3,
                    _ => ObjectType::Basic,
                },
                link: ListEntry { flink: number(0), blink: number(1) },
                process: number(2),
                role: if callback {
                    Role::Callback { callback: range_base, context: range_limit }
                } else {
                    let buffer = number(5);
                    // Only x86 has virtual-8086 execution.
                    let segment = if layout.width() == PointerWidth::Bits32 { segment } else { 0 };
                    Role::Basic { range_base, range_limit, bucket_shift, buffer, segment }
                },
                affinity: in_groups.fold(Affinity::EMPTY, |set, (group, mask)| {
                    set.union(Affinity::of_group(group, mask & max))
                }),
                source: match groups(layout) {
                    0 => KProfileSource::TIME,
                    _ => kprofile::source(value),
                },
                started,
            };
            (layout, profile)
        },
    )
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_the_same((layout, profile) in a_profile(), fill: u8) {
        let mut bytes = [fill; Layout::MAX_SIZE + 8];
        prop_assert_eq!(profile.encode(layout, &mut bytes), Ok(layout.size()));
        prop_assert!(bytes[layout.size()..].iter().all(|byte| *byte == fill));
        prop_assert_eq!(KProfile::decode(layout, &bytes), Ok(profile));
        prop_assert_eq!(KProfile::decode(layout, &bytes[..layout.size()]), Ok(profile));
    }

    /// Uses a plausible beginning now and then, so that decoding reaches the rest.
    #[test]
    fn any_bytes_decode_or_are_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..0x170),
        kind in prop::option::of(prop::sample::select(vec![0x0Fu8, 0x11, 0x17])),
    ) {
        for layout in Layout::ALL {
            if let (Some(kind), [low, high, size, size_high, ..]) = (kind, &mut bytes[..]) {
                let [size_low, size_top] = (layout.size() as u16).to_le_bytes();
                (*low, *high, *size, *size_high) = (kind, 0, size_low, size_top);
            }
            if let Ok(profile) = KProfile::decode(layout, &bytes) {
                let mut again = [0; Layout::MAX_SIZE];
                prop_assert_eq!(profile.encode(layout, &mut again), Ok(layout.size()));
                prop_assert_eq!(KProfile::decode(layout, &again), Ok(profile));
            }
        }
    }
}
