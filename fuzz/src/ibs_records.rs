//! The decoders of instruction-based sampling, of every kind of processor.
//!
//! The bytes: a processor's family, model and leaf 0x8000001B; then the registers of samples.

use pmu_amd::ibs::registers::{IbsFetchCtl, IbsOpData, IbsOpData2, IbsOpData3};
use pmu_amd::ibs::{IbsFetchRecord, IbsKind, IbsOpRecord, IbsRecord, IbsSampling, IbsUnits};
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;

use crate::input::Input;

/// Takes a processor's units from the bytes.
fn units(input: &mut Input<'_>) -> Option<IbsUnits> {
    let (family, model, capabilities) = (input.u8(), input.u8(), input.u32());
    let signature = u32::from(family & 0xF) << 20
        | u32::from(model >> 4) << 16
        | 0xF << 8
        | u32::from(model & 0xF) << 4;
    let answer = move |leaf: u32, _: u32| {
        let [eax, ebx, ecx, edx] = match leaf {
            0 => [1, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
            1 => [signature, 0, 0, 0],
            0x8000_0000 => [0x8000_001B, 0, 0, 0],
            0x8000_0001 => [0, 0, 1 << 10, 0],
            0x8000_001B => [capabilities, 0, 0, 0],
            _ => [0; 4],
        };
        CpuIdResult { eax, ebx, ecx, edx }
    };
    IbsUnits::of(&Snapshot::capture(answer))
}

/// Decodes records.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = if input.bool() { IbsKind::Op } else { IbsKind::Fetch };
    let Some(units) = units(&mut input) else { return };
    let Some(unit) = units.get(kind) else { return };
    let (can, latency) = (unit.capabilities(), input.u16());
    for sampling in [IbsSampling::ops(), IbsSampling::cycles(), IbsSampling::fetches()] {
        if units.check(&sampling.slower_than(latency)).is_ok() {
            assert!(latency.is_multiple_of(128) && latency <= 2_048);
        }
    }
    while !input.is_empty() {
        let mut next = || input.u64();
        let record = match kind {
            IbsKind::Op => IbsRecord::Op(IbsOpRecord {
                rip: next(),
                data: IbsOpData::from_bits(next()),
                data2: IbsOpData2::from_bits(next()),
                data3: IbsOpData3::from_bits(next()),
                linear_address: next(),
                physical_address: None,
                target: next(),
            }),
            IbsKind::Fetch => IbsRecord::Fetch(IbsFetchRecord {
                control: IbsFetchCtl::from_bits(next()),
                linear_address: next(),
                physical_address: None,
                tlb_latency: next() as u16,
            }),
        };
        let sample = record.sample(unit);
        assert_eq!(sample.address, record.address(unit));
        assert_eq!(sample.fetch.is_some(), kind == IbsKind::Fetch);
        // Nothing is told that the processor does not record, or of which the record says that it is void.
        let IbsRecord::Op(op) = record else { continue };
        assert_eq!(sample.branch.is_some(), op.data.branch());
        let target = sample.branch.and_then(|branch| branch.target);
        assert!(target.is_none() || can.branch_target() && op.data.taken());
        assert_eq!(sample.access.is_some(), op.data3.load() || op.data3.store());
        let Some(access) = sample.access else { continue };
        assert_eq!(access.address.is_some(), op.data3.linear_address_valid());
        assert!(access.physical_address.is_none());
        assert!(access.source.is_none() || access.load);
        assert!(access.latency.is_none() || op.data3.cache_miss());
        assert!(access.remote.is_none() || access.line.is_none());
    }
}
