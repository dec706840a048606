//! The matrix of configurations, and short ways to drive a model.
#![allow(missing_docs, reason = "parts of tests")]

pub mod intel;

use pmu_virt::configuration::{
    AmdConfiguration, Configuration, IntelConfiguration, IntelFeature, Vendor,
};
use pmu_virt::{EventKey, FedEvents, Feed, Mode, Privilege, Read, VirtualPmu, Write};

pub const KERNEL: Mode = Mode { cpl: 0, pce: false, protected: true };
/// UnHalted Core Cycles, SDM vol. 3B, table of the architectural events.
pub const CYCLES: EventKey = EventKey::general(0x3C, 0x00);
/// Instructions Retired.
pub const INSTRUCTIONS: EventKey = EventKey::general(0xC0, 0x00);

/// The events that the tests feed: all fixed counters, of which the first two count instructions and cycles.
pub const FED: [EventKey; 8] = [
    INSTRUCTIONS,
    CYCLES,
    EventKey::fixed(2).unwrap(),
    EventKey::fixed(3).unwrap(),
    EventKey::fixed(4).unwrap(),
    EventKey::fixed(5).unwrap(),
    EventKey::fixed(6).unwrap(),
    EventKey::fixed(7).unwrap(),
];

pub fn events() -> FedEvents {
    FedEvents::new(&FED).unwrap()
}

/// The events of these numbers, without unit masks.
pub fn general_events(numbers: &[u8]) -> FedEvents {
    let keys: Vec<_> = numbers.iter().map(|of| EventKey::general((*of).into(), 0)).collect();
    FedEvents::new(&keys).unwrap()
}

/// A feed in which one of these events happens in user mode.
pub fn general_feed(numbers: &[u8], which: usize, count: u64) -> Feed {
    let events = general_events(numbers);
    let mut feed = Feed::new(&events);
    let event = events.find(EventKey::general(numbers[which].into(), 0)).unwrap();
    feed.add(event, Privilege::User, count).unwrap();
    feed
}

/// Changes each byte of a saved state in turn. `restore` refuses the changed bytes, which is `None`, or returns the
/// bytes that the restored state is saved as: the changed ones.
pub fn each_forged(bytes: &[u8], mut restore: impl FnMut(&[u8]) -> Option<Vec<u8>>) {
    for at in 0..bytes.len() {
        for change in [1, 0x80, 0xFF] {
            let mut forged = bytes.to_vec();
            forged[at] ^= change;
            assert!(restore(&forged).is_none_or(|written| written == forged), "{at}");
        }
    }
}

pub fn pmu(configuration: Configuration) -> VirtualPmu {
    VirtualPmu::new(configuration, events()).unwrap()
}

/// Versions 1–6 × {1, 4, 8} general × {0, 3, 4} fixed × 40 and 48 bits × full-width writes off and
/// on. Version 1 has no fixed counters: 12 configurations of it, and 36 of each other.
pub fn intel_matrix() -> impl Iterator<Item = IntelConfiguration> {
    let general = [1, 4, 8];
    let fixed = [0, 3, 4];
    (1..=6).flat_map(move |version| {
        general.into_iter().flat_map(move |general| {
            fixed.into_iter().filter(move |fixed| version > 1 || *fixed == 0).flat_map(
                move |fixed| {
                    [(40, false), (40, true), (48, false), (48, true)].map(|(width, full)| {
                        IntelConfiguration::new(version, general, fixed).with(|intel| {
                            intel.general_width = width;
                            intel.fixed_width = width;
                            intel.set(IntelFeature::FullWidthWrites, full);
                        })
                    })
                },
            )
        })
    })
}

pub const AMD_MATRIX: [(AmdConfiguration, u32); 5] = [
    (AmdConfiguration::LEGACY, 4),
    (AmdConfiguration::CORE_EXTENSION, 6),
    (AmdConfiguration::perf_mon_v2(4), 4),
    (AmdConfiguration::perf_mon_v2(6), 6),
    (AmdConfiguration::perf_mon_v2(8), 8),
];

pub const HIDDEN: [Configuration; 2] =
    [Configuration::hidden(Vendor::Intel), Configuration::hidden(Vendor::Amd)];

/// Every configuration that the tests run on.
pub fn matrix() -> impl Iterator<Item = Configuration> {
    intel_matrix()
        .map(Configuration::Intel)
        .chain(AMD_MATRIX.map(|(amd, _)| Configuration::Amd(amd)))
        .chain(HIDDEN)
}

/// WRMSR that must be taken as legal.
#[track_caller]
pub fn set(pmu: &mut VirtualPmu, address: u32, value: u64) {
    let written = pmu.write(address, value);
    assert_eq!((written.answer, written.illegal), (Write::Done, 0), "{address:#X} {value:#X}");
}

/// RDMSR that must have a value.
#[track_caller]
pub fn get(pmu: &VirtualPmu, address: u32) -> u64 {
    match pmu.read(address) {
        Read::Value(value) => value,
        other => panic!("{address:#X}: {other:?}"),
    }
}

#[track_caller]
pub fn write_faults(pmu: &mut VirtualPmu, address: u32, value: u64) {
    assert_eq!(
        pmu.write(address, value).answer,
        Write::GeneralProtection,
        "{address:#X} {value:#X}"
    );
}

#[track_caller]
pub fn read_faults(pmu: &VirtualPmu, address: u32) {
    assert_eq!(pmu.read(address), Read::GeneralProtection, "{address:#X}");
}

/// `count` of the event in this privilege, and nothing else.
pub fn feed(key: EventKey, privilege: Privilege, count: u64) -> Feed {
    let mut feed = Feed::new(&events());
    feed.add(events().find(key).unwrap(), privilege, count).unwrap();
    feed
}

pub fn happen(
    pmu: &mut VirtualPmu,
    key: EventKey,
    privilege: Privilege,
    count: u64,
) -> pmu_virt::Advanced {
    pmu.advance(&mut feed(key, privilege, count)).unwrap()
}

pub fn mask(width: u8) -> u64 {
    ((1u128 << width) - 1) as u64
}

/// The lowest `count` bits.
pub fn low(count: u32) -> u64 {
    (1 << count) - 1
}
