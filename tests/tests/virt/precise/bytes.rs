//! Records as bytes.

use super::guest::*;
use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
use pmu_virt::{BytesError, GuestFacility, VirtualPmu};

#[test]
fn forged_bytes_are_refused_or_come_back_as_they_were() {
    let configurations = [
        (intel(5), PreciseConfiguration::debug_store(4)),
        (intel(2), PreciseConfiguration::debug_store(0)),
        (intel(6), PreciseConfiguration::ARCHITECTURAL),
        (intel(4), PreciseConfiguration::BRANCH_TRACE),
    ];
    for (pmu, own) in configurations {
        let mut precise = VirtualPrecise::new(&pmu, own).unwrap();
        let bytes = precise.to_bytes();
        let mut taken = 0;
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut forged = bytes;
                forged[place] ^= 1 << bit;
                match precise.restore(&forged) {
                    Ok(()) => {
                        assert_eq!(precise.to_bytes(), forged);
                        taken += 1;
                        precise.restore(&bytes).unwrap();
                    }
                    Err(error) => {
                        assert_eq!(precise.to_bytes(), bytes);
                        let header = match place {
                            0..4 => BytesError::Malformed { at: 0 },
                            4 | 5 => BytesError::Version(1 ^ 1 << (bit + 8 * (place - 4))),
                            6..24 => BytesError::Malformed { at: 6 },
                            _ => BytesError::Malformed { at: 24 },
                        };
                        assert_eq!(error, header);
                    }
                }
            }
        }
        assert!(taken > 40, "{own:?}: {taken}");
        assert_eq!(precise.restore(&bytes[1..]), Err(BytesError::Length(239)));
    }
}

/// After a restore from bytes, the PMU learns by `attach` which counters write records.
#[test]
fn a_restored_guest_goes_on_recording() {
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    guest.buffer(0x800, 0x800);
    guest.sample(1_000);
    let mut there = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    there.pmu = VirtualPmu::restore(&guest.pmu.state(), intel(5), guest.events).unwrap();
    there.precise.restore(&guest.precise.to_bytes()).unwrap();
    there.ram = guest.ram.clone();
    there.pmu.attach(&there.precise);
    let (_, advanced) = there.feed(1_000);
    assert_eq!((advanced.records, there.precise.due()), (1, 1));
    assert_eq!(there.record(&FedRecord::new(1)).written, 1);
    // A reset forgets everything.
    there.pmu.reset();
    there.precise.reset();
    assert_eq!(
        there.precise,
        VirtualPrecise::new(&intel(5), PreciseConfiguration::debug_store(4)).unwrap()
    );
}

/// The table of `src/bytes/precise.rs`, by hand.
#[test]
fn records_as_bytes_have_their_layout() {
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    for (address, value) in [
        (0x600, 0x1234_5000),
        (0x3F1, 0x2_0000_0001),
        (0x3F2, 0x0700_0003),
        (0x3F6, 0x20),
        (0x3F7, 0x12),
        (0x186, 1 << 34 | 0x43_00C4),
        (0x391, 1 << 62),
    ] {
        guest.write(address, value);
    }
    guest.precise.overflowed(1);
    let mut bytes = Vec::from(*b"vPBS\x01\0\x01\0");
    // Format 4; all counters, of which the PMU of version 5 has four and three; flags 0 baseline, 1 load latency, 2
    // front end.
    bytes.extend([4, 0xFF, 0xFF, 0b111, 0, 0, 0, 0, 0, 0, 5, 0xF, 7, 0, 0, 0]);
    let words = [1, 1 << 62, 0, 0x1234_5000, 0x2_0000_0001, 0x0700_0003, 0x20, 0x12, 1, 0, 0];
    bytes.extend(words.into_iter().chain([0; 16]).flat_map(u64::to_le_bytes));
    assert_eq!(guest.precise.to_bytes().as_slice(), bytes);

    let mut guest = Guest::new(intel(6), PreciseConfiguration::ARCHITECTURAL);
    guest.write(0x3F4, 0x9_8765_4003);
    guest.write(0x3F5, 0x10_0000_0000 | 1 << 32 | 0x40);
    guest.write(0x1907, 1 << 63 | 0xFFFF_FFF0);
    guest.write(0x3F6, 0x21);
    guest.write(0x3F7, 0x13);
    guest.write(0x198B, 1 << 61 | 7);
    let mut bytes = Vec::from(*b"vPBS\x01\0\x02\0");
    // Flags 1 load latency, 2 front end; all groups, whose places are 0x60E60378; of each kind counter 0 is exact.
    bytes.extend([0, 0xFF, 0xFF, 0b110, 0x78, 0x03, 0xE6, 0x60, 1, 1, 6, 0xF, 7, 0, 0, 0]);
    let words = [0, 0, 0, 0, 0, 0, 0x21, 0x13, 0, 0x9_8765_4003, 0x11_0000_0040];
    let mut controls = [0; 16];
    controls[1] = 1 << 63 | 0xFFFF_FFF0;
    controls[10] = 1 << 61 | 7;
    bytes.extend(words.into_iter().chain(controls).flat_map(u64::to_le_bytes));
    assert_eq!(guest.precise.to_bytes().as_slice(), bytes);
}

/// Each word of the state with a value that no guest can have written, by the manuals' reserved bits.
#[test]
fn a_state_that_no_guest_can_reach_is_refused() {
    let store = (intel(5), PreciseConfiguration::debug_store(4));
    let trace = (intel(4), PreciseConfiguration::BRANCH_TRACE);
    let architectural = (intel(6), PreciseConfiguration::ARCHITECTURAL);
    for ((pmu, own), word, value) in [
        // A record that is due of a counter that writes none.
        (store, 0, 1),
        (store, 1, 1 << 54),
        (store, 2, 1 << 7),
        // An address that is not canonical.
        (store, 3, 1 << 60),
        (store, 4, 1 << 4),
        (store, 5, 1 << 4),
        (store, 6, 1 << 16),
        (store, 7, 1 << 23),
        (store, 8, 1 << 4),
        (store, 9, 1 << 12),
        (store, 10, 1 << 32),
        (store, 11, 1),
        (trace, 1, 1 << 54),
        (trace, 2, 1 << 11),
        (trace, 4, 1),
        (architectural, 1, 1 << 62),
        (architectural, 3, 0x1000),
        (architectural, 9, 1 << 5),
        (architectural, 10, 1 << 27),
        // CFG_C of general counters 1 and 4, and of fixed counter 3.
        (architectural, 12, 1 << 42),
        (architectural, 15, 1),
        (architectural, 22, 1),
    ] {
        let mut precise = VirtualPrecise::new(&pmu, own).unwrap();
        let before = precise;
        let mut forged = precise.to_bytes();
        forged[24 + 8 * word..][..8].copy_from_slice(&u64::to_le_bytes(value));
        let refused = precise.restore(&forged);
        assert_eq!(refused, Err(BytesError::Malformed { at: 24 }), "word {word} of {own:?}");
        assert_eq!(precise, before);
    }
}
