//! `KPROFILE` from arbitrary bytes, in every layout, against a decoder that knows the data file alone.

use std::collections::HashMap;
use std::sync::LazyLock;

use pmu_kprofile::compat::LayoutError;
use pmu_kprofile::compat::kprofile::{KProfile, ObjectType, Role};
use pmu_kprofile::compat::layout::Layout;
use pmu_kprofile::{MAX_GROUPS, PointerWidth, Rules, WindowsVersion};

use crate::input::number;

/// The members of a layout: offset and size, by name.
struct Members {
    size: usize,
    pointer: usize,
    places: HashMap<&'static str, (usize, usize)>,
}

static MEMBERS: LazyLock<Vec<(Layout, Members)>> = LazyLock::new(|| {
    let rows = pmu_tests::rows(include_str!("../../tests/data/kprofile_layouts.csv"));
    Layout::ALL
        .into_iter()
        .map(|layout| {
            let name = format!("{layout:?}");
            let of_it: Vec<_> = rows.iter().filter(|row| row.text("layout") == name).collect();
            let place = |column| of_it[0].number(column) as usize;
            let members = Members {
                size: place("total_size"),
                pointer: place("pointer_bits") / 8,
                places: of_it
                    .iter()
                    .map(|row| {
                        let (offset, size) = (row.number("offset"), row.number("size"));
                        (row.text("member"), (offset as usize, size as usize))
                    })
                    .collect(),
            };
            (layout, members)
        })
        .collect()
});

impl Members {
    fn has(&self, member: &str) -> bool {
        self.places.contains_key(member)
    }

    /// Returns a member's value; 0 for a member that the layout lacks.
    fn get(&self, bytes: &[u8], member: &str) -> u64 {
        self.places.get(member).map_or(0, |(offset, size)| number(bytes, *offset, *size))
    }

    /// Returns the number of groups of the affinity: one in a plain mask. A `KAFFINITY_EX` has two shorts and a long
    /// before its masks.
    fn groups(&self) -> usize {
        match self.places.get("Affinity") {
            None => 0,
            Some((_, size)) if *size == self.pointer => 1,
            Some((_, size)) => (size - 8) / self.pointer,
        }
    }

    /// Returns the masks of the affinity, if its count is possible.
    fn affinity(&self, bytes: &[u8]) -> Option<Vec<u64>> {
        let Some((offset, size)) = self.places.get("Affinity") else { return Some(vec![]) };
        if *size == self.pointer {
            return Some(vec![number(bytes, *offset, *size)]);
        }
        let count = number(bytes, *offset, 2) as usize;
        let mask = |group| number(bytes, offset + 8 + group * self.pointer, self.pointer);
        (count <= self.groups()).then(|| (0..count).map(mask).collect())
    }
}

/// Returns whether an object of the layout can have the type: 0x0F up to version 3.51, 0x17 from 3.51's layout on (it
/// came with 4.0), 0x11 from 6.2 on, whose layouts are the last of each width.
fn has_type(layout: Layout, value: u64) -> bool {
    match value {
        0x0F => matches!(layout, Layout::X86_NT310 | Layout::X86_NT351),
        0x17 => layout != Layout::X86_NT310,
        0x11 => {
            let first = Rules { version: WindowsVersion::Windows8, width: layout.width() };
            let place =
                |wanted: Option<Layout>| Layout::ALL.iter().position(|it| Some(*it) == wanted);
            place(Some(layout)) >= place(Layout::of(first))
        }
        _ => false,
    }
}

/// Returns the largest segment: only x86 has virtual-8086 execution.
fn largest_segment(layout: Layout) -> u64 {
    if layout.width() == PointerWidth::Bits32 { 0xFFFF } else { 0 }
}

/// Returns whether the error is true of the bytes.
fn is_true(error: LayoutError, layout: Layout, members: &Members, bytes: &[u8]) -> bool {
    let get = |member| members.get(bytes, member);
    match error {
        LayoutError::TooShort { needed, given } => {
            (needed, given) == (members.size, bytes.len()) && given < needed
        }
        LayoutError::ObjectType(value) => {
            get("Type") == u64::from(value) && !has_type(layout, value.into())
        }
        LayoutError::SizeMember(value) => {
            get("Size") == u64::from(value) && usize::from(value) != members.size
        }
        LayoutError::Source(value) => get("Source") == 0x18 && value == 0x18,
        LayoutError::Segment(value) => {
            get("Segment") == u64::from(value) && u64::from(value) > largest_segment(layout)
        }
        LayoutError::BucketShift(value) => get("BucketShift") == u64::from(value) && value > 29,
        LayoutError::Affinity => members.affinity(bytes).is_none(),
        _ => false,
    }
}

/// Returns whether the bytes are a valid structure.
fn is_good(layout: Layout, members: &Members, bytes: &[u8]) -> bool {
    let get = |member| members.get(bytes, member);
    let callback = get("Type") == 0x11;
    bytes.len() >= members.size
        && has_type(layout, get("Type"))
        && get("Size") == members.size as u64
        && (callback || get("BucketShift") <= 29 && get("Segment") <= largest_segment(layout))
        && get("Source") != 0x18
        && members.affinity(bytes).is_some()
}

fn assert_read(members: &Members, bytes: &[u8], profile: &KProfile) {
    let get = |member| members.get(bytes, member);
    assert_eq!(u64::from(profile.object_type.value()), get("Type"));
    let (entry, _) = members.places["ProfileListEntry"];
    assert_eq!(profile.link.flink, number(bytes, entry, members.pointer));
    assert_eq!(profile.link.blink, number(bytes, entry + members.pointer, members.pointer));
    assert_eq!(profile.process, get("Process"));
    assert_eq!(profile.started, get("Started") != 0);
    assert_eq!(profile.source.value() as i32, i32::from(get("Source") as i16));
    let masks = members.affinity(bytes).unwrap();
    for group in 0..MAX_GROUPS {
        assert_eq!(profile.affinity.mask(group), masks.get(group).copied().unwrap_or(0));
    }
    match profile.role {
        Role::Callback { callback, context } => {
            assert_eq!(profile.object_type, ObjectType::Callback);
            assert_eq!((callback, context), (get("Callback"), get("Context")));
        }
        Role::Basic { range_base, range_limit, bucket_shift, buffer, segment } => {
            assert_ne!(profile.object_type, ObjectType::Callback);
            assert_eq!((range_base, range_limit), (get("RangeBase"), get("RangeLimit")));
            assert_eq!((u64::from(bucket_shift), buffer), (get("BucketShift"), get("Buffer")));
            assert_eq!(u64::from(segment), get("Segment"));
        }
    }
}

/// Asserts that a written structure reads back as the same, that nothing behind it changes, and that an error changes
/// nothing.
fn assert_written(
    profile: &KProfile,
    layout: Layout,
    members: &Members,
) -> Result<(), LayoutError> {
    const FILL: u8 = 0xA5;
    let mut room = [FILL; Layout::MAX_SIZE + 0x10];
    match profile.encode(layout, &mut room) {
        Ok(size) => {
            assert_eq!(size, members.size);
            assert!(room[size..].iter().all(|byte| *byte == FILL));
            assert_eq!(KProfile::decode(layout, &room), Ok(*profile));
            let short = &mut [FILL; Layout::MAX_SIZE + 0x10][..size - 1];
            let too_short = LayoutError::TooShort { needed: size, given: size - 1 };
            assert_eq!(profile.encode(layout, short), Err(too_short));
            assert!(short.iter().all(|byte| *byte == FILL));
            Ok(())
        }
        Err(error) => {
            assert!(room.iter().all(|byte| *byte == FILL));
            Err(error)
        }
    }
}

/// Runs the target. The bytes are a structure, and arbitrary bytes behind it.
pub fn run(bytes: &[u8]) {
    for (layout, members) in &*MEMBERS {
        assert_eq!((layout.size(), layout.width().bytes()), (members.size, members.pointer));
        let decoded = KProfile::decode(*layout, bytes);
        assert_eq!(decoded.is_ok(), is_good(*layout, members, bytes), "{layout:?}: {decoded:?}");
        let profile = match decoded {
            Err(error) => {
                assert!(is_true(error, *layout, members, bytes), "{layout:?}: {error:?}");
                continue;
            }
            Ok(profile) => profile,
        };
        assert_read(members, bytes, &profile);
        assert_eq!(assert_written(&profile, *layout, members), Ok(()));
        // Another layout has it, or says why not.
        for (other, members) in &*MEMBERS {
            match assert_written(&profile, *other, members) {
                Ok(()) => {}
                Err(LayoutError::ObjectType(value)) => assert!(!has_type(*other, value.into())),
                Err(LayoutError::Address(value)) => {
                    assert!(other.width() == PointerWidth::Bits32 && value > u32::MAX.into());
                }
                Err(LayoutError::Affinity) => {
                    let (groups, most) = (members.groups(), other.width().max_address());
                    let fits = |group| {
                        let mask = profile.affinity.mask(group);
                        mask == 0 || group < groups && mask <= most
                    };
                    assert!(!(0..MAX_GROUPS).all(fits));
                }
                // Virtual-8086 execution is x86's alone.
                Err(LayoutError::Segment(segment)) => {
                    assert!(other.width() == PointerWidth::Bits64 && segment != 0);
                }
                Err(LayoutError::NoSourceOrAffinity) => {
                    assert!(!members.has("Source"));
                    assert!(profile.source.value() != 0 || !profile.affinity.is_empty());
                }
                Err(error) => panic!("{other:?}: {error:?}"),
            }
        }
    }
}
