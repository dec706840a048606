//! Arbitrary CPUID, into a snapshot and into the interfaces that may detect it, against the manuals' tables by hand.
//!
//! The bytes: the processor's answer to a leaf beyond its last; then leaves, each by its place in a list of those
//! that matter, with its four registers.

use std::collections::HashMap;

use pmu_amd::Amd64;
use pmu_core::EventSource;
use pmu_core::error::NoInterface;
use pmu_core::registers::{CounterId, MAX_GENERAL};
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::{CpuIdReader, CpuIdResult};
use pmu_intel::{ArchitecturalPerfmon, Emon};

use crate::input::Input;

/// The leaves that the interfaces read.
const LEAVES: [(u32, u32); 16] = [
    (0, 0),
    (1, 0),
    (7, 0),
    (0x0A, 0),
    (0x1A, 0),
    (0x23, 0),
    (0x23, 1),
    (0x4000_0000, 0),
    (0x4000_0001, 0),
    (0x4000_0003, 0),
    (0x8000_0000, 0),
    (0x8000_0001, 0),
    (0x8000_0002, 0),
    (0x8000_0008, 0),
    (0x8000_001B, 0),
    (0x8000_0022, 0),
];

const NOTHING: CpuIdResult = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

/// A processor.
struct Processor {
    leaves: HashMap<(u32, u32), CpuIdResult>,
    beyond: CpuIdResult,
}

impl CpuIdReader for &Processor {
    fn cpuid2(&self, eax: u32, ecx: u32) -> CpuIdResult {
        self.leaves.get(&(eax, ecx)).copied().unwrap_or(self.beyond)
    }
}

impl Processor {
    /// Returns the leaf, if the last one of its range declares it.
    fn leaf(&self, leaf: u32, subleaf: u32) -> CpuIdResult {
        let answer = |leaf, subleaf| (&self).cpuid2(leaf, subleaf);
        let there = match leaf {
            0 => true,
            1..0x4000_0000 => leaf <= answer(0, 0).eax && answer(0, 0).eax < 0x1000_0000,
            0x4000_0000..0x8000_0000 => {
                // A hypervisor says in leaf 1 that it is there, and has its first leaf at least.
                let last = answer(0x4000_0000, 0).eax.max(0x4000_0000);
                self.leaf(1, 0).ecx >> 31 == 1 && leaf <= last && last < 0x5000_0000
            }
            _ => {
                let last = answer(0x8000_0000, 0).eax;
                (0x8000_0000..0x9000_0000).contains(&last) && leaf <= last
            }
        };
        if there { answer(leaf, subleaf) } else { NOTHING }
    }

    fn vendor(&self) -> Vec<u8> {
        let leaf = self.leaf(0, 0);
        [leaf.ebx, leaf.edx, leaf.ecx].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Returns whether Microsoft's interface, "Hv#1", lacks "performance monitors available".
    fn is_hidden(&self) -> bool {
        self.leaf(1, 0).ecx >> 31 == 1
            && self.leaf(0x4000_0001, 0).eax == 0x3123_7648
            && self.leaf(0x4000_0003, 0).edx >> 2 & 1 == 0
    }
}

fn processor(input: &mut Input<'_>) -> Processor {
    let next = |input: &mut Input<'_>| {
        let [eax, ebx, ecx, edx] = [(); 4].map(|()| input.u32());
        CpuIdResult { eax, ebx, ecx, edx }
    };
    let beyond = next(input);
    let mut leaves = HashMap::new();
    while !input.is_empty() {
        let place = LEAVES[usize::from(input.u8()) % LEAVES.len()];
        leaves.insert(place, next(input));
    }
    Processor { leaves, beyond }
}

/// SDM vol. 2A, CPUID, "Input EAX = 0AH".
fn assert_perfmon(processor: &Processor, perfmon: &ArchitecturalPerfmon) {
    let CpuIdResult { eax, ebx, ecx, edx } = processor.leaf(0x0A, 0);
    let version = eax & 0xFF;
    assert_eq!(u32::from(perfmon.version()), version);
    assert_eq!(u32::from(perfmon.counters()), eax >> 8 & 0xFF);
    assert_eq!(u32::from(perfmon.width()), eax >> 16 & 0xFF);
    assert_eq!(u32::from(perfmon.events()), eax >> 24);
    assert_eq!(perfmon.events_unavailable(), ebx);
    for event in 0..=u8::MAX {
        let told = u32::from(event) < (eax >> 24).min(32);
        assert_eq!(perfmon.has_event(event), told && ebx >> event & 1 == 0);
    }
    for counter in 0..32 {
        let counted = version >= 2 && edx & 31 > counter;
        let mapped = version >= 5 && ecx >> counter & 1 == 1;
        assert_eq!(perfmon.fixed_counters() >> counter & 1 == 1, counted || mapped);
    }
    let width = if version >= 2 { edx >> 5 & 0xFF } else { 0 };
    assert_eq!(u32::from(perfmon.fixed_width()), width);
    assert_eq!(perfmon.any_thread_deprecated(), edx >> 15 & 1 == 1);
}

/// Every row has a counter's event or is time, is found by value and by name, and is supported as CPUID
/// declares.
fn assert_table<I: EventSource>(interface: &I, declared: impl Fn(usize) -> bool) {
    for (row, entry) in interface.sources().iter().enumerate() {
        assert_eq!(interface.row(entry.source()), Some(row));
        assert!(interface.row_named(entry.name()).is_some());
        let information = interface.query(entry.source());
        assert_eq!(information.is_supported(), declared(row), "{}", entry.name());
        assert_eq!(information.interval != 0, declared(row));
    }
}

fn assert_emon(processor: &Processor, emon: &Emon) {
    assert_perfmon(processor, emon.perfmon());
    let CpuIdResult { eax, ebx, .. } = processor.leaf(0x0A, 0);
    let (version, count, width) = (eax & 0xFF, eax >> 8 & 0xFF, eax >> 16 & 0xFF);
    // SDM vol. 2A, leaf 0x23, sub-leaf 1: EAX, where leaf 7.1 and sub-leaf 0 declare it.
    let extended =
        processor.leaf(7, 1).eax >> 8 & 1 != 0 && processor.leaf(0x23, 0).eax >> 1 & 1 != 0;
    let there = if version >= 6 { 0xFFFF } else { 0x3FF };
    let bitmap = match processor.leaf(0x23, 1).eax & there {
        bitmap @ 1.. if extended => bitmap,
        _ => (1 << count) - 1,
    };
    assert_eq!(emon.unit().counters().bits() & 0xFFFF_FFFF, u64::from(bitmap));
    for number in 0..MAX_GENERAL as u8 {
        let counter = emon.unit().counter(CounterId::general(number).unwrap());
        assert_eq!(counter.is_some(), bitmap >> number & 1 != 0);
        let Some(counter) = counter else { continue };
        let at = u32::from(number);
        // SDM vol. 4, table 2-2: ten of each, from 0x186 and from 0xC1 on; from version 6 on others.
        let registers =
            if version >= 6 { (0x1901 + 4 * at, 0x1900 + 4 * at) } else { (0x186 + at, 0xC1 + at) };
        let found = (counter.control().register().get(), counter.value_register().get());
        assert_eq!(found, registers);
        assert!(counter.width() == width && (32..=64).contains(&width));
    }
    let global = emon.unit().global();
    assert_eq!(global.is_some(), version >= 2);
    if let Some(global) = global {
        let registers = [global.status, global.control, global.acknowledge];
        assert_eq!(registers.map(|register| register.get()), [0x38E, 0x38F, 0x390]);
    }
    assert_table(emon, |row| {
        let bit = emon.sources()[row].event_bit().map(u32::from);
        bit.is_none_or(|bit| bit < eax >> 24 && ebx >> bit & 1 == 0)
    });
}

/// APM vol. 3, appendix E: leaf 0x80000022, EAX bit 0 and EBX bits 3:0; leaf 0x80000001, ECX bit 23.
fn assert_amd64(processor: &Processor, amd64: &Amd64) {
    let v2 = processor.leaf(0x8000_0022, 0);
    let extended = processor.leaf(0x8000_0001, 0).ecx >> 23 & 1 == 1;
    let (count, global) = match (v2.eax & 1, v2.ebx & 0xF) {
        (1, count @ 1..) => (count, true),
        _ if extended => (6, false),
        _ => (4, false),
    };
    assert_eq!(amd64.unit().counters().len() as u32, count);
    assert_eq!(amd64.unit().global().is_some(), global);
    for number in 0..MAX_GENERAL as u8 {
        let counter = amd64.unit().counter(CounterId::general(number).unwrap());
        assert_eq!(counter.is_some(), u32::from(number) < count);
        let Some(counter) = counter else { continue };
        let number = u32::from(number);
        let registers = if global || extended {
            (0xC001_0200 + 2 * number, 0xC001_0201 + 2 * number)
        } else {
            (0xC001_0000 + number, 0xC001_0004 + number)
        };
        assert_eq!((counter.control().register().get(), counter.value_register().get()), registers);
        assert_eq!(counter.width(), 48);
    }
    assert_table(amd64, |_| true);
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let processor = processor(&mut Input::new(bytes));
    let snapshot = Snapshot::capture(&processor);
    for (leaf, subleaf) in LEAVES {
        assert_eq!(snapshot.leaf(leaf, subleaf), processor.leaf(leaf, subleaf), "{leaf:#X}");
    }
    // A snapshot of a snapshot is the same.
    assert_eq!(format!("{:?}", Snapshot::capture(&snapshot)), format!("{snapshot:?}"));
    assert_eq!(snapshot.vendor()[..], processor.vendor());
    // SDM vol. 2A, CPUID, "Version Information Returned by CPUID in EAX"; family 7 is Zhaoxin's.
    let signature = processor.leaf(1, 0).eax;
    let (family, extended) = (signature >> 8 & 0xF, signature >> 20 & 0xFF);
    let family_told = if family == 0xF { family + extended } else { family };
    assert_eq!(u32::from(snapshot.family()), family_told);
    assert_eq!(u32::from(snapshot.stepping()), signature & 0xF);
    let amd = processor.vendor() == b"AuthenticAMD";
    let has_extension = family == 0xF || (family == 6 || family == 7) && !amd;
    let model = signature >> 4 & 0xF | if has_extension { signature >> 12 & 0xF0 } else { 0 };
    assert_eq!(u32::from(snapshot.model()), model);
    assert_eq!(snapshot.has_long_mode(), processor.leaf(0x8000_0001, 0).edx >> 29 & 1 == 1);
    assert_eq!(snapshot.hypervisor_hides_counters(), processor.is_hidden());
    let perfmon = ArchitecturalPerfmon::from_snapshot(&snapshot);
    assert_perfmon(&processor, &perfmon);

    let CpuIdResult { eax, ebx, .. } = processor.leaf(0x0A, 0);
    let possible = (1..=10).contains(&(eax >> 8 & 0xFF)) && (32..=64).contains(&(eax >> 16 & 0xFF));
    let emon = processor.vendor() == b"GenuineIntel"
        && !processor.is_hidden()
        && eax & 0xFF != 0
        && eax >> 24 != 0
        && ebx & 1 == 0
        && possible;
    match Emon::detect(&snapshot) {
        Ok(claimed) => {
            assert!(emon);
            assert_emon(&processor, &claimed);
        }
        Err(error) => {
            assert!(!emon);
            assert!(match error {
                NoInterface::OtherVendor(vendor) => vendor != *b"GenuineIntel",
                NoInterface::HiddenByHypervisor => processor.is_hidden(),
                NoInterface::NoPerformanceMonitoring => eax & 0xFF == 0 || eax >> 24 == 0,
                NoInterface::CyclesUnavailable => ebx & 1 == 1,
                NoInterface::ImplausibleCounters { count, width } => {
                    let told = (u32::from(count), u32::from(width));
                    told == (eax >> 8 & 0xFF, eax >> 16 & 0xFF) && !possible
                }
                _ => false,
            });
        }
    }
    let amd64 = amd && snapshot.has_long_mode() && !processor.is_hidden();
    match Amd64::detect(&snapshot) {
        Ok(claimed) => {
            assert!(amd64 && !emon);
            assert_amd64(&processor, &claimed);
        }
        Err(_) => assert!(!amd64),
    }
}
