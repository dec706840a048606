//! Intel's architectural rules, one test each. Expected values are the manual's: Intel SDM vol. 3B,
//! chapter "Performance Monitoring"; vol. 4 for register numbers.

use crate::naive::registers::{FIXED_FIELDS, SELECT_FIELDS};
use pmu_tests::software_pmu::intel::*;
use pmu_tests::software_pmu::*;
use pmu_tests::{StateRegisters, field};
use pmu_virt::configuration::{
    Configuration, ConfigurationError, IntelConfiguration, IntelFeature,
};
use pmu_virt::{EventKey, Privilege, Read, Write};

#[test]
fn the_matrix_is_the_issues() {
    assert_eq!(intel_matrix().count(), 12 + 5 * 36);
}

/// "Architectural Performance Monitoring": impossible declarations.
#[test]
fn contradictions_are_refused() {
    use ConfigurationError as E;
    let sound = IntelConfiguration::new(5, 8, 4);
    for (configuration, error) in [
        (sound.with(|intel| intel.version = 0), E::Version(0)),
        (sound.with(|intel| intel.version = 7), E::Version(7)),
        (sound.with(|intel| intel.version = 6), E::NoExtendedLeaf { version: 6 }),
        (
            sound.with(|intel| intel.set(IntelFeature::UnitMask2, true)),
            E::FeatureVersion { feature: IntelFeature::UnitMask2, version: 5 },
        ),
        (
            sound.with(|intel| intel.set(IntelFeature::Equal, true)),
            E::FeatureVersion { feature: IntelFeature::Equal, version: 5 },
        ),
        (
            sound.with(|intel| intel.set(IntelFeature::RdpmcUserDisable, true)),
            E::FeatureVersion { feature: IntelFeature::RdpmcUserDisable, version: 5 },
        ),
        (sound.with(|intel| intel.general = 0), E::NoGeneralCounter),
        (sound.with(|intel| intel.general = 0b101), E::GeneralGaps { general: 0b101 }),
        (sound.with(|intel| intel.general = 0b110), E::GeneralGaps { general: 0b110 }),
        (sound.with(|intel| intel.general_width = 31), E::Width(31)),
        (sound.with(|intel| intel.general_width = 65), E::Width(65)),
        (sound.with(|intel| intel.fixed_width = 31), E::Width(31)),
        (sound.with(|intel| intel.fixed_width = 255), E::Width(255)),
        (IntelConfiguration::new(1, 4, 3), E::FixedInVersion1),
        (
            IntelConfiguration::new(4, 4, 4).with(|intel| intel.fixed = 0b1010),
            E::FixedGaps { fixed: 0b1010 },
        ),
        (
            IntelConfiguration::new(2, 4, 3).with(|intel| intel.set(IntelFeature::AnyThread, true)),
            E::FeatureVersion { feature: IntelFeature::AnyThread, version: 2 },
        ),
        (
            IntelConfiguration::new(4, 4, 3)
                .with(|intel| intel.set(IntelFeature::ExtendedLeaf, true)),
            E::FeatureVersion { feature: IntelFeature::ExtendedLeaf, version: 4 },
        ),
    ] {
        assert_eq!(Configuration::Intel(configuration).check(), Err(error));
        let built = pmu_virt::VirtualPmu::new(Configuration::Intel(configuration), events());
        assert_eq!(built.err(), Some(error));
    }
    for intel in intel_matrix() {
        assert_eq!(Configuration::Intel(intel).check(), Ok(()));
    }
    let odd = sound.with(|intel| {
        intel.set(IntelFeature::ExtendedLeaf, true);
        intel.general = 0b1010_0001;
        intel.fixed = 0x82;
    });
    assert_eq!(Configuration::Intel(odd).check(), Ok(()));
}

/// A feature adds to the selects and to IA32_FIXED_CTR_CTRL the fields that the data file has for it, and no others.
#[test]
fn each_feature_adds_its_fields_of_the_data_file() {
    for feature in IntelFeature::ALL {
        let legal = |present: bool, address: u32| {
            let intel = IntelConfiguration::new(6, 8, 4).with(|intel| intel.set(feature, present));
            let mut registers = Configuration::Intel(intel).registers();
            registers.find(|register| register.address == address).unwrap().legal
        };
        let added = |address| legal(true, address) - legal(false, address);
        let named = |register: &str, fields: &[(IntelFeature, &str)]| -> u64 {
            let own = fields.iter().filter(|(of, _)| *of == feature);
            own.map(|(_, name)| field(register, name)).sum()
        };
        let select = named("IA32_PERFEVTSELx", &SELECT_FIELDS);
        assert_eq!(added(0x188), select, "{feature:?}");
        assert_eq!(added(0x186), select & !field("IA32_PERFEVTSELx", "IN_TXCP"), "{feature:?}");
        let fixed = named("IA32_FIXED_CTR_CTRL", &FIXED_FIELDS);
        let of_all = fixed | fixed << 4 | fixed << 8 | fixed << 12;
        assert_eq!(added(0x38D), of_all, "{feature:?}");
    }
}

/// A feature that leaf 0x23 declares has there the bit that the data file has under the name of its select bit.
#[test]
fn each_feature_has_its_bit_of_leaf_23_of_the_data_file() {
    let mut declared = 0;
    for row in pmu_tests::data!("register_fields.csv") {
        if row.text("register") == "CPUID_23_EBX" {
            let name = row.text("field");
            let (feature, _) = *SELECT_FIELDS.iter().find(|(_, of)| *of == name).unwrap();
            let intel = IntelConfiguration::new(6, 8, 4).with(|intel| intel.set(feature, true));
            let leaf = Configuration::Intel(intel).cpuid(0x23, 0, [0; 4]);
            assert_eq!(u64::from(leaf[1]), field("CPUID_23_EBX", name), "{name}");
            // Version 6 has the leaf.
            assert_eq!(feature.since(), 6, "{name}");
            declared += 1;
        }
    }
    assert_ne!(declared, 0);
}

/// "Architectural Performance Monitoring Version 1": IA32_PMCx from 0C1H and IA32_PERFEVTSELx from
/// 186H, as many as leaf 0AH EAX[15:8] says.
#[test]
fn the_declared_general_counters_exist_and_no_others() {
    each(|intel, mut pmu| {
        for n in 0..8 {
            if n < general(&intel) {
                set(&mut pmu, 0x186 + n, 0x53_0100 + u64::from(n));
                set(&mut pmu, 0xC1 + n, 0x100 + u64::from(n));
            } else {
                write_faults(&mut pmu, 0x186 + n, 0);
                write_faults(&mut pmu, 0xC1 + n, 0);
                read_faults(&pmu, 0x186 + n);
                read_faults(&pmu, 0xC1 + n);
            }
        }
        for n in 0..general(&intel) {
            assert_eq!(get(&pmu, 0x186 + n), 0x53_0100 + u64::from(n));
            assert_eq!(get(&pmu, 0xC1 + n), 0x100 + u64::from(n));
        }
    });
}

/// "Full-Width Writes to Performance Counter Registers": WRMSR to IA32_PMCx takes the
/// sign-extended EAX.
#[test]
fn a_narrow_write_is_sign_extended_from_bit_31() {
    each(|intel, mut pmu| {
        let mask = mask(intel.general_width);
        for (value, stored) in [
            (0x7FFF_FFFF, 0x7FFF_FFFF),
            (0x8000_0000, 0xFFFF_FFFF_8000_0000 & mask),
            (0xFFFF_FFFF, mask),
            // A negative number, written in the counter's width or in 64 bits.
            (mask - 0xFFFF, mask - 0xFFFF),
            (0xFFFF_FFFF_FFFF_0000, mask - 0xFFFF),
        ] {
            set(&mut pmu, 0xC1, value);
            assert_eq!(get(&pmu, 0xC1), stored);
        }
        // EDX is ignored, and told of.
        let written = pmu.write(0xC1, 0x12_0000_0001);
        assert_eq!((written.answer, written.illegal), (Write::Done, 0x12_0000_0000));
        assert_eq!(get(&pmu, 0xC1), 1);
    });
}

/// The same section: IA32_A_PMCx at 4C1H where IA32_PERF_CAPABILITIES[13] is set; bits beyond the
/// width fault.
#[test]
fn full_width_writes_are_there_if_declared() {
    each(|intel, mut pmu| {
        for n in 0..8 {
            if !intel.has(IntelFeature::FullWidthWrites) || n >= general(&intel) {
                write_faults(&mut pmu, 0x4C1 + n, 0);
                read_faults(&pmu, 0x4C1 + n);
                continue;
            }
            let value = 0x80_8000_0001;
            set(&mut pmu, 0x4C1 + n, value);
            assert_eq!((get(&pmu, 0x4C1 + n), get(&pmu, 0xC1 + n)), (value, value));
            for bit in intel.general_width..64 {
                let written = pmu.write(0x4C1 + n, value | 1 << bit);
                assert_eq!(written.answer, Write::GeneralProtection);
                assert_eq!(written.illegal, 1 << bit);
            }
            assert_eq!(get(&pmu, 0x4C1 + n), value);
        }
        assert_eq!(get(&pmu, 0x345), u64::from(intel.has(IntelFeature::FullWidthWrites)) << 13);
        write_faults(&mut pmu, 0x345, 1 << 13);
    });
}

/// Figure "Layout of IA32_PERFEVTSELx MSRs": bits 63:32 are reserved, and AnyThread (21) where the
/// version or leaf 0AH EDX[15] says so.
#[test]
fn reserved_bits_of_an_event_select_fault() {
    each(|_, mut pmu| {
        for bit in 0..64 {
            let reserved = bit == 21 || bit >= 32;
            let written = pmu.write(0x186, 1 << bit);
            if reserved {
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            } else {
                assert_eq!((written.answer, written.illegal), (Write::Done, 0));
                assert_eq!(get(&pmu, 0x186), 1 << bit);
            }
        }
        // A write that faults changes nothing.
        write_faults(&mut pmu, 0x186, 0x1_0053_003C);
        assert_eq!(get(&pmu, 0x186), 1 << 31);
    });
    for version in 3..=6 {
        let intel = IntelConfiguration::new(version, 4, 3)
            .with(|intel| intel.set(IntelFeature::AnyThread, true));
        let mut pmu = pmu(Configuration::Intel(intel));
        set(&mut pmu, 0x186, 1 << 21);
        set(&mut pmu, 0x38D, 0xFFF);
        write_faults(&mut pmu, 0x38D, 0xFFFF);
    }
}

/// "Architectural Performance Monitoring Version 2": IA32_FIXED_CTRx from 309H.
#[test]
fn fixed_counters_exist_as_declared() {
    each(|intel, mut pmu| {
        for n in 0..8 {
            if n < fixed(&intel) {
                let value = mask(intel.fixed_width) - u64::from(n);
                set(&mut pmu, 0x309 + n, value);
                assert_eq!(get(&pmu, 0x309 + n), value);
                // Bits beyond the width are reserved (same section); KVM drops them.
                let written = pmu.write(0x309 + n, u64::MAX);
                assert_eq!(written.answer, Write::Done);
                assert_eq!(written.illegal, !mask(intel.fixed_width));
                assert_eq!(get(&pmu, 0x309 + n), mask(intel.fixed_width));
            } else {
                write_faults(&mut pmu, 0x309 + n, 0);
                read_faults(&pmu, 0x309 + n);
            }
        }
    });
}

/// Figure "Layout of IA32_FIXED_CTR_CTRL MSR": OS, USR and PMI of each fixed counter.
#[test]
fn fixed_control_has_the_bits_of_its_counters() {
    each(|intel, mut pmu| {
        if intel.version == 1 {
            write_faults(&mut pmu, 0x38D, 0);
            return read_faults(&pmu, 0x38D);
        }
        for bit in 0..64 {
            let written = pmu.write(0x38D, 1 << bit);
            let legal = bit < 4 * fixed(&intel) && bit % 4 != 2;
            if legal {
                assert_eq!((written.answer, written.illegal), (Write::Done, 0));
                assert_eq!(get(&pmu, 0x38D), 1 << bit);
            } else {
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            }
        }
    });
}

/// Figure "Layout of IA32_PERF_GLOBAL_CTRL MSR", version 2 on.
#[test]
fn global_control_has_one_bit_per_counter() {
    each(|intel, mut pmu| {
        if intel.version == 1 {
            for register in 0x38E..=0x392 {
                write_faults(&mut pmu, register, 0);
                read_faults(&pmu, register);
            }
            return;
        }
        for bit in 0..64 {
            let legal = bit < general(&intel) || (32..32 + fixed(&intel)).contains(&bit);
            let written = pmu.write(0x38F, 1 << bit);
            if legal {
                assert_eq!((written.answer, written.illegal), (Write::Done, 0));
                assert_eq!(get(&pmu, 0x38F), 1 << bit);
            } else {
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            }
        }
    });
}

/// Vol. 3A, "Processor States Following Power-up, Reset, or INIT": the general counters are enabled
/// globally, everything else is 0; INIT changes nothing.
#[test]
fn reset_enables_the_general_counters_globally_and_init_changes_nothing() {
    each(|intel, mut pmu| {
        let fresh = pmu.state();
        let expected = if intel.version >= 2 { low(general(&intel)) } else { 0 };
        assert_eq!(fresh.global_control(), expected);
        set(&mut pmu, 0x186, 0x53_003C);
        set(&mut pmu, 0xC1, 77);
        if intel.version >= 2 {
            set(&mut pmu, 0x38F, 0);
        }
        let programmed = pmu.state();
        pmu.init();
        assert_eq!(pmu.state(), programmed);
        pmu.reset();
        assert_eq!(pmu.state(), fresh);
        assert_eq!((fresh.selects(), fresh.general()), ([0; 8], [0; 8]));
    });
}

/// "IA32_PERF_GLOBAL_STATUS MSR": read-only.
#[test]
fn the_status_cannot_be_written() {
    each(|intel, mut pmu| {
        if intel.version >= 2 {
            let written = pmu.write(0x38E, 1);
            assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, u64::MAX));
            assert_eq!(get(&pmu, 0x38E), 0);
        }
    });
}

/// The bits that IA32_PERF_GLOBAL_STATUS_RESET and _SET have beside the counters' from version 4 on:
/// Trace_ToPA_PMI, LBR_Frz, CTR_Frz, ASCI, Ovf_Uncore, OvfBuf. Vol. 4, 390H and 391H.
const STATUS_FROM_VERSION_4: [u32; 6] = [55, 58, 59, 60, 61, 62];

/// "IA32_PERF_GLOBAL_STATUS_RESET", "_SET", version 4 on; vol. 4, 390H and 391H.
#[test]
fn the_status_is_set_and_cleared_by_bit_from_version_4_on() {
    each(|intel, mut pmu| {
        let counters = low(general(&intel)) | low(fixed(&intel)) << 32;
        if intel.version < 4 {
            write_faults(&mut pmu, 0x391, 0);
            write_faults(&mut pmu, 0x392, 0);
            read_faults(&pmu, 0x391);
            return read_faults(&pmu, 0x392);
        }
        let all = STATUS_FROM_VERSION_4.iter().fold(counters, |bits, bit| bits | 1 << bit);
        set(&mut pmu, 0x391, all);
        assert_eq!(get(&pmu, 0x38E), all);
        for bit in 0..64 {
            if all >> bit & 1 == 0 {
                let written = pmu.write(0x391, 1 << bit);
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            }
        }
        set(&mut pmu, 0x390, 1);
        assert_eq!(get(&pmu, 0x38E), all & !1);
        set(&mut pmu, 0x390, all);
        assert_eq!((get(&pmu, 0x38E), get(&pmu, 0x390), get(&pmu, 0x391)), (0, 0, 0));
    });
}

/// "IA32_PERF_GLOBAL_OVF_CTRL", versions 2 and 3: the counters' bits and CondChgd (63) can be cleared; ClrOvfBuffer
/// (62) has nothing to clear without a DS area, and is reported.
#[test]
fn the_status_is_cleared_with_the_bits_that_there_are() {
    each(|intel, mut pmu| {
        if !matches!(intel.version, 2 | 3) {
            return;
        }
        let counters = low(general(&intel)) | low(fixed(&intel)) << 32;
        let legal = counters | 1 << 63;
        for bit in 0..64 {
            let written = pmu.write(0x390, 1 << bit);
            let illegal = !legal & 1 << bit;
            assert_eq!(written.illegal, illegal);
            let faults = illegal != 0 && bit != 62;
            assert_eq!(written.answer == Write::GeneralProtection, faults, "bit {bit}");
        }
    });
}

/// "IA32_PERF_GLOBAL_STATUS_RESET", version 4 on: a bit that cannot be set in this guest, since it lacks the feature,
/// is cleared without effect. The other bits are reserved.
#[test]
fn a_reset_of_the_status_bits_of_absent_features_is_ignored() {
    each(|intel, mut pmu| {
        if intel.version < 4 {
            return;
        }
        let counters = low(general(&intel)) | low(fixed(&intel)) << 32;
        let legal =
            STATUS_FROM_VERSION_4.iter().fold(counters | 1 << 63, |bits, bit| bits | 1 << bit);
        set(&mut pmu, 0x391, counters);
        for bit in (0..64).filter(|bit| counters >> bit & 1 == 0) {
            let written = pmu.write(0x390, 1 << bit);
            let expected = match legal >> bit & 1 {
                1 => (Write::Done, 0),
                _ => (Write::GeneralProtection, 1 << bit),
            };
            assert_eq!((written.answer, written.illegal), expected, "bit {bit}");
            assert_eq!(get(&pmu, 0x38E), counters, "bit {bit}");
        }
        set(&mut pmu, 0x390, legal);
        assert_eq!(get(&pmu, 0x38E), 0);
    });
}

/// "IA32_PERF_GLOBAL_INUSE MSR", version 4 on.
#[test]
fn in_use_tells_of_selected_events_enabled_fixed_counters_and_interrupts() {
    each(|intel, mut pmu| {
        if intel.version < 4 {
            return;
        }
        assert_eq!(get(&pmu, 0x392), 0);
        for n in 0..general(&intel) {
            // The event select alone; not the unit mask.
            set(&mut pmu, 0x186 + n, 0x43_FF00);
            assert_eq!(get(&pmu, 0x392) >> n & 1, 0);
            set(&mut pmu, 0x186 + n, 0x80);
            assert_eq!(get(&pmu, 0x392) & low(8), low(n + 1));
        }
        let general_bits = low(general(&intel));
        set(&mut pmu, 0x186, 0x10_0001);
        assert_eq!(get(&pmu, 0x392), general_bits | 1 << 63);
        set(&mut pmu, 0x186, 1);
        for n in 0..fixed(&intel) {
            for (nibble, expected) in [(1, 1 << (32 + n)), (2, 1 << (32 + n)), (8, 1 << 63), (0, 0)]
            {
                set(&mut pmu, 0x38D, nibble << (4 * n));
                assert_eq!(get(&pmu, 0x392), general_bits | expected);
            }
        }
        write_faults(&mut pmu, 0x392, 0);
    });
}

/// Vol. 4, IA32_MISC_ENABLE (1A0H): 7 performance monitoring available, 11 BTS and 12 PEBS
/// unavailable, all read-only.
#[test]
fn misc_enable_says_what_there_is() {
    each(|_, mut pmu| {
        let value = 1 << 7 | 1 << 11 | 1 << 12;
        assert_eq!(pmu.read(0x1A0), Read::Shared { value, mask: value });
        let written = pmu.write(0x1A0, value | 1);
        assert_eq!((written.answer, written.illegal), (Write::Shared { mask: value }, 0));
        let written = pmu.write(0x1A0, value & !(1 << 7));
        assert_eq!((written.answer, written.illegal), (Write::Shared { mask: value }, 1 << 7));
        for bit in [11, 12] {
            let written = pmu.write(0x1A0, value & !(1 << bit));
            assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
        }
        assert_eq!(pmu.read(0x1A0), Read::Shared { value, mask: value });
    });
}

/// Vol. 3B, "IA32_DEBUGCTL MSR": BTS, TR and freezes of what there is not are reserved.
#[test]
fn debug_control_has_no_bits_for_what_there_is_not() {
    each(|intel, mut pmu| {
        for bit in 0..16 {
            let written = pmu.write(0x1D9, 1 << bit);
            let of_pmu = matches!(bit, 0 | 6..=14);
            let legal = !of_pmu || bit == 12 && intel.version >= 2;
            assert_eq!(written.illegal, if legal { 0 } else { 1 << bit });
            // KVM drops LBR.
            let faults = !legal && bit != 0;
            assert_eq!(written.answer == Write::GeneralProtection, faults);
        }
    });
}

/// Vol. 4: other registers are distinguished from absent ones.
#[test]
fn other_registers_are_not_the_pmus() {
    each(|_, mut pmu| {
        for address in [0, 0x10, 0xC0, 0xC9, 0x174, 0x185, 0x277, 0xC000_0080, 0xC001_0000] {
            assert_eq!(pmu.read(address), Read::Unhandled, "{address:#X}");
            let written = pmu.write(address, u64::MAX);
            assert_eq!((written.answer, written.illegal), (Write::Unhandled, 0));
        }
        // PEBS, DS, LBR, off-core response, auto counter reload: performance monitoring, and not offered.
        for address in [0x1A6, 0x1C8, 0x329, 0x3F1, 0x3F2, 0x600, 0x680, 0x14CE, 0x1902, 0x1981] {
            read_faults(&pmu, address);
            write_faults(&mut pmu, address, 0);
        }
    });
}

/// "Architectural Performance Monitoring Version 5" and leaf 23H: counters with gaps.
#[test]
fn counters_may_have_gaps() {
    let intel = IntelConfiguration::new(5, 8, 8).with(|intel| {
        intel.general = 0b1010_0001;
        intel.fixed = 0b1000_0010;
        intel.set(IntelFeature::ExtendedLeaf, true);
    });
    let mut pmu = pmu(Configuration::Intel(intel));
    assert_eq!(get(&pmu, 0x38F), 0xA1);
    set(&mut pmu, 0x38F, 0x82_0000_00A1);
    write_faults(&mut pmu, 0x38F, 0x2);
    set(&mut pmu, 0x18D, 0x53_003C);
    write_faults(&mut pmu, 0x187, 0);
    read_faults(&pmu, 0xC2);
    assert_eq!(pmu.read_counter(1, KERNEL), Read::GeneralProtection);
    assert_eq!(pmu.read_counter(7, KERNEL), Read::Value(0));
    set(&mut pmu, 0x38D, 0xB000_00B0);
    write_faults(&mut pmu, 0x38D, 0x1);
    set(&mut pmu, 0x310, mask(48));
    let advanced = happen(&mut pmu, EventKey::fixed(7).unwrap(), Privilege::User, 1);
    assert_eq!(advanced.overflowed, 1 << 39);
}
