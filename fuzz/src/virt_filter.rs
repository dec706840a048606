//! Masked entries of an event filter, against KVM's rules entry by entry (Linux,
//! Documentation/virt/kvm/api.rst, KVM_SET_PMU_EVENT_FILTER).
//!
//! The bytes: action, fixed counters' bitmap, whether the filter has room for few events or for many, whether bits
//! that no entry has are taken out; then the entries.

use std::collections::BTreeSet;

use pmu_virt::policy::{EventFilter, EventPolicy, FilterAction, FilterEntry, FilterError};

use crate::input::Input;

/// Bits 7:0 and 35:32 event, 15:8 match, 55 exclude, 63:56 mask.
const KNOWN: u64 = 0xFF80_000F_0000_FFFF;

fn event(entry: u64) -> u16 {
    ((entry & 0xFF) + (entry >> 32 & 0xF) * 0x100) as u16
}

fn matches(entry: u64, of: u16, unit_mask: u8) -> bool {
    let (mask, wanted) = ((entry >> 56) as u8, (entry >> 8) as u8);
    event(entry) == of && unit_mask & mask == wanted
}

/// "If an event matches an include and no exclude, the action is for it."
fn allowed(action: FilterAction, entries: &[u64], event: u16, unit_mask: u8) -> bool {
    let of_it = || entries.iter().filter(|entry| matches(**entry, event, unit_mask));
    let included = of_it().any(|entry| entry >> 55 & 1 == 0);
    let excluded = of_it().any(|entry| entry >> 55 & 1 == 1);
    (included && !excluded) == (action == FilterAction::Allow)
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let action = if input.bool() { FilterAction::Allow } else { FilterAction::Deny };
    let (fixed, room) = (input.u32(), input.u16());
    let pardoned = input.bool();
    let mut entries = Vec::new();
    while !input.is_empty() {
        let entry = input.u64();
        entries.push(if pardoned { entry & KNOWN } else { entry });
    }

    let mut read = Vec::new();
    for entry in &entries {
        match FilterEntry::from_masked(*entry) {
            Ok(known) => {
                assert_eq!(entry & !KNOWN, 0);
                assert_eq!(known.event, event(*entry));
                assert_eq!(known.unit_mask, (entry >> 8) as u8);
                assert_eq!(
                    (known.mask, known.exclude),
                    ((entry >> 56) as u8, entry >> 55 & 1 == 1)
                );
                assert_eq!(known.to_masked(), Ok(*entry));
                read.push(known);
            }
            Err(error) => {
                assert_eq!(error, FilterError::UnknownBits(entry & !KNOWN));
                assert_ne!(entry & !KNOWN, 0);
                return;
            }
        }
    }

    match room % 3 {
        0 => compile::<3>(action, fixed, &entries, &read),
        1 => compile::<40>(action, fixed, &entries, &read),
        _ => compile::<300>(action, fixed, &entries, &read),
    }
}

fn compile<const ROOM: usize>(
    action: FilterAction,
    fixed: u32,
    entries: &[u64],
    read: &[FilterEntry],
) {
    let events: BTreeSet<u16> = entries.iter().map(|entry| event(*entry)).collect();
    let filter = match EventFilter::<ROOM>::compile(action, fixed, read) {
        Ok(filter) => filter,
        Err(FilterError::TooManyEntries(count)) => {
            assert!(count == entries.len() && count > 300);
            return;
        }
        Err(FilterError::TooManyEvents { most }) => {
            return assert!(most == ROOM && events.len() > ROOM);
        }
        Err(error) => panic!("{error:?}"),
    };
    assert!(entries.len() <= 300 && events.len() <= ROOM);
    for counter in 0..=u8::MAX {
        let listed = counter < 32 && fixed >> counter & 1 == 1;
        assert_eq!(filter.allows_fixed(counter), listed == (action == FilterAction::Allow));
    }
    // The unit masks that an entry is about, and their neighbors; of its event, and of others.
    for entry in entries {
        let unit_mask = (entry >> 8) as u8;
        let near = (0..8).map(|bit| unit_mask ^ 1 << bit);
        for unit_mask in near.chain([unit_mask, unit_mask | !((entry >> 56) as u8), 0, 0xFF]) {
            for event in [event(*entry), event(*entry) ^ 1, event(*entry) ^ 0x100, 0x1000] {
                let expected = allowed(action, entries, event, unit_mask);
                let told = filter.allows_general(event, unit_mask);
                assert_eq!(told, expected, "{event:#X}/{unit_mask:#X}");
            }
        }
    }
}
