//! Overflows, records and traced branches.

use super::guest::*;
use crate::naive_precise::fed::{registers, vector_registers};
use crate::naive_precise::memory::RAM;
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::precise::{FedRecord, GuestFault, GuestMemory, PreciseConfiguration};
use pmu_virt::{GuestFacility, Privilege, Write};

#[test]
fn an_overflow_is_recorded_and_neither_sets_its_status_bit_nor_interrupts() {
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    guest.buffer(0x800, 2 * 32);
    guest.sample(1_000);
    let branches = guest.events.find(BRANCHES).unwrap();
    assert_eq!(guest.pmu.next_overflow().of(branches, Privilege::User), Some(1_000));
    for number in 0..4u64 {
        // The feed stops at the overflow: what comes after it is counted after the record.
        let (rest, advanced) = guest.feed(1_500);
        assert_eq!((advanced.overflowed, advanced.records, advanced.pmi), (1, 1, false));
        assert_eq!(rest.count(branches, Privilege::User), 500);
        assert_eq!(guest.precise.due(), 1);
        let recorded = guest.record(&FedRecord::new(0x40_0000 + number));
        assert_eq!((recorded.written, recorded.lost, recorded.fault), (1, 0, None));
        // From the second record on the index is at the threshold.
        assert_eq!(recorded.pmi, number >= 1);
        assert_eq!(guest.read(0x38E), if number >= 1 { 1 << 62 } else { 0 });
        assert_eq!(guest.pmu.pmi_pending(), number >= 1);
        // Reloaded.
        assert_eq!(guest.read(0x4C1), FULL - 1_000);
        assert_eq!(guest.precise.due(), 0);
        assert_eq!(guest.ram.word(AREA + 0x28), Ok(BUFFER + 32 * (number + 1)));
        assert_eq!(guest.ram.word(BUFFER + 32 * number + 8), Ok(0x40_0000 + number));
    }
    // The acknowledgement forgets the buffer's overflow, and nothing else does.
    guest.write(0x390, 1);
    assert_eq!(guest.read(0x38E), 1 << 62);
    guest.write(0x390, 1 << 62);
    assert_eq!(guest.read(0x38E), 0);
}

/// An overflow whose counter does not write records beside one that does.
#[test]
fn another_counter_interrupts_as_without_records() {
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    guest.buffer(0x800, 0x800);
    guest.sample(100);
    guest.write(0x4C2, FULL - 100);
    guest.write(0x187, 0x53_00C4);
    let (_, advanced) = guest.feed(100);
    assert_eq!((advanced.overflowed, advanced.records, advanced.pmi), (0b11, 0b01, true));
    assert_eq!(guest.read(0x38E), 0b10);
    // A counter that writes no records any more is an ordinary one, and its record is no longer due.
    guest.write(0x3F1, 0);
    assert_eq!(guest.precise.due(), 0);
    guest.write(0x4C1, FULL - 100);
    let (_, advanced) = guest.feed(100);
    assert_eq!((advanced.overflowed, advanced.records), (1, 0));
    assert_eq!(guest.read(0x38E), 0b11);
}

#[test]
fn a_frozen_counter_keeps_its_record_due() {
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    guest.buffer(0x800, 1);
    guest.sample(10);
    guest.write(0x1D9, 1 << 12);
    guest.feed(10);
    // Another counter's interrupt has frozen all: CTR_FRZ.
    guest.write(0x391, 1 << 59);
    assert_eq!(guest.record(&FedRecord::new(1)), pmu_virt::precise::Recorded::default());
    assert_eq!(guest.precise.due(), 1);
    guest.write(0x390, 1 << 59);
    let recorded = guest.record(&FedRecord::new(1));
    assert!(recorded.written == 1 && recorded.pmi);
    // The threshold's interrupt freezes.
    assert_eq!(guest.read(0x38E), 1 << 62 | 1 << 59);
}

/// Index, base, maximum and threshold are read each time, and believed in nothing.
#[test]
fn a_scribbled_index_loses_the_record_and_writes_nothing() {
    let size = 32;
    for (base, index, maximum) in [
        (BUFFER, BUFFER - 8, BUFFER + 0x800),
        (BUFFER, BUFFER + 0x800 - size + 8, BUFFER + 0x800),
        (BUFFER, BUFFER + 0x800, BUFFER + 0x800),
        (BUFFER, u64::MAX - 7, BUFFER + 0x800),
        (BUFFER, u64::MAX - 7, u64::MAX),
        (0, u64::MAX - 31, u64::MAX),
        (BUFFER, BUFFER, BUFFER),
        (BUFFER, BUFFER, 0),
    ] {
        let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
        guest.buffer(0x800, 0x800);
        guest.sample(10);
        guest.ram.put(AREA + 0x20, base);
        guest.ram.put(AREA + 0x28, index);
        guest.ram.put(AREA + 0x30, maximum);
        let before = guest.ram.clone();
        guest.feed(10);
        let recorded = guest.record(&FedRecord::new(1));
        assert_eq!((recorded.written, recorded.fault), (0, None), "{index:#X}");
        assert_eq!(recorded.lost, 1, "{index:#X}");
        assert!(guest.ram == before, "{index:#X}");
        // The counter goes on, and the interrupt comes where the index is behind the threshold.
        assert_eq!(guest.read(0x4C1), FULL - 10);
        assert_eq!(recorded.pmi, index >= BUFFER + 0x800, "{index:#X}");
    }
}

#[test]
fn a_fault_ends_the_record_and_the_counter_goes_on() {
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    guest.buffer(0x800, 1);
    guest.sample(10);
    // The buffer has its end, and the guest's memory an earlier one.
    let end = RAM + 0x3000;
    for (offset, word) in [(0x20, end - 8), (0x28, end - 8), (0x30, end + 0x800), (0x38, end)] {
        guest.ram.put(AREA + offset, word);
    }
    guest.feed(10);
    let recorded = guest.record(&FedRecord::new(1));
    assert_eq!(recorded.fault, Some(GuestFault { address: end }));
    assert_eq!((recorded.written, recorded.lost, recorded.pmi), (0, 0, false));
    assert_eq!(guest.ram.word(AREA + 0x28), Ok(end - 8));
    assert_eq!((guest.read(0x4C1), guest.precise.due()), (FULL - 10, 0));
    // An area that the guest has not: nothing can be loaded either.
    guest.write(0x600, 0x5000);
    guest.feed(10);
    let recorded = guest.record(&FedRecord::new(1));
    assert_eq!(recorded.fault, Some(GuestFault { address: 0x5020 }));
    assert_eq!((guest.read(0x4C1), guest.read(0x38E)), (0, 0));
}

/// Offsets and values by hand from the manual's tables; the naive model has the other groups.
#[test]
fn an_adaptive_record_has_each_group_at_its_place() {
    let vectors = vector_registers();
    let mut branches = VirtualBranches::new(&intel(5), BranchConfiguration::ARCHITECTURAL).unwrap();
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(6));
    assert_eq!(branches.write(pmu_virt::Writer::Guest, 0x14CE, 0x7F_0007).answer, Write::Done);
    for number in 1..=40 {
        let from = 0x50_0000 + number;
        let branch = FedBranch::new(from, !from, FedBranchKind::Conditional, Privilege::User);
        assert!(branches.record(&FedBranch { cycles: Some(number as u16), ..branch }));
    }
    guest.buffer(0x1800, 0x1800);
    guest.sample(10);
    // Everything; three branch records; counters 0 and 2, fixed counter 1.
    guest.write(0x3F2, 0x0002_0005_0200_003F);
    guest.write(0x186, 1 << 34 | 0x43_00C4);
    guest.write(0x4C3, 0x77);
    guest.write(0x30A, 0x88);
    guest.feed(10);
    let fed = FedRecord {
        registers: registers(0xABCD),
        tsc: 0x715C,
        data_address: 0xDA7A,
        data_source: 0x50,
        latency: 0x12,
        cache_latency: 0x34,
        transaction: 0x56,
        retire_latency: 0x78,
        metrics: [0x5107, 0x3E7],
        vectors: Some(&vectors),
        branches: Some(&branches),
        ..FedRecord::new(0x40_1234)
    };
    let recorded = guest.record(&fed);
    assert_eq!((recorded.written, recorded.lost), (1, 0));
    let general = registers(0xABCD);
    let info = |cycles: u64| 1 << 60 | cycles;
    let size = 32 + 32 + 144 + 256 + 3 * 24 + 16 + 5 * 8;
    for (offset, word) in [
        (0x000, size << 48 | 0x78 << 32 | 0x0200_003F),
        (0x008, 0x40_1234),
        (0x010, 1),
        (0x018, 0x715C),
        (0x020, 0xDA7A),
        (0x028, 0x50),
        (0x030, 0x34 << 32 | 0x12),
        (0x038, 0x56),
        (0x040, general.flags),
        (0x048, general.ip),
        (0x050, general.general[0]),
        (0x0C8, general.general[15]),
        (0x0D0, vectors.xmm[0] as u64),
        (0x1C8, (vectors.xmm[15] >> 64) as u64),
        (0x1D0, 0x50_0028),
        (0x1D8, !0x50_0028),
        (0x1E0, info(40)),
        (0x1E8, 0x50_0027),
        (0x200, 0x50_0026),
        // The counters' header: general and fixed ones, metrics.
        (0x218, 2 << 32 | 5),
        (0x220, 3),
        (0x228, 0),
        (0x230, 0x77),
        (0x238, 0x88),
        (0x240, 0x5107),
        (0x248, 0x3E7),
    ] {
        assert_eq!(guest.ram.word(BUFFER + offset), Ok(word), "{offset:#X}");
    }
    assert_eq!(guest.ram.word(AREA + 0x28), Ok(BUFFER + 0x250));
    assert_eq!(size, 0x250);
    // Without the adaptive bit in its select, the basic group alone.
    guest.write(0x186, 0x43_00C4);
    guest.feed(10);
    assert_eq!(guest.record(&fed).written, 1);
    assert_eq!(guest.ram.word(BUFFER + 0x250), Ok(32 << 48 | 0x78 << 32));
    assert_eq!(guest.ram.word(AREA + 0x28), Ok(BUFFER + 0x270));
}

/// A legacy stack's newest record is where its register of the top says.
#[test]
fn the_branches_of_a_record_begin_with_the_newest() {
    let legacy = BranchConfiguration::Legacy { format: 5 };
    let mut branches = VirtualBranches::new(&intel(5), legacy).unwrap();
    for (address, value) in [(0x1C8, 0), (0x1D9, 1)] {
        let written = branches.write(pmu_virt::Writer::Guest, address, value);
        assert!(written.illegal == 0 && written.answer != Write::GeneralProtection);
    }
    for number in 1..=33 {
        let branch = FedBranch::new(number, 0, FedBranchKind::Conditional, Privilege::User);
        assert!(branches.record(&branch));
    }
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    guest.buffer(0x800, 0x800);
    guest.sample(10);
    guest.write(0x3F2, 31 << 24 | 1 << 3);
    guest.write(0x186, 1 << 34 | 0x43_00C4);
    guest.feed(10);
    let fed = FedRecord { branches: Some(&branches), ..FedRecord::new(1) };
    assert_eq!(guest.record(&fed).written, 1);
    for number in 0..32 {
        assert_eq!(guest.ram.word(BUFFER + 32 + 24 * number), Ok(33 - number));
    }
    assert_eq!(guest.ram.word(AREA + 0x28), Ok(BUFFER + 32 + 32 * 24));
}

/// SDM vol. 3B, "Architectural PEBS": the buffer's physical address, offset, threshold and full bit.
#[test]
fn architectural_records_go_to_the_physical_buffer_until_it_is_full() {
    for fragments in [false, true] {
        let configuration = PreciseConfiguration::ARCHITECTURAL
            .with_architectural(|records| records.fragments = fragments);
        let mut guest = Guest::new(intel(6), configuration);
        guest.write(0x3F4, BUFFER);
        // Enabled; the threshold after two records.
        let size = if fragments { 16 + 48 + 16 + 64 } else { 16 + 48 + 64 };
        guest.write(0x3F5, 1 << 32 | (2 * size / 16) << 36);
        // Auxiliary group; a period of 10.
        guest.write(0x1903, 1 << 63 | 1 << 62 | 10u32.wrapping_neg() as u64);
        guest.write(0x4C1, FULL - 10);
        guest.write(0x186, 0x43_00C4);
        let fits = 4096 / size;
        for number in 0..fits + 2 {
            let (_, advanced) = guest.feed(10);
            assert!(advanced.records == 1 && !advanced.pmi);
            let fed = FedRecord { data_address: 0xDA7A, ..FedRecord::new(number) };
            let recorded = guest.record(&fed);
            let fit = number < fits;
            assert_eq!((recorded.written == 1, recorded.lost == 1), (fit, !fit), "{number}");
            assert_eq!(recorded.pmi, number >= 1);
            assert_eq!(guest.read(0x38E), if number >= 1 { 1 << 54 } else { 0 });
            assert_eq!(guest.read(0x4C1), FULL - 10);
        }
        let index = guest.read(0x3F5);
        assert_eq!((index & 0x7FF_FFF0, index >> 31 & 1), (fits * size, 1));
        for number in 0..fits {
            let record = BUFFER + number * size;
            // The header: basic and auxiliary group, 64-bit mode.
            let (header, address) = if fragments {
                (1 << 63 | 1 << 31 | 1 << 30 | 64, record + 64 + 16)
            } else {
                (3 << 62 | 1 << 30 | size, record + 64)
            };
            assert_eq!(guest.ram.word(record), Ok(header));
            assert_eq!(guest.ram.word(record + 16), Ok(number));
            assert_eq!(guest.ram.word(record + 24), Ok(1));
            assert_eq!(guest.ram.word(address), Ok(0xDA7A));
        }
        // The driver's drain: the offset is reset, and the threshold acknowledged.
        guest.write(0x3F5, 1 << 32 | (2 * size / 16) << 36);
        guest.write(0x390, 1 << 54);
        assert_eq!(guest.read(0x38E), 0);
        guest.feed(10);
        assert_eq!(guest.record(&FedRecord::new(7)).written, 1);
        // A buffer that the guest has no memory for.
        guest.write(0x3F4, 0xF000_0000_0000);
        guest.feed(10);
        let recorded = guest.record(&FedRecord::new(7));
        let fault = GuestFault { address: 0xF000_0000_0000 + size };
        assert_eq!((recorded.fault, recorded.written), (Some(fault), 0));
    }
}

#[test]
fn a_traced_branch_is_filtered_by_privilege_and_the_buffer_wraps_or_interrupts() {
    for interrupts in [false, true] {
        let mut guest = Guest::new(intel(4), PreciseConfiguration::BRANCH_TRACE);
        for (number, word) in (0..).zip([BUFFER, BUFFER, BUFFER + 72, BUFFER + 48]) {
            guest.ram.put(AREA + 8 * number, word);
        }
        guest.write(0x600, AREA);
        // TR, BTS, BTINT, BTS_OFF_OS.
        guest.write(0x1D9, 0xC0 | u64::from(interrupts) << 8 | 1 << 9);
        assert!(guest.precise.is_tracing());
        let user = FedBranch::new(1, 2, FedBranchKind::Far, Privilege::User);
        let kernel = FedBranch { privilege: Privilege::Kernel, ..user };
        let mut trace =
            |branch: &FedBranch| guest.precise.branch(&mut guest.pmu, branch, &mut guest.ram);
        assert_eq!(trace(&kernel), pmu_virt::precise::Recorded::default());
        let outcomes: Vec<(u32, u32, bool)> = (10..14)
            .map(|from| trace(&FedBranch { from, mispredicted: from == 12, ..user }))
            .map(|recorded| (recorded.written, recorded.lost, recorded.pmi))
            .collect();
        let pmi = interrupts;
        let last = if interrupts { (0, 1, true) } else { (1, 0, false) };
        assert_eq!(outcomes, [(1, 0, false), (1, 0, pmi), (1, 0, pmi), last]);
        assert_eq!(guest.read(0x38E) >> 62 & 1, u64::from(interrupts));
        let first = if interrupts { 10 } else { 13 };
        for (number, from, predicted) in [(0, first, 1), (1, 11, 1), (2, 12, 0)] {
            let record = BUFFER + 24 * number;
            assert_eq!(guest.ram.word(record), Ok(from));
            assert_eq!(guest.ram.word(record + 8), Ok(2));
            assert_eq!(guest.ram.word(record + 16), Ok(predicted << 4));
        }
    }
}

/// Memory that has every address, and refuses an access beyond the last one.
struct Everywhere;

impl GuestMemory for Everywhere {
    fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
        self.write(linear, bytes)
    }
    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        assert!(linear.checked_add(bytes.len() as u64).is_some(), "{linear:#X}");
        assert!(bytes.len() <= 256);
        Ok(())
    }
    fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        self.write(physical, bytes)
    }
}

/// The embedder's memory is never accessed beyond the last address, wherever the guest puts its area.
#[test]
fn no_access_to_the_memory_wraps() {
    let mut own = PreciseConfiguration::debug_store(4);
    own.branch_trace = true;
    for distance in (0..0x180).step_by(4) {
        let mut guest = Guest::new(intel(5), own);
        guest.sample(10);
        guest.write(0x600, u64::MAX - distance);
        guest.write(0x1D9, 0xC0);
        guest.feed(10);
        let fed = FedRecord::new(1);
        let recorded = guest.precise.record(&mut guest.pmu, 1, &fed, &mut Everywhere);
        // Of the area, the last address splits one part: the buffer's description, or the reset value.
        let splits = |offset, length| (offset..offset + length).contains(&distance);
        assert_eq!(recorded.fault.is_some(), splits(0x20, 32) || splits(0x40, 8), "{distance:#X}");
        let branch = FedBranch::new(1, 2, FedBranchKind::Far, Privilege::User);
        let recorded = guest.precise.branch(&mut guest.pmu, &branch, &mut Everywhere);
        assert_eq!(recorded.fault.is_some(), splits(0, 32), "{distance:#X}");
    }
}
