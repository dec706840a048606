//! The decoders of branch records, of every kind of processor.
//!
//! The bytes: the CPUID leaves of a processor and its `IA32_PERF_CAPABILITIES`, as far as they concern branch records;
//! then records of three words.

use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::branches::{BranchFilter, BranchKinds, BranchUnit, RawBranch};
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;

use crate::input::Input;

/// A processor whose only register has the format of legacy records.
struct Capabilities(u64);

impl RegisterBackend for Capabilities {
    type Error = AccessErrorKind;

    fn read(&self, _: RegisterAddress) -> Result<u64, AccessErrorKind> {
        Err(AccessErrorKind::Fault)
    }

    fn write(&self, _: RegisterAddress, _: u64) -> Result<(), AccessErrorKind> {
        panic!("detection writes nothing")
    }

    fn read_counter(&self, _: CounterIndex) -> Result<u64, AccessErrorKind> {
        Err(AccessErrorKind::Fault)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        assert_eq!((update.register(), update.apply(self.0)), (0x345, None));
        Ok(self.0)
    }
}

/// Takes a processor from the bytes.
fn unit(input: &mut Input<'_>) -> Option<BranchUnit> {
    let intel = input.bool();
    let (model, stepping, version) = (input.u8(), input.u8(), input.u8());
    let (declared, depths, features, told) = (input.u32(), input.u32(), input.u32(), input.u32());
    let (bits, format) = (input.u8(), input.u64());
    let family = if intel { 6 << 8 } else { 0xF << 8 | 0xA << 20 };
    let signature = family
        | u32::from(model >> 4) << 16
        | u32::from(model & 0xF) << 4
        | u32::from(stepping & 0xF);
    let answer = move |leaf: u32, _: u32| {
        let [eax, ebx, ecx, edx] = match leaf {
            0 if intel => [0x1C, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
            0 => [0x1C, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
            1 => [signature, 0, 1 << 15, 0],
            7 => [0, declared, 0, declared],
            0x0A => [u32::from(version), 0, 0, 0],
            0x1C => [depths, features, told, 0],
            0x8000_0000 => [0x8000_0022, 0, 0, 0],
            0x8000_0008 => [u32::from(bits) << 8, declared, 0, 0],
            0x8000_0022 => [features, depths, 0, 0],
            _ => [0; 4],
        };
        CpuIdResult { eax, ebx, ecx, edx }
    };
    let processor = Snapshot::capture(answer);
    let unit = if intel {
        pmu_intel::branches(&processor, &Capabilities(format))
    } else {
        pmu_amd::branches(&processor)
    };
    unit.ok()
}

/// Decodes records.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some(unit) = unit(&mut input) else { return };
    assert!((1..=BranchUnit::MAX_DEPTH).contains(&unit.depth()));
    assert!(!unit.offers().call_stack || unit.offers().kinds);
    for levels in [BranchFilter::USER, BranchFilter::KERNEL, BranchFilter::ALL] {
        for filter in [levels, levels.only(BranchKinds::CALLS), levels.call_stack()] {
            if let Some(recorded) = unit.recorded(filter) {
                assert!(recorded.contains(filter), "{filter:?}: {recorded:?}");
            }
        }
    }
    while !input.is_empty() {
        let record = RawBranch { from: input.u64(), to: input.u64(), info: input.u64() };
        let Some(branch) = unit.decode(record) else { continue };
        // Nothing is told that the processor does not offer, and flags are no part of an address.
        let offers = unit.offers();
        assert_eq!(branch.mispredicted.is_some(), offers.mispredicted);
        assert_eq!(branch.transaction.is_some(), offers.transaction);
        assert_eq!(branch.events.is_some(), offers.events != 0);
        assert!(offers.cycles || branch.cycles.is_none());
        assert!(offers.kind || branch.kind.is_none());
        if offers.address_bits < 64 {
            for address in [branch.from, branch.to] {
                let above = (address as i64) >> (offers.address_bits - 1);
                assert!(above == 0 || above == -1, "{address:#X}");
            }
        }
    }
}
