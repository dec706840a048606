//! Detection of the Debug Store, and the register writes that hand memory to it.

use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation};
use pmu_core::error::{NoFacility, NoInterface};
use pmu_core::testing::{Access, ScriptedRegisters};
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_intel::branch_trace::BranchTraceUnit;
use pmu_intel::debug_store::{
    BRANCH_TRACE, DebugStoreSupport, update_debugctl, update_pebs_enable, write_ds_area,
};
use pmu_intel::registers::DebugCtl;
use pmu_tests::data;

/// A processor with these features in leaf 1.
fn processor(vendor: &[u8; 12], ecx: u32, edx: u32) -> Snapshot {
    let word = |at| u32::from_le_bytes(vendor[at..at + 4].try_into().unwrap());
    let vendor = CpuIdResult { eax: 1, ebx: word(0), ecx: word(8), edx: word(4) };
    Snapshot::capture(move |leaf: u32, _: u32| match leaf {
        0 => vendor,
        1 => CpuIdResult { eax: 0, ebx: 0, ecx, edx },
        _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
    })
}

const DS: u32 = 1 << 21;
const DTES64: u32 = 1 << 2;

#[test]
fn the_debug_store_is_usable_as_cpuid_and_misc_enable_say() {
    let bit = |name| {
        let rows = data!("register_fields.csv");
        let row = rows
            .iter()
            .find(|r| r.text("register") == "IA32_MISC_ENABLE" && r.text("field") == name);
        1u64 << row.unwrap().number("lsb")
    };
    let (emon, bts, pebs) =
        (bit("EMON_AVAILABLE"), bit("BTS_UNAVAILABLE"), bit("PEBS_UNAVAILABLE"));
    for (misc_enable, has_bts, has_pebs) in [
        (emon, true, true),
        (0, true, false),
        (emon | bts, false, true),
        (emon | pebs, true, false),
        (!(bts | pebs), true, true),
        (!emon, false, false),
    ] {
        let script = [Access::read(0x1A0, misc_enable)];
        let msr = ScriptedRegisters::new(&script);
        let snapshot = processor(b"GenuineIntel", DTES64, DS);
        let support = DebugStoreSupport::detect(&snapshot, &msr).unwrap();
        assert_eq!(
            (support.has_bts(), support.has_pebs()),
            (has_bts, has_pebs),
            "{misc_enable:#x}"
        );
        assert!(support.dtes64);
        msr.finish();
    }
}

#[test]
fn the_save_area_s_words_have_64_bits_only_where_cpuid_says_so() {
    for (ecx, dtes64) in [(DTES64, true), (!DTES64, false), (0, false)] {
        let script = [Access::read(0x1A0, 0)];
        let snapshot = processor(b"GenuineIntel", ecx, DS);
        let support =
            DebugStoreSupport::detect(&snapshot, &ScriptedRegisters::new(&script)).unwrap();
        assert_eq!(support.dtes64, dtes64, "{ecx:#x}");
    }
}

/// The counters of leaf 10: version 1 has no overflow status.
#[test]
fn a_processor_that_cannot_trace_branches_says_why() {
    const BTS_UNAVAILABLE: u64 = 1 << 11;
    let fault = AccessFault {
        operation: AccessOperation::Read,
        register: 0x1A0,
        kind: AccessErrorKind::Fault,
    };
    let none = NoFacility::NoCounters(NoInterface::NoPerformanceMonitoring);
    let read = |value| Some(Access::read(0x1A0, value));
    let (intel, amd) = (b"GenuineIntel", b"AuthenticAMD");
    for (vendor, version, ecx, edx, access, why) in [
        (intel, 2, DTES64, DS, read(0), None),
        (amd, 2, DTES64, DS, None, Some(NoFacility::OtherVendor(*amd))),
        (intel, 0, DTES64, DS, None, Some(none)),
        (intel, 1, DTES64, DS, None, Some(NoFacility::NoStatus)),
        (intel, 2, DTES64, 0, None, Some(NoFacility::NotDeclared)),
        (intel, 2, DTES64, DS, read(BTS_UNAVAILABLE), Some(NoFacility::Unavailable)),
        (intel, 2, 0, DS, read(0), Some(NoFacility::NarrowWords)),
        (intel, 2, DTES64, DS, read(0).map(Access::faulting), Some(NoFacility::Access(fault))),
    ] {
        let plain = processor(vendor, ecx, edx);
        let counters = CpuIdResult { eax: 0x0730_0400 | version, ebx: 0, ecx: 0, edx: 0x603 };
        let none = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
        let snapshot = Snapshot::capture(|leaf: u32, subleaf: u32| match leaf {
            0 => CpuIdResult { eax: 10, ..plain.leaf(0, 0) },
            10 if version == 0 => none,
            10 => counters,
            _ => plain.leaf(leaf, subleaf),
        });
        let script: Vec<Access> = access.into_iter().collect();
        let msr = ScriptedRegisters::new(&script);
        assert_eq!(BranchTraceUnit::detect(&snapshot, &msr).err(), why);
        msr.finish();
    }
}

/// `IA32_MISC_ENABLE` is accessed only where the Debug Store is declared.
#[test]
fn without_a_debug_store_no_register_is_read() {
    for snapshot in
        [processor(b"GenuineIntel", DTES64, !DS), processor(b"AuthenticAMD", DTES64, DS)]
    {
        let support = DebugStoreSupport::detect(&snapshot, &ScriptedRegisters::new(&[])).unwrap();
        assert_eq!(support, DebugStoreSupport::default());
        assert!(!support.has_bts() && !support.has_pebs());
    }
}

#[test]
fn a_fault_of_misc_enable_is_named() {
    let script = [Access::read(0x1A0, 0).faulting()];
    let snapshot = processor(b"GenuineIntel", 0, DS);
    let fault = AccessFault {
        operation: AccessOperation::Read,
        register: 0x1A0,
        kind: AccessErrorKind::Fault,
    };
    assert_eq!(DebugStoreSupport::detect(&snapshot, &ScriptedRegisters::new(&script)), Err(fault));
}

#[test]
fn operations_that_hand_memory_over_write_their_register() {
    let script = [
        Access::write(0x600, 0xFFFF_8000_0000_1000),
        // Another owner's bits stay: those of counter 3, of branch records and of both freezes.
        Access::read(0x3F1, 0b1010),
        Access::write(0x3F1, 0b1101),
        Access::read(0x1D9, 0x1901),
        Access::write(0x1D9, 0x18C1),
        Access::read(0x1D9, 0x18C1),
        Access::write(0x1D9, 0x1801),
        Access::write(0x600, 1).faulting(),
    ];
    let msr = ScriptedRegisters::new(&script);
    // SAFETY: no processor is behind the script.
    unsafe {
        write_ds_area(&msr, 0xFFFF_8000_0000_1000).unwrap();
        update_pebs_enable(&msr, 0b0111, 0b101).unwrap();
        let stored = DebugCtl::new().with_tr(true).with_bts(true);
        update_debugctl(&msr, BRANCH_TRACE, stored).unwrap();
        update_debugctl(&msr, BRANCH_TRACE, DebugCtl::new()).unwrap();
        assert_eq!(write_ds_area(&msr, 1), Err(AccessErrorKind::Fault));
    }
    msr.finish();
}
