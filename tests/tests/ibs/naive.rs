//! A second, naive model of the sampling, from the data files and the manual; and programs with the same result on both
//! models.
//!
//! Shared with the fuzz target, which feeds the same programs from its input.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use pmu_virt::ibs::{FedFetch, FedOp, IbsConfiguration, VirtualIbs};
use pmu_virt::{GuestFacility, Read, Write, Writer};

/// The sampling as a map of registers.
struct Naive {
    ibs: IbsConfiguration,
    registers: BTreeMap<u32, u64>,
    /// The count of fetches, in full.
    fetches: u64,
    pending: bool,
}

/// The data files: masks by register and field, and addresses by register and the empty string.
static FILES: LazyLock<BTreeMap<(String, String), u64>> = LazyLock::new(|| {
    let (registers, fields) = (
        pmu_tests::rows(include_str!("../../data/registers.csv")),
        pmu_tests::rows(include_str!("../../data/register_fields.csv")),
    );
    let mut files = BTreeMap::new();
    for row in
        registers.iter().filter(|row| matches!(row.number("address"), 0xC001_1030..=0xC001_103F))
    {
        let register = row.text("name");
        files.insert((register.to_owned(), String::new()), row.number("address"));
        for field in fields.iter().filter(|field| field.text("register") == register) {
            let (lsb, msb) = (field.number("lsb"), field.number("msb"));
            let mask = (u64::MAX >> (63 - msb)) & (u64::MAX << lsb);
            files.insert((register.to_owned(), field.text("field").to_owned()), mask);
        }
    }
    files
});

fn mask(register: &str, field: &str) -> u64 {
    let found = FILES.get(&(register.to_owned(), field.to_owned()));
    *found.unwrap_or_else(|| panic!("{register} {field}"))
}

fn address(register: &str) -> u32 {
    mask(register, "") as u32
}

impl Naive {
    fn new(ibs: IbsConfiguration) -> Self {
        let mut naive = Self { ibs, registers: BTreeMap::new(), fetches: 0, pending: false };
        let entry = ibs.lvt_entry.map_or(0, |entry| u64::from(entry) | 0x100);
        naive.registers.insert(address("IBS_CTL"), entry);
        naive
    }

    fn get(&self, register: &str) -> u64 {
        self.registers.get(&address(register)).copied().unwrap_or(0)
    }

    fn set(&mut self, register: &str, value: u64) {
        self.registers.insert(address(register), value);
    }

    fn field(&self, register: &str, field: &str) -> u64 {
        let mask = mask(register, field);
        (self.get(register) & mask) >> mask.trailing_zeros()
    }

    fn set_field(&mut self, register: &str, field: &str, value: u64) {
        let mask = mask(register, field);
        self.set(register, self.get(register) & !mask | value << mask.trailing_zeros() & mask);
    }

    fn has(&self, bit: u32) -> bool {
        self.ibs.capabilities >> bit & 1 == 1
    }

    /// The register's capability bits, all of which the processor needs.
    fn exists(&self, number: u32) -> bool {
        let needs: &[u32] = match number {
            0xC001_1030..=0xC001_1032 => &[1],
            0xC001_1033..=0xC001_1039 => &[2],
            0xC001_103A => &[],
            0xC001_103B => &[5],
            0xC001_103C => &[9],
            0xC001_103D => &[10],
            0xC001_103E => &[2, 13],
            0xC001_103F => &[1, 13],
            _ => return false,
        };
        needs.iter().all(|bit| self.has(*bit))
    }

    /// Bits that the data file names and the processor's capabilities have.
    fn legal(&self, number: u32) -> u64 {
        let (register, absent): (&str, &[(&str, u32)]) = match number {
            0xC001_1030 => (
                "IBS_FETCH_CTL",
                &[("IbsFetchL3MissOnly", 11), ("IbsOpCacheMiss", 11), ("IbsFetchL3Miss", 11)],
            ),
            0xC001_1033 => (
                "IBS_OP_CTL",
                &[
                    ("IbsOpL3MissOnly", 11),
                    ("IbsOpCntCtl", 4),
                    ("IbsOpMaxCntExt", 6),
                    ("IbsOpLdLatThrsh", 12),
                    ("IbsOpLdLatEn", 12),
                ],
            ),
            0xC001_103E => {
                ("IBS_OP_CTL2", &[("ExclBit63Clear", 15), ("ExclBit63Set", 15), ("StrmStOnly", 16)])
            }
            0xC001_103F => (
                "IBS_FETCH_CTL2",
                &[("FetchLatFilter", 14), ("ExclBit63Set", 15), ("ExclBit63Clear", 15)],
            ),
            _ => return u64::MAX,
        };
        let of_register = |((of, field), mask): (&(String, String), &u64)| {
            if of == register && !field.is_empty() { *mask } else { 0 }
        };
        let all = FILES.iter().map(of_register).fold(0, |all, mask| all | mask);
        let lacking = absent.iter().filter(|(_, bit)| !self.has(*bit));
        lacking.fold(all, |legal, (field, _)| legal & !mask(register, field))
    }

    /// Returns whether the write faults.
    fn write(&mut self, number: u32, value: u64) -> bool {
        if number == address("IBS_CTL") || value & !self.legal(number) != 0 {
            return true;
        }
        let enabled = self.field("IBS_FETCH_CTL", "IbsFetchEn") == 1;
        let kept = self.field("IBS_FETCH_CTL", "IbsFetchCnt");
        self.registers.insert(number, value);
        if number == address("IBS_FETCH_CTL") {
            if enabled
                && self.field("IBS_FETCH_CTL", "IbsFetchEn") == 1
                && self.ibs.fetch_count_kept
            {
                self.set_field("IBS_FETCH_CTL", "IbsFetchCnt", kept);
            } else {
                self.fetches = self.field("IBS_FETCH_CTL", "IbsFetchCnt") << 4;
            }
        }
        if number == address("IBS_OP_CTL") && !self.has(3) {
            self.set_field("IBS_OP_CTL", "IbsOpCurCnt", 0);
        }
        false
    }

    /// Executes an op. `random`: the bits with which the next period begins.
    fn execute(&mut self, op: &FedOp, random: impl FnOnce() -> u64) {
        let of = |field| self.field("IBS_OP_CTL", field);
        let period = of("IbsOpMaxCnt") * 16 + of("IbsOpMaxCntExt") * 0x10_0000;
        let off =
            of("IbsOpEn") == 0 || of("IbsOpVal") == 1 || self.field("IBS_OP_CTL2", "Dis") == 1;
        if off || period == 0 {
            return;
        }
        let step = if of("IbsOpCntCtl") == 1 { 1 } else { op.cycles.into() };
        let count = of("IbsOpCurCnt") + step;
        if count < period {
            return self.set_field("IBS_OP_CTL", "IbsOpCurCnt", count);
        }
        let random = random();
        assert!(random < 128, "seven bits are random");
        let of_op = |register, field, value: u64| {
            let mask = mask(register, field);
            (value & mask) >> mask.trailing_zeros()
        };
        let data3 = |field| of_op("IBS_OP_DATA3", field, op.data3);
        let missed = data3("IbsLdOp") == 1 && data3("IbsDcMiss") == 1;
        let source = op.data2 & 7 | (op.data2 >> 6 & 3) << 3;
        let beyond_l3 = missed && data3("IbsL2Miss") == 1 && ![0, 1, 2, 5].contains(&source);
        let high = op.rip >> 63 == 1;
        let second = |field| self.field("IBS_OP_CTL2", field) == 1;
        let left_out = of("IbsOpL3MissOnly") == 1 && !beyond_l3
            || of("IbsOpLdLatEn") == 1
                && missed
                && data3("IbsDcMissLat") <= 128 * (of("IbsOpLdLatThrsh") + 1)
            || second("ExclBit63Clear") && !high
            || second("ExclBit63Set") && high
            || second("StrmStOnly") && op.data2 >> 8 & 1 == 0;
        self.set_field("IBS_OP_CTL", "IbsOpCurCnt", random);
        if left_out {
            return;
        }
        self.set_field("IBS_OP_CTL", "IbsOpVal", 1);
        self.set("IBS_OP_RIP", op.rip);
        self.set("IBS_OP_DATA", op.data);
        self.set("IBS_OP_DATA2", op.data2);
        let of_tlb =
            ["IbsDcL2TlbHit2M", "IbsDcL2TlbHit1G"].map(|field| mask("IBS_OP_DATA3", field));
        let reserved = if self.has(19) { of_tlb[0] | of_tlb[1] } else { 0 };
        self.set("IBS_OP_DATA3", op.data3 & !reserved);
        self.set("IBS_DC_LINADDR", op.linear_address);
        self.set("IBS_DC_PHYSADDR", op.physical_address);
        self.set("BP_IBSTGT_RIP", op.target);
        self.pending = true;
    }

    fn fetch(&mut self, fetch: &FedFetch) {
        let of = |field| self.field("IBS_FETCH_CTL", field);
        let off = of("IbsFetchEn") == 0
            || of("IbsFetchVal") == 1
            || self.field("IBS_FETCH_CTL2", "Dis") == 1;
        let period = of("IbsFetchMaxCnt") * 16;
        if off || period == 0 {
            return;
        }
        self.fetches += 1;
        let of = |field| self.field("IBS_FETCH_CTL", field);
        let high = fetch.linear_address >> 63 == 1;
        let second = |field| self.field("IBS_FETCH_CTL2", field);
        let left_out = of("IbsFetchL3MissOnly") == 1
            && fetch.control & mask("IBS_FETCH_CTL", "IbsFetchL3Miss") == 0
            || second("FetchLatFilter") != 0
                && fetch.control >> 32 & 0xFFFF <= 128 * second("FetchLatFilter")
            || second("ExclBit63Set") == 1 && high
            || second("ExclBit63Clear") == 1 && !high;
        if self.fetches >= period && left_out {
            self.fetches = 0;
        }
        self.set_field("IBS_FETCH_CTL", "IbsFetchCnt", self.fetches >> 4);
        if self.fetches < period {
            return;
        }
        self.fetches &= !0xF;
        for field in [
            "IbsFetchLat",
            "IbsFetchComp",
            "IbsIcMiss",
            "IbsPhyAddrValid",
            "IbsL1TlbPgSz",
            "IbsL1TlbMiss",
            "IbsL2TlbMiss",
            "IbsFetchL2Miss",
            "IbsOpCacheMiss",
            "IbsFetchL3Miss",
        ] {
            let mask = mask("IBS_FETCH_CTL", field);
            if self.legal(address("IBS_FETCH_CTL")) & mask != 0 {
                let value = (fetch.control & mask) >> mask.trailing_zeros();
                self.set_field("IBS_FETCH_CTL", field, value);
            }
        }
        self.set_field("IBS_FETCH_CTL", "IbsFetchVal", 1);
        self.set("IBS_FETCH_LINADDR", fetch.linear_address);
        self.set("IBS_FETCH_PHYSADDR", fetch.physical_address);
        self.set("IC_IBS_EXTD_CTL", fetch.tlb_latency.into());
        self.pending = true;
    }
}

/// Marsaglia's xorshift64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    /// A value of few bits, or of many.
    fn value(&mut self) -> u64 {
        let value = self.next();
        if self.below(2) == 0 { value & self.next() & self.next() } else { value }
    }
}

const ADDRESSES: core::ops::Range<u32> = 0xC001_102E..0xC001_1042;

/// One step of a program: four words, any of which are valid.
pub(crate) type Step = (u8, u8, u32, u64);

/// Returns a valid processor from any words.
pub(crate) fn processor(words: [u8; 4]) -> IbsConfiguration {
    let [kind, entry, deviations, _] = words;
    let fetch_only = IbsConfiguration { capabilities: 0b011, ..IbsConfiguration::ZEN_3 };
    let kinds = [
        IbsConfiguration::FAMILY_10H,
        IbsConfiguration::ZEN_3,
        IbsConfiguration::ZEN_4,
        IbsConfiguration::ZEN_5,
        IbsConfiguration::ZEN_6,
        fetch_only,
    ];
    let kind = kinds[usize::from(kind) % kinds.len()];
    IbsConfiguration {
        lvt_entry: (entry < 0x80).then_some(entry & 0xF),
        fetch_count_kept: deviations & 1 != 0,
        ..kind
    }
}

/// The model and the naive one.
pub(crate) struct Both {
    pub(crate) model: VirtualIbs,
    naive: Naive,
    pub(crate) samples: u32,
}

impl Both {
    pub(crate) fn new(ibs: IbsConfiguration) -> Self {
        Self { model: VirtualIbs::new(ibs), naive: Naive::new(ibs), samples: 0 }
    }

    /// Makes one step, and compares all registers.
    pub(crate) fn step(&mut self, step: Step) {
        let (choice, number, coins, value) = step;
        let what = format!("{:?}, {step:?}", self.naive.ibs);
        let (model, naive) = (&mut self.model, &mut self.naive);
        let mut random = Random(value | 1);
        match choice % 8 {
            0 => {
                let number = ADDRESSES.start + u32::from(number) % 20;
                let mut value = if coins & 1 == 0 { random.value() } else { value };
                if coins & 0b1110 != 0 {
                    value &= naive.legal(number);
                }
                if number == 0xC001_1030 {
                    // The random low bits of the count are in no register.
                    value &= !mask("IBS_FETCH_CTL", "IbsRandEn");
                }
                if matches!(number, 0xC001_1030 | 0xC001_1033) && coins & 0x30 != 0 {
                    // A short period, enabled, without a sample.
                    value = value & !0x6_7FF0_FFFF & !(0xFFFF << 16) & !(7 << 48)
                        | random.below(8)
                        | 1 << if number & 3 == 0 { 48 } else { 17 };
                    value &= naive.legal(number);
                }
                let written = model.write(Writer::Guest, number, value);
                let expected = match naive.exists(number) {
                    false => Write::Unhandled,
                    true if naive.write(number, value) => Write::GeneralProtection,
                    true => Write::Done,
                };
                assert_eq!(written.answer, expected, "{what}: {number:#X} {value:#X}");
            }
            1..=4 => {
                let high = random.below(2) << 63;
                let op = FedOp {
                    rip: random.next() >> 1 | high,
                    data: random.value(),
                    data2: random.value(),
                    data3: random.value(),
                    linear_address: random.next(),
                    physical_address: random.next(),
                    target: random.next(),
                    cycles: 1 + random.below(4) as u32,
                };
                let sampled = model.execute(&op);
                let Read::Value(control) = read_or_zero(model, address("IBS_OP_CTL")) else {
                    panic!("{what}")
                };
                naive.execute(&op, || control >> 32 & 0x7FF_FFFF);
                self.samples += u32::from(sampled);
            }
            5 | 6 => {
                let fetch = FedFetch {
                    control: random.value(),
                    linear_address: random.next(),
                    physical_address: random.next(),
                    tlb_latency: random.next() as u16,
                };
                self.samples += u32::from(model.fetch(&fetch));
                naive.fetch(&fetch);
            }
            _ => {
                assert_eq!(model.interrupt_pending(), naive.pending, "{what}");
                model.set_interrupt_pending(false);
                naive.pending = false;
            }
        }
        self.compare(&what);
    }

    fn compare(&self, what: &str) {
        for number in ADDRESSES {
            let expected = match self.naive.exists(number) {
                true => Read::Value(self.naive.registers.get(&number).copied().unwrap_or(0)),
                false => Read::Unhandled,
            };
            assert_eq!(self.model.read(number), expected, "{what}: {number:#X}");
        }
    }

    /// Saves the model, and goes on with a new one that has the same state.
    pub(crate) fn save_and_restore(&mut self) {
        let mut restored = VirtualIbs::new(self.naive.ibs);
        assert_eq!(restored.restore(&self.model.to_bytes()), Ok(()));
        assert_eq!(restored, self.model);
        self.model = restored;
    }

    /// Compares the list of registers, and the state after reset.
    pub(crate) fn finish(mut self) {
        let ibs = self.naive.ibs;
        let listed: Vec<u32> = self.model.registers().map(|register| register.address).collect();
        let existing: Vec<u32> = ADDRESSES.filter(|number| self.naive.exists(*number)).collect();
        assert_eq!(listed, existing, "{ibs:?}");
        self.model.reset();
        assert_eq!(self.model, VirtualIbs::new(ibs));
    }
}

fn read_or_zero(model: &VirtualIbs, number: u32) -> Read {
    match model.read(number) {
        Read::Unhandled => Read::Value(0),
        read => read,
    }
}
