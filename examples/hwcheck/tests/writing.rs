//! The one function that writes: nothing outside the agreed list, in any state of any machine.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod machines;

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use machines::{Folder, configurations};
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_hwcheck::counts::counts;
use pmu_hwcheck::machine::software::Plan;
use pmu_hwcheck::machine::workload::{Memory, Workload};
use pmu_hwcheck::machine::{Machine, Msr};
use pmu_hwcheck::programs::Comparison;
use pmu_hwcheck::registers::agreed::Agreed;
use pmu_hwcheck::registers::journal::Journal;
use pmu_hwcheck::registers::read;
use pmu_hwcheck::registers::restore::restore;
use pmu_hwcheck::registers::{Registers, WriteError};
use pmu_virt::configuration::{Configuration, CpuidRegisters, Vendor};
use proptest::prelude::*;

/// Registers that take every write, and keep a list of them.
#[derive(Default)]
struct Recorder {
    holds: RefCell<BTreeMap<u32, u64>>,
    writes: RefCell<Vec<(u32, u64)>>,
}

impl RegisterBackend for Recorder {
    type Error = AccessErrorKind;
    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.update(RegisterUpdate::read(address.get()))
    }
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.writes.borrow_mut().push((address.get(), value));
        Ok(())
    }
    fn read_counter(&self, _: CounterIndex) -> Result<u64, AccessErrorKind> {
        Err(AccessErrorKind::Fault)
    }
    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        Ok(self.holds.borrow().get(&update.register()).copied().unwrap_or(0))
    }
}

impl Machine for Recorder {
    fn msr(&self) -> &Msr {
        self
    }
    fn cpuid(&self, _: u32, _: u32) -> CpuidRegisters {
        [0; 4]
    }
    fn run(&self, _: Workload, _: &Memory, _: u64) {}
    fn processor(&self) -> u32 {
        0
    }
    fn root(&self) -> &Path {
        Path::new("/nowhere")
    }
    fn is_software(&self) -> bool {
        true
    }
    fn occupy(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns whether a write is permitted, by the issue's words and the manuals' addresses: SDM vol. 4, table "IA-32
/// Architectural MSRs"; APM vol. 2, appendix "MSR Cross-Reference".
fn may_be_written(vendor: Vendor, address: u32, value: u64, found: &BTreeMap<u32, u64>) -> bool {
    let found = |address: u32| found.get(&address).copied().unwrap_or(0);
    let select = |first: u32, number: u32, stride: u32| {
        let held = found(first + number * stride);
        let pin_or_any_thread = value & (1 << 19 | 1 << 21) != 0;
        let is_disabled_one = value == held && held & 1 << 22 == 0;
        !pin_or_any_thread && (value & 1 << 20 == 0 || is_disabled_one)
    };
    match (vendor, address) {
        (Vendor::Intel, 0x186..=0x18D) => select(0x186, address - 0x186, 1),
        (Vendor::Intel, 0x1900..=0x191F) if address % 4 == 1 => {
            select(0x186, (address - 0x1900) / 4, 1)
        }
        (Vendor::Intel, 0x1900..=0x191F | 0x1980..=0x199F) => address.is_multiple_of(4),
        (Vendor::Intel, 0xC1..=0xC8 | 0x4C1..=0x4C8 | 0x309..=0x310) => true,
        (Vendor::Intel, 0x38D) => {
            let interrupts = value & 0x8888_8888;
            let running = (0..8).any(|n| value >> (4 * n) & 8 != 0 && value >> (4 * n) & 3 != 0);
            value & 0x4444_4444 == 0 && (interrupts == 0 || value == found(0x38D) && !running)
        }
        // PERF_METRICS' enable bit is another facility's.
        (Vendor::Intel, 0x38F) => (value ^ found(0x38F)) & 1 << 48 == 0,
        (Vendor::Amd, 0xC000_0301) => true,
        // An overflow that was there before stays, and what is not a counter's: PERF_METRICS, Trace_ToPA_PMI, LBR_Frz,
        // CTR_Frz, ASCI, Ovf_Uncore, OvfBuf and CondChgd (SDM vol. 4, IA32_PERF_GLOBAL_STATUS_RESET); LbrFrz and
        // PMCFrz.
        (Vendor::Intel, 0x390) => value & (found(0x38E) | 0xFC81_0000_0000_0000) == 0,
        (Vendor::Amd, 0xC000_0302) => value & (found(0xC000_0300) | 0x0C00_0000_0000_0000) == 0,
        (Vendor::Amd, 0xC001_0000..=0xC001_0003) => select(0xC001_0000, address & 3, 1),
        (Vendor::Amd, 0xC001_0004..=0xC001_0007) => true,
        (Vendor::Amd, 0xC001_0200..=0xC001_020F) if address.is_multiple_of(2) => {
            let number = (address - 0xC001_0200) / 2;
            // The first four are the legacy ones, by another address.
            let legacy = found(0xC001_0000 + number % 4);
            select(0xC001_0200, number, 2)
                || number < 4 && value == legacy && value & (1 << 19 | 1 << 21 | 1 << 22) == 0
        }
        (Vendor::Amd, 0xC001_0200..=0xC001_020F) => true,
        _ => false,
    }
}

/// Values that registers are found with: zeros; and what the rules distinguish.
fn found(configuration: &Configuration) -> Vec<BTreeMap<u32, u64>> {
    let zeros: BTreeMap<u32, u64> =
        configuration.registers().filter(|one| one.exists).map(|one| (one.address, 0)).collect();
    let mut traces = zeros.clone();
    let selects = [0x13_003C, 0x0B_00C0, 0x23_00C0, 0x53_00C0, 0x43_00C0, 0x03_00C0];
    for (number, select) in selects.into_iter().enumerate() {
        for address in
            [0x186 + number as u32, 0xC001_0000 + number as u32, 0xC001_0200 + 2 * number as u32]
        {
            if let Some(held) = traces.get_mut(&address) {
                *held = select;
            }
        }
    }
    for (address, value) in [(0x38D, 0x080), (0x38E, 0b11), (0xC000_0300, 0b11), (0x38F, 0xC)] {
        if let Some(held) = traces.get_mut(&address) {
            *held = value;
        }
    }
    let mut interrupting = zeros.clone();
    if let Some(held) = interrupting.get_mut(&0x38D) {
        *held = 0xB0;
    }
    vec![zeros, traces, interrupting]
}

#[test]
fn of_all_addresses_and_bits_only_the_agreed_ones_reach_the_processor() {
    let ranges = [0..0x2000, 0xC000_0000..0xC000_0400, 0xC001_0000..0xC001_1100];
    for configuration in configurations() {
        let kept: Vec<_> = configuration.registers().filter(|one| one.exists).collect();
        for held in found(&configuration) {
            let recorder = Recorder::default();
            *recorder.holds.borrow_mut() = held.clone();
            let agreed = Agreed::new(&configuration, |address| held.get(&address).copied());
            let journal = Journal::new(&agreed).unwrap();
            let registers = Registers::new(&recorder, configuration, &agreed, &journal);
            for address in ranges.iter().cloned().flatten() {
                let is_there = kept.iter().any(|one| one.address == address);
                let before = held.get(&address).copied().unwrap_or(0);
                let bits = (0..64).map(|bit| 1 << bit);
                for value in bits.chain([0, u64::MAX, before, before | 1 << 20, before | 1 << 22]) {
                    let answer = registers.write(address, value);
                    let written = recorder.writes.borrow_mut().pop();
                    let may =
                        is_there && may_be_written(configuration.vendor(), address, value, &held);
                    assert!(may || written.is_none(), "{address:#x} {value:#x} was written");
                    let refused = Err(WriteError::NotAgreed { register: address, value });
                    assert_eq!(answer == refused, written.is_none(), "{address:#x} {value:#x}");
                    assert!(written.is_none_or(|written| written == (address, value)));
                }
            }
        }
    }
}

#[test]
fn what_a_run_needs_is_agreed_to() {
    for configuration in configurations() {
        let agreed = Agreed::new(&configuration, |_| Some(0));
        for register in configuration.registers().filter(|one| one.exists) {
            use pmu_virt::registers::RegisterKind as K;
            let is_written = matches!(
                register.kind,
                K::EventSelect
                    | K::GeneralCounter
                    | K::FixedCounter
                    | K::FixedControl
                    | K::GlobalControl
                    | K::GlobalStatusClear
            );
            assert_eq!(agreed.allows(register.address, 0), is_written, "{register:?}");
        }
    }
}

#[test]
fn a_counter_that_could_not_be_restored_is_left_out_with_its_global_bit() {
    let configuration = machines::intel();
    // Pin control; any-thread; enabled with an interrupt, which the global control holds back.
    for held in [0x0B_00C0, 0x23_00C0, 0x53_00C0] {
        let found = |address| Some(if address == 0x187 { held } else { 0 });
        let agreed = Agreed::new(&configuration, found);
        assert_eq!(agreed.taken(), 0x7_0000_000D, "{held:#x}");
        assert!(!agreed.allows(0x187, 0) && !agreed.allows(0xC2, 0) && !agreed.allows(0x4C2, 0));
        assert!(!agreed.allows(0x38F, 0x2) && agreed.allows(0x38F, 0xD));
    }
    // Interrupting while enabled, any-thread, adaptive PEBS: no fixed counter.
    for held in [0xB0, 0x04, 1 << 32] {
        let found = |address| Some(if address == 0x38D { held } else { 0 });
        let agreed = Agreed::new(&configuration, found);
        assert_eq!(agreed.taken(), 0xF, "{held:#x}");
        assert!(!agreed.allows(0x38D, 0) && !agreed.allows(0x309, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_run_finds_and_does_it_writes_only_what_was_agreed_to(
        kind in 0usize..10,
        seed: u64,
        selects in proptest::collection::vec(any::<u32>(), 8),
        control: u16,
    ) {
        let configuration = configurations()[kind];
        let folder = Folder::new();
        let machine = folder.machine(Plan::new(configuration));
        // Disabled: a run begins only where nothing runs.
        for (number, select) in (0..).zip(selects) {
            for address in [0x186 + number, 0xC001_0000 + number % 4, 0xC001_0200 + 2 * number] {
                let _ = machine.set(address, u64::from(select) & !(1 << 22));
            }
        }
        let _ = machine.set(0x38D, u64::from(control) & 0x888);
        let mut held = BTreeMap::new();
        for register in configuration.registers().filter(|one| one.exists) {
            if let Ok(value) = read(&machine, &configuration, register.address) {
                held.insert(register.address, value);
            }
        }
        let agreed = Agreed::new(&configuration, |address| held.get(&address).copied());
        let journal = Journal::new(&agreed).unwrap();
        let registers = Registers::new(&machine, configuration, &agreed, &journal);
        let mut comparison = Comparison::new(&registers).unwrap();
    comparison.allow_rdpmc();
        prop_assert_eq!(comparison.programs(seed, 2, &|| false), Ok(()));
        if kind < 8 {
            // AMD's 176 sources are another test's.
            prop_assert_eq!(counts(&registers, true, 1, &|| false, &mut |_| {}), Ok(()));
        }
        restore(&registers);
        let writes = machine.writes();
        prop_assert!(writes.len() > 20 || agreed.taken() == 0);
        for (address, value) in writes {
            prop_assert!(may_be_written(configuration.vendor(), address, value, &held), "{:#x} {:#x}", address, value);
        }
        for (address, value) in held {
            if !(0xC1..0xC9).contains(&address) {
                prop_assert_eq!(read(&machine, &configuration, address), Ok(value), "{:#x}", address);
            }
        }
    }
}
