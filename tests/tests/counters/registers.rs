//! Register numbers and bit positions, against data files and against another crate's constants.

use pmu_amd::registers::{self as amd, PerfCtl};
use pmu_core::registers::CounterId;
use pmu_core::{CounterSet, EventSource};
use pmu_intel::registers::{self as intel, DebugCtl, MiscEnable, PerfEvtSel};
use pmu_tests::{data, field};

fn address(vendor: &str, name: &str) -> u32 {
    data!("registers.csv")
        .iter()
        .find(|row| row.text("vendor") == vendor && row.text("name") == name)
        .unwrap_or_else(|| panic!("{vendor} {name}"))
        .number("address") as u32
}

#[test]
fn intel_register_numbers_equal_the_data_file() {
    for (number, name) in [
        (intel::IA32_PMC0, "IA32_PMC0"),
        (intel::IA32_PERFEVTSEL0, "IA32_PERFEVTSEL0"),
        (intel::IA32_MISC_ENABLE, "IA32_MISC_ENABLE"),
        (intel::IA32_DEBUGCTL, "IA32_DEBUGCTL"),
        (intel::IA32_PERF_GLOBAL_STATUS, "IA32_PERF_GLOBAL_STATUS"),
        (intel::IA32_PERF_GLOBAL_CTRL, "IA32_PERF_GLOBAL_CTRL"),
        (intel::IA32_PERF_GLOBAL_OVF_CTRL, "IA32_PERF_GLOBAL_OVF_CTRL"),
        (intel::IA32_PEBS_ENABLE, "IA32_PEBS_ENABLE"),
        (intel::IA32_DS_AREA, "IA32_DS_AREA"),
        (intel::IA32_PMC_GP0_CFG_B, "IA32_PMC_GP0_CFG_B"),
        (intel::IA32_PMC_GP0_CFG_C, "IA32_PMC_GP0_CFG_C"),
        (intel::IA32_PMC_FX0_CFG_B, "IA32_PMC_FX0_CFG_B"),
        (intel::IA32_PMC_FX0_CFG_C, "IA32_PMC_FX0_CFG_C"),
    ] {
        assert_eq!(number, address("intel", name), "{name}");
    }
}

#[test]
fn intel_register_numbers_equal_those_of_the_x86_crate() {
    use x86::msr;
    assert_eq!(intel::IA32_PMC0, msr::IA32_PMC0);
    assert_eq!(intel::IA32_PERFEVTSEL0, msr::IA32_PERFEVTSEL0);
    assert_eq!(intel::IA32_MISC_ENABLE, msr::IA32_MISC_ENABLE);
    assert_eq!(intel::IA32_DEBUGCTL, msr::IA32_DEBUGCTL);
    assert_eq!(intel::IA32_PERF_GLOBAL_STATUS, msr::IA32_PERF_GLOBAL_STAUS);
    assert_eq!(intel::IA32_PERF_GLOBAL_CTRL, msr::IA32_PERF_GLOBAL_CTRL);
    assert_eq!(intel::IA32_PERF_GLOBAL_OVF_CTRL, msr::IA32_PERF_GLOBAL_OVF_CTRL);
    assert_eq!(intel::IA32_PEBS_ENABLE, msr::IA32_PEBS_ENABLE);
    assert_eq!(intel::IA32_DS_AREA, msr::IA32_DS_AREA);
}

#[test]
fn each_counter_has_its_registers() {
    let emon = pmu_intel::Emon::declared();
    for number in 0..(emon.unit().counters() & CounterSet::GENERAL).len() as u8 {
        let counter = emon.unit().counter(CounterId::general(number).unwrap()).unwrap();
        let name = format!("IA32_PERFEVTSEL{number}");
        assert_eq!(counter.control().register().get(), address("intel", &name));
        assert_eq!(counter.value_register().get(), address("intel", &format!("IA32_PMC{number}")));
        assert_eq!(
            counter.read_index().map(pmu_core::access::CounterIndex::get),
            Some(u32::from(number))
        );
    }
    assert!(
        emon.unit()
            .counter(CounterId::general(emon.unit().counters().len() as u8).unwrap())
            .is_none()
    );
    let amd64 = pmu_amd::Amd64::declared();
    assert_eq!(amd64.unit().counters().len(), 4);
    for number in 0..4 {
        let counter = amd64.unit().counter(CounterId::general(number).unwrap()).unwrap();
        assert_eq!(
            counter.control().register().get(),
            address("amd", &format!("PerfEvtSel{number}"))
        );
        assert_eq!(counter.value_register().get(), address("amd", &format!("PerfCtr{number}")));
        assert_eq!(
            counter.read_index().map(pmu_core::access::CounterIndex::get),
            Some(u32::from(number))
        );
        assert_eq!(counter.width(), 48);
    }
    assert!(amd64.unit().counter(CounterId::general(4).unwrap()).is_none());
    assert_eq!(amd::PERF_LEGACY_CTL0, address("amd", "PerfEvtSel0"));
    assert_eq!(amd::PERF_LEGACY_CTR0, address("amd", "PerfCtr0"));
}

#[test]
fn fields_lie_where_the_data_file_says() {
    let evtsel = |name| field("IA32_PERFEVTSELx", name);
    let new = PerfEvtSel::new;
    for (select, name) in [
        (new().with_event(0xFF), "EVENT_SELECT"),
        (new().with_unit_mask(0xFF), "UMASK"),
        (new().with_user(true), "USR"),
        (new().with_os(true), "OS"),
        (new().with_edge(true), "EDGE"),
        (new().with_pin_control(true), "PIN_CONTROL"),
        (new().with_interrupt(true), "INT"),
        (new().with_any_thread(true), "ANY_THREAD"),
        (new().with_enable(true), "EN"),
        (new().with_invert(true), "INV"),
        (new().with_counter_mask(0xFF), "CMASK"),
    ] {
        assert_eq!(select.into_bits(), evtsel(name), "IA32_PERFEVTSELx.{name}");
    }
    let new = MiscEnable::new;
    for (value, name) in [
        (new().with_performance_monitoring(true), "EMON_AVAILABLE"),
        (new().with_bts_unavailable(true), "BTS_UNAVAILABLE"),
        (new().with_pebs_unavailable(true), "PEBS_UNAVAILABLE"),
    ] {
        assert_eq!(value.into_bits(), field("IA32_MISC_ENABLE", name), "IA32_MISC_ENABLE.{name}");
    }
    let new = DebugCtl::new;
    for (value, name) in [
        (new().with_lbr(true), "LBR"),
        (new().with_btf(true), "BTF"),
        (new().with_tr(true), "TR"),
        (new().with_bts(true), "BTS"),
        (new().with_bt_int(true), "BTINT"),
        (new().with_bts_off_os(true), "BTS_OFF_OS"),
        (new().with_bts_off_usr(true), "BTS_OFF_USR"),
        (new().with_freeze_lbrs_on_pmi(true), "FREEZE_LBRS_ON_PMI"),
        (new().with_freeze_perfmon_on_pmi(true), "FREEZE_PERFMON_ON_PMI"),
        (new().with_freeze_while_smm(true), "FREEZE_WHILE_SMM"),
    ] {
        assert_eq!(value.into_bits(), field("IA32_DEBUGCTL", name), "IA32_DEBUGCTL.{name}");
    }
    let new = PerfCtl::new;
    for (select, name) in [
        (new().with_event_low(0xFF), "EVENT_SELECT_LOW"),
        (new().with_unit_mask(0xFF), "UNIT_MASK"),
        (new().with_user(true), "USR"),
        (new().with_os(true), "OS"),
        (new().with_edge(true), "EDGE"),
        (new().with_interrupt(true), "INT"),
        (new().with_enable(true), "EN"),
        (new().with_invert(true), "INV"),
        (new().with_counter_mask(0xFF), "CNT_MASK"),
        (new().with_guest_only(true), "GUEST_ONLY"),
        (new().with_host_only(true), "HOST_ONLY"),
    ] {
        assert_eq!(select.into_bits(), field("AMD_PERF_CTL", name), "PERF_CTL.{name}");
    }
    let high = PerfCtl::from_bits(field("AMD_PERF_CTL", "EVENT_SELECT_HIGH"));
    assert_eq!((high.select().event_number(), high.select().event_unit_mask()), (0xF00, 0));
}

/// A counter's bit of the global registers, and the two bits of an event in a transaction.
#[test]
fn counters_and_qualifiers_have_the_bits_that_the_data_file_says() {
    for register in ["IA32_PERF_GLOBAL_CTRL", "IA32_PERF_GLOBAL_STATUS"] {
        let prefix = if register.ends_with("CTRL") { "EN" } else { "OVF" };
        let general = field(register, &format!("{prefix}_PMC"));
        let fixed = field(register, &format!("{prefix}_FIXED_CTR"));
        assert_eq!(CounterSet::GENERAL.bits() & !general, 0);
        assert_eq!(CounterSet::FIXED.bits() & !fixed, 0);
        assert_eq!(CounterSet::fixed(1).bits(), fixed & fixed.wrapping_neg());
    }
    assert_eq!(intel::STATUS_CTR_FRZ, field("IA32_PERF_GLOBAL_STATUS", "CTR_FRZ"));
    assert_eq!(amd::STATUS_PMC_FREEZE, field("PerfCntrGlobalStatus", "PMCF"));
    // Of a processor with transactions, leaf 7, EBX bits 4 and 11.
    let plain = pmu_tests::intel_processor(4, 4);
    let transactional =
        pmu_core::x86::Snapshot::capture(move |leaf: u32, subleaf: u32| match leaf {
            0 => pmu_tests::result([0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69]),
            7 => pmu_tests::result([0, 1 << 4 | 1 << 11, 0, 0]),
            _ => plain.leaf(leaf, subleaf),
        });
    let bits = field("IA32_PERFEVTSELx", "IN_TX") | field("IA32_PERFEVTSELx", "IN_TXCP");
    let event = pmu_core::registers::EventSelect::from_bits(bits);
    assert_eq!(pmu_intel::counters(&plain).illegal_bits(event), bits);
    assert_eq!(pmu_intel::counters(&transactional).illegal_bits(event), 0);
}

/// Each feature of leaf 0x23 adds the field of its name to the selects of events, but for the one that is no event's.
#[test]
fn leaf_23_declares_the_bits_of_selects_that_the_data_file_names() {
    let all = pmu_core::registers::EventSelect::from_bits(!0);
    let illegal = |features: u32| {
        let plain = pmu_tests::intel_processor(6, 4);
        let processor = pmu_core::x86::Snapshot::capture(move |leaf: u32, subleaf: u32| {
            pmu_tests::result(match (leaf, subleaf) {
                (0, _) => [0x23, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
                (7, 0) => [1, 0, 0, 0],
                (7, 1) => [1 << 8, 0, 0, 0],
                (0x23, 0) => [1, features, 0, 0],
                (0x23, _) => [0; 4],
                _ => return plain.leaf(leaf, subleaf),
            })
        });
        let counters = pmu_intel::counters(&processor);
        (counters.illegal_bits(all), counters.can_deny_user_reads())
    };
    let mut declared = 0;
    for row in data!("register_fields.csv") {
        if row.text("register") == "CPUID_23_EBX" {
            let name = row.text("field");
            let (select, feature) = (field("IA32_PERFEVTSELx", name), field("CPUID_23_EBX", name));
            let denies = name == "RDPMC_USR_DISABLE";
            let added = if denies { 0 } else { select };
            assert_eq!(illegal(feature as u32), (illegal(0).0 & !added, denies), "{name}");
            declared += 1;
        }
    }
    assert_ne!(declared, 0);
}

#[test]
fn leaf_0a_has_its_fields_where_the_data_file_says() {
    let leaf = pmu_intel::ArchitecturalPerfmon::from_registers;
    let mask = |register, name| field(register, name) as u32;
    for (place, name) in
        ["VERSION", "GP_COUNTERS", "GP_WIDTH", "EBX_LENGTH"].into_iter().enumerate()
    {
        let found = leaf(mask("CPUID_0A_EAX", name), 0, 0, 0);
        let read = [found.version(), found.counters(), found.width(), found.events()];
        assert_eq!(read, core::array::from_fn(|field| if field == place { 0xFF } else { 0 }));
    }
    for (name, source) in [
        ("NO_CORE_CYCLES", Some("ProfileUnhaltedCoreCycles")),
        ("NO_INSTRUCTION_RETIRED", Some("ProfileInstructionRetired")),
        ("NO_REFERENCE_CYCLES", Some("ProfileUnhaltedReferenceCycles")),
        ("NO_LLC_REFERENCE", Some("ProfileLLCReference")),
        ("NO_LLC_MISSES", Some("ProfileLLCMisses")),
        ("NO_BRANCH_INSTRUCTION_RETIRED", Some("ProfileBranchInstructionRetired")),
        ("NO_BRANCH_MISPREDICT_RETIRED", Some("ProfileBranchMispredictsRetired")),
        ("NO_TOPDOWN_SLOTS", None),
    ] {
        let bits = mask("CPUID_0A_EBX", name);
        let found = leaf(0x0830_0404, bits, 0, 0);
        let absent: Vec<u8> = (0..8).filter(|event| !found.has_event(*event)).collect();
        assert_eq!(absent, [bits.trailing_zeros() as u8], "{name}");
        let emon = pmu_intel::Emon::declared();
        let row = source.and_then(|name| emon.row_named(name)).map(|row| &emon.sources()[row]);
        assert_eq!(row.and_then(|row| row.event_bit()), source.map(|_| absent[0]), "{name}");
    }
    let bitmap = leaf(5, 0, mask("CPUID_0A_ECX", "FIXED_COUNTER_BITMAP"), 0);
    assert_eq!(bitmap.fixed_counters(), u32::MAX);
    let edx = |name| leaf(2, 0, 0, mask("CPUID_0A_EDX", name));
    let read = |found: pmu_intel::ArchitecturalPerfmon| {
        (found.fixed_counters().count_ones(), found.fixed_width(), found.any_thread_deprecated())
    };
    assert_eq!(read(edx("FIXED_COUNTERS")), (31, 0, false));
    assert_eq!(read(edx("FIXED_WIDTH")), (0, 0xFF, false));
    assert_eq!(read(edx("ANY_THREAD_DEPRECATED")), (0, 0, true));
}

/// A running select is its table's, with the interrupt and the enable bit and nothing else.
#[test]
fn running_adds_the_interrupt_and_the_enable_bit() {
    let bits = field("IA32_PERFEVTSELx", "INT") | field("IA32_PERFEVTSELx", "EN");
    for entry in pmu_intel::Emon::declared().sources() {
        let select = entry.select();
        assert_eq!(select.running().select_bits(), select.select_bits() | bits);
    }
    for entry in pmu_amd::Amd64::declared().sources() {
        let select = entry.select();
        assert_eq!(select.running().select_bits(), select.select_bits() | bits);
    }
}

/// The Debug Store's areas, against the data file.
#[test]
fn debug_store_areas_are_laid_out_as_the_data_file_says() {
    use core::mem::offset_of;
    use pmu_intel::debug_store::{
        ControlAreaMemory, PebsDsSaveArea, PebsDsSaveArea32, ProcessorProfileControlArea,
    };
    macro_rules! offsets {
        ($area:ty, $word:expr) => {{
            let resets = offset_of!($area, pebs_counter_reset);
            [
                ("BtsBufferBase", offset_of!($area, bts_buffer_base)),
                ("BtsIndex", offset_of!($area, bts_index)),
                ("BtsAbsoluteMaximum", offset_of!($area, bts_absolute_maximum)),
                ("BtsInterruptThreshold", offset_of!($area, bts_interrupt_threshold)),
                ("PebsBufferBase", offset_of!($area, pebs_buffer_base)),
                ("PebsIndex", offset_of!($area, pebs_index)),
                ("PebsAbsoluteMaximum", offset_of!($area, pebs_absolute_maximum)),
                ("PebsInterruptThreshold", offset_of!($area, pebs_interrupt_threshold)),
                ("PebsCounterReset0", resets),
                ("PebsCounterReset1", resets + $word),
                ("PebsCounterReset2", resets + 2 * $word),
                ("PebsCounterReset3", resets + 3 * $word),
            ]
        }};
    }
    let totals = [
        ("64", "total(resets=4)", size_of::<PebsDsSaveArea>()),
        ("64", "total(resets=12)", size_of::<PebsDsSaveArea<12>>()),
        ("32", "total(resets=4)", size_of::<PebsDsSaveArea32>()),
        ("32", "total(resets=12)", size_of::<PebsDsSaveArea32<12>>()),
    ];
    let wide = offsets!(PebsDsSaveArea, 8).map(|(member, offset)| ("64", member, offset));
    let narrow = offsets!(PebsDsSaveArea32, 4).map(|(member, offset)| ("32", member, offset));
    let rows = data!("ds_area.csv");
    let found: Vec<_> = wide.into_iter().chain(narrow).chain(totals).collect();
    assert_eq!(found.len(), rows.len());
    for (form, member, offset) in found {
        let row = rows
            .iter()
            .find(|row| row.text("form") == form && row.text("member") == member)
            .unwrap_or_else(|| panic!("{form} {member}"));
        assert_eq!(offset as u64, row.number("offset"), "{form} {member}");
    }
    assert_eq!(size_of::<ProcessorProfileControlArea>(), 0x60);
    assert_eq!(align_of::<ControlAreaMemory>(), 64);
}
