//! The layouts of `KPROFILE` by the data file, and a profile for each.

use pmu_core::profile::KProfileSource;
use pmu_kprofile::compat::kprofile::{KProfile, ListEntry, ObjectType, Role};
use pmu_kprofile::compat::layout::Layout;
use pmu_kprofile::{Affinity, PointerWidth};
use pmu_tests::kprofile::source;
use pmu_tests::{Row, data};

/// A member of a layout, by the data file.
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// Returns the members of a layout for one kind of object, the layout's pointer size in bytes, and its size.
pub(crate) fn members(layout: Layout, callback: bool) -> (Vec<Member>, usize, usize) {
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

/// Returns every layout with each kind of object that it has, by the data file.
pub(crate) fn kinds() -> impl Iterator<Item = (Layout, bool)> {
    let has_callbacks = |layout: &Layout| {
        let (members, ..) = members(*layout, true);
        members.iter().any(|member| member.name == "Callback")
    };
    let callback = Layout::ALL.into_iter().filter(has_callbacks);
    Layout::ALL.into_iter().map(|layout| (layout, false)).chain(callback.map(|it| (it, true)))
}

/// Returns the number of groups of a layout's affinity, by the data file; 0 without an affinity, 1 for a plain mask.
pub(crate) fn groups(layout: Layout) -> usize {
    let (members, pointer, _) = members(layout, false);
    match members.iter().find(|member| member.name == "Affinity") {
        None => 0,
        Some(mask) if mask.size == pointer => 1,
        // KAFFINITY_EX: a head of 8 bytes.
        Some(affinity) => (affinity.size - 8) / pointer,
    }
}

/// Returns a profile in which no two bytes agree by chance.
pub(crate) fn distinctive(layout: Layout, callback: bool) -> KProfile {
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
                // Only x86 has virtual-8086 execution.
                segment: if wide { 0 } else { 0x191A },
            }
        },
        affinity,
        source: if groups(layout) == 0 { KProfileSource::TIME } else { source(0x1C1D) },
        started: true,
    }
}
