//! Walks of the lists of `KPROFILE` in images of foreign memory.

use std::collections::BTreeMap;

use super::layouts::distinctive;
use pmu_kprofile::compat::LayoutError;
use pmu_kprofile::compat::kprofile::{KProfile, ListEntry};
use pmu_kprofile::compat::layout::Layout;
use pmu_kprofile::compat::walk::{MemoryReader, Reading, WalkError, walk};
use proptest::prelude::*;

/// Foreign memory, one entry per byte.
#[derive(Default)]
struct Image(BTreeMap<u64, u8>);

/// Address of the first missing byte.
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

/// Returns the address of the `n`th object's list entry; the order of the list is not that of addresses.
fn entry(n: u64) -> u64 {
    0x9_0000 + ((n * 7) % 16) * 0x1000
}

/// Builds a list of `count` objects in memory, each with its number as the process.
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

/// Walks a list, and returns the processes of the objects found and the final error.
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

/// Each forward link in turn leads to unmapped memory.
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
        // A missing head, and a head of which half is missing.
        let unreadable = |address, reading, missing| {
            let error = NotThere(missing);
            (vec![], Some(WalkError::Unreadable { address, reading, error }))
        };
        let nothing = visit(&Image::default(), layout, 9);
        assert_eq!(nothing, unreadable(HEAD, Reading::Head, HEAD));
        let mut half = list(layout, 0);
        half.0.remove(&(HEAD + bytes));
        assert_eq!(visit(&half, layout, 9), unreadable(HEAD + bytes, Reading::Head, HEAD + bytes));
        // The last byte of an object is missing.
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
        // The last of four objects links to an earlier one or to itself instead of the head.
        for to in 0..4 {
            let mut image = list(layout, 4);
            image.put_pointer(layout, entry(3), entry(to));
            let blink = if to == 0 { HEAD } else { entry(to - 1) };
            let broken = WalkError::BrokenLink { entry: entry(to), blink };
            assert_eq!(visit(&image, layout, 99), (vec![0, 1, 2, 3], Some(broken)));
        }
        // A link returns to the head too early: the head's backward link shows it.
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
    /// A walk of a list with any damage ends within its limit.
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

/// A walk whose buffer had the size of a fixed layout would read objects of a larger one as empty.
#[test]
fn the_largest_layout_fits_every_buffer() {
    let largest = Layout::ALL.map(Layout::size).into_iter().max();
    assert_eq!(Some(Layout::MAX_SIZE), largest);
    let image = list(Layout::X64_WIN11, 3);
    assert_eq!(visit(&image, Layout::X64_WIN11, 9), (vec![0, 1, 2], None));
}
