//! Leftovers of a predecessor: precise sampling of fixed counters, and status bits that belong to no counter.

use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::{MAX_COUNTERS, stop_all};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Events};
use pmu_tests::{FakePlatform, Fault, RegisterFile, intel_processor};

const PEBS_ENABLE: u32 = 0x3F1;
const STATUS: u32 = 0x38E;
const ACKNOWLEDGE: u32 = 0x390;

/// Four general counters, three fixed ones, and the Debug Store.
fn unit(version: u32) -> CounterUnit {
    let plain = intel_processor(version, 4);
    let processor = Snapshot::capture(move |leaf, subleaf| {
        let mut answer = plain.leaf(leaf, subleaf);
        answer.edx |= match leaf {
            1 => 1 << 21,
            0x0A => 48 << 5 | 3,
            _ => 0,
        };
        answer
    });
    pmu_intel::counters(&processor)
}

fn registers() -> RegisterFile {
    let counters = (0xC1..0xC5).chain(0x186..0x18A).chain(0x309..0x30C);
    let file = RegisterFile::new(counters.chain(0x38D..0x391).chain([0x1A0, PEBS_ENABLE]), 0xC1);
    // IA32_MISC_ENABLE: performance monitoring, and PEBS, which bit 12 would deny.
    file.set(0x1A0, 1 << 7);
    file
}

/// Takes all counters, where a predecessor left these bits of `IA32_PEBS_ENABLE`. Returns the remaining bits, and the
/// usable counters.
fn take(version: u32, left: u64, fault: Fault) -> (u64, CounterSet) {
    let (unit, msr, platform) = (unit(version), registers(), FakePlatform::default());
    msr.set(PEBS_ENABLE, left);
    msr.fail(fault);
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 4]>::new();
    let source = Events::new(&unit, &table);
    let counters =
        CounterSession::take(source, &unit, CounterSet::ALL, (&msr, &platform), &memory).unwrap();
    (msr.get(PEBS_ENABLE), counters.counters().usable)
}

/// SDM vol. 3B: bits 35:32 of `IA32_PEBS_ENABLE` enable load latency of the general counters before version 5, and
/// fixed counters from then on ("Extended PEBS"); 63 is precise store.
#[test]
fn load_latency_is_not_taken_for_precise_sampling_of_fixed_counters() {
    let left = 1 << 63 | 0xF << 32 | 0x3F;
    let all = CounterSet::from_bits(0xF) | CounterSet::fixed(0b111);
    for version in [2, 3, 4] {
        let kept = 1 << 63 | 0xF << 32 | 0x30;
        assert_eq!(take(version, left, Fault::Never), (kept, all), "version {version}");
        // Bits that cannot be cleared cost no fixed counter.
        let stays = take(version, 0x3 << 32, Fault::WritesTo(PEBS_ENABLE));
        assert_eq!(stays, (0x3 << 32, all), "version {version}");
    }
    let kept = 1 << 63 | 0x8 << 32 | 0x30;
    assert_eq!(take(5, left, Fault::Never), (kept, all));
    let rest = all.without(CounterSet::fixed(0b011));
    assert_eq!(take(5, 0x3 << 32, Fault::WritesTo(PEBS_ENABLE)), (0x3 << 32, rest));
}

/// Registers of which the acknowledge register refuses some bits, and clears the others in the status.
struct Refusing {
    file: RegisterFile,
    bits: u64,
}

impl RegisterBackend for Refusing {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.file.read(address)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        if address.get() == ACKNOWLEDGE && value & self.bits != 0 {
            return Err(AccessErrorKind::Fault);
        }
        if address.get() == ACKNOWLEDGE {
            self.file.set(STATUS, self.file.get(STATUS) & !value);
        }
        self.file.write(address, value)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.file.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.file.update(update)
    }
}

/// The Debug Store's buffer (62), a trace's table (55) and `PERF_METRICS` (48) raise the same interrupt: the next
/// kernel would be interrupted as it unmasks it.
#[test]
fn silence_acknowledges_what_is_no_counters_too() {
    let (counters, frozen) = (0x7_0000_000F, 1 << 59);
    let buffers = 1 << 62 | 1 << 55 | 1 << 48;
    for (set, refused, expected) in [
        (0, 0, None),
        (counters, 0, Some(counters)),
        (buffers, 0, Some(buffers)),
        (counters | frozen | buffers, 0, Some(counters | frozen | buffers)),
        // A processor, or a hypervisor, that accepts the counters' bits alone.
        (0b1001 | frozen | buffers, buffers, Some(0b1001 | frozen)),
    ] {
        let msr = Refusing { file: registers(), bits: refused };
        msr.file.set(STATUS, set);
        stop_all(&unit(4), &msr).unwrap();
        let writes = msr.file.take_writes().into_iter();
        let acknowledged: Vec<u64> =
            writes.filter(|(register, _)| *register == ACKNOWLEDGE).map(|(_, v)| v).collect();
        assert_eq!(acknowledged, Vec::from_iter(expected), "{set:#X}");
    }
}
