//! `KPROFILE` as bytes, against the data file of its layouts.

use super::layouts::{Member, distinctive, groups, kinds, members};
use pmu_kprofile::Rules;
use pmu_kprofile::WindowsVersion::Nt351;
use pmu_kprofile::compat::LayoutError;
use pmu_kprofile::compat::kprofile::{KProfile, ObjectType, Role};
use pmu_kprofile::compat::layout::{Layout, Offsets};
use pmu_tests::kprofile::{VERSIONS, WIDTHS, source};
use pmu_tests::{Row, data};

/// Returns the bytes that a member should have.
fn expected(profile: &KProfile, member: &Member, pointer: usize, total: usize) -> Vec<u8> {
    let little = |value: u64, size: usize| value.to_le_bytes()[..size].to_vec();
    let one = |value| little(value, member.size);
    match (member.name, profile.role) {
        ("Type", _) => one(match profile.object_type {
            ObjectType::BasicNt3 => 0x0F,
            ObjectType::Basic => 0x17,
            ObjectType::Callback => 0x11,
        }),
        ("Size", _) => one(total as u64),
        ("ProfileListEntry", _) => {
            [little(profile.link.flink, pointer), little(profile.link.blink, pointer)].concat()
        }
        ("Process", _) => one(profile.process),
        ("RangeBase", Role::Basic { range_base, .. }) => one(range_base),
        ("RangeLimit", Role::Basic { range_limit, .. }) => one(range_limit),
        ("BucketShift", Role::Basic { bucket_shift, .. }) => one(bucket_shift.into()),
        ("Buffer", Role::Basic { buffer, .. }) => one(buffer),
        ("Segment", Role::Basic { segment, .. }) => one(segment.into()),
        ("Callback", Role::Callback { callback, .. }) => one(callback),
        ("Context", Role::Callback { context, .. }) => one(context),
        ("Affinity", _) if member.size == pointer => one(profile.affinity.mask(0)),
        ("Affinity", _) => {
            // KAFFINITY_EX: Count, Size, Reserved, Bitmap.
            let places = (member.size - 8) / pointer;
            let used = (0..places).rev().find(|group| profile.affinity.mask(*group) != 0);
            let count = used.map_or(1, |group| group + 1);
            let header = [little(count as u64, 2), little(places as u64, 2), vec![0; 4]];
            let masks = (0..places).map(|group| little(profile.affinity.mask(group), pointer));
            header.into_iter().chain(masks).collect::<Vec<_>>().concat()
        }
        ("Source", _) => one(profile.source.value().into()),
        ("Started", _) => one(profile.started.into()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_member_lies_where_the_data_file_says_and_all_else_is_zero() {
    for (layout, callback) in kinds() {
        let (members, pointer, total) = members(layout, callback);
        assert_eq!((layout.size(), layout.width().bytes()), (total, pointer));
        assert_eq!(layout.link_offset(), members[2].offset);
        let profile = distinctive(layout, callback);
        let mut bytes = [0xEE; Layout::MAX_SIZE];
        assert_eq!(profile.encode(layout, &mut bytes), Ok(total));
        let mut image = vec![0; total];
        for member in &members {
            let value = expected(&profile, member, pointer, total);
            assert_eq!(value.len(), member.size, "{layout:?} {}", member.name);
            image[member.offset..member.offset + member.size].copy_from_slice(&value);
        }
        assert_eq!(bytes[..total], image, "{layout:?} callback: {callback}");
        assert!(bytes[total..].iter().all(|byte| *byte == 0xEE), "behind the structure");
        assert_eq!(KProfile::decode(layout, &bytes), Ok(profile));
    }
}

/// Returns the names of the members in which a decoded structure differs.
fn differences(a: &KProfile, decoded: Result<KProfile, LayoutError>) -> Vec<&'static str> {
    let b = match decoded {
        Ok(b) => b,
        Err(LayoutError::ObjectType(_)) => return vec!["Type"],
        Err(LayoutError::SizeMember(_)) => return vec!["Size"],
        Err(LayoutError::Source(_)) => return vec!["Source"],
        Err(LayoutError::Segment(_)) => return vec!["Segment"],
        Err(LayoutError::BucketShift(_)) => return vec!["BucketShift"],
        Err(LayoutError::Affinity) => return vec!["Affinity"],
        Err(error) => panic!("{error}"),
    };
    let role = match (a.role, b.role) {
        (
            Role::Basic {
                range_base: base,
                range_limit: limit,
                bucket_shift: shift,
                buffer,
                segment,
            },
            Role::Basic { range_base, range_limit, bucket_shift, buffer: other, segment: place },
        ) => vec![
            ("RangeBase", base != range_base),
            ("RangeLimit", limit != range_limit),
            ("BucketShift", shift != bucket_shift),
            ("Buffer", buffer != other),
            ("Segment", segment != place),
        ],
        (
            Role::Callback { callback, context },
            Role::Callback { callback: other, context: argument },
        ) => vec![("Callback", callback != other), ("Context", context != argument)],
        _ => vec![("Type", true)],
    };
    let common = [
        ("ProfileListEntry", a.link != b.link),
        ("Process", a.process != b.process),
        ("Affinity", a.affinity != b.affinity),
        ("Source", a.source != b.source),
        ("Started", a.started != b.started),
    ];
    let all = common.into_iter().chain(role);
    all.filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

#[test]
fn every_byte_changes_the_member_that_it_belongs_to_and_no_other() {
    for (layout, callback) in kinds() {
        let (members, pointer, total) = members(layout, callback);
        let mut profile = distinctive(layout, callback);
        profile.started = false;
        let mut bytes = vec![0; total];
        profile.encode(layout, &mut bytes).unwrap();
        for at in 0..total {
            let owner = members.iter().find(|m| (m.offset..m.offset + m.size).contains(&at));
            let unused = owner.is_none_or(|member| {
                // KAFFINITY_EX's Size and Reserved.
                let is_extended = member.name == "Affinity" && member.size > pointer;
                is_extended && (2..8).contains(&(at - member.offset))
            });
            let name = owner.filter(|_| !unused).map(|member| member.name);
            bytes[at] ^= 0x80;
            let changed = differences(&profile, KProfile::decode(layout, &bytes));
            assert_eq!(changed, Vec::from_iter(name), "{layout:?} {callback} {at:#X}");
            bytes[at] ^= 0x80;
        }
    }
}

#[test]
fn each_version_has_the_layout_of_its_time_and_width() {
    let rows: Vec<Row<'_>> = data!("kprofile_versions.csv");
    let place = |name: &str| VERSIONS.iter().position(|version| format!("{version:?}") == name);
    for (version, width) in
        VERSIONS.iter().flat_map(|version| WIDTHS.map(|width| (*version, width)))
    {
        let began = |row: &&Row<'_>| {
            row.number("pointer_bits") as usize == 8 * width.bytes()
                && place(row.text("first")).unwrap() <= place(&format!("{version:?}")).unwrap()
        };
        let expected = rows.iter().rfind(began).map(|row| row.text("layout").to_owned());
        let layout = Layout::of(Rules { version, width });
        assert_eq!(layout.map(|layout| format!("{layout:?}")), expected, "{version:?} {width:?}");
        let basic = if version <= Nt351 { ObjectType::BasicNt3 } else { ObjectType::Basic };
        assert_eq!(ObjectType::basic_of(version), basic);
    }
    assert_eq!(rows.len(), Layout::ALL.len());
}

/// Returns the values of the object types that a layout has, by the data file.
fn types_of(layout: Layout) -> Vec<u16> {
    let rows: Vec<Row<'_>> = data!("kprofile_versions.csv");
    let row = rows.iter().find(|row| row.text("layout") == format!("{layout:?}")).unwrap();
    let types = row.text("types").split(' ').map(|value| value.trim_start_matches("0x"));
    types.map(|value| u16::from_str_radix(value, 16).unwrap()).collect()
}

#[test]
fn each_layout_has_the_object_types_of_its_versions() {
    assert_eq!((0x0F, 0x17, 0x11), {
        let value = ObjectType::value;
        (value(ObjectType::BasicNt3), value(ObjectType::Basic), value(ObjectType::Callback))
    });
    for layout in Layout::ALL {
        let types = types_of(layout);
        assert_eq!(layout.has_callback_objects(), types.contains(&0x11), "{layout:?}");
        let mut bytes = vec![0; layout.size()];
        distinctive(layout, false).encode(layout, &mut bytes).unwrap();
        for value in 0..=u16::MAX {
            bytes[..2].copy_from_slice(&value.to_le_bytes());
            match KProfile::decode(layout, &bytes) {
                Ok(profile) => {
                    assert!(types.contains(&value), "{layout:?} {value:#X}");
                    assert_eq!(profile.object_type.value(), value);
                    assert_eq!(matches!(profile.role, Role::Callback { .. }), value == 0x11);
                }
                Err(error) => {
                    assert!(!types.contains(&value), "{layout:?} {value:#X}");
                    assert_eq!(error, LayoutError::ObjectType(value));
                }
            }
        }
        for object_type in [ObjectType::BasicNt3, ObjectType::Basic, ObjectType::Callback] {
            let callback = object_type == ObjectType::Callback;
            let wanted = KProfile { object_type, ..distinctive(layout, callback) };
            let encoded = wanted.encode(layout, &mut bytes);
            assert_eq!(encoded.is_ok(), types.contains(&object_type.value()), "{layout:?}");
        }
    }
}

#[test]
fn the_source_is_a_signed_short() {
    for layout in Layout::ALL.into_iter().filter(|layout| groups(*layout) != 0) {
        let at = members(layout, false).0.iter().find(|m| m.name == "Source").unwrap().offset;
        for (value, stored) in [
            (0, Some([0x00, 0x00])),
            (0x19, Some([0x19, 0x00])),
            (0x7FFF, Some([0xFF, 0x7F])),
            (0x8000, None),
            (0xFFFF, None),
            (0x1_0000, None),
            (0x7FFF_FFFF, None),
            (0x8000_0000, None),
            (0xFFFF_7FFF, None),
            (0xFFFF_8000, Some([0x00, 0x80])),
            (0xFFFF_FFFF, Some([0xFF, 0xFF])),
        ] {
            let profile = KProfile { source: source(value), ..distinctive(layout, false) };
            let mut bytes = [0xEE; Layout::MAX_SIZE];
            match stored {
                Some(stored) => {
                    profile.encode(layout, &mut bytes).unwrap();
                    assert_eq!(bytes[at..at + 2], stored, "{value:#X}");
                    assert_eq!(KProfile::decode(layout, &bytes), Ok(profile), "sign-extended");
                }
                None => {
                    let error = LayoutError::Source(value);
                    assert_eq!(profile.encode(layout, &mut bytes), Err(error), "{value:#X}");
                    assert_eq!(bytes, [0xEE; Layout::MAX_SIZE]);
                }
            }
        }
        // ProfileMaximum is never a source.
        let mut bytes = [0; Layout::MAX_SIZE];
        distinctive(layout, false).encode(layout, &mut bytes).unwrap();
        bytes[at..at + 2].copy_from_slice(&[0x18, 0]);
        assert_eq!(KProfile::decode(layout, &bytes), Err(LayoutError::Source(0x18)));
    }
}

#[test]
fn a_layout_of_given_offsets_reads_what_the_row_of_the_same_offsets_does() {
    for (row, callback) in kinds() {
        let given = Layout::from_offsets(*row.offsets()).unwrap();
        let mut bytes = vec![0; row.size()];
        let mut profile = distinctive(row, callback);
        if profile.object_type == ObjectType::BasicNt3 {
            // A layout of given offsets belongs to a current Windows.
            profile.object_type = ObjectType::Basic;
        }
        profile.encode(given, &mut bytes).unwrap();
        assert_eq!(KProfile::decode(given, &bytes), Ok(profile));
        for (at, byte) in bytes.iter().enumerate().skip(4) {
            let mut original = vec![0; row.size()];
            distinctive(row, callback).encode(row, &mut original).unwrap();
            assert_eq!(*byte, original[at], "{row:?} at {at:#X}");
        }
    }
}

#[test]
fn offsets_that_do_not_fit_the_size_make_no_layout() {
    let good = *Layout::X64_WIN8.offsets();
    let size = good.size;
    for bad in [
        Offsets { size: 0, ..good },
        Offsets { size: u16::MAX, ..good },
        Offsets { link: size - 15, ..good },
        Offsets { process: size - 7, ..good },
        Offsets { range_base: size - 7, ..good },
        Offsets { range_limit: size - 7, ..good },
        Offsets { bucket_shift: size - 3, ..good },
        Offsets { buffer: u16::MAX, ..good },
        Offsets { segment: size - 3, ..good },
        Offsets { affinity: Some(size - 167), ..good },
        Offsets { groups: 22, ..good },
        Offsets { groups: 33, size: 0x158, ..good },
        Offsets { groups: u8::MAX, ..good },
        Offsets { source: Some(size - 1), ..good },
        Offsets { started: size, ..good },
    ] {
        assert_eq!(Layout::from_offsets(bad), Err(LayoutError::Offsets), "{bad:?}");
    }
    // Each of these ends exactly at the end of the structure.
    for good in [
        Offsets { process: size - 8, ..good },
        Offsets { affinity: Some(size - 168), ..good },
        Offsets { source: Some(size - 2), started: size - 1, ..good },
    ] {
        assert!(Layout::from_offsets(good).is_ok(), "{good:?}");
    }
}
