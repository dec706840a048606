//! Detection of the branch records that a processor has.

use pmu_core::branches::{BranchFilter, BranchOrder};
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;
use pmu_tests::{RegisterFile, data, recorded, result};

/// Returns an Intel processor with this signature, whose `IA32_PERF_CAPABILITIES` reports a format.
fn intel(model: u32, stepping: u32, format: u64) -> (Snapshot, RegisterFile) {
    let signature = (model >> 4) << 16 | 6 << 8 | (model & 0xF) << 4 | stepping;
    let processor = Snapshot::capture(move |leaf: u32, _: u32| {
        result(match leaf {
            0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
            1 => [signature, 0, 1 << 15, 0],
            0x0A => [0x0730_0404, 0, 0, 0],
            _ => [0; 4],
        })
    });
    let msr = RegisterFile::new([0x345], 0);
    // Bits of other facilities, which are no part of the format.
    msr.set(0x345, format | 0x3F_FFC0);
    (processor, msr)
}

#[test]
fn each_model_has_the_stack_of_the_data_file() {
    for row in data!("branch_stacks.csv") {
        let core = row.text("core");
        let [model, stepping, format] =
            ["model", "stepping", "reported"].map(|column| row.number(column));
        let (processor, msr) = intel(model as u32, stepping as u32, format);
        let unit = match pmu_intel::branches(&processor, &msr) {
            Ok(unit) => unit,
            Err(error) => {
                assert_eq!(row.number("depth"), 0, "{core}: {error}");
                let why = match core {
                    "Bonnell" => NoFacility::Erratum,
                    "unknown model" => NoFacility::UnknownModel { family: 6, model: 0xFE },
                    _ => NoFacility::NotDeclared,
                };
                assert_eq!(error, why, "{core}");
                continue;
            }
        };
        let (registers, offers) = (unit.registers(), unit.offers());
        assert_eq!(u64::from(unit.depth()), row.number("depth"), "{core}");
        assert_eq!(u64::from(registers.from), row.number("from"), "{core}");
        assert_eq!(registers.to.map(u64::from), row.optional("to"), "{core}");
        assert_eq!(registers.info.map(u64::from), row.optional("info"), "{core}");
        assert_eq!(offers.call_stack, row.number("call_stack") != 0, "{core}");
        let select = u64::from(registers.filter.is_some()) + u64::from(offers.kinds);
        assert_eq!(select, row.number("select"), "{core}");
        let BranchOrder::Ring(top) = registers.order else { panic!("{core}: {unit:?}") };
        assert_eq!(top.get(), 0x1C9);
        if select == 0 {
            assert_eq!(unit.recorded(BranchFilter::USER), Some(BranchFilter::ALL), "{core}");
        }
    }
}

#[test]
fn recorded_processors_have_the_records_that_their_cpuid_declares() {
    // Read by hand: leaf 0x1C has EAX 7:0 = 0x0B, ECX = 7; leaf 0x80000022 has EAX = 7, EBX 9:4 = 16.
    let none = RegisterFile::new([], 0);
    for (file, depth) in
        [("intel-alderlake", 32), ("intel-gracemont", 32), ("intel-sapphirerapids", 32)]
    {
        let unit = pmu_intel::branches(&recorded(&format!("{file}.txt")), &none).unwrap();
        assert_eq!(unit.depth(), depth, "{file}");
        assert!(unit.offers().call_stack && unit.offers().cycles && unit.can_freeze(), "{file}");
    }
    for (file, freezes) in [("amd-zen4", true), ("amd-zen5", true)] {
        let unit = pmu_amd::branches(&recorded(&format!("{file}.txt"))).unwrap();
        assert_eq!((unit.depth(), unit.can_freeze()), (16, freezes), "{file}");
        assert!(!unit.offers().call_stack && !unit.holds_interrupt(), "{file}");
    }
    let zen_3 = pmu_amd::branches(&recorded("amd-zen3.txt")).unwrap();
    assert!(zen_3.holds_interrupt() && !zen_3.can_freeze() && zen_3.depth() == 16);
    assert_eq!(pmu_amd::branches(&recorded("amd-zen2.txt")).unwrap_err(), NoFacility::NotDeclared);
    let other = NoFacility::OtherVendor(*b"HygonGenuine");
    assert_eq!(pmu_amd::branches(&recorded("hygon-dhyana.txt")).unwrap_err(), other);
    // Without the register that has the format.
    assert_eq!(
        pmu_intel::branches(&recorded("intel-prescott.txt"), &none).unwrap_err(),
        NoFacility::NotDeclared
    );
    let unread = pmu_intel::branches(&recorded("intel-skylake.txt"), &none);
    assert!(matches!(unread, Err(NoFacility::Access(_))), "{unread:?}");
}
