//! A naive model of the PMU, and random programs with the same result on both. It keeps the registers in a map,
//! decodes them at each use, caches nothing, and takes the manuals' tables as written.
//!
//! Shared with the fuzz target, which feeds the same programs from its input.

mod counting;
mod program;
pub(crate) mod registers;

use pmu_virt::configuration::{
    AmdConfiguration, AmdCounters, Configuration, HiddenConfiguration, HiddenRdpmc,
    HiddenRegisters, IntelConfiguration, IntelFeature, Vendor,
};
use pmu_virt::{EventKey, FedEvents, Feed, Mode, Privilege, Read, VirtualPmu, Write};
use std::collections::HashMap;

pub(crate) use program::{Step, configuration, run};

/// Returns the fed keys, each as an event select without the bits for privileges, enabling and reading, and as a key.
fn fed() -> [(u64, EventKey); 11] {
    [
        (0x003C, EventKey::general(0x3C, 0)),
        (0x00C0, EventKey::general(0xC0, 0)),
        (0xF_0000_41D0, EventKey::general(0xFD0, 0x41)),
        (0x0004_003C, EventKey::general(0x3C, 0).edge()),
        (0x0280_00C0, EventKey::general(0xC0, 0).counter_mask(2, true)),
        (0x0020_003C, EventKey::general(0x3C, 0).any_thread()),
        // Intel's IN_TX; on AMD, the high part of an event.
        (0x0001_0000_003C, EventKey::general(0x3C, 0).in_tx()),
        // Version 6: unit mask 2 (47:40), and EQ (36) with a counter mask, without one, and inverted.
        (0x0200_0000_01D1, EventKey::general(0xD1, 0x01).with_unit_mask_2(0x02)),
        (0x0010_0200_00C0, EventKey::general(0xC0, 0).equal(2, false)),
        (0x0010_0000_003C, EventKey::general(0x3C, 0).equal(0, false)),
        (0x0010_0080_003C, EventKey::general(0x3C, 0).equal(0, true)),
    ]
}

/// Beside those, some fixed counters with events of their own.
const FED_FIXED: [(u32, bool); 4] = [(2, false), (4, false), (6, false), (2, true)];
/// The general counters' events that fixed counters count as well: SDM vol. 3B, "Fixed-function Performance Counters".
const ALIASES: [(u32, u64); 3] = [(0, 0x00C0), (1, 0x003C), (3, 0x01A4)];

fn keys() -> Vec<EventKey> {
    let fixed = FED_FIXED.map(|(counter, any_thread)| {
        let key = EventKey::fixed(counter as u8).unwrap();
        if any_thread { key.any_thread() } else { key }
    });
    [&fed().map(|(_, key)| key)[..], &fixed].concat()
}

fn events() -> FedEvents {
    FedEvents::new(&keys()).unwrap()
}

/// Counts of the fed events: user, kernel.
type Happened = [[u64; 2]; 15];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Select(u32),
    /// General counters from 0, fixed ones from 8.
    Counter(u32),
    FixedControl,
    Control,
    Status,
    Clear,
    Set,
    InUse,
    Capabilities,
    Misc,
    Debug,
    Absent,
    Foreign,
}

/// The naive model.
pub(crate) struct Naive {
    configuration: Configuration,
    /// By the lowest address of the register.
    registers: HashMap<u32, u64>,
    pending: bool,
}

fn bits(width: u8) -> u64 {
    (0..width).map(|bit| 1u64 << bit).sum()
}
