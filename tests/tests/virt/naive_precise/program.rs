//! Random programs, with the same result on both models.

use super::counting::{Counted, EVENTS};
use super::fed::{fed, vector_registers};
use super::memory::{RAM, Ram};
use super::registers::{BUFFER, COUNTERS, FROZEN, Naive, THRESHOLD, processor};
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::configuration::Configuration;
use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
use pmu_virt::{FedEvents, Feed, GuestFacility, Privilege, Read, VirtualPmu, Write};

/// One step of a program: four words, any of which are valid.
pub(crate) type Step = (u8, u8, u32, u64);

fn address(choice: u32) -> u32 {
    const BASES: [(u32, u32); 17] = [
        (0x3F1, 1),
        (0x3F2, 1),
        (0x3F4, 2),
        (0x3F1, 7),
        (0x600, 1),
        (0x600, 1),
        (0x186, 4),
        (0x38D, 1),
        (0x38F, 1),
        (0x38E, 4),
        (0x1D9, 1),
        (0x345, 1),
        (0x1A0, 1),
        (0x309, 3),
        (0x4C1, 4),
        (0x1900, 16),
        (0x1980, 13),
    ];
    let (base, count) = BASES[choice as usize % BASES.len()];
    let found = base + (choice >> 8) % count;
    // Not of these: the PMU answers it, but for nothing that the records need.
    if found == 0x392 { 0x38F } else { found }
}

fn value(address: u32, shape: u8, word: u64) -> u64 {
    match (shape % 8, address) {
        (0, _) => word,
        (1, _) => 1 << (word & 63),
        // The area: in the memory, rarely at its end.
        (_, 0x600) => RAM + (word & 0xF8) + if word >> 60 == 0 { 0x2F00 } else { 0 },
        (_, 0x3F4) => RAM + 0x1000 + (word & 1),
        (_, 0x3F5) => (word & 0x1F) << 4 | 1 << 32 | (word >> 8 & 0x7F) << 36,
        (2..=3, 0x186..0x18A) => word & 0x57_0004 | 0x43_00C0 | (word >> 63) << 34,
        (_, 0x186..0x18A) => word & 0x57_FFFF | 0x43_0000 | (word >> 63) << 34,
        (_, 0x38D) => word & 0xBBB | (word >> 32 & 0x111) << 32,
        (_, 0x38F | 0x3F1) => word & COUNTERS | word >> 56 & 1,
        (_, 0x3F2) => word & 0x0007_000F_1F00_003F,
        (2..=4, 0x1900..0x1990) => word & 0x60E6_0378_FFFF_FFFF | 1 << 63,
        (2..=4, 0x309..0x30C | 0x4C1..0x4C5) => (1 << 48) - 1 - (word & 7),
        (_, 0x1D9) => word & 0x17C0 | 0xC0 & word >> 32,
        (_, 0x390 | 0x391) => word & (COUNTERS | FROZEN | BUFFER | THRESHOLD),
        (_, 0x1A0) => word & 0x80 | 0x80 | (shape as u64 & 0x18) << 8,
        _ => word & 0xFFFF,
    }
}

/// Returns a word for the guest's memory: an address in it, or anything.
fn scribble(shape: u8, word: u64) -> u64 {
    match shape % 4 {
        0 => word,
        1 => RAM + word % 0x3000,
        2 => RAM + 0x1000 + (word & 0x7F8),
        _ => RAM + 0x2000,
    }
}

/// Runs a program on both models, and compares answers, memory, and after each step the state. With `saved`, the
/// records are saved and restored between any two steps. Returns how many records were written later than due, since
/// another counter's interrupt had frozen theirs.
pub(crate) fn run(words: [u8; 4], program: &[Step], saved: bool) -> u32 {
    let (configuration, own, kind, trace) = processor(words);
    let events = FedEvents::new(&EVENTS).unwrap();
    let mut pmu = VirtualPmu::new(configuration, events).unwrap();
    let mut precise = VirtualPrecise::new(&configuration, own).unwrap();
    let mut ram = Ram::new();
    let mut naive = Naive::new(kind, trace, configuration);
    let vectors = vector_registers();
    for (number, (choice, shape, place, word)) in program.iter().enumerate() {
        let told = || format!("{words:?} step {number}: {:?}", program[number]);
        match choice % 8 {
            0..=2 => {
                let address = address(*place);
                let value = value(address, *shape, *word);
                let written = pmu.write_beside(&mut precise, address, value);
                assert_eq!(written.answer, naive.write(address, value), "{} {address:#X}", told());
            }
            3 => {
                // The guest's memory: the area's words most of the time.
                let area = naive.get(0x600).clamp(RAM, RAM + 0x2F00);
                let at = area + 8 * u64::from(*place % 28);
                let value = scribble(*shape, *word);
                naive.ram.put(at, value);
                ram.put(at, value);
            }
            4 => {
                // A driver's start: area, buffer, and counters that are recorded.
                let area = RAM + (word & 0x78);
                let base = RAM + 0x1000 + (word >> 8 & 0x70);
                let words = [base, base, base + 0x1800, base + (word >> 32 & 0xFFF)];
                for (offset, word) in [0x20, 0x28, 0x30, 0x38].into_iter().zip(words) {
                    for at in [area + offset, area + offset - 0x20] {
                        naive.ram.put(at, word);
                        ram.put(at, word);
                    }
                }
                // Periods of a few events, wherever a format has them.
                for slot in (0..4).chain(8..11).chain(32..35) {
                    let period = (1 + (word >> (2 * (slot & 7)) & 3)).wrapping_neg();
                    naive.ram.put(area + 0x40 + 8 * slot, period);
                    ram.put(area + 0x40 + 8 * slot, period);
                }
                for (address, value) in naive.driver(area, *word, *shape) {
                    let written = pmu.write_beside(&mut precise, address, value);
                    assert_eq!(written.answer, naive.write(address, value), "{}", told());
                }
            }
            5 | 6 if shape >> 7 == 1 => {
                let privilege = if place & 1 == 0 { Privilege::Kernel } else { Privilege::User };
                let count = u64::from(shape & 7);
                let mut feed = Feed::new(&events);
                for key in EVENTS {
                    feed.add(events.find(key).unwrap(), privilege, count).unwrap();
                }
                let advanced = pmu.advance_beside(&mut precise, &mut feed).unwrap();
                let counted = Counted {
                    overflowed: advanced.overflowed,
                    records: advanced.records,
                    pmi: advanced.pmi,
                    left: feed.count(events.find(EVENTS[0]).unwrap(), privilege),
                };
                assert_eq!(counted, naive.count(privilege, count), "{}", told());
            }
            5 | 6 => {
                let counters = word & COUNTERS | u64::from(*shape & 0xF);
                // Records that are due already, too: of counters that were frozen meanwhile.
                if shape & 0x10 == 0 {
                    precise.overflowed(counters);
                    naive.overflowed(counters);
                }
                let vectors = (place & 1 == 1).then_some(&vectors);
                let fed = fed(*word, vectors);
                let counters = if shape >> 6 == 0 { COUNTERS } else { counters };
                let collided = shape >> 5 & 1 == 1;
                let recorded = if collided {
                    precise.record_collided(&mut pmu, counters, &fed, &mut ram)
                } else {
                    precise.record(&mut pmu, counters, &fed, &mut ram)
                };
                assert_eq!(recorded, naive.record(counters, collided, &fed), "{}", told());
            }
            _ => {
                let privilege = if shape & 1 == 0 { Privilege::Kernel } else { Privilege::User };
                let branch = FedBranch {
                    mispredicted: shape & 2 != 0,
                    ..FedBranch::new(*word, !*word, FedBranchKind::Far, privilege)
                };
                let recorded = precise.branch(&mut pmu, &branch, &mut ram);
                assert_eq!(recorded, naive.branch(&branch), "{}", told());
            }
        }
        assert_eq!(precise.due(), naive.due, "{}", told());
        assert_eq!(pmu.pmi_pending(), naive.pmi, "{}", told());
        assert!(ram == naive.ram, "{}", told());
        let all = [0x186..0x18A, 0x309..0x30C, 0x38D..0x392, 0x3F1..0x3F8, 0x4C1..0x4C5];
        let further = [
            0x600..0x601,
            0x1D9..0x1DA,
            0x1A0..0x1A1,
            0x345..0x346,
            0x1900..0x1910,
            0x1980..0x198D,
        ];
        for address in all.into_iter().chain(further).flatten() {
            let expected = naive.read(address);
            assert_eq!(pmu.read_beside(&precise, address), expected, "{} {address:#X}", told());
        }
        if saved {
            precise = through_bytes_and_registers(&configuration, own, &mut pmu, &precise);
        }
    }
    naive.late
}

/// Returns the records after they were saved as bytes and restored, and as registers and restored: both are the same.
fn through_bytes_and_registers(
    configuration: &Configuration,
    own: PreciseConfiguration,
    pmu: &mut VirtualPmu,
    precise: &VirtualPrecise,
) -> VirtualPrecise {
    let mut by_bytes = VirtualPrecise::new(configuration, own).unwrap();
    by_bytes.restore(&precise.to_bytes()).unwrap();
    assert_eq!(by_bytes, *precise);
    let mut by_registers = VirtualPrecise::new(configuration, own).unwrap();
    let mut there = VirtualPmu::new(*configuration, *pmu.events()).unwrap();
    let listed = configuration.registers().chain(precise.registers()).filter(|one| one.is_state);
    for register in listed {
        if let Read::Value(value) | Read::Shared { value, .. } =
            pmu.read_beside(precise, register.address)
        {
            let written = there.host_write_beside(&mut by_registers, register.address, value);
            assert_ne!(written.answer, Write::GeneralProtection, "{:#X}", register.address);
        }
    }
    there.set_pmi_pending(pmu.pmi_pending());
    // No register holds which records are due.
    by_registers.overflowed(precise.due());
    assert_eq!(by_registers, *precise);
    assert_eq!(there.state(), pmu.state());
    *pmu = there;
    by_bytes
}
