//! Requests that a unit takes, and those that it refuses.

use pmu_amd::ibs::{IbsCapabilities, IbsKind, IbsSampling, IbsSamplingError, IbsUnit};
use pmu_tests::recorded;

use pmu_tests::ibs_processor as processor;

use crate::decode::{ZEN_3, ZEN_4};

/// Capabilities of Zen 5 and of its successor: the latency filter, and bits 13 to 16.
const ZEN_5: u32 = 0x8_1BFF;
const ZEN_6: u32 = 0x9_FBFF;

fn unit(family: u32, model: u32, capabilities: u32, kind: IbsKind) -> IbsUnit {
    IbsUnit::of(&processor(family, model, capabilities), kind).expect("a unit")
}

#[test]
fn a_period_is_a_multiple_of_16_within_the_register_s_bits() {
    let fetch = unit(0x19, 0x11, ZEN_4, IbsKind::Fetch);
    let wide = unit(0x19, 0x11, ZEN_4, IbsKind::Op);
    let narrow = unit(0x10, 0x02, 0x7, IbsKind::Op);
    for (unit, sampling, min, max) in [
        (fetch, IbsSampling::fetches as fn(u32) -> IbsSampling, 16, 1_048_560),
        (wide, IbsSampling::cycles, 144, 134_217_712),
        (narrow, IbsSampling::cycles, 144, 1_048_560),
    ] {
        for period in [min, min + 16, max - 16, max] {
            assert_eq!(unit.check(&sampling(period)), Ok(()), "{period}");
        }
        for period in [0, min - 16, min + 1, min + 8, max - 1, max + 16, u32::MAX] {
            let refused = Err(IbsSamplingError::Period { min, max });
            assert_eq!(unit.check(&sampling(period)), refused, "{period}");
        }
    }
}

#[test]
fn what_a_processor_lacks_is_refused_by_name() {
    use IbsSamplingError::*;
    let zen_3 = unit(0x19, 0x21, ZEN_3, IbsKind::Op);
    let ops = IbsSampling::ops(160);
    assert_eq!(zen_3.check(&IbsSampling::fetches(160)), Err(OtherUnit));
    assert_eq!(zen_3.check(&ops.at(false, false)), Err(NoPrivilegeLevel));
    assert_eq!(zen_3.check(&ops.l3_misses_only()), Err(NoL3MissFilter));
    assert_eq!(zen_3.check(&ops.slower_than(128)), Err(NoLatencyFilter));
    assert_eq!(zen_3.check(&ops.streaming_stores_only()), Err(NoStreamingStoreFilter));
    assert_eq!(zen_3.check(&ops.at(true, false)), Ok(()), "filtered when the sample is read");
    let family_10h = unit(0x10, 0x02, 0x7, IbsKind::Op);
    assert_eq!(family_10h.check(&ops), Err(CountsCyclesOnly));
    assert_eq!(family_10h.check(&IbsSampling::cycles(160)), Ok(()));
}

#[test]
fn latencies_are_multiples_of_128_up_to_the_register_s_limit() {
    let ops = unit(0x1A, 0x50, ZEN_6, IbsKind::Op);
    let fetches = unit(0x1A, 0x50, ZEN_6, IbsKind::Fetch);
    for (unit, sampling, max) in
        [(ops, IbsSampling::ops(160), 2048), (fetches, IbsSampling::fetches(160), 1920)]
    {
        for latency in [128, 256, max] {
            assert_eq!(unit.check(&sampling.slower_than(latency)), Ok(()), "{latency}");
        }
        for latency in [1, 127, 129, max + 128] {
            let refused = Err(IbsSamplingError::Latency { max });
            assert_eq!(unit.check(&sampling.slower_than(latency)), refused, "{latency}");
        }
    }
    // Erratum 1606.
    for model in [0x02, 0x24, 0x44, 0x70] {
        let zen_5 = unit(0x1A, model, ZEN_5, IbsKind::Op);
        let slow = IbsSampling::ops(160).slower_than(128);
        assert_eq!(zen_5.check(&slow), Err(IbsSamplingError::LatencyNeedsL3Miss));
        assert_eq!(zen_5.check(&slow.l3_misses_only()), Ok(()));
    }
    // A processor without the second control register has no fetch filter, whatever bit 14 says.
    let without = unit(0x1A, 0x24, ZEN_5 | 1 << 14, IbsKind::Fetch);
    let slow = IbsSampling::fetches(160).slower_than(128);
    assert_eq!(without.check(&slow), Err(IbsSamplingError::NoLatencyFilter));
}

#[test]
fn capabilities_are_those_that_cpuid_declares() {
    let none = processor(0x19, 0x11, 0); // The leaf is not valid, and the family is not 10h.
    assert_eq!(IbsCapabilities::of(&none), None);
    let family_10h = IbsCapabilities::of(&processor(0x10, 0x02, 0)).expect("capabilities");
    assert!(family_10h.fetch() && family_10h.op() && !family_10h.counts_ops());
    let fetch_only = processor(0x19, 0x11, 0b011);
    assert!(IbsUnit::of(&fetch_only, IbsKind::Fetch).is_some());
    assert!(IbsUnit::of(&fetch_only, IbsKind::Op).is_none());
    assert_eq!(IbsCapabilities::of(&pmu_tests::intel_processor(5, 8)), None);
}

/// Recorded processors of AMD's.
#[test]
fn recorded_processors_have_what_their_generation_has() {
    let mut seen = 0;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/data/cpuid");
    for file in std::fs::read_dir(folder).expect("the recorded processors") {
        let name = file.expect("a file").file_name().into_string().expect("a name");
        if !name.ends_with(".txt") {
            continue;
        }
        let processor = recorded(&name);
        let Some(capabilities) = IbsCapabilities::of(&processor) else { continue };
        assert_eq!(&processor.vendor(), b"AuthenticAMD", "{name}");
        assert!(capabilities.fetch() && capabilities.op(), "{name}");
        assert_eq!(capabilities.l3_miss_only(), processor.family() >= 0x1A || is_zen_4(&processor));
        seen += 1;
    }
    assert!(seen > 0, "no recorded processor has instruction-based sampling");
}

fn is_zen_4(processor: &pmu_core::Snapshot) -> bool {
    processor.family() == 0x19 && matches!(processor.model(), 0x10..=0x1F | 0x60..=0xAF)
}
