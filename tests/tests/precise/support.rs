//! Processors that write precise records.

use core::cell::{Cell, RefCell};
use core::ptr;
use core::sync::atomic::AtomicU64;

use pmu_core::Claim;
use pmu_intel::precise::PreciseMemory;
use pmu_tests::StateRegisters;
use pmu_tests::opened::fed_events;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviations, MockMsr, ProcessMemory};
use pmu_virt::precise::{
    FedRecord, FedRegisters, GuestMemory, PreciseConfiguration, VirtualPrecise,
};
use pmu_virt::{Read, VirtualPmu};

pub(crate) type Mock<'h> = MockMsr<'h, 64>;
pub(crate) type Msr = &'static Mock<'static>;

/// The buffer's physical address.
pub(crate) const PHYSICAL: u64 = 0x10_0000;

/// Words of the buffer.
const WORDS: usize = 2048;

/// A processor that writes records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    pub(crate) name: &'static str,
    pub(crate) counters: IntelConfiguration,
    pub(crate) records: PreciseConfiguration,
    pub(crate) deviations: Deviations,
    pub(crate) freezes: bool,
}

/// Returns a processor of each format, freezing and not.
pub(crate) fn processors() -> Vec<Processor> {
    let of = |name, version, format| {
        let records = PreciseConfiguration::debug_store(format);
        (name, version, records)
    };
    let all = [
        of("format 0", 2, 0),
        of("format 1", 3, 1),
        of("format 2", 3, 2),
        of("format 3", 4, 3),
        of("format 4", 5, 4),
        of("format 5", 5, 5),
        of("format 6", 5, 6),
        ("architectural", 6, PreciseConfiguration::ARCHITECTURAL),
        (
            "fragments",
            6,
            PreciseConfiguration::ARCHITECTURAL
                .with_architectural(|records| records.fragments = true),
        ),
    ];
    let processor = |freezes| {
        move |(name, version, records)| Processor {
            name,
            counters: IntelConfiguration::new(version, if version < 4 { 4 } else { 8 }, 3),
            records,
            deviations: Deviations::NONE,
            freezes,
        }
    };
    all.into_iter().map(processor(true)).chain(all.into_iter().map(processor(false))).collect()
}

/// Returns the instruction of a record: at 0x401000 + 16 times its number.
pub(crate) fn instruction(number: u64) -> FedRecord<'static> {
    let ip = address(number);
    FedRecord {
        registers: FedRegisters { ip: ip + 4, ..FedRegisters::ZERO },
        tsc: 1000 + number,
        ..FedRecord::new(ip)
    }
}

pub(crate) fn address(number: u64) -> u64 {
    0x40_1000 + 16 * number
}

/// Interrupts that no claim accounts for, neither their own nor an earlier one: a kernel would report them.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    count: Cell<u32>,
    /// An earlier claim accounts for one more interrupt.
    expects: Cell<bool>,
}

impl Unknown {
    pub(crate) fn note(&self, claim: Claim) {
        match claim {
            Claim::NotOurs if !self.expects.take() => self.count.set(self.count.get() + 1),
            Claim::OursAndMore => self.expects.set(true),
            Claim::NotOurs | Claim::Ours => {}
        }
    }

    pub(crate) fn get(&self) -> u32 {
        self.count.get()
    }
}

/// Makes the memory of a processor, which lasts.
pub(crate) fn lend() -> &'static PreciseMemory {
    let memory: &'static PreciseMemory<[AtomicU64; WORDS]> =
        Box::leak(Box::new(PreciseMemory::new()));
    memory
}

/// Returns the words of the memory's area, and those of its buffer.
pub(crate) fn words(memory: &'static PreciseMemory) -> [&'static [AtomicU64]; 2] {
    let first = ptr::from_ref(memory).cast::<AtomicU64>();
    // SAFETY: the area has 56 atomic words, and one page behind it begins the buffer of atomic words.
    unsafe {
        [
            core::slice::from_raw_parts(first, 56),
            core::slice::from_raw_parts(first.add(512), memory.capacity() / 8),
        ]
    }
}

impl Processor {
    /// Makes the processor, which writes to this memory.
    pub(crate) fn mock(
        self,
        memory: &'static PreciseMemory,
        instructions: impl Fn(u64) -> FedRecord<'static> + 'static,
        more: &'static [AtomicU64],
        new: fn(VirtualPmu) -> Mock<'static>,
    ) -> &'static Mock<'static> {
        // SAFETY: the area and the buffer, one page behind it, consist of atomics.
        let ram = unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) };
        // SAFETY: they are atomics.
        let ram = unsafe { ram.with(more, 2 * PHYSICAL) };
        let ram: &'static RefCell<dyn GuestMemory> = Box::leak(Box::new(RefCell::new(ram)));
        let configuration = Configuration::Intel(self.counters);
        let precise = VirtualPrecise::new(&configuration, self.records).unwrap();
        let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
        let mock = new(pmu).with_precise(precise, ram, Box::leak(Box::new(instructions)));
        let mock: &'static Mock<'static> = Box::leak(Box::new(mock.deviating(self.deviations)));
        let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
        mock
    }
}

/// Checks that no counter counts, and that nothing is recorded or pending.
#[track_caller]
pub(crate) fn nothing_is_enabled(mock: &Mock<'_>, what: &str) {
    let state = mock.with_pmu(|pmu| pmu.state());
    assert_eq!((state.selects(), state.fixed_control()), ([0; 8], 0), "{what}");
    assert_eq!((state.global_status(), state.debug_control()), (0, 0), "{what}");
    let records = mock
        .with_precise_records(|records| (records.enabled(), records.due(), records.is_tracing()));
    assert_eq!(records, Some((0, 0, false)), "{what}");
    // IA32_DS_AREA, IA32_PEBS_ENABLE, IA32_PEBS_BASE and IA32_PEBS_INDEX, of those that there are.
    for register in [0x600, 0x3F1, 0x3F4, 0x3F5] {
        let value = mock.with_precise_records(|records| {
            mock.with_pmu(|pmu| pmu.read_beside(records, register))
        });
        let clear = [Read::Value(0), Read::GeneralProtection, Read::Unhandled].map(Some);
        assert!(clear.contains(&value), "{what}: {register:#x} is {value:x?}");
    }
}
