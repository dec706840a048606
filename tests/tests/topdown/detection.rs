//! Detection: processors with top-down counts, and their levels.

use pmu_core::access::{AccessErrorKind, RegisterBackend};
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;
use pmu_intel::topdown::TopDownUnit;
use pmu_tests::result;

/// A processor of family 6: model, type of core (0: not hybrid), fixed counters, and what declares the metrics.
fn snapshot(model: u32, core_type: u32, fixed: u32) -> Snapshot {
    let signature = 0x600 | (model & 0xF) << 4 | (model >> 4) << 16;
    Snapshot::capture(move |leaf, subleaf| {
        result(match (leaf, subleaf) {
            (0, _) => [0x23, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
            (1, _) => [signature, 0, 1 << 15, 0],
            (7, 0) => [1, 0, 0, if core_type != 0 { 1 << 15 } else { 0 }],
            (0x0A, _) => [0x0730_0805, 0, fixed, 0x8000 | 48 << 5 | fixed.trailing_ones()],
            (0x1A, _) => [core_type << 24, 0, 0, 0],
            _ => [0; 4],
        })
    })
}

/// Registers of which `IA32_PERF_CAPABILITIES` has this value; the others fault.
struct Capabilities(Option<u64>);

impl RegisterBackend for Capabilities {
    type Error = AccessErrorKind;
    fn read(&self, address: pmu_core::access::RegisterAddress) -> Result<u64, AccessErrorKind> {
        match (address.get(), self.0) {
            (0x345, Some(value)) => Ok(value),
            _ => Err(AccessErrorKind::Fault),
        }
    }
    fn write(&self, _: pmu_core::access::RegisterAddress, _: u64) -> Result<(), AccessErrorKind> {
        Err(AccessErrorKind::Fault)
    }
    fn read_counter(&self, _: pmu_core::access::CounterIndex) -> Result<u64, AccessErrorKind> {
        Err(AccessErrorKind::Fault)
    }
    fn update(&self, update: pmu_core::access::RegisterUpdate) -> Result<u64, AccessErrorKind> {
        match (update.register(), self.0) {
            (0x345, Some(value)) => Ok(value),
            _ => Err(AccessErrorKind::Fault),
        }
    }
}

#[test]
fn the_core_s_capabilities_type_and_model_tell_the_kind_and_the_level() {
    const METRICS: u64 = 1 << 15;
    // Model, type of core, fixed counters, capabilities; metrics and level 2, or `None`.
    for (model, core_type, fixed, capabilities, expected) in [
        (0x6A, 0, 0b1111, METRICS, Some((true, false))), // Ice Lake server
        (0x8D, 0, 0b1111, METRICS, Some((true, false))), // Tiger Lake
        (0xA7, 0, 0b1111, METRICS, Some((true, false))), // Rocket Lake
        (0x8F, 0, 0b1111, METRICS, Some((true, true))),  // Sapphire Rapids
        (0x97, 0x40, 0b1111, METRICS, Some((true, true))), // Alder Lake, P-core
        (0x97, 0x20, 0b0111, METRICS, None), // and its E-core, whose register says the same
        (0x97, 0x20, 0b1111, METRICS, None), // also where it has a fourth fixed counter
        (0xBD, 0x20, 0b111_0111, METRICS, Some((false, false))), // Lunar Lake, E-core
        (0xBD, 0x40, 0b1111, METRICS, Some((true, true))), // and its P-core
        (0xDD, 0, 0b111_0111, 0, Some((false, false))), // Clearwater Forest
        (0x55, 0, 0b0111, 0, None),          // Skylake server
        (0x8F, 0, 0b1111, 0, None),          // a hypervisor that hides the metrics
        (0x8F, 0, 0b0111, METRICS, None),    // and one that hides the slots
    ] {
        let unit =
            TopDownUnit::of(&snapshot(model, core_type, fixed), &Capabilities(Some(capabilities)));
        let what = format!("{model:#x} {core_type:#x} {fixed:#b}");
        match (unit, expected) {
            (Ok(unit), Some(expected)) => {
                assert_eq!((unit.has_metrics(), unit.has_level_2()), expected, "{what}");
            }
            (Err(NoFacility::NotDeclared), None) => {}
            (unit, _) => panic!("{what}: {unit:?}"),
        }
    }
    let unread = TopDownUnit::of(&snapshot(0x8F, 0, 0b1111), &Capabilities(None));
    assert!(matches!(unread, Err(NoFacility::Access(fault)) if fault.register == 0x345));
}

#[test]
fn other_vendors_have_none() {
    let amd = pmu_tests::amd_processor(true, 1);
    let unit = TopDownUnit::of(&amd, &Capabilities(Some(1 << 15)));
    assert!(matches!(unit, Err(NoFacility::NoCounters(_))), "{unit:?}");
}
