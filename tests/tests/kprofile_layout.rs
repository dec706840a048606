//! `KPROFILE` as bytes, against the data file of its layouts; and walks of lists in images of
//! foreign memory.

mod kprofile;

use std::collections::BTreeMap;

use kprofile::{VERSIONS, source};
use pmu_core::KProfileSource;
use pmu_kprofile::compat::kprofile::{KProfile, LayoutError, ListEntry, ObjectType, Role};
use pmu_kprofile::compat::layout::{Layout, Offsets};
use pmu_kprofile::compat::walk::{MemoryReader, Reading, WalkError, walk};
use pmu_kprofile::{Affinity, PointerWidth};
use pmu_tests::{Row, data};
use proptest::prelude::*;

/// A member of a layout, by the data file.
struct Member {
    name: &'static str,
    offset: usize,
    size: usize,
}

/// The members of a layout for one kind of object; the layout's pointers in bytes, and its size.
fn members(layout: Layout, callback: bool) -> (Vec<Member>, usize, usize) {
    let rows: Vec<Row<'_>> = data!("kprofile_layouts.csv");
    let rows: Vec<_> =
        rows.into_iter().filter(|row| row.text("layout") == format!("{layout:?}")).collect();
    let number = |row: &Row<'_>, column| row.number(column) as usize;
    let (pointer, total) = (number(&rows[0], "pointer_bits") / 8, number(&rows[0], "total_size"));
    let only_basic = ["RangeBase", "RangeLimit", "BucketShift", "Buffer", "Segment"];
    let of_this_kind = rows.iter().filter(|row| match row.text("member") {
        "Callback" | "Context" => callback,
        name => !(callback && only_basic.contains(&name)),
    });
    let members = of_this_kind
        .map(|row| Member {
            name: row.text("member"),
            offset: number(row, "offset"),
            size: number(row, "size"),
        })
        .collect();
    (members, pointer, total)
}

/// Every layout with each kind of object that it has.
fn kinds() -> impl Iterator<Item = (Layout, bool)> {
    let callback = [Layout::X86_WIN7, Layout::X64_WIN8, Layout::X64_WIN11];
    let basic = Layout::ALL.map(|layout| (layout, false));
    basic.into_iter().chain(callback.map(|layout| (layout, true)))
}

/// How many groups a layout's affinity has; 0 for none, and 1 for a plain mask.
fn groups(layout: Layout) -> usize {
    match layout {
        Layout::X86_NT310 => 0,
        Layout::X86_NT351 | Layout::X86_WIN7 | Layout::X64_SERVER2003 => 1,
        Layout::X64_WIN7 => 4,
        Layout::X64_WIN8 => 20,
        Layout::X64_WIN11 => 32,
        other => panic!("{other:?}"),
    }
}

/// A profile in which no two bytes are the same by chance.
fn distinctive(layout: Layout, callback: bool) -> KProfile {
    let wide = layout.width() == PointerWidth::Bits64;
    let pointer =
        |n: u64| if wide { n * 0x0101_0101_0101_0101 + 0x0706_0504_0302_0100 } else { n << 24 | n };
    let mut affinity = Affinity::EMPTY;
    for group in 0..groups(layout) {
        let mask = pointer(0x40 + group as u64);
        affinity = affinity.union(Affinity::of_group(group as u16, mask));
    }
    KProfile {
        object_type: match (layout, callback) {
            (_, true) => ObjectType::Callback,
            (Layout::X86_NT310, _) => ObjectType::BasicNt3,
            _ => ObjectType::Basic,
        },
        link: ListEntry { flink: pointer(0x11), blink: pointer(0x12) },
        process: pointer(0x13),
        role: if callback {
            Role::Callback { callback: pointer(0x14), context: pointer(0x15) }
        } else {
            Role::Basic {
                range_base: pointer(0x16),
                range_limit: pointer(0x17),
                bucket_shift: 0x1B,
                buffer: pointer(0x18),
                // Virtual-8086 execution is x86's alone.
                segment: if wide { 0 } else { 0x191A },
            }
        },
        affinity,
        source: if groups(layout) == 0 { KProfileSource::TIME } else { source(0x1C1D) },
        started: true,
    }
}

/// The bytes that a member should have.
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
    let sizes = Layout::ALL.map(Layout::size);
    assert_eq!(sizes, [0x28, 0x2C, 0x34, 0x58, 0x78, 0xF8, 0x158]);
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

/// The members in which a decoded structure differs, by their names.
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
    use pmu_kprofile::WindowsVersion::*;
    for version in VERSIONS {
        let narrow = Layout::of(kprofile::x86(version));
        assert_eq!(
            narrow,
            Some(match version {
                _ if version < Nt351 => Layout::X86_NT310,
                _ if version < Windows7 => Layout::X86_NT351,
                _ => Layout::X86_WIN7,
            })
        );
        let wide = Layout::of(kprofile::x64(version));
        assert_eq!(
            wide,
            match version {
                _ if version < Server2003 => None,
                _ if version < Windows7 => Some(Layout::X64_SERVER2003),
                Windows7 => Some(Layout::X64_WIN7),
                Windows11 => Some(Layout::X64_WIN11),
                _ => Some(Layout::X64_WIN8),
            }
        );
        let basic = if version <= Nt351 { ObjectType::BasicNt3 } else { ObjectType::Basic };
        assert_eq!(ObjectType::basic_of(version), basic);
    }
    // Windows 7 keeps type 0x17 and has no callback objects, but its 32-bit layout's successor has.
    let with = Layout::ALL.map(Layout::has_callback_objects);
    assert_eq!(with, [false, false, true, false, false, true, true]);
}

#[test]
fn each_layout_has_the_object_types_of_its_versions() {
    assert_eq!((0x0F, 0x17, 0x11), {
        let value = ObjectType::value;
        (value(ObjectType::BasicNt3), value(ObjectType::Basic), value(ObjectType::Callback))
    });
    for layout in Layout::ALL {
        let types: &[u16] = match layout {
            Layout::X86_NT310 => &[0x0F],
            Layout::X86_NT351 => &[0x0F, 0x17],
            Layout::X86_WIN7 | Layout::X64_WIN8 | Layout::X64_WIN11 => &[0x11, 0x17],
            Layout::X64_SERVER2003 | Layout::X64_WIN7 => &[0x17],
            other => panic!("{other:?}"),
        };
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
                    // Virtual-8086 execution is x86's alone.
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
        // Of 32 groups there is none beyond.
        if layout != Layout::X64_WIN11 {
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

/// Any profile that a layout can hold.
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
                    // Virtual-8086 execution is x86's alone.
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

    /// With a plausible beginning now and then, so that the rest is looked at.
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

/// Foreign memory, byte by byte.
#[derive(Default)]
struct Image(BTreeMap<u64, u8>);

/// The first byte that is not there.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NotThere(u64);

impl MemoryReader for Image {
    type Error = NotThere;
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), NotThere> {
        for (offset, byte) in (0..).zip(buffer) {
            let at = address.checked_add(offset).ok_or(NotThere(u64::MAX))?;
            *byte = *self.0.get(&at).ok_or(NotThere(at))?;
        }
        Ok(())
    }
}

impl Image {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        self.0.extend((address..).zip(bytes.iter().copied()));
    }

    fn put_pointer(&mut self, layout: Layout, address: u64, value: u64) {
        self.put(address, &value.to_le_bytes()[..layout.width().bytes()]);
    }
}

const HEAD: u64 = 0x8_0010;

/// Where the list entry of the `n`th object is: not in the order of addresses.
fn entry(n: u64) -> u64 {
    0x9_0000 + ((n * 7) % 16) * 0x1000
}

/// A list of `count` objects in memory, each with its number for a process.
fn list(layout: Layout, count: u64) -> Image {
    let mut image = Image::default();
    let at = |n: u64| if n < count { entry(n) } else { HEAD };
    image.put_pointer(layout, HEAD, at(0));
    let last = if count == 0 { HEAD } else { entry(count - 1) };
    image.put_pointer(layout, HEAD + layout.width().bytes() as u64, last);
    for n in 0..count {
        let blink = if n == 0 { HEAD } else { entry(n - 1) };
        let link = ListEntry { flink: at(n + 1), blink };
        let profile = KProfile { link, process: 0x100 + n, ..distinctive(layout, false) };
        let mut bytes = vec![0; layout.size()];
        profile.encode(layout, &mut bytes).unwrap();
        image.put(entry(n) - layout.width().bytes() as u64, &bytes);
    }
    image
}

/// The processes of the objects found, and the error at the end.
fn visit(image: &Image, layout: Layout, limit: usize) -> (Vec<u64>, Option<WalkError<NotThere>>) {
    let mut walked = walk(image, layout, HEAD, limit);
    let mut found = Vec::new();
    for item in walked.by_ref().take(100) {
        match item {
            Ok((address, profile)) => {
                let number = found.len() as u64;
                assert_eq!(address, entry(number) - layout.width().bytes() as u64);
                found.push(profile.process - 0x100);
            }
            Err(error) => {
                assert!(walked.next().is_none(), "the error is the last item");
                return (found, Some(error));
            }
        }
    }
    assert!(walked.next().is_none());
    (found, None)
}

#[test]
fn a_walk_finds_the_objects_of_a_list_in_order() {
    for layout in Layout::ALL {
        for count in [0, 1, 2, 9] {
            let image = list(layout, count);
            assert_eq!(visit(&image, layout, 9), ((0..count).collect(), None), "{layout:?}");
        }
    }
}

#[test]
fn a_walk_ends_after_its_limit() {
    for layout in Layout::ALL {
        let image = list(layout, 9);
        assert_eq!(visit(&image, layout, 9).1, None);
        for limit in 0..9 {
            let expected = ((0..limit as u64).collect(), Some(WalkError::TooLong));
            assert_eq!(visit(&image, layout, limit), expected);
        }
        assert_eq!(visit(&list(layout, 0), layout, 0), (vec![], None));
    }
}

/// Each forward link in turn leads to a place where nothing is.
#[test]
fn a_walk_stops_at_a_pointer_to_nothing() {
    for layout in Layout::ALL {
        let bytes = layout.width().bytes() as u64;
        let max = layout.width().max_address();
        for bad in [0, 1, bytes - 1, bytes, 0x7_0000, max - bytes, max - 1, max] {
            for from in 0..=3 {
                let mut image = list(layout, 3);
                let place = if from == 0 { HEAD } else { entry(from - 1) };
                image.put_pointer(layout, place, bad);
                let (found, error) = visit(&image, layout, 9);
                assert_eq!(found, (0..from).collect::<Vec<_>>(), "{layout:?} {bad:#X}");
                let address = match error {
                    Some(WalkError::Unreadable { address, .. } | WalkError::Link(address)) => {
                        address
                    }
                    _ => panic!("{layout:?} {bad:#X}: {error:?}"),
                };
                assert!(address == bad || address == bad - bytes, "{address:#X} {bad:#X}");
            }
        }
        // No head, and a head of which half is missing.
        let unreadable = |address, reading, missing| {
            let error = NotThere(missing);
            (vec![], Some(WalkError::Unreadable { address, reading, error }))
        };
        let nothing = visit(&Image::default(), layout, 9);
        assert_eq!(nothing, unreadable(HEAD, Reading::Head, HEAD));
        let mut half = list(layout, 0);
        half.0.remove(&(HEAD + bytes));
        assert_eq!(visit(&half, layout, 9), unreadable(HEAD + bytes, Reading::Head, HEAD + bytes));
        // An object of which the last byte is missing.
        let mut cut = list(layout, 1);
        let last = entry(0) - bytes + layout.size() as u64 - 1;
        cut.0.remove(&last);
        assert_eq!(visit(&cut, layout, 9), unreadable(entry(0) - bytes, Reading::Object, last));
    }
    let mut end = list(Layout::X64_WIN8, 0);
    end.put_pointer(Layout::X64_WIN8, HEAD, u64::MAX);
    assert!(matches!(visit(&end, Layout::X64_WIN8, 9).1, Some(WalkError::Unreadable { .. })));
    for head in [0, 1, u64::MAX, u64::MAX - 8] {
        let mut walked = walk(&end, Layout::X64_WIN8, head, 9);
        let first = walked.next();
        assert!(
            matches!(first, Some(Err(WalkError::Unreadable { address, .. })) if address == head),
            "{first:?}"
        );
        assert!(walked.next().is_none());
    }
}

#[test]
fn a_walk_ends_at_any_circle() {
    for layout in Layout::ALL {
        // The last of four objects links to an earlier one, itself among them, and not to the head.
        for to in 0..4 {
            let mut image = list(layout, 4);
            image.put_pointer(layout, entry(3), entry(to));
            let blink = if to == 0 { HEAD } else { entry(to - 1) };
            let broken = WalkError::BrokenLink { entry: entry(to), blink };
            assert_eq!(visit(&image, layout, 99), (vec![0, 1, 2, 3], Some(broken)));
        }
        // One that returns to the head too early: the head's backward link tells.
        let mut image = list(layout, 4);
        image.put_pointer(layout, entry(1), HEAD);
        let broken = WalkError::BrokenLink { entry: HEAD, blink: entry(3) };
        assert_eq!(visit(&image, layout, 99), (vec![0, 1], Some(broken)));
        // An empty list whose head links back elsewhere.
        let mut image = list(layout, 1);
        image.put_pointer(layout, HEAD, HEAD);
        let broken = WalkError::BrokenLink { entry: HEAD, blink: entry(0) };
        assert_eq!(visit(&image, layout, 99), (vec![], Some(broken)));
    }
}

#[test]
fn a_walk_stops_at_a_broken_backward_link() {
    for layout in Layout::ALL {
        let bytes = layout.width().bytes() as u64;
        for at in 0..3 {
            for blink in [0, entry(5), entry(at)] {
                let mut image = list(layout, 3);
                image.put_pointer(layout, entry(at) + bytes, blink);
                let broken = WalkError::BrokenLink { entry: entry(at), blink };
                assert_eq!(visit(&image, layout, 9), ((0..at).collect(), Some(broken)));
            }
        }
    }
}

#[test]
fn a_walk_stops_at_what_is_no_profile() {
    for layout in Layout::ALL {
        let address = entry(1) - layout.width().bytes() as u64;
        for (offset, bytes, error) in [
            (0, [0x05, 0x00], LayoutError::ObjectType(5)),
            (2, [0x10, 0x00], LayoutError::SizeMember(0x10)),
        ] {
            let mut image = list(layout, 3);
            image.put(address + offset, &bytes);
            let expected = WalkError::Object { address, error };
            assert_eq!(visit(&image, layout, 9), (vec![0], Some(expected)));
        }
    }
}

proptest! {
    /// However a list is damaged, a walk ends, within its limit.
    #[test]
    fn a_walk_of_a_damaged_list_ends(
        layout in prop::sample::select(Layout::ALL.to_vec()),
        damage in prop::collection::vec((0u64..6, 0u64..2, 0u64..8, 0u64..3), 0..5),
    ) {
        let mut image = list(layout, 5);
        let bytes = layout.width().bytes() as u64;
        for (at, which, to, off) in damage {
            let place = if at == 5 { HEAD } else { entry(at) };
            let target = if to == 7 { HEAD } else { entry(to) };
            image.put_pointer(layout, place + which * bytes, target + off);
        }
        let items: Vec<_> = walk(&image, layout, HEAD, 20).take(50).collect();
        prop_assert!(items.len() <= 21);
        prop_assert!(items.iter().rev().skip(1).all(|item| item.is_ok()));
    }
}

/// A walk with a buffer of a named layout's size reads objects of a larger one as empty.
#[test]
fn the_largest_layout_fits_every_buffer() {
    let largest = Layout::ALL.map(Layout::size).into_iter().max();
    assert_eq!(Some(Layout::MAX_SIZE), largest);
    let image = list(Layout::X64_WIN11, 3);
    assert_eq!(visit(&image, Layout::X64_WIN11, 9), (vec![0, 1, 2], None));
}

#[test]
fn a_layout_of_given_offsets_reads_what_the_row_of_the_same_offsets_does() {
    for (row, callback) in kinds() {
        let given = Layout::from_offsets(*row.offsets()).unwrap();
        let mut bytes = vec![0; row.size()];
        let mut profile = distinctive(row, callback);
        if profile.object_type == ObjectType::BasicNt3 {
            // A layout of given offsets is of a current Windows.
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
    // Each at the very end.
    for good in [
        Offsets { process: size - 8, ..good },
        Offsets { affinity: Some(size - 168), ..good },
        Offsets { source: Some(size - 2), started: size - 1, ..good },
    ] {
        assert!(Layout::from_offsets(good).is_ok(), "{good:?}");
    }
}
