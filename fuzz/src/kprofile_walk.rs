//! Walks of lists in arbitrary images, against a walk by hand.
//!
//! The bytes: layout, limit, the head's address; then pieces of the image, the later over the earlier,
//! each an address and bytes with their number, a list entry, or a profile object with its links.

use core::cell::RefCell;
use std::collections::BTreeMap;

use pmu_core::profile::KProfileSource;
use pmu_kprofile::compat::kprofile::{KProfile, ListEntry, ObjectType, Role};
use pmu_kprofile::compat::layout::Layout;
use pmu_kprofile::compat::walk::{MemoryReader, Reading, WalkError, walk};
use pmu_kprofile::{Affinity, PointerWidth};

use crate::input::Input;

/// Memory by address, and a record of its reads.
#[derive(Default)]
struct Image {
    memory: BTreeMap<u64, u8>,
    reads: RefCell<Vec<(u64, usize)>>,
}

impl Image {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        for (place, byte) in (0..).zip(bytes) {
            self.memory.insert(address.wrapping_add(place), *byte);
        }
    }

    fn get(&self, address: u64, size: usize) -> Option<Vec<u8>> {
        let byte = |place| self.memory.get(&address.checked_add(place)?).copied();
        (0..size as u64).map(byte).collect()
    }

    fn pointer(&self, address: u64, width: PointerWidth) -> Option<u64> {
        let bytes = self.get(address, width.bytes())?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

/// The reader's reason.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NotThere;

impl MemoryReader for Image {
    type Error = NotThere;
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), NotThere> {
        self.reads.borrow_mut().push((address, buffer.len()));
        let bytes = self.get(address, buffer.len()).ok_or(NotThere)?;
        buffer.copy_from_slice(&bytes);
        Ok(())
    }
}

/// An object that is good in every layout that has its type.
fn object(layout: Layout, callback: bool, link: ListEntry) -> Vec<u8> {
    let role = if callback && layout.has_callback_objects() {
        Role::Callback { callback: 0x1000, context: 0x2000 }
    } else {
        let segment = if layout.width() == PointerWidth::Bits32 { 5 } else { 0 };
        Role::Basic { range_base: 1, range_limit: 2, bucket_shift: 3, buffer: 4, segment }
    };
    let object_type = match (role, layout) {
        (Role::Callback { .. }, _) => ObjectType::Callback,
        (_, Layout::X86_NT310) => ObjectType::BasicNt3,
        _ => ObjectType::Basic,
    };
    let (affinity, source) = (Affinity::EMPTY, KProfileSource::TIME);
    let profile = KProfile { object_type, link, process: 7, role, affinity, source, started: true };
    let mut bytes = vec![0; layout.size()];
    profile.encode(layout, &mut bytes).unwrap();
    bytes
}

/// Walks the list by hand: its objects, and its fault.
fn by_hand(
    image: &Image,
    layout: Layout,
    head: u64,
    limit: usize,
) -> (Vec<(u64, KProfile)>, Option<WalkError<NotThere>>) {
    let unreadable =
        |address, reading| Some(WalkError::Unreadable { address, reading, error: NotThere });
    let width = layout.width();
    let mut found = Vec::new();
    let Some(mut entry) = image.pointer(head, width) else {
        return (found, unreadable(head, Reading::Head));
    };
    let mut previous = head;
    while entry != head {
        if found.len() == limit {
            return (found, Some(WalkError::TooLong));
        }
        // The entry is the second member, aligned to its own pointers.
        let Some(address) = entry.checked_sub(width.bytes() as u64) else {
            return (found, Some(WalkError::Link(entry)));
        };
        let Some(bytes) = image.get(address, layout.size()) else {
            return (found, unreadable(address, Reading::Object));
        };
        let object = match KProfile::decode(layout, &bytes) {
            Ok(object) => object,
            Err(error) => return (found, Some(WalkError::Object { address, error })),
        };
        if object.link.blink != previous {
            let blink = object.link.blink;
            return (found, Some(WalkError::BrokenLink { entry, blink }));
        }
        found.push((address, object));
        (previous, entry) = (entry, object.link.flink);
    }
    let blink_at = head.wrapping_add(width.bytes() as u64);
    match image.pointer(blink_at, width) {
        None => (found, unreadable(blink_at, Reading::Head)),
        Some(blink) if blink != previous => (found, Some(WalkError::BrokenLink { entry, blink })),
        Some(_) => (found, None),
    }
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let layout = Layout::ALL[usize::from(input.u8()) % Layout::ALL.len()];
    let limit = usize::from(input.u8());
    let head = input.u64();
    let mut image = Image::default();
    while !input.is_empty() {
        let (kind, address) = (input.u8(), input.u64());
        match kind % 4 {
            0 => {
                let size = input.u8().into();
                image.put(address, input.bytes(size));
            }
            1 => {
                let width = layout.width().bytes();
                let (flink, blink) = (input.u64().to_le_bytes(), input.u64().to_le_bytes());
                image.put(address, &[&flink[..width], &blink[..width]].concat());
            }
            callback => {
                let most = layout.width().max_address();
                let link = ListEntry { flink: input.u64() & most, blink: input.u64() & most };
                image.put(address, &object(layout, callback == 3, link));
            }
        }
    }

    let mut found = Vec::new();
    let mut error = None;
    for item in walk(&image, layout, head, limit).take(limit + 2) {
        assert_eq!(error, None, "an error is the last item");
        match item {
            Ok(object) => found.push(object),
            Err(wrong) => error = Some(wrong),
        }
    }
    assert_eq!((&found, error), (&by_hand(&image, layout, head, limit).0, error));
    assert_eq!(error, by_hand(&image, layout, head, limit).1);
    assert!(found.len() <= limit);
    let mut addresses: Vec<u64> = found.iter().map(|(address, _)| *address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), found.len(), "an object was visited twice");
    // The head's two pointers, and each object once; one more at which it stopped.
    let reads = image.reads.into_inner();
    assert!(reads.len() <= found.len() + 2, "{reads:X?}");
    let sizes = [layout.width().bytes(), layout.size()];
    assert!(reads.iter().all(|(_, size)| sizes.contains(size)));
}
