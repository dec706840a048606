//! Precise records and the branch trace store of a guest: the manuals' rules, and a naive model on random programs.

use super::naive_precise::fed::{registers, vector_registers};
use super::naive_precise::memory::{RAM, Ram};
use super::naive_precise::program::{Step, run};
use core::cell::{Cell, RefCell};
use pmu_core::{MsrAddress, MsrBackend, MsrErrorKind};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{
    AmdConfiguration, BranchConfiguration, BytesError, Configuration, EventKey, FedBranch,
    FedBranchKind, FedEvents, FedRecord, Feed, GuestFacility, GuestFault, GuestInterrupts,
    GuestMemory, HostCounters, IntelConfiguration, MediationError, PreciseConfiguration,
    PreciseConfigurationError, Privilege, Read, VirtualBranches, VirtualPmu, VirtualPrecise, Write,
};
use proptest::prelude::*;

/// Random numbers by Marsaglia's xorshift64*, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Programs on every kind of records: `PMU_TEST_PROGRAMS` of them, or 2,000.
#[test]
fn the_models_of_precise_records_agree_on_many_programs() {
    let programs = std::env::var("PMU_TEST_PROGRAMS").map_or(2_000, |n| n.parse().unwrap());
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for number in 0..programs.min(20_000u32) {
        let words = random.next().to_le_bytes();
        let program: Vec<Step> = (0..10 + number % 60)
            .map(|_| {
                let bits = random.next().to_le_bytes();
                let choice = u32::from_le_bytes([bits[2], bits[3], bits[4], bits[5]]);
                (bits[0], bits[1], choice, random.next())
            })
            .collect();
        run([number as u8 % 8, words[1], words[2], words[3]], &program, number % 4 == 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_models_of_precise_records_agree_on_any_program(
        words: [u8; 4],
        program in prop::collection::vec(any::<Step>(), 1..120),
    ) {
        run(words, &program, true);
    }
}

const BRANCHES: EventKey = EventKey::general(0xC4, 0);
const FULL: u64 = 1 << 48;
/// The guest's area, and its buffer.
const AREA: u64 = RAM;
const BUFFER: u64 = RAM + 0x1000;

fn intel(version: u8) -> Configuration {
    Configuration::Intel(IntelConfiguration::new(version, 4, 3))
}

fn msr(address: u32) -> MsrAddress {
    // SAFETY: the mock's registers are numbers.
    unsafe { MsrAddress::new(address) }
}

/// A processor that counts branches, with precise records, and memory for them.
struct Guest {
    pmu: VirtualPmu,
    precise: VirtualPrecise,
    ram: Ram,
    events: FedEvents,
}

impl Guest {
    fn new(pmu: Configuration, precise: PreciseConfiguration) -> Self {
        let events = FedEvents::new(&[BRANCHES]).unwrap();
        Self {
            pmu: VirtualPmu::new(pmu, events).unwrap(),
            precise: VirtualPrecise::new(&pmu, precise).unwrap(),
            ram: Ram::new(),
            events,
        }
    }

    fn write(&mut self, address: u32, value: u64) {
        let written = self.pmu.write_beside(&mut self.precise, address, value);
        assert_eq!(written.illegal, 0, "{address:#X}");
        assert!(!matches!(written.answer, Write::GeneralProtection), "{address:#X}");
    }

    fn read(&self, address: u32) -> u64 {
        match self.pmu.read_beside(&self.precise, address) {
            Read::Value(value) | Read::Shared { value, .. } => value,
            other => panic!("{address:#X}: {other:?}"),
        }
    }

    /// Describes a buffer of `size` bytes, with an interrupt from `threshold` bytes on.
    fn buffer(&mut self, size: u64, threshold: u64) {
        let words = [BUFFER, BUFFER, BUFFER + size, BUFFER + threshold];
        for (number, word) in (4..).zip(words) {
            self.ram.put(AREA + 8 * number, word);
        }
        self.write(0x600, AREA);
    }

    /// Enables counter 0 with branches, `period` before its overflow.
    fn sample(&mut self, period: u64) {
        self.ram.put(AREA + 0x40, period.wrapping_neg());
        self.write(0x3F1, 1);
        self.write(0x4C1, FULL - period);
        self.write(0x186, 0x43_00C4);
    }

    fn feed(&mut self, count: u64) -> (Feed, pmu_virt::Advanced) {
        let mut feed = Feed::new(&self.events);
        let branches = self.events.find(BRANCHES).unwrap();
        feed.add(branches, Privilege::User, count).unwrap();
        let advanced = self.pmu.advance_beside(&mut self.precise, &mut feed).unwrap();
        (feed, advanced)
    }

    fn record(&mut self, fed: &FedRecord<'_>) -> pmu_virt::Recorded {
        self.precise.record(&mut self.pmu, u64::MAX, fed, &mut self.ram)
    }
}

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
    assert_eq!(guest.record(&FedRecord::new(1)), pmu_virt::Recorded::default());
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
        assert_eq!(trace(&kernel), pmu_virt::Recorded::default());
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

/// SDM vol. 2A, CPUID; vol. 4, `IA32_MISC_ENABLE` and `IA32_PERF_CAPABILITIES`.
#[test]
fn records_are_declared_only_where_they_are_offered() {
    let declared = |version, precise: Option<PreciseConfiguration>, leaf, subleaf| {
        let configuration = intel(version);
        let precise = precise.map(|own| VirtualPrecise::new(&configuration, own).unwrap());
        let leaf = configuration.cpuid_leaf(leaf, subleaf).unwrap();
        precise.cpuid(leaf).apply([0; 4])
    };
    let store = Some(PreciseConfiguration::debug_store(4));
    let trace = Some(PreciseConfiguration::BRANCH_TRACE);
    let architectural = Some(PreciseConfiguration::ARCHITECTURAL);
    // ECX: 2 DTES64, 4 DS-CPL, 15 PDCM. EDX: 21 DS.
    for (version, own, c, d) in [
        (5, None, 1 << 15, 0),
        (5, store, 1 << 15 | 1 << 2, 1 << 21),
        (5, trace, 1 << 15 | 1 << 2 | 1 << 4, 1 << 21),
        (6, architectural, 1 << 15, 0),
    ] {
        assert_eq!(declared(version, own, 1, 0), [0, 0, c, d]);
    }
    assert_eq!(declared(6, None, 0x23, 0)[0], 0b00_1011);
    assert_eq!(declared(6, architectural, 0x23, 0)[0], 0b11_1011);
    assert_eq!(declared(6, None, 0x23, 4), [0; 4]);
    assert_eq!(declared(6, architectural, 0x23, 4), [0, 0x60E6_0378, 0, 0]);
    // Four general and three fixed counters; of each the first is exact.
    assert_eq!(declared(6, architectural, 0x23, 5), [0xF, 1, 7, 1]);
    for (own, misc, capabilities) in [
        (None, 0x1880, 0x2000),
        (store, 0x880, 0x2000 | 0x4000 | 0x400 | 0xC0),
        (trace, 0x1080, 0x2000),
        (Some(PreciseConfiguration::debug_store(2)), 0x880, 0x2000 | 0x200 | 0xC0),
        (Some(PreciseConfiguration::debug_store(5)), 0x880, 0x2_0000 | 0x6000 | 0x500 | 0xC0),
    ] {
        let mut pmu = VirtualPmu::new(intel(5), FedEvents::NONE).unwrap();
        let mut precise = own.map(|own| VirtualPrecise::new(&intel(5), own).unwrap());
        let read = pmu.read_beside(&precise, 0x1A0);
        assert_eq!(read, Read::Shared { value: misc, mask: 0x1880 });
        assert_eq!(pmu.read_beside(&precise, 0x345), Read::Value(capabilities));
        // The guest can write back the value that it reads. It cannot make records available.
        let mut write = |value| pmu.write_beside(&mut precise, 0x1A0, value).answer;
        assert_eq!(write(misc), Write::Shared { mask: 0x1880 });
        for bit in [1 << 11, 1 << 12] {
            assert_eq!(write(misc ^ bit), Write::GeneralProtection);
        }
    }
}

/// Without records, each of their registers faults, and no feed stops for them.
#[test]
fn hidden_records_are_as_a_processor_without_them() {
    let mut pmu = VirtualPmu::new(intel(6), FedEvents::NONE).unwrap();
    let mut hidden: Option<VirtualPrecise> = None;
    let store = VirtualPrecise::new(&intel(6), PreciseConfiguration::debug_store(6)).unwrap();
    let architectural =
        VirtualPrecise::new(&intel(6), PreciseConfiguration::ARCHITECTURAL).unwrap();
    let own: Vec<u32> =
        store.registers().chain(architectural.registers()).map(|one| one.address).collect();
    assert_eq!(own.len(), 5 + 2 + 7);
    for address in own {
        assert_eq!(pmu.read_beside(&hidden, address), Read::GeneralProtection, "{address:#X}");
        let written = pmu.write_beside(&mut hidden, address, 0);
        assert_eq!(written.answer, Write::GeneralProtection, "{address:#X}");
        // The PMU's list has the address, for a hypervisor that intercepts it.
        let listed = intel(6).registers().find(|register| register.address == address);
        assert!(listed.is_some_and(|register| !register.exists), "{address:#X}");
    }
    for (address, value) in [(0x186, 1 << 34), (0x38D, 1 << 32), (0x1D9, 1 << 7), (0x391, 1 << 54)]
    {
        let written = pmu.write_beside(&mut hidden, address, value);
        assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, value));
    }
}

/// A guest on real counters: its records would be the host's.
#[test]
fn real_counters_have_no_precise_records() {
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    let processor = MockMsr::<8>::strict(VirtualPmu::new(intel(5), FedEvents::NONE).unwrap());
    let host = HostCounters::new(intel(5)).unwrap();
    let interrupts = GuestInterrupts::new();
    let mut lent = host.stop(&processor).unwrap();
    guest.write(0x3F1, 1);
    processor.clear();
    let refused = host.load(&mut lent, &mut guest.pmu, &interrupts, &processor).map(|_| ());
    assert_eq!(refused, Err(MediationError::PreciseRecords));
    assert_eq!(processor.accesses().total(), 0);
    guest.write(0x3F1, 0);
    let loaded = host.load(&mut lent, &mut guest.pmu, &interrupts, &processor).unwrap();
    // Every register of the records, and each that they share with the PMU.
    let own = guest.precise.registers().map(|register| register.address);
    for address in own.chain([0x1A0, 0x1D9, 0x345, 0x186, 0x38D, 0x391, 0x3F4, 0x3F5, 0x1903]) {
        assert!(host.intercepts(&guest.pmu, address), "{address:#X}");
    }
    host.put(loaded, 0, &mut guest.pmu, &processor).map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_configuration_that_no_processor_has_is_refused() {
    use PreciseConfigurationError as E;
    let refused = |pmu: Configuration, own| VirtualPrecise::new(&pmu, own).unwrap_err();
    let store = PreciseConfiguration::debug_store;
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let first = Configuration::Intel(IntelConfiguration::new(1, 2, 0));
    assert_eq!(refused(amd, store(4)), E::OtherVendor);
    assert_eq!(refused(Configuration::hidden(pmu_virt::Vendor::Intel), store(4)), E::OtherVendor);
    assert_eq!(refused(first, store(0)), E::Version(1));
    assert_eq!(refused(intel(5), PreciseConfiguration::ARCHITECTURAL), E::Version(5));
    assert_eq!(refused(intel(5), store(7)), E::Format(7));
    let changed = |format, change: fn(&mut pmu_virt::DebugStoreRecords)| {
        refused(intel(5), store(format).with_debug_store(change))
    };
    assert_eq!(changed(3, |records| records.baseline = true), E::Baseline(3));
    assert_eq!(changed(2, |records| records.general = 0x1F), E::Counters(0x1F));
    assert_eq!(changed(3, |records| records.fixed = 1), E::Counters(1));
    assert_eq!(changed(5, |records| records.metrics = true), E::Metrics(5));
    let groups =
        PreciseConfiguration::ARCHITECTURAL.with_architectural(|records| records.groups |= 1 << 31);
    assert_eq!(refused(intel(6), groups), E::Groups(1 << 31));
}

/// A guest's branch records and precise records share IA32_DEBUGCTL, the status, the selects, IA32_PERF_CAPABILITIES.
#[test]
fn two_facilities_share_registers_bit_by_bit() {
    let configuration = intel(5);
    let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
    let mut own = PreciseConfiguration::debug_store(4);
    own.branch_trace = true;
    let mut both = (
        VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL).unwrap(),
        VirtualPrecise::new(&configuration, own).unwrap(),
    );
    let pairs = [
        (0x345, None, 0x2000 | 0x3F | 0x44C0),
        (0x186, Some(1 << 35 | 1 << 34 | 0x43_00C4), 1 << 35 | 1 << 34 | 0x43_00C4),
        (0x1D9, Some(0x1FC0 & !0x2000), 0x1FC0),
        (0x391, Some(1 << 62 | 1 << 59 | 1 << 58 | 1), 0),
        (0x38E, None, 1 << 62 | 1 << 59 | 1 << 58 | 1),
    ];
    for (address, write, expected) in pairs {
        if let Some(value) = write {
            let written = pmu.write_beside(&mut both, address, value);
            assert_ne!(written.answer, Write::GeneralProtection, "{address:#X}");
            assert_eq!(written.illegal, 0, "{address:#X}");
        }
        let read = pmu.read_beside(&both, address);
        assert!(
            matches!(read, Read::Value(value) | Read::Shared { value, .. } if value == expected),
            "{address:#X}: {read:?}",
        );
    }
    // A bit that one of them refuses changes neither the other nor the PMU.
    let before = both;
    for (address, value) in [(0x1D9, 1 << 13 | 1 << 11), (0x186, 1 << 33), (0x391, 1 << 54)] {
        let written = pmu.write_beside(&mut both, address, value);
        assert_eq!(written.answer, Write::GeneralProtection, "{address:#X}");
    }
    assert_eq!(both, before);
    // The order of the two does not matter.
    let swapped = (before.1, before.0);
    for address in [0x345, 0x186, 0x1D9, 0x38E, 0x14CE, 0x600, 0x3F1, 0x3F4] {
        assert_eq!(pmu.read_beside(&swapped, address), pmu.read_beside(&both, address));
    }
}

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

/// A driver on the mock, with an area at [`AREA`] and a buffer of so many bytes and a threshold; counters 0 and 1 count
/// branches, with a record each 100.
fn on_mock<'h>(
    memory: &'h RefCell<Ram>,
    instructions: &'h dyn Fn(u64) -> FedRecord<'h>,
    own: PreciseConfiguration,
    deviations: &[Deviation],
    threshold: u64,
) -> MockMsr<'h, 8> {
    let events = FedEvents::new(&[BRANCHES]).unwrap();
    let precise = VirtualPrecise::new(&intel(5), own).unwrap();
    let pmu = VirtualPmu::new(intel(5), events).unwrap();
    let mock = MockMsr::<8>::strict(pmu)
        .with_precise(precise, memory, instructions)
        .deviating(Deviations::of(deviations));
    let words = [BUFFER, BUFFER, BUFFER + 0x1000, BUFFER + threshold];
    for (number, word) in (4..).zip(words) {
        memory.borrow_mut().put(AREA + 8 * number, word);
    }
    memory.borrow_mut().put(AREA + 0x40, 100u64.wrapping_neg());
    memory.borrow_mut().put(AREA + 0x48, 100u64.wrapping_neg());
    mock.set_performance_entry(0x400);
    let period = FULL - 100;
    for (address, value) in [(0x600, AREA), (0x4C1, period), (0x4C2, period), (0x186, 0x43_00C4)] {
        mock.write(msr(address), value).unwrap();
    }
    mock
}

fn advance(mock: &MockMsr<'_, 8>, count: u64) {
    let events = mock.with_pmu(|pmu| *pmu.events());
    let mut feed = Feed::new(&events);
    feed.add(events.find(BRANCHES).unwrap(), Privilege::User, count).unwrap();
    mock.advance(&mut feed);
}

#[test]
fn the_mock_writes_a_record_for_each_overflow_and_interrupts_at_the_threshold() {
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(0x40_0000 + number);
    let own = PreciseConfiguration::debug_store(4);
    let mock = on_mock(&memory, &instructions, own, &[], 4 * 32);
    let seen = Cell::new(0);
    let handler = |mock: &MockMsr<8>| {
        assert_eq!(mock.read(msr(0x38E)), Ok(1 << 62));
        let mut memory = memory.borrow_mut();
        seen.set(seen.get() + (memory.word(AREA + 0x28).unwrap() - BUFFER) / 32);
        memory.put(AREA + 0x28, BUFFER);
        mock.write(msr(0x390), 1 << 62).unwrap();
        mock.set_performance_entry(0x400);
    };
    mock.on_interrupt(&handler);
    mock.write(msr(0x3F1), 1).unwrap();
    advance(&mock, 1_250);
    assert_eq!((mock.written_records(), mock.lost_records()), (12, 0));
    assert_eq!((mock.interrupts(), seen.get()), (3, 12));
    // An overflow just before an access is a record, too.
    mock.interrupt_at(1);
    assert!(mock.read(msr(0x3F1)).is_ok());
    assert_eq!(mock.written_records(), 13);
    mock.lose_registers();
    assert_eq!(mock.read(msr(0x3F1)), Ok(0));
    assert_eq!(mock.read(msr(0x345)).unwrap() >> 8 & 0xF, 4);
    assert_eq!(mock.snapshot().leaf(1, 0).edx >> 21 & 1, 1);
}

#[test]
#[should_panic(expected = "illegal bits 0x1")]
fn a_strict_mock_refuses_a_counter_that_is_recorded_and_interrupts() {
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(number);
    let own = PreciseConfiguration::debug_store(4);
    let mock = on_mock(&memory, &instructions, own, &[], 32);
    mock.write(msr(0x3F1), 1).unwrap();
    let _ = mock.write(msr(0x186), 0x53_00C4);
}

#[test]
fn bits_of_counters_and_registers_that_are_not_offered_fault() {
    let refused = Err(MsrErrorKind::GeneralProtection);
    let mock = |own| {
        let precise = VirtualPrecise::new(&intel(5), own).unwrap();
        (VirtualPmu::new(intel(5), FedEvents::NONE).unwrap(), precise)
    };
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(number);
    let registers: [(_, u32, u64); 9] = [
        (PreciseConfiguration::debug_store(4), 0x3F1, 0x7_0000_000F),
        // Load latency of counters 0-3, without the baseline.
        (PreciseConfiguration::debug_store(3), 0x3F1, 0xF_0000_000F),
        (PreciseConfiguration::debug_store(0), 0x3F1, 1),
        (PreciseConfiguration::debug_store(3), 0x3F2, 0),
        (PreciseConfiguration::debug_store(4), 0x3F2, 0x1F00_000F),
        (PreciseConfiguration::debug_store(6), 0x3F2, 0x0007_000F_1F00_003F),
        (PreciseConfiguration::debug_store(0), 0x3F6, 0),
        (PreciseConfiguration::debug_store(1), 0x3F6, 0xFFFF),
        (PreciseConfiguration::debug_store(4), 0x3F4, 0),
    ];
    for (own, address, legal) in registers {
        for bit in 0..64 {
            let (pmu, precise) = mock(own);
            let mock = MockMsr::<8>::new(pmu).with_precise(precise, &memory, &instructions);
            let written = mock.write(msr(address), 1 << bit);
            let expected = if legal >> bit & 1 == 1 { Ok(()) } else { refused };
            assert_eq!(written, expected, "{address:#X} bit {bit} of {own:?}");
            assert_eq!(mock.breach().is_some(), expected.is_err());
        }
    }
}

#[test]
fn each_deviation_of_records_does_what_it_says() {
    let run = |own, deviation, threshold, counters, count| {
        let memory = RefCell::new(Ram::new());
        let instructions = |number| FedRecord::new(0x40_0000 + number);
        let platform: &[_] = &[deviation];
        let mock = on_mock(&memory, &instructions, own, platform, threshold);
        mock.write(msr(0x187), if counters == 3 { 0x43_00C4 } else { 0 }).unwrap();
        mock.write(msr(0x3F1), counters).unwrap();
        advance(&mock, count);
        let status = mock.read(msr(0x38E)).unwrap();
        let counts = (mock.written_records(), mock.lost_records(), mock.interrupts());
        let ram = memory.borrow().clone();
        (counts, status, ram)
    };
    let adaptive = PreciseConfiguration::debug_store(4);
    // The counter's own bit beside the buffer's.
    let (counts, status, _) = run(adaptive, Deviation::PreciseStatusBeside, 32, 1, 100);
    assert_eq!((counts, status), ((1, 0, 1), 1 << 62 | 1));
    // Half of 4,096 bytes: 64 records, and the interrupt after 32.
    let (counts, status, mut ram) = run(adaptive, Deviation::ShortDebugStore, 0x1000, 1, 3_200);
    assert_eq!((counts, status), ((32, 0, 1), 1 << 62));
    let (counts, ..) = run(adaptive, Deviation::ShortDebugStore, 0x1000, 1, 7_000);
    assert_eq!((counts.0, counts.1), (64, 6));
    assert_eq!(ram.word(AREA + 0x30), Ok(BUFFER + 0x1000));
    // The fourth index is beyond the buffer: the next record is lost.
    let (counts, _, mut ram) = run(adaptive, Deviation::ScribbledIndex, 0x1000, 1, 500);
    assert_eq!((counts.0, counts.1), (4, 1));
    assert_eq!(ram.word(AREA + 0x28), Ok(BUFFER + 0x2000));
    // One record of both counters; formats 1 and 2 name both in the status.
    let format_2 = PreciseConfiguration::debug_store(2);
    let (counts, _, mut ram) = run(format_2, Deviation::CollidedRecords, 0x1000, 3, 100);
    assert_eq!(counts, (1, 0, 0));
    assert_eq!(ram.word(BUFFER + 0x90), Ok(0b11));
    assert_eq!(ram.word(AREA + 0x28), Ok(BUFFER + 0xC0));
    let (counts, _, mut ram) = run(format_2, Deviation::LateIbs, 0x1000, 3, 100);
    assert_eq!(counts, (2, 0, 0));
    assert_eq!(ram.word(BUFFER + 0x90), Ok(0b01));
    assert_eq!(ram.word(BUFFER + 0xC0 + 0x90), Ok(0b10));
}

/// The trace of the mock's driver, and its interrupt.
#[test]
fn the_mock_traces_branches() {
    let memory = RefCell::new(Ram::new());
    let instructions = |number| FedRecord::new(number);
    let mut own = PreciseConfiguration::debug_store(4);
    own.branch_trace = true;
    let mock = on_mock(&memory, &instructions, own, &[], 32);
    for (number, word) in (0..).zip([BUFFER, BUFFER, BUFFER + 240, BUFFER + 24]) {
        memory.borrow_mut().put(AREA + 8 * number, word);
    }
    let branch = FedBranch::new(7, 9, FedBranchKind::Far, Privilege::Kernel);
    assert!(!mock.trace_branch(&branch));
    mock.write(msr(0x1D9), 0x1C0).unwrap();
    assert!(mock.trace_branch(&branch));
    assert_eq!((mock.interrupts(), mock.read(msr(0x38E))), (1, Ok(1 << 62)));
    assert_eq!(memory.borrow_mut().word(BUFFER + 8), Ok(9));
    assert_eq!(mock.with_precise_records(|precise| precise.is_tracing()), Some(true));
    let mut short = [0; 4];
    assert!(memory.borrow_mut().read(RAM - 1, &mut short).is_err());
}

/// The table of `src/bytes.rs`, by hand.
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
    // Format 4; all counters, of which the PMU of version 5 has four and three; flags 0 baseline, 1 load latency, 2 front
    // end.
    bytes.extend([4, 0xFF, 0xFF, 0b111, 0, 0, 0, 0, 0, 0, 5, 0xF, 7, 0, 0, 0]);
    let words = [1, 1 << 62, 0, 0x1234_5000, 0x2_0000_0001, 0x0700_0003, 0x20, 0x12, 1, 0, 0];
    bytes.extend(words.into_iter().chain([0; 16]).flat_map(u64::to_le_bytes));
    assert_eq!(guest.precise.to_bytes().as_slice(), bytes);

    let mut guest = Guest::new(intel(6), PreciseConfiguration::ARCHITECTURAL);
    guest.write(0x3F4, 0x9_8765_4003);
    guest.write(0x3F5, 0x10_0000_0000 | 1 << 32 | 0x40);
    guest.write(0x1907, 1 << 63 | 0xFFFF_FFF0);
    guest.write(0x198B, 1 << 61 | 7);
    let mut bytes = Vec::from(*b"vPBS\x01\0\x02\0");
    // All groups, whose places are 0x60E60378; of each kind counter 0 is exact.
    bytes.extend([0, 0xFF, 0xFF, 0, 0x78, 0x03, 0xE6, 0x60, 1, 1, 6, 0xF, 7, 0, 0, 0]);
    let words = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x9_8765_4003, 0x11_0000_0040];
    let mut controls = [0; 16];
    controls[1] = 1 << 63 | 0xFFFF_FFF0;
    controls[10] = 1 << 61 | 7;
    bytes.extend(words.into_iter().chain(controls).flat_map(u64::to_le_bytes));
    assert_eq!(guest.precise.to_bytes().as_slice(), bytes);
}
